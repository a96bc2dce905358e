//! Files whose content is not what their name says, or damaged; labels with more digits or names than usual.

#[cfg(feature = "parquet")]
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
#[cfg(feature = "parquet")]
use std::sync::Arc;

#[cfg(feature = "parquet")]
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array};
#[cfg(feature = "parquet")]
use arrow_schema::Schema;
#[cfg(feature = "parquet")]
use parquet::arrow::ArrowWriter;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

#[cfg(feature = "parquet")]
use crate::common::ddp_folder;
use crate::common::{refused, run_line_ok, temp_dir, write};
use crate::data::files::{Element, npy, npy_with, npz, safetensors_with};

const COMMANDS: [&str; 4] = [
    "train {} --out run --device cpu",
    "data inspect {}",
    "data show {} --rows 0..9",
    "data convert {} o.parquet",
];

/// All commands refuse the file with these parts in the message.
#[track_caller]
fn all_refuse(folder: &Path, name: &str, parts: &[&str]) {
    for command in COMMANDS {
        refused(folder, &command.replace("{}", name), parts);
    }
}

/// Flips a bit of the only place that holds `bytes`.
fn damage(path: &Path, bytes: &[u8]) {
    let mut content = fs::read(path).unwrap();
    let place = content.windows(bytes.len()).position(|window| window == bytes).unwrap();
    content[place] ^= 1;
    fs::write(path, content).unwrap();
}

#[test]
fn damage_is_found_by_checksums() {
    let folder = temp_dir();
    let folder = folder.path();
    let rows: String = (0..200).map(|row| format!("{row}.5,{}\n", row % 2)).collect();
    let mut archive = ZipWriter::new(File::create(folder.join("rows.zip")).unwrap());
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    archive.start_file("rows.csv", stored).unwrap();
    archive.write_all(format!("a,label\n{rows}").as_bytes()).unwrap();
    archive.finish().unwrap();
    let values: Vec<f64> = (0..400).map(|n| f64::from(n) / 3.0).collect();
    let labels: Vec<f64> = (0..200).map(|row| f64::from(row % 2)).collect();
    let (x, y) = (npy(Element::F64, false, &[200, 2], &values), npy(Element::I64, false, &[200], &labels));
    fs::write(folder.join("rows.npz"), npz(&[("x", &x), ("y", &y)], false)).unwrap();
    #[cfg_attr(not(feature = "parquet"), allow(unused_mut))]
    let mut files = vec![("rows.zip", b"\n70.5,".to_vec()), ("rows.npz", values[77].to_le_bytes().to_vec())];
    #[cfg(feature = "parquet")]
    {
        let fixture = ddp_folder().join("tests/fixtures/tables/hostile/checksums.parquet");
        fs::copy(fixture, folder.join("rows.parquet")).unwrap();
        files.push(("rows.parquet", 7f64.to_le_bytes().to_vec()));
    }
    for (name, bytes) in files {
        run_line_ok(
            folder,
            &format!("train {name} --epochs 1 --hidden 4 --out run --device cpu --overwrite"),
        );
        damage(&folder.join(name), &bytes);
        fs::remove_dir_all(folder.join("run")).unwrap();
        all_refuse(folder, name, &[name, "CRC"]);
    }
}

#[test]
fn files_that_are_no_tables_are_named() {
    let folder = temp_dir();
    let folder = folder.path();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 12345\n";
    for ending in
        ["csv", "parquet", "arrow", "jsonl", "npy", "npz", "safetensors", "csv.gz", "csv.zst", "zip"]
    {
        let name = format!("pointer.{ending}");
        write(folder, &name, pointer);
        all_refuse(folder, &name, &["is a Git LFS pointer", "hint: `git lfs pull`"]);
    }
    for more in [
        "pointer.npy --labels pointer.npy --set data.format=npy",
        "pointer.csv --set data.format=csv --target a",
    ] {
        refused(folder, &format!("train {more} --out run --device cpu"), &["is a Git LFS pointer"]);
    }
    write(folder, "lists.json", "[[1, 2], [3, 4]]");
    write(folder, "lines.jsonl", "[1, 2]\n[3, 4]\n");
    for name in ["lists.json", "lines.jsonl"] {
        all_refuse(folder, name, &["is JSON of lists", "hint: write objects that name the columns"]);
    }
    // An archive within a compressed file: the mark of tar is at its byte 257.
    let tar = [&b"rows.csv"[..], &[0; 249], b"ustar\0", &[0; 249]].concat();
    fs::write(folder.join("rows.csv.gz"), crate::data::files::gzip(&tar)).unwrap();
    fs::write(folder.join("r.csv.gz"), crate::data::files::gzip(b"X\n\0\0\0\x03\0\x04\x03\x02")).unwrap();
    all_refuse(folder, "rows.csv.gz", &["is a tar archive"]);
    all_refuse(folder, "r.csv.gz", &["is a file of R's saveRDS", "readRDS"]);
    let values = npy(Element::F64, false, &[3], &[1.0, 2.0, 3.0]);
    let sparse: Vec<(&str, &[u8])> =
        ["indices", "indptr", "format", "shape", "data"].iter().map(|name| (*name, &values[..])).collect();
    fs::write(folder.join("sparse.npz"), npz(&sparse, false)).unwrap();
    all_refuse(folder, "sparse.npz", &["is a sparse matrix", "hint: load it with scipy.sparse.load_npz"]);
    for (dtype, n_bytes) in [("F8_E4M3", 6), ("C64", 48), ("F4", 3), ("I128", 96)] {
        let header =
            format!("{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":[3,2],\"data_offsets\":[0,{n_bytes}]}}}}");
        fs::write(folder.join("rows.safetensors"), safetensors_with(&header, &vec![0; n_bytes])).unwrap();
        let got = format!("the array `x` has the type {dtype}");
        refused(folder, "train rows.safetensors --out run --device cpu", &[&got, "tensor.to(torch.float32)"]);
    }
}

/// Labels of which i64 holds one, by row.
const LABELS: [u64; 3] = [5, (1 << 63) + 1, (1 << 63) + 9];

#[test]
fn labels_beyond_i64_are_exact_in_all_formats() {
    let folder = temp_dir();
    let folder = folder.path();
    let label = |row: usize| LABELS[row % 3];
    let x: Vec<f64> = (0..90).map(|row| f64::from(row % 3) - 1.0).collect();
    let csv: String = (0..90).map(|row| format!("{},{}\n", x[row], label(row))).collect();
    write(folder, "rows.csv", &format!("f0,label\n{csv}"));
    let json: String =
        (0..90).map(|row| format!("{{\"f0\":{},\"label\":{}}}\n", x[row], label(row))).collect();
    write(folder, "rows.jsonl", &json);
    let mut y = npy_with("{'descr': '<u8', 'fortran_order': False, 'shape': (90,), }");
    y.extend((0..90).flat_map(|row| label(row).to_le_bytes()));
    fs::write(
        folder.join("rows.npz"),
        npz(&[("x", &npy(Element::F64, false, &[90, 1], &x)), ("y", &y)], false),
    )
    .unwrap();
    #[cfg_attr(not(feature = "parquet"), allow(unused_mut))]
    let mut files = vec!["rows.csv", "rows.jsonl", "rows.npz"];
    #[cfg(feature = "parquet")]
    {
        let y = UInt64Array::from_iter_values((0..90).map(label));
        write_parquet(&folder.join("rows.parquet"), &x, Arc::new(y), None);
        files.push("rows.parquet");
    }
    for name in &files {
        let train = format!("train {name} --epochs 300 --hidden 16 --out run --device cpu --overwrite");
        let trained = run_line_ok(folder, &train).stderr;
        assert!(trained.contains("classification of 3 classes"), "{name}: {trained}");
        let inspected = run_line_ok(folder, &format!("data inspect {name} --target label")).stdout;
        assert!(!inspected.contains("task = \"regression\""), "{name}: {inspected}");
        for other in &files {
            let eval =
                run_line_ok(folder, &format!("eval --checkpoint run --data {other} --device cpu")).stdout;
            assert!(eval.contains("90 rows"), "{eval}");
        }
        run_line_ok(
            folder,
            &format!("predict --checkpoint run --data {name} --out p.csv --overwrite --device cpu"),
        );
        let predicted = fs::read_to_string(folder.join("p.csv")).unwrap();
        let rows: Vec<String> = predicted.lines().skip(1).map(str::to_owned).collect();
        assert_eq!(rows, (0..90).map(|row| label(row).to_string()).collect::<Vec<_>>(), "{name}");
    }
    // Next to a fraction they are quantities.
    write(folder, "mixed.csv", &format!("f0,label\n{csv}1,0.5\n"));
    let trained =
        run_line_ok(folder, "train mixed.csv --epochs 1 --hidden 4 --out run --device cpu --overwrite");
    assert!(trained.stderr.contains("task: regression"), "{}", trained.stderr);
}

#[test]
fn inspect_tells_labels_apart_that_f64_rounds() {
    let folder = temp_dir();
    let mut y = npy_with("{'descr': '<i8', 'fortran_order': False, 'shape': (90,), }");
    y.extend((0..90i64).flat_map(|row| ((1 << 53) + row % 3).to_le_bytes()));
    let x = npy(Element::F64, false, &[90, 1], &(0..90).map(f64::from).collect::<Vec<_>>());
    fs::write(folder.path().join("rows.npz"), npz(&[("x", &x), ("y", &y)], false)).unwrap();
    let inspected = run_line_ok(folder.path(), "data inspect rows.npz").stdout;
    for label in ["9007199254740992", "9007199254740993", "9007199254740994"] {
        assert!(inspected.lines().any(|line| line.starts_with(label)), "{label}: {inspected}");
    }
}

#[cfg(feature = "parquet")]
fn write_parquet(path: &Path, x: &[f64], label: ArrayRef, metadata: Option<(&str, &str)>) {
    let columns: [(&str, ArrayRef); 2] = [("f0", Arc::new(Float64Array::from(x.to_vec()))), ("label", label)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
    let schema = Arc::new(Schema::new_with_metadata(batch.schema().fields().clone(), metadata));
    let batch = batch.with_schema(schema.clone()).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[cfg(feature = "parquet")]
#[test]
fn class_names_of_hugging_face_are_the_labels() {
    let folder = temp_dir();
    let folder = folder.path();
    let x: Vec<f64> = (0..90).map(|row| f64::from(row % 2) - 0.5).collect();
    let label = || Arc::new(Int64Array::from_iter_values((0..90).map(|row| row % 2)));
    let features =
        "{\"info\":{\"features\":{\"label\":{\"names\":[\"neg\",\"pos\"],\"_type\":\"ClassLabel\"}}}}";
    write_parquet(&folder.join("rows.parquet"), &x, label(), Some(("huggingface", features)));
    write_parquet(&folder.join("numbers.parquet"), &x, label(), None);
    let train = |name: &str, out: &str, more: &str| {
        run_line_ok(folder, &format!("train {name} --epochs 100 --hidden 16 --out {out} --device cpu {more}"))
            .stderr
    };
    train("rows.parquet", "run", "");
    run_line_ok(folder, "eval --checkpoint run --data rows.parquet --device cpu");
    run_line_ok(folder, "predict --checkpoint run --data rows.parquet --out p.csv --device cpu");
    let predicted = fs::read_to_string(folder.join("p.csv")).unwrap();
    assert_eq!(predicted.lines().skip(1).take(3).collect::<Vec<_>>(), ["neg", "pos", "neg"]);
    let inspected = run_line_ok(folder, "data inspect rows.parquet --target label").stdout;
    assert!(inspected.lines().any(|line| line.starts_with("neg")), "{inspected}");
    // A model of numbers, and one of quantities, take the numbers.
    train("numbers.parquet", "numbers", "");
    run_line_ok(folder, "eval --checkpoint numbers --data rows.parquet --device cpu");
    let trained = train("rows.parquet", "quantity", "--task regression");
    assert!(trained.contains("targets are standardized") && !trained.contains("classes"), "{trained}");
}
