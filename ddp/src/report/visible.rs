//! Makes untrusted strings, such as labels and column names, safe to print: no control characters and no invisible ones. Words of commands
//! that a message names are quoted for a shell.

use std::borrow::Cow;
use std::path::Path;

/// The string of one cell, with control characters and invisible characters escaped, such as `\n`, `\u{1b}` or `\u{200b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    written_out(text, |c| c.is_control() || is_invisible(c))
}

/// Same as [`visible`], for messages: line breaks and tabs are kept.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    written_out(text, is_hidden)
}

/// The text of a result on stdout: hidden characters are escaped as JSON and TOML escape them in texts, so that either stays valid.
pub fn visible_result(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) { shown.push_str(&format!("\\u{:04x}", u32::from(c))) } else { shown.push(c) }
    }
    shown.into()
}

/// Whether a character of a text of several lines is not shown.
fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || is_invisible(c)
}

/// A word of a command, in single quotes if a shell would split or expand it otherwise.
pub fn shell_word(word: impl AsRef<Path>) -> String {
    let word = word.as_ref().display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    if word.chars().all(is_plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The text of a message, in which names from files may be of any length: a word, a component of a path or what stands in double quotes is
/// cut at 200 characters, what stands in backticks, which may be a command, at twice as many, and a line at 4000.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.lines().all(|line| line.len() <= MAX_NAME) {
        return text.into();
    }
    let of_line = |line: &str| {
        let words = line.split_inclusive([' ', '\t', '/', '`', '"']);
        let line: String = words.map(short_word).collect();
        cut(&cut_quoted(&cut_quoted(&line, '"', MAX_NAME), '`', 2 * MAX_NAME), MAX_LINE).into_owned()
    };
    text.lines().map(of_line).collect::<Vec<_>>().join("\n").into()
}

/// Characters of a line of a message.
const MAX_LINE: usize = 4000;
/// Characters of a name in a message.
pub const MAX_NAME: usize = 200;

/// The line, in which what stands between two of `mark` is cut at `max` characters, unless it is hardly longer, as a word that was cut.
fn cut_quoted(line: &str, mark: char, max: usize) -> String {
    let n_marks = line.matches(mark).count();
    let shown = |(at, piece): (usize, &str)| {
        let is_long = at % 2 == 1 && at < n_marks && piece.chars().nth(max + 40).is_some();
        if is_long { cut(piece, max).into_owned() } else { piece.to_owned() }
    };
    line.split(mark).enumerate().map(shown).collect::<Vec<_>>().join(&mark.to_string())
}

/// The word, cut, and its separator.
fn short_word(word: &str) -> Cow<'_, str> {
    let name = word.trim_end_matches([' ', '\t', '/', '`', '"']);
    cut(name, MAX_NAME) + &word[name.len()..]
}

/// The text, cut at `max` characters.
pub fn cut(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()).into(),
        None => text.into(),
    }
}

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
    fn words_with_blanks_and_marks_are_quoted() {
        for plain in ["runs/a", "s3://b/x-1_2.csv", "optimizer.lr=1e-3", "lr=1e-3,seed=0", "größe"] {
            assert_eq!(shell_word(plain), plain);
        }
        assert_eq!(
            ["sp ace", "shards/*.npy", "it's"].map(shell_word),
            ["'sp ace'", "'shards/*.npy'", r"'it'\''s'"]
        );
    }

    #[test]
    fn what_a_terminal_obeys_or_hides_is_written_out() {
        assert_eq!(visible("\u{1b}[31mred\n\u{200b}x\u{feff}"), r"\u{1b}[31mred\n\u{200b}x\u{feff}");
        assert_eq!(visible_lines("a\tb\nc\r\u{202e}d"), "a\tb\nc\\r\\u{202e}d");
        assert_eq!(visible_result("{\"a\u{9b}\": \"\u{202e}b\"}\n"), "{\"a\\u009b\": \"\\u202eb\"}\n");
        assert_eq!(shortened("a\nb"), "a\nb");
        let long = "é".repeat(10_000);
        let short = "é".repeat(200) + "… (10000 characters)";
        for message in ["no column `@`\nhint: x", "\"@\", \"a b\"", "/a/@/b", "@", "@ \" x", "`x \"@\"`"] {
            assert_eq!(shortened(&message.replace('@', &long)), message.replace('@', &short));
        }
        let words = "two words ".repeat(1000);
        let quoted = format!("column \"{words}\" is not there");
        let expected = format!("column \"{}… (10000 characters)\" is not there", &words[..200]);
        assert_eq!(shortened(&quoted), expected);
        let command = format!("unknown key `{words}`");
        assert_eq!(shortened(&command), format!("unknown key `{}… (10000 characters)`", &words[..400]));
        assert!(shortened(&words).ends_with("… (10000 characters)"));
        assert_eq!(shortened(&words[..3000]), &words[..3000]);
        for text in ["naïve", "日本", "می\u{200c}خواهم", "👩\u{200d}🔬", "a b", "back\\slash"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }
}
