//! Parses plain rows in place: no quotes, and every cell valid for its column.

use ddp_rows::values::notation::Notation;
use ddp_rows::values::number::DecimalMark;
use ddp_rows::values::number::digits::Decimal;
use memchr::{memchr, memchr2};

use crate::data::table::cell;
use crate::data::table::columns::{ColumnPlan, Role};
use crate::data::table::kept::KeptValues;
use crate::data::table::label_column::LabelCell;
use crate::data::table::rows::{TableRows, TargetCell, TargetCells};

/// Reads plain rows of a file whose lines are records.
pub(super) struct PlainRows {
    delimiter: u8,
    /// Decimal mark.
    point: u8,
    /// Columns of the file that are kept, ascending, each with its place among the kept ones.
    kept: Vec<(usize, usize)>,
}

impl PlainRows {
    /// `None` for a file that has no plain rows, by its notation.
    pub(super) fn new(delimiter: u8, notation: &Notation, plan: &ColumnPlan) -> Option<Self> {
        let point = match notation.decimal {
            _ if notation.has_missing_numbers() => return None,
            DecimalMark::Comma if delimiter == b',' => return None,
            DecimalMark::Unclear => return None,
            DecimalMark::Comma => b',',
            _ => b'.',
        };
        let kept = plan.kept.iter().copied().enumerate().map(|(place, column)| (column, place));
        let mut kept: Vec<_> = kept.filter(|(column, _)| *column < plan.names.len()).collect();
        kept.sort_unstable();
        Some(PlainRows { delimiter, point, kept })
    }

    /// Appends the row in the first line of `text` and returns the length of the line with its end; `None`, and no row, if it is
    /// not plain.
    #[inline]
    pub(super) fn read(
        &self,
        text: &[u8],
        roles: &[Role],
        notation: &Notation,
        rows: &mut TableRows,
    ) -> Option<usize> {
        // The usual characters as constants, so that the compiler knows them.
        let read = match (self.delimiter, self.point) {
            (b',', _) => row_of(text, roles, b',', b'.', notation, rows),
            (delimiter, b',') => row_of(text, roles, delimiter, b',', notation, rows),
            (delimiter, _) => row_of(text, roles, delimiter, b'.', notation, rows),
        };
        match read {
            Some(len) => self.keep(&text[..len], &mut rows.kept),
            None => rows.drop_rows_from(rows.n_rows - 1),
        }
        read
    }

    /// Appends the kept cells of a plain row, which has no quotes.
    fn keep(&self, line: &[u8], kept: &mut [KeptValues]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (mut rest, mut next) = (line, 0);
        for &(column, place) in &self.kept {
            while next < column {
                rest = memchr(self.delimiter, rest).map_or(&[][..], |end| &rest[end + 1..]);
                next += 1;
            }
            let cell = &rest[..memchr(self.delimiter, rest).unwrap_or(rest.len())];
            kept[place].push(&String::from_utf8_lossy(cell));
        }
    }
}

/// Appends a row with cells that end at `delimiter` and numbers with the mark `point`; one that is not plain is undefined.
#[inline(always)]
fn row_of(
    bytes: &[u8],
    roles: &[Role],
    delimiter: u8,
    point: u8,
    notation: &Notation,
    rows: &mut TableRows,
) -> Option<usize> {
    let row = rows.begin_row();
    let first_feature = row * rows.n_features;
    let mut at = 0;
    let (last, others) = roles.split_last()?;
    for &role in others {
        let cell = bytes.get(at..)?;
        if let Some((number, len)) = Decimal::read(cell, point)
            && cell[len] == delimiter
            && !(matches!(role, Role::Target(_)) && may_be_code(cell))
            && let Some(()) = put(rows, row, first_feature, role, number)
        {
            at += len + 1;
        } else {
            at += any_cell(cell, delimiter, delimiter, notation, rows, row, role)? + 1;
        }
    }
    let cell = bytes.get(at..)?;
    if let Some((number, len)) = Decimal::read(cell, point)
        && let Some(end) = line_end(&cell[len..])
        && !(matches!(last, Role::Target(_)) && may_be_code(cell))
        && let Some(()) = put(rows, row, first_feature, *last, number)
    {
        return Some(at + len + end);
    }
    Some(at + any_cell(cell, delimiter, b'\n', notation, rows, row, *last)? + 1)
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
            if rows.exact.keeps(index) {
                rows.set_exact(row, index, number.exact()?);
            }
        }
        Role::Target(index) => {
            let target = match &rows.targets {
                TargetCells::Classes(_) => TargetCell::Label(LabelCell::Integer(number.to_i64()?)),
                TargetCells::Values { .. } => {
                    let exact = if rows.exact_targets.keeps(index) { Some(number.exact()?) } else { None };
                    TargetCell::Value(number.to_f32()?, exact)
                }
            };
            rows.set_target(row, index, target).ok()?;
        }
        Role::Weight => {
            let weight = number.to_f32().filter(|weight| *weight >= 0.0)?;
            *rows.weights.as_mut()?.get_mut(row)? = weight;
        }
        Role::Dropped => {}
        // Categories are texts.
        Role::Category { .. } | Role::Date(_) | Role::Blank => return None,
    }
    Some(())
}

/// Whether a number starts like a code, whose spelling counts if it is a label: with a zero before another digit.
#[inline(always)]
fn may_be_code(cell: &[u8]) -> bool {
    match cell {
        [b'+' | b'-', b'0', digit, ..] | [b'0', digit, ..] => digit.is_ascii_digit(),
        _ => false,
    }
}

/// Writes an unquoted cell that ends at `end` and returns its length.
fn any_cell(
    bytes: &[u8],
    delimiter: u8,
    end: u8,
    notation: &Notation,
    rows: &mut TableRows,
    row: usize,
    role: Role,
) -> Option<usize> {
    let len = memchr2(delimiter, b'\n', bytes)?;
    if bytes[len] != end {
        return None;
    }
    let cell = &bytes[..len];
    let cell = if end == b'\n' { cell.strip_suffix(b"\r").unwrap_or(cell) } else { cell };
    if memchr2(b'"', b'\r', cell).is_some() {
        return None;
    }
    cell::put(rows, row, role, cell, notation).ok()?;
    // Only the exact reader knows the line.
    if rows.lacks_place() { None } else { Some(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_cells_are_those_of_the_line() {
        for (line, delimiter) in [("a, b ,,d\r\n", b','), ("a; b ;;d\n", b';'), ("a\t b \t\td", b'\t')] {
            let mut kept = vec![KeptValues::default(); 4];
            PlainRows { delimiter, point: b'.', kept: vec![(0, 2), (1, 0), (2, 3), (3, 1)] }
                .keep(line.as_bytes(), &mut kept);
            let texts: Vec<_> = kept.iter().map(|kept| kept.texts.get(0)).collect();
            assert_eq!(texts, [" b ", "d", "a", ""], "{line:?}");
            let mut last = vec![KeptValues::default()];
            PlainRows { delimiter, point: b'.', kept: vec![(3, 0)] }.keep(line.as_bytes(), &mut last);
            assert_eq!(last[0].texts.get(0), "d");
        }
    }
}
