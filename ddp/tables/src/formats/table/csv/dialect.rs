//! Delimiter, decimal mark and dates of a file, found in its first rows.

use std::collections::HashSet;
use std::io;

use ddp::config::table_options::{Decimal, Delimiter, Header};

use crate::formats::table::csv::blanks;
use crate::formats::table::csv::input::Input;
use crate::formats::table::source::ReadOptions;
use crate::values::notation::Notation;
use crate::values::number::marks::{DecimalMark, Marks};

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
    /// Whether the rows have one more cell than the first row, since it lacks a name for those of the rows, as R writes them.
    pub(super) has_row_names: bool,
    /// Lines above the names, which are left out.
    pub(super) titles: Vec<String>,
    /// Whether the first value of each column is a date, `None` without one; may be shorter than the row.
    pub(super) are_dates: Vec<Option<bool>>,
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
        let title = match (given, options.header) {
            (None, Header::Auto) => titles(text, is_whole),
            _ => None,
        };
        let mut titles = Vec::new();
        if let Some((_, n_titles)) = title {
            while titles.len() < n_titles {
                let rest = input.rest_of_text();
                let len = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
                let line = String::from_utf8_lossy(&rest[..len]).trim().to_owned();
                titles.extend(Some(line).filter(|line| !line.is_empty()));
                input.skip_line(len);
            }
        }
        let text = input.rest_of_text();
        let found = given.or(title.map(|(delimiter, _)| delimiter));
        let found = found.unwrap_or_else(|| delimiter_of(text, is_whole));
        let rows = first_rows(text, found, is_whole);
        let n_names = usize::from(options.header != Header::Absent).min(rows.len());
        let decimal = match (options.decimal, found) {
            (Decimal::Point, _) => DecimalMark::PointAfterCommas,
            (Decimal::Comma, _) => DecimalMark::GivenComma,
            (Decimal::Auto, b',') => DecimalMark::Point,
            (Decimal::Auto, _) => {
                let own = decimal_mark(&rows[n_names..], found);
                options.known_decimal.filter(|_| !own.is_evident()).unwrap_or(own)
            }
        };
        let notation = Notation::new(decimal, options.missing_values);
        let n_cells = rows.first().map_or(0, Vec::len);
        let has_dates = |column: usize| {
            let mut cells = rows.iter().skip(n_names).filter_map(|row| row.get(column));
            cells.find_map(|cell| notation.is_date(cell))
        };
        let has_row_names = options.header == Header::Auto && n_cells > 0 && have_names(&rows, found, text);
        let are_dates = (0..n_cells + usize::from(has_row_names)).map(has_dates).collect();
        input.set_delimiter(found);
        Ok(Dialect { delimiter: found, notation, n_cells, has_row_names, titles, are_dates })
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

/// The delimiter of a table below lines of a title, and their number: the title has no delimiters, and names follow it.
fn titles(text: &[u8], is_whole: bool) -> Option<(u8, usize)> {
    const MAX_TITLES: usize = 3;
    const MIN_ROWS: usize = 3;
    let rows = first_rows(text, delimiter_of(text, is_whole), is_whole);
    if rows.first().is_none_or(|first| first.len() > 1 && rows.iter().all(|row| row.len() == first.len())) {
        return None;
    }
    let of = |delimiter: u8| {
        let rows = first_rows(text, delimiter, is_whole);
        let n_titles = rows.iter().take_while(|row| row.len() == 1).count();
        let below = rows.get(n_titles..).filter(|below| below.len() >= MIN_ROWS)?;
        let is_name = |cell: &&[u8]| {
            let text = std::str::from_utf8(cell).map_or("", str::trim);
            !text.is_empty() && !text.contains('"') && text.replace(',', ".").parse::<f64>().is_err()
        };
        let is_table = below[0].iter().all(is_name) && below.iter().all(|row| row.len() == below[0].len());
        let are_titles =
            rows[..n_titles].iter().all(|row| !row[0].contains(&b'"') && !row[0].starts_with(b"#"));
        ((1..=MAX_TITLES).contains(&n_titles) && is_table && are_titles).then_some((delimiter, n_titles))
    };
    DELIMITERS.into_iter().find_map(of)
}

/// Whether all rows have one more cell than the names in the first, since they begin with names of their own, as R writes them: numbers
/// that count the rows, names before cells that are all numbers, or any names that all differ if nothing else explains the cell. A text
/// may lack its quotes, and numbers may have decimal commas.
fn have_names(rows: &[Vec<&[u8]>], delimiter: u8, text: &[u8]) -> bool {
    let [names, rows @ ..] = rows else { return false };
    if rows.len() < 2 || rows.iter().any(|row| row.len() != names.len() + 1) {
        return false;
    }
    if rows.iter().all(|row| row.last().is_some_and(|cell| cell.is_empty())) {
        return false;
    }
    let number = |cell: &[u8]| std::str::from_utf8(cell).ok()?.trim().replace(',', ".").parse::<f64>().ok();
    let firsts: Vec<Option<f64>> = rows.iter().map(|row| number(row[0])).collect();
    let count_rows = firsts.windows(2).all(|pair| matches!(pair, [Some(a), Some(b)] if *b == *a + 1.0));
    let is_text =
        |column: usize| rows.iter().any(|row| !row[column].is_empty() && number(row[column]).is_none());
    let are_texts = firsts.iter().all(Option::is_none);
    if count_rows || are_texts && (1..=names.len()).all(|column| !is_text(column)) {
        return true;
    }
    let n_distinct = |column: usize| rows.iter().map(|row| row[column]).collect::<HashSet<_>>().len();
    let are_digits = |cell: &[u8]| !cell.is_empty() && cell.iter().all(u8::is_ascii_digit);
    // The copies of a sampled row are 7.1 and 7.2.
    let is_count = |row: &Vec<&[u8]>| row[0].splitn(2, |byte| *byte == b'.').all(are_digits);
    let are_counts = rows.iter().all(is_count);
    if n_distinct(0) < rows.len() || !(are_counts || are_texts) {
        return false;
    }
    let is_quoted = |row: &Vec<&[u8]>| {
        let at = (row[0].as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
        at.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'"')
    };
    if delimiter != b',' || rows.iter().all(is_quoted) {
        return true;
    }
    // Both halves of a text without quotes are texts, nearly all of them different.
    let are_categories = |column: usize| 2 * n_distinct(column) <= rows.len();
    let is_half = |column: usize| {
        rows.iter().any(|row| row[column].starts_with(b" "))
            || is_text(column)
                && (if column == 1 { are_texts } else { is_text(column - 1) && !are_categories(column - 1) })
                && !are_categories(column)
    };
    let is_whole = |column: usize| rows.iter().all(|row| are_digits(row[column]));
    let has_points =
        rows.iter().flat_map(|row| &row[1..]).any(|cell| cell.contains(&b'.') && number(cell).is_some());
    let may_be_fraction = |column: usize| is_whole(column) && is_whole(column - 1) && !has_points;
    (1..=names.len()).all(|column| !is_half(column) && !may_be_fraction(column))
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

    fn found(text: &str, delimiter: Delimiter) -> (char, DecimalMark, Vec<Option<bool>>) {
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
            ('\t', DecimalMark::PointAfterCommas, vec![Some(false), Some(false)])
        );
        assert_eq!(found("a  b\nx  y\n", Delimiter::Whitespace).2.len(), 2);
        assert_eq!(found("a  b\nx  y\n", Delimiter::Auto).2.len(), 1);
    }

    #[test]
    fn decimal_commas_are_found_where_no_number_has_a_point() {
        for (text, expected) in [
            ("a,b\n1.5,2\n", DecimalMark::Point),
            ("a;b\n1,5;2\n", DecimalMark::Comma),
            ("a;b\n1;2\n", DecimalMark::Unclear),
            ("a\tb\n1\t2\n", DecimalMark::Either),
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
    fn titles_and_names_of_rows_are_found() {
        let of = |text: &str| {
            let mut input = Input::new(Box::new(io::Cursor::new(text.to_owned()))).unwrap();
            let dialect = Dialect::find(&mut input, &ReadOptions::default()).unwrap();
            let record = input.record().unwrap().map_or(0, |record| record.line);
            (dialect.delimiter as char, dialect.titles.join("/"), dialect.has_row_names, record)
        };
        for (text, titles, line) in [
            ("Draws of 2025\nid;x;label\n0;1,5;0\n1;2;1\n", "Draws of 2025", 2),
            ("Report, all\n\nof 2025\nid;x\n0;1\n1;2\n", "Report, all/of 2025", 4),
            // A column of numbers with decimal commas, and too few rows to tell.
            ("price\n1,5\n2,5\n3,5\n", "", 1),
            ("title\na;b\n1;2\n", "", 1),
        ] {
            let found = of(text);
            assert_eq!((found.1.as_str(), found.3), (titles, line), "{text:?}");
        }
        for (text, has_names) in [
            ("x,y\nr1,1,0\nr2,2,1\n", true),
            ("x,y\n1,0,\n2,1,\n", false),
            ("x,y\n1,0\n2,1,5\n", false),
            // Filtered, shuffled, sampled with copies, descending, quoted.
            ("x,y\n3,0.5,0\n7,0.1,1\n", true),
            ("x,y\n9,0.5,0\n2,0.1,1\n5,1.5,1\n", true),
            ("x,y\n9,0.5,0\n9.1,0.1,1\n", true),
            ("x,y\n3,0.5,0\n2,1.5,1\n1,1,1\n", true),
            ("\"x\",\"y\"\n\"3\",5,0\n\"7\",1,1\n", true),
            ("x;y\n3;5;0\n7;1;1\n", true),
            ("x,k,y\nVolvo 1,0.5,van,0\nAudi 2,0.1,bus,1\n", true),
            ("k,y\nVolvo,van,0\nAudi,van,0\nFord,bus,0\nFiat,bus,1\n", true),
            // Decimal commas, and texts without quotes.
            ("x,y\n3,5,0\n7,1,1\n", false),
            ("x,y\n3,0.5,0\n3,0.1,1\n", false),
            ("name,y\nDoe,John,0\nRoe,Jane,1\n", false),
            ("x,name,y\n3,Doe,John,0\n7,Roe,Jane,1\n", false),
            ("name,k,y\nDoe, John,van,0\nRoe, John,van,0\nFoe, Jane,bus,0\nHoe, Jane,bus,1\n", false),
        ] {
            assert_eq!(of(text).2, has_names, "{text:?}");
        }
    }

    #[test]
    fn dates_are_found_by_the_first_value() {
        let text = "a;b;c;d;e\nNA;2024-01-01;x;12:30;\n2024-01-02;;2024-01-01;12:31;\n";
        let are_dates = [Some(true), Some(true), Some(false), Some(false), None];
        assert_eq!(found(text, Delimiter::Auto).2, are_dates);
    }
}
