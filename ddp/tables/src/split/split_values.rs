//! The column by which rows are split: its distinct values, or its times.
//!
//! It is read on its own. Values take 4 bytes per row and the texts, times 8 bytes per row.

use std::collections::HashMap;
use std::path::PathBuf;

use ddp::config::{DataConfig, Split};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::Label;
use ddp::data::spelling::{category_text, is_code, truth};

use crate::error::TableError;
use crate::formats::Reader;
use crate::formats::error::CellProblem;
use crate::formats::table::source::TableFormat;
use crate::open::files::files_and_format;
use crate::source::SourceSpec;
use crate::table::for_each_text;
use crate::values::notation::{Meaning, Notation};
use crate::values::number::DecimalMark;
use crate::values::time::{format_seconds as format_moment, parse};

/// Values that a message lists.
const SHOWN_VALUES: usize = 10;

/// The files of a table.
pub(crate) struct Table {
    files: Vec<PathBuf>,
    format: &'static TableFormat,
}

impl Table {
    pub(crate) fn find(spec: &SourceSpec<'_>) -> Result<Self> {
        let no_columns = |why| {
            DataError::from(TableError::NotForFormat {
            key: "data.split",
            source_name: spec.source.to_owned(),
            why,
            hint: "use a table with that column, or write the rows for evaluation to a file and name it in `data.eval`"
                .to_owned(),
        })
        };
        if spec.source.starts_with("builtin:") {
            return Err(no_columns("is a built-in set, which has test rows and no such column"));
        }
        let (files, format) = files_and_format(spec)?;
        let Reader::Table(table) = &format.reader else {
            return Err(no_columns("holds arrays, which have no such column"));
        };
        // The column is read before the rows, and a pipe only once.
        if files.iter().any(|file| std::fs::metadata(file).is_ok_and(|data| !data.is_file())) {
            return Err(no_columns("is a pipe, which can't be read twice"));
        }
        Ok(Table { files, format: table })
    }

    fn for_each(
        &self,
        spec: &SourceSpec<'_>,
        column: &str,
        mut take: impl FnMut(&str, &Notation) -> Result<(), CellProblem>,
    ) -> Result<()> {
        let mut notation = SplitReader::notation(spec.data);
        for_each_text(&self.files, self.format, spec, column, |text, decimal| {
            notation.decimal = decimal;
            if notation.is_missing_label(text) {
                Err(CellProblem::SplitMissing)
            } else {
                take(text, &notation)
            }
        })
    }
}

/// The distinct values of a column, and the one of each row.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// In order of their first rows.
    pub(crate) texts: Vec<String>,
    pub(crate) n_rows: Vec<usize>,
    /// Number of each row's value.
    pub(crate) codes: Vec<u32>,
}

/// Reads the values of a column.
#[derive(Default)]
pub(crate) struct ValueReader {
    values: Values,
    /// `7` and `7.0` are one value.
    codes: HashMap<String, u32>,
}

impl ValueReader {
    fn take(&mut self, text: &str) {
        let code = match self.codes.get(text) {
            Some(&code) => code,
            None => {
                let value = plain(text);
                let values = &mut self.values;
                let code = *self.codes.entry(value.clone()).or_insert_with(|| {
                    values.texts.push(value);
                    values.n_rows.push(0);
                    values.texts.len() as u32 - 1
                });
                self.codes.insert(text.to_owned(), code);
                code
            }
        };
        self.values.n_rows[code as usize] += 1;
        self.values.codes.push(code);
    }
}

/// Reader of the column by which rows are split.
pub(crate) enum SplitReader {
    Values(ValueReader),
    Times(Times),
    /// A text that can't be used: the column is read again, for its place.
    Failed,
}

impl SplitReader {
    pub(crate) fn new(split: &Split) -> Self {
        match split {
            Split::Column { .. } | Split::Group { .. } => SplitReader::Values(ValueReader::default()),
            Split::Time { .. } => SplitReader::Times(Times::default()),
        }
    }

    /// The notation of the cells of a split's column, in a file of any decimal mark.
    pub(crate) fn notation(data: &DataConfig) -> Notation {
        Notation::new(DecimalMark::Either, &data.missing_values)
    }

    /// Takes the text of the next row.
    pub(crate) fn take(&mut self, text: &str, notation: &Notation) {
        let text = text.trim();
        let taken = match self {
            _ if notation.is_missing_label(text) => Err(CellProblem::SplitMissing),
            SplitReader::Values(values) => {
                values.take(text);
                Ok(())
            }
            SplitReader::Times(times) => times.take(text, notation),
            SplitReader::Failed => Ok(()),
        };
        if taken.is_err() {
            *self = SplitReader::Failed;
        }
    }

    /// The values of `n_rows` rows, if all of them were taken.
    pub(crate) fn values(self, n_rows: usize) -> Option<Values> {
        match self {
            SplitReader::Values(reader) => Some(reader.values).filter(|values| values.codes.len() == n_rows),
            SplitReader::Times(_) | SplitReader::Failed => None,
        }
    }

    /// The times of `n_rows` rows, if all of them were taken.
    pub(crate) fn times(self, n_rows: usize) -> Option<Times> {
        match self {
            SplitReader::Times(times) => Some(times).filter(|times| times.of_rows.len() == n_rows),
            SplitReader::Values(_) | SplitReader::Failed => None,
        }
    }
}

impl Values {
    pub(crate) fn read(table: &Table, spec: &SourceSpec<'_>, column: &str) -> Result<Self> {
        let mut reader = ValueReader::default();
        table.for_each(spec, column, |text, _| {
            reader.take(text);
            Ok(())
        })?;
        Ok(reader.values)
    }

    /// The values of some rows.
    pub(crate) fn select_rows(&self, rows: impl Iterator<Item = usize>) -> Self {
        let mut values = Values { texts: Vec::new(), n_rows: Vec::new(), codes: Vec::new() };
        let mut new_codes = vec![None; self.texts.len()];
        for row in rows {
            let old = self.codes[row] as usize;
            let code = *new_codes[old].get_or_insert_with(|| {
                values.texts.push(self.texts[old].clone());
                values.n_rows.push(0);
                values.texts.len() as u32 - 1
            });
            values.n_rows[code as usize] += 1;
            values.codes.push(code);
        }
        values
    }

    /// Some values with their numbers of rows, in alphabetical order.
    pub(crate) fn listed(&self) -> String {
        let mut listed: Vec<String> = self
            .texts
            .iter()
            .zip(&self.n_rows)
            .map(|(text, n_rows)| format!("\"{text}\" ({})", rows(*n_rows)))
            .collect();
        listed.sort();
        let n_more = listed.len().saturating_sub(SHOWN_VALUES);
        listed.truncate(SHOWN_VALUES);
        let more = if n_more > 0 { format!(" and {n_more} more") } else { String::new() };
        listed.join(", ") + &more
    }
}

/// The one text of a date or time: `2024-05-31` of `2024-05-31 00:00:00`.
pub(crate) fn moment(text: &str) -> Option<String> {
    parse(text).and_then(|moment| moment.text())
}

/// A value in the form in which values are compared, whatever the format that spells it: `1` for `1.0`, `1.5` for `1.50`, `true` for `True`,
/// `2024-05-31` for `2024-05-31 00:00:00`.
pub(crate) fn plain(text: &str) -> String {
    match Label::parse(text) {
        Label::Text(text) if truth(&text).is_some() => text.to_lowercase(),
        Label::Text(text) => moment(&text).unwrap_or_else(|| {
            let category = category_text(&text);
            let number = category.parse().ok().filter(|_| !is_code(&text));
            let whole = number.filter(|number: &f64| number.fract() == 0.0 && number.abs() < 1e18);
            whole.map_or_else(|| category.into_owned(), |whole| format!("{whole:.0}"))
        }),
        label => label.to_string(),
    }
}

/// The times of all rows, as numbers that grow with time.
#[derive(Debug, Default)]
pub(crate) struct Times {
    kind: TimeKind,
    pub(crate) of_rows: Vec<f64>,
}

/// Notation of times; those of different kinds have no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum TimeKind {
    #[default]
    Number,
    Date,
    TimeOfDay,
}

impl Times {
    pub(crate) fn read(table: &Table, spec: &SourceSpec<'_>, column: &str) -> Result<Self> {
        let mut times = Times::default();
        table.for_each(spec, column, |text, notation| times.take(text, notation))?;
        Ok(times)
    }

    fn take(&mut self, text: &str, notation: &Notation) -> Result<(), CellProblem> {
        let (kind, time) = match notation.meaning(text) {
            Meaning::Number(number) if number.is_finite() => (TimeKind::Number, number),
            Meaning::Moment(moment) if moment.has_date => (TimeKind::Date, moment.seconds),
            Meaning::Moment(moment) => (TimeKind::TimeOfDay, moment.seconds),
            _ => return Err(CellProblem::NotATime { text: text.to_owned() }),
        };
        if self.of_rows.is_empty() {
            self.kind = kind;
        }
        if self.kind != kind {
            return Err(CellProblem::OtherTime { text: text.to_owned() });
        }
        self.of_rows.push(time);
        Ok(())
    }

    pub(crate) fn shown(&self, time: f64) -> String {
        match self.kind {
            TimeKind::Number => time.to_string(),
            TimeKind::Date => format_moment(time, true),
            TimeKind::TimeOfDay => format_moment(time, false),
        }
    }
}

pub(crate) fn rows(n: usize) -> String {
    if n == 1 { "1 row".to_owned() } else { format!("{n} rows") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_value_are_one_value() {
        for (text, expected) in [
            ("1.0", "1"),
            ("1.50", "1.5"),
            ("1.8e+16", "18000000000000000"),
            ("True", "true"),
            ("2024-05-31 00:00:00", "2024-05-31"),
            ("2024-05-31T00:00:00Z", "2024-05-31"),
            ("a", "a"),
            // Codes keep their spelling.
            ("1e3", "1e3"),
            ("007", "007"),
        ] {
            assert_eq!(plain(text), expected);
        }
        assert_eq!(moment("2024-05-31 00:00:00"), moment("2024-05-31"));
        let mut times = Times::default();
        let notation = Notation::new(DecimalMark::Comma, &["-999".to_owned()]);
        ["999", "1.000", "1.000,5"].into_iter().for_each(|text| times.take(text, &notation).unwrap());
        assert_eq!(times.of_rows, [999.0, 1000.0, 1000.5], "by the mark of the file");
        assert_eq!((moment("12:30").as_deref(), moment("a")), (Some("12:30:00"), None));
    }
}
