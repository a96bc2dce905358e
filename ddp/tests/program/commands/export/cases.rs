//! Models of each kind, trained and exported by the binary.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use crate::common::{quoted, run_ok, single, temp_dir, write};

/// A trained model and its ONNX file.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Folder of the run.
    pub(super) run: PathBuf,
    /// The exported file.
    pub(super) onnx: PathBuf,
    /// Rows to predict, some of which differ from those of training.
    pub(super) rows: PathBuf,
    /// Whether the task has probabilities.
    pub(super) has_probabilities: bool,
}

/// All kinds of models, trained once for all tests.
pub(super) fn cases() -> &'static [Case] {
    static CASES: OnceLock<(TempDir, Vec<Case>)> = OnceLock::new();
    &CASES
        .get_or_init(|| {
            let dir = temp_dir();
            let cases = make(dir.path());
            (dir, cases)
        })
        .1
}

pub(super) fn case(name: &str) -> &'static Case {
    cases().iter().find(|case| case.name == name).unwrap()
}

fn root() -> &'static Path {
    crate::common::ddp_folder().parent().unwrap()
}

fn make(dir: &Path) -> Vec<Case> {
    let train = write(dir, "train.csv", &table(0, 160));
    // Categories that training did not see, empty cells, and missing values in columns that had none in training.
    let odd = "12.5,,0.5,\"Oslo, \"\"N\"\"\",x,0,1,1.0,1\n,99,,,,1,0,-4.5,2\n-3,7,2,Köln , 3,1,1,nan,0\n";
    let rows = write(dir, "rows.csv", &(table(160, 40) + odd));
    let config = |name: &str, text: &str| {
        let text =
            format!("[data]\ntrain = {}\n{text}\n[train]\nepochs = 2\nbatch_size = 16\n", quoted(&train));
        write(dir, &format!("{name}.toml"), &text)
    };
    // The columns of the other targets are dropped in both cases.
    let one_hot = config(
        "one-hot",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         missing = \"mean\"\nnormalize = \"standard\"\n\
         [model]\nhidden = [12, 12]\nactivation = \"silu\"\nresidual = true\ndropout = 0.2",
    );
    let embedding = config(
        "embedding",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         encode = \"embedding\"\nmissing = \"zero\"\nnormalize = \"minmax\"\n\
         [model]\nhidden = [12, 12]\nactivation = \"gelu_tanh\"\nresidual = true\nnorm = \"layer\"\nbias = false",
    );
    let only_categories = config(
        "only-categories",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\", \"age\", \"label\", \"height\"]\n\
         categorical = [\"city\", \"code\"]\nencode = \"embedding\"\nembedding_dim = 3\nmissing = \"zero\"\n\
         [model]\nhidden = [8]",
    );
    let multilabel = config(
        "multilabel",
        "target = [\"yes\", \"no\"]\ntask = \"multilabel\"\ndrop = [\"kind\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         missing = \"mean\"\nnormalize = \"standard\"\n[model]\nhidden = [8]\nactivation = \"sigmoid\"",
    );
    let regression = config(
        "regression",
        "target = [\"price\", \"height\"]\ntask = \"regression\"\ndrop = [\"kind\", \"yes\", \"no\", \"city\", \"code\"]\n\
         missing = \"mean\"\nnormalize = \"standard\"\n[model]\nhidden = []",
    );
    let blocks = config(
        "blocks",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         encode = \"embedding\"\nmissing = \"zero\"\nnormalize = \"standard\"\n\
         [[model.layers]]\nkind = \"linear\"\nout_features = 12\n\
         [[model.layers]]\nkind = \"residual\"\nrepeat = 2\nlayers = [{ kind = \"rms_norm\" }, \
         { kind = \"glu\", out_features = 8 }, { kind = \"dropout\", p = 0.1 }, { kind = \"linear\", out_features = 12 }]\n\
         [[model.layers]]\nkind = \"layer_norm\"\n\
         [[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"\n\
         [[model.layers]]\nkind = \"glu\"\nout_features = 6\ngate = \"geglu\"\nbias = false\n\
         [[model.layers]]\nkind = \"glu\"\nout_features = 5\ngate = \"reglu\"",
    );
    let batch_norm = config(
        "batch-norm",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         encode = \"embedding\"\nmissing = \"zero\"\nnormalize = \"standard\"\n\
         [[model.layers]]\nkind = \"batch_norm\"\n\
         [[model.layers]]\nkind = \"linear\"\nout_features = 12\n\
         [[model.layers]]\nkind = \"batch_norm\"\neps = 0.01\nmomentum = 0.3\n\
         [[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"",
    );
    let periodic_mlp = config(
        "periodic_mlp",
        "target = \"kind\"\ndrop = [\"yes\", \"no\", \"price\"]\ncategorical = [\"city\", \"code\"]\n\
         encode = \"embedding\"\nmissing = \"mean\"\n\
         [model]\nkind = \"periodic_mlp\"\nhidden = [12]\nactivation = \"silu\"\ndropout = 0.1",
    );
    let counts = config(
        "counts",
        "target = \"code\"\ndrop = [\"kind\", \"yes\", \"no\", \"city\"]\nmissing = \"mean\"\n\
         [loss]\nkind = \"poisson\"\n[model]\nhidden = [8]",
    );
    let ordinal = config(
        "ordinal",
        "target = \"city\"\nclass_order = [\"São Paulo\", \"Bern\", \"a😀b\", \"Köln\", \"New York, NY\"]\n\
         drop = [\"kind\", \"yes\", \"no\"]\nmissing = \"mean\"\n[loss]\nkind = \"ordinal\"\n[model]\nhidden = [8]",
    );
    let grades = config(
        "grades",
        "target = \"kind\"\ndrop = [\"city\", \"yes\", \"no\"]\nmissing = \"mean\"\n\
         [loss]\nkind = \"ordinal\"\n[model]\nhidden = []",
    );
    let heads = config(
        "heads",
        "missing = \"mean\"\ncategorical = [\"code\"]\n[model]\nhidden = [12]\n\
         [[heads]]\nname = \"place\"\ntask = \"classification\"\ntarget = \"city\"\n\
         [[heads]]\nname = \"quantities\"\ntask = \"regression\"\ntarget = [\"price\", \"height\"]\nweight = 0.5\n\
         [[heads]]\nname = \"flags\"\ntask = \"multilabel\"\ntarget = [\"yes\", \"no\"]\n\
         [[heads]]\nname = \"kind\"\ntask = \"classification\"\nloss = { kind = \"ordinal\" }",
    );
    let labels = |name: &str, texts: [&str; 3]| {
        let rows = write(dir, &format!("{name}.csv"), &labeled(texts));
        let data = format!("[data]\ntrain = {}\ntarget = \"class\"\n[model]\nhidden = [6]\n", quoted(&rows));
        let config = write(dir, &format!("{name}.toml"), &(data + "[train]\nepochs = 2\nbatch_size = 8\n"));
        (config, rows)
    };
    let (texts, text_rows) = labels("texts", ["Iris setosa", "\"a, b\"", "Öl"]);
    let (integers, integer_rows) = labels("integers", ["-1", "7", "200000"]);
    let (mixed, mixed_rows) = labels("mixed", ["10", "9", "none of both"]);
    let times = write(dir, "times.csv", &times());
    let of_times = |name: &str, more: &str| {
        let text = format!(
            "[data]\ntrain = {}\ntarget = \"y\"\ntask = \"regression\"\n{more}\n[model]\nhidden = [6]\nactivation = \"tanh\"\n\
             [train]\nepochs = 2\nbatch_size = 8\n",
            quoted(&times)
        );
        write(dir, &format!("{name}.toml"), &text)
    };
    let exact = of_times("times", "drop = [\"gaps\"]");
    let filled = of_times("filled-times", "missing = \"mean\"");
    let marked_rows = write(
        dir,
        "marked.csv",
        &marked(&std::fs::read_to_string(&times).unwrap(), &["ns", "s", "small", "gaps"]),
    );
    let text = format!(
        "[data]\ntrain = {}\ntarget = \"y\"\ntask = \"regression\"\nmissing = \"mean\"\nmissing_values = [\"-999\", \"-7\", \"none\"]\n\
         [model]\nhidden = [6]\n[train]\nepochs = 2\nbatch_size = 8\n",
        quoted(&marked_rows)
    );
    let marks = write(dir, "marked.toml", &text);
    let marked_matrix = write(dir, "marked-matrix.csv", &marked(&small_numbers(), &["a", "b"]));
    let matrix = write(dir, "marked-matrix.toml", &text.replace("marked.csv", "marked-matrix.csv"));
    let european = packed(dir, "european.csv.gz", &european());
    let text = format!(
        "[data]\ntrain = {}\ntarget = \"kind\"\ndatetime = \"parts\"\ncategorical = [\"city\"]\n[model]\nhidden = [6]\n\
         [train]\nepochs = 2\nbatch_size = 8\n",
        quoted(&european)
    );
    let parts = write(dir, "european.toml", &text);
    let seconds = write(dir, "european-seconds.toml", &text.replace("parts", "seconds"));
    let digits = write(dir, "digits.csv", &digits());
    let example = |name: &str| root().join("examples").join(name);
    let all = [
        ("digits", example("digits.toml"), digits),
        ("csv", example("csv.toml"), example("data/digits_test.csv")),
        ("diabetes", example("diabetes.toml"), example("data/diabetes_test.csv")),
        ("one-hot", one_hot, rows.clone()),
        ("embedding", embedding, rows.clone()),
        ("only-categories", only_categories, rows.clone()),
        ("multilabel", multilabel, rows.clone()),
        ("regression", regression, write(dir, "whole.csv", &table(160, 40))),
        ("blocks", blocks, rows.clone()),
        ("batch-norm", batch_norm, rows.clone()),
        ("periodic_mlp", periodic_mlp, rows.clone()),
        ("counts", counts, rows.clone()),
        ("ordinal", ordinal, write(dir, "cities.csv", &table(160, 40))),
        ("grades", grades, write(dir, "graded.csv", &table(160, 40))),
        ("heads", heads, write(dir, "headed.csv", &table(160, 40))),
        ("texts", texts, text_rows),
        ("integers", integers, integer_rows),
        ("mixed", mixed, mixed_rows),
        ("times", exact, times.clone()),
        ("filled-times", filled, times.clone()),
        ("marked", marks, marked_rows),
        ("marked-matrix", matrix, marked_matrix),
        ("european", parts, european.clone()),
        ("european-seconds", seconds, european),
    ];
    let make = |(name, config, rows): (&'static str, PathBuf, PathBuf)| {
        let (run, onnx) = (dir.join(name), dir.join(format!("{name}.onnx")));
        let (config, out) = (config.to_str().unwrap(), run.to_str().unwrap());
        let mut train = single(&["train", config, "--set", "train.epochs=2", "--quiet", "--out", out]);
        train.current_dir(root());
        run_ok(train);
        run_ok(single(&["checkpoint", "export", out, "--out", onnx.to_str().unwrap()]));
        Case {
            name,
            run,
            onnx,
            rows,
            has_probabilities: ![
                "diabetes",
                "regression",
                "counts",
                "times",
                "filled-times",
                "marked",
                "marked-matrix",
            ]
            .contains(&name),
        }
    };
    all.into_iter().map(make).collect()
}

/// A table of numbers with missing values, strings, and targets of each kind.
fn table(first: usize, n_rows: usize) -> String {
    const CITIES: [&str; 5] = ["Bern", "Köln", "\"New York, NY\"", "São Paulo", "a\u{1F600}b"];
    let mut text = "age,label,height,city,code,yes,no,price,kind\n".to_owned();
    for row in first..first + n_rows {
        let wave = |step: f64| (row as f64 * step).sin();
        let age = if row % 7 == 3 { String::new() } else { format!("{:.3}", 40.0 + 25.0 * wave(0.7)) };
        let label = if row % 11 == 5 { "NA".to_owned() } else { (row * 7 % 13).to_string() };
        let height = 1e4 + 10.0 * wave(1.3);
        let (city, code) = (CITIES[row * 3 % 5], row % 4);
        let (yes, no) = (u8::from(wave(0.7) > 0.0), u8::from(row % 3 == 0));
        let price = 3.0 * wave(0.7) + wave(1.3);
        text += &format!("{age},{label},{height:.4},{city},{code},{yes},{no},{price:.5},{}\n", row % 3);
    }
    text
}

/// A table as written by a German spreadsheet, with a byte order mark: semicolons, decimal commas, points as thousands
/// separators, dates, and Boolean values.
fn european() -> String {
    let mut text = "\u{feff}day;price;member;city;kind\r\n".to_owned();
    for row in 0..60 {
        let (member, city) = (["yes", "no"][row % 2], ["Bern", "\"Köln; Süd\"", "Rom"][row % 3]);
        let price = format!("{}.{:03},{:02}", 1 + row % 7, row * 37 % 1000, row * 7 % 100);
        text +=
            &format!("{:02}.{:02}.2024;{price};{member};{city};k{}\r\n", row % 28 + 1, row % 12 + 1, row % 3);
    }
    text
}

/// Writes a file compressed with gzip.
fn packed(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    let mut file = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
    file.write_all(text.as_bytes()).unwrap();
    file.finish().unwrap();
    path
}

/// Rows of three classes with these labels.
fn labeled(labels: [&str; 3]) -> String {
    let mut text = "a,b,class\n".to_owned();
    for row in 0..60 {
        let angle = row as f64 * 2.4;
        text += &format!("{:.4},{:.4},{}\n", angle.sin(), angle.cos(), labels[row % 3]);
    }
    text
}

/// Times in nanoseconds and in seconds, small numbers, times with gaps, and targets far from 0.
fn times() -> String {
    let mut text = "ns,s,small,gaps,y\n".to_owned();
    for row in 0..60_u64 {
        let (ns, s) = (1_700_000_000_000_000_000 + row * 7, 1.7e9 + row as f64 * 0.125);
        let gaps =
            if row % 9 == 4 { String::new() } else { format!("{}", 1_699_999_999_000_000_000 + row * 3) };
        text += &format!("{ns},{s},{},{gaps},{}\n", row % 5, 3e5 + 1e5 * (row as f64 * 0.1).sin());
    }
    text
}

/// Small numbers and a target.
fn small_numbers() -> String {
    let row = |row: usize| format!("{:.4},{:.4},{}\n", (row as f64).sin(), row % 4, row % 9);
    "a,b,y\n".to_owned() + &(0..60).map(row).collect::<String>()
}

/// The table with marks of missing values in these columns.
fn marked(table: &str, columns: &[&str]) -> String {
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut text = header.join(",") + "\n";
    for (row, line) in lines.enumerate() {
        let mut cells: Vec<&str> = line.split(',').collect();
        for (place, column) in columns.iter().enumerate() {
            if row % 11 == 2 * place {
                let column = header.iter().position(|name| name == column).unwrap();
                cells[column] = ["-999", "-7"][row % 2];
            }
        }
        text += &(cells.join(",") + "\n");
    }
    text
}

/// The built-in digits' test rows as a table.
fn digits() -> String {
    let (_, test) = ddp::data::digits();
    let ddp::data::Targets::Labels(labels) = &test.targets else { panic!("digits have labels") };
    let mut text = test.layout.features.join(",") + ",label\n";
    for (row, label) in test.features.chunks(test.layout.n_features()).zip(labels) {
        let pixels: Vec<_> = row.iter().map(f32::to_string).collect();
        text += &format!("{},{label}\n", pixels.join(","));
    }
    text
}
