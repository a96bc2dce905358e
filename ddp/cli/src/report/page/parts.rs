//! Pieces of the page that several sections use: text of unknown origin, tables, times.

use ddp::report::visible::visible_lines;
use maud::{Markup, html};

use super::chart::figure;

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

/// Same as [`plain`], for a whole config.
pub(super) fn config(text: &str) -> String {
    shortened(text, 50_000)
}

fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", visible_lines(&text[..end])),
        None => visible_lines(text).into_owned(),
    }
}

/// A message and, on a line of its own, its hint.
pub(super) fn with_hint(message: &str) -> Markup {
    let (what, hint) =
        message.split_once("\nhint: ").map_or((message, None), |(what, hint)| (what, Some(hint)));
    html! { (plain(what)) @if let Some(hint) = hint { br; b { "Hint: " } (plain(hint)) } }
}

/// With a capital letter first.
pub(super) fn title_case(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A table that scrolls, also by keyboard, where it is wider than the screen. A title that starts with `<` aligns its column left, as in
/// tables on the terminal; the first column holds names.
pub(super) fn table(label: &str, titles: &[String], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    let class = |column: usize| titles.get(column)?.starts_with('<').then_some("left");
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr {
                    @for (i, title) in titles.iter().enumerate() {
                        th class=[class(i)] scope="col" { (title.strip_prefix('<').unwrap_or(title)) }
                    }
                } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (i, cell) in row.into_iter().enumerate() {
                                @if i == 0 { th class=[class(i)] scope="row" { (cell) } } @else { td class=[class(i)] { (cell) } }
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
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match seconds {
        s if s < 0.9995 => format!("{} ms", figure(s * 1e3)),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}
