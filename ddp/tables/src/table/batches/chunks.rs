//! Reads record batches as typed columns, to convert them to other files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, types};
use arrow_schema::DataType;
use ddp::data::error::{DataError, Result};
use ddp::data::labels::bool_text;
use half::f16;

use crate::error::TableError;
use crate::formats::error::{CellProblem, ColumnError};
use crate::formats::table::batch_source::{BatchSource, Batches, Selection};
use crate::formats::table::source::FileColumns;
use crate::formats::table::types::Destination;
use crate::formats::write::{Block, Chunk, Group, Kind, Nulls, Numbers, Purpose};
use crate::source::SourceSpec;
use crate::table::batches::arrays::{distinct_texts, list, to_date_parts, to_f64};
use crate::table::batches::columns::{Column, Columns, Kind as ArrowKind, kind as kind_of, pandas_indices};
use crate::table::batches::marks::{nullable, without_infinite, without_marked};
use crate::table::batches::text;
use crate::table::cell;
use crate::table::columns::{ColumnPlan, Partition, Role};
use crate::values::element::RawType;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;
use crate::values::texts::Texts;
use crate::values::time;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 4096;
/// Values that are decoded at a time.
const BATCH_VALUES: usize = 1 << 18;

/// Reads the rows of one file.
pub(in crate::table) struct BatchChunks {
    path: PathBuf,
    groups: Vec<Group>,
    parts: Vec<ReadColumn>,
    partitions: Vec<Partition>,
    batches: Batches,
    notation: Notation,
    pending: Option<RecordBatch>,
    /// Number of the next row.
    row: usize,
}

/// Source of a group.
struct ReadColumn {
    /// Index among the columns that are read.
    column: usize,
    use_: Use,
}

/// Form in which a column is passed on.
enum Use {
    AsIs,
    Numbers,
    /// Lists of this length.
    Lists(usize),
    DateParts,
    Texts {
        is_label: bool,
    },
}

impl BatchChunks {
    /// Starts to read `source`, the file `path`.
    pub(in crate::table) fn open(
        path: &Path,
        source: &dyn BatchSource,
        spec: &SourceSpec<'_>,
        to: Destination,
    ) -> Result<Self> {
        let (mut groups, mut roots, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        let (schema, mut lists) = (source.schema(), Vec::new());
        let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
        let plan = if to == Destination::Arrays {
            let columns = Columns::new(path, source, spec)?;
            lists = columns.selection(0).lists;
            for column in &columns.needed {
                let (group, use_) = for_array(column, &columns.plan);
                groups.push(group);
                roots.push(column.root);
                uses.push(use_);
            }
            columns.plan
        } else {
            let of_pandas = pandas_indices(schema);
            let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
            let indices = (0..names.len()).filter(|&at| of_pandas.contains(&names[at])).collect();
            let are_dates = vec![false; names.len()];
            let plan = ColumnPlan::new(
                path,
                FileColumns { names, are_dates, indices, ..FileColumns::default() },
                spec,
            )?;
            for (root, (field, role)) in schema.fields().iter().zip(&plan.roles).enumerate() {
                if let Some(purpose) = role.purpose() {
                    let field = if notation.has_marks() { nullable(field) } else { field.clone() };
                    groups.push(Group::column(purpose, field.name().clone(), Kind::Arrow(field)));
                    roots.push(root);
                    uses.push(Use::AsIs);
                }
            }
            plan
        };
        let parts = uses.into_iter().enumerate().map(|(column, use_)| ReadColumn { column, use_ }).collect();
        let partitions = plan.partitions;
        let batch_rows = (BATCH_VALUES / roots.len().max(1)).clamp(1, BATCH_ROWS);
        let batches = source.read(&Selection { roots, lists, max_len: 0, batch_rows })?;
        Ok(BatchChunks {
            path: path.to_owned(),
            groups,
            parts,
            partitions,
            batches,
            notation,
            pending: None,
            row: 0,
        })
    }
}

/// The group of a column whose values become numbers or texts.
fn for_array(column: &Column, plan: &ColumnPlan) -> (Group, Use) {
    let role = column.roles[0];
    let purpose = role.purpose().expect("dropped columns are not needed");
    let group = |kind| Group::column(purpose, column.name.clone(), kind);
    match (role, kind_of(&column.data_type)) {
        (Role::Category { .. }, _) => (group(Kind::Text), Use::Texts { is_label: false }),
        (Role::Target(_), ArrowKind::Text) => (group(Kind::Text), Use::Texts { is_label: true }),
        (Role::Target(_), _)
            if is_bool(&column.data_type)
                && plan.roles.iter().filter(|role| matches!(role, Role::Target(_))).count() == 1 =>
        {
            (group(Kind::Text), Use::Texts { is_label: true })
        }
        (Role::Date(first), _) => {
            let names = plan.features[first..][..time::PARTS.len()].to_vec();
            (Group { names, ..group(Kind::Number(RawType::F32)) }, Use::DateParts)
        }
        (_, ArrowKind::List) => {
            let of_list = column.roles.iter().filter_map(|role| match role {
                Role::Feature(feature) => Some(plan.features[*feature].clone()),
                _ => None,
            });
            let names: Vec<String> = of_list.collect();
            let (DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _)) =
                &column.data_type
            else {
                unreachable!("a list has elements")
            };
            let len = names.len();
            (Group { names, ..group(Kind::Number(raw_type(of.data_type()))) }, Use::Lists(len))
        }
        _ => (group(Kind::Number(raw_type(&column.data_type))), Use::Numbers),
    }
}

/// Texts as numbers: seconds of dates and times. The error is the row of another text.
fn doubles_of_cells(array: &dyn Array, notation: &Notation) -> Result<ArrayRef, (usize, CellProblem)> {
    let mut text = Vec::new();
    let mut double = |row: usize| {
        text.clear();
        text::put(array, row, &mut text);
        cell::double(&text, notation).map_err(|problem| (row, problem))
    };
    let doubles: Vec<Option<f64>> = (0..array.len()).map(&mut double).collect::<Result<_, _>>()?;
    Ok(Arc::new(Float64Array::from(doubles)))
}

fn is_bool(of: &DataType) -> bool {
    *of == DataType::Boolean
}

/// The type of the numbers of a column in arrays: f64 for decimals, and for seconds of dates and times.
fn raw_type(of: &DataType) -> RawType {
    match of {
        DataType::Boolean => RawType::Bool,
        DataType::Int8 => RawType::I8,
        DataType::Int16 => RawType::I16,
        DataType::Int32 => RawType::I32,
        DataType::Int64 => RawType::I64,
        DataType::UInt8 => RawType::U8,
        DataType::UInt16 => RawType::U16,
        DataType::UInt32 => RawType::U32,
        DataType::UInt64 => RawType::U64,
        DataType::Float16 => RawType::F16,
        DataType::Float32 => RawType::F32,
        _ => RawType::F64,
    }
}

impl BatchChunks {
    /// The columns of the file that are converted.
    pub(in crate::table) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Columns with one value for the whole file, which the groups lack.
    pub(in crate::table) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Up to `max_rows` next rows; `None` at the end.
    pub(in crate::table) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let next = self.pending.take().map(Ok).or_else(|| self.batches.next());
        let Some(batch) = next.transpose()? else { return Ok(None) };
        let n_rows = batch.num_rows().min(max_rows);
        if n_rows < batch.num_rows() {
            self.pending = Some(batch.slice(n_rows, batch.num_rows() - n_rows));
        }
        let block = |part: &ReadColumn| {
            let array = batch.column(part.column).slice(0, n_rows);
            let array = match self.groups[part.column].purpose {
                Purpose::Weight => array,
                _ => without_marked(&array, &self.notation),
            };
            let array = match part.use_ {
                Use::AsIs => array,
                _ => without_infinite(&array).unwrap_or(array),
            };
            let array = match part.use_ {
                Use::Numbers | Use::DateParts if matches!(kind_of(array.data_type()), ArrowKind::Text) => {
                    doubles_of_cells(&array, &self.notation).map_err(|(row, problem)| {
                        DataError::from(TableError::Cell {
                            place: format!("data file `{}`, row {}", self.path.display(), self.row + row),
                            column: batch.schema_ref().field(part.column).name().clone(),
                            problem,
                        })
                    })?
                }
                _ => array,
            };
            block(&array, &part.use_, &self.notation).map_err(|(row, got, expected)| {
                DataError::from(ColumnError::ListLength {
                    place: format!("data file `{}`, row {}", self.path.display(), self.row + row),
                    column: format!("column \"{}\"", batch.schema_ref().field(part.column).name()),
                    expected,
                    got,
                })
            })
        };
        let blocks = self.parts.iter().map(block).collect::<Result<Vec<_>>>()?;
        self.row += n_rows;
        Ok(Some(Chunk { n_rows, blocks }))
    }
}

/// The values of a column; the error is the row of a list of another length, its length and the one expected.
fn block(array: &ArrayRef, use_: &Use, notation: &Notation) -> Result<Block, (usize, usize, usize)> {
    Ok(match use_ {
        Use::AsIs => Block::Arrow(array.clone()),
        Use::Numbers => Block::Numbers(numbers(array)),
        Use::Texts { is_label } => texts(array, *is_label, notation),
        Use::DateParts => {
            let mut parts = vec![f32::NAN; time::PARTS.len() * array.len()];
            match array.as_primitive_opt::<types::Float64Type>() {
                None => to_date_parts(array, &mut parts),
                Some(seconds) => {
                    for (seconds, parts) in seconds.iter().zip(parts.chunks_exact_mut(time::PARTS.len())) {
                        seconds.iter().for_each(|seconds| parts.copy_from_slice(&time::parts(*seconds)));
                    }
                }
            }
            let bytes = bytemuck::cast_slice(&parts).to_vec();
            Block::Numbers(Numbers { raw: RawType::F32, bytes, nulls: nulls(array) })
        }
        Use::Lists(len) => lists(array, *len)?,
    })
}

/// Lists of `len` numbers, as f64 if an element or a list is missing; the error is that of [`block`].
fn lists(array: &ArrayRef, len: usize) -> Result<Block, (usize, usize, usize)> {
    let lists: Vec<Option<ArrayRef>> = (0..array.len()).map(|row| list(array, row)).collect();
    let is_whole =
        |of_row: &Option<ArrayRef>| of_row.as_ref().is_some_and(|of_row| of_row.logical_null_count() == 0);
    let has_gaps = !lists.iter().all(is_whole);
    let (mut raw, mut bytes, mut missing) = (RawType::F64, Vec::new(), Nulls::default());
    for (row, of_row) in lists.iter().enumerate() {
        if has_gaps && !is_whole(of_row) {
            missing.mark(row);
        }
        let Some(of_row) = of_row else {
            bytes.extend(std::iter::repeat_n(f64::NAN.to_le_bytes(), len).flatten());
            continue;
        };
        if of_row.len() != len {
            return Err((row, of_row.len(), len));
        }
        let of_row = numbers(of_row);
        if has_gaps {
            let element = |at| if of_row.nulls.is_null(at) { f64::NAN } else { of_row.double(at) };
            bytes.extend((0..len).flat_map(|at| element(at).to_le_bytes()));
        } else {
            raw = of_row.raw;
            bytes.extend(of_row.bytes);
        }
    }
    Ok(Block::Numbers(Numbers { raw, bytes, nulls: missing }))
}

fn nulls(array: &dyn Array) -> Nulls {
    match array.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
        Some(nulls) => Nulls((0..array.len()).map(|row| nulls.is_null(row)).collect()),
        None => Nulls::default(),
    }
}

/// The values as numbers of [`raw_type`]; missing floats are NaN.
fn numbers(array: &dyn Array) -> Numbers {
    macro_rules! native {
        ($t:ident) => {
            array.as_primitive::<types::$t>().values().inner().as_slice().to_vec()
        };
    }
    let raw = raw_type(array.data_type());
    let mut bytes: Vec<u8> = match array.data_type() {
        DataType::Boolean => array.as_boolean().values().iter().map(u8::from).collect(),
        DataType::Int8 => native!(Int8Type),
        DataType::Int16 => native!(Int16Type),
        DataType::Int32 => native!(Int32Type),
        DataType::Int64 => native!(Int64Type),
        DataType::UInt8 => native!(UInt8Type),
        DataType::UInt16 => native!(UInt16Type),
        DataType::UInt32 => native!(UInt32Type),
        DataType::UInt64 => native!(UInt64Type),
        DataType::Float16 => native!(Float16Type),
        DataType::Float32 => native!(Float32Type),
        DataType::Float64 => native!(Float64Type),
        _ => to_f64(array).into_iter().flat_map(f64::to_le_bytes).collect(),
    };
    let nulls = nulls(array);
    if nulls.first().is_some() && !raw.is_integer() {
        let size = raw.size_bytes();
        let nan = match raw {
            RawType::F16 => f16::NAN.to_le_bytes().to_vec(),
            RawType::F32 => f32::NAN.to_le_bytes().to_vec(),
            _ => f64::NAN.to_le_bytes().to_vec(),
        };
        for (row, place) in bytes.chunks_exact_mut(size).enumerate() {
            if nulls.is_null(row) {
                place.copy_from_slice(&nan);
            }
        }
    }
    Numbers { raw, bytes, nulls }
}

/// The values as texts; truth values are spelled as labels are, if they are labels.
fn texts(array: &ArrayRef, is_label: bool, notation: &Notation) -> Block {
    if let Some(truths) = array.as_boolean_opt().filter(|_| is_label) {
        let mut texts = Texts::default();
        truths.values().iter().for_each(|truth| texts.push(bool_text(truth)));
        return Block::Texts { texts, nulls: nulls(array) };
    }
    let (codes, values) = distinct_texts(array);
    let (mut texts, mut nulls) = (Texts::default(), Nulls::default());
    let are_marks: Vec<bool> =
        values.iter().map(|text| is_label && notation.is_missing_label(text)).collect();
    for (row, code) in codes.into_iter().enumerate() {
        let code = if code > 0 && are_marks[code as usize - 1] { 0 } else { code };
        texts.push(if code == 0 { "" } else { &values[code as usize - 1] });
        if code == 0 {
            nulls.mark(row);
        }
    }
    Block::Texts { texts, nulls }
}
