//! Columns of all types: what they become, and which are refused by name.

use std::fs;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Float16Builder, Float32Builder, ListBuilder};
use arrow_array::{types, *};
use half::f16;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::data_type::{Int32Type, Int96, Int96Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::table::large::tests::{all, assert_refused, open_whole, write};

#[test]
fn all_types_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("types.parquet");
    let half = Float16Array::from(vec![f16::from_f32(0.5), f16::from_f32(-1.5)]);
    let dictionary: DictionaryArray<types::UInt8Type> =
        DictionaryArray::new(UInt8Array::from(vec![1, 0]), Arc::new(Float64Array::from(vec![2.5, 7.5])));
    let mut fixed = FixedSizeListBuilder::new(Float16Builder::new(), 2);
    let mut list = ListBuilder::new(Float32Builder::new());
    for row in 0..2 {
        for k in 0..2 {
            fixed.values().append_value(f16::from_f32((10 * row + k) as f32));
            list.values().append_value((100 * row + k) as f32);
        }
        list.values().append_value(9.0);
        fixed.append(true);
        list.append(true);
    }
    let decimal = Decimal128Array::from(vec![150, -25]).with_precision_and_scale(10, 2).unwrap();
    let long =
        Decimal256Array::from(vec![long_integer(125), long_integer(-5)]).with_precision_and_scale(60, 1);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(Int8Array::from(vec![-1, 2]))),
        ("i16", Arc::new(Int16Array::from(vec![-300, 300]))),
        ("i32", Arc::new(Int32Array::from(vec![-70_000, 16_777_217]))),
        ("i64", Arc::new(Int64Array::from(vec![1 << 40, -5]))),
        ("u8", Arc::new(UInt8Array::from(vec![255, 0]))),
        ("u16", Arc::new(UInt16Array::from(vec![65_535, 0]))),
        ("u32", Arc::new(UInt32Array::from(vec![u32::MAX, 0]))),
        ("u64", Arc::new(UInt64Array::from(vec![u64::MAX, 0]))),
        ("f16", Arc::new(half)),
        ("f32", Arc::new(Float32Array::from(vec![0.1, -0.0]))),
        ("f64", Arc::new(Float64Array::from(vec![0.1, 1e-300]))),
        ("yes", Arc::new(BooleanArray::from(vec![true, false]))),
        ("decimal", Arc::new(decimal)),
        ("long", Arc::new(long.unwrap())),
        ("dictionary", Arc::new(dictionary)),
        ("fixed", Arc::new(fixed.finish())),
        ("list", Arc::new(list.finish())),
        ("when", Arc::new(TimestampSecondArray::from(vec![1, 2]))),
        ("label", Arc::new(UInt64Array::from(vec![1, 0]))),
    ];
    write(&path, columns, 10);
    let rows = open_whole(&path, &["data.target=label", "data.drop=[\"when\"]"]).unwrap();
    let (x, labels, _) = all(&*rows);
    let expected = [
        [
            -1.0,
            -300.0,
            -70_000.0,
            1.0995116e12,
            255.0,
            65_535.0,
            4.2949673e9,
            1.8446744e19,
            0.5,
            0.1,
            0.1,
            1.0,
            1.5,
            12.5,
        ]
        .as_slice(),
        &[7.5, 0.0, 1.0, 0.0, 1.0, 9.0],
        &[2.0, 300.0, 16_777_216.0, -5.0, 0.0, 0.0, 0.0, 0.0, -1.5, -0.0, 0.0, 0.0, -0.25, -0.5],
        &[2.5, 10.0, 11.0, 100.0, 101.0, 9.0],
    ];
    assert_eq!(x, expected.concat());
    assert_eq!(labels, [1.0, 0.0]);
    assert_eq!(
        rows.layout().features[14..],
        ["dictionary", "fixed[0]", "fixed[1]", "list[0]", "list[1]", "list[2]"]
    );

    assert_eq!(open_whole(&path, &["data.target=label"]).unwrap().layout().features[20], "when");
    let drop = "data.drop=[\"when\"]";
    assert_refused(
        open_whole(&path, &["data.target=lebel", drop]),
        &["no target column \"lebel\"", "\"label\""],
    );
    assert_refused(
        open_whole(&path, &["data.target=label", drop, "data.weight=list"]),
        &["column \"list\"", "one number per row"],
    );
    let cats = "data.categorical=[\"i8\", \"yes\", \"f64\"]";
    let rows = open_whole(&path, &["data.target=label", drop, cats]).unwrap();
    let texts: Vec<_> = rows.layout().categories.iter().map(|c| c.vocabulary.values().to_vec()).collect();
    assert_eq!(texts, [["-1", "2"], ["0.1", "1e-300"], ["False", "True"]]);
}

#[test]
fn numbers_beyond_f32_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.parquet");
    let list = ListArray::from_iter_primitive::<types::Float64Type, _, _>([
        Some(vec![Some(1.0), Some(2.0)]),
        Some(vec![Some(3.0), Some(-1e44)]),
    ]);
    let x: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 1e44]));
    let infinite: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::INFINITY]));
    for (x, parts) in [
        (x, ["row 1, column \"x\"", "got \"1e44\"", "the largest number is 3.4e38"]),
        (Arc::new(list) as ArrayRef, ["row 1, column \"x\"", "got \"-1e44\"", "3.4e38"]),
        (infinite, ["row 1", "column \"x\"", "got inf"]),
    ] {
        write(&path, vec![("x", x), ("label", Arc::new(Int64Array::from(vec![0, 1])))], 10);
        assert_refused(open_whole(&path, &["data.target=label"]), &parts);
    }
}

#[test]
fn labels_of_decimals_and_durations_keep_their_digits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels.parquet");
    let (a, b) = (1_700_000_000i64, 1_700_000_001);
    let cases: Vec<ArrayRef> = vec![
        Arc::new(Decimal64Array::from(vec![a, b]).with_precision_and_scale(12, 0).unwrap()),
        Arc::new(
            Decimal128Array::from(vec![i128::from(a), i128::from(b)])
                .with_precision_and_scale(20, 0)
                .unwrap(),
        ),
        Arc::new(
            Decimal128Array::from(vec![i128::from(a) * 100, i128::from(b) * 100])
                .with_precision_and_scale(20, 2)
                .unwrap(),
        ),
        Arc::new(DurationSecondArray::from(vec![a, b])),
        Arc::new(DurationMillisecondArray::from(vec![1000 * a, 1000 * b])),
    ];
    for array in cases {
        let label = array.data_type().to_string();
        write(&path, vec![("x", Arc::new(Float32Array::from(vec![0.5, 1.5]))), ("label", array)], 10);
        let rows = open_whole(&path, &["data.target=label", "data.task=classification"]).unwrap();
        let labels = rows.layout().labels.as_ref().unwrap().labels().map(|label| label.to_string());
        assert_eq!(labels.collect::<Vec<_>>(), [a.to_string(), b.to_string()], "{label}");
    }
    let array = UInt64Array::from(vec![5, 1 << 63]);
    let x: ArrayRef = Arc::new(Float32Array::from(vec![0.5, 1.5]));
    write(&path, vec![("x", x), ("label", Arc::new(array))], 10);
    let rows = open_whole(&path, &["data.target=label", "data.task=classification"]).unwrap();
    let labels = rows.layout().labels.as_ref().unwrap().labels().map(|label| label.to_string());
    assert_eq!(labels.collect::<Vec<_>>(), ["5", "9223372036854775808"], "as in text");
    // Exact in f64 neither.
    let (a, b) = ((1i128 << 60) + 1, (1i128 << 60) + 2);
    let array = Decimal128Array::from(vec![a, b]).with_precision_and_scale(30, 0).unwrap();
    let x: ArrayRef = Arc::new(Float32Array::from(vec![0.5, 1.5]));
    write(&path, vec![("x", x), ("label", Arc::new(array))], 10);
    let rows = open_whole(&path, &["data.target=label", "data.task=classification"]).unwrap();
    assert_eq!(rows.layout().labels.as_ref().unwrap().len(), 2);
}

#[test]
fn categories_with_a_fraction_of_zeros_are_whole_numbers_as_in_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("categories.parquet");
    let texts = ["1", "1.0", "2.50", "a.0"];
    let dictionary: DictionaryArray<types::Int8Type> = texts.into_iter().collect();
    for array in [Arc::new(StringArray::from(texts.to_vec())) as ArrayRef, Arc::new(dictionary)] {
        write(&path, vec![("kind", array), ("label", Arc::new(Int8Array::from(vec![0, 1, 0, 1])))], 10);
        let rows = open_whole(&path, &["data.target=label", "data.categorical=kind"]).unwrap();
        assert_eq!(rows.layout().categories[0].vocabulary.values(), ["1", "2.50", "a.0"]);
        let (x, ..) = all(&*rows);
        assert_eq!(x, [1.0, 1.0, 2.0, 3.0]);
    }
}

fn long_integer(value: i8) -> <types::Decimal256Type as ArrowPrimitiveType>::Native {
    value.into()
}

#[test]
fn missing_values_are_named_or_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nulls.parquet");
    let mut list = ListBuilder::new(Float32Builder::new());
    for row in 0..4 {
        list.values().append_value(row as f32);
        list.values().append_option((row != 2).then_some(1.0));
        list.append(row != 1);
    }
    // A missing list has no elements.
    let lists = list.finish();
    let keys: DictionaryArray<types::Int8Type> =
        [Some("b"), None, Some(" a "), Some("b")].into_iter().collect();
    let columns = |label: Vec<Option<i32>>| -> Vec<(&str, ArrayRef)> {
        vec![
            ("x", Arc::new(Int32Array::from(vec![Some(1), Some(2), Some(3), None]))),
            ("nan", Arc::new(Float32Array::from(vec![1.0, f32::NAN, 3.0, 4.0]))),
            ("lists", Arc::new(lists.clone())),
            ("kind", Arc::new(keys.clone())),
            ("none", new_null_array(&arrow_schema::DataType::Null, 4)),
            ("label", Arc::new(Int32Array::from(label))),
        ]
    };
    write(&path, columns(vec![Some(0), Some(1), Some(2), Some(1)]), 3);
    let sets = ["data.target=label", "data.missing=mean", "data.categorical=[\"kind\"]"];
    let rows = open_whole(&path, &sets).unwrap();
    let (x, labels, _) = all(&*rows);
    let shown: Vec<String> = x.chunks(6).map(|row| format!("{row:?}")).collect();
    assert_eq!(
        shown,
        [
            "[1.0, 1.0, 0.0, 1.0, 2.0, NaN]",
            "[2.0, NaN, NaN, NaN, 0.0, NaN]",
            "[3.0, 3.0, 2.0, NaN, 1.0, NaN]",
            "[NaN, 4.0, 3.0, 1.0, 2.0, NaN]",
        ]
    );
    assert_eq!(labels, [0.0, 1.0, 2.0, 1.0]);

    let refused = |drop: &str, parts: &[&str]| {
        let drop = format!("data.drop=[{drop}]");
        assert_refused(
            open_whole(&path, &["data.target=label", "data.categorical=[\"kind\"]", &drop]),
            parts,
        );
    };
    refused("\"nan\", \"lists\", \"none\"", &["row 3, column \"x\"", "missing", "data.missing"]);
    refused("\"x\", \"lists\", \"none\"", &["row 1, column \"nan\"", "got NaN"]);
    refused("\"x\", \"nan\", \"none\"", &["row 1, column \"lists\"", "missing"]);
    refused("\"x\", \"nan\", \"lists\"", &["row 0, column \"none\"", "missing"]);

    write(&path, columns(vec![Some(0), Some(1), None, Some(1)]), 3);
    assert_refused(open_whole(&path, &sets), &["row 2, column \"label\"", "missing"]);
    write(&path, columns(vec![Some(0), Some(-1), Some(1), Some(1)]), 1);
    let numbered = [&sets[..], &["data.classes=2"]].concat();
    assert_refused(open_whole(&path, &numbered), &["row 1, column \"label\": expected a class number of 0"]);
}

#[test]
fn columns_that_cant_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let texts = || Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
    let numbers = || Arc::new(Float64Array::from(vec![0.0, 1.0])) as ArrayRef;
    let nested = StructArray::from(vec![(
        Arc::new(arrow_schema::Field::new("inner", arrow_schema::DataType::Float64, true)),
        numbers(),
    )]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("text", texts()),
        ("number", numbers()),
        ("nested", Arc::new(nested)),
        ("huge", Arc::new(Float64Array::from(vec![0.5, 1e300]))),
    ];
    write(&path, columns, 10);
    let open = |sets: &[&str]| open_whole(&path, sets);
    assert_refused(
        open(&["data.target=number"]),
        &["column \"text\": expected numbers", "data.categorical", "data.drop"],
    );
    assert_refused(
        open(&["data.target=text", "data.drop=[\"nested\"]"]),
        &["row 1, column \"huge\"", "finite"],
    );
    let text = "data.categorical=[\"text\"]";
    assert_refused(
        open(&["data.target=number", text]),
        &["column \"nested\"", "Struct", "split it into columns"],
    );
    let nested = "data.drop=[\"nested\"]";
    assert_refused(open(&["data.target=number", text, nested]), &["row 1, column \"huge\"", "finite"]);
    let drops = "data.drop=[\"nested\", \"huge\"]";
    assert_refused(
        open(&["data.target=huge", "data.task=classification", nested, text]),
        &["row 0, column \"huge\": expected a whole class number, got 0.5"],
    );
    assert_refused(open(&["data.target=number", text, "data.drop=[\"nope\"]"]), &["\"nope\"", "data.drop"]);
    assert!(open(&["data.target=number", text, drops]).is_ok());

    // Shards of other types and names.
    write(
        &folder.path().join("shard2.parquet"),
        vec![("text", texts()), ("number", texts()), ("nested", texts()), ("huge", numbers())],
        5,
    );
    let drops = "data.drop=[\"nested\", \"number\"]";
    let sets = ["data.target=huge", "data.task=regression", text, drops];
    assert!(open_whole(folder.path(), &sets).is_err());
    write(
        &folder.path().join("shard2.parquet"),
        vec![("text", texts()), ("number", numbers()), ("nested", texts()), ("huge", texts())],
        5,
    );
    assert_refused(open_whole(folder.path(), &sets), &["don't match", "\"huge\" is Float64 in one and Utf8"]);
    write(&folder.path().join("shard2.parquet"), vec![("number", numbers())], 5);
    assert!(open_whole(folder.path(), &sets).is_err());
    fs::remove_file(folder.path().join("shard2.parquet")).unwrap();

    write(
        &path,
        vec![
            ("x", Arc::new(Int8Array::from(Vec::<i8>::new()))),
            ("label", Arc::new(Int8Array::from(Vec::<i8>::new()))),
        ],
        5,
    );
    assert_refused(open_whole(&path, &["data.target=label"]), &["has no rows"]);
    write(&path, vec![("x", numbers()), ("label", Arc::new(Int8Array::from(vec![0, 0])))], 5);
    assert_refused(open_whole(&path, &["data.target=label"]), &["all 2 rows have label 0"]);
}

#[test]
fn an_arrow_schema_that_contradicts_the_file_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let column = |values: [i32; 2]| Arc::new(Int32Array::from(values.to_vec())) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("x", column([7, 8])), ("label", column([0, 1]))]).unwrap();
    let schema = KeyValue::new("ARROW:schema".to_owned(), "bm90IGEgc2NoZW1h".to_owned());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![schema])).build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let file = fs::File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let rows = open_whole(&path, &["data.target=label"]).unwrap();
    assert_eq!(all(&*rows).0, [7.0, 8.0]);
}

#[test]
fn times_of_spark_do_not_wrap_after_2262() {
    /// Julian day of 1970-01-01, and days until 9999-12-31.
    const EPOCH_DAY: i64 = 2_440_588;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.parquet");
    let schema = parse_message_type("message rows { required int96 when; required int32 label; }").unwrap();
    let file = fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let times = [(1, 0u64), (2_932_896, 86_399_999_999_000)].map(|(days, nanoseconds)| {
        let mut time = Int96::new();
        time.set_data(nanoseconds as u32, (nanoseconds >> 32) as u32, (EPOCH_DAY + days) as u32);
        time
    });
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int96Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[0, 1], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let rows = open_whole(&path, &["data.target=label"]).unwrap();
    // 9999-12-31T23:59:59.999999
    assert_eq!(all(&*rows).0, [86_400.0, 253_402_300_800.0]);
}

#[test]
fn lists_keep_digits_that_f32_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lists.parquet");
    let lists: ListArray = ListArray::from_iter_primitive::<types::Int64Type, _, _>(
        (0..4).map(|k| Some(vec![Some(1_700_000_000 + 3 * k), Some(0)])),
    );
    let labels = Int64Array::from(vec![0, 1, 0, 1]);
    write(&path, vec![("e", Arc::new(lists)), ("label", Arc::new(labels))], 10);
    let rows = open_whole(&path, &["data.target=label"]).unwrap();
    let mut exact = [0.0; 8];
    assert!(rows.gather_doubles(&[0, 1, 2, 3], &[1_700_000_000.0, 0.0], &mut exact).unwrap());
    assert_eq!(exact, [0.0, 0.0, 3.0, 0.0, 6.0, 0.0, 9.0, 0.0]);
}

#[test]
fn labels_and_categories_of_dates_are_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dates.parquet");
    let days: ArrayRef = Arc::new(Date32Array::from(vec![0, 1, 0]));
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![Some(1_500_000), None, Some(0)]));
    let prices = Decimal128Array::from(vec![150, 200, 150]).with_precision_and_scale(9, 2).unwrap();
    let keys = Int8Array::from(vec![0, 0, 1]);
    let of_keys: ArrayRef = Arc::new(DictionaryArray::<types::Int8Type>::new(keys, days.clone()));
    let columns = vec![("when", times), ("price", Arc::new(prices)), ("key", of_keys), ("day", days)];
    write(&path, columns, 10);
    let sets = ["data.target=day", "data.categorical=[\"when\", \"price\", \"key\"]"];
    let rows = open_whole(&path, &sets).unwrap();
    let values = |at: usize| rows.layout().categories[at].vocabulary.values().to_vec();
    assert_eq!(values(0), ["1970-01-01 00:00:00", "1970-01-01 00:00:01.5"]);
    assert_eq!(
        (values(1), values(2)),
        (vec!["1.50".to_owned(), "2".to_owned()], vec!["1970-01-01".to_owned(), "1970-01-02".to_owned()])
    );
    let labels = rows.layout().labels.clone().unwrap();
    assert_eq!([labels.name(0).to_string(), labels.name(1).to_string()], ["1970-01-01", "1970-01-02"]);
    let (x, y, _) = all(&*rows);
    assert_eq!((x, y), (vec![2.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 2.0], vec![0.0, 1.0, 0.0]));
}
