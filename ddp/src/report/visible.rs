//! Makes untrusted strings, such as labels and column names, safe to print: no control characters and no invisible ones.

use std::borrow::Cow;

/// The string of one cell, with control characters and invisible characters escaped, such as `\n`, `\u{1b}` or `\u{200b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    written_out(text, |c| c.is_control() || is_invisible(c))
}

/// Same as [`visible`], for messages: line breaks and tabs are kept.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    written_out(text, |c| (c.is_control() && c != '\n' && c != '\t') || is_invisible(c))
}

/// The text of a result on stdout: hidden characters are escaped as JSON and TOML escape them in texts, so that either stays valid.
pub fn visible_result(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| (c.is_control() && c != '\n' && c != '\t') || is_invisible(c);
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) { shown.push_str(&format!("\\u{:04x}", u32::from(c))) } else { shown.push(c) }
    }
    shown.into()
}

/// The text with its lines cut at [`MAX_LINE`] characters: a name in a message may be of any length.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.lines().all(|line| line.len() <= MAX_LINE) {
        return text.into();
    }
    let cut = |line: &str| match line.char_indices().nth(MAX_LINE) {
        Some((end, _)) => format!("{}... ({} more characters)", &line[..end], line[end..].chars().count()),
        None => line.to_owned(),
    };
    text.lines().map(cut).collect::<Vec<_>>().join("\n").into()
}

/// Characters of a line of a message.
const MAX_LINE: usize = 4000;

/// Whether a character has no width and, unlike joiners, no role in spelling, so that two strings that differ only in it look
/// alike. Includes characters that change the direction of the following text.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn written_out(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_written_out() {
        assert_eq!(visible("\u{1b}[31mred\n\u{200b}x\u{feff}"), r"\u{1b}[31mred\n\u{200b}x\u{feff}");
        assert_eq!(visible_lines("a\tb\nc\r\u{202e}d"), "a\tb\nc\\r\\u{202e}d");
        assert_eq!(visible_result("{\"a\u{9b}\": \"\u{202e}b\"}\n"), "{\"a\\u009b\": \"\\u202eb\"}\n");
        assert_eq!(shortened("a\nb"), "a\nb");
        let long = format!("no column {}\nhint: x", "é".repeat(10_000));
        assert!(shortened(&long).ends_with("é... (6010 more characters)\nhint: x"), "{}", shortened(&long));
        for text in ["naïve", "日本", "می\u{200c}خواهم", "👩\u{200d}🔬", "a b", "back\\slash"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }
}
