//! A setting: a known key, its value as given, and where; and its typed reading.

use toml::Value;

use super::keys;
use super::origin::Origin;
use crate::error::{Error, Result};

/// One key with the value that the user gave.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) value: Value,
    /// For `--set`: the value as typed, so that `--set name=2024` can be a text.
    pub(super) raw: Option<String>,
    pub(super) origin: Origin,
}

/// An enum with names in the config.
pub(super) trait Named: Copy + 'static {
    const VALUES: &'static [(&'static str, Self)];
}

/// Lays `upper` over `lower`: a later value wins, and so it does over the alternative of its key.
///
/// # Errors
/// [`Error::Conflict`] if one layer holds both keys of an alternative.
pub(super) fn overlay(lower: &mut Vec<Setting>, upper: Vec<Setting>) -> Result<()> {
    no_conflict(lower)?;
    no_conflict(&upper)?;
    for setting in upper {
        let alternative = alternative(setting.key);
        lower.retain(|old| old.key != setting.key && Some(old.key) != alternative);
        lower.push(setting);
    }
    Ok(())
}

fn alternative(key: &str) -> Option<&'static str> {
    keys::ALTERNATIVES.iter().find_map(|&(one, other, _)| {
        if key == one {
            Some(other)
        } else if key == other {
            Some(one)
        } else {
            None
        }
    })
}

fn no_conflict(layer: &[Setting]) -> Result<()> {
    for &(key, other, hint) in keys::ALTERNATIVES {
        let one_at = layer.iter().rposition(|setting| setting.key == key);
        let other_at = layer.iter().rposition(|setting| setting.key == other);
        if let (Some(one_at), Some(other_at)) = (one_at, other_at) {
            let at = Box::new(layer[one_at.max(other_at)].origin.clone());
            return Err(Error::Conflict { at, key, other, hint });
        }
    }
    Ok(())
}

impl Setting {
    pub(super) fn at(&self) -> Box<Origin> {
        Box::new(self.origin.clone())
    }

    /// The value for messages, cut where it is long.
    pub(super) fn shown(&self) -> String {
        let text = self.value.to_string();
        match text.char_indices().nth(60) {
            Some((cut, _)) => format!("{}...", &text[..cut]),
            None => text,
        }
    }

    pub(super) fn bad(&self, expected: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::BadValue {
            at: self.at(),
            key: self.key,
            expected: expected.into(),
            got: self.shown(),
            hint: hint.into(),
        }
    }

    fn wrong_type(&self, expected: &'static str) -> Error {
        let example = keys::example(self.key);
        let name = self.key.rsplit('.').next().unwrap_or(self.key);
        let example = match &self.origin {
            Origin::Set(_) => format!("--set {}={}", self.key, example.replace(' ', "")),
            _ => format!("{name} = {example}"),
        };
        Error::WrongType {
            at: self.at(),
            key: self.key.to_owned(),
            expected,
            got: format!("{} {}", type_name(&self.value), self.shown()),
            example,
        }
    }

    pub(super) fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// A whole number in `min..=max`.
    pub(super) fn count(&self, min: u64, max: u64, hint: &str) -> Result<u64> {
        let number = self.value.as_integer().ok_or_else(|| self.wrong_type("a whole number"))?;
        self.in_range(number, min, max, hint)
    }

    fn in_range(&self, number: i64, min: u64, max: u64, hint: &str) -> Result<u64> {
        match u64::try_from(number) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.bad(format!("a whole number from {min} to {max}"), hint)),
        }
    }

    /// A list of whole numbers in `min..=max`.
    pub(super) fn counts(&self, min: u64, max: u64, hint: &str) -> Result<Vec<u64>> {
        let wrong = || self.wrong_type("a list of whole numbers");
        let items = self.value.as_array().ok_or_else(wrong)?;
        items.iter().map(|item| self.in_range(item.as_integer().ok_or_else(wrong)?, min, max, hint)).collect()
    }

    /// A finite number that passes `fits`.
    pub(super) fn number(&self, fits: impl Fn(f64) -> bool, expected: &str, hint: &str) -> Result<f64> {
        let number = as_number(&self.value).ok_or_else(|| self.wrong_type("a number"))?;
        if number.is_finite() && fits(number) { Ok(number) } else { Err(self.bad(expected, hint)) }
    }

    /// A list of finite numbers that each pass `fits`.
    pub(super) fn numbers(&self, fits: impl Fn(f64) -> bool, expected: &str, hint: &str) -> Result<Vec<f64>> {
        let wrong = || self.wrong_type("a list of numbers");
        let items = self.value.as_array().ok_or_else(wrong)?;
        let numbers =
            items.iter().map(|item| as_number(item).ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
        if numbers.iter().all(|number| number.is_finite() && fits(*number)) {
            Ok(numbers)
        } else {
            Err(self.bad(expected, hint))
        }
    }

    /// A text that is not empty.
    pub(super) fn text(&self) -> Result<String> {
        let text = match (&self.value, &self.raw) {
            (Value::String(text), _) => text.clone(),
            (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_), Some(raw)) => {
                raw.clone()
            }
            _ => return Err(self.wrong_type("a text")),
        };
        if text.trim().is_empty() {
            return Err(
                self.bad("a text that is not empty", format!("for example {}", keys::example(self.key)))
            );
        }
        Ok(text)
    }

    /// A text, or a list of texts that is not empty.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let Some(items) = self.value.as_array() else {
            return Ok(vec![self.text()?]);
        };
        let texts: Option<Vec<_>> = items.iter().map(|item| Some(item.as_str()?.to_owned())).collect();
        let texts = texts.ok_or_else(|| self.wrong_type("a text or a list of texts"))?;
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(self.bad(
                "at least one name, none of them empty",
                format!("for example {}", keys::example(self.key)),
            ));
        }
        Ok(texts)
    }

    /// One of an enum's names.
    pub(super) fn one_of<T: Named>(&self) -> Result<T> {
        let names: Vec<&str> = T::VALUES.iter().map(|(name, _)| *name).collect();
        let text = self.text()?;
        if let Some((_, value)) = T::VALUES.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let hint = match keys::nearest(&text, names.iter().copied()) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("for example {}", keys::example(self.key)),
        };
        let expected = match names.as_slice() {
            [only] => format!("\"{only}\""),
            _ => format!("one of {}", names.join(", ")),
        };
        Err(self.bad(expected, hint))
    }
}

fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

/// The type of a TOML value in plain words.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "the text",
        Value::Integer(_) | Value::Float(_) => "the number",
        Value::Boolean(_) => "the truth value",
        Value::Datetime(_) => "the date",
        Value::Array(_) => "the list",
        Value::Table(_) => "the table",
    }
}
