//! Rows that were changed between two legs of a run are detected, for any changed value.

use std::path::Path;

use crate::common::{Outcome, run, single, temp_dir};
use crate::data::files;

const N_ROWS: usize = 4000;

fn features() -> Vec<f64> {
    (0..2 * N_ROWS).map(|i| (i * 37 % 101) as f64 * 0.25).collect()
}

fn write_rows(folder: &Path, features: &[f64]) {
    let labels: Vec<f64> = (0..N_ROWS).map(|row| (row % 2) as f64).collect();
    let put = |name: &str, bytes: Vec<u8>| std::fs::write(folder.join(name), bytes).unwrap();
    put("x.npy", files::npy(files::Element::F64, false, &[N_ROWS, 2], features));
    put("y.npy", files::npy(files::Element::I64, false, &[N_ROWS], &labels));
}

fn train(folder: &Path, more: &[&str]) -> Outcome {
    let out = folder.join("out");
    let mut args = vec!["train", "--quiet", "--out", out.to_str().unwrap(), "--set=data.train=x.npy"];
    args.extend(["--set=data.labels=y.npy", "--set=train.epochs=2", "--set=train.global_batch_size=400"]);
    args.extend(more);
    let mut command = single(&args);
    command.current_dir(folder);
    run(command)
}

/// Stops a run, changes the value at index `at`, resumes the run, and returns the outcome.
fn resumed_after_a_change(at: usize, by: f64, more: &[&str]) -> Outcome {
    let folder = temp_dir();
    let mut features = features();
    write_rows(folder.path(), &features);
    let first = [more, &["--set=train.stop_after_steps=5"]].concat();
    assert_eq!(train(folder.path(), &first).status.code(), Some(85));
    features[at] += by;
    write_rows(folder.path(), &features);
    train(folder.path(), &[more, &["--resume=auto"]].concat())
}

#[test]
fn every_changed_value_is_found_where_statistics_read_all_rows() {
    for (at, by) in [(0, 1.0), (4567, 1.0), (2 * N_ROWS - 1, 1e-12)] {
        for more in [&["--set=data.normalize=standard"][..], &["--set=data.fingerprint=full"]] {
            let outcome = resumed_after_a_change(at, by, more);
            assert_eq!(outcome.status.code(), Some(2), "{at} {more:?}: {}", outcome.stderr);
            let message = "the fingerprint of the data is full-1:";
            assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
        }
    }
}

#[test]
fn arrays_that_no_statistics_read_are_sampled() {
    // 1,024 of 4,000 rows are compared: row 0 is, row 1 is not.
    let outcome = resumed_after_a_change(0, 1.0, &[]);
    assert!(outcome.stderr.contains("the fingerprint of the data is "), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("full-1:"), "{}", outcome.stderr);
    assert!(resumed_after_a_change(2, 1.0, &[]).status.success());
}

#[test]
fn unchanged_rows_resume() {
    for more in [&["--set=data.normalize=standard"][..], &["--set=data.fingerprint=full"], &[]] {
        let outcome = resumed_after_a_change(0, 0.0, more);
        assert!(outcome.status.success(), "{more:?}: {}", outcome.stderr);
    }
}
