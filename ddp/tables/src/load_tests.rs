//! Training and evaluation rows fit together, or the difference is named.

use std::fs;
use std::path::PathBuf;

use ddp_kernels::{Device, Tensor};

use super::*;
use crate::io::write_npz;
use crate::testing::{columns_of, features_of, gathered};

/// A folder with `train.csv` and `eval.csv`.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new(train: &str, eval: &str) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(files.path("train.csv"), train).unwrap();
        fs::write(files.path("eval.csv"), eval).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Loads with these `--set` arguments besides the two files.
    fn load(&self, sets: &[&str], world_size: usize) -> std::result::Result<Loaded, String> {
        let mut all = vec![format!("data.train={}", self.path("train.csv").display())];
        if !sets.iter().any(|set| set.starts_with("data.eval") || set.starts_with("data.fold")) {
            all.push(format!("data.eval={}", self.path("eval.csv").display()));
        }
        all.extend(sets.iter().map(|set| (*set).to_owned()));
        let config = Config::load(None, &all).unwrap();
        let ranks = ddp_comm::threads::run(world_size, |world| {
            load(&config, &world).map_err(|stop| {
                stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
            })
        });
        ranks.into_iter().next().unwrap()
    }
}

#[track_caller]
fn assert_refused(result: std::result::Result<Loaded, String>, parts: &[&str]) {
    let message = result.expect_err("refused");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    assert!(message.lines().last().unwrap_or_default().starts_with("hint: "), "{message}");
}

const TRAIN: &str = "a,b,label\n1,10,0\n2,20,1\n3,30,2\n";

#[test]
fn settings_of_a_format_are_for_the_training_rows() {
    let files = Files::new(&TRAIN.replace(',', "\t"), "");
    let rows: String =
        [(4, 1), (5, 0)].map(|(a, y)| format!("{{\"a\":{a},\"b\":5,\"label\":{y}}}\n")).concat();
    fs::write(files.path("eval.jsonl"), rows).unwrap();
    let eval = format!("data.eval={}", files.path("eval.jsonl").display());
    let loaded = files.load(&["data.delimiter=tab", &eval], 1).unwrap();
    assert_eq!(features_of(&*loaded.eval.unwrap()), [4.0, 5.0, 5.0, 5.0]);
    let train = format!("data.train={}", files.path("eval.jsonl").display());
    assert_refused(files.load(&["data.eval=none", "data.delimiter=tab", &train], 1), &["holds no cells"]);
}

#[test]
fn digits_load_with_their_own_split() {
    let world = World::single();
    let loaded = load(&Config::load(None, &[]).unwrap(), &world).unwrap();
    assert_eq!((loaded.train.len(), loaded.eval.unwrap().len()), (1438, 359));
    assert_eq!(loaded.preprocessor.normalizer, None);

    let sets = ["data.eval_fraction=0.5".to_owned()];
    let loaded = load(&Config::load(None, &sets).unwrap(), &world).unwrap();
    assert_eq!((loaded.train.len(), loaded.eval.unwrap().len()), (719, 719));

    let sets = ["data.eval=none".to_owned()];
    assert!(load(&Config::load(None, &sets).unwrap(), &world).unwrap().eval.is_none());
}

#[test]
fn eval_takes_classes_and_columns_of_training() {
    let files = Files::new(TRAIN, "b,label,a\n5,1,4\n");
    let eval = files.load(&[], 1).unwrap().eval.unwrap();
    assert_eq!(eval.layout().features, ["a", "b"]);
    let (features, labels, _) = gathered(&*eval, &[0]);
    assert_eq!(features, [4.0, 5.0], "columns follow their names");
    assert_eq!(labels, [1.0]);
    assert_eq!(eval.layout().targets, TargetLayout::Classes { n_classes: 3 });
}

#[test]
fn both_are_normalized_by_training_rows() {
    let files = Files::new(TRAIN, "a,b,label\n5,10,0\n");
    let loaded = files.load(&["data.normalize=minmax"], 1).unwrap();
    assert_eq!(features_of(&*loaded.eval.unwrap()), [5.0, 10.0], "normalized on the way to the model");
    let normalizer = loaded.preprocessor.normalizer.unwrap();
    assert_eq!((normalizer.shift, normalizer.scale), (vec![1.0, 10.0], vec![0.5, f64::from(0.05f32)]));
}

#[test]
fn other_columns_are_named() {
    assert_refused(
        Files::new(TRAIN, "a,c,label\n1,2,0\n").load(&[], 1),
        &["eval.csv", "train.csv", "\"b\" is missing, \"c\" is extra"],
    );
    assert_refused(
        Files::new(TRAIN, "a,label\n1,0\n").load(&[], 1),
        &["1 feature columns differ from the 2", "\"b\" is missing"],
    );
    assert_refused(
        Files::new(TRAIN, "bb,a,zz,label\n1,1,1,0\n").load(&[], 1),
        &["\"b\" is missing, \"bb\" is extra"],
    );
    // Columns that training does not have are left out.
    let files = Files::new(TRAIN, "c,b,a,label\nx,10,5,0\n");
    let eval = files.load(&[], 1).unwrap().eval.unwrap();
    assert_eq!(features_of(&*eval), [5.0, 10.0]);
    let [note] = &eval.layout().left_out[..] else { panic!("one note: {:?}", eval.layout().left_out) };
    assert!(note.contains("\"c\" is left out"), "{note}");
    assert_refused(files.load(&["data.extra_columns=error"], 1), &["eval.csv", "\"c\" is extra"]);
}

#[test]
fn eval_labels_must_be_classes_of_training() {
    let files = Files::new(TRAIN, "a,b,label\n1,2,0\n1,2,3\n");
    assert_refused(files.load(&[], 1), &["eval.csv", "line 3, column \"label\"", "label 3 is out of range"]);
    assert_eq!(files.load(&["data.classes=4"], 1).unwrap().train.layout().targets.n_outputs(), 4);
}

#[test]
fn eval_without_rows_is_refused() {
    assert_refused(Files::new(TRAIN, "a,b,label\n").load(&[], 1), &["eval.csv", "no rows after the header"]);
    assert_refused(
        Files::new(TRAIN, "").load(&["data.eval_fraction=0.1"], 1),
        &["train.csv", "no test rows"],
    );
}

#[test]
fn a_class_per_row_is_the_reason_that_no_rows_are_held_out() {
    let rows: String = (0..40).map(|row| format!("{row},{row},\"{row},000\"\n")).collect();
    let files = Files::new(&format!("a,b,label\n{rows}"), "");
    let reason = "the 40 rows have 40 different labels, such as \"9,000\", so that none can be held out";
    assert_refused(
        files.load(&["data.eval_fraction=0.2"], 1),
        &["train.csv", reason, "number written as text"],
    );
}

#[test]
fn fewer_rows_than_ranks_are_refused() {
    let files = Files::new(TRAIN, "a,b,label\n1,2,0\n");
    assert!(files.load(&[], 3).is_ok());
    assert_refused(
        files.load(&[], 4),
        &["train.csv", "3 training rows, fewer than the 4 ranks", "mpirun -n 3"],
    );
}

#[test]
fn class_weights_are_one_a_class() {
    let files = Files::new(TRAIN, "a,b,label\n1,2,0\n");
    assert!(files.load(&["loss.class_weights=[1,2,3]"], 1).is_ok());
    assert_refused(
        files.load(&["loss.class_weights=[1,2]"], 1),
        &["`loss.class_weights` has 2 numbers, expected 3", "train.csv"],
    );
}

#[test]
fn fingerprint_tells_contents_apart() {
    let of = |train: &str, eval: &str| {
        let loaded = Files::new(train, eval).load(&[], 1).unwrap();
        fingerprint(&loaded.train, loaded.eval.as_ref()).unwrap()
    };
    let eval = "a,b,label\n1,2,2\n";
    let base = of(TRAIN, eval);
    assert_eq!(base, of(TRAIN, eval), "the path does not count");
    for (train, eval) in [
        (TRAIN.replace("20", "21"), eval.to_owned()),
        (TRAIN.replace("3,30,2", "3,30,1\n3,30,2"), eval.to_owned()),
        (TRAIN.replace("1,10,0", "1,10,1"), eval.to_owned()),
        (TRAIN.replace("1,10,0", "1,10,-1"), eval.to_owned()),
        (TRAIN.replace("1,10,0", "1,10,a").replace("2,20,1", "2,20,b"), eval.replace(",2\n", ",b\n")),
        (TRAIN.replace("1,10,0\n2,20,1", "2,20,1\n1,10,0"), eval.to_owned()),
        (TRAIN.replace("a,b", "a,c"), eval.replace("a,b", "a,c")),
        (TRAIN.to_owned(), eval.replace(",2,", ",3,")),
        (TRAIN.to_owned(), eval.replace(",2\n", ",1\n")),
    ] {
        assert_ne!(base, of(&train, &eval), "{train}{eval}");
    }
}

/// A `.npy` file of f32.
fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

#[test]
fn rows_to_evaluate_have_weights_of_their_own() {
    let files = Files::new(TRAIN, "a,b,label\n1,2,0\n");
    for (name, shape, values) in [
        ("x.npy", "(3, 2)", &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0][..]),
        ("y.npy", "(3,)", &[0.0, 1.0, 2.0]),
        ("w.npy", "(3,)", &[1.0, 2.0, 3.0]),
        ("x_test.npy", "(2, 2)", &[4.0, 40.0, 5.0, 50.0]),
        ("y_test.npy", "(2,)", &[0.0, 1.0]),
        ("w_test.npy", "(2,)", &[0.5, 2.5]),
    ] {
        fs::write(files.path(name), npy(shape, values)).unwrap();
    }
    let set = |key: &str, name: &str| format!("data.{key}={}", files.path(name).display());
    let rows = [("train", "x"), ("labels", "y"), ("eval", "x_test"), ("eval_labels", "y_test")];
    let rows = rows.map(|(key, name)| set(key, &format!("{name}.npy")));
    let load = |more: &[String]| {
        let sets: Vec<&str> = rows.iter().chain(more).map(String::as_str).collect();
        files.load(&sets, 1)
    };
    let weights = |dataset: &dyn Dataset| gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>()).2;
    let (weight, eval_weight) = (set("weight", "w.npy"), set("eval_weight", "w_test.npy"));
    for (more, train, eval) in [
        (vec![&weight, &eval_weight], Some(vec![1.0, 2.0, 3.0]), Some(vec![0.5, 2.5])),
        (vec![&weight], Some(vec![1.0, 2.0, 3.0]), None),
        (vec![&eval_weight], None, Some(vec![0.5, 2.5])),
    ] {
        let more: Vec<String> = more.into_iter().cloned().collect();
        let loaded = load(&more).unwrap();
        assert_eq!((weights(&*loaded.train), weights(&*loaded.eval.unwrap())), (train, eval), "{more:?}");
    }
    let of_other_rows = load(&[set("eval_weight", "w.npy")]);
    assert_refused(of_other_rows, &["x_test.npy` has 2 rows, but its weights", "w.npy` have 3"]);
    // The rows of a table have theirs in a column.
    let sets = [set("train", "train.csv"), set("eval", "eval.csv"), eval_weight];
    let of_table = files.load(&sets.each_ref().map(String::as_str), 1);
    assert_refused(of_table, &["`data.eval_weight` is set", "eval.csv", "`data.weight` names the column"]);
}

#[test]
fn an_archive_with_test_rows_must_have_their_labels_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.npz");
    let load = |arrays: &[(&str, &[usize], &[f32])], weight: &str| {
        let tensor =
            |shape: &[usize], values: &[f32]| Tensor::from_slice(values, shape, Device::Cpu).unwrap();
        let tensors: Vec<(&str, Tensor)> =
            arrays.iter().map(|(name, shape, values)| (*name, tensor(shape, values))).collect();
        let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        write_npz(&path, &named).unwrap();
        let path = path.display();
        let sets =
            [format!("data.train={path}"), format!("data.eval={path}"), format!("data.weight={weight}")];
        let config = Config::load(None, &sets).unwrap();
        load(&config, &World::single())
            .map_err(|stop| ddp_kernels::hint::with_hint(stop.error().expect("an error of the rows")))
    };
    let x = [("x_train", &[2, 1][..], &[1.0, 2.0][..]), ("x_test", &[2, 1], &[3.0, 4.0])];
    let y = [("y_train", &[2][..], &[0.0, 1.0][..]), ("y_test", &[2], &[1.0, 0.0])];
    let rows = [x, y].concat();
    let weights = |loaded: Loaded| [loaded.train, loaded.eval.unwrap()].map(|of| gathered(&*of, &[0, 1]).2);
    for (train, test) in [("w_train", "w_test"), ("w", "w_test")] {
        let of_train = (train, &[2][..], &[1.0, 2.0][..]);
        let all = [&rows[..], &[of_train, (test, &[2][..], &[3.0, 0.5][..])]].concat();
        let want = [Some(vec![1.0, 2.0]), Some(vec![3.0, 0.5])];
        assert_eq!(weights(load(&all, train).unwrap()), want);
        // As many rows as the test rows have are no reason to take the training rows' arrays.
        assert_refused(
            load(&[&rows[..], &[of_train]].concat(), train),
            &[&format!("no array \"{test}\""), &format!("\"{train}\" is of the training rows")],
        );
    }
    let of_train = [&x[..], &y[..1], &[("w", &[2], &[1.0, 2.0])]].concat();
    assert_refused(load(&of_train, "w"), &["no array \"y_test\"", "add \"y_test\""]);
    // An archive of its own needs no weights.
    let eval = folder.path().join("eval.npz");
    let rows = Tensor::from_slice(&[3.0f32, 0.0], &[2, 1], Device::Cpu).unwrap();
    let labels = Tensor::from_slice(&[1.0f32, 0.0], &[2], Device::Cpu).unwrap();
    write_npz(&eval, &[("x", &rows), ("y", &labels)]).unwrap();
    let of_all = [&x[..], &y, &[("w", &[2], &[1.0, 2.0]), ("w_test", &[2], &[1.0, 2.0])]].concat();
    load(&of_all, "w").unwrap();
    let sets = [("train", &path), ("eval", &eval)].map(|(key, of)| format!("data.{key}={}", of.display()));
    let config = Config::load(None, &[&sets[..], &["data.weight=w".to_owned()]].concat()).unwrap();
    let loaded = super::load(&config, &World::single()).unwrap();
    assert_eq!(loaded.eval.unwrap().layout().left_out, ["its rows have no \"w\", so all weigh 1"]);
}

/// Everything that rows hold.
fn contents(rows: &dyn Dataset) -> (RowLayout, [Vec<u64>; 4], u64) {
    let numbers: Vec<usize> = (0..rows.len()).collect();
    let (features, targets, weights) = gathered(rows, &numbers);
    let (n_features, n_targets) = (rows.layout().n_features(), rows.layout().targets.n_values());
    let mut doubles = vec![0.0; numbers.len() * n_features];
    let mut target_doubles = vec![0.0; numbers.len() * n_targets];
    rows.gather_doubles(&numbers, &vec![0.0; n_features], &mut doubles).unwrap();
    rows.gather_target_doubles(&numbers, &vec![0.0; n_targets], &mut target_doubles).unwrap();
    let singles = [features, targets, weights.unwrap_or_default()].concat();
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect();
    let singles: Vec<f64> = singles.into_iter().map(f64::from).collect();
    let sources = numbers.iter().map(|row| rows.source_row(*row) as u64).collect();
    let fingerprint = rows.fingerprint().unwrap();
    (rows.layout().clone(), [bits(&singles), bits(&doubles), bits(&target_doubles), sources], fingerprint)
}

/// Loads rows on one rank and on three, which share them.
#[track_caller]
fn assert_shared_alike(sets: &[&str], is_in_memory: bool) {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load(None, &sets).unwrap();
    let all_of = |loaded: &Loaded| {
        (
            contents(&*loaded.train),
            loaded.eval.as_deref().map(contents),
            (
                loaded.preprocessor.clone(),
                loaded.split.clone(),
                loaded.n_skipped,
                loaded.data_fingerprint.clone(),
            ),
        )
    };
    let expected = all_of(&load(&config, &World::single()).unwrap());
    let loaded = ddp_comm::threads::run(3, |world| load(&config, &world).unwrap());
    for (rank, loaded) in loaded.iter().enumerate() {
        assert_eq!(all_of(loaded), expected, "rank {rank}");
        // Nothing but the mapping: the rows of the first rank were moved there.
        let debug = format!("{:?}", loaded.train);
        assert_eq!(debug.contains("SharedRows"), is_in_memory, "rank {rank}: {debug:.300}");
    }
}

#[test]
fn ranks_of_a_host_share_a_table_that_one_of_them_reads() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let kinds = ["red", "green", "blue"];
    let line = |i: u32, end: &str| {
        let time = 1_700_000_000_000_000_000 + u64::from(i) * 1001;
        format!("{}.5,{},{time},{},{}{end}", i, kinds[i as usize % 3], i % 4, 1 + i % 2)
    };
    let lines = |n: u32| (0..n).map(|i| line(i, "\n")).collect::<String>();
    let table = write("t.csv", format!("a,kind,time,y,w\n{}", lines(200)));
    let other = write("e.csv", format!("a,kind,time,y,w\n{}9,violet,1,7,1\n", lines(20)));
    let gaps = write("g.csv", format!("a,kind,time,y,w\n1,red,5,,1\n{}2,red,6,,1\n", lines(50)));
    let side: String = (0..90)
        .map(|i| format!("{},{i}.25,{}\n", i % 5, if i % 3 == 0 { "test" } else { "train" }))
        .collect();
    let sides = write("s.csv", format!("x,y,side\n{side}"));
    let train = format!("data.train={table}");
    let kinds = "data.categorical=[\"kind\"]";
    let base = [train.as_str(), "data.target=y", "data.weight=w", kinds];
    let eval = format!("data.eval={other}");
    for more in [
        &["data.eval_fraction=0.25"][..],
        &["data.eval_fraction=0.3", "data.category_min_rows=5"],
        &[&eval, "data.unknown_label=skip"],
        &["data.task=regression", "data.normalize=robust"],
    ] {
        assert_shared_alike(&[&base[..], more].concat(), true);
    }
    assert_shared_alike(&[&train, "data.target=[\"y\",\"w\",\"time\"]", "data.task=regression", kinds], true);
    let heads = "heads=[{name=\"k\",task=\"classification\",target=[\"kind\"]},{name=\"v\",task=\"regression\",target=[\"a\",\"y\"]}]";
    assert_shared_alike(&[&train, heads, "data.eval_fraction=0.2"], true);
    let gaps = format!("data.train={gaps}");
    assert_shared_alike(&[&gaps, kinds, "data.target=y", "data.weight=w", "data.missing_target=skip"], true);
    let sides = format!("data.train={sides}");
    let split = "data.split={column=\"side\"}";
    assert_shared_alike(&[&sides, "data.target=y", split], true);
    assert_shared_alike(&["data.train=builtin:digits"], false);
}

#[test]
fn a_fault_is_that_of_the_first_line_for_any_number_of_ranks() {
    let rows: String = (0..5000).map(|i| format!("{i},{}\n", i % 2)).collect();
    let files = Files::new(&format!("a,label\n{rows}x,0\n{rows}y,1\n"), "a,label\n1,0\n");
    let messages: Vec<String> = [1, 3, 8]
        .into_iter()
        .map(|n| files.load(&["data.eval=none", "data.categorical=[]"], n).unwrap_err())
        .collect();
    assert!(messages[0].contains("line 5002, column \"a\""), "{}", messages[0]);
    assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
}

/// One large value in a first row is no origin of its column, though a date makes the values exact.
#[test]
fn quartiles_do_not_depend_on_the_place_of_an_outlier() {
    let scales = |place: usize| {
        let rows = (0..400).map(|row| {
            let x =
                if row == place { "99999999".to_owned() } else { format!("{}.{}", row * 7 % 10, row % 97) };
            format!("2024-01-01 00:{:02}:{:02},{x},{}\n", row / 60, row % 60, row % 2)
        });
        let files = Files::new(&("ts,x,label\n".to_owned() + &rows.collect::<String>()), "");
        let loaded = files.load(&["data.eval=none", "data.normalize=robust"], 1).unwrap();
        let normalizer = loaded.preprocessor.normalizer.unwrap();
        (normalizer.shift[1], normalizer.scale[1])
    };
    let (early, late) = (scales(3), scales(303));
    assert!((early.0 - late.0).abs() < 0.2 && (early.1 / late.1 - 1.0).abs() < 0.05, "{early:?} {late:?}");
    assert!((4.0..6.0).contains(&early.0), "{early:?}");
}

/// Values that only held-out rows have are unknown, whichever way the rows were drawn.
#[test]
fn categories_are_those_of_the_training_rows() {
    let rows = (0..300).map(|row| {
        let kind = if row % 15 == 0 { format!("rare{row}") } else { ["a", "b", "c"][row % 3].to_owned() };
        format!("{row},{kind},{}\n", row % 2)
    });
    let files = Files::new(&("x,kind,label\n".to_owned() + &rows.collect::<String>()), "");
    for split in ["data.eval_fraction=0.3", "data.fold=1/3"] {
        let loaded = files.load(&["data.categorical=kind", split], 1).unwrap();
        let values = columns_of(&loaded).vocabularies[0].values().len();
        // All 23 where held-out rows count.
        assert!((10..23).contains(&values), "{split}: {values}");
    }
}
