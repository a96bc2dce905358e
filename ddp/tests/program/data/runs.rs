//! Whole runs on files of arrays and tables: the format makes no difference, and fitted values are stored with the model.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::files::{self, Element};
use crate::common::{Run, quoted, read_weights, run, run_ok, same_bits, single, temp_dir, train, write};

const N_ROWS: usize = 90;
const N_FEATURES: usize = 5;

/// Numbers that f32 holds exactly, none of them short in decimal.
fn feature(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 17 + row * column * 7) as f32 * 0.37).sin() * 10f32.powi(column as i32 - 2) + 3.0
}

fn features(rows: std::ops::Range<usize>) -> Vec<f64> {
    rows.flat_map(|row| (0..N_FEATURES).map(move |column| f64::from(feature(row, column)))).collect()
}

fn labels(rows: std::ops::Range<usize>) -> Vec<f64> {
    rows.map(|row| f64::from(u8::from(feature(row, 2) > 3.0) + u8::from(feature(row, 3) > 3.0))).collect()
}

fn csv(rows: std::ops::Range<usize>) -> String {
    let mut text = (0..N_FEATURES).map(|column| format!("f{column},")).collect::<String>() + "label\n";
    for row in rows {
        (0..N_FEATURES).for_each(|column| write!(text, "{},", feature(row, column)).unwrap());
        writeln!(text, "{}", labels(row..row + 1)[0]).unwrap();
    }
    text
}

/// Writes rows as a pair of `.npy` files.
fn npy_pair(folder: &Path, rows: std::ops::Range<usize>, element: Element, is_big_endian: bool) -> String {
    let n = rows.len();
    let x = files::npy(element, is_big_endian, &[n, N_FEATURES], &features(rows.clone()));
    fs::write(folder.join("x.npy"), x).unwrap();
    fs::write(folder.join("y.npy"), files::npy(Element::I32, is_big_endian, &[n], &labels(rows))).unwrap();
    let (x, y) = (quoted(&folder.join("x.npy")), quoted(&folder.join("y.npy")));
    format!("train = {x}\nlabels = {y}\n")
}

fn config(data: &str) -> String {
    format!(
        "[data]\n{data}\n[model]\nhidden = [8]\n[train]\nepochs = 3\nbatch_size = 16\n[log]\nevery_steps = 1\n"
    )
}

/// Every format, with its config lines.
fn same_rows(folder: &Path) -> Vec<(&'static str, String)> {
    let rows = 0..N_ROWS;
    let folder_of = |name: &str| {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        folder
    };
    let one = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        format!("train = {}\n", quoted(&path))
    };
    let x = files::npy(Element::F32, false, &[N_ROWS, N_FEATURES], &features(rows.clone()));
    let y = files::npy(Element::I64, false, &[N_ROWS], &labels(rows.clone()));
    let (values, classes) = (features(rows.clone()), labels(rows.clone()));
    let tensors = files::safetensors(&[
        ("labels", Element::U8, &[N_ROWS], &classes),
        ("features", Element::F32, &[N_ROWS, N_FEATURES], &values),
    ]);
    fs::write(folder.join("t10k-labels-idx1-ubyte"), files::idx(Element::U8, &[N_ROWS], &classes)).unwrap();
    vec![
        ("csv", one("rows.csv", csv(rows.clone()).as_bytes())),
        ("csv.gz", one("rows.csv.gz", &files::gzip(csv(rows.clone()).as_bytes()))),
        ("csv.zst", one("rows.csv.zst", &files::zstd(csv(rows.clone()).as_bytes()))),
        ("npy", npy_pair(&folder_of("f32"), rows.clone(), Element::F32, false)),
        ("npy, f64", npy_pair(&folder_of("f64"), rows.clone(), Element::F64, false)),
        ("npy, big-endian", npy_pair(&folder_of("big"), rows, Element::F32, true)),
        ("npz", one("a.npz", &files::npz(&[("x", &x), ("y", &y)], false))),
        ("npz, deflated", one("b.npz", &files::npz(&[("x", &x), ("y", &y)], true))),
        ("safetensors", one("a.safetensors", &tensors)),
        ("IDX", one("t10k-images-idx3-ubyte", &files::idx(Element::F32, &[N_ROWS, N_FEATURES], &values))),
    ]
}

#[test]
fn all_formats_train_the_same_model() {
    for more in ["normalize = \"standard\"\neval_fraction = 0.2\n", "normalize = \"none\"\nshuffle = false\n"]
    {
        let folder = temp_dir();
        let mut first: Option<Run> = None;
        for (name, data) in same_rows(folder.path()) {
            // The names of run folders matter as little as those of files.
            let trained = train(1, &config(&(data + more)), &["--threads", "1"]);
            match &first {
                None => {
                    assert_eq!(trained.weights().contains_key("normalize.shift"), more.contains("standard"));
                    first = Some(trained);
                }
                Some(first) => assert!(same_bits(&first.weights(), &trained.weights()), "{name}, {more}"),
            }
        }
    }
}

#[test]
fn any_number_of_ranks_finds_the_same_statistics() {
    for normalize in ["standard", "minmax"] {
        let folder = temp_dir();
        let data = npy_pair(folder.path(), 0..N_ROWS, Element::F32, false);
        let config = config(&format!("{data}normalize = \"{normalize}\"\n"));
        let of_ranks = [1, 2, 3].map(|n| {
            let mut weights = train(n, &config, &["--threads", "1"]).weights();
            weights.retain(|name, _| name.starts_with("normalize."));
            weights
        });
        assert_eq!(of_ranks[0].len(), 2);
        assert!(of_ranks.iter().all(|of| same_bits(of, &of_ranks[0])), "{of_ranks:?}");
    }
}

/// Output of `eval --json`, without the file name of the rows.
fn eval(args: &[&str]) -> Value {
    let outcome = run_ok(single(&[&["eval", "--json", "--device", "cpu"], args].concat()));
    let mut printed: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(printed.as_object_mut().unwrap().remove("data").is_some(), "{printed}");
    printed
}

#[test]
fn a_model_of_arrays_is_evaluated_on_arrays_and_tables() {
    let folder = temp_dir();
    let data = npy_pair(folder.path(), 0..N_ROWS, Element::F32, false);
    for memory in ["1024", "1"] {
        let config = config(&format!("{data}normalize = \"standard\"\nloader_memory_mib = {memory}\n"));
        let trained = train(1, &config, &["--set", "train.epochs=40", "--set", "optimizer.lr=0.02"]);
        let checkpoint = trained.out();
        let checkpoint = checkpoint.to_str().unwrap();
        let other = temp_dir();
        npy_pair(other.path(), N_ROWS..N_ROWS + 41, Element::F64, true);
        let table = write(other.path(), "rows.csv", &csv(N_ROWS..N_ROWS + 41));
        let path = |name: &str| other.path().join(name).display().to_string();
        let of_npy =
            eval(&["--checkpoint", checkpoint, "--data", &path("x.npy"), "--labels", &path("y.npy")]);
        let of_csv = eval(&["--checkpoint", checkpoint, "--data", table.to_str().unwrap()]);
        assert!(of_npy["eval_accuracy"].as_f64().unwrap() > 0.7, "{of_npy}");
        assert_eq!(of_npy, of_csv);

        let labels = run(single(&["eval", "--checkpoint", checkpoint, "--data", &path("x.npy")]));
        assert_eq!(labels.status.code(), Some(2), "{labels:?}");
        assert!(labels.stderr.contains("has no labels\nhint: "), "{labels:?}");
    }
}

/// The weights belong to the training rows; other rows count equally unless they have their own weights.
#[test]
fn weights_in_a_file_of_their_own_leave_evaluation_alone() {
    let folder = temp_dir();
    let data = npy_pair(folder.path(), 0..N_ROWS, Element::F32, false);
    let weights: Vec<f64> = (0..N_ROWS).map(|row| (row % 4) as f64).collect();
    fs::write(folder.path().join("w.npy"), files::npy(Element::F32, false, &[N_ROWS], &weights)).unwrap();
    let other = temp_dir();
    npy_pair(other.path(), 100..130, Element::F32, false);
    let (x, y) = (other.path().join("x.npy"), other.path().join("y.npy"));
    let w = quoted(&folder.path().join("w.npy"));
    let data = format!("{data}weight = {w}\neval = {}\neval_labels = {}\n", quoted(&x), quoted(&y));
    let trained = train(1, &config(&data), &[]);
    let out = trained.out();
    let evaluated = eval(&["--checkpoint", out.to_str().unwrap()]);
    assert_eq!(trained.events("epoch")[2]["eval_loss"], evaluated["eval_loss"]);
    let named = eval(&[
        "--checkpoint",
        out.to_str().unwrap(),
        "--data",
        x.to_str().unwrap(),
        "--labels",
        y.to_str().unwrap(),
    ]);
    assert_eq!(named, evaluated);
    // If they have a file of weights too, rows of weight 0 are ignored.
    let of_ten = temp_dir();
    npy_pair(of_ten.path(), 100..110, Element::F32, false);
    let weights: Vec<f64> = (0..30).map(|row| if row < 10 { 2.0 } else { 0.0 }).collect();
    fs::write(other.path().join("w.npy"), files::npy(Element::F32, false, &[30], &weights)).unwrap();
    let eval_weight = format!("eval_weight = {}\n", quoted(&other.path().join("w.npy")));
    let weighted = train(1, &config(&format!("{data}{eval_weight}")), &[]);
    let (ten_x, ten_y) = (of_ten.path().join("x.npy"), of_ten.path().join("y.npy"));
    let ten = ["--data", ten_x.to_str().unwrap(), "--labels", ten_y.to_str().unwrap()];
    let of_weighted = eval(&["--checkpoint", weighted.out().to_str().unwrap()]);
    let of_ten = eval(&[&["--checkpoint", weighted.out().to_str().unwrap()][..], &ten].concat());
    assert_eq!(weighted.events("epoch")[2]["eval_loss"], of_weighted["eval_loss"]);
    assert_eq!(of_weighted["eval_accuracy"], of_ten["eval_accuracy"]);
    let loss = |metrics: &Value| metrics["eval_loss"].as_f64().unwrap();
    assert!((loss(&of_weighted) - loss(&of_ten)).abs() < 1e-6 * loss(&of_ten), "{of_weighted} {of_ten}");
    assert_ne!(of_weighted["eval_loss"], evaluated["eval_loss"]);
    // If the evaluation rows are taken from the training rows, their weights go with them.
    let data = data
        .replace(&format!("eval = {}\neval_labels = {}\n", quoted(&x), quoted(&y)), "eval_fraction = 0.3\n");
    let unweighted = data.replace(&format!("weight = {w}\n"), "");
    assert_ne!(data, unweighted);
    let eval_loss = |data: &str| {
        let trained = train(1, &config(data), &["--set", "optimizer.lr=1e-9"]);
        trained.numbers("epoch", "eval_loss")[0]
    };
    assert_ne!(eval_loss(&data), eval_loss(&unweighted));
}

#[test]
fn metrics_tell_what_loading_took() {
    let folder = temp_dir();
    let data = npy_pair(folder.path(), 0..N_ROWS, Element::F32, false);
    let trained = train(1, &config(&format!("{data}loader_threads = 2\n")), &["--device", "cpu"]);
    let steps = trained.events("step");
    assert!(!steps.is_empty());
    for step in &steps {
        assert!(step["time"]["data"].as_f64().unwrap() >= 0.0, "{step}");
        assert_eq!(step["h2d_ms"].as_f64(), Some(0.0), "nothing is copied to a GPU: {step}");
    }
}

#[test]
fn bytes_are_trained_on_with_minmax() {
    let folder = temp_dir();
    let images: Vec<f64> = (0..N_ROWS * 4).map(|i| f64::from((feature(i / 4, i % 4) * 20.0) as u8)).collect();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("a-images-idx3-ubyte"), files::idx(Element::U8, &[N_ROWS, 2, 2], &images)).unwrap();
    fs::write(file("a-labels-idx1-ubyte"), files::idx(Element::U8, &[N_ROWS], &labels(0..N_ROWS))).unwrap();
    let data = format!("train = {}\nnormalize = \"minmax\"\n", quoted(&file("a-images-idx3-ubyte")));
    let trained = train(1, &config(&data), &["--set", "train.epochs=30"]);
    let losses = trained.numbers("epoch", "train_loss");
    assert!(losses[29] < 0.9 * losses[0], "{losses:?}");
    let scale = &trained.weights()["normalize.scale"];
    assert!(scale.values.iter().all(|&scale| scale >= 1.0 / 255.0), "{scale:?}");
}

const CITIES: [&str; 3] = ["Bern", "Oslo", "Rome"];

/// A table with strings, gaps, weights, and a number without information.
fn table(rows: std::ops::Range<usize>, cities: &[&str]) -> String {
    let mut text = String::from("id,city,x,z,w,label\n");
    for row in rows {
        let city = cities[row % cities.len()];
        let label = usize::from(city == "Oslo") ^ usize::from(feature(row, 2) > 3.0);
        let x = if row % 7 == 3 { String::new() } else { feature(row, 2).to_string() };
        writeln!(text, "{row},{city},{x},{},{},{label}", feature(row, 1), row / 3 % 3).unwrap();
    }
    text
}

#[test]
fn a_table_of_all_kinds_of_columns_trains_and_evaluates_on_values_it_never_saw() {
    let folder = temp_dir();
    let rows = write(folder.path(), "rows.csv", &table(0..200, &CITIES));
    let known = write(folder.path(), "known.csv", &table(200..260, &CITIES));
    let unseen = write(folder.path(), "unseen.csv", &table(200..260, &["Oslo", "Lima", "", "Bern"]));
    for (encode, missing) in [("one_hot", "mean"), ("embedding", "zero")] {
        let data = format!(
            "train = {}\nweight = \"w\"\ndrop = [\"id\"]\ncategorical = [\"city\"]\nencode = \"{encode}\"\n\
             missing = \"{missing}\"\nnormalize = \"standard\"\neval = {}\n",
            quoted(&rows),
            quoted(&known)
        );
        let trained = train(1, &config(&data), &["--set", "train.epochs=60", "--set", "optimizer.lr=0.02"]);
        let model = trained.out().join("model.safetensors");
        let evaluated =
            |data: &Path| eval(&["--checkpoint", model.to_str().unwrap(), "--data", data.to_str().unwrap()]);
        let accuracy = |data: &Path| evaluated(data)["eval_accuracy"].as_f64().unwrap();
        assert!(accuracy(&known) > 0.85, "{encode}: {}", evaluated(&known));
        let best = trained.events("end").remove(0)["best"]["epoch"].as_u64().unwrap() as usize;
        assert_eq!(trained.events("epoch")[best - 1]["eval_accuracy"], evaluated(&known)["eval_accuracy"]);
        assert!(accuracy(&unseen) > 0.5, "{encode}: {}", evaluated(&unseen));
        assert!(!read_weights(&model).is_empty());
    }
}
