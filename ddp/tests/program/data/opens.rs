//! Number of times that the ranks of a host open the files of the rows: once to look at them, and once or twice to read them.

use std::collections::HashMap;
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::files::{Element, npy};
use crate::common::{made_up_csv, ranks, run_line_ok, run_ok, temp_dir, write};

const N_FILES: usize = 3;

/// Runs `ddp-train` on `n_ranks` in `folder` and counts the opens of each file of `watched`; of those that overlap, some are not seen.
fn opens(folder: &Path, watched: &str, n_ranks: usize, line: &str) -> HashMap<String, usize> {
    let notify = inotify::init(CreateFlags::NONBLOCK).unwrap();
    // Between two opens there is another event, or the system reports one.
    let flags = WatchFlags::OPEN | WatchFlags::ACCESS | WatchFlags::CLOSE_NOWRITE;
    inotify::add_watch(&notify, folder.join(watched), flags).unwrap();
    let mut command = ranks(n_ranks, &line.split_whitespace().collect::<Vec<_>>());
    command.current_dir(folder);
    run_ok(command);
    let (mut opens, mut closes) = (HashMap::new(), HashMap::new());
    let mut buffer = [MaybeUninit::uninit(); 1 << 16];
    let mut events = Reader::new(&notify, &mut buffer);
    while let Ok(event) = events.next() {
        let Some(name) = event.file_name() else { continue };
        assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "too many events");
        let name = name.to_str().unwrap().to_owned();
        if event.events().contains(ReadFlags::OPEN) {
            *opens.entry(name).or_insert(0) += 1;
        } else if event.events().contains(ReadFlags::CLOSE_NOWRITE) {
            *closes.entry(name).or_insert(0) += 1;
        }
    }
    opens
        .into_iter()
        .map(|(name, n)| (name.clone(), n.max(closes.get(&name).copied().unwrap_or(0))))
        .collect()
}

#[track_caller]
fn assert_opens(folder: &Path, watched: &str, line: &str, most: impl Fn(usize) -> usize) {
    for n_ranks in [1, 2] {
        let line = format!(
            "train {line} --out {watched}-{n_ranks} --set train.steps=1 --set data.eval_fraction=0.2 --quiet"
        );
        let opens = opens(folder, watched, n_ranks, &line);
        assert_eq!(opens.len(), N_FILES, "{opens:?}");
        let most = most(n_ranks);
        assert!(
            opens.values().all(|&n| n <= most),
            "{watched} on {n_ranks} ranks, at most {most}: {opens:?}"
        );
    }
}

#[test]
fn a_file_of_a_table_is_opened_a_few_times_per_host() {
    let folder = temp_dir();
    let write_config = |name: &str| {
        let config = format!("[data]\ntrain = \"{name}\"\n[train]\nglobal_batch_size = 16\n");
        write(folder.path(), &format!("{name}.toml"), &config);
    };
    for name in ["csv", "parquet"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        write_config(name);
    }
    for file in 0..N_FILES {
        write(
            &folder.path().join("csv"),
            &format!("{file}.csv"),
            &made_up_csv(60, 3, "classification", 60 * file),
        );
        run_line_ok(folder.path(), &format!("data convert csv/{file}.csv parquet/{file}.parquet"));
    }
    // The format, whether it has rows, the rows.
    assert_opens(folder.path(), "csv", "csv.toml", |_| 3);
    // And the sizes of its row groups.
    assert_opens(folder.path(), "parquet", "parquet.toml", |_| 4);
}

#[test]
fn a_file_of_an_array_is_opened_once_per_rank_and_once_to_look_at_it() {
    let folder = temp_dir();
    for name in ["x", "y"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    for file in 0..N_FILES {
        let features: Vec<f64> = (0..200).map(|i| ((i * 37 + file) % 101) as f64 * 0.25).collect();
        let labels: Vec<f64> = (0..100).map(|row| (row % 2) as f64).collect();
        let put = |name: &str, bytes: Vec<u8>| {
            fs::write(folder.path().join(name).join(format!("{file}.npy")), bytes).unwrap();
        };
        put("x", npy(Element::F32, false, &[100, 2], &features));
        put("y", npy(Element::I64, false, &[100], &labels));
    }
    write(
        folder.path(),
        "npy.toml",
        "[data]\ntrain = \"x\"\nlabels = \"y\"\n[train]\nglobal_batch_size = 16\n",
    );
    assert_opens(folder.path(), "x", "npy.toml", |n_ranks| 1 + n_ranks);
}
