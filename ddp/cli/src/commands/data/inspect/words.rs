//! Names and numbers in sentences.

/// Names in a list, truncated if there are many.
pub(super) fn listed(names: &[String]) -> String {
    joined(&names.iter().map(|name| cut(name, 30)).collect::<Vec<_>>())
}

/// Parts of a list, truncated if there are many.
pub(super) fn joined(parts: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = parts[..parts.len().min(SHOWN)].join(", ");
    match parts.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// A text, truncated if it is long.
pub(super) fn cut(text: &str, n_chars: usize) -> String {
    match text.char_indices().nth(n_chars) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// A number with its noun.
pub(super) fn count(n: u64, one: &str, several: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { several })
}

/// A number of rows.
pub(super) fn rows(n: u64) -> String {
    count(n, "row", "rows")
}
