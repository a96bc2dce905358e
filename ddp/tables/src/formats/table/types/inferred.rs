//! Kinds of the values of a column, from all of its cells, and the types that hold them.

use ddp::data::spelling::{is_code, is_integer, is_padded};

use crate::formats::error::CellProblem;
use crate::formats::write::Kind;
use crate::values::element::RawType;
use crate::values::notation::{Meaning, Notation};
use crate::values::number::digits::Decimal;
use crate::values::time;
use crate::values::time::{Moment, MomentType, MomentUnit};

/// Largest integer below which f64 holds all of them.
const MAX_EXACT: u128 = 1 << 53;

/// Use of a column, as far as it decides on the meaning of its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellUse {
    /// A number.
    Number,
    /// Texts stay as they are, also those that are numbers.
    Category,
    /// Truth values are texts; a `-` is a label.
    Label,
    /// A label that the file marks as a text: numbers and dates are texts too.
    TextLabel,
}

/// Place of a cell: the index of its file and its line or row there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the file.
    pub file: usize,
    /// Line or row.
    pub number: u64,
}

/// Cells of a kind: their number, and the first of them.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Number of cells.
    pub n: u64,
    /// Place and text of the first one.
    pub first: Option<(Place, String)>,
}

impl Found {
    /// Adds a cell.
    pub fn add(&mut self, place: Place, text: impl Into<String>) {
        self.n += 1;
        self.first.get_or_insert_with(|| (place, text.into()));
    }
}

/// Kinds of the values in the cells of a column.
#[derive(Debug, Clone, Default)]
pub struct Inference {
    /// Missing values.
    pub missing: Found,
    /// Values that are neither numbers nor truth values nor times.
    pub texts: Found,
    /// Numbers whose marks may separate thousands or a fraction.
    pub unclear: Found,
    /// Numbers that are spelled like codes; see [`is_code`].
    pub codes: Found,
    /// Integers among them that have zeros before their digits.
    pub n_padded: u64,
    /// Numbers that f64 does not hold.
    not_finite: Found,
    /// Whether the first value is a date, or the type of the column one of dates.
    pub are_dates: bool,
    /// Dates beyond the calendar among the missing values.
    pub n_infinite: u64,
    has_integers: bool,
    has_negative: bool,
    is_beyond_i64: bool,
    is_beyond_u64: bool,
    /// Whether some number is written with a decimal point or an exponent.
    has_decimals: bool,
    /// Whether some number is not whole.
    has_fractions: bool,
    /// Truth values.
    pub n_truths: u64,
    has_dates: bool,
    /// Dates with times.
    n_date_times: u64,
    /// Dates and times.
    pub n_moments: u64,
    /// Times without a date.
    pub n_times: u64,
    /// Times with a time zone.
    pub n_offsets: u64,
    has_nanoseconds: bool,
    /// Whether nanoseconds since 1970 exceed i64.
    is_beyond_nanoseconds: bool,
    /// Whether some time has more digits than nanoseconds, or is a duration.
    is_beyond_types: bool,
    /// Integers that f64 rounds.
    n_wide: u64,
}

impl Inference {
    /// Adds a cell and returns its meaning; `is_string` says that the file marks it as a text, so that it is no number.
    ///
    /// # Errors
    /// [`CellProblem::NotUtf8`]
    #[inline]
    pub fn add(
        &mut self,
        cell: &[u8],
        is_string: bool,
        use_: CellUse,
        notation: &Notation,
        place: Place,
    ) -> Result<Meaning, CellProblem> {
        let may_be_plain = match use_ {
            CellUse::Number => !is_string,
            // Zeros at the end may be those of a code.
            CellUse::Label => !is_string && !cell.ends_with(b"0"),
            CellUse::Category | CellUse::TextLabel => false,
        };
        if may_be_plain
            && !matches!(cell, [b'0', b'0'..=b'9', ..] | [b'-', b'0', b'0'..=b'9', ..])
            && let Some(number) = notation.plain(cell)
            && let Some(value) = number.to_f64()
        {
            self.add_plain(number, value);
            return Ok(Meaning::Number(value));
        }
        let text = std::str::from_utf8(cell).map_err(|_| CellProblem::NotUtf8)?.trim();
        Ok(self.add_text(text, is_string, use_, notation, place))
    }

    #[inline]
    fn add_plain(&mut self, number: Decimal, value: f64) {
        match number.to_i64() {
            Some(whole) => {
                self.has_integers = true;
                self.has_negative |= whole < 0;
            }
            None => {
                self.has_decimals = true;
                self.has_fractions = self.has_fractions || value.fract() != 0.0;
            }
        }
    }

    fn add_text(
        &mut self,
        text: &str,
        is_string: bool,
        use_: CellUse,
        notation: &Notation,
        place: Place,
    ) -> Meaning {
        if is_missing(text, use_, notation) {
            self.missing.add(place, text);
            return Meaning::Missing;
        }
        if use_ == CellUse::Category {
            return Meaning::Text;
        }
        // The infinity of PostgreSQL and DuckDB.
        if (self.are_dates || self.has_dates()) && time::is_infinite(text) {
            self.n_infinite += 1;
            self.missing.add(place, text);
            return Meaning::Missing;
        }
        let meaning = match notation.value(text) {
            Meaning::Number(_) | Meaning::Unclear(_) if is_string || use_ == CellUse::TextLabel => {
                Meaning::Text
            }
            Meaning::Moment(_) if use_ == CellUse::TextLabel => Meaning::Text,
            meaning => meaning,
        };
        // A label beyond i64 keeps its digits, as a code does.
        let is_beyond = || use_ == CellUse::Label && is_integer(text) && text.parse::<i64>().is_err();
        if matches!(meaning, Meaning::Number(_)) && (is_code(text) || is_beyond()) {
            self.codes.add(place, text);
            self.n_padded += u64::from(is_padded(text));
        }
        match meaning {
            Meaning::Number(_) if is_integer(text) => self.add_integer(text),
            Meaning::Number(number) if number.is_finite() => {
                self.has_decimals = true;
                self.has_fractions |= number.fract() != 0.0;
            }
            Meaning::Number(_) => self.not_finite.add(place, text),
            Meaning::Unclear(_) => self.unclear.add(place, text),
            Meaning::Truth(_) => self.n_truths += 1,
            Meaning::Moment(moment) => self.add_moment(&moment),
            Meaning::Text | Meaning::Missing => self.texts.add(place, text),
        }
        meaning
    }

    fn add_moment(&mut self, moment: &Moment) {
        self.n_moments += 1;
        match (moment.has_date, moment.has_time) {
            (true, false) => self.has_dates = true,
            (true, true) => self.n_date_times += 1,
            (false, _) => self.n_times += 1,
        }
        self.n_offsets += u64::from(moment.has_offset);
        self.has_nanoseconds |= moment.nanoseconds.is_some_and(|nanoseconds| nanoseconds % 1000 != 0);
        self.is_beyond_nanoseconds |= moment.in_unit(MomentUnit::Nanoseconds).is_none();
        self.is_beyond_types |= moment.nanoseconds.is_none() || moment.is_duration;
    }

    fn add_integer(&mut self, text: &str) {
        self.has_integers = true;
        self.has_negative |= text.starts_with('-');
        // Most are short.
        if text.len() <= 15 {
            return;
        }
        let digits = text.trim_start_matches(['+', '-']);
        match digits.parse::<u128>() {
            Ok(size) => {
                self.is_beyond_i64 |= text.parse::<i64>().is_err();
                self.is_beyond_u64 |= size > u128::from(u64::MAX);
                self.n_wide += u64::from(size > MAX_EXACT && size as f64 as u128 != size);
            }
            Err(_) => {
                (self.is_beyond_i64, self.is_beyond_u64) = (true, true);
                self.n_wide += 1;
            }
        }
    }

    /// Whether the column holds classes of values that no type of columns has together.
    fn is_mixed(&self) -> bool {
        let classes = [
            self.has_integers || self.has_decimals,
            self.n_truths > 0,
            self.has_dates || self.n_date_times > 0,
            self.n_times > 0,
        ];
        classes.into_iter().filter(|has| *has).count() > 1
    }

    /// Times of dates that have no time zone.
    pub fn n_naive(&self) -> u64 {
        self.n_date_times - self.n_offsets
    }

    /// Whether some moment has a date.
    pub fn has_dates(&self) -> bool {
        self.n_moments > self.n_times
    }

    /// The first text, or number that may be two, and its place.
    pub fn first_text(&self) -> Option<&(Place, String)> {
        self.texts.first.iter().chain(&self.unclear.first).min()
    }

    /// The type of the column; f64 for one without values.
    ///
    /// # Errors
    /// The place and the text of a number that is not finite.
    pub fn kind(&self, use_: CellUse) -> Result<Kind, (Place, CellProblem)> {
        // Zeros before the digits are lost in a number; next to fractions they mean nothing.
        let is_coded = !self.has_fractions
            && match use_ {
                CellUse::Label | CellUse::TextLabel => self.codes.n > 0,
                CellUse::Number | CellUse::Category => self.n_padded > 0,
            };
        let is_text = self.first_text().is_some() || is_coded || self.is_mixed();
        if use_ == CellUse::Category || is_text || (self.n_truths > 0 && use_ == CellUse::Label) {
            return Ok(Kind::Text);
        }
        if let Some((place, text)) = &self.not_finite.first {
            return Err((*place, CellProblem::NotFinite { text: text.clone() }));
        }
        if self.n_truths > 0 {
            return Ok(Kind::Number(RawType::Bool));
        }
        if self.n_moments > 0 {
            return Ok(self.moments().map_or(Kind::Text, Kind::Moment));
        }
        Ok(Kind::Number(match (self.is_beyond_i64, self.has_negative || self.is_beyond_u64) {
            _ if self.has_decimals || !self.has_integers => RawType::F64,
            (false, _) => RawType::I64,
            (true, false) => RawType::U64,
            (true, true) => RawType::F64,
        }))
    }

    /// The type of dates and times; `None` if no type holds all of them exactly.
    fn moments(&self) -> Option<MomentType> {
        if self.is_beyond_types || (self.has_nanoseconds && self.is_beyond_nanoseconds) {
            return None;
        }
        let unit = if self.has_nanoseconds { MomentUnit::Nanoseconds } else { MomentUnit::Microseconds };
        Some(match (self.n_times > 0, self.n_date_times > 0) {
            (true, _) => MomentType::Time(unit),
            (false, true) => MomentType::DateTime { unit, is_utc: self.n_offsets > 0 },
            (false, false) => MomentType::Date,
        })
    }

    /// Integers that the type of the column rounds.
    pub fn n_rounded(&self, kind: &Kind) -> u64 {
        if *kind == Kind::Number(RawType::F64) { self.n_wide } else { 0 }
    }
}

/// Whether a trimmed cell is a missing value.
pub(super) fn is_missing(text: &str, use_: CellUse, notation: &Notation) -> bool {
    match use_ {
        CellUse::Number => notation.is_missing(text.as_bytes()),
        CellUse::Label | CellUse::TextLabel => notation.is_missing_label(text),
        CellUse::Category => text.is_empty() || notation.is_marked(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::number::DecimalMark;

    fn inferred(cells: &[&str]) -> Inference {
        let notation = Notation::new(DecimalMark::Point, &[]);
        let mut inference = Inference::default();
        for (number, cell) in (0..).zip(cells) {
            let place = Place { file: 0, number };
            inference.add(cell.as_bytes(), false, CellUse::Number, &notation, place).unwrap();
        }
        inference
    }

    #[test]
    fn the_type_holds_all_cells() {
        let number = |raw| Kind::Number(raw);
        let date_time = |unit, is_utc| Kind::Moment(MomentType::DateTime { unit, is_utc });
        for (cells, kind) in [
            (&["1", "", "-7", "NA"][..], number(RawType::I64)),
            (&["1", "18446744073709551615"], number(RawType::U64)),
            (&["-1", "18446744073709551615"], number(RawType::F64)),
            (&["1", "0.5"], number(RawType::F64)),
            (&["", "?"], number(RawType::F64)),
            (&["1", "2", "late"], Kind::Text),
            (&["01234", "98765"], Kind::Text),
            (&["-07", "0.5"], number(RawType::F64)),
            (&["+7", "1e3"], number(RawType::F64)),
            (&["true", "False"], number(RawType::Bool)),
            (&["yes", "no"], number(RawType::Bool)),
            (&["true", "1"], Kind::Text),
            (&["2024-01-01", "1999-12-31"], Kind::Moment(MomentType::Date)),
            (&["2024-01-01", "2024-01-01 10:00:00.5"], date_time(MomentUnit::Microseconds, false)),
            (&["2024-01-01T10:00:00.000000001Z"], date_time(MomentUnit::Nanoseconds, true)),
            (&["0001-01-01", "2024-01-01 10:00:00.000000001"], Kind::Text),
            (&["2024-01-01 10:00:00.0000000001"], Kind::Text),
            (&["10:30"], Kind::Moment(MomentType::Time(MomentUnit::Microseconds))),
        ] {
            assert_eq!(inferred(cells).kind(CellUse::Number), Ok(kind), "{cells:?}");
        }
        assert_eq!(inferred(&["007", "1"]).kind(CellUse::Category), Ok(Kind::Text));
        for codes in [["007", "7"], ["1e3", "2"]] {
            assert_eq!(inferred(&codes).kind(CellUse::Label), Ok(Kind::Text), "{codes:?}");
        }
        assert_eq!(inferred(&["yes"]).kind(CellUse::Label), Ok(Kind::Text));
        let (place, _) = inferred(&["1", "1e999"]).kind(CellUse::Number).unwrap_err();
        assert_eq!(place.number, 1);
        let wide = inferred(&["9007199254740993", "0.5", "9007199254740992"]);
        assert_eq!(wide.n_rounded(&Kind::Number(RawType::F64)), 1);
    }
}
