//! f64, integers and times keep their digits until the mean is subtracted, in every format.

use std::path::{Path, PathBuf};

use crate::common::{Run, run_ok, single, temp_dir, train, write};
use crate::data::files;

const N_ROWS: usize = 600;
const N_TIMES: usize = 60;

/// Times in nanoseconds since 1970, one nanosecond apart; f64 holds only multiples of 256.
fn nanoseconds() -> Vec<i64> {
    (0..N_ROWS).map(|row| 1_700_000_000_000_000_123 + (row * 7 % N_TIMES) as i64).collect()
}

/// The later half of the times is class 1.
fn labels() -> Vec<i64> {
    (0..N_ROWS).map(|row| i64::from(row * 7 % N_TIMES >= N_TIMES / 2)).collect()
}

/// Seconds since 1970, one microsecond apart.
fn seconds() -> Vec<f64> {
    (0..N_ROWS).map(|row| 1_700_000_000.0 + (row * 7 % N_TIMES) as f64 * 1e-6).collect()
}

fn npy_i64(values: &[i64]) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}, 1), }}", values.len());
    let mut file = files::npy_with(&header);
    values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    file
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn csv<T: std::fmt::Display>(times: &[T]) -> String {
    let rows = times.iter().zip(labels()).map(|(time, label)| format!("{time},{label}\n"));
    format!("t,label\n{}", rows.collect::<String>())
}

/// Trains on the file and evaluates on a held-out part.
fn trained(data: &Path, more: &str, n_ranks: usize) -> Run {
    let config = format!(
        "[data]\ntrain = \"{}\"\neval_fraction = 0.3\n{more}[model]\nhidden = [32]\n\
         [train]\nepochs = 60\nglobal_batch_size = 32\n[optimizer]\nlr = 1e-2\n",
        data.display()
    );
    train(n_ranks, &config, &[])
}

#[track_caller]
fn check(data: &Path, more: &str) {
    let run = trained(data, more, 1);
    let accuracy = run.end("eval_accuracy");
    assert!(accuracy >= 0.99, "{}: accuracy {accuracy}", data.display());
    // The saved model reads the rows in the same way as the run.
    let evaluated = run_ok(single(&["eval", "--checkpoint", run.out().to_str().unwrap(), "--json"])).stdout;
    let evaluated: serde_json::Value = serde_json::from_str(&evaluated).unwrap();
    assert_eq!(evaluated["eval_loss"].as_f64(), Some(run.end("eval_loss")));
}

#[test]
fn times_in_csv_are_told_apart() {
    let folder = temp_dir();
    check(&write(folder.path(), "ns.csv", &csv(&nanoseconds())), "");
    check(&write(folder.path(), "s.csv", &csv(&seconds())), "");
}

#[test]
fn times_in_arrays_are_told_apart() {
    let folder = temp_dir();
    let values: Vec<f64> = labels().iter().map(|&label| label as f64).collect();
    let labels = put(folder.path(), "y.npy", &files::npy(files::Element::I64, false, &[N_ROWS], &values));
    let more = format!("labels = \"{}\"\nnormalize = \"standard\"\n", labels.display());
    check(&put(folder.path(), "ns.npy", &npy_i64(&nanoseconds())), &more);
    let of_seconds = files::npy(files::Element::F64, false, &[N_ROWS, 1], &seconds());
    check(&put(folder.path(), "s.npy", &of_seconds), &more);
    check(
        &put(folder.path(), "s.npy", &files::npy(files::Element::F64, true, &[N_ROWS, 1], &seconds())),
        &more,
    );
}

#[cfg(feature = "parquet")]
#[test]
fn times_in_parquet_are_told_apart() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};

    let folder = temp_dir();
    let file = |name: &str, times: ArrayRef| {
        let columns = [("t", times), ("label", Arc::new(Int64Array::from(labels())) as ArrayRef)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let properties =
            parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(100));
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    };
    check(&file("ns.parquet", Arc::new(Int64Array::from(nanoseconds()))), "");
    check(&file("s.parquet", Arc::new(Float64Array::from(seconds()))), "");
}

#[test]
fn formats_and_numbers_of_ranks_train_to_the_same_weights() {
    let folder = temp_dir();
    let csv = write(folder.path(), "ns.csv", &csv(&nanoseconds()));
    let values: Vec<f64> = labels().iter().map(|&label| label as f64).collect();
    let labels = put(folder.path(), "y.npy", &files::npy(files::Element::I64, false, &[N_ROWS], &values));
    let npy = put(folder.path(), "ns.npy", &npy_i64(&nanoseconds()));
    let more = format!("labels = \"{}\"\nnormalize = \"standard\"\n", labels.display());
    let weights = |data: &Path, more: &str, n_ranks| trained(data, more, n_ranks).weights();
    let of_csv = weights(&csv, "", 1);
    assert!(crate::common::same_bits(&of_csv, &weights(&npy, &more, 1)), "CSV and npy");
    for name in ["normalize.offset", "normalize.shift", "normalize.scale"] {
        assert_eq!(of_csv[name].values, weights(&csv, "", 2)[name].values, "{name} on two ranks");
    }
}

#[test]
fn values_that_fall_together_all_the_same_are_warned_of() {
    let folder = temp_dir();
    let values: Vec<f64> = labels().iter().map(|&label| label as f64).collect();
    let labels = put(folder.path(), "y.npy", &files::npy(files::Element::I64, false, &[N_ROWS], &values));
    let data = put(folder.path(), "ns.npy", &npy_i64(&nanoseconds()));
    let sets = [
        format!("--set=data.train={}", data.display()),
        format!("--set=data.labels={}", labels.display()),
        "--set=train.steps=1".to_owned(),
    ];
    let stderr_of = |name: &str, more: &str| {
        let out = folder.path().join(name);
        let mut args = vec!["train", "--out", out.to_str().unwrap(), more];
        args.extend(sets.iter().map(String::as_str));
        run_ok(single(&args)).stderr
    };
    let warning = "has 60 distinct values, of which f32 keeps 1 apart\nhint: set `data.normalize`";
    let stderr = stderr_of("raw", "--set=data.normalize=none");
    assert!(stderr.contains("warning: column \"f0\"") && stderr.contains(warning), "{stderr}");
    let stderr = stderr_of("standard", "--set=data.normalize=standard");
    assert!(!stderr.contains("of which f32 keeps"), "{stderr}");
}

/// The offset is subtracted on the host, shift and scale are applied on the GPU, for any location of the rows.
#[test]
fn gpus_normalize_times_as_the_cpu_does() {
    use crate::common::{largest_gap, read_weights};
    use crate::virtual_gpu::under_virtual_gpus;

    let folder = temp_dir();
    let data = write(folder.path(), "ns.csv", &csv(&nanoseconds()));
    let data = format!("--set=data.train={}", data.display());
    let args = |out: &Path, device: &str, placement: &str| {
        let sets = ["train.steps=20", "train.global_batch_size=32", "model.hidden=[16]", placement];
        let sets = sets.iter().map(|set| format!("--set={set}"));
        let fixed =
            ["train", "--quiet", "--device", device, "--out", out.to_str().unwrap()].map(str::to_owned);
        fixed.into_iter().chain(sets).chain([data.clone()]).collect::<Vec<_>>()
    };
    let out = |name: &str| folder.path().join(name);
    let borrowed = |args: &[String]| args.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let on_cpu = borrowed(&args(&out("cpu"), "cpu", "data.placement=auto"));
    run_ok(single(&on_cpu.split('\n').collect::<Vec<_>>()));
    let want = read_weights(&out("cpu").join("model.safetensors"));
    for placement in ["host", "device"] {
        let on_gpu = borrowed(&args(&out(placement), "cuda", &format!("data.placement={placement}")));
        let Some(outcome) = under_virtual_gpus(1, &on_gpu.split('\n').collect::<Vec<_>>(), &[]) else {
            return;
        };
        outcome.ok();
        let got = read_weights(&out(placement).join("model.safetensors"));
        let (gap, place) = largest_gap(&got, &want);
        // 20 steps with sums in a different order; without the offset all inputs would be equal.
        assert!(gap <= 2e-5, "{placement}: {place}: {gap:e} apart");
        for name in ["normalize.offset", "normalize.shift", "normalize.scale"] {
            assert_eq!(got[name], want[name], "{placement} {name}");
        }
    }
}
