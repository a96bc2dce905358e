//! Files of record batches whose columns are converted to the types that all files of the table have in common.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{
    Array, ArrayRef, Decimal128Array, FixedSizeListArray, Float64Array, Int64Array, LargeListArray,
    LargeStringArray, ListArray, RecordBatch, UInt64Array, make_array, new_null_array, types,
};
use arrow_schema::{DataType, Schema, SchemaRef};

use crate::formats::error::{ColumnError, Result, RowsError};
use crate::formats::table::batch_source::{BatchSource, Batches, Selection};
use crate::shared_types::{Conflict, SharedTypes};
use crate::table::batches::arrays::{keys, ticks, to_f64};
use crate::table::batches::common_type::{common_type, per_second, zones_differ};
use crate::table::batches::marks::{nullable, without_infinite};
use crate::table::batches::text;

/// `source`, the file `path`, with the types of all files of its table.
pub(in crate::table) fn widened(
    path: &Path,
    source: Box<dyn BatchSource>,
    types: Option<&SharedTypes>,
) -> Box<dyn BatchSource> {
    match types.and_then(|types| Casts::new(path, source.schema(), types)) {
        Some(casts) => Box::new(Widened { source, casts }),
        None => source,
    }
}

struct Widened {
    source: Box<dyn BatchSource>,
    casts: Casts,
}

impl BatchSource for Widened {
    fn schema(&self) -> &SchemaRef {
        &self.casts.schema
    }

    fn first_list_len(&self, root: usize) -> Result<Option<usize>> {
        self.source.first_list_len(root)
    }

    fn read(&self, selection: &Selection) -> Result<Batches> {
        Ok(self.casts.clone().apply(self.source.read(selection)?, &selection.roots))
    }
}

/// Conversions of the columns of one file.
#[derive(Debug, Clone)]
pub(in crate::table) struct Casts {
    path: PathBuf,
    /// The columns after the conversion.
    schema: SchemaRef,
    /// Whether each column is converted.
    are_cast: Vec<bool>,
}

impl Casts {
    /// The conversions of the file `path`; `None` if it has the common types.
    pub(in crate::table) fn new(path: &Path, schema: &SchemaRef, types: &SharedTypes) -> Option<Self> {
        let other = |name: &str, of: &DataType| types.types.get(name).filter(|common| *common != of);
        let are_cast: Vec<bool> =
            schema.fields().iter().map(|field| other(field.name(), field.data_type()).is_some()).collect();
        if !are_cast.contains(&true) {
            return None;
        }
        let fields = schema.fields().iter().map(|field| match other(field.name(), field.data_type()) {
            Some(common) => Arc::new(nullable(field).as_ref().clone().with_data_type(common.clone())),
            None => field.clone(),
        });
        let fields: Vec<_> = fields.collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        Some(Casts { path: path.to_owned(), schema, are_cast })
    }

    /// The batches with the columns `roots`, ascending, in the common types.
    pub(in crate::table) fn apply(self, batches: Batches, roots: &[usize]) -> Batches {
        let mut roots = roots.to_vec();
        roots.sort_unstable();
        roots.dedup();
        let of_file = Arc::new(self.schema.project(&roots).expect("columns of the file"));
        let mut row = 0;
        Box::new(batches.map(move |batch| {
            let batch = batch?;
            let columns = roots.iter().zip(batch.columns()).map(|(&root, array)| {
                if !self.are_cast[root] {
                    return Ok(array.clone());
                }
                let field = self.schema.field(root);
                cast(array, field.data_type()).map_err(|at| self.not_exact(field.name(), array, at, row))
            });
            let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
            row += batch.num_rows();
            Ok(RecordBatch::try_new(of_file.clone(), columns)
                .expect("the columns have the types of the schema"))
        }))
    }

    /// The error of a value that the common type would round.
    fn not_exact(&self, column: &str, array: &dyn Array, at: usize, first: usize) -> RowsError {
        let mut text = Vec::new();
        text::put(array, at, &mut text);
        let common =
            self.schema.field_with_name(column).map_or(String::new(), |of| of.data_type().to_string());
        RowsError::from(ColumnError::NotWidened {
            path: self.path.clone(),
            column: column.to_owned(),
            row: first + at,
            text: String::from_utf8_lossy(&text).into_owned(),
            types: [array.data_type().to_string(), common],
        })
    }
}

/// The values of `array` in the type `to`, a common type of its own and another.
///
/// # Errors
/// The first row whose value `to` does not hold exactly.
fn cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, usize> {
    let of = array.data_type();
    let nulls = array.logical_nulls();
    let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    // The row of the first value that does not fit.
    let check = |fits: &dyn Fn(usize) -> bool| match (0..array.len()).find(|&row| !is_null(row) && !fits(row))
    {
        None => Ok(()),
        Some(row) => Err(row),
    };
    Ok(match to {
        to if of == to => array.clone(),
        to if *of == DataType::Null => new_null_array(to, array.len()),
        DataType::LargeUtf8 => {
            let mut text = Vec::new();
            let mut of_row = |row: usize| {
                text.clear();
                text::put(array, row, &mut text);
                (!is_null(row)).then(|| String::from_utf8_lossy(&text).into_owned())
            };
            Arc::new((0..array.len()).map(&mut of_row).collect::<LargeStringArray>())
        }
        DataType::Int64 => {
            let values = wholes(array);
            check(&|row| i64::try_from(values[row]).is_ok())?;
            let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
            Arc::new(Int64Array::new(values.into(), nulls))
        }
        DataType::UInt64 => {
            let values: Vec<u64> = wholes(array).into_iter().map(|value| value as u64).collect();
            Arc::new(UInt64Array::new(values.into(), nulls))
        }
        DataType::Float64 => {
            let values = to_f64(array);
            if let Some(wholes) = is_whole(of).then(|| wholes(array)) {
                check(&|row| values[row] as i128 == wholes[row])?;
            }
            Arc::new(Float64Array::new(values.into(), nulls))
        }
        &DataType::Decimal128(digits, scale) => {
            let values: Vec<Option<i128>> =
                (0..array.len()).map(|row| decimal(array, row, scale).filter(|_| !is_null(row))).collect();
            check(&|row| values[row].is_some())?;
            let values = Decimal128Array::from(values).with_precision_and_scale(digits, scale);
            Arc::new(values.map_err(|_| 0usize)?)
        }
        DataType::Timestamp(unit, _) | DataType::Time64(unit) | DataType::Duration(unit) => {
            let (array, nulls) = match without_infinite(array) {
                Some(array) => (array.clone(), array.logical_nulls()),
                None => (array.clone(), nulls.clone()),
            };
            let per_second = per_second(*unit);
            let value = |row: usize| {
                let (value, of_value) = ticks(&array, row);
                value.checked_mul(per_second / of_value)
            };
            let values: Vec<Option<i64>> = (0..array.len()).map(value).collect();
            let is_lost = |row: &usize| values[*row].is_none() && array.is_valid(*row);
            if let Some(row) = (0..array.len()).find(is_lost) {
                return Err(row);
            }
            let values: Vec<i64> = values.into_iter().map(|value| value.unwrap_or(0)).collect();
            let whole = Int64Array::new(values.into(), nulls);
            make_array(whole.to_data().into_builder().data_type(to.clone()).build().expect("times are i64"))
        }
        DataType::List(field) => {
            let (_, ends, values, nulls) = array.as_list::<i32>().clone().into_parts();
            let row_of = |at: usize| ends.partition_point(|end| *end as usize <= at).saturating_sub(1);
            let values = cast(&values, field.data_type()).map_err(row_of)?;
            Arc::new(ListArray::new(field.clone(), ends, values, nulls))
        }
        DataType::LargeList(field) => {
            let (_, ends, values, nulls) = large_lists(array).as_list::<i64>().clone().into_parts();
            let row_of = |at: usize| ends.partition_point(|end| *end as usize <= at).saturating_sub(1);
            let values = cast(&values, field.data_type()).map_err(row_of)?;
            Arc::new(LargeListArray::new(field.clone(), ends, values, nulls))
        }
        DataType::FixedSizeList(field, len) => {
            let (_, _, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = cast(&values, field.data_type()).map_err(|at| at / (*len).max(1) as usize)?;
            Arc::new(FixedSizeListArray::new(field.clone(), *len, values, nulls))
        }
        other => unreachable!("{other} is no common type of two others"),
    })
}

/// Lists whose offsets have 64 bits.
fn large_lists(array: &ArrayRef) -> ArrayRef {
    let DataType::List(field) = array.data_type() else { return array.clone() };
    let ends = array.as_list::<i32>().offsets().iter().map(|&end| i64::from(end));
    let ends = Int64Array::from_iter_values(ends).to_data();
    let lists = array.to_data().into_builder().data_type(DataType::LargeList(field.clone()));
    make_array(lists.buffers(ends.buffers().to_vec()).build().expect("only the offsets are wider"))
}

fn is_whole(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, of) => is_whole(of),
        of => of.is_integer() || *of == DataType::Boolean,
    }
}

/// The values of integers, and of truth values as 0 and 1. Missing ones have no meaning.
fn wholes(array: &dyn Array) -> Vec<i128> {
    macro_rules! wholes {
        ($t:ident) => {
            array.as_primitive::<types::$t>().values().iter().map(|&value| i128::from(value)).collect()
        };
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().values().iter().map(i128::from).collect(),
        DataType::Int8 => wholes!(Int8Type),
        DataType::Int16 => wholes!(Int16Type),
        DataType::Int32 => wholes!(Int32Type),
        DataType::Int64 => wholes!(Int64Type),
        DataType::UInt8 => wholes!(UInt8Type),
        DataType::UInt16 => wholes!(UInt16Type),
        DataType::UInt32 => wholes!(UInt32Type),
        DataType::UInt64 => wholes!(UInt64Type),
        _ => {
            let values = wholes(array.as_any_dictionary().values());
            let mut of_rows = vec![0; array.len()];
            keys(array, |row, key| of_rows[row] = key.map_or(0, |key| values[key]));
            of_rows
        }
    }
}

/// The value of a decimal or an integer in units of 10^-`scale`; `None` if i128 does not hold it.
fn decimal(array: &dyn Array, row: usize, scale: i8) -> Option<i128> {
    let (value, of_value) = match array.data_type() {
        DataType::Decimal32(_, of) => (array.as_primitive::<types::Decimal32Type>().value(row).into(), *of),
        DataType::Decimal64(_, of) => (array.as_primitive::<types::Decimal64Type>().value(row).into(), *of),
        DataType::Decimal128(_, of) => (array.as_primitive::<types::Decimal128Type>().value(row), *of),
        _ => (*wholes(&*array.slice(row, 1)).first()?, 0),
    };
    value.checked_mul(10i128.checked_pow(u32::try_from(scale - of_value).ok()?)?)
}

/// Finds the columns whose types differ between the files of a table, and their common types.
pub(in crate::table) fn share_types<'a>(
    files: impl Iterator<Item = (&'a Path, &'a SchemaRef)>,
    types: &mut SharedTypes,
) {
    // The type of each column so far, and the file that had it first.
    let mut columns: HashMap<&str, (DataType, &Path)> = HashMap::new();
    let mut notes: BTreeMap<&str, [String; 2]> = BTreeMap::new();
    let mut zones = BTreeSet::new();
    for (path, schema) in files {
        for field in schema.fields() {
            let (name, of) = (field.name().as_str(), field.data_type());
            let (before, first) = columns.entry(name).or_insert_with(|| (of.clone(), path));
            if before == of || types.conflicts.iter().any(|conflict| conflict.column == name) {
                continue;
            }
            let Some(common) = common_type(before, of) else {
                types.conflicts.push(Conflict {
                    column: name.to_owned(),
                    first: first.to_owned(),
                    other: path.to_owned(),
                    types: [before.to_string(), of.to_string()],
                });
                continue;
            };
            if zones_differ(before, of) {
                zones.insert(name);
            }
            // Texts are texts, whatever their encoding.
            if common != DataType::LargeUtf8 || *before == DataType::Null || *of == DataType::Null {
                notes.entry(name).or_insert_with(|| [before.to_string(), of.to_string()]);
            }
            types.types.insert(name.to_owned(), common.clone());
            *before = common;
        }
    }
    for (name, [a, b]) in notes {
        let common = &columns[name].0;
        if types.conflicts.iter().all(|conflict| conflict.column != name) {
            types.notes.push(format!(
                "column \"{name}\" is {a} in some files and {b} in others, and is read as {common}"
            ));
        }
    }
    let conflicts = &types.conflicts;
    types.types.retain(|name, _| conflicts.iter().all(|conflict| conflict.column != *name));
    for name in zones {
        types.notes.push(format!(
            "times of \"{name}\" have a time zone in some files and none in others: without one, a time is in UTC"
        ));
    }
}
