//! `[[heads]]`: classes and quantities of one table, learned, evaluated, predicted, saved and resumed together.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{
    quoted, ranks, read_weights, refused, run, run_line_ok, run_ok, same_bits, single, temp_dir, train, write,
};

const KINDS: [&str; 3] = ["pear", "apple", "fig"];

/// Rows of two features that determine a kind, a weight in grams, and whether the fruit is ripe. If `has_gaps`, every tenth row
/// lacks the kind and every seventh the weight.
fn fruits(n_rows: usize, first: usize, has_gaps: bool) -> String {
    let mut csv = "a,b,kind,grams,ripe,b2\n".to_owned();
    for row in first..first + n_rows {
        let wave = |step: f64| (row as f64 * step).sin();
        let (a, b) = (wave(0.7), wave(1.3));
        let kind = KINDS[usize::from(a + 0.2 * b > -0.4) + usize::from(a - b > 0.6)];
        let grams = format!("{:.3}", 2000.0 + 300.0 * a - 150.0 * b);
        let kind = if has_gaps && row % 10 == 3 { "" } else { kind };
        let grams = if has_gaps && row % 7 == 2 { String::new() } else { grams };
        writeln!(csv, "{a:.5},{b:.5},{kind},{grams},{},{:.5}", u8::from(a * b > 0.0), b * b).unwrap();
    }
    csv
}

const HEADS: &str = "[[heads]]\nname = \"kind\"\ntask = \"classification\"\n\
    [[heads]]\nname = \"size\"\ntask = \"regression\"\ntarget = \"grams\"\nweight = 2.0\nloss = { kind = \"huber\", delta = 2.0 }\n\
    [[heads]]\nname = \"ripe\"\ntask = \"multilabel\"\n";

fn config(folder: &Path, has_gaps: bool, more: &str) -> String {
    let rows = write(folder, "train.csv", &fruits(400, 0, has_gaps));
    let test = write(folder, "test.csv", &fruits(200, 400, false));
    let skip = if has_gaps { "missing_target = \"skip\"\n" } else { "" };
    format!(
        "[data]\ntrain = {}\neval = {}\n{skip}[model]\nhidden = [32]\n[optimizer]\nlr = 0.01\n\
         [checkpoint]\nkeep_best = \"none\"\n{more}\n{HEADS}",
        quoted(&rows),
        quoted(&test)
    )
}

fn figure(eval: &Value, head: &str, metric: &str) -> f64 {
    eval["eval_heads"][head][metric].as_f64().unwrap_or_else(|| panic!("no {head}.{metric} in {eval}"))
}

#[test]
fn each_head_learns_its_targets() {
    let folder = temp_dir();
    let text = config(folder.path(), false, "[train]\nepochs = 30\nbatch_size = 16\n");
    let run = train(1, &text, &[]);
    let model = run.out();
    let eval = format!("eval --checkpoint {} --json", model.display());
    let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &eval).stdout).unwrap();
    assert!(figure(&eval, "kind", "eval_accuracy") > 0.9, "{eval}");
    assert!(figure(&eval, "size", "eval_r2") > 0.98, "{eval}");
    assert!(figure(&eval, "ripe", "eval_accuracy") > 0.9, "{eval}");
    // Errors are in grams; the standard deviation is 240.
    assert!((1.0..60.0).contains(&figure(&eval, "size", "eval_mae")), "{eval}");
    let of_heads = |weights: [f64; 3]| {
        let heads = ["kind", "size", "ripe"].into_iter().zip(weights);
        heads.map(|(head, weight)| weight * figure(&eval, head, "eval_loss")).sum::<f64>() / 4.0
    };
    let all = eval["eval_loss"].as_f64().unwrap();
    assert!((all - of_heads([1.0, 2.0, 1.0])).abs() < 1e-6 * all, "{eval}");
    assert_eq!(run.end("eval_loss"), all);

    let line = format!("predict --checkpoint {} --data test.csv --proba --out out.csv", model.display());
    run_line_ok(folder.path(), &line);
    let text = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = [
        "prediction_kind",
        "proba_kind_apple",
        "proba_kind_fig",
        "proba_kind_pear",
        "prediction_grams",
        "prediction_ripe",
        "proba_ripe",
    ];
    assert_eq!(rows.next().unwrap(), header);
    let given = std::fs::read_to_string(folder.path().join("test.csv")).unwrap();
    let given = given.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let (mut n_right, mut error, mut n_rows) = (0, 0.0, 0.0);
    for (row, given) in rows.zip(given) {
        n_right += usize::from(row[0] == given[2]);
        error += (row[4].parse::<f64>().unwrap() - given[3].parse::<f64>().unwrap()).abs();
        n_rows += 1.0;
    }
    assert!((figure(&eval, "kind", "eval_accuracy") - n_right as f64 / n_rows).abs() < 1e-12);
    assert!((figure(&eval, "size", "eval_mae") - error / n_rows).abs() < 1e-3);

    // The library gives the same predictions, head by head.
    let mut predictor = ddp_tables::predict::Predictor::open(&model).unwrap();
    assert_eq!(predictor.columns(), ["a", "b", "b2"]);
    let given = std::fs::read_to_string(folder.path().join("test.csv")).unwrap();
    let of_row = |line: &str| {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap_or(0.0)).collect();
        [cells[0], cells[1], cells[5]]
    };
    let rows: Vec<f64> = given.lines().skip(1).flat_map(of_row).collect();
    let predictions = predictor.predict(&rows).unwrap();
    let [kinds, sizes] = ["kind", "size"].map(|head| predictions.head(head).unwrap());
    let written = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    for ((row, class), grams) in written.zip(kinds.classes()).zip(sizes.values()) {
        assert_eq!(row[0], ["apple", "fig", "pear"][class]);
        assert!((row[4].parse::<f64>().unwrap() - grams).abs() < 1e-6, "{row:?}: {grams}");
    }
    assert!(predictions.head("grams").is_none());

    let described = run_line_ok(folder.path(), &format!("describe {}", model.join("config.toml").display()));
    for line in [
        "task: heads",
        "head kind: classification (cross_entropy), 3 classes of kind: apple, fig, pear",
        "head size: regression (huber), grams",
        "head ripe: multilabel (bce), ripe",
    ] {
        assert!(described.stdout.contains(line), "{line}: {}", described.stdout);
    }
}

/// The loader of the examples gives the same predictions as `predict`.
#[test]
fn pytorch_gives_the_same_outputs() {
    let has_torch = Command::new("python3").args(["-c", "import torch, safetensors, tomllib"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs torch and safetensors");
        return;
    }
    let folder = temp_dir();
    let run = train(1, &config(folder.path(), false, "[train]\nepochs = 3\nbatch_size = 16\n"), &[]);
    let line = format!("predict --checkpoint {} --data test.csv --proba --out out.csv", run.out().display());
    run_line_ok(folder.path(), &line);
    let mut python = Command::new("python3");
    let root = crate::common::ddp_folder().parent().unwrap();
    python.arg(root.join("examples/load_in_pytorch.py")).arg(run.out().join("model.safetensors"));
    python.args(["test.csv", "outputs.json"]).current_dir(folder.path());
    let printed = run_ok(python).stdout;
    let eval = format!("eval --checkpoint {} --json", run.out().display());
    let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &eval).stdout).unwrap();
    for (head, title, metric) in [
        ("kind", "accuracy", "eval_accuracy"),
        ("size", "R²", "eval_r2"),
        ("ripe", "accuracy", "eval_accuracy"),
    ] {
        let line = printed.lines().find(|line| line.starts_with(&format!("{head}: {title} "))).unwrap();
        let value: f64 = line.split(' ').nth(2).unwrap().parse().unwrap();
        assert!((value - figure(&eval, head, metric)).abs() < 1e-5, "{line}: {eval}");
    }
    let outputs = std::fs::read(folder.path().join("outputs.json")).unwrap();
    let outputs: Vec<Vec<f64>> = serde_json::from_slice(&outputs).unwrap();
    let text = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    for (row, line) in outputs.iter().zip(text.lines().skip(1)) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells[at].parse::<f64>().unwrap();
        let sum: f64 = row[..3].iter().map(|logit| logit.exp()).sum();
        for class in 0..3 {
            assert!((row[class].exp() / sum - number(1 + class)).abs() < 1e-5, "{row:?}: {line}");
        }
        assert!((row[3] - number(4)).abs() < 1e-2, "{row:?}: {line}");
        assert!((1.0 / (1.0 + (-row[4]).exp()) - number(6)).abs() < 1e-5, "{row:?}: {line}");
    }
}

/// Seconds since 1970 have more digits than f32; differences of a few seconds are still learned.
#[test]
fn quantities_far_from_zero_keep_their_digits() {
    let folder = temp_dir();
    let shifted = |n_rows, first| {
        let text = fruits(n_rows, first, false);
        let line = |(n, line): (usize, &str)| {
            let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
            if n > 0 {
                let value: f64 = cells[3].parse().unwrap();
                cells[3] = format!("{:.4}", 1.7e9 + value / 100.0);
            }
            cells.join(",") + "\n"
        };
        text.lines().enumerate().map(line).collect::<String>()
    };
    let text = config(folder.path(), false, "[train]\nepochs = 20\nbatch_size = 16\n");
    write(folder.path(), "train.csv", &shifted(400, 0));
    write(folder.path(), "test.csv", &shifted(200, 400));
    let run = train(1, &text, &[]);
    let eval = format!("eval --checkpoint {} --json", run.out().display());
    let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &eval).stdout).unwrap();
    assert!(figure(&eval, "size", "eval_r2") > 0.98, "{eval}");
    assert!((0.01..0.6).contains(&figure(&eval, "size", "eval_mae")), "{eval}");
}

#[test]
fn ranks_and_formats_make_no_difference() {
    let folder = temp_dir();
    let text = config(folder.path(), true, "[train]\nepochs = 2\nglobal_batch_size = 30\n");
    let one = train(1, &text, &[]);
    let note = "head kind: at least 40 of 400 training rows lack its target";
    let log = std::fs::read_to_string(one.out().join("logs/rank-0.log")).unwrap();
    assert!(log.contains(note), "{log}");
    let losses = one.numbers("step", "loss");
    for n_ranks in [2, 3] {
        let several = train(n_ranks, &text, &[]).numbers("step", "loss");
        crate::common::assert_all_close("losses", &several, &losses, 1e-5);
    }
    // The same rows as JSON lines.
    let mut jsonl = String::new();
    let csv = fruits(400, 0, true);
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    for row in lines {
        let cells = row.split(',').zip(&names).map(|(cell, name)| match (cell, *name) {
            ("", name) => format!("\"{name}\": null"),
            (cell, "kind") => format!("\"kind\": \"{cell}\""),
            (cell, name) => format!("\"{name}\": {cell}"),
        });
        writeln!(jsonl, "{{{}}}", cells.collect::<Vec<_>>().join(", ")).unwrap();
    }
    write(folder.path(), "train.jsonl", &jsonl);
    let same = train(1, &text.replace("train.csv", "train.jsonl"), &[]);
    assert!(same_bits(&one.weights(), &same.weights()));
}

#[test]
fn a_resumed_run_has_the_same_bits_and_a_new_run_starts_from_a_model() {
    let folder = temp_dir();
    let text = config(folder.path(), true, "every_epochs = 1\n[train]\nepochs = 2\nbatch_size = 16\n");
    let whole = train(1, &text, &[]);
    let (toml, out) = (write(folder.path(), "run.toml", &text), folder.path().join("resumed"));
    let args = |more: &'static str| {
        single(&["train", toml.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet", more])
    };
    assert_eq!(run(args("--set=train.stop_after_steps=30")).status.code(), Some(85));
    run_ok(args("--resume=auto"));
    let resumed = read_weights(&out.join("model.safetensors"));
    assert!(same_bits(&whole.weights(), &resumed));
    // If rows lack one of the labels, the classes of the model are kept.
    let pears: String = fruits(100, 0, false)
        .lines()
        .filter(|line| !line.contains("fig"))
        .fold(String::new(), |all, line| all + line + "\n");
    write(folder.path(), "pears.csv", &pears);
    let line = format!(
        "train run.toml --data pears.csv --init-from {} --out next --epochs 1",
        whole.out().display()
    );
    run_line_ok(folder.path(), &line);
    let next = read_weights(&folder.path().join("next/model.safetensors"));
    let outputs = |weights: &crate::common::Weights| weights["layers.1.bias"].values.len();
    assert_eq!((outputs(&resumed), outputs(&next)), (5, 5));
}

/// Resumed under mpirun, with an optimizer that updates whole parameters.
#[test]
fn periodic_mlp_with_heads_resumes_on_ranks_to_the_bit() {
    for optimizer in ["adamw", "lamb", "muon"] {
        let folder = temp_dir();
        let text = config(folder.path(), true, "every_epochs = 1\n[train]\nepochs = 2\nbatch_size = 16\n")
            .replace("hidden = [32]\n", "kind = \"periodic_mlp\"\nhidden = [12, 12]\n")
            .replace("lr = 0.01", &format!("kind = \"{optimizer}\"\nlr = 0.01"));
        let whole = train(2, &text, &[]);
        assert!(whole.weights().keys().any(|name| name.starts_with("numeric.")), "{optimizer}");
        let (toml, out) = (write(folder.path(), "run.toml", &text), folder.path().join("resumed"));
        let args = |more: &'static str| {
            ranks(2, &["train", toml.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet", more])
        };
        assert_eq!(run(args("--set=train.stop_after_steps=17")).status.code(), Some(85));
        run_ok(args("--resume=auto"));
        assert!(same_bits(&whole.weights(), &read_weights(&out.join("model.safetensors"))), "{optimizer}");
        // Three ranks train the same model, up to the rounding of sums.
        let [of_two, of_three] =
            [&whole, &train(3, &text.replace("batch_size = 16", "global_batch_size = 32"), &[])]
                .map(|run| run.end("eval_loss"));
        assert!((of_two - of_three).abs() < 1e-3 * of_two, "{optimizer}: {of_two}, {of_three}");
    }
}

/// Area under the ROC curve by definition, over all pairs.
fn roc_auc(scores: &[f64], is_positive: &[bool]) -> f64 {
    let (mut ordered, mut pairs) = (0.0, 0.0);
    for (a, _) in scores.iter().zip(is_positive).filter(|(_, positive)| **positive) {
        for (b, _) in scores.iter().zip(is_positive).filter(|(_, positive)| !**positive) {
            pairs += 1.0;
            ordered += if a > b { 1.0 } else { f64::from(u8::from(a == b)) / 2.0 };
        }
    }
    ordered / pairs
}

#[test]
fn a_run_stops_and_keeps_its_best_by_the_metric_of_a_head() {
    let folder = temp_dir();
    let text = config(folder.path(), true, "[train]\nepochs = 40\nglobal_batch_size = 32\n")
        .replace("keep_best = \"none\"\n", "");
    let stopping = ["--set", "train.early_stop_metric=ripe.roc_auc", "--set", "train.early_stop_patience=2"];
    for n_ranks in [1, 3] {
        let stopped =
            train(n_ranks, &text, &[&stopping[..], &["--set", "train.early_stop_min_delta=0.001"]].concat());
        let epochs = stopped.events("epoch");
        let areas: Vec<f64> = epochs.iter().map(|epoch| figure(epoch, "ripe", "eval_roc_auc")).collect();
        assert!(epochs.len() < 40, "{areas:?}");
        let best = areas.iter().copied().fold(0.0, f64::max);
        let end = stopped.events("end").remove(0);
        assert_eq!(end["best"]["metric"], "ripe.eval_roc_auc");
        assert_eq!(end["best"]["value"].as_f64(), Some(best), "{areas:?}");
        let saved = std::fs::read_to_string(stopped.out().join("config.toml")).unwrap();
        assert!(saved.contains("early_stop_metric = \"ripe.eval_roc_auc\""), "{saved}");

        // The model is the best one, and its area equals that of its predictions.
        let model = stopped.out();
        let line =
            format!("eval --checkpoint {} --metrics roc_auc,average_precision --json", model.display());
        let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &line).stdout).unwrap();
        assert!((figure(&eval, "ripe", "eval_roc_auc") - best).abs() < 1e-9, "{eval}");
        assert!(figure(&eval, "kind", "eval_average_precision") > 0.5, "{eval}");
        let line = format!(
            "predict --checkpoint {} --data test.csv --proba --overwrite --out out.csv",
            model.display()
        );
        run_line_ok(folder.path(), &line);
        let written = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
        let given = std::fs::read_to_string(folder.path().join("test.csv")).unwrap();
        let last = |line: &str| line.rsplit(',').next().unwrap().parse().unwrap();
        let scores: Vec<f64> = written.lines().skip(1).map(last).collect();
        let ripe: Vec<bool> =
            given.lines().skip(1).map(|line| line.split(',').nth(4).unwrap() == "1").collect();
        let want = roc_auc(&scores, &ripe);
        // Probabilities are written with the digits of f32; values that are equal there may have differed before.
        assert!((best - want).abs() < 1e-4, "{best}, {want}");
    }
}

#[test]
fn the_importance_of_columns_is_measured_by_the_metric_of_a_head() {
    let folder = temp_dir();
    let judged = "[train]\nepochs = 30\nbatch_size = 16\n";
    let text = config(folder.path(), false, judged).replace("\"none\"", "\"ripe.roc_auc\"");
    let run = train(1, &text, &[]);
    let model = run.out();
    let of_model = format!("eval --checkpoint {} --device cpu --json", model.display());
    let eval: Value = serde_json::from_str(&run_line_ok(folder.path(), &of_model).stdout).unwrap();
    let importance = |more: &str| -> Value {
        let line = format!("{of_model} --importance {more}");
        serde_json::from_str(&run_line_ok(folder.path(), &line).stdout).unwrap()
    };
    let size = importance("--metrics size.r2");
    assert_eq!((&size["metric"], &size["direction"]), (&"size.eval_r2".into(), &"drop".into()));
    assert_eq!(size["baseline"].as_f64(), Some(figure(&eval, "size", "eval_r2")));
    let of_column = |name: &str| -> f64 {
        let columns = size["importance"].as_array().unwrap();
        columns.iter().find(|column| column["column"] == name).unwrap()["mean"].as_f64().unwrap()
    };
    // The weight in grams is 300 a - 150 b: without one of them R² drops by twice its share of the variance, 4 to 1.
    let (a, b) = (of_column("a"), of_column("b"));
    assert!((1.2..2.0).contains(&a) && (0.2..0.8).contains(&b) && of_column("b2") < 0.2, "{size}");
    let text_of_it = run_line_ok(
        folder.path(),
        &format!("eval --checkpoint {} --importance --metrics size.r2", model.display()),
    );
    assert!(text_of_it.stdout.contains("drop of R² of size"), "{}", text_of_it.stdout);

    assert_eq!(importance("--repeats 1")["metric"], "ripe.eval_roc_auc", "the run was judged by it");
    let args = ["eval", "--checkpoint", model.to_str().unwrap(), "--device", "cpu", "--json", "--importance"];
    let args = [&args[..], &["--metrics", "size.r2"]].concat();
    let of_three: Value = serde_json::from_str(&run_ok(ranks(3, &args)).stdout).unwrap();
    assert_eq!(of_three["importance"], size["importance"]);

    for (name, parts) in [
        (
            "kid.accuracy",
            ["`kid.accuracy` is not a metric here, expected names of: loss, kind.METRIC", "head kind?"],
        ),
        ("accuracy", ["`accuracy` is not a metric here", "metrics of a head are written as kind.accuracy"]),
        (
            "kind.default",
            ["measures one metric, got --metrics kind.default", "such as --metrics kind.accuracy"],
        ),
        ("size.accuracy", ["`accuracy` is not a metric here", "task \"regression\" does not give it"]),
    ] {
        let line = format!("eval --checkpoint {} --importance --metrics {name}", model.display());
        refused(folder.path(), &line, &parts);
    }
}

/// The class `b_c` of target `a` and the class `c` of target `a_b` have one name.
#[test]
fn columns_of_probabilities_that_have_one_name_are_refused() {
    let folder = temp_dir();
    let rows: String =
        (0..40).map(|row| format!("{row},{},{}\n", ["b_c", "z"][row % 2], ["c", "y"][row / 20])).collect();
    let rows = write(folder.path(), "rows.csv", &format!("x,a,a_b\n{rows}"));
    let heads = "[[heads]]\nname = \"one\"\ntask = \"classification\"\ntarget = \"a\"\n\
        [[heads]]\nname = \"two\"\ntask = \"classification\"\ntarget = \"a_b\"\n";
    let run = train(1, &format!("[data]\ntrain = {}\n[train]\nepochs = 1\n{heads}", quoted(&rows)), &[]);
    for out in ["out.csv", "out.parquet", "-"] {
        let line = format!("predict --checkpoint {} --data rows.csv --out {out}", run.out().display());
        refused(
            folder.path(),
            &format!("{line} --proba"),
            &["\"proba_a_b_c\"", "remove --proba", "rename a target"],
        );
        assert!(!folder.path().join(out).exists());
        run_line_ok(folder.path(), &line);
    }
}

#[test]
fn labels_of_heads_that_training_lacks_are_no_missing_ones() {
    let folder = temp_dir();
    let text = config(folder.path(), true, "[train]\nepochs = 1\nbatch_size = 16\n");
    let path = write(folder.path(), "run.toml", &text);
    let rows = fruits(40, 400, true);
    let rows = rows.replacen(",pear,", ",kiwi,", 2);
    assert_eq!(rows.matches("kiwi").count(), 2);
    write(folder.path(), "new.csv", &rows);
    let train = format!("train {} --device cpu --out", path.display());
    let left_out = "2 labels of head \"kind\" do not occur in training, such as \"kiwi\"";
    let eval = "eval --checkpoint run --data new.csv --device cpu";
    for line in [&format!("{train} run --set data.eval=new.csv"), eval] {
        let said = run_line_ok(folder.path(), line).stderr;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(left_out), "{said}");
    }
}

#[test]
fn what_heads_can_not_be_is_refused() {
    let folder = temp_dir();
    let text = config(folder.path(), true, "").replace("missing_target = \"skip\"\n", "");
    write(folder.path(), "run.toml", &text);
    for (more, parts) in [
        ("", &["column \"grams\": the target is missing", "hint: set `data.missing_target` to \"skip\""][..]),
        ("--set data.target=kind", &["`data.target` must be absent next to `heads`", "hint: "]),
        (
            "--set heads=[{name='ripe',task='regression',loss='poisson'}]",
            &["`heads` must be heads whose `loss` is a table", "hint: write loss = { kind = \"poisson\" }"],
        ),
        (
            "--set heads=[{name='kind'}]",
            &["`heads` must be heads that each have a `task`, got none in head 1", "hint: "],
        ),
        ("--set heads=[{name='king',task='regression'}]", &["no column \"king\"", "hint: "]),
        (
            "--set heads=[{name='kind',task='regression'}]",
            &["column \"kind\"", "hint: for labels set the `task` of this head"],
        ),
        (
            "--set heads=[{name='kind',task='classification',target=['kind','ripe']}]",
            &["one column for a head of classes", "hint: "],
        ),
        (
            "--set heads=[{name='a',task='regression',target='grams'},{name='a',task='regression',target='b'}]",
            &["heads of different names", "hint: "],
        ),
        (
            "--set heads=[{name='a',task='regression',target='b'},{name='c',task='regression',target='b'}]",
            &["\"b\" is a target of \"a\" too", "hint: "],
        ),
        (
            "--set heads=[{name='kind',task='classification',loss={kind='mse'}}]",
            &["\"cross_entropy\" or \"focal\" or \"ordinal\"", "in head 1", "hint: "],
        ),
        (
            "--set heads=[{name='kind',task='classification',loss={class_weights=[1,2]}}] --set data.missing_target=skip",
            &["has 2 numbers, expected 3", "hint: "],
        ),
        (
            "--set heads=[{name='b',task='multilabel'}] --set data.drop=['kind','grams','ripe']",
            &["0 or 1", "hint: "],
        ),
        (
            "--set checkpoint.keep_best=eval_accuracy",
            &[
                "`checkpoint.keep_best` must be a metric of task \"heads\": eval_loss",
                "hint: metrics of a head are written as \"kind.eval_accuracy\"",
            ],
        ),
        (
            "--set checkpoint.keep_best=kin.eval_accuracy",
            &["a metric of one of the heads kind, size, ripe", "hint: did you mean \"kind\"?"],
        ),
        (
            "--set train.early_stop_metric=size.roc_auc --set train.early_stop_patience=1",
            &["a metric of task \"regression\": size.eval_loss, size.eval_mae", "hint: "],
        ),
        (
            "--set checkpoint.keep_best=kind.eval_acuracy",
            &["the name of a head, a point and one of eval_loss", "did you mean \"kind.eval_accuracy\"?"],
        ),
    ] {
        refused(folder.path(), &format!("train run.toml --out o {more}"), parts);
    }
    write(folder.path(), "digits.toml", &format!("[data]\ntrain = \"builtin:digits\"\n{HEADS}"));
    refused(folder.path(), "train digits.toml --out o", &["`builtin:digits` is not a table", "hint: "]);
}
