//! Shards whose types differ, and texts that are dates.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{types, *};
use ddp::config::Config;
use ddp::data::Dataset;
use ddp::data::column_kind::ColumnKind;
use ddp::data::error::Result;

use crate::source::{KnownFeatures, SourceSpec};
use crate::table::batches::arrays::to_date_parts;
use crate::table::large::tests::{all, assert_refused, open_whole, write};
use crate::values::time::PARTS;

/// Opens a folder of two files whose column "x" is `a` and `b`, in both orders; the labels follow the rows.
fn both(a: ArrayRef, b: ArrayRef, sets: &[&str]) -> [Result<Arc<dyn Dataset>>; 2] {
    let open = |first: &ArrayRef, second: &ArrayRef| {
        let folder = tempfile::tempdir().unwrap();
        for (file, x) in [("a.parquet", first), ("b.parquet", second)] {
            let labels = Int64Array::from_iter_values((0..x.len() as i64).map(|row| row % 2));
            let other = Float32Array::from_iter_values((0..x.len()).map(|row| row as f32));
            let columns: Vec<(&str, ArrayRef)> =
                vec![("x", x.clone()), ("other", Arc::new(other)), ("label", Arc::new(labels))];
            write(&folder.path().join(file), columns, 2);
        }
        open_whole(folder.path(), &[&["data.missing=zero"], sets].concat())
    };
    [open(&a, &b), open(&b, &a)]
}

/// The values of "x", sorted, NaN first.
fn values(rows: &dyn Dataset) -> Vec<f32> {
    let mut x: Vec<f32> =
        all(rows).0.into_iter().step_by(2).map(|x| if x.is_nan() { -9.0 } else { x }).collect();
    x.sort_by(f32::total_cmp);
    x
}

#[test]
fn lists_of_both_lengths_of_offsets_are_one_type() {
    let rows = [Some(vec![Some(1.0), Some(2.0)]), Some(vec![Some(3.0), Some(4.0)])];
    let list = ListArray::from_iter_primitive::<types::Float64Type, _, _>(rows.clone());
    let large = LargeListArray::from_iter_primitive::<types::Float64Type, _, _>(rows);
    for rows in both(Arc::new(list.slice(1, 1)), Arc::new(large), &[]) {
        let rows = rows.unwrap();
        let (x, _, _) = all(&*rows);
        assert_eq!(rows.layout().features[..2], ["x[0]", "x[1]"]);
        assert_eq!(x.chunks(3).filter(|row| row[..2] == [3.0, 4.0]).count(), 2);
    }
}

#[test]
fn shards_of_other_types_are_widened() {
    let time = |values: Vec<i64>| TimestampMicrosecondArray::from(values);
    let cases: Vec<(ArrayRef, ArrayRef, Vec<f32>, &str)> = vec![
        (
            Arc::new(Int64Array::from(vec![1, 2])),
            Arc::new(Float64Array::from(vec![Some(0.5), None])),
            vec![-9.0, 0.5, 1.0, 2.0],
            "Float64",
        ),
        (
            Arc::new(NullArray::new(2)),
            Arc::new(Int64Array::from(vec![1, 2])),
            vec![-9.0, -9.0, 1.0, 2.0],
            "Int64",
        ),
        (
            Arc::new(Int8Array::from(vec![5, -6])),
            Arc::new(BooleanArray::from(vec![true, false])),
            vec![-6.0, 0.0, 1.0, 5.0],
            "Int64",
        ),
        (
            Arc::new(Float32Array::from(vec![0.5, 2.0])),
            Arc::new(Float64Array::from(vec![0.25, 3.0])),
            vec![0.25, 0.5, 2.0, 3.0],
            "Float64",
        ),
        (
            Arc::new(time(vec![1_000_000, 2_000_000])),
            Arc::new(TimestampNanosecondArray::from(vec![3_000_000_000, 4_000_000_000])),
            vec![1.0, 2.0, 3.0, 4.0],
            "ns",
        ),
        (
            Arc::new(time(vec![0, i64::MAX])),
            Arc::new(Date32Array::from(vec![1, i32::MAX])),
            vec![-9.0, -9.0, 0.0, 86_400.0],
            "µs",
        ),
        (
            Arc::new(Decimal128Array::from(vec![150, 25]).with_precision_and_scale(10, 2).unwrap()),
            Arc::new(Decimal64Array::from(vec![5, 10]).with_precision_and_scale(9, 1).unwrap()),
            vec![0.25, 0.5, 1.0, 1.5],
            "Decimal128(10, 2)",
        ),
    ];
    for (a, b, expected, common) in cases {
        for rows in both(a, b, &[]) {
            let rows = rows.unwrap();
            assert_eq!(values(&*rows), expected, "{common}");
            let notes = &rows.layout().left_out;
            assert!(notes.len() == 1 && notes[0].contains("\"x\"") && notes[0].contains(common), "{notes:?}");
        }
    }
}

#[test]
fn texts_and_dictionaries_of_texts_are_the_same_categories() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["b", "a"]));
    let narrow: ArrayRef = Arc::new(["a", "c"].into_iter().collect::<DictionaryArray<types::Int8Type>>());
    let wide: ArrayRef = Arc::new(["c", "d"].into_iter().collect::<DictionaryArray<types::Int16Type>>());
    for (a, b, expected) in [(&texts, &narrow, &["a", "b", "c"][..]), (&narrow, &wide, &["a", "c", "d"])] {
        for rows in both(a.clone(), b.clone(), &["data.categorical=x"]) {
            assert_eq!(rows.unwrap().layout().categories[0].vocabulary.values(), expected);
        }
    }
}

#[test]
fn truth_values_beside_whole_numbers_are_two_classes() {
    for rows in both(
        Arc::new(BooleanArray::from(vec![true, false])),
        Arc::new(Int8Array::from(vec![1, 0])),
        &["data.target=x", "data.drop=label"],
    ) {
        assert_eq!(all(&*rows.unwrap()).1, [1.0, 0.0, 1.0, 0.0]);
    }
}

#[test]
fn values_without_a_common_type_are_refused() {
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![1, (1 << 53) + 1]));
    for rows in both(wide, Arc::new(Float64Array::from(vec![0.5, 2.0])), &[]) {
        assert_refused(rows, &[".parquet`, row 1, column \"x\": 9007199254740993 is not exact as Float64"]);
    }
    let late: ArrayRef = Arc::new(TimestampSecondArray::from(vec![0, 253_402_300_799]));
    for rows in both(late, Arc::new(TimestampNanosecondArray::from(vec![0, 1])), &[]) {
        assert_refused(rows, &["row 1, column \"x\": 9999-12-31 23:59:59 is not exact"]);
    }
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["b", "a"]));
    for rows in both(texts.clone(), Arc::new(Int64Array::from(vec![1, 2])), &["data.categorical=x"]) {
        assert_refused(
            rows,
            &["a.parquet", "b.parquet", "column \"x\" is", "Utf8", "Int64", "no type holds both"],
        );
    }
    for rows in both(texts, Arc::new(Int64Array::from(vec![1, 2])), &["data.drop=x"]) {
        assert_eq!(rows.unwrap().layout().features, ["other"]);
    }
}

#[test]
fn files_without_rows_are_left_out_whatever_their_types() {
    let texts: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    for rows in both(texts, Arc::new(Int64Array::from(vec![1, 2])), &[]) {
        let rows = rows.unwrap();
        assert_eq!(values(&*rows), [1.0, 2.0]);
        assert!(rows.layout().left_out[0].contains("left out 1 file that has no rows"));
    }
}

fn open_x(folder: &Path, x: ArrayRef, sets: &[&str]) -> Result<Arc<dyn Dataset>> {
    let path = folder.join("x.parquet");
    let labels = Int64Array::from_iter_values((0..x.len() as i64).map(|row| row % 2));
    write(&path, vec![("x", x), ("label", Arc::new(labels))], 10);
    open_whole(&path, sets)
}

#[test]
fn texts_of_dates_are_dates() {
    let folder = tempfile::tempdir().unwrap();
    let open = |texts: Vec<Option<&str>>, sets: &[&str]| {
        open_x(folder.path(), Arc::new(LargeStringArray::from(texts)), sets)
    };
    let dates = vec![None, Some("1970-01-02"), Some("1970-01-01 00:00:01.5 UTC")];
    let rows = open(dates.clone(), &["data.missing=zero"]).unwrap();
    let x = all(&*rows).0;
    assert!(x[0].is_nan() && x[1..] == [86_400.0, 1.5], "{x:?}");
    assert_eq!(rows.layout().kinds, [Some(ColumnKind::ZonedDate)]);
    let rows = open(dates, &["data.missing=zero", "data.datetime=parts"]).unwrap();
    assert_eq!(rows.layout().features[..2], ["x.year", "x.month"]);
    assert_eq!(all(&*rows).0[7..10], [1970.0, 1.0, 2.0]);
    let words = ["a", "b"].into_iter().collect::<DictionaryArray<types::Int8Type>>();
    assert_refused(open_x(folder.path(), Arc::new(words), &[]), &["column \"x\": expected numbers"]);
    assert_refused(open(vec![Some("7"), Some("8")], &[]), &["column \"x\": expected numbers"]);
    let stray = open(vec![Some("1970-01-02"), Some("soon")], &[]);
    assert_refused(stray, &["row 1, column \"x\": expected a number, got \"soon\""]);
    // The infinity of PostgreSQL and DuckDB, as text and as a type.
    let rows = open(vec![Some("infinity"), Some("1970-01-02")], &["data.missing=zero"]).unwrap();
    assert!(all(&*rows).0[0].is_nan());
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![i64::MAX, 1_000_000]));
    let x = all(&*open_x(folder.path(), times.clone(), &["data.missing=zero"]).unwrap()).0;
    assert!(x[0].is_nan() && x[1] == 1.0);
    let parts = open_x(folder.path(), times.clone(), &["data.missing=zero", "data.datetime=parts"]).unwrap();
    assert!(all(&*parts).0[..7].iter().all(|part| part.is_nan()));
    assert_refused(
        open_x(folder.path(), times, &[]),
        &["row 0, column \"x\": the value is missing", "infinity"],
    );
}

/// pandas and polars write a column without any value as one of no type.
#[test]
fn dates_that_are_all_missing_have_no_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let labels = Int64Array::from(vec![0, 1]);
    write(&path, vec![("x", Arc::new(NullArray::new(2))), ("label", Arc::new(labels))], 10);
    let parts = PARTS.map(|part| format!("x{part}"));
    let open = |names: &[String], kinds: &[Option<ColumnKind>], missing: &str| {
        let sets =
            [&format!("data.train={}", path.display()), "data.target=label", "data.datetime=parts", missing];
        let config = Config::load(None, &sets.map(str::to_owned)).unwrap();
        let known = KnownFeatures { kinds, ..KnownFeatures::from_shards(names, "the model") };
        SourceSpec { features: Some(known), ..SourceSpec::train(&config.data) }.open()
    };
    let numbers = [Some(ColumnKind::Number); 7];
    let rows = open(&parts, &numbers, "data.missing=zero").unwrap();
    let x = all(&*rows).0;
    assert!(x.len() == 14 && x.iter().all(|part| part.is_nan()), "{x:?}");
    assert_eq!(rows.layout().dates, [0]);
    let rows = open(&["x".to_owned()], &[Some(ColumnKind::Date)], "data.missing=zero").unwrap();
    assert!(all(&*rows).0.iter().all(|x| x.is_nan()));
    let refused = open(&parts, &numbers, "data.missing=error");
    assert_refused(refused, &["row 0, column \"x\": the value is missing"]);
    // Of a file of Arrow.
    let keys = Int8Array::from(vec![Some(0), None]);
    let dictionary = DictionaryArray::<types::Int8Type>::new(keys, Arc::new(NullArray::new(1)));
    let mut x = vec![0.0; 14];
    to_date_parts(&dictionary, &mut x);
    assert!(x.iter().all(|part| part.is_nan()), "{x:?}");
}
