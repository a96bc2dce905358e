//! Predictions of unusual rows and requests: outputs that are not numbers, and requests that grow.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{ddp_train, made_up_csv, run_line_ok, temp_dir, write};
use crate::virtual_gpu::command_under_virtual_gpus;

fn train(folder: &Path, task: &str) {
    write(folder, "rows.csv", &made_up_csv(200, 3, task, 0));
    let target = if task == "regression" { "t0 --target t1" } else { "label" };
    let line = "train rows.csv --out run --epochs 2 --device cpu --quiet --set data.eval=none --target";
    run_line_ok(folder, &format!("{line} {target}"));
}

#[test]
fn rows_whose_outputs_are_nan_have_no_prediction() {
    for task in ["classification", "regression"] {
        let folder = temp_dir();
        train(folder.path(), task);
        let table = made_up_csv(6, 3, task, 200);
        let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
        let others = lines[3].split(',').skip(3).collect::<Vec<_>>().join(",");
        lines[3] = format!("3e38,-3e38,3e38,{others}");
        write(folder.path(), "new.csv", &(lines.join("\n") + "\n"));
        let proba = if task == "regression" { "" } else { "--proba" };
        let line = format!("predict --checkpoint run --data new.csv --out out.csv --device cpu {proba}");
        let said = run_line_ok(folder.path(), &line).stderr;
        assert!(said.contains("1 row: NaN or infinite outputs"), "{said}");
        let text = fs::read_to_string(folder.path().join("out.csv")).unwrap();
        let written: Vec<&str> = text.lines().collect();
        let got = written[3].trim_matches('"');
        assert!(got.chars().all(|c| c == ','), "{task}: {got}");
        assert!(written.len() == 7 && written[2].len() > 2 && written[4].len() > 2, "{text}");
    }
}

/// The model's output, the logarithm of a rate, is a number; the rate is beyond all of them.
#[test]
fn a_rate_beyond_all_numbers_is_no_prediction() {
    let folder = temp_dir();
    let rows = (0..100).map(|i| format!("{i},{}\n", i / 20)).collect::<String>();
    write(folder.path(), "rows.csv", &format!("x,n\n{rows}"));
    let line = "train rows.csv --target n --out run --epochs 20 --device cpu --quiet --set data.task=regression --set model.hidden=[]";
    run_line_ok(
        folder.path(),
        &format!("{line} --set loss.kind=poisson --set optimizer.lr=0.1 --set data.eval=none"),
    );
    write(folder.path(), "new.csv", "x\n50\n1e9\n60\n");
    let said =
        run_line_ok(folder.path(), "predict --checkpoint run --data new.csv --out out.csv --device cpu")
            .stderr;
    assert!(said.contains("1 row: NaN or infinite outputs"), "{said}");
    let text = fs::read_to_string(folder.path().join("out.csv")).unwrap();
    let numbers: Vec<Option<f64>> = text.lines().skip(1).map(|line| line.parse().ok()).collect();
    assert!(matches!(numbers[..], [Some(_), None, Some(_)]), "{text}");
}

#[test]
fn a_request_may_be_larger_than_the_first_on_a_gpu() {
    let folder = temp_dir();
    let path = folder.path();
    train(path, "regression");
    let mut requests = String::new();
    for (request, n_rows) in [2, 50, 3].into_iter().enumerate() {
        write(path, &format!("{request}.csv"), &made_up_csv(n_rows, 3, "regression", 7));
        let out = |device| format!("{device}{request}.csv");
        requests += &format!("{{\"data\":\"{request}.csv\",\"out\":\"{}\"}}\n", out("gpu"));
        run_line_ok(
            path,
            &format!("predict --checkpoint run --data {request}.csv --out {} --device cpu", out("cpu")),
        );
    }
    write(path, "requests", &requests);
    let mut command = Command::new("sh");
    let line = format!("{} predict --checkpoint run --serve --device cuda < requests", ddp_train());
    command.args(["-c", &line]).current_dir(path).stdin(Stdio::null());
    let Some(outcome) = command_under_virtual_gpus(1, &command) else { return };
    outcome.ok();
    let read = |name: &str| -> Vec<f64> {
        let text = fs::read_to_string(path.join(name)).unwrap();
        text.lines().skip(1).flat_map(|line| line.split(',')).map(|cell| cell.parse().unwrap()).collect()
    };
    for (request, n_rows) in [2, 50, 3].into_iter().enumerate() {
        let answer: Value = serde_json::from_str(outcome.stdout.lines().nth(request).unwrap()).unwrap();
        assert_eq!(answer["rows"], n_rows, "{answer}");
        let (got, want) = (read(&format!("gpu{request}.csv")), read(&format!("cpu{request}.csv")));
        // Sums in another order.
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= 1e-4 * (1.0 + want.abs())));
        assert_eq!(got.len(), 2 * n_rows);
    }
}
