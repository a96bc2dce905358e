//! Columns of Parquet files with gaps and lists, converted to arrays and to text.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use super::typed_tests::{convert, path_of, try_convert};

fn write(path: &str, columns: Vec<(&str, ArrayRef)>) {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn labels() -> (&'static str, ArrayRef) {
    ("label", Arc::new(Int64Array::from(vec![0, 1, 0])))
}

#[test]
fn gaps_are_kept_as_nan_in_a_type_that_holds_the_values() {
    let folder = tempfile::tempdir().unwrap();
    let (from, npz) = (path_of(&folder, "in.parquet"), path_of(&folder, "out.npz"));
    for (large, dtype) in [(300, "f32"), (16_777_217, "f64")] {
        let single: ArrayRef = Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5]));
        let gaps: ArrayRef = match dtype {
            "f32" => Arc::new(Int16Array::from(vec![Some(300), None, Some(-7)])),
            _ => Arc::new(Int32Array::from(vec![Some(large), None, Some(-7)])),
        };
        write(&from, vec![("gaps", gaps), ("single", single), labels()]);
        let message = try_convert(&[&from, &npz, "--overwrite"]).unwrap_err().to_string();
        assert!(message.contains("\"gaps\"") && message.contains("row 1"), "{message}");
        assert!(message.contains("--keep-missing"), "{message}");
        let said = convert(&[&from, &npz, "--overwrite", "--keep-missing"]);
        assert!(said.contains(&format!("features are {dtype}")), "{said}");
        let csv = path_of(&folder, "back.csv");
        convert(&[&npz, &csv, "--overwrite", "--keep-missing"]);
        let want = format!("f0,f1,label\n{large},0.5,0\n,1.5,1\n-7,2.5,0\n");
        assert_eq!(fs::read_to_string(&csv).unwrap(), want);
    }
}

#[test]
fn elements_of_lists_may_be_missing_and_rows_may_lack_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let (from, npz) = (path_of(&folder, "in.parquet"), path_of(&folder, "out.npz"));
    let mut lists = ListBuilder::new(Float64Builder::new());
    lists.append_value([Some(0.1), None]);
    lists.append_null();
    lists.append_value([Some(3.0), Some(1e300)]);
    write(&from, vec![("spectrum", Arc::new(lists.finish())), labels()]);
    let message = try_convert(&[&from, &npz]).unwrap_err().to_string();
    assert!(message.contains("row 0") && message.contains("spectrum"), "{message}");
    assert!(!Path::new(&npz).exists());
    convert(&[&from, &npz, "--keep-missing"]);
    let csv = path_of(&folder, "back.csv");
    convert(&[&npz, &csv, "--keep-missing"]);
    assert_eq!(fs::read_to_string(&csv).unwrap(), "f0,f1,label\n0.1,,0\n,,1\n3,1e300,0\n");
    // Tables with typed columns keep the lists.
    let (copy, again) = (path_of(&folder, "copy.feather"), path_of(&folder, "again.npz"));
    convert(&[&from, &copy]);
    convert(&[&copy, &again, "--keep-missing"]);
    assert_eq!(fs::read(&npz).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn categories_that_arrays_cannot_store_are_refused_before_rows_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let from = path_of(&folder, "in.parquet");
    let city: ArrayRef = Arc::new(StringArray::from(vec!["Rome", "Bern", "Rome"]));
    write(&from, vec![("size", Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5]))), ("city", city), labels()]);
    // Only the description of the columns at the end of the file is intact.
    let mut bytes = fs::read(&from).unwrap();
    bytes[4..100].fill(0xff);
    fs::write(&from, bytes).unwrap();
    let refused = |to: &str| {
        try_convert(&[&from, &path_of(&folder, to), "--categorical", "city"]).unwrap_err().to_string()
    };
    assert!(!refused("out.safetensors").contains("city"), "the rows can be read");
    for to in ["out.npy", "out.npz"] {
        let message = refused(to);
        assert!(message.contains("\"city\"") && message.contains("hint: write to .safetensors"), "{message}");
    }
}
