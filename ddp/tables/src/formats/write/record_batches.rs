//! Converts typed columns to record batches.

use std::sync::Arc;

use arrow_array::types::{
    Date32Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampNanosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, FieldRef, Schema as ArrowSchema, SchemaRef, TimeUnit};
use half::{bf16, f16};

use crate::formats::write::chunk::{Block, Chunk, Group, Kind, Nulls, Numbers, Schema};
use crate::values::element::RawType;
use crate::values::time::{MomentType, MomentUnit};

/// Batches with the columns of a schema.
pub(crate) struct RecordBatches {
    groups: Vec<Group>,
    columns: SchemaRef,
}

impl RecordBatches {
    /// Batches with the columns of `schema`.
    pub(crate) fn new(schema: &Schema) -> Self {
        let fields: Vec<FieldRef> = schema.groups.iter().flat_map(fields).collect();
        RecordBatches { groups: schema.groups.clone(), columns: Arc::new(ArrowSchema::new(fields)) }
    }

    /// Columns of the batches.
    pub(crate) fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    /// Rows as a batch.
    pub(crate) fn batch(&self, rows: Chunk) -> RecordBatch {
        let n_rows = rows.n_rows;
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.fields().len());
        for (group, block) in self.groups.iter().zip(rows.blocks) {
            match block {
                Block::Arrow(array) => arrays.push(array),
                Block::Texts { texts, nulls } => {
                    let text = |row: usize| (!nulls.is_null(row)).then(|| texts.get(row));
                    arrays.push(Arc::new((0..n_rows).map(text).collect::<StringArray>()));
                }
                Block::Moments { values, nulls } => arrays.push(moments(&group.kind, &values, &nulls)),
                Block::Numbers(numbers) => {
                    let width = group.names.len();
                    for column in 0..width {
                        let category = group.categories.iter().find(|category| category.column == column);
                        arrays.push(match category {
                            Some(category) => {
                                let values = category.vocabulary.values();
                                // 0 and numbers without a value are unknown values.
                                let text = |row: usize| {
                                    let code = numbers.double(row * width + column);
                                    (code as usize).checked_sub(1).and_then(|place| values.get(place))
                                };
                                Arc::new((0..n_rows).map(text).collect::<StringArray>())
                            }
                            None => self::numbers(&numbers, n_rows, width, column),
                        });
                    }
                }
            }
        }
        RecordBatch::try_new(self.columns.clone(), arrays).expect("columns follow the schema")
    }
}

/// The columns of a group.
fn fields(group: &Group) -> Vec<FieldRef> {
    if let Kind::Arrow(field) = &group.kind {
        return vec![field.clone()];
    }
    let of_column = |(column, name): (usize, &String)| {
        let is_category = group.categories.iter().any(|category| category.column == column);
        let data_type = if is_category { DataType::Utf8 } else { data_type(&group.kind) };
        Arc::new(Field::new(name, data_type, true))
    };
    group.names.iter().enumerate().map(of_column).collect()
}

fn data_type(kind: &Kind) -> DataType {
    match kind {
        Kind::Text => DataType::Utf8,
        Kind::Moment(MomentType::Date) => DataType::Date32,
        Kind::Moment(MomentType::Time(unit)) => DataType::Time64(time_unit(*unit)),
        Kind::Moment(MomentType::DateTime { unit, is_utc }) => {
            DataType::Timestamp(time_unit(*unit), is_utc.then(|| "UTC".into()))
        }
        Kind::Number(raw) => match raw {
            RawType::Bool => DataType::Boolean,
            RawType::U8 => DataType::UInt8,
            RawType::I8 => DataType::Int8,
            RawType::U16 => DataType::UInt16,
            RawType::I16 => DataType::Int16,
            RawType::U32 => DataType::UInt32,
            RawType::I32 => DataType::Int32,
            RawType::U64 => DataType::UInt64,
            RawType::I64 => DataType::Int64,
            RawType::F16 => DataType::Float16,
            // Every value of bf16 is one of f32.
            RawType::Bf16 | RawType::F32 => DataType::Float32,
            RawType::F64 => DataType::Float64,
            RawType::Ascii | RawType::Unicode => unreachable!("texts are a kind of their own"),
        },
        Kind::Arrow(field) => field.data_type().clone(),
    }
}

fn time_unit(unit: MomentUnit) -> TimeUnit {
    match unit {
        MomentUnit::Microseconds => TimeUnit::Microsecond,
        MomentUnit::Nanoseconds => TimeUnit::Nanosecond,
    }
}

fn moments(kind: &Kind, values: &[i64], nulls: &Nulls) -> ArrayRef {
    fn array<T: ArrowPrimitiveType<Native = i64>>(values: &[i64], nulls: &Nulls) -> PrimitiveArray<T> {
        values.iter().enumerate().map(|(row, &value)| (!nulls.is_null(row)).then_some(value)).collect()
    }
    let Kind::Moment(moment) = kind else { unreachable!("dates and times are of their kind") };
    match moment {
        MomentType::Date => {
            let value = |(row, &value): (usize, &i64)| (!nulls.is_null(row)).then_some(value as i32);
            Arc::new(values.iter().enumerate().map(value).collect::<PrimitiveArray<Date32Type>>())
        }
        MomentType::Time(MomentUnit::Microseconds) => Arc::new(array::<Time64MicrosecondType>(values, nulls)),
        MomentType::Time(MomentUnit::Nanoseconds) => Arc::new(array::<Time64NanosecondType>(values, nulls)),
        MomentType::DateTime { unit, is_utc } => {
            let zone = is_utc.then_some("UTC");
            match unit {
                MomentUnit::Microseconds => {
                    Arc::new(array::<TimestampMicrosecondType>(values, nulls).with_timezone_opt(zone))
                }
                MomentUnit::Nanoseconds => {
                    Arc::new(array::<TimestampNanosecondType>(values, nulls).with_timezone_opt(zone))
                }
            }
        }
    }
}

/// A column of numbers.
fn numbers(numbers: &Numbers, n_rows: usize, width: usize, column: usize) -> ArrayRef {
    macro_rules! array {
        ($t:ident, $of:ty, |$value:ident| $convert:expr) => {{
            let (values, _) = numbers.bytes.as_chunks::<{ size_of::<$of>() }>();
            let value = |row: usize| {
                let $value = <$of>::from_le_bytes(values[row * width + column]);
                (!numbers.nulls.is_null(row)).then_some($convert)
            };
            Arc::new((0..n_rows).map(value).collect::<PrimitiveArray<$t>>())
        }};
        ($t:ident, $of:ty) => {
            array!($t, $of, |value| value)
        };
    }
    match numbers.raw {
        RawType::Bool => {
            let value =
                |row: usize| (!numbers.nulls.is_null(row)).then(|| numbers.bytes[row * width + column] != 0);
            Arc::new((0..n_rows).map(value).collect::<BooleanArray>())
        }
        RawType::U8 => array!(UInt8Type, u8),
        RawType::I8 => array!(Int8Type, i8),
        RawType::U16 => array!(UInt16Type, u16),
        RawType::I16 => array!(Int16Type, i16),
        RawType::U32 => array!(UInt32Type, u32),
        RawType::I32 => array!(Int32Type, i32),
        RawType::U64 => array!(UInt64Type, u64),
        RawType::I64 => array!(Int64Type, i64),
        RawType::F16 => array!(Float16Type, f16),
        RawType::Bf16 => array!(Float32Type, bf16, |value| value.to_f32()),
        RawType::F32 => array!(Float32Type, f32),
        RawType::F64 => array!(Float64Type, f64),
        RawType::Ascii | RawType::Unicode => unreachable!("texts are a kind of their own"),
    }
}
