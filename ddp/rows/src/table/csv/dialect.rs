//! Delimiter, decimal mark and dates of a file, found in its first rows.

use std::io;

use super::blanks;
use super::input::Input;
use crate::options::{Decimal, Delimiter, Header};
use crate::table::source::ReadOptions;
use crate::values::notation::Notation;
use crate::values::number::marks::{DecimalMark, Marks};
use crate::values::time;

/// Delimiters that are looked for, in this order.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];
/// Most rows that are looked at.
const MAX_ROWS: usize = 64;

/// Notation of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dialect {
    pub(super) delimiter: u8,
    pub(super) notation: Notation,
    /// Cells of the first row; 0 in a file without rows.
    pub(super) n_cells: usize,
    /// Whether the first value of each column is a date; may be shorter than the row.
    pub(super) are_dates: Vec<bool>,
}

impl Dialect {
    /// Looks at the first rows of `input`, which stay to be read, and sets its delimiter.
    ///
    /// The delimiter is the one that splits all these rows into equally many cells, and into the most.
    pub(super) fn find(input: &mut Input, options: &ReadOptions<'_>) -> io::Result<Self> {
        let mut is_whole = input.fill_buffer()?;
        let given = match options.delimiter {
            Delimiter::Auto => delimiter_line(input.rest_of_text()),
            Delimiter::Comma => Some(b','),
            Delimiter::Semicolon => Some(b';'),
            Delimiter::Tab => Some(b'\t'),
            Delimiter::Pipe => Some(b'|'),
            Delimiter::Whitespace => None,
        };
        if let Some(delimiter) = delimiter_line(input.rest_of_text())
            && given == Some(delimiter)
        {
            let len = input.rest_of_text().iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            input.skip_line(len);
        }
        let has_blanks = match options.delimiter {
            Delimiter::Auto if given.is_none() => has_blanks(input.rest_of_text(), is_whole),
            delimiter => delimiter == Delimiter::Whitespace,
        };
        if has_blanks {
            input.join_blanks();
            is_whole = input.fill_buffer()?;
        }
        let given = given.or(has_blanks.then_some(b'\t'));
        let text = input.rest_of_text();
        let found = given.unwrap_or_else(|| delimiter_of(text, is_whole));
        let rows = first_rows(text, found, is_whole);
        let n_names = usize::from(options.header != Header::Absent).min(rows.len());
        let decimal = match (options.decimal, found) {
            (Decimal::Point, _) => DecimalMark::PointAfterCommas,
            (Decimal::Comma, _) => DecimalMark::Comma,
            (Decimal::Auto, b',') => DecimalMark::Point,
            (Decimal::Auto, _) => decimal_mark(&rows[n_names..], found),
        };
        let notation = Notation::new(decimal, options.missing_values);
        let n_cells = rows.first().map_or(0, Vec::len);
        let is_date = |column: usize| {
            let mut cells = rows.iter().skip(n_names).filter_map(|row| row.get(column));
            let first = cells.find(|cell| !notation.is_missing(cell));
            let moment = first.and_then(|cell| time::parse(std::str::from_utf8(cell).ok()?.trim()));
            moment.is_some_and(|moment| moment.has_date)
        };
        let are_dates = (0..n_cells).map(is_date).collect();
        input.set_delimiter(found);
        Ok(Dialect { delimiter: found, notation, n_cells, are_dates })
    }
}

/// The delimiter that a first line like `sep=;` names; spreadsheets write it.
fn delimiter_line(text: &[u8]) -> Option<u8> {
    match text.strip_prefix(b"sep=")? {
        [delimiter, b'\n', ..] | [delimiter, b'\r', b'\n', ..] => {
            DELIMITERS.contains(delimiter).then_some(*delimiter)
        }
        _ => None,
    }
}

/// Whether blanks separate the cells, and no delimiter does.
fn has_blanks(text: &[u8], is_whole: bool) -> bool {
    let is_used =
        |delimiter: u8| first_rows(text, delimiter, is_whole).first().is_some_and(|row| row.len() > 1);
    !DELIMITERS.into_iter().any(is_used) && blanks::are_delimiters(text, is_whole)
}

fn delimiter_of(text: &[u8], is_whole: bool) -> u8 {
    let rank = |delimiter: &u8| {
        let rows = first_rows(text, *delimiter, is_whole);
        let n_cells = rows.first().map_or(1, Vec::len);
        let are_equal = rows.iter().all(|row| row.len() == n_cells);
        (n_cells > 1, quotes_end_cells(text, *delimiter), are_equal, n_cells)
    };
    // The first one of equals.
    DELIMITERS.into_iter().rev().max_by_key(rank).unwrap_or(b',')
}

/// Whether each quoted name in the first row ends where its cell ends.
fn quotes_end_cells(text: &[u8], delimiter: u8) -> bool {
    let mut at = 0;
    while at < text.len() {
        let (cell, end) = cell_at(text, at, delimiter);
        let is_quoted = text[at] == b'"';
        if is_quoted && at + cell.len() + 2 < end {
            return false;
        }
        if text.get(end) != Some(&delimiter) {
            break;
        }
        at = end + 1;
    }
    true
}

/// The mark of numbers in `rows`.
fn decimal_mark(rows: &[Vec<&[u8]>], delimiter: u8) -> DecimalMark {
    let mut marks = Marks::default();
    for (column, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
        if let Ok(cell) = std::str::from_utf8(cell) {
            marks.add(column, cell);
        }
    }
    marks.decimal(delimiter == b';')
}

/// Cells of the first rows; the last one is left out if it may continue. Quotes are removed, but quotes inside of them stay double.
fn first_rows(text: &[u8], delimiter: u8, is_whole: bool) -> Vec<Vec<&[u8]>> {
    let mut rows = Vec::new();
    let mut row = Vec::new();
    let mut at = 0;
    while at < text.len() && rows.len() < MAX_ROWS {
        let (cell, end) = cell_at(text, at, delimiter);
        at = end + 1;
        if row.is_empty() && cell.is_empty() && text.get(end) != Some(&delimiter) {
            // A blank line.
            continue;
        }
        row.push(cell);
        match text.get(end) {
            Some(&byte) if byte == delimiter => {}
            Some(_) => rows.push(std::mem::take(&mut row)),
            // The only row is better than none.
            None if is_whole || rows.is_empty() => rows.push(std::mem::take(&mut row)),
            None => {}
        }
    }
    rows
}

/// The cell that starts at `at`, and the place of its delimiter or line end.
fn cell_at(text: &[u8], at: usize, delimiter: u8) -> (&[u8], usize) {
    let ends_cell = |byte: &u8| *byte == delimiter || matches!(byte, b'\n' | b'\r');
    let from = |start: usize| text[start..].iter().position(ends_cell).map_or(text.len(), |n| start + n);
    if text[at] != b'"' {
        let end = from(at);
        return (&text[at..end], end);
    }
    let mut close = at + 1;
    while close < text.len() {
        match (text[close], text.get(close + 1)) {
            (b'"', Some(b'"')) => close += 2,
            (b'"', _) => break,
            _ => close += 1,
        }
    }
    let close = close.min(text.len());
    (&text[at + 1..close], from((close + 1).min(text.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, delimiter: Delimiter) -> (char, DecimalMark, Vec<bool>) {
        let options = ReadOptions { delimiter, ..ReadOptions::default() };
        let mut input = Input::new(Box::new(io::Cursor::new(text.to_owned()))).unwrap();
        let dialect = Dialect::find(&mut input, &options).unwrap();
        (dialect.delimiter as char, dialect.notation.decimal, dialect.are_dates)
    }

    #[test]
    fn delimiters_are_found_in_the_rows() {
        for (text, expected) in [
            ("a,b,label\n1,2,0\n", ','),
            ("a;b;label\n1,5;2,5;0\n", ';'),
            ("a\tb\tlabel\n1\t2\t0\n", '\t'),
            ("a|b|label\r\n1|2|0\r\n", '|'),
            ("label\n1\n", ','),
            ("", ','),
            // Quoted names and texts with other delimiters.
            ("\"a;b;c\",label\n1,0\n", ','),
            ("\"size, m\";\"price, EUR\"\n1,5;2\n\n3;4,5\n", ';'),
            ("a,b;c,label\n1,2,0\n", ','),
            ("name\tnote\nx\ta, b, c\ny\td\n", '\t'),
            ("\"x\"\"y\";\"line\nend\"\n1;2\n", ';'),
            // A row that is wrong leaves the delimiter of the header.
            ("a;b;c\n1;2\n", ';'),
            ("sep=;\r\na;b\r\n1;2\r\n", ';'),
        ] {
            assert_eq!(found(text, Delimiter::Auto).0, expected, "{text:?}");
        }
        assert_eq!(found("a;b,c\n1;2,3\n", Delimiter::Semicolon).0, ';');
        assert_eq!(found("a b\n1 2\n", Delimiter::Tab).0, '\t');
        // Runs of blanks become tabs.
        assert_eq!(
            found("a  b\n1  2.5\n", Delimiter::Auto),
            ('\t', DecimalMark::PointAfterCommas, vec![false, false])
        );
        assert_eq!(found("a  b\nx  y\n", Delimiter::Whitespace).2.len(), 2);
        assert_eq!(found("a  b\nx  y\n", Delimiter::Auto).2.len(), 1);
    }

    #[test]
    fn decimal_commas_are_found_where_no_number_has_a_point() {
        for (text, expected) in [
            ("a,b\n1.5,2\n", DecimalMark::Point),
            ("a;b\n1,5;2\n", DecimalMark::Comma),
            ("a;b\n1;2\n", DecimalMark::Either),
            ("a;b\n1.5;2\n", DecimalMark::PointAfterCommas),
            ("a;b\n1,234;2.5\n", DecimalMark::PointAfterCommas),
            ("a\tb\n1,234\t858\n", DecimalMark::Either),
            ("a;b\n1.234;1\n858;2\n", DecimalMark::Unclear),
            ("a;b\n31.12.2024;2,5\n", DecimalMark::Comma),
        ] {
            assert_eq!(found(text, Delimiter::Auto).1, expected, "{text:?}");
        }
    }

    #[test]
    fn dates_are_found_by_the_first_value() {
        let text = "a;b;c;d\nNA;2024-01-01;x;12:30\n2024-01-02;;2024-01-01;12:31\n";
        assert_eq!(found(text, Delimiter::Auto).2, [true, true, false, false]);
    }
}
