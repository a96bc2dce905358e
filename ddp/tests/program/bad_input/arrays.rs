//! Valid files of arrays that can't be trained on: types, shapes, labels, values, and shards that don't match.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::file_sets::{
    N_FEATURES, N_ROWS, PAIR, features, labels, npy_f32, npy_i64, pair, pair_refused, train, x_idx, x_npy,
    y_idx, y_npy,
};
use super::harness::{GOOD_CSV, Place, is_root};
use crate::data::files::{self, Element};

/// A header with this type for the twelve rows, followed by zeros.
fn array_of_type(descr: &str, order: &str, item_bytes: usize) -> Vec<u8> {
    let shape = format!("'fortran_order': {order}, 'shape': ({N_ROWS}, {N_FEATURES}), }}");
    let mut file = files::npy_with(&format!("{{'descr': {descr}, {shape}"));
    file.resize(file.len() + N_ROWS * N_FEATURES * item_bytes, 0);
    file
}

#[test]
fn types_that_are_no_numbers() {
    for (descr, item_bytes, part) in [
        ("'|O'", 8, "Python objects (pickle), which are never loaded"),
        ("'<c8'", 8, "of type '<c8', expected numbers"),
        ("'|V3'", 3, "of type '|V3'"),
        ("'<M8[ns]'", 8, "of type '<M8[ns]'"),
        ("'<f16'", 16, "of type '<f16'"),
        ("[('a', '<f4'), ('b', '<f4')]", 8, "named fields"),
    ] {
        let file = array_of_type(descr, "False", item_bytes);
        let parts = ["`x.npy` is not a valid npy file", part, "hint: save it with numpy.save as float32"];
        pair_refused(&file, &y_npy(), &[], &parts);
        pair_refused(&x_npy(), &file, &[], &["`y.npy` is not a valid npy file", part]);
    }
    // Strings can be labels, one per row.
    for (descr, item_bytes) in [("'<U5'", 20), ("'|S3'", 3)] {
        let file = array_of_type(descr, "False", item_bytes);
        pair_refused(&file, &y_npy(), &[], &["data file `x.npy`: expected numbers, got text", "hint: "]);
        pair_refused(&x_npy(), &file, &[], &["the labels in `y.npy` have shape", "one class number per row"]);
    }
    let scalar = files::npy_with("{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
    let parts = ["`x.npy`", "no dimensions", "hint: save an array of shape [rows, features]"];
    pair_refused(&[&scalar[..], &[0; 4]].concat(), &y_npy(), &[], &parts);
}

#[test]
fn rows_that_differ() {
    let short = npy_i64(&[N_ROWS - 1], &labels()[1..]);
    pair_refused(
        &x_npy(),
        &short,
        &[],
        &["`x.npy` has 12 rows, but its labels `y.npy` have 11", "hint: both must come from the same rows"],
    );
    let place = pair(&x_npy(), &y_npy());
    place.write("w.npy", &npy_f32(&[N_ROWS + 1], &[1.0; N_ROWS + 1]));
    let sets = [PAIR[0], PAIR[1], "data.weight=w.npy"];
    place.refuses(&train(&sets), &["its weights `w.npy` have 13"]);
    place.write("w.npy", &npy_f32(&[N_ROWS, 2], &[1.0; 2 * N_ROWS]));
    place.refuses(&train(&sets), &["`w.npy`", "[12, 2]", "one number per row", "`data.weight`"]);
}

#[test]
fn labels_that_are_no_classes() {
    let with = |row: usize, label: f64| {
        let mut labels = labels();
        labels[row] = label;
        labels
    };
    let i64s = |row, label| npy_i64(&[N_ROWS], &with(row, label));
    let f32s = |row, label| npy_f32(&[N_ROWS], &with(row, label));
    for (y, more, parts) in [
        (
            f32s(11, 0.5),
            "data.task=classification",
            ["row 11: expected a whole class number, got 0.5", "\"regression\""],
        ),
        (
            f32s(11, f64::NAN),
            "data.task=classification",
            ["row 11: expected a whole class number, got NaN", "hint: "],
        ),
        (f32s(11, f64::NAN), "", ["row 11, target 0: expected a finite number, got NaN", "hint: "]),
        (f32s(11, 1e30), "data.task=classification", ["row 11: expected a whole class number", "hint: "]),
        (npy_i64(&[N_ROWS], &[0.0; N_ROWS]), "", ["all 12 rows have label 0", "`data.labels`"]),
        (
            npy_i64(&[N_ROWS, 2], &[0.0; 2 * N_ROWS]),
            "data.task=classification",
            ["`y.npy` have shape [12, 2]", "numpy.argmax"],
        ),
        (
            files::npy_with("{'descr': '<i8', 'fortran_order': False, 'shape': (12, 0), }"),
            "",
            ["[12, 0]", "hint: "],
        ),
    ] {
        let more: Vec<&str> = [more].into_iter().filter(|set| !set.is_empty()).collect();
        pair_refused(&x_npy(), &y, &more, &parts);
    }
    // If the number of classes is given, labels are not scanned in advance unless the features are.
    let out_of_range =
        ["data file `y.npy`, row 7: label 3 is out of range, expected 0 to 2", "`data.classes` to 4"];
    for (y, classes, parts) in [
        (i64s(7, 3.0), "data.classes=3", &out_of_range[..]),
        (i64s(7, -1.0), "data.classes=2", &["row 7: expected a class number of 0 or above, got -1"]),
        (i64s(7, 2e9), "data.classes=2", &["row 7: label 2000000000 is out of range, expected 0 to 1"]),
    ] {
        pair_refused(&x_npy(), &y, &[classes, "data.normalize=standard"], parts);
        for shuffle in ["data.shuffle=true", "data.shuffle=false"] {
            pair(&x_npy(), &y).run(&train(&[PAIR[0], PAIR[1], classes, shuffle])).is_error(2, parts);
        }
    }
}

#[test]
fn targets_of_other_tasks() {
    let values = |value: f64| npy_f32(&[N_ROWS, 2], &[&[1.0; 2 * N_ROWS - 1][..], &[value]].concat());
    let multilabel = ["data.task=multilabel", "data.normalize=minmax"];
    pair_refused(
        &x_npy(),
        &values(0.5),
        &multilabel,
        &["data file `y.npy`, row 11, target \"t1\": expected 0 or 1 for task \"multilabel\", got 0.5"],
    );
    for value in [f64::NAN, f64::INFINITY] {
        let parts = [
            "data file `y.npy`, row 11, target \"t1\": expected a finite number",
            "hint: correct the targets",
        ];
        pair_refused(&x_npy(), &values(value), &["data.task=regression", "data.normalize=minmax"], &parts);
    }
    let deep = npy_f32(&[N_ROWS, 2, 2], &[1.0; 4 * N_ROWS]);
    pair_refused(&x_npy(), &deep, &["data.task=regression"], &["shape [12, 2, 2]", "[rows, targets]"]);
}

#[test]
fn labels_that_nobody_named() {
    let place = pair(&x_npy(), &y_npy());
    place.refuses(&train(&["data.train=x.npy"]), &["`x.npy` has no labels", "hint: ", "`data.labels`"]);
    place.refuses(&train(&["data.train=x.npy", "data.labels=z.npy"]), &["`z.npy` does not exist"]);
    place.refuses(
        &train(&["data.train=x.npy", "data.labels=y.npy", "data.eval=x.npy"]),
        &["`x.npy` has no labels", "`data.eval_labels`"],
    );
    place.write("a-images-idx3-ubyte", &x_idx());
    place.refuses(&train(&["data.train=a-images-idx3-ubyte"]), &["`a-images-idx3-ubyte` has no labels"]);
}

#[test]
fn arrays_that_are_not_in_the_file() {
    let place = Place::new();
    place.write("a.npz", &super::file_sets::npz(false));
    place.write("a.safetensors", &super::file_sets::safetensors());
    place.write("odd.npz", &files::npz(&[("inputs", &x_npy()), ("outputs", &y_npy())], false));
    for name in ["a.npz", "a.safetensors"] {
        let source = format!("data.train={name}");
        place.refuses(
            &train(&[&source, "data.features_key=inputs"]),
            &[name, "no array \"inputs\"; it has features, labels", "hint: set `data.features_key`"],
        );
        place.refuses(
            &train(&[&source, "data.labels_key=outputs"]),
            &["no array \"outputs\"; it has features, labels", "hint: set `data.labels_key`"],
        );
        place.refuses(&train(&[&source, "data.weight=w"]), &["no array \"w\"", "hint: set `data.weight`"]);
    }
    place.refuses(&train(&["data.train=odd.npz"]), &["no array \"features\"; it has inputs, outputs"]);
}

#[test]
fn values_that_are_not_finite() {
    let spoiled = |element, value: f64| {
        let mut x = features();
        x[2 * N_FEATURES + 1] = value;
        files::npy(element, false, &[6, N_FEATURES], &x[..6 * N_FEATURES])
    };
    let good = npy_f32(&[6, N_FEATURES], &features()[..6 * N_FEATURES]);
    for (element, value) in [
        (Element::F32, f64::NAN),
        (Element::F32, f64::NEG_INFINITY),
        (Element::F64, f64::INFINITY),
        // More than f32 holds.
        (Element::F64, 1e60),
        (Element::F16, f64::NAN),
    ] {
        let place = Place::new();
        place.write("y.npy", &y_npy());
        place.write("x/0.npy", &files::npy(element, false, &[6, N_FEATURES], &features()[..6 * N_FEATURES]));
        place.write("x/1.npy", &spoiled(element, value));
        let shown = if value == 1e60 { "inf".to_owned() } else { format!("{value}") };
        let parts =
            ["data file `x/1.npy`, row 2, column \"f1\": expected a finite number", &shown, "`data.missing`"];
        let sets = ["data.train=x", "data.labels=y.npy", "data.normalize=standard"];
        place.refuses(&train(&sets), &parts);
        // Otherwise the sample that compares scales finds it, or the loader, after the run has begun.
        for shuffle in ["data.shuffle=true", "data.shuffle=false", "data.shuffle_mode=blocks"] {
            let ended = place.run(&train(&["data.train=x", "data.labels=y.npy", shuffle]));
            ended.is_error(2, &parts);
            let _ = fs::remove_dir_all(place.file("out"));
        }
        place.write("x/1.npy", &good);
    }
    // Bytes can't be NaN, and NaN may stand for a missing value, but infinity never does.
    let missing =
        |value| pair(&npy_f32(&[N_ROWS, N_FEATURES], &[&[value], &features()[1..]].concat()), &y_npy());
    missing(f64::NAN).run(&train(&[&PAIR[..], &["data.missing=mean"]].concat())).is_good();
    missing(f64::INFINITY).refuses(
        &train(&[&PAIR[..], &["data.missing=mean"]].concat()),
        &["data file `x.npy`, row 0, column \"f0\": expected a finite number, got inf"],
    );
}

#[test]
fn shards_that_differ() {
    let place = Place::new();
    place.write("y.npy", &y_npy());
    let sets = ["data.train=x", "data.labels=y.npy"];
    let half = |n_features: usize| vec![1.0; 6 * n_features];
    place.write("x/0.npy", &npy_f32(&[6, 3], &half(3)));
    for (other, part) in [
        (npy_f32(&[6, 4], &half(4)), "rows of [3] f32 against rows of [4] f32"),
        (files::npy(Element::F64, false, &[6, 3], &half(3)), "rows of [3] f32 against rows of [3] f64"),
        (npy_f32(&[6, 1, 3], &half(3)), "rows of [3] f32 against rows of [1, 3] f32"),
    ] {
        place.write("x/1.npy", &other);
        place.refuses(&train(&sets), &["`x/0.npy` and `x/1.npy` don't match", part, "hint: all shards"]);
    }
    place.write("x/1.npy", &npy_f32(&[0, 3], &[]));
    place.refuses(&train(&sets), &["data file `x/1.npy` has no rows", "hint: remove empty shards"]);
    place.write("x/1.npy", &npy_f32(&[6, 0], &[]));
    place.refuses(&train(&sets), &["don't match"]);
    pair_refused(&npy_f32(&[N_ROWS, 0], &[]), &y_npy(), &[], &["`x.npy`", "no features"]);
    pair_refused(&npy_f32(&[], &[1.0]), &y_npy(), &[], &["`x.npy`", "no dimensions"]);
    // The byte order makes no difference.
    place.write("x/1.npy", &files::npy(Element::F32, true, &[6, 3], &half(3)));
    place.run(&train(&sets)).is_good();
}

#[test]
fn folders_and_patterns() {
    let place = Place::new();
    place.write("mixed/a.npz", &super::file_sets::npz(false));
    place.write("mixed/b.csv", GOOD_CSV.as_bytes());
    place.write("other/notes.txt", b"none");
    place.write("shaped.npy/x.txt", b"none");
    symlink("loop.npy", place.file("loop.npy")).unwrap();
    symlink("gone.npy", place.file("dangling.npy")).unwrap();
    place.write("a-images-idx3-ubyte", &x_idx());
    place.write("a-labels-idx1-ubyte", &y_idx());
    for (source, parts) in [
        ("mixed", ["mixed", "hint: "]),
        ("other", ["no data file for `other`", "hint: the folder contains no file"]),
        ("other/*.npy", ["no data file for `other/*.npy`", "hint: no file name matches the pattern"]),
        ("gone", ["data file `gone` does not exist", "hint: "]),
        ("shaped.npy", ["no data file for `shaped.npy`", "hint: the folder contains no file"]),
        ("shaped*", ["`shaped.npy` is a folder", "hint: "]),
        ("loop.npy", ["`loop.npy` can't be read", "hint: "]),
        ("dangling.npy", ["`dangling.npy` does not exist", "hint: "]),
        ("a[", ["`a[`", "hint: "]),
    ] {
        place.refuses(&train(&[&format!("data.train={source}"), "data.labels=y.npy"]), &parts);
    }
    // The files of one format in the mixed folder are valid.
    place.run(&train(&["data.train=mixed/*.csv"])).is_good();
}

#[test]
fn files_that_cannot_be_read() {
    let place = pair(&x_npy(), &y_npy());
    symlink("/proc/self/mem", place.file("memory.npy")).unwrap();
    symlink("/proc/self/mem", place.file("memory.csv")).unwrap();
    for name in ["memory.npy", "memory.csv"] {
        let source = format!("data.train={name}");
        let labels = if name.ends_with("npy") { "data.labels=y.npy" } else { "data.target=label" };
        let ended = place.run(&train(&[&source, labels]));
        ended.is_error(2, &[&format!("data file `{name}`"), "hint: "]);
    }
    if is_root() {
        eprintln!("skipped: needs a user whom file modes bind");
        return;
    }
    for name in ["x.npy", "y.npy"] {
        let mode = |mode| fs::set_permissions(place.file(name), fs::Permissions::from_mode(mode)).unwrap();
        mode(0o000);
        place.run(&train(&PAIR)).is_error(2, &[&format!("data file `{name}` can't be read: "), "hint: "]);
        mode(0o644);
    }
}
