//! Pieces of the page that several sections use: text of unknown origin, tables, times.

use ddp::report::visible::visible_lines;
use maud::{Markup, html};

use super::axis::figure;

/// Number of characters of a text of unknown origin that are shown.
const MAX_CHARS: usize = 2000;

/// A text of unknown origin: without invisible characters and not endless. Markup in it is escaped where it is inserted.
pub(super) fn plain(text: &str) -> String {
    shortened(text, MAX_CHARS)
}

/// Same as [`plain`], for a name or a value in a table or legend.
pub(super) fn name(text: &str) -> String {
    shortened(text, 80)
}

fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", visible_lines(&text[..end])),
        None => visible_lines(text).into_owned(),
    }
}

/// A table that scrolls, also by keyboard, where it is wider than the screen. The first column holds names.
pub(super) fn table(label: &str, titles: &[String], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (i, cell) in row.into_iter().enumerate() {
                                @if i == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Titles of a table.
pub(super) fn titles<const N: usize>(titles: [&str; N]) -> [String; N] {
    titles.map(str::to_owned)
}

/// Formats a time.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match seconds {
        s if s < 0.9995 => format!("{} ms", figure(s * 1e3)),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}
