//! Parses one cell by the role of its column.

use crate::data::CellProblem;
use crate::data::table::columns::Role;
use crate::data::table::label_column::LabelCell;
use crate::data::table::rows::{TableRows, TargetCell, TargetCells};

/// Writes the value of one cell to `row`.
pub(super) fn put(rows: &mut TableRows, row: usize, role: Role, cell: &[u8]) -> Result<(), CellProblem> {
    let n = rows.n_features;
    match role {
        Role::Feature(index) => {
            let is_missing = rows.may_miss && is_missing(cell);
            let value = if is_missing { f32::NAN } else { number(cell)? };
            rows.features[row * n + index] = value;
            if rows.remainders.keeps(index) && !is_missing {
                rows.remainders.set(index, row, remainder(cell, value)?);
            }
        }
        Role::Category { feature, index } => {
            // An empty cell is the unknown category.
            let code = match text_of(cell) {
                Ok(value) => rows.code(index, value),
                Err(CellProblem::Empty) => 0,
                Err(problem) => return Err(problem),
            };
            rows.features[row * n + feature] = code as f32;
        }
        Role::Target(index) => {
            let target = match &rows.targets {
                TargetCells::Classes(_) => TargetCell::Label(label(cell)?),
                TargetCells::Values { .. } => TargetCell::Value(number(cell)?),
            };
            rows.set_target(row, index, target)?;
        }
        Role::Weight => {
            let weight = number(cell)?;
            if weight < 0.0 {
                return Err(CellProblem::WeightNegative { text: shown(cell) });
            }
            rows.weights.as_mut().expect("a table with a weight column has weights")[row] = weight;
        }
        Role::Dropped => {}
    }
    Ok(())
}

/// Whether a cell is a missing value, by the rules of pandas.
pub(crate) fn is_missing(cell: &[u8]) -> bool {
    matches!(cell.trim_ascii(), b"" | b"NA" | b"N/A" | b"NaN" | b"nan" | b"null" | b"NULL" | b"None" | b"?")
}

fn text_of(cell: &[u8]) -> Result<&str, CellProblem> {
    let text = std::str::from_utf8(cell).map_err(|_| CellProblem::NotUtf8)?.trim();
    if text.is_empty() { Err(CellProblem::Empty) } else { Ok(text) }
}

/// The cell for messages, truncated if it is long.
fn shown(cell: &[u8]) -> String {
    let text = String::from_utf8_lossy(cell);
    let text = text.trim();
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

fn number(cell: &[u8]) -> Result<f32, CellProblem> {
    let text = text_of(cell)?;
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(CellProblem::NotFinite { text: shown(cell) }),
        Err(_) => Err(CellProblem::NotANumber { text: shown(cell) }),
    }
}

/// The number in `cell` minus `single`, its nearest f32.
fn remainder(cell: &[u8], single: f32) -> Result<f64, CellProblem> {
    let text = text_of(cell)?;
    match text.parse::<i128>() {
        Ok(whole) => Ok((whole - single as i128) as f64),
        Err(_) => match text.parse::<f64>() {
            Ok(value) => Ok(value - f64::from(single)),
            Err(_) => Err(CellProblem::NotANumber { text: shown(cell) }),
        },
    }
}

/// A class label; `3.0` is an integer too, as floating-point tables write it.
fn label(cell: &[u8]) -> Result<LabelCell<'_>, CellProblem> {
    let text = text_of(cell)?;
    if is_missing(cell) {
        return Err(CellProblem::LabelMissing { text: shown(cell) });
    }
    if let Ok(label) = text.parse::<i64>() {
        return Ok(LabelCell::Integer(label));
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(LabelCell::of_number(value)),
        Ok(_) => Err(CellProblem::NotFinite { text: shown(cell) }),
        Err(_) => Ok(LabelCell::Text(text)),
    }
}
