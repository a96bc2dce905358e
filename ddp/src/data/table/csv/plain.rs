//! Parses plain rows in place: no quotes, and every cell valid for its column.

use memchr::memchr2;

use super::cell;
use super::number::Decimal;
use crate::data::table::columns::Role;
use crate::data::table::label_column::LabelCell;
use crate::data::table::rows::{TableRows, TargetCell, TargetCells};

/// Appends the row in the first line of `bytes` and returns the length of the line with its end.
///
/// Returns `None` for a row that is not plain; the appended row is then undefined.
#[inline]
pub(super) fn row(bytes: &[u8], roles: &[Role], rows: &mut TableRows) -> Option<usize> {
    let row = rows.begin_row();
    let first_feature = row * rows.n_features;
    let mut at = 0;
    let (last, others) = roles.split_last()?;
    for &role in others {
        let cell = bytes.get(at..)?;
        if let Some((number, len)) = Decimal::read(cell)
            && cell[len] == b','
            && let Some(()) = put(rows, row, first_feature, role, number)
        {
            at += len + 1;
        } else {
            at += any_cell(cell, b',', rows, row, role)? + 1;
        }
    }
    let cell = bytes.get(at..)?;
    if let Some((number, len)) = Decimal::read(cell)
        && let Some(end) = line_end(&cell[len..])
        && let Some(()) = put(rows, row, first_feature, *last, number)
    {
        return Some(at + len + end);
    }
    Some(at + any_cell(cell, b'\n', rows, row, *last)? + 1)
}

#[inline]
fn line_end(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Writes a number that is plain for its column.
#[inline(always)]
fn put(rows: &mut TableRows, row: usize, first_feature: usize, role: Role, number: Decimal) -> Option<()> {
    match role {
        Role::Feature(index) => {
            let value = number.to_f32()?;
            rows.features[first_feature + index] = value;
            if rows.remainders.keeps(index) {
                rows.remainders.set(index, row, number.remainder(value)?);
            }
        }
        Role::Target(index) => {
            let target = match &rows.targets {
                TargetCells::Classes(_) => TargetCell::Label(LabelCell::Integer(number.to_i64()?)),
                TargetCells::Values { .. } => TargetCell::Value(number.to_f32()?),
            };
            rows.set_target(row, index, target).ok()?;
        }
        Role::Weight => {
            let weight = number.to_f32().filter(|weight| *weight >= 0.0)?;
            *rows.weights.as_mut()?.get_mut(row)? = weight;
        }
        Role::Dropped => {}
        // Categories are compared as text: 1 and 1.0 are different.
        Role::Category { .. } => return None,
    }
    Some(())
}

/// Writes an unquoted cell that ends at `end` and returns its length.
fn any_cell(bytes: &[u8], end: u8, rows: &mut TableRows, row: usize, role: Role) -> Option<usize> {
    let len = memchr2(b',', b'\n', bytes)?;
    if bytes[len] != end {
        return None;
    }
    let cell = &bytes[..len];
    let cell = if end == b'\n' { cell.strip_suffix(b"\r").unwrap_or(cell) } else { cell };
    if memchr2(b'"', b'\r', cell).is_some() {
        return None;
    }
    cell::put(rows, row, role, cell).ok()?;
    // Only the exact reader knows the line.
    if rows.lacks_place() { None } else { Some(len) }
}
