//! Class labels of all kinds, from all formats: the same classes train to the same bits, and are stored with the model.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use super::files::{self, Element};
use crate::common::{
    Weights, ranks, read_weights, run, run_line, run_line_ok, run_ok, same_bits, single, temp_dir, write,
};

const N_ROWS: usize = 60;

/// The class of a row, one of three or two.
fn class(row: usize, n_classes: usize) -> usize {
    (row * row + row / 3) % n_classes
}

fn feature(row: usize, column: usize, n_classes: usize) -> f64 {
    let noise = ((row * 31 + column * 17) as f64 * 0.37).sin();
    // Rounded to f32, which all formats can hold.
    f64::from((noise + (class(row, n_classes) + column) as f64) as f32)
}

fn features(n_classes: usize) -> Vec<f64> {
    (0..N_ROWS).flat_map(|row| [feature(row, 0, n_classes), feature(row, 1, n_classes)]).collect()
}

/// A table whose labels are `labels` by class.
fn csv(labels: &[&str]) -> String {
    let mut text = "f0,f1,label\n".to_owned();
    for row in 0..N_ROWS {
        let [x, y] = [0, 1].map(|column| feature(row, column, labels.len()) as f32);
        let label = labels[class(row, labels.len())];
        writeln!(text, "{x},{y},\"{label}\"").unwrap();
    }
    text
}

/// The labels of all rows as numbers.
fn numbers(labels: &[f64]) -> Vec<f64> {
    (0..N_ROWS).map(|row| labels[class(row, labels.len())]).collect()
}

/// A `.npy` file of strings.
fn npy_text(labels: &[&str], is_ascii: bool) -> Vec<u8> {
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap();
    let descr = if is_ascii { format!("|S{width}") } else { format!("<U{width}") };
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({N_ROWS},), }}");
    let mut file = files::npy_with(&header);
    for row in 0..N_ROWS {
        let mut points: Vec<u32> = labels[class(row, labels.len())].chars().map(u32::from).collect();
        points.resize(width, 0);
        for point in points {
            if is_ascii {
                file.push(point as u8);
            } else {
                file.extend(point.to_le_bytes());
            }
        }
    }
    file
}

/// A `.npy` file of Booleans.
fn npy_bool(labels: &[f64]) -> Vec<u8> {
    let mut file =
        files::npy_with(&format!("{{'descr': '|b1', 'fortran_order': False, 'shape': ({N_ROWS},), }}"));
    file.extend(numbers(labels).iter().map(|label| *label as u8));
    file
}

/// Tables are normalized by default, arrays are not.
const SETS: [&str; 5] = [
    "data.normalize=none",
    "model.hidden=[4]",
    "train.epochs=2",
    "train.batch_size=16",
    "checkpoint.every_epochs=0",
];

/// Trains in `folder` on `data`, which are `--set` arguments for the section; returns weights, labels and config of the model.
#[track_caller]
fn trained(folder: &Path, n_ranks: usize, data: &[String]) -> (Weights, String, String) {
    let out = tempfile::tempdir_in(folder).unwrap();
    let out = out.path().join("run");
    let mut args = vec!["train".to_owned(), "--quiet".into(), "--out".into(), out.display().to_string()];
    let is_global = data.iter().any(|set| set.starts_with("train.global_batch_size"));
    let own = SETS.iter().filter(|set| !(is_global && set.starts_with("train.batch_size")));
    for set in own.map(|set| (*set).to_owned()).chain(data.iter().cloned()) {
        args.extend(["--set".to_owned(), set]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = ranks(n_ranks, &args);
    command.current_dir(folder);
    run_ok(command);
    let model = out.join("model.safetensors");
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    (read_weights(&model), labels_of(&model), config)
}

/// The labels in the metadata of a model file.
fn labels_of(model: &Path) -> String {
    let bytes = fs::read(model).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    header.metadata().clone().unwrap()["ddp_train.labels"].clone()
}

#[test]
fn the_same_classes_train_alike_whatever_their_labels() {
    let folder = temp_dir();
    let place = folder.path();
    let data = |name: &str, more: &[&str]| -> Vec<String> {
        let more = more.iter().map(|set| (*set).to_owned());
        std::iter::once(format!("data.train={name}")).chain(more).collect()
    };
    for n_classes in [2, 3] {
        let plain = ["0", "1", "2"];
        write(place, "plain.csv", &csv(&plain[..n_classes]));
        let (want, labels, _) = trained(place, 1, &data("plain.csv", &[]));
        assert_eq!(labels, ["[0,1]", "[0,1,2]"][n_classes - 2]);
        // In sorted order, so that label n is class n.
        let kinds: &[(&[&str], &str)] = match n_classes {
            2 => &[
                (&["-1", "+1"], "[-1,1]"),
                (&["False", "True"], r#"["False","True"]"#),
                (&["no", "yes"], r#"["no","yes"]"#),
            ],
            _ => &[
                (&["1", "2", "3"], "[1,2,3]"),
                (&["1.0", "2.0", "3"], "[1,2,3]"),
                (&["0", "100000", "200000"], "[0,100000,200000]"),
                (&["9", "10", "x"], r#"[9,10,"x"]"#),
                (&["a, b", "naïve é", "z z"], r#"["a, b","naïve é","z z"]"#),
            ],
        };
        for (labels, saved) in kinds {
            write(place, "rows.csv", &csv(labels));
            let (got, labels, config) = trained(place, 1, &data("rows.csv", &[]));
            assert!(same_bits(&got, &want), "{saved}");
            assert_eq!(labels, *saved);
            assert!(config.contains("\ntask = \"classification\"\n"), "{config}");
        }
        fs::write(place.join("x.npy"), files::npy(Element::F32, false, &[N_ROWS, 2], &features(n_classes)))
            .unwrap();
        let mut arrays: Vec<(Vec<u8>, &str)> = Vec::new();
        let npy = |element, labels: &[f64]| files::npy(element, false, &[N_ROWS], &numbers(labels));
        if n_classes == 2 {
            arrays.push((npy(Element::I64, &[-1.0, 1.0]), "[-1,1]"));
            arrays.push((npy_bool(&[0.0, 1.0]), r#"["False","True"]"#));
        } else {
            arrays.push((npy(Element::F64, &[1.0, 2.0, 3.0]), "[1,2,3]"));
            arrays.push((npy(Element::I32, &[0.0, 1e5, 2e5]), "[0,100000,200000]"));
            arrays.push((npy_text(&["a, b", "naïve é", "z z"], false), r#"["a, b","naïve é","z z"]"#));
            arrays.push((npy_text(&["a", "bc", "d"], true), r#"["a","bc","d"]"#));
            arrays.push((npy_text(&["1", "2.0", "30"], false), "[1,2,30]"));
        }
        for (y, saved) in arrays {
            fs::write(place.join("y.npy"), &y).unwrap();
            let (got, labels, _) = trained(place, 1, &data("x.npy", &["data.labels=y.npy"]));
            assert!(same_bits(&got, &want), "npy of {saved}");
            assert_eq!(labels, saved);
            let x = fs::read(place.join("x.npy")).unwrap();
            fs::write(place.join("rows.npz"), files::npz(&[("features", &x), ("labels", &y)], false))
                .unwrap();
            let (got, labels, _) = trained(place, 1, &data("rows.npz", &[]));
            assert!(same_bits(&got, &want) && labels == saved, "npz of {saved}");
        }
    }
    // Three classes in the other array formats.
    let (x, y) = (features(3), numbers(&[1.0, 2.0, 30.0]));
    let want = trained(place, 1, &data("plain.csv", &[])).0;
    let tensors: [(&str, Element, &[usize], &[f64]); 2] =
        [("features", Element::F32, &[N_ROWS, 2], &x), ("labels", Element::I16, &[N_ROWS], &y)];
    fs::write(place.join("rows.safetensors"), files::safetensors(&tensors)).unwrap();
    fs::write(place.join("a-images-idx3-ubyte"), files::idx(Element::F32, &[N_ROWS, 2], &x)).unwrap();
    fs::write(place.join("a-labels-idx1-ubyte"), files::idx(Element::U8, &[N_ROWS], &y)).unwrap();
    for name in ["rows.safetensors", "a-images-idx3-ubyte"] {
        let (got, labels, _) = trained(place, 1, &data(name, &[]));
        assert!(same_bits(&got, &want), "{name}");
        assert_eq!(labels, "[1,2,30]");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn labels_in_parquet_are_those_in_csv() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BooleanArray, Float32Array, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;

    let folder = temp_dir();
    let place = folder.path();
    let write_rows = |labels: ArrayRef, n_classes: usize| {
        let column = |column: usize| -> ArrayRef {
            Arc::new(
                (0..N_ROWS).map(|row| Some(feature(row, column, n_classes) as f32)).collect::<Float32Array>(),
            )
        };
        let columns = [("f0", column(0)), ("f1", column(1)), ("label", labels)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = fs::File::create(place.join("rows.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    let texts = ["a, b", "naïve é", "z z"];
    let classes = |n_classes: usize| (0..N_ROWS).map(move |row| class(row, n_classes));
    let arrays: [(ArrayRef, usize, &str); 3] = [
        (
            Arc::new(classes(3).map(|class| Some(texts[class])).collect::<StringArray>()),
            3,
            r#"["a, b","naïve é","z z"]"#,
        ),
        (
            Arc::new(classes(2).map(|class| Some(class == 1)).collect::<BooleanArray>()),
            2,
            r#"["False","True"]"#,
        ),
        (
            Arc::new(classes(3).map(|class| Some([-5, 0, 70_000][class])).collect::<Int64Array>()),
            3,
            "[-5,0,70000]",
        ),
    ];
    for (labels, n_classes, saved) in arrays {
        write(place, "plain.csv", &csv(&["0", "1", "2"][..n_classes]));
        let want = trained(place, 1, &["data.train=plain.csv".to_owned()]).0;
        write_rows(labels, n_classes);
        let (got, labels, _) = trained(place, 1, &["data.train=rows.parquet".to_owned()]);
        assert!(same_bits(&got, &want), "{saved}");
        assert_eq!(labels, saved);
    }
}

#[test]
fn any_number_of_ranks_finds_the_same_classes() {
    let folder = temp_dir();
    let place = folder.path();
    write(place, "rows.csv", &csv(&["10", "ant", "bee"]));
    fs::write(place.join("x.npy"), files::npy(Element::F32, false, &[N_ROWS, 2], &features(3))).unwrap();
    fs::write(place.join("y.npy"), npy_text(&["10", "ant", "bee"], false)).unwrap();
    let world = ["train.deterministic=world", "train.global_batch_size=24", "data.eval_fraction=0.25"];
    let mut all: Vec<(Weights, String, String)> = Vec::new();
    for data in [&["data.train=rows.csv"][..], &["data.train=x.npy", "data.labels=y.npy"]] {
        for n_ranks in 1..=3 {
            let sets: Vec<String> = world
                .iter()
                .chain(data)
                .chain(&["loss.class_weights=balanced"])
                .map(|set| (*set).to_owned())
                .collect();
            all.push(trained(place, n_ranks, &sets));
        }
    }
    let weights_line =
        |config: &str| config.lines().find(|line| line.starts_with("class_weights")).unwrap().to_owned();
    for (weights, labels, config) in &all {
        assert_eq!(labels, r#"[10,"ant","bee"]"#);
        assert!(same_bits(weights, &all[0].0));
        assert_eq!(weights_line(config), weights_line(&all[0].2));
    }
}

#[test]
fn balanced_weights_are_saved_as_numbers() {
    let folder = temp_dir();
    // 8 rows of a, 3 of b, 1 of c: 12 / (3 * 8), 12 / (3 * 3), 12 / (3 * 1).
    let labels = ["a", "a", "b", "a", "a", "b", "a", "a", "b", "a", "a", "c"];
    let rows: String = labels.iter().enumerate().map(|(row, label)| format!("{row},{label}\n")).collect();
    write(folder.path(), "rows.csv", &format!("x,label\n{rows}"));
    let sets = ["data.train=rows.csv", "loss.class_weights=balanced"].map(str::to_owned);
    let (_, labels, config) = trained(folder.path(), 1, &sets);
    assert_eq!(labels, r#"["a","b","c"]"#);
    assert!(config.contains("\nclass_weights = [0.5, 1.3333334, 4.0]\n"), "{config}");
}

#[test]
fn labels_that_training_never_saw() {
    let folder = temp_dir();
    let place = folder.path();
    write(place, "train.csv", &csv(&["ant", "bee", "cat"]));
    let eval = "f0,f1,label\n1,2,bee\n0,1,dog\n2,3,cat\n1,1,eel\n";
    write(place, "eval.csv", eval);
    let args = |more: &[&str]| -> Vec<String> {
        let sets = [&SETS[..], &["data.train=train.csv", "data.eval=eval.csv"], more].concat();
        let sets = sets.into_iter().flat_map(|set| ["--set".to_owned(), set.to_owned()]);
        ["train", "--out", "run", "--overwrite"].map(str::to_owned).into_iter().chain(sets).collect()
    };
    let started = |n_ranks: usize, more: &[&str]| {
        let args = args(more);
        let mut command = ranks(n_ranks, &args.iter().map(String::as_str).collect::<Vec<_>>());
        command.current_dir(place);
        command
    };
    for n_ranks in [1, 2] {
        let refused = run(started(n_ranks, &[]));
        assert!(!refused.status.success());
        for part in [
            "data file `eval.csv`: line 3, column \"label\": label \"dog\" is none of the 3 classes of the training rows: ant, bee, cat",
            "hint: ",
            "`data.unknown_label` = \"skip\"",
        ] {
            assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
        }
        let skipped = run_ok(started(n_ranks, &["data.unknown_label=skip"]));
        let note = "left out 2 evaluation rows whose labels do not occur in training";
        assert!(skipped.stderr.contains(note), "{}", skipped.stderr);
    }
    let eval = |args: &[&str]| {
        let mut command = single(&[&["eval", "--checkpoint", "run", "--json"], args].concat());
        command.current_dir(place);
        run_ok(command).stdout
    };
    let whole: Value = serde_json::from_str(&eval(&[])).unwrap();
    assert_eq!(whole["skipped_rows"], 2);
    write(place, "known.csv", "f0,f1,label\n1,2,bee\n2,3,cat\n");
    let known: Value = serde_json::from_str(&eval(&["--data", "known.csv"])).unwrap();
    assert_eq!((&whole["eval_loss"], &known["skipped_rows"]), (&known["eval_loss"], &Value::Null));

    // For arrays the error names the row.
    fs::write(place.join("x.npy"), files::npy(Element::F32, false, &[N_ROWS, 2], &features(3))).unwrap();
    fs::write(place.join("y.npy"), npy_text(&["ant", "bee", "cat"], false)).unwrap();
    fs::write(place.join("y2.npy"), npy_text(&["ant", "fly", "cat"], false)).unwrap();
    let first = (0..N_ROWS).find(|row| class(*row, 3) == 1).unwrap();
    let sets = ["data.train=x.npy", "data.labels=y.npy", "data.eval=x.npy", "data.eval_labels=y2.npy"];
    let refused = run(started(1, &sets));
    let place_of = format!("y2.npy`, row {first}: label \"fly\" is none of the 3 classes");
    assert!(refused.stderr.contains(&place_of), "{}", refused.stderr);
    let n_flies = (0..N_ROWS).filter(|row| class(*row, 3) == 1).count();
    let skipped = run_ok(started(1, &[&sets[..], &["data.unknown_label=skip"]].concat()));
    assert!(skipped.stderr.contains(&format!("left out {n_flies} evaluation rows")), "{}", skipped.stderr);
}

#[test]
fn no_class_without_rows_unless_they_are_numbered() {
    let folder = temp_dir();
    let place = folder.path();
    write(place, "rows.csv", "x,label\n1,0\n2,3\n3,0\n4,3\n");
    let described = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["describe", "--set", "data.train=rows.csv"].into_iter().chain(sets).collect();
        let mut command = single(&args);
        command.current_dir(place);
        run_ok(command).stdout
    };
    assert!(described(&[]).contains("\n2 classes: 0, 3\n"), "{}", described(&[]));
    assert!(described(&["data.classes=5"]).contains("\n5 classes: 0, 1, 2, 3, 4\n"));
    write(place, "names.csv", "x,label\n1,b\n2,a\n3,a\n4,b\n");
    let mut command = single(&["train", "--quiet", "--out", "run", "--set", "data.train=names.csv"]);
    command.current_dir(place);
    run_ok(command);
    let mut command = single(&["checkpoint", "show", "run"]);
    command.current_dir(place);
    let shown = run_ok(command).stdout;
    assert!(shown.contains("\nclasses     2: a, b\n"), "{shown}");
}

#[test]
fn tables_take_no_keys_of_arrays() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &csv(&["0", "1"]));
    for key in ["data.labels", "data.features_key", "data.labels_key"] {
        let mut command =
            single(&["train", "--dry-run", "--set", "data.train=rows.csv", "--set", &format!("{key}=y")]);
        command.current_dir(folder.path());
        let ended = run(command);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        for part in [&format!("`{key}` is set, but `rows.csv` is a table"), "hint: remove it: `data.target`"]
        {
            assert!(ended.stderr.contains(part), "no {part:?} in {}", ended.stderr);
        }
    }
}

#[test]
fn resuming_on_other_data_names_the_difference() {
    let folder = temp_dir();
    let place = folder.path();
    write(place, "rows.csv", &csv(&["ant", "bee"]));
    write(
        place,
        "run.toml",
        "[data]\ntrain = \"rows.csv\"\n[model]\nhidden = [4]\n[train]\nepochs = 4\nstop_after_steps = 2\n",
    );
    let train = |more: &[&str]| {
        let mut command = single(&[&["train", "run.toml", "--quiet", "--out", "run"], more].concat());
        command.current_dir(place);
        run(command)
    };
    assert_eq!(train(&[]).status.code(), Some(85));
    write(place, "rows.csv", &csv(&["ant", "cow"]));
    let ended = train(&["--resume", "auto", "--set", "train.stop_after_steps=1000"]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    for part in [
        "was trained on other data:",
        "the classes are ant, cow, but ant, bee in the checkpoint",
        "hint: restore the data",
    ] {
        assert!(ended.stderr.contains(part), "no {part:?} in {}", ended.stderr);
    }
    // The same file and the typed config, whose task was determined by the targets.
    write(place, "rows.csv", &csv(&["ant", "bee"]));
    let ended = train(&["--resume", "auto", "--set", "train.stop_after_steps=1000"]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(labels_of(&place.join("run/model.safetensors")), r#"["ant","bee"]"#);
}

/// Rows of one number each are a one-dimensional array in NumPy.
#[test]
fn an_array_of_one_axis_is_one_feature() {
    let folder = temp_dir();
    let values: Vec<f64> = (0..20).map(|row| f64::from(row) - 9.5).collect();
    let labels: Vec<f64> = values.iter().map(|value| f64::from(*value > 0.0)).collect();
    fs::write(folder.path().join("x.npy"), files::npy(Element::F32, false, &[20], &values)).unwrap();
    fs::write(folder.path().join("y.npy"), files::npy(Element::I64, false, &[20], &labels)).unwrap();
    let ok = |line| run_line_ok(folder.path(), line);
    let trained = ok("train x.npy --set data.labels=y.npy --epochs 20 --lr 0.01 --out run");
    assert!(trained.stderr.contains("20 rows, 1-"), "{}", trained.stderr);
    ok("predict --checkpoint run --data x.npy --out p.csv");
    let expected: String = labels.iter().map(|label| format!("{label}\n")).collect();
    assert_eq!(fs::read_to_string(folder.path().join("p.csv")).unwrap(), format!("prediction\n{expected}"));
}

/// The new rows contain fewer classes; the output layer is the model's.
#[test]
fn a_run_that_starts_from_a_model_keeps_its_classes() {
    let folder = temp_dir();
    write(folder.path(), "both.csv", "x,label\n1,cat\n2,dog\n3,cat\n4,dog\n");
    write(folder.path(), "dogs.csv", "x,label\n1,dog\n2,dog\n");
    write(folder.path(), "birds.csv", "x,label\n1,dog\n2,bird\n");
    let lines = [
        "train both.csv --epochs 1 --out first",
        "train dogs.csv --epochs 1 --init-from first/model.safetensors --out second",
    ];
    for line in lines {
        run_line_ok(folder.path(), line);
    }
    assert_eq!(labels_of(&folder.path().join("second/model.safetensors")), r#"["cat","dog"]"#);
    let ended =
        run_line(folder.path(), "train birds.csv --epochs 1 --init-from first/model.safetensors --out third");
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let message = "label \"bird\" is none of the 2 classes of the model of --init-from: cat, dog\nhint: correct the label, or train a \
                   new output layer for the labels of these rows with --new-head";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

/// The hidden layer and the normalization come from the file, classes and output layer from the new rows.
#[test]
fn a_new_head_learns_the_labels_of_its_rows() {
    let folder = temp_dir();
    write(folder.path(), "both.csv", "x,label\n1,cat\n2,dog\n3,cat\n4,dog\n");
    write(folder.path(), "birds.csv", "x,label\n10,dog\n20,bird\n30,ant\n40,dog\n");
    write(folder.path(), "sizes.csv", "x,size\n10,300.5\n20,500.5\n30,100.5\n");
    run_line_ok(folder.path(), "train both.csv --epochs 1 --hidden 4 --out first");
    // Steps this small change no weights.
    let head = "--hidden 4 --epochs 1 --lr 1e-30 --init-from first/model.safetensors --new-head";
    run_line_ok(folder.path(), &format!("train birds.csv {head} --out second"));
    run_line_ok(folder.path(), &format!("train sizes.csv --target size {head} --out third"));
    run_line_ok(folder.path(), "train birds.csv --hidden 4 --epochs 1 --lr 1e-30 --out alone");
    assert_eq!(labels_of(&folder.path().join("second/model.safetensors")), r#"["ant","bird","dog"]"#);
    let tensor = |run: &str, name: &str| {
        let bytes = fs::read(folder.path().join(run).join("model.safetensors")).unwrap();
        SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
    };
    for run in ["second", "third"] {
        for name in ["layers.0.weight", "layers.0.bias", "normalize.shift"] {
            assert_eq!(tensor(run, name), tensor("first", name), "{run} {name}");
        }
    }
    for name in ["layers.1.weight", "layers.1.bias"] {
        assert_eq!(tensor("second", name), tensor("alone", name), "{name}");
    }
    assert_ne!(tensor("second", "layers.0.weight"), tensor("alone", "layers.0.weight"));
    let shift = f64::from_le_bytes(tensor("third", "target.shift").try_into().unwrap());
    assert!((shift - 300.5).abs() < 1e-9, "{shift}");
    run_line_ok(folder.path(), "predict --checkpoint second --data birds.csv --out p.csv");
    // A different width of a layer before the head is still an error.
    let other = head.replace("--hidden 4", "--hidden 5");
    let ended = run_line(folder.path(), &format!("train birds.csv {other} --out fourth"));
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("layers.0.weight is [4, 1] in the file, [5, 1]"), "{}", ended.stderr);
}

#[test]
fn a_point_after_a_label_is_no_other_class() {
    let folder = temp_dir();
    let table = |end: &str| -> String {
        let rows = (0..40).map(|row| format!("{},{}{end}\n", row % 2, ["<=50K", ">50K"][row % 2]));
        format!("x,income\n{}", rows.collect::<String>())
    };
    write(folder.path(), "train.csv", &table(""));
    write(folder.path(), "test.csv", &table("."));
    let line =
        "train train.csv --target income --eval test.csv --epochs 20 --hidden 4 --device cpu --out run";
    let trained = run_line_ok(folder.path(), line);
    let note = "test.csv: labels of \"income\" like \"<=50K.\" are taken for \"<=50K\"";
    assert_eq!(trained.stderr.matches(note).count(), 1, "{}", trained.stderr);
    assert!(trained.stderr.contains("eval_accuracy 1.0000"), "{}", trained.stderr);
    write(folder.path(), "other.csv", "x,income\n0,<=50K!\n");
    let refused = run_line(folder.path(), "eval --checkpoint run --data other.csv");
    assert!(refused.stderr.contains("label \"<=50K!\" is none of the 2 classes"), "{}", refused.stderr);
}

#[test]
fn one_hot_labels_are_pointed_out() {
    let folder = temp_dir();
    let table = |labels: [&str; 2]| {
        (0..40).map(|row| format!("{},{}\n", row % 2, labels[row % 2])).collect::<String>()
    };
    let train = |labels: [&str; 2]| {
        write(folder.path(), "rows.csv", &format!("x,a,b\n{}", table(labels)));
        let line =
            "train rows.csv --target a --target b --epochs 1 --hidden 2 --device cpu --out run --overwrite";
        run_line_ok(folder.path(), line).stderr
    };
    let note = "each row has exactly one label: if they are classes, write them as one column";
    assert!(train(["1,0", "0,1"]).contains(note));
    assert!(!train(["1,0", "1,1"]).contains(note));
}
