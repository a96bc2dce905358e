//! Recognizes texts that stand for numbers or dates as people write them: `$40,551`, `12 %`, `80 m²`, `5/31/2024`.

/// Longer texts are sentences.
const MAX_BYTES: usize = 30;
/// Most letters of a unit.
const MAX_UNIT: usize = 3;

/// The notation that is read, for a message about such a text.
pub const PLAIN_NOTATION: &str = "write numbers as 1234.5 and dates as 2024-05-31";

/// Whether a text that is neither a number nor a date as it stands begins with digits, perhaps after a sign or a currency, and holds
/// few letters and no mark that joins the ends of ranges, the parts of codes or cells.
pub fn is_formatted(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let n_of = |is_one: fn(&char) -> bool| rest.chars().filter(is_one).count();
    text.len() <= MAX_BYTES
        && rest.starts_with(|c: char| c.is_ascii_digit())
        && !rest.contains(['-', '\u{2013}', '_', ';', '|'])
        && n_of(char::is_ascii_digit).max(MAX_UNIT) >= n_of(|c| c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_numbers_and_dates_are_told_from_names() {
        for text in [
            "$40,551.50",
            "-$7.25",
            "12 %",
            "80 m\u{b2}",
            "(1,234)",
            "5/31/2024",
            "31 May 2024",
            "\u{20ac}5",
            "0 cm",
        ] {
            assert!(is_formatted(text), "{text}");
        }
        for text in [
            "A/5 21171",
            "user 7",
            "12 Main St",
            "7 of nine men",
            "25-34",
            "555-1234",
            "1;2.5;0",
            "%",
            "",
            "\u{e9}1",
        ] {
            assert!(!is_formatted(text), "{text}");
        }
    }
}
