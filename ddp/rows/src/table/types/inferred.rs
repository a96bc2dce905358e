//! Types of the columns of a text file, from all of its cells.

use crate::error::CellProblem;
use crate::values::element::RawType;
use crate::values::notation::Notation;
use crate::values::number::digits::Decimal;
use crate::values::number::exact::is_short;
use crate::values::number::spelling::is_integer;
use crate::values::number::{is_code, is_padded, truth, truth_word};
use crate::values::time;
use crate::values::time::{MomentType, MomentUnit};
use crate::write::{CellKind, Kind};

/// Largest integer below which f64 holds all of them.
const MAX_EXACT: u128 = 1 << 53;

/// Form in which a column is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Numbers and texts: dates become seconds, and truth values 0 and 1, as in training.
    Arrays,
    /// Types of columns.
    Columns,
}

/// Use of a column, as far as it decides on its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellUse {
    /// A number.
    Number,
    /// Texts stay as they are, also those that are numbers.
    Category,
    /// Truth values are texts; a `-` is a label.
    Label,
}

/// Kind of values that the cells of a column hold.
#[derive(Debug, Clone, Default)]
pub struct Inference {
    has_integers: bool,
    has_negative: bool,
    is_beyond_i64: bool,
    is_beyond_u64: bool,
    /// Whether some integer is spelled like a code; see [`is_code`].
    has_codes: bool,
    /// Whether some integer has zeros before its digits.
    has_padding: bool,
    /// Whether some number is written with a decimal point or an exponent.
    has_decimals: bool,
    /// Whether some number is not whole.
    has_fractions: bool,
    has_truths: bool,
    has_yes_or_no: bool,
    has_dates: bool,
    has_date_times: bool,
    has_times: bool,
    has_offsets: bool,
    has_nanoseconds: bool,
    /// Whether nanoseconds since 1970 exceed i64.
    is_beyond_nanoseconds: bool,
    /// Whether f32 loses a digit of some number.
    loses_digits: bool,
    /// Integers that f64 rounds.
    n_wide: u64,
    /// Place of the first missing value.
    pub missing: Option<String>,
    /// The first text, and its place.
    pub text: Option<(String, String)>,
    /// The first number that is not finite, and its place.
    not_finite: Option<(String, String)>,
}

impl Inference {
    /// Adds a cell; `is_string` says that the file marks it as a text.
    ///
    /// # Errors
    /// [`CellProblem::NotUtf8`]
    pub fn add(
        &mut self,
        cell: &[u8],
        is_string: bool,
        use_: CellUse,
        notation: &Notation,
        place: impl Fn() -> String,
    ) -> Result<(), CellProblem> {
        if use_ != CellUse::Category
            && !is_string
            && !matches!(cell, [b'0', b'0'..=b'9', ..] | [b'-', b'0', b'0'..=b'9', ..])
            && let Some(number) = notation.plain(cell)
        {
            self.add_plain(number);
            return Ok(());
        }
        let text = std::str::from_utf8(cell).map_err(|_| CellProblem::NotUtf8)?.trim();
        if is_missing(text, use_, notation) {
            if self.missing.is_none() {
                self.missing = Some(place());
            }
            return Ok(());
        }
        if use_ == CellUse::Category {
            return Ok(());
        }
        if !is_string && is_code(text) {
            self.has_codes = true;
            self.has_padding |= is_padded(text);
        }
        if is_integer(text) {
            if is_string {
                self.add_text(text, place);
            } else {
                self.add_integer(text);
            }
            return Ok(());
        }
        match notation.number(text) {
            Some(_) if is_string => self.add_text(text, place),
            Some(number) if number.is_finite() => {
                self.has_decimals = true;
                self.has_fractions |= number.fract() != 0.0;
                // Formatting takes time.
                self.loses_digits = self.loses_digits || !has_digits_of_single(number);
            }
            Some(_) => {
                self.not_finite.get_or_insert_with(|| (place(), text.to_owned()));
            }
            None if truth(text).is_some() => self.has_truths = true,
            None if truth_word(text).is_some() => self.has_yes_or_no = true,
            None => match time::parse_exact(text) {
                Some(moment) => {
                    match (moment.has_date, moment.has_time) {
                        (true, false) => self.has_dates = true,
                        (true, true) => self.has_date_times = true,
                        (false, _) => self.has_times = true,
                    }
                    self.has_offsets |= moment.has_offset;
                    self.has_nanoseconds |= moment.nanoseconds % 1000 != 0;
                    self.is_beyond_nanoseconds |= moment.in_unit(MomentUnit::Nanoseconds).is_none();
                }
                None => self.add_text(text, place),
            },
        }
        Ok(())
    }

    #[inline]
    fn add_plain(&mut self, number: Decimal) {
        match number.to_i64() {
            Some(whole) => {
                self.has_integers = true;
                self.has_negative |= whole < 0;
            }
            None => {
                self.has_decimals = true;
                self.has_fractions =
                    self.has_fractions || number.to_f64().is_some_and(|value| value.fract() != 0.0);
            }
        }
        self.loses_digits = self.loses_digits || !number.fits_single();
    }

    fn add_text(&mut self, text: &str, place: impl Fn() -> String) {
        self.text.get_or_insert_with(|| (place(), text.to_owned()));
    }

    fn add_integer(&mut self, text: &str) {
        self.has_integers = true;
        self.has_negative |= text.starts_with('-');
        // Most are short.
        if text.len() <= 15 {
            self.loses_digits |= !text.parse::<i64>().is_ok_and(|whole| whole as f32 as i64 == whole);
            return;
        }
        self.loses_digits = true;
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
            self.has_truths || self.has_yes_or_no,
            self.has_dates || self.has_date_times,
            self.has_times,
        ];
        classes.into_iter().filter(|has| *has).count() > 1
    }

    /// The type of the column; f64 for one without values.
    ///
    /// # Errors
    /// The place and the text of a number that is not finite.
    pub fn kind(&self, use_: CellUse, to: Destination) -> Result<Kind, (String, CellProblem)> {
        // Zeros before the digits are lost in a number; next to fractions they mean nothing.
        let is_coded = !self.has_fractions
            && match use_ {
                CellUse::Label => self.has_codes,
                CellUse::Number | CellUse::Category => self.has_padding && to == Destination::Columns,
            };
        let is_text = self.text.is_some() || is_coded || (self.is_mixed() && to == Destination::Columns);
        let has_truths = self.has_truths || self.has_yes_or_no;
        if use_ == CellUse::Category || is_text || (has_truths && use_ == CellUse::Label) {
            return Ok(Kind::Text);
        }
        if let Some((place, text)) = &self.not_finite {
            return Err((place.clone(), CellProblem::NotFinite { text: text.clone() }));
        }
        if has_truths && !self.is_mixed() {
            return Ok(Kind::Number(RawType::Bool));
        }
        if (self.has_dates || self.has_date_times || self.has_times) && to == Destination::Columns {
            return Ok(self.moments().map_or(Kind::Text, Kind::Moment));
        }
        let has_others = self.has_decimals || self.is_mixed();
        Ok(Kind::Number(match (self.is_beyond_i64, self.has_negative || self.is_beyond_u64) {
            _ if has_others || !self.has_integers => RawType::F64,
            (false, _) => RawType::I64,
            (true, false) => RawType::U64,
            (true, true) => RawType::F64,
        }))
    }

    /// The type of dates and times; `None` if no type holds all of them exactly.
    fn moments(&self) -> Option<MomentType> {
        if self.has_nanoseconds && self.is_beyond_nanoseconds {
            return None;
        }
        let unit = if self.has_nanoseconds { MomentUnit::Nanoseconds } else { MomentUnit::Microseconds };
        Some(match (self.has_times, self.has_date_times) {
            (true, _) => MomentType::Time(unit),
            (false, true) => MomentType::DateTime { unit, is_utc: self.has_offsets },
            (false, false) => MomentType::Date,
        })
    }

    /// The meaning of the cells for formats that distinguish numbers from texts; texts stay as they are written.
    ///
    /// # Errors
    /// Same as [`Inference::kind`].
    pub fn cell_kind(&self, use_: CellUse) -> Result<CellKind, (String, CellProblem)> {
        Ok(match self.kind(use_, Destination::Columns)? {
            Kind::Number(RawType::Bool) if !self.has_yes_or_no => CellKind::Truth,
            Kind::Number(raw) if raw != RawType::Bool => CellKind::Number,
            _ => CellKind::Text,
        })
    }

    /// Whether f32 keeps every digit.
    pub fn fits_single(&self) -> bool {
        !(self.loses_digits || self.has_dates || self.has_date_times || self.has_times)
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
        CellUse::Label => notation.is_missing_label(text),
        CellUse::Category => text.is_empty() || notation.is_marked(text.as_bytes()),
    }
}

/// Whether the shortest decimal notation of the nearest f32 is `number`.
fn has_digits_of_single(number: f64) -> bool {
    let single = number as f32;
    f64::from(single) == number || (single.is_normal() && is_short(single, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::number::DecimalMark;

    fn inferred(cells: &[&str]) -> Inference {
        let notation = Notation::new(DecimalMark::Point, &[]);
        let mut inference = Inference::default();
        for (row, cell) in cells.iter().enumerate() {
            inference
                .add(cell.as_bytes(), false, CellUse::Number, &notation, || format!("row {row}"))
                .unwrap();
        }
        inference
    }

    #[test]
    fn the_type_holds_all_cells() {
        let number = |raw| Kind::Number(raw);
        let date_time = |unit, is_utc| Kind::Moment(MomentType::DateTime { unit, is_utc });
        for (cells, columns, arrays) in [
            (&["1", "", "-7", "NA"][..], number(RawType::I64), number(RawType::I64)),
            (&["1", "18446744073709551615"], number(RawType::U64), number(RawType::U64)),
            (&["-1", "18446744073709551615"], number(RawType::F64), number(RawType::F64)),
            (&["1", "0.5"], number(RawType::F64), number(RawType::F64)),
            (&["", "?"], number(RawType::F64), number(RawType::F64)),
            (&["1", "2", "late"], Kind::Text, Kind::Text),
            (&["01234", "98765"], Kind::Text, number(RawType::I64)),
            (&["-07", "0.5"], number(RawType::F64), number(RawType::F64)),
            (&["+7", "1e3"], number(RawType::F64), number(RawType::F64)),
            (&["true", "False"], number(RawType::Bool), number(RawType::Bool)),
            (&["true", "1"], Kind::Text, number(RawType::F64)),
            (&["2024-01-01", "1999-12-31"], Kind::Moment(MomentType::Date), number(RawType::F64)),
            (
                &["2024-01-01", "2024-01-01 10:00:00.5"],
                date_time(MomentUnit::Microseconds, false),
                number(RawType::F64),
            ),
            (
                &["2024-01-01T10:00:00.000000001Z"],
                date_time(MomentUnit::Nanoseconds, true),
                number(RawType::F64),
            ),
            (&["0001-01-01", "2024-01-01 10:00:00.000000001"], Kind::Text, number(RawType::F64)),
            (&["10:30"], Kind::Moment(MomentType::Time(MomentUnit::Microseconds)), number(RawType::F64)),
        ] {
            let inference = inferred(cells);
            assert_eq!(inference.kind(CellUse::Number, Destination::Columns), Ok(columns), "{cells:?}");
            assert_eq!(inference.kind(CellUse::Number, Destination::Arrays), Ok(arrays), "{cells:?}");
        }
        assert_eq!(inferred(&["007", "1"]).kind(CellUse::Category, Destination::Columns), Ok(Kind::Text));
        for codes in [["007", "7"], ["1e3", "2"]] {
            assert_eq!(
                inferred(&codes).kind(CellUse::Label, Destination::Arrays),
                Ok(Kind::Text),
                "{codes:?}"
            );
        }
        assert_eq!(inferred(&["yes"]).kind(CellUse::Label, Destination::Arrays), Ok(Kind::Text));
        assert_eq!(inferred(&["yes", "no"]).cell_kind(CellUse::Number), Ok(CellKind::Text));
        assert_eq!(inferred(&["true"]).cell_kind(CellUse::Number), Ok(CellKind::Truth));
        let (place, _) = inferred(&["1", "1e999"]).kind(CellUse::Number, Destination::Columns).unwrap_err();
        assert_eq!(place, "row 1");
        for (cells, fits) in [
            (&["123456.7", "0.1", "-3e-5", "", "7"][..], true),
            (&["0.123456789"], false),
            (&["1.7014118e38"], true),
            (&["1e-42"], false),
            (&["16777216", "-33554432"], true),
            (&["16777217"], false),
            (&["2024-01-01"], false),
            (&["true", "no"], true),
        ] {
            assert_eq!(inferred(cells).fits_single(), fits, "{cells:?}");
        }
        let wide = inferred(&["9007199254740993", "0.5", "9007199254740992"]);
        assert_eq!(wide.n_rounded(&Kind::Number(RawType::F64)), 1);
    }
}
