//! One class label.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Integers up to this size are exact in f64.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A class label. Integers precede texts in order; `1` and `1.0` are the same label, `1` and `01` are not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Label {
    /// A whole number.
    Integer(i64),
    /// Any other text, and the truth values `False` and `True`.
    Text(String),
}

impl Label {
    /// The label that a text stands for; white space around it does not count. A code such as `007` is a text.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match integer(text) {
            Some(number) if !is_code(text) => Label::Integer(number),
            _ => Label::Text(text.to_owned()),
        }
    }

    /// The label of a number; `None` for numbers with fractions and numbers that are not finite.
    pub fn of_number(number: f64) -> Option<Self> {
        whole(number).map(Label::Integer)
    }

    /// The label of a truth value, spelled as in Python.
    pub fn of_bool(value: bool) -> Self {
        Label::Text(bool_text(value).to_owned())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Integer(number) => number.fmt(f),
            Label::Text(text) => f.pad(text),
        }
    }
}

impl From<i64> for Label {
    fn from(number: i64) -> Self {
        Label::Integer(number)
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Label::parse(text)
    }
}

/// The integer that a text stands for, also written as `1.0` or `1e3`.
pub(super) fn integer(text: &str) -> Option<i64> {
    // Texts such as "inf" and "nan" are numbers to the parser, but none of them is whole.
    text.parse::<i64>().ok().or_else(|| whole(text.parse::<f64>().ok()?))
}

/// Whether a text spells a number as no program writes the value: `007`, `1e3` or `1.10`. Such a label is a text, so that its
/// spelling is kept, unless all labels are numbers and some have fractions. Programs write a point or a sign where they write an
/// exponent, some write a plus sign, and `1.0` is an integer.
pub fn is_code(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => is_digits(mantissa) && is_digits(exponent),
        None => match unsigned.split_once('.') {
            None => is_digits(unsigned) && has_leading_zero(unsigned),
            Some((whole, fraction)) => is_digits(whole) && is_digits(fraction) && has_trailing_zero(fraction),
        },
    }
}

/// Whether a text spells an integer with zeros before its digits.
pub fn is_padded(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    is_digits(digits) && has_leading_zero(digits)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_leading_zero(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

/// Whether digits after a point end in zeros that change nothing.
fn has_trailing_zero(fraction: &str) -> bool {
    fraction.ends_with('0') && fraction.bytes().any(|digit| digit != b'0')
}

/// A number without fraction as an integer, if the integer is exact.
pub fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= MAX_EXACT).then_some(number as i64)
}

/// A truth value as Python spells it.
pub fn bool_text(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The truth value of `true`, `false`, `yes` or `no`, in any case.
pub(super) fn truth_word(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("yes") => Some(true),
        _ if text.eq_ignore_ascii_case("no") => Some(false),
        _ => truth(text),
    }
}

/// The truth value that a text spells, in any case.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}
