//! Marks in numbers of text: between the whole part and the fraction, and between groups of thousands.

use std::borrow::Cow;

use ddp::config::table_options::Decimal;

use crate::values::number::digits::Exact;

/// Mark between the whole part of a number and its fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecimalMark {
    /// Numbers with commas are errors.
    Point,
    /// Same as `Point`; commas separate thousands.
    PointAfterCommas,
    /// Points separate thousands; a number with another one is unclear, since the comma was found.
    Comma,
    /// Same as `Comma`, as the config says: a point that separates no thousands is one before a fraction.
    GivenComma,
    /// Either of them: the first rows have whole numbers only.
    Either,
    /// Numbers with one mark and three digits after it, such as `38.054`, may be anything.
    Unclear,
}

/// A number that may be written in two ways: `38,054` is 38054 or 38.054; or one by another mark than that of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unclear;

impl DecimalMark {
    /// The mark of a file that is known to have this one; `None` if it is not known.
    pub(crate) fn known(decimal: Decimal) -> Option<Self> {
        match decimal {
            Decimal::Auto => None,
            Decimal::Point => Some(DecimalMark::PointAfterCommas),
            Decimal::Comma => Some(DecimalMark::Comma),
        }
    }

    /// The mark that was found, as it is saved.
    pub(crate) fn found(self) -> Decimal {
        match self {
            DecimalMark::Point | DecimalMark::PointAfterCommas => Decimal::Point,
            DecimalMark::Comma => Decimal::Comma,
            DecimalMark::GivenComma | DecimalMark::Either | DecimalMark::Unclear => Decimal::Auto,
        }
    }

    /// Whether numbers of a file leave no doubt about it.
    pub(crate) fn is_evident(self) -> bool {
        matches!(self, DecimalMark::PointAfterCommas | DecimalMark::Comma)
    }

    /// Whether a point is always the mark of a fraction.
    pub(crate) fn has_points(self) -> bool {
        !matches!(self, DecimalMark::Comma | DecimalMark::GivenComma | DecimalMark::Unclear)
    }

    /// The text with a point before the fraction and without other marks, if it is a number in this notation; otherwise unchanged.
    pub fn normalized(self, text: &str) -> Result<NumberText<'_>, Unclear> {
        let (has_comma, has_point) = (text.contains(','), text.contains('.'));
        if !has_comma && (!has_point || self.has_points()) {
            return Ok(NumberText(Cow::Borrowed(text)));
        }
        let normalized = match self {
            DecimalMark::Point => None,
            DecimalMark::PointAfterCommas => without_groups(text, ',', '.'),
            DecimalMark::Comma if !has_comma && !is_grouped(text, '.') && text.parse::<f64>().is_ok() => {
                return Err(Unclear);
            }
            DecimalMark::Comma | DecimalMark::GivenComma => {
                without_groups(text, '.', ',').map(|text| text.replace(',', ".")).or_else(|| with_point(text))
            }
            DecimalMark::Either if is_grouped(text, ',') => return Err(Unclear),
            DecimalMark::Unclear if is_grouped(text, ',') || is_grouped(text, '.') => return Err(Unclear),
            DecimalMark::Either | DecimalMark::Unclear => with_point(text),
        };
        Ok(NumberText(normalized.map_or(Cow::Borrowed(text), Cow::Owned)))
    }
}

/// A text in the notation of Rust, if it is a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberText<'a>(Cow<'a, str>);

impl NumberText<'_> {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The nearest f32; `None` if the text is no number.
    pub fn single(&self) -> Option<f32> {
        self.0.parse().ok()
    }

    /// The nearest f64; `None` if the text is no number.
    pub fn double(&self) -> Option<f64> {
        self.0.parse().ok()
    }

    /// The number as an integer if it is written as one, else the nearest f64; `None` if the text is no number.
    pub fn exact(&self) -> Option<Exact> {
        let whole = self.0.parse().ok().map(Exact::from_whole);
        whole.or_else(|| self.double().map(Exact::Double))
    }
}

/// A number that has a comma instead of a point, with a point; thousands are not separated.
pub fn with_point(text: &str) -> Option<String> {
    let (whole, fraction) = text.split_once(',')?;
    let is_fraction = !fraction.is_empty() && fraction.starts_with(|c: char| c.is_ascii_digit());
    let is_number = !whole.contains('.') && is_fraction && !fraction.contains([',', '.']);
    let number = is_number.then(|| format!("{whole}.{fraction}"))?;
    number.parse::<f64>().is_ok().then_some(number)
}

/// Whether a text is a whole number in groups of thousands: `38,054` or `1,234,567`. A zero in front is one before a fraction.
pub fn is_grouped(text: &str, mark: char) -> bool {
    n_groups(text.strip_prefix(['+', '-']).unwrap_or(text), mark).is_some_and(|n| n > 0)
}

/// Number of groups of three digits after the first one.
fn n_groups(digits: &str, mark: char) -> Option<usize> {
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = digits.split(mark);
    let first = groups.next()?;
    let is_first = (1..=3).contains(&first.len()) && are_digits(first) && !first.starts_with('0');
    let mut n = 0;
    for group in groups {
        if group.len() != 3 || !are_digits(group) {
            return None;
        }
        n += 1;
    }
    is_first.then_some(n)
}

/// A number without the marks of its thousands; its fraction follows `point`. `None` for a number without such marks.
pub(crate) fn without_groups(text: &str, mark: char, point: char) -> Option<String> {
    let (whole, fraction) = text.split_once(point).map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let is_fraction = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (is_grouped(whole, mark) && fraction.is_none_or(is_fraction)).then(|| text.replace(mark, ""))
}

/// Evidence for the marks of a file, from some of its cells.
#[derive(Debug, Default)]
pub struct Marks {
    has_decimal_point: bool,
    has_decimal_comma: bool,
    has_grouping_points: bool,
    has_grouping_commas: bool,
    has_unclear_comma: bool,
    /// Columns with numbers like `38.054`, and with whole numbers without a mark.
    unclear_points: Vec<bool>,
    wholes: Vec<bool>,
}

impl Marks {
    /// Adds a cell of column number `column`.
    pub fn add(&mut self, column: usize, cell: &str) {
        let cell = cell.trim();
        if self.wholes.len() <= column {
            self.wholes.resize(column + 1, false);
            self.unclear_points.resize(column + 1, false);
        }
        let n_of = |mark: char| cell.matches(mark).count();
        match (n_of('.'), n_of(',')) {
            (0, 0) => self.wholes[column] |= cell.parse::<i64>().is_ok(),
            (1, 0) if is_grouped(cell, '.') => self.unclear_points[column] = true,
            (1, 0) => self.has_decimal_point |= cell.parse::<f64>().is_ok(),
            (0, 1) if is_grouped(cell, ',') => self.has_unclear_comma = true,
            (0, 1) => self.has_decimal_comma |= with_point(cell).is_some(),
            (0 | 1, 2..) | (1, 1) if without_groups(cell, ',', '.').is_some() => {
                self.has_grouping_commas = true
            }
            // Three points may be an address of a network.
            (1 | 2, 1) | (2, 0) => self.has_grouping_points |= without_groups(cell, '.', ',').is_some(),
            _ => {}
        }
    }

    /// The mark of a file whose cells are separated by something else than commas.
    ///
    /// Without evidence a point is the mark of a fraction; but where a semicolon separates cells and whole numbers stand next to ones
    /// like `38.054`, or could be followed by such, it may as well be one of thousands.
    pub fn decimal(&self, has_semicolons: bool) -> DecimalMark {
        let has_points = self.has_decimal_point || self.has_grouping_commas;
        let has_commas = self.has_decimal_comma || self.has_grouping_points;
        let has_unclear_points = self.unclear_points.contains(&true);
        let is_mixed =
            || self.unclear_points.iter().zip(&self.wholes).any(|(unclear, whole)| *unclear && *whole);
        match (has_points, has_commas) {
            (true, true) => DecimalMark::Point,
            (true, false) => DecimalMark::PointAfterCommas,
            (false, true) => DecimalMark::Comma,
            (false, false) if has_semicolons && is_mixed() => DecimalMark::Unclear,
            (false, false) if has_unclear_points && !self.has_unclear_comma => DecimalMark::Point,
            (false, false) if has_semicolons => DecimalMark::Unclear,
            (false, false) => DecimalMark::Either,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_the_marks_of_the_file() {
        use DecimalMark::{Comma, Either, Point, PointAfterCommas, Unclear as Any};
        let read = |mark: DecimalMark, text: &str| match mark.normalized(text) {
            Ok(text) => text.double(),
            Err(Unclear) => Some(f64::NAN),
        };
        for (text, point, after_commas, comma, either, any) in [
            ("858", "858", "858", "858", "858", "858"),
            ("1.5", "1.5", "1.5", "NaN", "1.5", "1.5"),
            ("1,5", "", "", "1.5", "1.5", "1.5"),
            ("38,054", "", "38054", "38.054", "NaN", "NaN"),
            ("0,054", "", "", "0.054", "0.054", "0.054"),
            ("38.054", "38.054", "38.054", "38054", "38.054", "NaN"),
            ("1,234,567", "", "1234567", "", "NaN", "NaN"),
            ("-23.982,02", "", "", "-23982.02", "", ""),
            ("1,234.5", "", "1234.5", "", "", ""),
            ("1,5e3", "", "", "1500", "1500", "1500"),
            ("21.01.2023", "", "", "", "", ""),
        ] {
            let got = [Point, PointAfterCommas, Comma, Either, Any].map(|mark| read(mark, text));
            let got = got.map(|number| number.map_or(String::new(), |number| number.to_string()));
            assert_eq!(got, [point, after_commas, comma, either, any], "{text}");
        }
        assert_eq!(read(DecimalMark::GivenComma, "1.5"), Some(1.5));
        assert_eq!(read(DecimalMark::GivenComma, "38.054"), Some(38054.0));
    }

    #[test]
    fn marks_are_found_in_the_cells() {
        use DecimalMark::{Comma, Either, Point, PointAfterCommas, Unclear};
        for (cells, tab, semicolon) in [
            (&["1", "2"][..], Either, Unclear),
            (&["1.5"], PointAfterCommas, PointAfterCommas),
            (&["1,5"], Comma, Comma),
            (&["38,054", "858"], Either, Unclear),
            (&["38,054", "858.5"], PointAfterCommas, PointAfterCommas),
            (&["38,054", "1,234,567"], PointAfterCommas, PointAfterCommas),
            (&["38,054", "9,5"], Comma, Comma),
            (&["38,054", "0,125"], Comma, Comma),
            (&["38.054", "858"], Point, Unclear),
            (&["38.054", "12.250"], Point, Point),
            (&["38.054", "9,5"], Comma, Comma),
            (&["23.982,02", "31.12.2024"], Comma, Comma),
            (&["1.5", "2,5"], Point, Point),
        ] {
            let mut marks = Marks::default();
            cells.iter().for_each(|cell| marks.add(0, cell));
            assert_eq!((marks.decimal(false), marks.decimal(true)), (tab, semicolon), "{cells:?}");
        }
    }
}
