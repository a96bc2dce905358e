//! Checks of the values of rows; an error names the first bad value.

use std::path::Path;

use ddp::config::Task;
use ddp::data::column_kind::ColumnKind;
use ddp::data::error::{DataError, Result};
use ddp::data::labels::{Label, LabelVocabulary};

use crate::error::TableError;
use crate::error::target_error::TargetError;

/// Location of values, for messages.
pub(crate) struct Columns<'a> {
    /// Numbers of the rows; empty if they count from 0.
    pub(crate) rows: &'a [usize],
    /// File and row.
    pub(crate) place: &'a dyn Fn(usize) -> String,
}

impl Columns<'_> {
    fn place(&self, n: usize) -> String {
        (self.place)(self.rows.get(n).copied().unwrap_or(n))
    }

    fn not_finite(&self, index: usize, first: usize, names: &[String], value: f64) -> DataError {
        let (row, column) = (first + index / names.len(), index % names.len());
        let column = format!("column \"{}\"", names[column]);
        DataError::from(TableError::NotFinite { place: self.place(row), column, value })
    }
}

/// The index of the first value that `is_bad`. Checks many values at a time without branches.
#[inline(always)]
fn first<T: Copy>(values: &[T], is_bad: impl Fn(T) -> bool) -> Option<usize> {
    let is_clean = !values.iter().fold(false, |bad, &value| bad | is_bad(value));
    if is_clean { None } else { values.iter().position(|&value| is_bad(value)) }
}

/// Checks that all values are finite, or NaN if that marks a missing value; `values` start at row `at`.
pub(crate) fn floats(
    values: &[f32],
    at: usize,
    names: &[String],
    has_missing: bool,
    columns: &Columns<'_>,
) -> Result<()> {
    let bad = if has_missing {
        first(values, |v| v.to_bits() & 0x7fff_ffff == 0x7f80_0000)
    } else {
        first(values, |v| (v.to_bits() & 0x7fff_ffff) as i32 > 0x7f7f_ffff)
    };
    bad.map_or(Ok(()), |index| Err(columns.not_finite(index, at, names, f64::from(values[index]))))
}

/// Checks that all labels are class indices below `n_classes`.
pub(crate) fn labels(labels: &[i64], n_classes: usize, columns: &Columns<'_>) -> Result<()> {
    let limit = n_classes as i64;
    let Some(index) = first(labels, |label| (label < 0) | (label >= limit)) else { return Ok(()) };
    let vocabulary = LabelVocabulary::numbers(n_classes);
    Err(TargetError::unknown_label(columns.place(index), &Label::Integer(labels[index]), &vocabulary).into())
}

/// Converts class indices that are stored as floats.
pub(crate) fn whole(values: &[f64], out: &mut [i64], columns: &Columns<'_>) -> Result<()> {
    for (index, (&value, out)) in values.iter().zip(out).enumerate() {
        if value.fract() != 0.0 || !value.is_finite() {
            return Err(DataError::from(TargetError::LabelNotWhole {
                place: columns.place(index),
                label: value,
            }));
        }
        *out = value as i64;
    }
    Ok(())
}

/// Checks that targets are finite in regression, and 0 or 1 in multilabel tasks.
pub(crate) fn values(values: &[f32], task: Task, names: &[String], columns: &Columns<'_>) -> Result<()> {
    if task == Task::Multilabel {
        let Some(index) = first(values, |v| (v != 0.0) & (v != 1.0)) else { return Ok(()) };
        let column = format!("target \"{}\"", names[index % names.len()]);
        let place = columns.place(index / names.len());
        return Err(DataError::from(TargetError::NotBinary {
            place,
            column,
            value: f64::from(values[index]),
        }));
    }
    let Some(index) = first(values, |v| !v.is_finite()) else { return Ok(()) };
    let column = format!("target \"{}\"", names[index % names.len()]);
    let value = f64::from(values[index]);
    Err(DataError::from(TargetError::TargetNotFinite {
        place: columns.place(index / names.len()),
        column,
        value,
    }))
}

/// Checks that weights are finite and not negative.
pub(crate) fn weights(weights: &[f32], columns: &Columns<'_>) -> Result<()> {
    let is_bad = |v: f32| (v.to_bits() & 0x7fff_ffff) as i32 > 0x7f7f_ffff || v < 0.0;
    let Some(index) = first(weights, is_bad) else { return Ok(()) };
    Err(DataError::from(TableError::BadWeight {
        place: columns.place(index),
        value: f64::from(weights[index]),
    }))
}

/// Checks that no column of the rows at `path` holds values of another kind than expected, dates in place of numbers.
///
/// # Errors
/// [`TableError::OtherKind`]
pub(crate) fn kinds(
    names: &[String],
    expected: &[Option<ColumnKind>],
    found: &[Option<ColumnKind>],
    path: &Path,
    of: &str,
) -> Result<()> {
    for (name, both) in names.iter().zip(expected.iter().zip(found)) {
        if let (Some(expected), Some(found)) = both
            && !expected.fits(*found)
        {
            let (path, column, of) = (path.to_owned(), name.clone(), of.to_owned());
            return Err(DataError::from(TableError::OtherKind {
                path,
                column,
                found: *found,
                expected: *expected,
                of,
            }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<()>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn the_value_that_is_wrong_is_named() {
        let rows = [7, 3, 9];
        let columns = Columns { rows: &rows, place: &|row| format!("x.npy, row {row}") };
        let names = ["a".to_owned(), "b".to_owned()];
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (values, part) in [
            ([0.0, 1.0, 2.0, nan, 4.0, 5.0], "row 3, column \"b\": expected a finite number, got NaN"),
            ([0.0, 1.0, 2.0, 3.0, -inf, 5.0], "row 9, column \"a\": expected a finite number, got -inf"),
        ] {
            assert!(message(floats(&values, 0, &names, false, &columns)).contains(part));
        }
        // NaN may be a missing value; infinity never is.
        assert!(floats(&[nan; 6], 0, &names, true, &columns).is_ok());
        assert!(message(floats(&[nan, inf], 1, &names, true, &columns)).contains("row 3"));

        assert!(message(labels(&[0, 2, -1], 3, &columns)).contains("row 9: expected a class number of 0"));
        assert!(message(labels(&[0, 3, 1], 3, &columns)).contains("row 3: label 3 is out of range"));
        assert!(message(whole(&[1.0, 1.5], &mut [0; 2], &columns)).contains("row 3: expected a whole"));
        assert!(message(values(&[0.0, 0.5], Task::Multilabel, &names, &columns)).contains("target \"b\""));
        assert!(message(values(&[0.0, nan], Task::Regression, &names, &columns)).contains("target \"b\""));
        assert!(message(weights(&[0.0, -1.0], &columns)).contains("row 3: expected a weight"));
        assert!(message(weights(&[nan], &columns)).contains("row 7: expected a weight"));
    }
}
