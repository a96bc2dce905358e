//! Parses one cell of text by the role of its column.

use std::borrow::Cow;

use super::columns::Role;
use super::decimal::{DecimalMark, Unclear, is_grouped, with_point};
use super::label_column::LabelCell;
use super::rows::{TableRows, TargetCell, TargetCells};
use crate::data::CellProblem;
use crate::data::datasets::exact_columns::Exact;
use crate::data::labels::is_code;
use crate::data::values::time;
use crate::data::values::vocabulary::without_fraction;

/// Notation of numbers and missing values in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Notation {
    /// Mark between the integer part and decimals.
    pub decimal: DecimalMark,
    /// Texts that mark a missing value, in addition to the usual ones.
    missing: Vec<String>,
    /// Cells among them that are numbers.
    missing_numbers: Vec<f64>,
    /// Whether no other text than these marks a missing value: the list holds the empty text.
    is_complete: bool,
}

/// A cell as a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    /// A number of the file, or a truth value.
    Single(f32),
    /// Seconds of a date or time.
    Seconds { seconds: f64, has_date: bool },
}

impl Notation {
    /// The notation of values in names of folders.
    pub fn of_folders() -> Self {
        Self::new(DecimalMark::Point, &[])
    }

    pub(crate) fn new(decimal: DecimalMark, missing: &[String]) -> Self {
        let missing: Vec<String> = missing.iter().map(|text| text.trim().to_owned()).collect();
        let missing_numbers = missing.iter().filter_map(|text| text.parse().ok()).collect();
        let is_complete = missing.iter().any(String::is_empty);
        Notation { decimal, missing, missing_numbers, is_complete }
    }

    /// The notation of numbers with a point or a comma.
    pub(crate) fn of_any_decimal(missing: &[String]) -> Self {
        Self::new(DecimalMark::Either, missing)
    }

    /// Whether the config names marks of missing values.
    #[cfg(feature = "parquet")]
    pub(super) fn has_marks(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The numbers that mark a missing value, rounded.
    #[cfg(feature = "parquet")]
    pub(super) fn missing_singles(&self) -> Vec<f32> {
        self.missing_numbers.iter().map(|number| *number as f32).collect()
    }

    /// Whether a number may mark a missing value.
    pub(crate) fn has_missing_numbers(&self) -> bool {
        !self.missing_numbers.is_empty()
    }

    /// Whether a cell is a missing value, by the rules of pandas or by the config.
    pub(crate) fn is_missing(&self, cell: &[u8]) -> bool {
        let cell = cell.trim_ascii();
        (!self.is_complete && is_usual_mark(cell)) || self.is_marked(cell)
    }

    /// Whether the trimmed text of a label marks a missing one; a sign alone may be a label.
    pub fn is_missing_label(&self, text: &str) -> bool {
        if text == "-" { self.is_marked(b"-") } else { self.is_missing(text.as_bytes()) }
    }

    /// Whether a trimmed cell is one of the config's marks.
    pub(super) fn is_marked(&self, cell: &[u8]) -> bool {
        if self.missing.is_empty() {
            return false;
        }
        let is_number =
            |text: &str| text.parse::<f64>().is_ok_and(|number| self.missing_numbers.contains(&number));
        self.missing.iter().any(|mark| mark.as_bytes() == cell)
            || self.has_missing_numbers() && std::str::from_utf8(cell).is_ok_and(is_number)
    }
}

/// Whether a trimmed cell marks a missing value in most programs.
fn is_usual_mark(cell: &[u8]) -> bool {
    matches!(
        cell,
        b"" | b"NA"
            | b"N/A"
            | b"n/a"
            | b"<NA>"
            | b"#N/A"
            | b"NaN"
            | b"nan"
            | b"null"
            | b"NULL"
            | b"None"
            | b"NaT"
            | b"-"
            | b"?"
    )
}

/// Meaning of a text without regard to the role of its column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning {
    /// A missing value.
    Missing,
    /// A number.
    Number(f64),
    /// A truth value.
    Truth(bool),
    /// Seconds of a date or time.
    Seconds {
        /// Seconds since 1970, or since midnight.
        seconds: f64,
        /// Whether the text has a date.
        has_date: bool,
    },
    /// Any other text.
    Text,
}

impl Notation {
    /// The meaning of a cell's trimmed text.
    pub fn meaning(&self, text: &str) -> Meaning {
        if self.is_missing(text.as_bytes()) {
            return Meaning::Missing;
        }
        let number = self.decimal.normalized(text);
        if let Ok(Ok(number)) = number.as_deref().map(str::parse) {
            return Meaning::Number(number);
        }
        if let Some(truth) = truth(text) {
            return Meaning::Truth(truth);
        }
        if let Some(time::Moment { seconds, has_date }) = time::parse(text) {
            return Meaning::Seconds { seconds, has_date };
        }
        Meaning::Text
    }
}

/// Writes the value of one cell to `row`.
pub(crate) fn put(
    rows: &mut TableRows,
    row: usize,
    role: Role,
    cell: &[u8],
    notation: &Notation,
) -> Result<(), CellProblem> {
    match role {
        Role::Feature(feature) => {
            if notation.is_missing(cell) {
                let value = missing(rows.may_miss, cell)?;
                rows.set_feature(row, feature, value);
                return Ok(());
            }
            match number(cell, notation)? {
                Number::Single(value) => {
                    rows.set_feature(row, feature, value);
                    if rows.exact.keeps(feature)
                        && let Some(value) = exact(cell, notation)?
                    {
                        rows.set_exact(row, feature, value);
                    }
                }
                Number::Seconds { seconds, .. } => {
                    rows.set_feature(row, feature, seconds as f32);
                    rows.set_exact(row, feature, Exact::Double(seconds));
                }
            }
        }
        Role::Date(first) => {
            let parts = if notation.is_missing(cell) {
                [missing(rows.may_miss, cell)?; time::PARTS.len()]
            } else {
                match number(cell, notation) {
                    Ok(Number::Seconds { seconds, has_date: true }) => time::parts(seconds),
                    _ => return Err(CellProblem::NotADate { text: shown(cell) }),
                }
            };
            for (place, value) in parts.into_iter().enumerate() {
                rows.set_feature(row, first + place, value);
            }
        }
        Role::Category { feature, index } => {
            // An empty cell is the unknown category.
            let code = match text_of(cell) {
                Ok(value) if notation.is_marked(value.as_bytes()) => 0,
                Ok(value) => rows.code(index, without_fraction(value)),
                Err(CellProblem::TargetEmpty) => 0,
                Err(problem) => return Err(problem),
            };
            rows.set_feature(row, feature, code as f32);
        }
        Role::Target(index) => {
            if lacks_target(rows, cell, notation) {
                return rows.skip_target(row, || target_missing(cell));
            }
            let target = match &rows.targets {
                TargetCells::Classes(_) => TargetCell::Label(label(cell, notation)?),
                TargetCells::Values { .. } => {
                    let (value, exact) = exact_value(cell, notation)?;
                    TargetCell::Value(value, exact)
                }
            };
            rows.set_target(row, index, target)?;
        }
        Role::Weight => {
            let (weight, _) = exact_value(cell, notation)?;
            if weight < 0.0 {
                return Err(CellProblem::WeightNegative { text: shown(cell) });
            }
            rows.weights.as_mut().expect("a table with a weight column has weights")[row] = weight;
        }
        Role::Dropped => {}
        Role::Blank if cell.trim_ascii().is_empty() => {}
        // The reader knows the column.
        Role::Blank => return Err(CellProblem::unnamed(cell, "")),
    }
    Ok(())
}

/// [`put`] for a cell that the file marks as a text: a label keeps its spelling.
pub(crate) fn put_string(
    rows: &mut TableRows,
    row: usize,
    role: Role,
    cell: &[u8],
    notation: &Notation,
) -> Result<(), CellProblem> {
    match (role, &rows.targets) {
        (Role::Target(index), TargetCells::Classes(_)) => {
            if lacks_target(rows, cell, notation) {
                return rows.skip_target(row, || target_missing(cell));
            }
            let text = text_of(cell)?;
            rows.set_target(row, index, TargetCell::Label(LabelCell::String(text)))
        }
        _ => put(rows, row, role, cell, notation),
    }
}

/// NaN for a missing value, if they are accepted.
fn missing(may_miss: bool, cell: &[u8]) -> Result<f32, CellProblem> {
    match cell.trim_ascii() {
        _ if may_miss => Ok(f32::NAN),
        b"" => Err(CellProblem::Empty),
        cell => Err(CellProblem::Missing { text: shown(cell) }),
    }
}

fn text_of(cell: &[u8]) -> Result<&str, CellProblem> {
    let text = std::str::from_utf8(cell).map_err(|_| CellProblem::NotUtf8)?.trim();
    if text.is_empty() { Err(CellProblem::TargetEmpty) } else { Ok(text) }
}

/// The cell for messages, truncated if it is long.
pub(super) fn shown(cell: &[u8]) -> String {
    let text = String::from_utf8_lossy(cell);
    let text = text.trim();
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

/// The number of a cell; 1 and 0 for truth values, seconds for dates and times.
fn number(cell: &[u8], notation: &Notation) -> Result<Number, CellProblem> {
    let text = text_of(cell)?;
    match plain(text, notation)?.parse::<f32>() {
        Ok(value) if value.is_finite() => return Ok(Number::Single(value)),
        Ok(_) => return Err(CellProblem::NotFinite { text: shown(cell) }),
        Err(_) => {}
    }
    if let Some(truth) = truth(text) {
        return Ok(Number::Single(f32::from(u8::from(truth))));
    }
    if let Some(time::Moment { seconds, has_date }) = time::parse(text) {
        return Ok(Number::Seconds { seconds, has_date });
    }
    let has_comma = with_point(text).is_some() || is_grouped(text, ',');
    let problem = |text| {
        if has_comma {
            CellProblem::CommaInNumber { text }
        } else {
            CellProblem::NotANumber { text, column: None }
        }
    };
    Err(problem(shown(cell)))
}

/// The text of a cell with a number's marks as Rust writes them.
fn plain<'a>(text: &'a str, notation: &Notation) -> Result<Cow<'a, str>, CellProblem> {
    notation.decimal.normalized(text).map_err(|Unclear| CellProblem::UnclearMark { text: text.to_owned() })
}

/// The number of a target or weight as f32, and its exact value.
fn exact_value(cell: &[u8], notation: &Notation) -> Result<(f32, Option<Exact>), CellProblem> {
    match number(cell, notation) {
        Ok(Number::Single(value)) => Ok((value, exact(cell, notation)?)),
        Ok(Number::Seconds { seconds, .. }) => Ok((seconds as f32, Some(Exact::Double(seconds)))),
        Err(CellProblem::NotANumber { text, .. }) => Err(CellProblem::TargetNotANumber { text }),
        Err(problem) => Err(problem),
    }
}

/// Whether a cell is neither missing nor a number of any notation.
pub(super) fn is_text(cell: &[u8], notation: &Notation) -> bool {
    !notation.is_missing(cell) && matches!(number(cell, notation), Err(CellProblem::NotANumber { .. }))
}

/// The truth value of a text.
pub(super) fn truth(text: &str) -> Option<bool> {
    match () {
        () if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("yes") => Some(true),
        () if text.eq_ignore_ascii_case("false") || text.eq_ignore_ascii_case("no") => Some(false),
        () => None,
    }
}

/// The exact value of a cell that is a number; `None` for a truth value.
fn exact(cell: &[u8], notation: &Notation) -> Result<Option<Exact>, CellProblem> {
    let text = plain(text_of(cell)?, notation)?;
    let whole = text.parse().ok().map(Exact::of_whole);
    Ok(whole.or_else(|| text.parse().ok().map(Exact::Double)))
}

/// Whether the cell of a target holds a mark of a missing value.
fn lacks_target(rows: &TableRows, cell: &[u8], notation: &Notation) -> bool {
    match (&rows.targets, std::str::from_utf8(cell)) {
        (TargetCells::Classes(_), Ok(text)) => notation.is_missing_label(text.trim()),
        (TargetCells::Values { .. }, Ok(_)) => notation.is_missing(cell),
        (_, Err(_)) => false,
    }
}

fn target_missing(cell: &[u8]) -> CellProblem {
    match shown(cell) {
        text if text.is_empty() => CellProblem::TargetMissing,
        text => CellProblem::LabelMissing { text },
    }
}

/// A class label; `3.0` is an integer too, as floating-point tables write it.
fn label<'a>(cell: &'a [u8], notation: &Notation) -> Result<LabelCell<'a>, CellProblem> {
    let text = text_of(cell)?;
    if is_code(text) && text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Ok(LabelCell::Code(text));
    }
    if let Ok(label) = text.parse::<i64>() {
        return Ok(LabelCell::Integer(label));
    }
    match plain(text, notation)?.parse::<f64>().ok() {
        Some(value) if value.is_finite() => Ok(LabelCell::of_number(value)),
        Some(_) => Err(CellProblem::NotFinite { text: shown(cell) }),
        None => Ok(LabelCell::Text(text)),
    }
}
