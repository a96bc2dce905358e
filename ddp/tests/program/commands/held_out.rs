//! Held-out rows after training: a table that has changed is reported, since its split holds other rows.

use std::fs;
use std::path::Path;

use crate::common::{run_line, run_line_ok, temp_dir, write};

/// Rows whose first column says how probable the label is, in any order.
fn table(order: impl Fn(&mut Vec<String>)) -> String {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let row = |_| {
        let values: Vec<f64> = (0..10).map(|_| draw()).collect();
        let label = if draw() < values[0] { "a" } else { "b" };
        let cells: Vec<String> = values.iter().map(|value| format!("{value:.6}")).collect();
        format!("{},{label}", cells.join(","))
    };
    let mut rows: Vec<String> = (0..300).map(row).collect();
    order(&mut rows);
    format!("{},y\n{}\n", (0..10).map(|i| format!("x{i}")).collect::<Vec<_>>().join(","), rows.join("\n"))
}

fn train(folder: &Path) {
    write(folder, "rows.csv", &table(|_| {}));
    let line = "train rows.csv --plain --target y --eval-fraction 0.25 --epochs 30 --hidden 64 --lr 0.01 --out run -q --set checkpoint.keep_best=none";
    run_line_ok(folder, line);
}

#[test]
fn rows_of_a_changed_table_are_not_said_to_be_held_out() {
    let folder = temp_dir();
    let path = folder.path();
    train(path);
    let same = run_line_ok(path, "eval run --metrics accuracy");
    assert!(same.stdout.contains("(held out from training)") && same.stderr.is_empty(), "{same:?}");
    let sorted: fn(&mut Vec<String>) = |rows| rows.sort();
    let longer: fn(&mut Vec<String>) = |rows| rows.insert(0, rows[7].clone());
    for order in [sorted, longer] {
        write(path, "rows.csv", &table(order));
        for line in ["eval run --metrics accuracy", "eval run --importance --metrics accuracy --repeats 1"] {
            let other = run_line_ok(path, line);
            assert!(!other.stdout.contains("held out"), "{other:?}");
            assert!(
                other.stderr.contains("has changed since training") && other.stderr.contains("--data FILE"),
                "{other:?}"
            );
        }
        let model = fs::read(path.join("run/model.safetensors")).unwrap();
        let refused = run_line(path, "eval run --calibrate");
        assert!(
            refused.status.code() == Some(2) && refused.stderr.contains("has changed since training"),
            "{refused:?}"
        );
        assert_eq!(fs::read(path.join("run/model.safetensors")).unwrap(), model);
    }
}

#[test]
fn folds_of_a_changed_table_predict_nothing() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "rows.csv", &table(|_| {}));
    run_line_ok(path, "sweep rows.csv --plain --target y --epochs 2 --folds 3 --out folds");
    let line = "predict folds --out-of-fold --out out.csv";
    run_line_ok(path, line);
    write(path, "rows.csv", &table(|rows| rows.sort()));
    let refused = run_line(path, &format!("{line} --overwrite"));
    assert!(refused.stderr.contains("has changed since") && refused.status.code() != Some(0), "{refused:?}");
}

/// A resumed run writes a new model, and removes the calibration of the previous one.
#[test]
fn a_calibration_is_of_one_model() {
    let folder = temp_dir();
    let path = folder.path();
    train(path);
    run_line_ok(path, "eval run --calibrate");
    let note = path.join("run/calibration.json");
    assert!(note.exists());
    let on = run_line_ok(path, "train --resume run --epochs 31");
    assert!(
        on.stderr.contains("removed the calibration of the previous model")
            && on.stderr.contains("eval run --calibrate"),
        "{on:?}"
    );
    assert!(!note.exists());
}
