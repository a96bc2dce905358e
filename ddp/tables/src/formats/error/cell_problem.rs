//! Faults of one cell of a table.

use ddp::report::visible::shell_word;
use miette::Diagnostic as _;

use crate::values::number::is_grouped;
use crate::values::time;

/// Fault of one cell of a CSV file, with a remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum CellProblem {
    /// Bytes that are not UTF-8.
    #[error("not UTF-8 text")]
    #[diagnostic(help(
        "save the file as UTF-8, with `iconv -f WINDOWS-1252 -t UTF-8 OLD.csv > NEW.csv` if Excel on Windows wrote it; in JSON, a text that was cut within an emoji holds half of it, such as \\ud83d: replace it"
    ))]
    NotUtf8,
    /// A number with a mark of thousands, or of a fraction of three digits; or with another mark than those of the first rows.
    #[error("\"{text}\" {}", doubt(text))]
    #[diagnostic(help("set `data.decimal` to the mark before the fraction, \".\" or \",\""))]
    UnclearMark { text: String },
    /// Nothing but white space in a feature.
    #[error("the cell is empty, expected a number")]
    #[diagnostic(help("set `data.missing` to \"mean\" or \"zero\", or list the column in `data.drop`"))]
    Empty,
    /// Nothing but white space in a target or weight.
    #[error("the cell is empty, expected a value")]
    #[diagnostic(help("fill in the value, or remove those rows"))]
    TargetEmpty,
    /// No value in a target of `heads`.
    #[error("the target is missing")]
    #[diagnostic(help(
        "set `data.missing_target` to \"skip\" to leave such rows out of the loss of this head, or fill in the value"
    ))]
    TargetOfHeadMissing,
    /// Text in a target of `heads` that is a quantity.
    #[error("expected a number, got \"{text}\"")]
    #[diagnostic(help("for labels set the `task` of this head to \"classification\""))]
    TargetOfHeadNotANumber { text: String },
    /// A mark of a missing value in a feature.
    #[error("the value is missing (\"{text}\"), expected a number")]
    #[diagnostic(help("set `data.missing` to \"mean\" or \"zero\", or list the column in `data.drop`"))]
    Missing { text: String },
    /// A value under no name.
    #[error("\"{text}\" is in a column without a name")]
    #[diagnostic(help("name the column in the first line, or leave it out: `data.drop` = [\"{name}\"]"))]
    Unnamed { text: String, name: String },
    /// Text in a feature.
    #[error("expected a number, got \"{text}\"")]
    #[diagnostic(help("{}", text_hint(text, column.as_deref().unwrap_or("NAME"))))]
    NotANumber {
        text: String,
        /// Its column, where it is known.
        column: Option<String>,
    },
    /// Text in a target or weight.
    #[error("expected a number, got \"{text}\"")]
    #[diagnostic(help("correct the value, or check the name of the column"))]
    TargetNotANumber { text: String },
    /// A number with a comma where numbers have points.
    #[error("expected a number, got \"{text}\"")]
    #[diagnostic(help(
        "for a comma between thousands set `data.decimal` to \".\"; where the comma is the decimal mark, to \",\""
    ))]
    CommaInNumber { text: String },
    /// Something else in a column whose first value is a date.
    #[error("expected a date as in the first rows, got \"{text}\"")]
    #[diagnostic(help("correct the value, or set `data.datetime` to \"seconds\""))]
    NotADate { text: String },
    /// NaN, infinity, or beyond f32.
    #[error("expected a finite number, got \"{text}\"")]
    #[diagnostic(help("correct the value, or list the column in `data.drop`; the largest number is 3.4e38"))]
    NotFinite { text: String },
    /// An empty cell in a target.
    #[error("the cell is empty, expected a value")]
    #[diagnostic(help(
        "fill in the value, or leave out rows without one with `data.missing_target` = \"skip\""
    ))]
    TargetMissing,
    /// A mark of a missing value in a target.
    #[error("the label is missing, got \"{text}\"")]
    #[diagnostic(help(
        "fill in the label, or leave out rows without one with `data.missing_target` = \"skip\"; if \"{text}\" is a label, \
         `data.missing_values` = [\"\"] says that only empty cells are missing"
    ))]
    LabelMissing { text: String },
    /// Labels with too many distinct values.
    #[error("more than {limit} distinct labels")]
    #[diagnostic(help("is the target an identifier? name another column in `data.target`"))]
    TooManyLabels { limit: usize },
    /// A label that is not a class.
    #[error("label \"{label}\" is none of the {n_classes} classes of the training rows: {classes}")]
    #[diagnostic(help(
        "correct the label, or leave out such evaluation rows with `data.unknown_label` = \"skip\""
    ))]
    LabelUnknown {
        label: String,
        n_classes: usize,
        /// The classes in one line.
        classes: String,
    },
    /// A label with a fraction.
    #[error("expected a whole class number, got {text}")]
    #[diagnostic(help("for real-valued targets set `data.task` to \"regression\""))]
    LabelFractional { text: String },
    /// A label below 0.
    #[error("expected a class number of 0 or above, got {label}")]
    #[diagnostic(help("number the classes from 0"))]
    LabelNegative { label: i64 },
    /// A label that exceeds the number of classes.
    #[error("label {label} is out of range, expected 0 to {} ({classes} classes)", classes - 1)]
    #[diagnostic(help(
        "set `data.classes` to {} or more, number the classes from 0, or leave out such evaluation rows with \
         `data.unknown_label` = \"skip\"",
        label.saturating_add(1)
    ))]
    LabelOutOfRange { label: i64, classes: usize },
    /// A weight below 0.
    #[error("expected a weight of 0 or above, got {text}")]
    #[diagnostic(help("check `data.weight`"))]
    WeightNegative { text: String },
    /// No value in the column of `data.split`.
    #[error("the value is missing, and `data.split` needs it in every row")]
    #[diagnostic(help("fill in the value, or remove those rows"))]
    SplitMissing,
    /// Text in the column of times.
    #[error("expected a date, a time or a number, got \"{text}\"")]
    #[diagnostic(help("write dates as 2024-05-31 or 2024-05-31 12:30:00"))]
    NotATime { text: String },
    /// A date among numbers, or the reverse.
    #[error("expected a time in the notation of the rows before it, got \"{text}\"")]
    #[diagnostic(help("write all times as dates, or all of them as numbers"))]
    OtherTime { text: String },
    /// A multilabel target that is neither 0 nor 1.
    #[error("expected 0 or 1 for task \"multilabel\", got {text}")]
    #[diagnostic(help("for real-valued targets set `data.task` to \"regression\""))]
    NotBinary { text: String },
}

impl CellProblem {
    /// The remedy at a line. Lines before it had numbers in the column, so that a text there likely marks a missing value.
    pub(super) fn hint_at(&self, line: u64) -> String {
        let hint = self.help().map(|hint| hint.to_string()).unwrap_or_default();
        match self {
            CellProblem::NotANumber { text, .. } if line > 2 && !is_formatted(text) => {
                let set =
                    shell_word(format!("data.missing_values=[{}]", serde_json::Value::from(text.as_str())));
                let else_ = hint.split("; if the text marks").next().unwrap_or_default();
                format!("if it marks a missing value, `--set {set}` and set `data.missing`; else {else_}")
            }
            _ => hint,
        }
    }
}

/// The remedy for a text in a feature.
fn text_hint(text: &str, column: &str) -> String {
    if is_formatted(text) {
        return format!("{PLAIN_NOTATION}, or list the column in `data.categorical` or `data.drop`");
    }
    let category = category_setting(column);
    format!(
        "list the column in `data.categorical` or `data.drop`, such as `--set {category}`; if the text marks a missing value, list it \
         in `data.missing_values` and set `data.missing`"
    )
}

/// The argument of `--set` that makes a column categorical, as one word of a shell.
fn category_setting(column: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-. ".contains(c);
    let is_word = column.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && column.chars().all(is_plain)
        && !["true", "false", "inf", "nan"].contains(&column);
    // Escapes of JSON are TOML's too, on one line.
    let value = if is_word { column.to_owned() } else { serde_json::Value::from(column).to_string() };
    shell_word(format!("data.categorical={value}"))
}

impl CellProblem {
    /// The same problem, which names the column to change.
    pub fn in_column(self, name: &str) -> Self {
        match self {
            CellProblem::NotANumber { text, .. } => {
                CellProblem::NotANumber { text, column: Some(name.to_owned()) }
            }
            other => other,
        }
    }

    /// Whether a label is not a class of the training rows.
    pub fn is_unknown_label(&self) -> bool {
        matches!(self, Self::LabelUnknown { .. } | Self::LabelOutOfRange { .. } | Self::LabelNegative { .. })
    }

    /// The problem of a value in the column that is called `name` because it has no name.
    pub fn unnamed(cell: &[u8], name: &str) -> Self {
        CellProblem::Unnamed { text: String::from_utf8_lossy(cell).trim().to_owned(), name: name.to_owned() }
    }
}

/// Longer texts are sentences.
const MAX_BYTES: usize = 30;
/// Most letters of a unit.
const MAX_UNIT: usize = 3;

/// The notation that is read, for a message about such a text.
pub const PLAIN_NOTATION: &str = "write numbers as 1234.5 and dates as 2024-05-31";

/// Recognizes texts that stand for numbers or dates as people write them: `$40,551`, `12 %`, `80 m²`, `5/31/2024`.
///
/// Whether a text that is neither a number nor a date as it stands begins with digits, perhaps after a sign or a currency, and holds
/// few letters and no mark that joins the ends of ranges, the parts of codes or cells.
pub fn is_formatted(text: &str) -> bool {
    if is_written_date(text) {
        return true;
    }
    let rest = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let n_of = |is_one: fn(&char) -> bool| rest.chars().filter(is_one).count();
    text.len() <= MAX_BYTES
        && rest.starts_with(|c: char| c.is_ascii_digit())
        && !rest.contains(['-', '\u{2013}', '_', ';', '|'])
        && n_of(char::is_ascii_digit).max(MAX_UNIT) >= n_of(|c| c.is_alphabetic())
}

/// Whether a text is a date with the name of a month or, after an ISO date, of half of the day or of a time zone: `1-Jan-24`,
/// `Mon, 01 Jan 2024 07:22:11 GMT`, `2024-01-02 07:22 AM`, `2024-01-02T07:22:11+02:00[Europe/Berlin]`.
fn is_written_date(text: &str) -> bool {
    const MAX_BYTES: usize = 64;
    const MONTHS: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    /// A name or its first three letters, or four as in `Sept`.
    fn is_of(names: &[&str], word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        names.iter().any(|name| *name == word || (3..=4).contains(&word.len()) && name.starts_with(&word))
    }
    if text.len() > MAX_BYTES || !text.is_ascii() {
        return false;
    }
    let is_iso = text.get(..10).is_some_and(|date| time::parse(date).is_some_and(|moment| moment.has_date));
    let (text, zone) = text.strip_suffix(']').and_then(|text| text.split_once('[')).unwrap_or((text, ""));
    let (mut n_months, mut has_day, mut n_numbers, mut n_words) = (0, false, 0, 0);
    for word in text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let rest = &word[digits.len()..];
        match () {
            () if is_number && ["", "th", "st", "nd", "rd"].contains(&rest.to_ascii_lowercase().as_str()) => {
                has_day |= digits.parse::<u32>().is_ok_and(|day| (1..=31).contains(&day));
                n_numbers += 1;
            }
            // The T between date and time, and Z.
            () if is_iso
                && (rest == "T"
                    || rest == "Z"
                    || word.split('T').all(|part| part.parse::<u64>().is_ok())) => {}
            () if is_of(&MONTHS, word) => n_months += 1,
            () if is_of(&DAYS, word) => {}
            () if ["am", "pm", "a", "p", "m"].contains(&word.to_ascii_lowercase().as_str()) => n_words += 1,
            () if (2..=5).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                n_words += 1
            }
            () => return false,
        }
    }
    let has_zone = zone.contains('/') || !zone.is_empty();
    n_months == 1 && has_day && n_numbers >= 2 || is_iso && (n_words > 0 || has_zone)
}

/// Reason why a number has no certain value.
fn doubt(text: &str) -> String {
    if [',', '.'].iter().any(|mark| is_grouped(text, *mark)) {
        let (whole, fraction) = (text.replace([',', '.'], ""), text.replacen(',', ".", 1));
        return format!("may be {whole} or {fraction}: the first rows are ambiguous");
    }
    "has a point, and numbers of the first rows have a decimal comma".to_owned()
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
            "2024-01-02 07:22:11 CEST",
            "2024-01-02T07:22:11+02:00[Europe/Berlin]",
            "2024-01-02T07:22:11.5Z[UTC]",
            "2024-01-02 07:22:11 AM",
            "02-JAN-24 07.22.11.000000 PM",
            "2-Jan-2024",
            "Tue, 02 Jan 2024 07:22:11 GMT",
            "Tue, 2 Jan 2024 07:22:11 +0100 (CET)",
            "Tue Jan  2 07:22:11 2024",
            "January 02, 2024",
            "Sept 2nd, 2024 7:22 p.m.",
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
            "May 2024 Smith",
            "Mar 5",
            "May, 12 Main St",
            "March",
            "%",
            "",
            "\u{e9}1",
        ] {
            assert!(!is_formatted(text), "{text}");
        }
    }
}
