//! Spelling of numbers and truth values in labels and categories.

use std::borrow::Cow;

/// Integers up to this size are exact in f64.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Words for truth values, in any case.
const TRUTHS: [(&str, bool); 4] = [("true", true), ("false", false), ("yes", true), ("no", false)];

/// The integer that a text stands for, also written as `1.0` or `1e3`.
pub fn integer(text: &str) -> Option<i64> {
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

/// Whether a text is an integer of any size.
pub fn is_integer(text: &str) -> bool {
    is_digits(text.strip_prefix(['+', '-']).unwrap_or(text))
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

/// A whole number that is written with zeros after the point, without them; another text unchanged.
///
/// Programs write whole numbers so in columns that lack values: `1.0` next to an empty cell.
pub fn without_fraction(value: &str) -> &str {
    let Some((whole, zeros)) = value.split_once('.') else { return value };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let are_zeros = !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0');
    if is_digits(digits) && are_zeros { whole } else { value }
}

/// The shortest spelling of a number that is a category: [`without_fraction`] for a whole one, and `1.5` for `1.50`, `1e16` for `1e+16`, which
/// other programs write for the same value; another text unchanged. `01.5` and `1e3` are codes.
pub fn category_text(value: &str) -> Cow<'_, str> {
    let unsigned = value.strip_prefix('-').unwrap_or(value);
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or_default();
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let has_exponent = mantissa.len() < unsigned.len();
    let is_number = is_digits(whole) && is_digits(fraction) && !has_leading_zero(whole);
    let plain = without_fraction(value);
    if !is_number || plain.len() < value.len() || is_digits(unsigned) || has_exponent && is_code(value) {
        return Cow::Borrowed(plain);
    }
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() => {
            let text = format!("{number:?}");
            if text == value { Cow::Borrowed(value) } else { Cow::Owned(without_fraction(&text).to_owned()) }
        }
        _ => Cow::Borrowed(value),
    }
}

/// A number whose shortest spelling has an exponent as Python and C spell it, with a sign and two digits: `1e+16` for `1e16`.
pub fn python_exponent(shortest: &str) -> Option<String> {
    let (mantissa, exponent) = shortest.split_once('e')?;
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    Some(format!("{mantissa}e{sign}{digits:0>2}"))
}

/// Spellings of a lower-case word of ASCII in small and capital letters.
pub fn cases(word: &str) -> Vec<String> {
    let letter = |mask: u32, (at, letter): (usize, char)| {
        if mask >> at & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
    };
    (0..1 << word.len()).map(|mask| word.char_indices().map(|of| letter(mask, of)).collect()).collect()
}

/// A truth value as Python spells it.
pub fn truth_text(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The truth value of `true`, `false`, `yes` or `no`, in any case.
pub fn truth_word(text: &str) -> Option<bool> {
    truth_in(&TRUTHS, text)
}

/// The truth value of `true` or `false`, in any case.
pub fn truth(text: &str) -> Option<bool> {
    truth_in(&TRUTHS[..2], text)
}

fn truth_in(words: &[(&str, bool)], text: &str) -> Option<bool> {
    words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}
