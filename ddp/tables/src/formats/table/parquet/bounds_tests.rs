//! Files just past each bound: they are valid, or the library refuses them too.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, StructArray, new_null_array};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;

use super::*;

/// Writes one column without limits on the size of a page.
fn write(path: &Path, column: &ArrayRef, has_dictionary: bool) -> ParquetMetaData {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(has_dictionary)
        .set_max_row_group_row_count(None)
        .set_data_page_size_limit(usize::MAX)
        .set_data_page_row_count_limit(usize::MAX);
    let batch = RecordBatch::try_from_iter_with_nullable([("x", column.clone(), true)]).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap()
}

/// Reads all rows with a memory of `mib`, and returns their number or the error.
fn read(path: &Path, mib: u64) -> Result<usize, String> {
    let options = ReadOptions { memory_bytes: mib << 20, ..ReadOptions::default() };
    let all = || -> Result<usize> {
        let file = ParquetFile::open(path, &options)?;
        let selection = Selection { roots: vec![0], lists: Vec::new(), max_len: 0, batch_rows: 1 << 16 };
        file.read(&selection)?.map(|batch| Ok(batch?.num_rows())).sum()
    };
    all().map_err(|error| error.to_string())
}

#[track_caller]
fn refuses(path: &Path, mib: u64, parts: &[&str]) {
    let error = read(path, mib).unwrap_err();
    assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
}

#[test]
fn schemas_are_at_most_64_groups_deep() {
    // Without optimization the decoder takes more stack than a test has, and as a main thread has.
    let main = std::thread::Builder::new().stack_size(8 << 20);
    main.spawn(deep_schemas).unwrap().join().unwrap();
}

fn deep_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep.parquet");
    for (n_structs, is_good) in [(63, true), (64, false)] {
        let mut column: ArrayRef = Arc::new(Float64Array::from(vec![1.5; 3]));
        for _ in 0..n_structs {
            let field = Arc::new(Field::new("s", column.data_type().clone(), true));
            column = Arc::new(StructArray::from(vec![(field, column)]));
        }
        write(&path, &column, false);
        if is_good {
            assert_eq!(read(&path, 1), Ok(3));
        } else {
            refuses(&path, 1, &["deep.parquet", "its schema is nested 65 deep, expected at most 64"]);
        }
    }
}

#[test]
fn counts_in_the_footer_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let column: ArrayRef = Arc::new(Float64Array::from(vec![1.5; 3]));
    write(&path, &column, false);
    let good = std::fs::read(&path).unwrap();
    assert_eq!(read(&path, 1), Ok(3));
    // One byte longer than all that is before it.
    let (mut bytes, tail) = (good.clone(), good.len() - 8);
    bytes[tail..tail + 4].copy_from_slice(&(tail as u32 + 1).to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    refuses(&path, 1, &[&format!("its footer claims {} bytes of {}", tail + 1, good.len())]);
    // Two columns, in a schema of the root and one column: 2 and 4 are 1 and 2 in the file's form of numbers.
    let mut bytes = good.clone();
    let name = b"arrow_schema";
    let at = good.windows(name.len()).rposition(|bytes| bytes == name).unwrap() + name.len();
    assert_eq!(bytes[at..at + 2], [0x15, 2]);
    bytes[at + 1] = 4;
    std::fs::write(&path, bytes).unwrap();
    refuses(&path, 1, &["a group claims 2 columns, and the schema has 2 parts"]);
}

#[test]
fn pages_fit_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.parquet");
    // 65 MiB of zeros, and as many bytes of missing values.
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0; 65 << 17]));
    let missing = new_null_array(&DataType::FixedSizeBinary(1 << 20), 65);
    for column in [zeros, missing] {
        write(&path, &column, false);
        assert!(std::fs::metadata(&path).unwrap().len() < 10 << 20);
        refuses(&path, 1, &["MiB of memory to decode a page", "allows 64"]);
        assert_eq!(read(&path, 66), Ok(column.len()));
    }
}

#[test]
fn dictionaries_hold_as_many_values_as_they_claim() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let column: ArrayRef = Arc::new((0..99).map(|row| f64::from(row % 3)).collect::<Float64Array>());
    let metadata = write(&path, &column, true);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = metadata.row_group(0).column(0).dictionary_page_offset().unwrap() as usize;
    // The header of a dictionary page of three values in 24 bytes, which 6 and 48 are in the file's form.
    let (kind, rest) = bytes[at..].split_at(4);
    assert_eq!(kind, [0x15, 4, 0x15, 48]);
    let count = rest
        .windows(3)
        .position(|bytes| bytes == [0x4c, 0x15, 6])
        .or_else(|| rest.windows(3).position(|bytes| bytes == [0x3c, 0x15, 6]));
    bytes[at + 4 + count.unwrap() + 2] = 50;
    std::fs::write(&path, bytes).unwrap();
    refuses(&path, 1, &["row group 0, column \"x\": a page claims a dictionary of 25 values in 24 bytes"]);
}
