//! Results on stdout, tables in them, and single lines on stderr.

use std::io::{self, Write as _};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use ddp::report::ReportError;
use ddp::report::units::grouped;
use ddp::report::visible::{MAX_NAME, cut, visible, visible_result};

/// Writes all of `text` to stdout, with what a terminal would obey or hide escaped. A closed pipe is not an error, because the reader has stopped on purpose.
///
/// # Errors
/// [`ReportError::Stdout`] if it can't be written.
pub(crate) fn print_result(text: &str) -> Result<(), ReportError> {
    let mut stdout = io::stdout().lock();
    let text = visible_result(text);
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => Err(ReportError::Stdout { source }),
        _ => Ok(()),
    }
}

/// Writes a line to stderr with a single call, so that lines of several ranks don't mix.
pub fn say(text: &str) {
    // A closed stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Formats rows of cells under their titles; each column is as wide as its widest cell.
///
/// - a title that starts with `<` aligns its column left (names); other columns are aligned right (numbers): a title that may begin with
///   any character gets `>` in front
/// - cells may contain untrusted strings, which are escaped and cut
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(titles.iter().map(|title| shown(title.strip_prefix(['<', '>']).unwrap_or(title))));
    table.add_rows(rows.iter().map(|cells| cells.iter().map(|cell| shown(cell))));
    for (column, title) in table.column_iter_mut().zip(titles) {
        let is_left = title.starts_with('<');
        column.set_padding((0, 2));
        column.set_cell_alignment(if is_left { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt() + "\n"
}

fn shown(cell: &str) -> String {
    visible(&cut(cell, MAX_NAME)).into_owned()
}

/// A number with its noun: `1 batch`, `2 batches`.
pub(crate) fn count(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    match (n, noun.ends_with("ch")) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{} {noun}es", grouped(n)),
        (_, false) => format!("{} {noun}s", grouped(n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_numbers_right() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["long".to_owned(), "7".to_owned()]];
        assert_eq!(table(&["<name", "ms"], &rows), "name  ms\na     10\nlong   7\n");
    }

    #[test]
    fn names_in_titles_keep_their_first_characters() {
        let rows = [vec!["<=50K".to_owned(), "31".to_owned(), "6".to_owned()]];
        let shown = "true   <=50K  >50K\n<=50K     31     6\n";
        assert_eq!(table(&["<true", "><=50K", ">>50K"], &rows), shown);
    }

    #[test]
    fn a_wide_character_takes_two_columns() {
        let rows = [vec!["日本".to_owned(), "1".to_owned()], vec!["name".to_owned(), "20".to_owned()]];
        assert_eq!(table(&["<label", "n"], &rows), "label   n\n日本    1\nname   20\n");
    }

    #[test]
    fn cells_stay_on_their_line() {
        let rows =
            [vec!["two\nlines".to_owned(), "1".to_owned()], vec!["\u{1b}[0m".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["<name", "n"], &rows), "name        n\ntwo\\nlines  1\n\\u{1b}[0m   2\n");
    }
}
