//! Training on a file several times as large as the configured memory stays within it, in any order of the rows.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::files::{Element, npy};
use crate::common::{run_with_peak, single, temp_dir};

const N_FEATURES: usize = 1024;
const LIMIT_MIB: usize = 16;
/// Number of rows of a step.
const BATCH: usize = 64;
/// Number of rows that take four times the limit.
const N_ROWS: usize = 4 * (LIMIT_MIB << 20) / (4 * N_FEATURES);

/// Writes `n_rows` rows to `x.npy`, almost all 0 so that they take no room on the disk, and `y.npy`.
fn write(folder: &Path, n_rows: usize) {
    let header = npy(Element::F32, false, &[n_rows, N_FEATURES], &[]);
    let mut x = File::create(folder.join("x.npy")).unwrap();
    x.write_all(&header).unwrap();
    x.set_len((header.len() + 4 * n_rows * N_FEATURES) as u64).unwrap();
    for row in (0..n_rows).step_by(100) {
        x.seek(SeekFrom::Start((header.len() + 4 * row * N_FEATURES) as u64)).unwrap();
        x.write_all(&1.0f32.to_le_bytes()).unwrap();
    }
    let labels: Vec<f64> = (0..n_rows).map(|row| f64::from(u8::from(row % 100 == 0))).collect();
    fs::write(folder.join("y.npy"), npy(Element::U8, false, &[n_rows], &labels)).unwrap();
}

/// Peak memory of a run on `n_rows` rows in KiB, including pages of mapped files.
fn peak_kib(n_rows: usize, limit_mib: usize, sets: &[&str]) -> u64 {
    let folder = temp_dir();
    write(folder.path(), n_rows);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut all = vec![
        format!("data.train={}", path("x.npy")),
        format!("data.labels={}", path("y.npy")),
        format!("data.loader_memory_mib={limit_mib}"),
        format!("train.batch_size={BATCH}"),
        "train.epochs=2".to_owned(),
        "model.hidden=[4]".to_owned(),
    ];
    all.extend(sets.iter().map(|&set| set.to_owned()));
    let out = path("out");
    let mut args = vec!["train", "--quiet", "--threads", "1", "--device", "cpu", "--out", &out];
    all.iter().for_each(|set| args.extend(["--set", set]));
    run_with_peak(single(&args)).1
}

#[test]
fn rows_beyond_the_limit_take_less_memory_than_it() {
    for sets in [
        ["data.shuffle_mode=full", "data.normalize=none"],
        ["data.shuffle_mode=blocks", "data.normalize=standard"],
        ["data.shuffle=false", "data.eval_fraction=0.1"],
    ] {
        let base = peak_kib(BATCH, LIMIT_MIB, &sets);
        let peak = peak_kib(N_ROWS, LIMIT_MIB, &sets);
        let rows_kib = peak.saturating_sub(base);
        assert!(
            rows_kib < (LIMIT_MIB << 10) as u64,
            "{rows_kib} KiB for rows, limit {LIMIT_MIB} MiB: {sets:?}"
        );
        // Rows are drawn from a window of mapped blocks, half of the limit, where they are shuffled within windows.
        let window_kib = if sets[0].ends_with("blocks") { LIMIT_MIB << 9 } else { 0 };
        assert!(
            rows_kib < ((8 << 10) + window_kib) as u64,
            "buffers are {} KiB and windows {window_kib}: {rows_kib} KiB, {sets:?}",
            5 * BATCH * N_FEATURES / 256
        );
    }
    // By default, such a file is mapped, and this measure includes its pages.
    let sets = ["data.shuffle_mode=full"];
    let mapped = peak_kib(N_ROWS, 0, &sets).saturating_sub(peak_kib(BATCH, 0, &sets));
    assert!(mapped > (LIMIT_MIB << 10) as u64, "{mapped} KiB");
}
