//! Kept tables give the rows of their files, and are never taken for those of other files.

use std::fs::FileTimes;

use ddp::data::{Dataset, Loaded};
use ddp_comm::{World, threads};
use ddp_kernels::{DType, Device, Tensor};

use super::*;
use crate::io::write_npy;
use crate::load::load;
use crate::open::open as open_rows;
use crate::testing::gathered;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        place.write("a,kind,y\n1,red,0\n2,blue,1\n3,red,1\n4,green,0\n5,blue,1\n");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, text: &str) {
        fs::write(self.path("t.csv"), text).unwrap();
    }

    fn config(&self) -> Config {
        let (table, cache) = (self.path("t.csv"), self.path("cache"));
        let sets = [
            format!("data.train={}", table.display()),
            format!("data.cache={}", cache.display()),
            "data.target=y".to_owned(),
            "data.categorical=[\"kind\"]".to_owned(),
            "data.eval_fraction=0.4".to_owned(),
        ];
        Config::load(None, &sets).unwrap()
    }

    /// The name by which this config, which leaves the task to the labels, finds a table.
    fn named(&self, entry: &Entry) -> PathBuf {
        let config = self.config();
        let own = files_hash(&config).and_then(|files| key(&config, None, files));
        let own = own.map(|key| named(&self.path("cache"), key)).filter(|own| entry.paths.contains(own));
        own.unwrap_or_else(|| entry.paths[0].clone())
    }

    /// Loads on `n_ranks` ranks; returns the rows, and the tables that are kept then.
    fn load(&self, n_ranks: usize) -> (Vec<f32>, Vec<PathBuf>) {
        let config = self.config();
        let ranks = match n_ranks {
            1 => vec![rows(load(&config, &World::single()).unwrap())],
            n => threads::run(n, |world| rows(load(&config, &world).unwrap())),
        };
        assert!(ranks.iter().all(|rows| *rows == ranks[0]), "{ranks:?}");
        let kept = entries(&self.path("cache")).unwrap();
        let n_named: usize = kept.iter().map(|entry| entry.paths.len()).sum();
        assert_eq!(fs::read_dir(self.path("cache")).unwrap().count(), n_named, "nothing else is left");
        (ranks[0].clone(), kept.into_iter().map(|entry| self.named(&entry)).collect())
    }
}

/// Features and targets, of training and evaluation.
fn rows(loaded: Loaded) -> Vec<f32> {
    let of = |rows: &dyn Dataset| {
        let (x, y, _) = gathered(rows, &(0..rows.len()).collect::<Vec<_>>());
        [x, y].concat()
    };
    [of(&*loaded.train), of(&*loaded.eval.unwrap())].concat()
}

#[test]
fn rows_are_those_of_the_files_on_any_number_of_ranks() {
    let place = Place::new();
    let mut plain = place.config();
    plain.data.cache = None;
    let want = load(&plain, &World::single()).unwrap();
    let (first, kept) = place.load(1);
    assert_eq!(kept.len(), 1);
    assert_eq!(rows(want), first);
    assert_eq!(kept[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let made = kept[0].metadata().unwrap().modified().unwrap();
    for n_ranks in [1, 3] {
        assert_eq!(place.load(n_ranks), (first.clone(), kept.clone()), "{n_ranks} ranks");
    }
    assert_eq!(kept[0].metadata().unwrap().modified().unwrap(), made, "it was read, not made again");
    // A run that resumes knows the task.
    let mut decided = place.config();
    (decided.data.task, decided.data.auto_task) = (ddp::config::Task::Classification, false);
    let (found, _) = open(&decided, None).unwrap();
    assert!(found.is_complete);
    // Ranks that share make the same file.
    fs::remove_dir_all(place.path("cache")).unwrap();
    assert_eq!(place.load(3), (first, kept));
}

#[test]
fn a_table_that_changed_is_read_again() {
    let place = Place::new();
    let (first, kept) = place.load(1);
    let table = place.path("t.csv");
    let before = fs::metadata(&table).unwrap();
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    // In place, of the same size, with the time that it had.
    place.write("a,kind,y\n1,red,0\n2,blue,1\n9,red,1\n4,green,0\n5,blue,1\n");
    File::options().write(true).open(&table).unwrap().set_times(times).unwrap();
    let now = fs::metadata(&table).unwrap();
    assert_eq!((now.ino(), now.len(), now.mtime_nsec()), (before.ino(), before.len(), before.mtime_nsec()));
    let (second, kept_now) = place.load(1);
    assert!(second.contains(&9.0) && !first.contains(&9.0));
    assert_eq!(kept_now.len(), kept.len() + 1);
    place.write("a,kind,y\n1,red,0\n2,blue,1\n9,red,1\n4,green,0\n5,blue,1\n6,red,0\n");
    assert!(place.load(1).0.len() > second.len());
}

#[test]
fn damaged_or_foreign_files_are_not_used() {
    let place = Place::new();
    let (first, kept) = place.load(1);
    let whole = fs::read(&kept[0]).unwrap();
    let of = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        bytes
    };
    let damaged = [
        of(&|bytes| bytes.truncate(bytes.len() - 1)),
        of(&|bytes| bytes.clear()),
        of(&|bytes| *bytes.last_mut().unwrap() ^= 1),
        of(&|bytes| bytes[HEADER_BYTES as usize + 4096 + 70] ^= 1),
        of(&|bytes| bytes[8] ^= 1),
        of(&|bytes| bytes[24] ^= 1),
    ];
    for (n, bytes) in damaged.into_iter().enumerate() {
        fs::write(&kept[0], bytes).unwrap();
        assert_eq!(place.load(1), (first.clone(), kept.clone()), "damage {n}");
        assert!(fs::read(&kept[0]).unwrap() == whole, "damage {n}: made again");
    }
    // Another user could have written it.
    fs::set_permissions(&kept[0], fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(place.load(1).0, first);
    assert_eq!(kept[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // What a killed process left is removed.
    fs::write(place.path("cache/.0123456789abcdef.4242.tmp"), b"half").unwrap();
    fs::remove_file(&kept[0]).unwrap();
    assert_eq!(place.load(3), (first, kept));
}

#[test]
fn a_kept_file_that_is_truncated_in_use_is_an_error_and_not_zeros() {
    let place = Place::new();
    let (_, kept) = place.load(1);
    let loaded = load(&place.config(), &World::single()).unwrap();
    let read = || {
        let mut labels = [0; 3];
        loaded.train.class_indices(0..3, &mut labels).map(|()| labels)
    };
    assert_ne!(read().unwrap(), [0; 3]);
    File::options().write(true).open(&kept[0]).unwrap().set_len(HEADER_BYTES).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(error.contains(kept[0].to_str().unwrap()) && error.contains("is missing"), "{error}");
}

#[test]
fn memory_of_a_launcher_is_not_written_again_while_its_rows_are_in_use() {
    let place = Place::new();
    let config = place.config();
    let memory = tempfile::NamedTempFile::new().unwrap();
    let of_job = || {
        let file = File::options().read(true).write(true).open(memory.path()).unwrap();
        in_memory(file, KeptTable { files: 0, key: 7, paths: None })
    };
    let (kept, table) = of_job().unwrap();
    let host = World::single().share_host(|| Some(kept)).unwrap().unwrap();
    let rows = open_rows(&SourceSpec { host: Some(&host), ..SourceSpec::train(&config.data) }).unwrap();
    // Never completed, as when files changed while they were read.
    drop((host, table));
    assert!(of_job().is_none(), "its rows are in use");
    drop(rows);
    assert!(of_job().is_some_and(|(kept, _)| !kept.is_complete));
}

/// Labels of arrays are looked at by each start: their files are no part of the key.
#[test]
fn labels_of_evaluation_arrays_may_change() {
    let place = Place::new();
    place.write("a,y\n1,0\n2,1\n3,1\n");
    let tensor = |values: &[f32], dims: &[usize]| Tensor::from_slice(values, dims, Device::Cpu).unwrap();
    write_npy(place.path("x.npy"), &tensor(&[1.0, 2.0, 3.0], &[3, 1])).unwrap();
    let sets = ["train=t.csv", "eval=x.npy", "eval_labels=y.npy", "cache=cache"]
        .map(|set| set.split_once('=').unwrap())
        .map(|(key, name)| format!("data.{key}={}", place.path(name).display()));
    let others = ["data.target=y", "data.task=classification", "data.unknown_label=skip"].map(str::to_owned);
    let config = Config::load(None, &[&sets[..], &others[..]].concat()).unwrap();
    for (labels, want) in [([0.0, 9.0, 1.0], 1), ([9.0, 9.0, 1.0], 2), ([0.0, 1.0, 1.0], 0)] {
        write_npy(place.path("y.npy"), &tensor(&labels, &[3]).to_dtype(DType::I64).unwrap()).unwrap();
        assert_eq!(load(&config, &World::single()).unwrap().n_skipped, want, "{labels:?}");
        assert_eq!(entries(&place.path("cache")).unwrap().len(), 1, "the table is kept");
    }
}

#[test]
fn a_folder_that_can_not_be_written_is_no_reason_to_fail() {
    let place = Place::new();
    fs::write(place.path("cache"), b"a file").unwrap();
    assert_eq!(load(&place.config(), &World::single()).unwrap().train.len(), 3);
}

#[test]
fn folders_that_are_columns_are_part_of_the_key() {
    let place = Place::new();
    fs::create_dir_all(place.path("g/year=2024")).unwrap();
    fs::write(place.path("g/year=2024/p.csv"), "a,kind,y\n1,red,0\n2,blue,1\n").unwrap();
    let hash = |source: &str| {
        let mut config = place.config();
        config.data.train = place.path(source).display().to_string();
        files_hash(&config).unwrap()
    };
    assert_ne!(hash("g"), hash("g/year=2024"), "the year is a column of the first alone");
    assert_eq!(hash("g/year=2024"), hash("g/year=2024/p.csv"));
}
