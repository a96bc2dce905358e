//! Parses one cell of text by the role of its column.

use ddp::data::spelling::{is_code, is_integer, truth_word, whole, without_fraction};

use crate::formats::error::CellProblem;
use crate::table::columns::Role;
use crate::table::label_column::LabelCell;
use crate::table::rows::{TableRows, TargetCell, TargetCells};
use crate::values::notation::Notation;
use crate::values::number::marks::{is_grouped, with_point};
use crate::values::number::{Exact, NumberText, Unclear};
use crate::values::time;
use crate::values::time::Moment;

/// A cell as a number; seconds of a date or time.
struct Number {
    single: f32,
    /// `None` for a truth value.
    exact: Option<Exact>,
    /// The date or time.
    moment: Option<Moment>,
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
            let number = match number(cell, notation, rows.exact.keeps(feature)) {
                Err(CellProblem::NotFinite { .. }) if is_infinite_date(rows, feature, cell) => {
                    let value = missing(rows.may_miss, cell)?;
                    rows.kinds.add_infinite(feature, 1);
                    rows.set_feature(row, feature, value);
                    return Ok(());
                }
                number => number?,
            };
            if let Some(moment) = &number.moment {
                rows.kinds.add_moment(feature, moment);
            }
            rows.set_feature(row, feature, number.single);
            if let Some(exact) = number.exact {
                rows.set_exact(row, feature, exact);
            }
        }
        Role::Date(first) => {
            let parts = if notation.is_missing(cell) {
                [missing(rows.may_miss, cell)?; time::PARTS.len()]
            } else {
                match number(cell, notation, false) {
                    Ok(Number { moment: Some(moment), .. }) if moment.has_date => {
                        rows.kinds.add_parts(first, &moment);
                        time::parts(moment.seconds)
                    }
                    Err(CellProblem::NotFinite { .. }) if time::is_infinite(&shown(cell)) => {
                        let value = missing(rows.may_miss, cell)?;
                        rows.kinds.add_infinite(first, 1);
                        [value; time::PARTS.len()]
                    }
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
                TargetCells::Classes(labels) => TargetCell::Label(label(cell, notation, labels.are_known())?),
                TargetCells::Values { .. } => {
                    let Number { single, exact, .. } =
                        number_of_use(cell, notation, rows.exact_targets.keeps(index))?;
                    TargetCell::Value(single, exact)
                }
            };
            rows.set_target(row, index, target)?;
        }
        Role::Weight => {
            let Number { single: weight, moment, .. } = number_of_use(cell, notation, false)?;
            if moment.is_some() {
                return Err(CellProblem::TargetNotANumber { text: shown(cell) });
            }
            if weight < 0.0 {
                return Err(CellProblem::WeightNegative { text: shown(cell) });
            }
            rows.weights.as_mut().expect("a table with a weight column has weights")[row] = weight;
        }
        Role::Dropped => {}
        Role::Blank if shown(cell).is_empty() => {}
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

/// Whether a cell of a column of dates holds the infinity of PostgreSQL and DuckDB, a missing value.
fn is_infinite_date(rows: &TableRows, feature: usize, cell: &[u8]) -> bool {
    rows.kinds.are_dates(feature) && time::is_infinite(&shown(cell))
}

/// NaN for a missing value, if they are accepted.
fn missing(may_miss: bool, cell: &[u8]) -> Result<f32, CellProblem> {
    if may_miss {
        return Ok(f32::NAN);
    }
    let text = shown(cell);
    Err(if text.is_empty() { CellProblem::Empty } else { CellProblem::Missing { text } })
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

/// The number of a cell, exact on request; 1 and 0 for truth values, seconds for dates and times.
fn number(cell: &[u8], notation: &Notation, is_exact: bool) -> Result<Number, CellProblem> {
    let text = text_of(cell)?;
    let plain = plain(text, notation)?;
    match plain.single() {
        Some(single) if single.is_finite() => {
            let exact = if is_exact { plain.exact() } else { None };
            return Ok(Number { single, exact, moment: None });
        }
        Some(_) => return Err(CellProblem::NotFinite { text: shown(cell) }),
        None => {}
    }
    if let Some(truth) = truth_word(text) {
        return Ok(Number { single: f32::from(u8::from(truth)), exact: None, moment: None });
    }
    if let Some(moment) = time::parse(text) {
        let exact = Some(Exact::Double(moment.seconds));
        return Ok(Number { single: moment.seconds as f32, exact, moment: Some(moment) });
    }
    let has_comma = with_point(text).is_some() || is_grouped(text, ',');
    let text = shown(cell);
    Err(if has_comma {
        CellProblem::CommaInNumber { text }
    } else {
        CellProblem::NotANumber { text, column: None }
    })
}

/// The text of a cell with a number's marks as Rust writes them.
fn plain<'a>(text: &'a str, notation: &Notation) -> Result<NumberText<'a>, CellProblem> {
    notation.decimal.normalized(text).map_err(|Unclear| CellProblem::UnclearMark { text: text.to_owned() })
}

/// The number of a target or weight.
fn number_of_use(cell: &[u8], notation: &Notation, is_exact: bool) -> Result<Number, CellProblem> {
    number(cell, notation, is_exact).map_err(|problem| match problem {
        CellProblem::NotANumber { text, .. } => CellProblem::TargetNotANumber { text },
        problem => problem,
    })
}

/// Whether a cell is neither missing nor a number of any notation.
pub(super) fn is_text(cell: &[u8], notation: &Notation) -> bool {
    !notation.is_missing(cell) && matches!(number(cell, notation, false), Err(CellProblem::NotANumber { .. }))
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

/// A class label; `3.0` is an integer too, as floating-point tables write it, unless `are_known` classes have that spelling, and integers
/// beyond i64 keep their digits.
fn label<'a>(cell: &'a [u8], notation: &Notation, are_known: bool) -> Result<LabelCell<'a>, CellProblem> {
    let text = text_of(cell)?;
    let is_number = || text.parse::<f64>().is_ok_and(f64::is_finite);
    if is_code(text) && is_number() {
        return Ok(LabelCell::Code(text));
    }
    if let Ok(label) = text.parse::<i64>() {
        return Ok(LabelCell::Integer(label));
    }
    if is_integer(text) && is_number() {
        return Ok(LabelCell::Code(text));
    }
    let plain = plain(text, notation)?;
    match plain.double() {
        // A known class is looked up by its spelling first.
        Some(value) if are_known && whole(value).is_some() && plain.as_str() == text => {
            Ok(LabelCell::Code(text))
        }
        Some(value) if value.is_finite() => Ok(LabelCell::from_number(value)),
        Some(_) => Err(CellProblem::NotFinite { text: shown(cell) }),
        None => Ok(LabelCell::Text(text)),
    }
}
