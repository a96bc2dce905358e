//! Reads rows from arrays in files, with their types, and from built-in sets.

use std::path::PathBuf;
use std::sync::Arc;

use ddp::data::{DataError, Dataset, TargetLayout};
use ddp_tables::arrays::RawRows;
use ddp_tables::error::TableError;
use ddp_tables::error::target_error::TargetError;
use ddp_tables::formats::arrays::RawArray;
use ddp_tables::formats::arrays::reader::ArrayReader;
use ddp_tables::formats::write::{
    Block, Chunk, Group, Kind, Nulls, Numbers, Purpose, Schema, first_not_finite,
};
use ddp_tables::row_values::RowValues;
use ddp_tables::source::SourceSpec;
use ddp_tables::values::element::RawType;
use ddp_tables::values::texts::Texts;

use super::input::Input;
use crate::error::Result;

/// Size above which arrays are read in pieces rather than mapped.
const MAPPED_BYTES: u64 = 16 << 20;

/// Rows of arrays.
pub(super) struct ArraySource {
    rows: Rows,
    schema: Schema,
    /// Labels of the class indices in the file.
    labels: Option<Vec<String>>,
    at: usize,
    numbers: Vec<usize>,
}

enum Rows {
    Files(Box<RawRows>),
    Builtin(Arc<dyn Dataset>),
}

impl ArraySource {
    /// A built-in set.
    pub(super) fn builtin(spec: &SourceSpec<'_>) -> Result<Self> {
        let rows = spec.open()?;
        let layout = rows.layout();
        let features = Group {
            purpose: Purpose::Feature,
            names: layout.features.clone(),
            kind: Kind::Number(RawType::F32),
            categories: Vec::new(),
        };
        let target = Group::column(Purpose::Target, spec.data.target[0].clone(), Kind::Number(RawType::I64));
        Ok(ArraySource::new(Rows::Builtin(rows), spec, vec![features, target], None))
    }

    /// The arrays of `files`.
    pub(super) fn open(files: &[PathBuf], reader: &ArrayReader, input: &Input<'_>) -> Result<Self> {
        let spec = input.spec();
        let spec = SourceSpec { mapped_bytes: spec.mapped_bytes.min(MAPPED_BYTES), ..spec };
        let rows = ddp_tables::open::open_arrays::open(files, reader, &spec)?;
        let layout = rows.layout();
        let mut groups = vec![Group {
            purpose: Purpose::Feature,
            names: layout.features.clone(),
            kind: Kind::Number(rows.features.raw),
            categories: layout.categories.clone(),
        }];
        let is_named = rows.target_names.as_ref().filter(|names| names.len() == rows.targets.n_values());
        let labels =
            rows.labels.clone().filter(|_| rows.targets.n_values() == 1 && rows.targets.raw.is_integer());
        groups.push(Group {
            purpose: Purpose::Target,
            names: match (&layout.targets, is_named) {
                (_, Some(names)) if !input.has_target => names.clone(),
                (targets @ (TargetLayout::Values { .. } | TargetLayout::Heads { .. }), _) => {
                    targets.column_names()
                }
                (TargetLayout::Classes { .. }, _) => {
                    vec![spec.data.target.first().cloned().unwrap_or_else(|| "label".to_owned())]
                }
            },
            kind: match rows.targets.raw {
                _ if labels.is_some() => Kind::Text,
                raw if raw.is_text() => Kind::Text,
                raw => Kind::Number(raw),
            },
            categories: Vec::new(),
        });
        if let Some(weights) = &rows.weights {
            groups.push(Group::column(Purpose::Weight, "weight".to_owned(), Kind::Number(weights.raw)));
        }
        Ok(ArraySource::new(Rows::Files(Box::new(rows)), &spec, groups, labels))
    }

    fn new(rows: Rows, spec: &SourceSpec<'_>, groups: Vec<Group>, labels: Option<Vec<String>>) -> Self {
        let schema = Schema { source: spec.source.to_owned(), groups };
        ArraySource { rows, schema, labels, at: 0, numbers: Vec::new() }
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    fn n_rows(&self) -> usize {
        match &self.rows {
            Rows::Files(rows) => rows.len(),
            Rows::Builtin(rows) => rows.len(),
        }
    }

    pub(super) fn fraction(&self) -> f64 {
        self.at as f64 / self.n_rows().max(1) as f64
    }

    pub(super) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let end = self.at.saturating_add(max_rows).min(self.n_rows());
        self.numbers.clear();
        self.numbers.extend(self.at..end);
        let n_rows = self.numbers.len();
        if n_rows == 0 {
            return Ok(None);
        }
        self.at = end;
        let blocks = match &self.rows {
            Rows::Files(rows) => self.blocks(rows)?,
            Rows::Builtin(rows) => builtin_blocks(&**rows, &self.numbers)?,
        };
        Ok(Some(Chunk { n_rows, blocks }))
    }

    fn blocks(&self, rows: &RawRows) -> Result<Vec<Block>> {
        let numbers = &self.numbers;
        let features = rows.features.numbers(numbers)?;
        if let Some(index) = first_not_finite(rows.features.raw, &features) {
            let width = rows.features.row_len();
            let column = format!("column \"{}\"", self.schema.groups[0].names[index % width]);
            let features = Numbers { raw: rows.features.raw, bytes: features, nulls: Nulls::default() };
            let (place, value) = (rows.features.place(numbers[index / width]), features.double(index));
            return Err(DataError::from(TableError::NotFinite { place, column, value }).into());
        }
        let mut blocks = vec![block(&rows.features, features)];
        blocks.push(self.targets(&rows.targets)?);
        if let Some(weights) = &rows.weights {
            blocks.push(block(weights, weights.numbers(numbers)?));
        }
        rows.check_files()?;
        Ok(blocks)
    }

    fn targets(&self, targets: &RawArray) -> Result<Block> {
        let mut texts = Texts::default();
        if targets.raw.is_text() {
            let mut empty = None;
            targets.rows_to_text(&self.numbers, |row, text| {
                if text.trim().is_empty() {
                    empty.get_or_insert(row);
                }
                texts.push(text.trim());
            })?;
            return match empty {
                Some(row) => Err(DataError::from(TargetError::LabelMissing {
                    place: targets.place(self.numbers[row]),
                })
                .into()),
                None => Ok(Block::Texts { texts, nulls: Nulls::default() }),
            };
        }
        if let Some(labels) = &self.labels {
            let mut codes = vec![0; self.numbers.len()];
            targets.rows_to_i64(&self.numbers, &mut codes)?;
            for code in codes {
                match usize::try_from(code).ok().and_then(|code| labels.get(code)) {
                    Some(label) => texts.push(label),
                    None => texts.push(&code.to_string()),
                }
            }
            return Ok(Block::Texts { texts, nulls: Nulls::default() });
        }
        Ok(block(targets, targets.numbers(&self.numbers)?))
    }
}

fn block(array: &RawArray, bytes: Vec<u8>) -> Block {
    Block::Numbers(Numbers { raw: array.raw, bytes, nulls: Nulls::default() })
}

/// Rows of a built-in set.
fn builtin_blocks(rows: &dyn Dataset, numbers: &[usize]) -> Result<Vec<Block>> {
    let RowValues { x, targets, .. } = RowValues::read(rows, numbers)?;
    let targets: Vec<i64> = targets.into_iter().map(|class| class as i64).collect();
    let block =
        |raw, bytes: &[u8]| Block::Numbers(Numbers { raw, bytes: bytes.to_vec(), nulls: Nulls::default() });
    Ok(vec![
        block(RawType::F32, bytemuck::cast_slice(&x)),
        block(RawType::I64, bytemuck::cast_slice(&targets)),
    ])
}
