//! Notation of values in a file of text: numbers, missing values, truth values, dates and times.

use ddp::data::spelling::truth_word;

use crate::values::number::digits::Decimal;
use crate::values::number::{DecimalMark, Unclear};
use crate::values::time;
use crate::values::time::Moment;

/// Cells that mark a missing value in most programs.
const MISSING: [&[u8]; 17] = [
    b"", b"NA", b"N/A", b"n/a", b"<NA>", b"#N/A", b"NaN", b"nan", b"NAN", b"-nan", b"-NaN", b"null", b"NULL",
    b"None", b"NaT", b"-", b"?",
];

/// Notation of numbers and missing values in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Notation {
    /// Mark between the integer part and decimals.
    pub decimal: DecimalMark,
    /// Texts that mark a missing value, in addition to the usual ones.
    missing: Vec<String>,
    /// Cells among them that are numbers.
    missing_numbers: Vec<f64>,
    /// Cells among them that are dates or times.
    missing_moments: Vec<Moment>,
    /// Whether no other text than these marks a missing value: the list holds the empty text.
    is_complete: bool,
}

impl Notation {
    /// The notation of values in names of folders.
    pub fn for_folders() -> Self {
        Self::new(DecimalMark::Point, &[])
    }

    /// A notation with the marks `missing` in addition to the usual ones; an empty text among them replaces the usual ones.
    pub fn new(decimal: DecimalMark, missing: &[String]) -> Self {
        let missing: Vec<String> = missing.iter().map(|text| text.trim().to_owned()).collect();
        let number = |text: &String| text.parse().ok().or_else(|| decimal.normalized(text).ok()?.double());
        let missing_numbers = missing.iter().filter_map(number).collect();
        let is_complete = missing.iter().any(String::is_empty);
        let missing_moments = missing.iter().filter_map(|text| time::parse(text)).collect();
        Notation { decimal, missing, missing_numbers, missing_moments, is_complete }
    }

    /// Whether the config names marks of missing values.
    #[cfg(feature = "parquet")]
    pub fn has_marks(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The numbers that mark a missing value.
    pub fn missing_numbers(&self) -> &[f64] {
        &self.missing_numbers
    }

    /// The numbers that mark a missing value, rounded.
    #[cfg(feature = "parquet")]
    pub fn missing_singles(&self) -> Vec<f32> {
        self.missing_numbers.iter().map(|number| *number as f32).collect()
    }

    /// Whether a number may mark a missing value.
    pub fn has_missing_numbers(&self) -> bool {
        !self.missing_numbers.is_empty()
    }

    /// Whether a cell is a missing value, by the rules of pandas or by the config.
    pub fn is_missing(&self, cell: &[u8]) -> bool {
        let text = if cell.is_ascii() { None } else { std::str::from_utf8(cell).ok() };
        let cell = text.map_or(cell.trim_ascii(), |text| text.trim().as_bytes());
        (!self.is_complete && MISSING.contains(&cell)) || self.is_marked(cell)
    }

    /// Whether a cell is a date; `None` for one without a value, which leaves the kind of its column open.
    pub(crate) fn is_date(&self, cell: &[u8]) -> Option<bool> {
        let text = std::str::from_utf8(cell).unwrap_or_default().trim();
        let has_value = !self.is_missing(cell) && !time::is_infinite(text);
        has_value.then(|| time::parse(text).is_some_and(|moment| moment.has_date))
    }

    /// Whether the trimmed text of a label marks a missing one; a sign alone may be a label.
    pub fn is_missing_label(&self, text: &str) -> bool {
        if text == "-" { self.is_marked(b"-") } else { self.is_missing(text.as_bytes()) }
    }

    /// Whether a trimmed cell is one of the config's marks.
    pub fn is_marked(&self, cell: &[u8]) -> bool {
        if self.missing.is_empty() {
            return false;
        }
        let is_number =
            |text: &str| self.number(text).is_some_and(|number| self.missing_numbers.contains(&number));
        let is_moment = |text: &str| {
            let moment = time::parse(text);
            moment.is_some_and(|moment| {
                self.missing_moments
                    .iter()
                    .any(|mark| mark.is_like(&moment) && mark.seconds == moment.seconds)
            })
        };
        self.missing.iter().any(|mark| mark.as_bytes() == cell)
            || self.has_missing_numbers() && std::str::from_utf8(cell).is_ok_and(is_number)
            || !self.missing_moments.is_empty() && std::str::from_utf8(cell).is_ok_and(is_moment)
    }
}

/// Meaning of a text without regard to the role of its column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning {
    /// A missing value.
    Missing,
    /// A number.
    Number(f64),
    /// A number whose mark may separate thousands or a fraction, by the usual marks.
    Unclear(f64),
    /// A truth value.
    Truth(bool),
    /// A date or time.
    Moment(Moment),
    /// Any other text.
    Text,
}

impl Notation {
    /// The number of a cell in its usual form; `None` if it is written differently, is none, or may mark a missing value.
    #[inline]
    pub fn plain(&self, cell: &[u8]) -> Option<Decimal> {
        let number = Decimal::from_cell(cell).filter(|_| !self.has_missing_numbers())?;
        (self.decimal.has_points() || number.to_i64().is_some()).then_some(number)
    }

    /// The number of a trimmed text; `None` if it is none, or may be two.
    pub fn number(&self, text: &str) -> Option<f64> {
        self.decimal.normalized(text).ok()?.double()
    }

    /// The meaning of a cell's trimmed text.
    pub fn meaning(&self, text: &str) -> Meaning {
        if self.is_missing(text.as_bytes()) { Meaning::Missing } else { self.value(text) }
    }

    /// The meaning of the trimmed text of a value that is not missing.
    pub fn value(&self, text: &str) -> Meaning {
        let double = |mark: DecimalMark| mark.normalized(text).map(|number| number.double());
        let number = match double(self.decimal) {
            Ok(number) => number.map(Meaning::Number),
            Err(Unclear) => double(DecimalMark::PointAfterCommas).ok().flatten().map(Meaning::Unclear),
        };
        number
            .or_else(|| truth_word(text).map(Meaning::Truth))
            .or_else(|| time::parse(text).map(Meaning::Moment))
            .unwrap_or(Meaning::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_are_numbers_are_compared_by_the_notation_of_the_file() {
        let marks = ["-999", "9"].map(str::to_owned);
        let missing =
            |decimal: DecimalMark, cell: &str| Notation::new(decimal, &marks).is_missing(cell.as_bytes());
        for cell in ["-999", "-999,0", "9,00"] {
            assert!(missing(DecimalMark::Comma, cell), "{cell}");
        }
        assert!(!missing(DecimalMark::Comma, "9.000"), "nine thousand");
        assert!(missing(DecimalMark::Point, "-999.0") && missing(DecimalMark::Point, "9.000"));
    }

    #[test]
    fn blanks_of_any_kind_and_all_spellings_of_nan_are_missing() {
        let notation = Notation::new(DecimalMark::Point, &["x".to_owned()]);
        for cell in ["", " ", "\u{a0}", "\u{2003}\u{a0} ", "-nan", "NAN", "\u{a0}NA", "x\u{a0}"] {
            assert!(notation.is_missing(cell.as_bytes()), "{cell:?}");
        }
        assert!(
            !notation.is_missing("é".as_bytes())
                && !notation.is_missing(b"\xe9")
                && !notation.is_missing(b"NaN2")
        );
    }

    #[test]
    fn marks_that_are_moments_are_compared_as_moments() {
        let marks = ["2024-05-31 00:00:00", "12:30"].map(str::to_owned);
        let notation = Notation::new(DecimalMark::Point, &marks);
        for cell in ["2024-05-31", "2024-05-31T00:00:00Z", "31.05.2024", "2024-05-31 02:00+02:00", "12:30:00"]
        {
            assert!(notation.is_missing(cell.as_bytes()), "{cell}");
        }
        for cell in ["2024-05-31 00:00:01", "2024-06-01", "12:31", "PT45000S", "1717113600", "x"] {
            assert!(!notation.is_missing(cell.as_bytes()), "{cell}");
        }
    }
}
