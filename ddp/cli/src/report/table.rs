//! Text tables.

use ddp::report::visible::visible;

/// Formats rows of cells under their titles; each column is as wide as its widest cell.
///
/// - a title that starts with `<` aligns its column left (names); other columns are aligned right (numbers)
/// - cells may hold texts of strangers: see [`visible`]
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let bare: Vec<String> = titles.iter().map(|title| title.trim_start_matches('<').to_owned()).collect();
    let cells = |cells: &Vec<String>| cells.iter().map(|cell| visible(cell).into_owned()).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = std::iter::once(&bare).chain(rows).map(cells).collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for cells in &lines {
        let mut line = String::new();
        for ((cell, &width), title) in cells.iter().zip(&widths).zip(titles) {
            if !line.is_empty() {
                line += "  ";
            }
            line +=
                &if title.starts_with('<') { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
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
    fn cells_stay_on_their_line() {
        let rows =
            [vec!["two\nlines".to_owned(), "1".to_owned()], vec!["\u{1b}[0m".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["<name", "n"], &rows), "name        n\ntwo\\nlines  1\n\\u{1b}[0m   2\n");
    }
}
