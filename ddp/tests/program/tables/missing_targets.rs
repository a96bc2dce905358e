//! Table rows without a target: an error that names the key, or skipped and counted, as if they were not in the table.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{
    Outcome, ranks, read_weights, refused, run_line, run_line_ok, run_ok, same_bits, temp_dir, write,
};
use crate::data::files::Element;
use crate::data::formats::{as_arrays, in_format};

const QUICK: &str = "--device cpu --epochs 3 --batch-size 8 --hidden 4";
const SKIP: &str = "--set data.missing_target=skip";

/// A table of two features, a group, and the target of row `n`; rows without a target value are omitted.
fn table(target: impl Fn(usize) -> Option<String>) -> String {
    let mut text = "a,b,group,target\n".to_owned();
    for n in 0..90 {
        let (a, b) = ((n as f64 * 0.7).sin(), (n as f64 * 1.3).cos());
        if let Some(target) = target(n) {
            writeln!(text, "{a:.4},{b:.4},g{},{target}", n % 9).unwrap();
        }
    }
    text
}

/// A target for row `n`, by task.
fn target_of(task: &str, n: usize) -> String {
    match task {
        "classification" => ["cat", "dog", "owl"][n % 3].to_owned(),
        _ => format!("{:.3}", 1e3 + (n as f64 * 0.7).sin()),
    }
}

/// Writes `gaps.csv`, in which every fifth row lacks its target, one of them by a mark that is never a label, and `whole.csv`
/// without these rows.
fn write_tables(folder: &Path, task: &str) -> usize {
    let is_missing = |n: usize| n.is_multiple_of(5);
    let is_marked = |n: usize| n == 30 && task == "regression";
    let mark = |n: usize| if is_marked(n) { "NA".to_owned() } else { String::new() };
    write(folder, "gaps.csv", &table(|n| Some(if is_missing(n) { mark(n) } else { target_of(task, n) })));
    write(folder, "whole.csv", &table(|n| (!is_missing(n)).then(|| target_of(task, n))));
    (0..90).filter(|n| is_missing(*n)).count()
}

fn figures(outcome: &Outcome) -> Value {
    let mut figures: Value = serde_json::from_str(&outcome.stdout).unwrap();
    for key in ["data", "model"] {
        figures.as_object_mut().unwrap().remove(key);
    }
    figures
}

/// The tables in all formats of this build.
fn formats(folder: &Path) -> Vec<&'static str> {
    let mut formats = vec!["csv", "jsonl"];
    formats.extend(["parquet", "feather"].iter().filter(|_| cfg!(feature = "parquet")));
    for format in &formats[1..] {
        in_format(folder, "gaps.csv", &format!("gaps.{format}"), "");
    }
    formats
}

#[test]
fn rows_without_a_target_are_left_out_in_every_format() {
    for task in ["classification", "regression"] {
        let folder = temp_dir();
        let folder = folder.path();
        let n_missing = write_tables(folder, task);
        let train = |data: &str, out: &str, more: &str| {
            let line = format!(
                "train {data} --target target --set data.drop=[\"group\"] {QUICK} --out {out} {more}"
            );
            run_line_ok(folder, &line)
        };
        train("whole.csv", "whole", "");
        let weights = |out: &str| read_weights(&folder.join(out).join("model.safetensors"));
        let whole = weights("whole");
        let eval = |out: &str, data: &str, more: &str| {
            run_line_ok(folder, &format!("eval --checkpoint {out} --data {data} --json --device cpu {more}"))
        };
        let of_whole = figures(&eval("whole", "whole.csv", ""));
        for format in formats(folder) {
            let data = format!("gaps.{format}");
            let trained = train(&data, format, SKIP);
            let note = format!("left out {n_missing} rows without a target");
            assert!(trained.stderr.contains(&note), "{data}: {}", trained.stderr);
            assert!(same_bits(&weights(format), &whole), "{task}, {data}");
            // As in training, and by the flag for a model whose training had no such rows.
            for (out, more) in [(format, ""), ("whole", "--missing-target skip")] {
                let evaluated = eval(out, &data, more);
                assert_eq!(figures(&evaluated), of_whole, "{task}, {data}");
                assert!(evaluated.stderr.contains(&note), "{data}: {}", evaluated.stderr);
            }
            let line = format!("train --plain {data} --target target --set data.drop=[\"group\"] {QUICK}");
            refused(folder, &line, &["column \"target\"", "`data.missing_target` = \"skip\""]);
            let line = format!("eval --checkpoint whole --data {data} --device cpu");
            refused(folder, &line, &["column \"target\"", "--missing-target skip"]);
        }
    }
}

#[test]
fn ranks_leave_out_the_same_rows() {
    let folder = temp_dir();
    let folder = folder.path();
    let n_missing = write_tables(folder, "classification");
    let train = |data: &str, sets: &[&str]| {
        let out = folder.join(format!("{data}-run"));
        let (data, out_text) = (folder.join(data), out.to_str().unwrap());
        let mut args = vec!["train", data.to_str().unwrap(), "--target", "target", "--out", out_text];
        args.extend(["--epochs", "2", "--hidden", "4", "--batch-size", "8", "--threads", "1"]);
        args.extend(["--set", "data.drop=[\"group\"]", "--eval-fraction", "0.2"]);
        args.extend(sets);
        let outcome = run_ok(ranks(2, &args));
        (outcome, read_weights(&out.join("model.safetensors")))
    };
    let (outcome, gaps) = train("gaps.csv", &["--set", "data.missing_target=skip"]);
    let note = format!("left out {n_missing} rows without a target");
    assert_eq!(outcome.stderr.matches(&note).count(), 1, "{}", outcome.stderr);
    assert!(same_bits(&gaps, &train("whole.csv", &[]).1));
}

#[test]
fn splits_count_only_rows_with_a_target() {
    let folder = temp_dir();
    let folder = folder.path();
    write_tables(folder, "classification");
    for split in ["{group=\"group\"}", "{time=\"a\"}"] {
        let line = |data: &str, out: &str| {
            let sets = format!("--set data.split={split} --set data.eval_fraction=0.3 --out {out}");
            let drop = if split.contains("group") { "" } else { "--set data.drop=[\"group\"]" };
            format!("train {data} --target target {QUICK} {sets} {drop}")
        };
        let whole = run_line_ok(folder, &line("whole.csv", "whole"));
        let gaps = run_line_ok(folder, &format!("{} {SKIP}", line("gaps.csv", "gaps")));
        let note = |outcome: &Outcome| {
            outcome.stderr.lines().find(|line| line.starts_with("split by ")).map(str::to_owned)
        };
        assert!(note(&gaps).is_some() && note(&gaps) == note(&whole), "{}{}", gaps.stderr, whole.stderr);
        let weights = |out: &str| read_weights(&folder.join(out).join("model.safetensors"));
        assert!(same_bits(&weights("gaps"), &weights("whole")), "{split}");
        std::fs::remove_dir_all(folder.join("whole")).unwrap();
        std::fs::remove_dir_all(folder.join("gaps")).unwrap();
    }
}

#[test]
fn tables_without_targets_and_arrays_are_refused() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "none.csv", "a,target\n1,\n2,NA\n");
    refused(folder, &format!("train none.csv --target target {SKIP}"), &["no row has a value of target"]);
    write_tables(folder, "regression");
    as_arrays(folder, "whole.csv", "rows.npy", "target", &["group"], Element::F32);
    let line = format!("train rows.npy --set data.labels=rows.labels.npy --task regression {SKIP}");
    refused(folder, &line, &["data.missing_target", "holds arrays"]);
}

#[test]
fn a_label_that_is_spelled_like_a_missing_value_can_be_kept() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "na.csv", &table(|n| Some(["NA", "EU", "?"][n % 3].to_owned())));
    let train = format!("train --plain na.csv --target target --set data.drop=[\"group\"] {QUICK}");
    refused(folder, &train, &["the label is missing, got \"NA\"", "`data.missing_values` = [\"\"]"]);
    let kept = run_line_ok(folder, &format!("{train} --set data.missing_values=[\"\"] --out kept"));
    assert!(kept.stderr.contains("classification of 3 classes"), "{}", kept.stderr);
    let described = run_line_ok(folder, "checkpoint show kept");
    assert!(described.stdout.contains("NA"), "{}", described.stdout);
    // An empty cell still counts as missing.
    write(folder, "na.csv", &table(|n| Some(["NA", "EU", ""][n % 3].to_owned())));
    let outcome = run_line(folder, &format!("{train} --set data.missing_values=[\"\"]"));
    assert!(outcome.stderr.contains("the cell is empty"), "{}", outcome.stderr);
}
