//! Times in units that Parquet has: it knows neither seconds nor days in milliseconds, and other readers would find plain integers.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Date32Type, Date64Type, Time32MillisecondType, Time32SecondType, TimestampMillisecondType,
    TimestampSecondType,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    StructArray, new_empty_array,
};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef, TimeUnit};

/// The columns with types that Parquet has.
pub(super) fn schema(columns: &SchemaRef) -> SchemaRef {
    let fields = columns.fields().iter().map(|field| field_of(field, &new_empty_array(field.data_type())));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), columns.metadata().clone()))
}

/// The rows with the types of `columns`, which [`schema`] gave.
pub(super) fn batch(batch: &RecordBatch, columns: &SchemaRef) -> RecordBatch {
    let arrays = batch.columns().iter().map(stored).collect();
    RecordBatch::try_new(columns.clone(), arrays).expect("the types are the schema's")
}

/// The field of a column whose values are `array` before they are stored.
fn field_of(field: &FieldRef, array: &ArrayRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(stored(array).data_type().clone()))
}

/// The values in units that Parquet has; dates without end stay at the ends of their type.
fn stored(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            let times = array.as_primitive::<TimestampSecondType>();
            let times = times.unary::<_, TimestampMillisecondType>(|second| second.saturating_mul(1000));
            Arc::new(times.with_timezone_opt(zone.clone()))
        }
        DataType::Time32(TimeUnit::Second) => {
            let times = array.as_primitive::<Time32SecondType>();
            Arc::new(times.unary::<_, Time32MillisecondType>(|second| second.saturating_mul(1000)))
        }
        DataType::Date64 => {
            let days = |time: i64| time.div_euclid(86_400_000).clamp(i32::MIN.into(), i32::MAX.into());
            Arc::new(array.as_primitive::<Date64Type>().unary::<_, Date32Type>(|time| days(time) as i32))
        }
        DataType::List(_) => stored_lists(array.as_list::<i32>()),
        DataType::LargeList(_) => stored_lists(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => {
            let (field, len, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            Arc::new(FixedSizeListArray::new(field_of(&field, &values), len, stored(&values), nulls))
        }
        DataType::Struct(_) => stored_struct(array.as_struct()).map_or(array.clone(), |of| Arc::new(of)),
        DataType::Map(..) => {
            let (field, offsets, entries, nulls, is_sorted) = array.as_map().clone().into_parts();
            let Some(entries) = stored_struct(&entries) else { return array.clone() };
            let field = Arc::new(field.as_ref().clone().with_data_type(entries.data_type().clone()));
            Arc::new(MapArray::new(field, offsets, entries, nulls, is_sorted))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            dictionary.with_values(stored(dictionary.values()))
        }
        _ => array.clone(),
    }
}

fn stored_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> ArrayRef {
    let (field, offsets, values, nulls) = lists.clone().into_parts();
    Arc::new(GenericListArray::<O>::new(field_of(&field, &values), offsets, stored(&values), nulls))
}

/// The stored values of a struct; `None` for one without fields, which has a length of its own.
fn stored_struct(of: &StructArray) -> Option<StructArray> {
    let (fields, arrays, nulls) = of.clone().into_parts();
    let fields = fields.iter().zip(&arrays).map(|(field, array)| field_of(field, array)).collect();
    (!arrays.is_empty()).then(|| StructArray::new(fields, arrays.iter().map(stored).collect(), nulls))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{
        Date64Array, DictionaryArray, Int8Array, ListArray, Time32SecondArray, TimestampSecondArray,
    };
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn times_have_units_that_parquet_has_also_in_lists_structs_and_dictionaries() {
        let zoned = TimestampSecondArray::from(vec![Some(1), None, Some(i64::MAX)]).with_timezone("UTC");
        let dates: ArrayRef = Arc::new(Date64Array::from(vec![0, 86_400_000, -1]));
        let keys = Int8Array::from(vec![2, 0, 1]);
        let dictionary = DictionaryArray::<Int8Type>::new(keys, dates.clone());
        let field = Arc::new(Field::new("item", DataType::Date64, true));
        let offsets = ListArray::from_iter_primitive::<Int8Type, _, _>([
            Some(vec![Some(1)]),
            Some(vec![Some(1), Some(2)]),
            Some(Vec::new()),
        ]);
        let list = ListArray::new(field, offsets.offsets().clone(), dates.clone(), None);
        let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![1, 2, 3]));
        let fields = vec![Arc::new(Field::new("t", DataType::Time32(TimeUnit::Second), false))];
        let of = StructArray::new(fields.into(), vec![times], None);
        let arrays: Vec<ArrayRef> =
            vec![Arc::new(zoned), dates, Arc::new(dictionary), Arc::new(list), Arc::new(of)];
        let fields = arrays
            .iter()
            .enumerate()
            .map(|(at, of)| Field::new(at.to_string(), of.data_type().clone(), true));
        let columns = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let rows = RecordBatch::try_new(columns.clone(), arrays).unwrap();
        let rows = batch(&rows, &schema(&columns));
        let types: Vec<String> = rows.columns().iter().map(|of| of.data_type().to_string()).collect();
        assert!(
            types.iter().all(|of| !of.contains("Date64") && !of.contains("(s") && !of.contains("Second,")),
            "{types:?}"
        );
        let times = rows.column(0).as_primitive::<TimestampMillisecondType>();
        assert_eq!(times.iter().collect::<Vec<_>>(), [Some(1000), None, Some(i64::MAX)]);
        assert_eq!(
            rows.column(0).data_type(),
            &DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
        );
        assert_eq!(rows.column(1).as_primitive::<Date32Type>().values(), &[0, 1, -1]);
        assert_eq!(rows.column(3).as_list::<i32>().value(1).as_primitive::<Date32Type>().values(), &[1, -1]);
        let times = rows.column(4).as_struct().column(0).clone();
        assert_eq!(times.as_primitive::<Time32MillisecondType>().values(), &[1000, 2000, 3000]);
        let values = rows.column(2).as_any_dictionary().values().clone();
        assert_eq!(values.data_type(), &DataType::Date32);
    }
}
