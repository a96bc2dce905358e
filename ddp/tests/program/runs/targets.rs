//! Regression targets in any units: standardized for training, in the user's units everywhere else.

use std::fmt::Write as _;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::common::{quoted, ranks, refused, run, run_line_ok, run_ok, single, temp_dir, train, write};
use crate::data::files::Element;
use crate::data::formats::{as_arrays, in_format};

/// Uniform numbers in [0, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Friedman's first function, of five out of ten features, in large units: multiplied by 1e5, plus 3e5.
fn friedman(n_rows: usize, seed: u64) -> String {
    let mut random = Random(seed);
    let mut csv = (0..10).map(|i| format!("x{i},")).collect::<String>() + "y\n";
    for _ in 0..n_rows {
        let x: Vec<f64> = (0..10).map(|_| random.next()).collect();
        let y = 10.0 * (std::f64::consts::PI * x[0] * x[1]).sin()
            + 20.0 * (x[2] - 0.5).powi(2)
            + 10.0 * x[3]
            + 5.0 * x[4];
        x.iter().for_each(|x| write!(csv, "{x},").unwrap());
        writeln!(csv, "{}", y * 1e5 + 3e5).unwrap();
    }
    csv
}

fn config(folder: &Path, more: &str) -> String {
    let (rows, test) = (folder.join("train.csv"), folder.join("test.csv"));
    format!(
        "[data]\ntrain = {}\neval = {}\ntask = \"regression\"\ntarget = \"y\"\n{more}",
        quoted(&rows),
        quoted(&test)
    )
}

fn folder() -> tempfile::TempDir {
    let folder = temp_dir();
    write(folder.path(), "train.csv", &friedman(600, 1));
    write(folder.path(), "test.csv", &friedman(200, 2));
    folder
}

/// Vectors of f64 in a model file.
fn doubles(path: &Path, name: &str) -> Option<Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).ok()?;
    assert_eq!(view.dtype(), Dtype::F64, "{name}");
    Some(view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
}

fn check_large_units(n_ranks: usize) {
    let folder = folder();
    let config = config(
        folder.path(),
        "[train]\nepochs = 60\nglobal_batch_size = 32\n[checkpoint]\nkeep_best = \"none\"\n",
    );
    let run = train(n_ranks, &config, &[]);
    assert!(run.end("eval_r2") > 0.9, "R² {}", run.end("eval_r2"));
    assert!(run.end("train_loss") < 0.2 && run.end("eval_loss") < 0.2, "in standardized units");
    let end = &run.events("end")[0];
    let (shift, scale) = (end["target_shift"][0].as_f64().unwrap(), end["target_scale"][0].as_f64().unwrap());
    assert!((1.5e6..2e6).contains(&shift) && (4e5..6e5).contains(&scale), "{shift} {scale}");
    let model = run.out().join("model.safetensors");
    assert_eq!(doubles(&model, "target.shift").unwrap(), [shift]);
    assert_eq!(doubles(&model, "target.scale").unwrap(), [scale]);
    // The saved model is the one that was evaluated.
    let mut eval = ranks(n_ranks, &["eval", "--checkpoint", run.out().to_str().unwrap(), "--json"]);
    eval.current_dir(folder.path());
    let evaluated: serde_json::Value = serde_json::from_str(&run_ok(eval).stdout).unwrap();
    assert_eq!(evaluated["eval_r2"].as_f64(), Some(run.end("eval_r2")));
    assert_eq!(evaluated["eval_loss"].as_f64(), Some(run.end("eval_loss")));
}

#[test]
fn large_units_are_learned() {
    check_large_units(1);
}

#[test]
fn large_units_are_learned_by_two_ranks() {
    check_large_units(2);
}

#[test]
fn the_scale_has_the_same_bits_on_any_number_of_ranks() {
    let folder = folder();
    let config = config(folder.path(), "[train]\nsteps = 1\n");
    let scales = [1, 2, 3].map(|n_ranks| {
        let run = train(n_ranks, &config, &[]);
        let model = run.out().join("model.safetensors");
        let of = |name| doubles(&model, name).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        ["target.shift", "target.scale", "normalize.shift", "normalize.scale"].map(of)
    });
    assert!(scales.iter().all(|scale| *scale == scales[0]), "{scales:?}");
}

#[test]
fn a_resumed_run_keeps_the_scale() {
    let folder = folder();
    let text = "[train]\nepochs = 2\n[checkpoint]\nevery_epochs = 1\n";
    let whole = train(1, &config(folder.path(), text), &[]);
    let out = folder.path().join("out");
    let toml = write(folder.path(), "run.toml", &config(folder.path(), text));
    let args = |more: &'static str| {
        single(&["train", toml.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet", more])
    };
    let mut first = args("--set=train.stop_after_steps=20");
    first.current_dir(folder.path());
    assert_eq!(run(first).status.code(), Some(85));
    run_ok(args("--resume=auto"));
    let of = |path: &Path| std::fs::read(path.join("model.safetensors")).unwrap();
    assert!(of(&whole.out()) == of(&out), "the same model to the bit");
}

/// Counts with rate `exp(2 + x)`, and their expectations.
fn counts(n_rows: usize, seed: u64) -> (String, Vec<f64>) {
    let mut random = Random(seed);
    let (mut csv, mut rates) = ("x,n\n".to_owned(), Vec::new());
    for _ in 0..n_rows {
        let x = 2.0 * random.next() - 1.0;
        let rate = (2.0 + x).exp();
        // Number of arrivals within one unit of time.
        let (mut n, mut time) = (0, 0.0);
        loop {
            time -= (1.0 - random.next()).ln() / rate;
            if time > 1.0 {
                break;
            }
            n += 1;
        }
        writeln!(csv, "{x},{n}").unwrap();
        rates.push(rate);
    }
    (csv, rates)
}

#[test]
fn counts_are_learned_as_rates() {
    let folder = temp_dir();
    let (test, rates) = counts(200, 2);
    let (rows, test) =
        (write(folder.path(), "train.csv", &counts(2000, 1).0), write(folder.path(), "test.csv", &test));
    let config = |rows: &Path| {
        format!(
            "[data]\ntrain = {}\neval = {}\ntarget = \"n\"\n[loss]\nkind = \"poisson\"\n[model]\nhidden = []\n\
             [train]\nepochs = 40\nbatch_size = 32\n[optimizer]\nlr = 0.01\n[checkpoint]\nkeep_best = \"none\"\n",
            quoted(rows),
            quoted(&test)
        )
    };
    let run = train(1, &config(&rows), &[]);
    let model = run.out().join("model.safetensors");
    assert_eq!(doubles(&model, "target.shift"), None, "counts are not standardized");
    // The best possible R² on such rows, which the noise of the counts limits.
    assert!(run.end("eval_r2") > 0.45, "R² {}", run.end("eval_r2"));
    let out = folder.path().join("rates.csv");
    let line = format!(
        "predict --checkpoint {} --data {} --out {}",
        run.out().display(),
        test.display(),
        out.display()
    );
    run_line_ok(folder.path(), &line);
    let text = std::fs::read_to_string(out).unwrap();
    let predicted: Vec<f64> = text.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert_eq!(predicted.len(), rates.len());
    for (predicted, rate) in predicted.iter().zip(&rates) {
        assert!((predicted / rate - 1.0).abs() < 0.1, "{predicted} for {rate}");
    }
    let negative = write(folder.path(), "negative.csv", "x,n\n0.5,3\n0.1,-2\n0.2,0\n");
    let toml = write(folder.path(), "negative.toml", &config(&negative));
    let expected = "negative.csv`, target \"n\": the smallest value is -2, but the loss \"poisson\" takes counts from 0\nhint: ";
    refused(folder.path(), &format!("train {}", toml.display()), &[expected]);
    // Initial weights from a model of standardized targets have different units.
    let squares = config(&rows)
        .replace("[loss]\nkind = \"poisson\"", "task = \"regression\"")
        .replace("epochs = 40", "epochs = 1");
    let squares = train(1, &squares, &[]);
    let line = format!(
        "train {} --init-from {} --out other",
        write(folder.path(), "counts.toml", &config(&rows)).display(),
        squares.out().join("model.safetensors").display()
    );
    let expected =
        "`loss.kind` is \"poisson\", but the model of --init-from has standardized targets\nhint: ";
    refused(folder.path(), &line, &[expected]);
}

#[test]
fn raw_targets_on_request_and_never_for_labels() {
    let folder = folder();
    let raw = "normalize_target = \"none\"\n[train]\nepochs = 1\n[optimizer]\nlr = 1e-9\n";
    let toml = write(folder.path(), "raw.toml", &config(folder.path(), raw));
    let out = folder.path().join("raw");
    let outcome = run_ok(single(&["train", toml.to_str().unwrap(), "--out", out.to_str().unwrap()]));
    let warning = "is below 0: the mean of the targets would predict the evaluation rows better\nhint: ";
    assert!(
        outcome.stderr.contains("warning: eval_r2 -") && outcome.stderr.contains(warning),
        "{}",
        outcome.stderr
    );
    let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert!(!events.contains("target_shift"), "{events}");
    assert_eq!(doubles(&out.join("model.safetensors"), "target.shift"), None);

    write(folder.path(), "labels.csv", "a,p,q\n1,0,1\n2,1,0\n3,1,1\n4,0,0\n");
    let labels = folder.path().join("labels.csv");
    let labels = format!(
        "[data]\ntrain = {}\ntask = \"multilabel\"\ntarget = [\"p\", \"q\"]\n[train]\nepochs = 1\n",
        quoted(&labels)
    );
    let run = train(1, &labels, &[]);
    assert_eq!(doubles(&run.out().join("model.safetensors"), "target.shift"), None);
    assert!(run.events("end")[0].get("target_shift").is_none());
}

#[test]
fn a_model_worse_than_the_most_frequent_class_is_warned_of() {
    let folder = temp_dir();
    let rows: String = (0..100).map(|i| format!("{},{}\n", i * 37 % 100, u8::from(i % 10 == 0))).collect();
    let rows = write(folder.path(), "rows.csv", &format!("a,label\n{rows}"));
    // Without training, one of two mirrored models is wrong for most rows.
    let warned: Vec<bool> = (0..8)
        .map(|seed| {
            let seed = format!("train.seed={seed}");
            let (train, eval) =
                (format!("data.train={}", rows.display()), format!("data.eval={}", rows.display()));
            let sets = ["optimizer.lr=1e-12", "train.steps=1", &seed, &train, &eval];
            let sets: Vec<String> = sets.iter().map(|set| format!("--set={set}")).collect();
            let out = folder.path().join(&seed);
            let mut args = vec!["train", "--out", out.to_str().unwrap()];
            args.extend(sets.iter().map(String::as_str));
            let outcome = run_ok(single(&args));
            let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
            let end: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
            let is_worse = end["eval_accuracy"].as_f64().unwrap() < 0.9 - 1e-9;
            let warning =
                "is below 0.9000, the share of the most frequent class of the evaluation rows\nhint: ";
            assert_eq!(outcome.stderr.contains(warning), is_worse, "{}", outcome.stderr);
            is_worse
        })
        .collect();
    assert!(warned.contains(&true), "{warned:?}");
}

#[test]
fn weights_come_with_their_preprocessing() {
    let folder = folder();
    let first = train(1, &config(folder.path(), "[train]\nepochs = 2\n"), &[]);
    let model = first.out().join("model.safetensors");
    // The same rows in other units.
    let moved = temp_dir();
    for name in ["train.csv", "test.csv"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let in_thousands = |line: &str| {
            let (x, y) = line.rsplit_once(',').unwrap();
            y.parse::<f64>().map_or(line.to_owned(), |y| format!("{x},{}", y * 2.0))
        };
        write(moved.path(), name, &text.lines().map(|line| in_thousands(line) + "\n").collect::<String>());
    }
    let scale_of = |args: &[&str]| {
        let all = [&["--init-from", model.to_str().unwrap()], args].concat();
        let run = train(1, &config(moved.path(), "[train]\nsteps = 1\n"), &all);
        doubles(&run.out().join("model.safetensors"), "target.scale").unwrap()[0]
    };
    let fitted = doubles(&model, "target.scale").unwrap()[0];
    assert_eq!(scale_of(&[]), fitted, "that of the file");
    let refitted = scale_of(&["--refit-preprocessing"]);
    assert!((refitted / fitted - 2.0).abs() < 1e-6, "{refitted} {fitted}");

    let toml = write(moved.path(), "run.toml", &config(moved.path(), "missing = \"mean\"\n"));
    let out = moved.path().join("refused");
    let (toml, out) = (toml.to_str().unwrap(), out.to_str().unwrap());
    let outcome = run(single(&["train", toml, "--init-from", model.to_str().unwrap(), "--out", out]));
    assert_eq!(outcome.status.code(), Some(2));
    assert!(outcome.stderr.contains("`data.missing`") && outcome.stderr.contains("--refit-preprocessing"));
}

#[test]
fn averaged_and_exported_weights_keep_the_scale() {
    let folder = folder();
    let run = train(1, &config(folder.path(), "[train]\nepochs = 2\n[checkpoint]\nevery_epochs = 1\n"), &[]);
    let (out, of_run) = (run.out(), run.out().join("model.safetensors"));
    for (name, command) in [("export", &["export"][..]), ("average", &["average", "--last", "2"])] {
        let file = folder.path().join(name);
        let args =
            [&["checkpoint"], command, &[out.to_str().unwrap(), "--out", file.to_str().unwrap()]].concat();
        run_ok(single(&args));
        for tensor in ["target.shift", "target.scale", "normalize.shift"] {
            assert_eq!(doubles(&file, tensor), doubles(&of_run, tensor), "{name} {tensor}");
        }
        let evaluated = run_ok(single(&["eval", "--checkpoint", file.to_str().unwrap(), "--json"])).stdout;
        assert!(evaluated.contains("eval_r2"), "{evaluated}");
    }
}

/// Rows whose targets are the function `target` of a sum of sines.
fn sines(target: impl Fn(f64) -> String) -> String {
    let mut random = Random(7);
    let mut csv = "a,b,y\n".to_owned();
    for _ in 0..400 {
        let (a, b) = (random.next() as f32, random.next() as f32);
        let y = (3.0 * f64::from(a)).sin() + f64::from(b);
        writeln!(csv, "{a},{b},{}", target(y)).unwrap();
    }
    csv
}

/// Coefficient of determination of a model trained on `data`, given as TOML.
fn r2(data: &str) -> f64 {
    let config = format!(
        "[data]\n{data}\ntask = \"regression\"\nnormalize = \"none\"\n[model]\nhidden = [16]\n\
         [train]\nepochs = 60\nglobal_batch_size = 20\n[optimizer]\nlr = 1e-2\n"
    );
    train(1, &config, &["--set", "train.seed=3"]).end("eval_r2")
}

#[test]
fn targets_far_from_zero_keep_their_digits_in_every_format() {
    let folder = temp_dir();
    let of_table = |name: &str| {
        let path = folder.path().join(name);
        r2(&format!("train = {path:?}\neval = {path:?}\ntarget = \"y\""))
    };
    write(folder.path(), "near.csv", &sines(|y| format!("{y:.9}")));
    write(folder.path(), "far.csv", &sines(|y| format!("{:.6}", 1.7e9 + y)));
    // Nanoseconds within a fraction of a millisecond.
    write(folder.path(), "time.csv", &sines(|y| (1_700_000_000_000_000_000 + (y * 1e5) as i64).to_string()));
    let near = of_table("near.csv");
    assert!(near > 0.98, "{near}");
    for far in ["far", "time"] {
        let want = of_table(&format!("{far}.csv"));
        assert!((want - near).abs() < 2e-3, "{far}: {want} against {near}");
        for ending in ["jsonl", "npz", "safetensors", "npy", "parquet", "feather"] {
            if !cfg!(feature = "parquet") && ["parquet", "feather"].contains(&ending) {
                continue;
            }
            let (from, to) = (format!("{far}.csv"), format!("{far}.{ending}"));
            let out = folder.path().join(&to);
            match ending {
                "npz" | "safetensors" | "npy" => as_arrays(folder.path(), &from, &to, "y", &[], Element::F32),
                _ => in_format(folder.path(), &from, &to, "--target y --task regression"),
            }
            let got = match ending {
                "npy" => {
                    let labels = out.with_extension("labels.npy");
                    r2(&format!(
                        "train = {out:?}\nlabels = {labels:?}\neval = {out:?}\neval_labels = {labels:?}"
                    ))
                }
                _ => of_table(&to),
            };
            assert_eq!(got, want, "{to}");
        }
    }
}

/// Counts are used as rates without standardization, even next to a standardized quantity.
#[test]
fn a_head_of_counts_is_not_standardized() {
    let folder = temp_dir();
    let rows: String = (0..60).map(|i| format!("{},{},{}\n", i % 7, 100 + 3 * (i % 7), i % 7 / 2)).collect();
    write(folder.path(), "rows.csv", &format!("x,size,visits\n{rows}"));
    let text = format!(
        "[data]\ntrain = {}\neval = \"none\"\n[[heads]]\nname = \"size\"\ntask = \"regression\"\n[[heads]]\n\
         name = \"visits\"\ntask = \"regression\"\nloss = {{ kind = \"poisson\" }}\n[train]\nepochs = 1\n",
        quoted(&folder.path().join("rows.csv"))
    );
    let run = train(1, &text, &[]);
    let model = run.out().join("model.safetensors");
    let (shift, scale) = (doubles(&model, "target.shift").unwrap(), doubles(&model, "target.scale").unwrap());
    assert!((shift[0] - 109.0).abs() < 1.0 && scale[0] > 4.0, "{shift:?}, {scale:?}");
    assert_eq!((shift[1], scale[1]), (0.0, 1.0));
}

/// Large targets whose decimals f32 preserves are read in the same way for training and by `eval`.
#[test]
fn eval_gives_the_figures_of_training_for_large_targets() {
    let folder = temp_dir();
    let rows: String =
        (0..80).map(|i| format!("{},{}.{:02}\n", i * i % 17, 100_000 + i % 20, i * 37 % 100)).collect();
    let table = write(folder.path(), "rows.csv", &format!("x,y\n{rows}"));
    let text = format!(
        "[data]\ntrain = {}\neval_fraction = 0.25\ntarget = \"y\"\ntask = \"regression\"\n[train]\nepochs = 3\n\
         [checkpoint]\nkeep_best = \"none\"\n",
        quoted(&table)
    );
    let run = train(1, &text, &[]);
    let outcome = run_ok(single(&["eval", "--checkpoint", run.out().to_str().unwrap(), "--json"]));
    let figures: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    for metric in ["eval_loss", "eval_mae", "eval_rmse"] {
        assert_eq!(figures[metric].as_f64().unwrap(), run.end(metric), "{metric}");
    }
}
