//! Several texts in one value of the command line.

/// The texts in `typed`, which commas or line ends separate. One that holds such a mark is quoted, as in a CSV file: `"low, or none",high`.
pub(super) fn texts_in(typed: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = typed.trim();
    loop {
        let (text, after) = match rest.strip_prefix('"').and_then(quoted) {
            Some((text, after)) => (text, after),
            None => {
                let (text, after) = rest.split_at(rest.find([',', '\n']).unwrap_or(rest.len()));
                (text.trim().to_owned(), after)
            }
        };
        texts.push(text);
        match after.get(1..) {
            Some(next) => rest = next.trim_start(),
            None => return texts,
        }
    }
}

/// The text before the quote that closes it, and what follows: a mark and further texts, or nothing. `None` if the quote is part of a text.
fn quoted(rest: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut rest = rest;
    loop {
        let (part, after) = rest.split_once('"')?;
        text.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                text.push('"');
                rest = after;
            }
            None => {
                let after = after.trim_start_matches(' ');
                return (after.is_empty() || after.starts_with([',', '\n'])).then_some((text, after));
            }
        }
    }
}

/// Whether `typed` is one list in brackets, rather than texts that hold some: `[a, b]`, but not `[a], [b]`.
pub(super) fn is_bracketed(typed: &str) -> bool {
    let inner = typed.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    inner.is_some_and(|inner| {
        // Brackets in quotes are part of texts.
        let outside: String = inner.split('"').step_by(2).collect();
        inner.contains('"') || inner.contains('\'') || inner.contains('{') || !outside.contains(['[', ']'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_may_hold_brackets_and_quotes() {
        for (typed, want) in [
            ("speed [kmh]", &["speed [kmh]"][..]),
            ("low [1],mid [2], high [3]", &["low [1]", "mid [2]", "high [3]"]),
            ("Oslo,Rome]", &["Oslo", "Rome]"]),
            ("[odd", &["[odd"]),
            ("\"width, mm\",\"5\"\"\"", &["width, mm", "5\""]),
            ("mm \"net\",b", &["mm \"net\"", "b"]),
            ("\"a\" b,c", &["\"a\" b", "c"]),
            ("a\nb,c\n", &["a", "b", "c"]),
            ("-9,,foo", &["-9", "", "foo"]),
            ("a,", &["a", ""]),
            ("", &[""]),
        ] {
            assert_eq!(texts_in(typed), want, "{typed}");
        }
    }

    #[test]
    fn lists_have_brackets_around_them() {
        assert!(["[]", "[a, b]", "[\"a [1]\", 'b']"].iter().all(|typed| is_bracketed(typed)));
        assert!(
            ["a", "[odd", "odd]", "[a], [b]", "low [1],mid [2]"].iter().all(|typed| !is_bracketed(typed))
        );
    }
}
