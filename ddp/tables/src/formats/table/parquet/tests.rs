//! Columns whose types the library reads in another way, or not at all.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Decimal128Type, Float16Type, Int8Type, Int64Type};
use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float16Array, Int8Array,
    ListArray, RecordBatch,
};
use half::f16;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter};
use parquet::basic::{ConvertedType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type as ParquetInt64};
use parquet::file::metadata::{KeyValue, ParquetMetaDataWriter};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::*;

/// All rows of all columns.
fn read(path: &Path) -> RecordBatch {
    let file = ParquetFile::open(path, &ReadOptions::default()).unwrap();
    let roots: Vec<usize> = (0..file.schema().fields().len()).collect();
    for &root in &roots {
        assert_eq!(file.first_list_len(root).unwrap(), None);
    }
    let selection = Selection { roots, lists: Vec::new(), max_len: 0, batch_rows: 99 };
    file.read(&selection).unwrap().next().unwrap().unwrap()
}

#[test]
fn groups_without_columns_are_left_out_and_enumerations_are_texts() {
    let group = |name: &str, fields: Vec<Type>| {
        let fields = fields.into_iter().map(Arc::new).collect();
        Type::group_type_builder(name)
            .with_repetition(Repetition::OPTIONAL)
            .with_fields(fields)
            .build()
            .unwrap()
    };
    let leaf = |name: &str, of, converted| {
        let leaf = Type::primitive_type_builder(name, of).with_repetition(Repetition::REQUIRED);
        leaf.with_converted_type(converted).build().unwrap()
    };
    let fields = vec![
        group("nothing", Vec::new()),
        leaf("kind", PhysicalType::BYTE_ARRAY, ConvertedType::ENUM),
        group("outer", vec![group("inner", Vec::new())]),
        leaf("y", PhysicalType::INT64, ConvertedType::NONE),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let mut writer = SerializedFileWriter::new(
        File::create(&path).unwrap(),
        Arc::new(group("root", fields)),
        Arc::default(),
    )
    .unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let kinds: Vec<ByteArray> = ["red", "blue"].map(ByteArray::from).into();
    column.typed::<ByteArrayType>().write_batch(&kinds, None, None).unwrap();
    column.close().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    column.typed::<ParquetInt64>().write_batch(&[7, 8], None, None).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.close().unwrap();
    let batch = read(&path);
    assert_eq!(batch.schema().fields().iter().map(|field| field.name()).collect::<Vec<_>>(), ["kind", "y"]);
    assert_eq!(batch.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["red", "blue"]);
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &[7, 8]);
}

#[test]
fn categories_of_all_types_are_read_as_their_values() {
    let of = |values: ArrayRef| -> ArrayRef {
        let keys = Int8Array::from(vec![Some(1), None, Some(0)]);
        Arc::new(DictionaryArray::<Int8Type>::try_new(keys, values).unwrap())
    };
    let decimals = Decimal128Array::from(vec![125, 250]).with_precision_and_scale(5, 2).unwrap();
    let halves = Float16Array::from(vec![f16::from_f32(1.5), f16::from_f32(2.5)]);
    let columns = [
        ("truth", of(Arc::new(BooleanArray::from(vec![true, false])))),
        ("decimal", of(Arc::new(decimals))),
        ("half", of(Arc::new(halves))),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let batch = read(&path);
    let truths: Vec<_> = batch.column(0).as_boolean().iter().collect();
    assert_eq!(truths, [Some(false), None, Some(true)]);
    let decimals: Vec<_> = batch.column(1).as_primitive::<Decimal128Type>().iter().collect();
    assert_eq!(decimals, [Some(250), None, Some(125)]);
    let halves: Vec<_> = batch.column(2).as_primitive::<Float16Type>().iter().collect();
    assert_eq!(halves, [Some(f16::from_f32(2.5)), None, Some(f16::from_f32(1.5))]);
}

#[test]
fn lists_after_many_rows_without_one_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    for (n_null, lists) in [(1500, vec![3, 3]), (1500, vec![1, 1]), (5000, vec![2; 3000]), (0, vec![4])] {
        let list = |len: &usize| Some(vec![Some(1i64); *len]);
        let rows = std::iter::repeat_n(None, n_null).chain(lists.iter().map(list));
        let lists_of: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows));
        let batch = RecordBatch::try_from_iter([("x", lists_of)]).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(2000)).build();
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let file = ParquetFile::open(&path, &ReadOptions::default()).unwrap();
        assert_eq!(file.first_list_len(0).unwrap(), Some(lists[0]), "after {n_null} rows");
    }
}

/// Files of polars have them: the library does not know the type, and would skip the schema of all columns.
#[test]
fn integers_of_128_bits_are_read_as_decimals() {
    // Made by Python's flatbuffers: one column `y` of signed integers of 128 bits.
    const SCHEMA: &str = "/////3gAAAAQAAAAAAAKAAwACgAJAAQACgAAABAAAAAAAQQACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAB\
         AAAAAPAAgAAAAEABAAAAAQAAAAGAAAAAAAAAIcAAAAAAAAAAgADAAIAAcACAAAAAAAAAGAAAAAAQAAAHkAAAA=";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let bytes = [1 << 70, -3i128].map(i128::to_le_bytes);
    let column = FixedSizeBinaryArray::try_from_iter(bytes.into_iter()).unwrap();
    let batch =
        RecordBatch::try_from_iter_with_nullable([("y", Arc::new(column) as ArrayRef, true)]).unwrap();
    let schema = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), SCHEMA.to_owned());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![schema])).build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert_eq!(read(&path).column(0).as_primitive::<Decimal128Type>().values(), &[1 << 70, -3]);
}

#[test]
fn a_dictionary_at_byte_0_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let column: ArrayRef = Arc::new(Int8Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let metadata = writer.close().unwrap();
    let group = metadata.row_group(0);
    let column = group.column(0).clone().into_builder();
    let column = column.set_dictionary_page_offset(Some(0)).set_column_index_offset(None);
    let column = column.set_offset_index_offset(None).build().unwrap();
    let group = group.clone().into_builder().set_column_metadata(vec![column]).build().unwrap();
    let metadata = metadata.into_builder().set_row_groups(vec![group]).build();
    let mut bytes = std::fs::read(&path).unwrap();
    let (len, _) = bytes[bytes.len() - 8..].split_first_chunk::<4>().unwrap();
    bytes.truncate(bytes.len() - 8 - u32::from_le_bytes(*len) as usize);
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(read(&path).column(0).as_primitive::<Int8Type>().values(), &[1, 2]);
}

#[test]
fn columns_and_row_groups_are_decoded_side_by_side_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let n_rows = 1000i64;
    let column = |of: i64| -> ArrayRef {
        Arc::new(arrow_array::Int64Array::from_iter_values((0..n_rows).map(|row| row + of)))
    };
    let batch = RecordBatch::try_from_iter((0..3).map(|at| (format!("x{at}"), column(10_000 * at)))).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(70))
        .set_dictionary_enabled(false)
        .set_compression(Compression::UNCOMPRESSED)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let all = |roots: &[usize]| -> Result<Vec<Vec<i64>>> {
        let file = ParquetFile::open(&path, &ReadOptions::default())?;
        let selection = Selection { roots: roots.to_vec(), lists: Vec::new(), max_len: 0, batch_rows: 32 };
        let mut values = vec![Vec::new(); roots.len()];
        for batch in file.read(&selection)? {
            let batch = batch?;
            assert_eq!(batch.schema().field(0).name(), &format!("x{}", roots[0]));
            for (values, column) in values.iter_mut().zip(batch.columns()) {
                values.extend_from_slice(column.as_primitive::<Int64Type>().values());
            }
        }
        Ok(values)
    };
    let with_threads = |n, roots: &[usize]| parallel::with_threads(n, || all(roots));
    for roots in [&[0, 1, 2][..], &[0, 2], &[1]] {
        let want: Vec<Vec<i64>> =
            roots.iter().map(|&at| (0..n_rows).map(|row| row + 10_000 * at as i64).collect()).collect();
        for n_threads in [1, 2, 3, 5, 40] {
            assert_eq!(with_threads(n_threads, roots).unwrap(), want, "{roots:?}, {n_threads} threads");
        }
    }
    // A page in the middle of the file.
    let mut bytes = std::fs::read(&path).unwrap();
    let page = bytes.windows(8).position(|word| word == 140i64.to_le_bytes()).unwrap();
    bytes[page - 40..page - 4].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let want = with_threads(1, &[0]).unwrap_err().to_string();
    for (n_threads, roots) in [(2, &[0][..]), (5, &[0]), (2, &[0, 1, 2]), (3, &[0, 1, 2])] {
        assert_eq!(with_threads(n_threads, roots).unwrap_err().to_string(), want, "{n_threads} threads");
    }
}
