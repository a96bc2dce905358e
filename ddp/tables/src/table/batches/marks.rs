//! The marks of `data.missing_values` in columns of types: marked values become missing ones.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, make_array,
};
use arrow_schema::{DataType, FieldRef};

use crate::table::batches::arrays::{is_infinite, keys, to_f32};
use crate::table::batches::columns::{Kind, is_date, kind};
use crate::table::batches::common_type::per_second;
use crate::table::batches::text;
use crate::values::notation::Notation;
use crate::values::time;

/// The array with nulls in place of marked values, which are compared as in a file of text: as numbers or as texts. Elements of lists
/// are values.
pub(super) fn without_marked(array: &ArrayRef, notation: &Notation) -> ArrayRef {
    if !notation.has_marks() {
        return array.clone();
    }
    match array.data_type() {
        DataType::List(_) => mark_lists(array.as_list::<i32>(), notation),
        DataType::LargeList(_) => mark_lists(array.as_list::<i64>(), notation),
        DataType::FixedSizeList(..) => {
            let (field, len, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = without_marked(&values, notation);
            Arc::new(FixedSizeListArray::new(nullable(&field), len, values, nulls))
        }
        _ => {
            let are_marked = marked(array, notation);
            if !are_marked.contains(&true) {
                return array.clone();
            }
            without(array, &are_marked)
        }
    }
}

/// The array with nulls in place of dates beyond the calendar, such as the `infinity` of PostgreSQL and DuckDB, which they write as the
/// largest and the smallest integers; `None` if it has none.
pub(super) fn without_infinite(array: &ArrayRef) -> Option<ArrayRef> {
    if !is_date(array.data_type()) || are_usual(array) {
        return None;
    }
    let mut are_infinite = vec![false; array.len()];
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        let values = dictionary.values();
        let of_values: Vec<bool> = (0..values.len()).map(|row| is_infinite(values, row)).collect();
        keys(array, |row, key| are_infinite[row] = key.is_some_and(|key| of_values[key]));
    } else {
        are_infinite.iter_mut().enumerate().for_each(|(row, is_one)| *is_one = is_infinite(array, row));
    }
    // Missing values have any number in their place.
    let is_one = |(row, is_infinite): (usize, &bool)| *is_infinite && array.is_valid(row);
    are_infinite.iter().enumerate().any(is_one).then(|| without(array, &are_infinite))
}

/// Whether all dates, also those in place of missing ones, are inside the calendar: nearly always, and found fast.
fn are_usual(array: &ArrayRef) -> bool {
    let per_second = match array.data_type() {
        DataType::Date64 => 1_000,
        DataType::Timestamp(unit, _) => per_second(*unit),
        _ => return false,
    };
    let max = (i64::from(time::DAYS[1]) * 86_400).checked_mul(per_second).unwrap_or(i64::MAX);
    let data = array.to_data();
    data.buffers()[0].typed_data::<i64>().iter().all(|value| (-max < *value) & (*value < max))
}

/// The array with nulls in the rows where `are_missing`.
fn without(array: &ArrayRef, are_missing: &[bool]) -> ArrayRef {
    let is_valid = |(row, is_missing): (usize, &bool)| (!is_missing && array.is_valid(row)).then_some(true);
    let valid: BooleanArray = are_missing.iter().enumerate().map(is_valid).collect();
    let data = array.to_data().into_builder().nulls(valid.nulls().cloned()).build();
    make_array(data.expect("only the nulls change"))
}

/// The field of a column that may lack values, as may the elements of its lists.
pub(super) fn nullable(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(of) => DataType::List(nullable(of)),
        DataType::LargeList(of) => DataType::LargeList(nullable(of)),
        DataType::FixedSizeList(of, len) => DataType::FixedSizeList(nullable(of), *len),
        other => other.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type).with_nullable(true))
}

fn mark_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>, notation: &Notation) -> ArrayRef {
    let (field, offsets, values, nulls) = lists.clone().into_parts();
    let values = without_marked(&values, notation);
    Arc::new(GenericListArray::<O>::new(nullable(&field), offsets, values, nulls))
}

/// Whether each value is marked.
fn marked(array: &dyn Array, notation: &Notation) -> Vec<bool> {
    let mut are_marked = vec![false; array.len()];
    let mut text = Vec::new();
    let mut is_marked = |row: usize| {
        text.clear();
        text::put(array, row, &mut text);
        array.is_valid(row) && notation.is_marked(text.trim_ascii())
    };
    match array.data_type() {
        DataType::Dictionary(..) => {
            let of_values = marked(array.as_any_dictionary().values(), notation);
            keys(array, |row, key| are_marked[row] = key.is_some_and(|key| of_values[key]));
        }
        of if matches!(kind(of), Kind::Number) && !of.is_temporal() && *of != DataType::Boolean => {
            // A value as text takes long, so only those that round to a mark are compared so.
            let singles = notation.missing_singles();
            let mut values = vec![0.0; array.len()];
            to_f32(array, &mut values);
            for (row, value) in values.into_iter().enumerate() {
                are_marked[row] = singles.contains(&value) && is_marked(row);
            }
        }
        of if matches!(kind(of), Kind::Number | Kind::Text) => {
            (0..array.len()).for_each(|row| are_marked[row] = is_marked(row));
        }
        _ => {}
    }
    are_marked
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Float32Type, Int32Type, Int64Type};
    use arrow_array::{
        Date32Array, Decimal128Array, DictionaryArray, Float32Array, Int64Array, LargeStringArray, ListArray,
        TimestampMicrosecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt8Array,
    };
    use arrow_schema::Field;

    use super::*;
    use crate::values::notation::Notation;
    use crate::values::number::DecimalMark;

    /// The rows that are null once -999, -99.9, "none" and 9999-12-31 are marks.
    fn nulls(array: impl Array + 'static) -> Vec<usize> {
        let marks = ["-999", "-99.9", "none", "9999-12-31"].map(str::to_owned);
        let array: ArrayRef = Arc::new(array);
        let without = without_marked(&array, &Notation::new(DecimalMark::Point, &marks));
        assert_eq!((without.len(), without.data_type()), (array.len(), array.data_type()));
        let nulls = without.logical_nulls();
        (0..array.len()).filter(|&row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))).collect()
    }

    #[test]
    fn dates_beyond_the_calendar_are_missing() {
        let infinite = |array: ArrayRef| {
            without_infinite(&array)
                .map(|finite| (0..finite.len()).filter(|row| finite.is_null(*row)).collect::<Vec<_>>())
        };
        let of = |values: Vec<i64>| -> [ArrayRef; 3] {
            [
                Arc::new(TimestampSecondArray::from(values.clone())),
                Arc::new(TimestampMicrosecondArray::from(values.clone())),
                Arc::new(TimestampNanosecondArray::from(values)),
            ]
        };
        for array in of(vec![0, i64::MAX, 1, i64::MIN, -i64::MAX]) {
            assert_eq!(infinite(array), Some(vec![1, 3, 4]));
        }
        for array in of(vec![0, -1, 1_700_000_000]) {
            assert_eq!(infinite(array), None);
        }
        let days = vec![Some(0), Some(i32::MAX), None, Some(-i32::MAX), Some(-719_162), Some(2_932_896)];
        assert_eq!(infinite(Arc::new(Date32Array::from(days))), Some(vec![1, 2, 3]));
        assert_eq!(infinite(Arc::new(Int64Array::from(vec![i64::MAX]))), None);
    }

    #[test]
    fn marked_values_of_all_types_become_nulls() {
        assert_eq!(nulls(Int64Array::from(vec![Some(-999), Some(7), None, Some(-999)])), [0, 2, 3]);
        assert_eq!(nulls(Int64Array::from(vec![1, -999, 7, -999]).slice(1, 3)), [0, 2]);
        assert_eq!(nulls(Int64Array::from(vec![-999_000_000_000_001, 999])), [0; 0]);
        assert_eq!(nulls(UInt8Array::from(vec![99, 0])), [0; 0]);
        assert_eq!(nulls(Float32Array::from(vec![-99.9, -999.0, -99.8, f32::NAN])), [0, 1]);
        let decimals = Decimal128Array::from(vec![-9990, -999]).with_precision_and_scale(9, 1).unwrap();
        assert_eq!(nulls(decimals), [0, 1]);
        assert_eq!(nulls(LargeStringArray::from(vec!["none", "nones", " none ", "NA"])), [0, 2]);
        assert_eq!(nulls(Date32Array::from(vec![0, 2_932_896])), [1]);
        // A date is the midnight at its begin.
        let end = 2_932_896 * 86_400;
        assert_eq!(nulls(TimestampSecondArray::from(vec![end + 1, end, 0]).with_timezone("UTC")), [1]);
        let keys = DictionaryArray::<Int32Type>::from_iter(["a", "none", "a", "none"]);
        assert_eq!(nulls(keys), [1, 3]);
        let lists = [Some(vec![Some(1.0), Some(-999.0)]), None, Some(vec![None, Some(2.0)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists));
        let without = without_marked(&lists, &Notation::new(DecimalMark::Point, &["-999".to_owned()]));
        assert_eq!((without.null_count(), without.as_list::<i32>().value(0).null_count()), (1, 1));
    }

    #[test]
    fn the_type_of_marked_lists_is_that_of_their_nullable_field() {
        let notation = Notation::new(DecimalMark::Point, &["-999".to_owned()]);
        let field = |of: &DataType| Arc::new(Field::new("item", of.clone(), false));
        let of_one = [Some(vec![Some(1), Some(-999)])];
        let (_, offsets, values, _) = ListArray::from_iter_primitive::<Int64Type, _, _>(of_one).into_parts();
        let list: ArrayRef = Arc::new(ListArray::new(field(&DataType::Int64), offsets, values.clone(), None));
        let lists: [ArrayRef; 3] = [
            list.clone(),
            Arc::new(FixedSizeListArray::new(field(&DataType::Int64), 2, values, None)),
            Arc::new(FixedSizeListArray::new(field(list.data_type()), 1, list, None)),
        ];
        for array in lists {
            let field = nullable(&field(array.data_type()));
            assert_eq!(without_marked(&array, &notation).data_type(), field.data_type());
        }
    }
}
