//! A setting: a key, its value as given, and its origin. The typed getters check type and range of the key's row.

use toml::Value;

use super::error::{ConfigError, Result};
use super::key::{Key, Kind, Range};
use super::nearest::similar;
use super::origin::Origin;
use super::other_values::value_hint;
use super::typed_texts::{is_bracketed, texts_in};

/// One key with a value.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: &'static Key,
    pub(super) value: Value,
    /// The value of `--set` as typed, so that `--set name=2024` can be read as a string.
    pub(super) raw: Option<String>,
    pub(super) origin: Origin,
}

impl Setting {
    pub(super) fn at(&self) -> Box<Origin> {
        Box::new(self.origin.clone())
    }

    /// The value for messages, truncated if it is long.
    fn shown(&self) -> String {
        let text = self.value.to_string();
        match text.char_indices().nth(60) {
            Some((cut, _)) => format!("{}...", &text[..cut]),
            None => text,
        }
    }

    /// The error for a value that can't be used.
    pub(super) fn bad(&self, expected: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            at: self.at(),
            key: self.key.name,
            expected: expected.into(),
            got: self.shown(),
            hint: hint.into(),
        }
    }

    /// The error for an integer that does not fit 64 bits.
    pub(super) fn out_of_i64(&self) -> ConfigError {
        let expected = match self.key.kind {
            Kind::Count { min, max } => format!("a whole number from {min} to {max}"),
            _ => format!("{} of at most {}", self.key.kind.type_words(), i64::MAX),
        };
        let got = self.value.as_str().unwrap_or_default().to_owned();
        let (at, key, hint) = (self.at(), self.key.name, self.key.hint.to_owned());
        ConfigError::BadValue { at, key, expected, got, hint }
    }

    /// Hint that shows the key's example.
    pub(super) fn for_example(&self) -> String {
        format!("for example {}", self.key.example)
    }

    fn wrong_type(&self) -> ConfigError {
        let Key { name, example, .. } = *self.key;
        let example = match &self.origin {
            Origin::Set(_) => format!("--set {name}={}", example.replace(' ', "")),
            Origin::Short { flag, .. } if !flag.is_empty() => {
                format!("{flag} {}", example.replace([' ', '[', ']'], ""))
            }
            _ => format!("{} = {example}", self.key.short_name()),
        };
        ConfigError::WrongType {
            at: self.at(),
            key: name.to_owned(),
            expected: self.key.kind.type_words(),
            got: format!("{} {}", type_name(&self.value), self.shown()),
            example,
        }
    }

    pub(super) fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong_type())
    }

    /// The value as an integer in the row's range.
    pub(super) fn count(&self) -> Result<u64> {
        let Kind::Count { min, max } = self.key.kind else { return self.no_such_kind("whole number") };
        self.count_in(&self.value, min, max)
    }

    /// The value as a list of integers in the row's range.
    pub(super) fn counts(&self) -> Result<Vec<u64>> {
        let Kind::Counts { min, max } = self.key.kind else { return self.no_such_kind("list") };
        let items = self.value.as_array().ok_or_else(|| self.wrong_type())?;
        items.iter().map(|item| self.count_in(item, min, max)).collect()
    }

    fn count_in(&self, value: &Value, min: u64, max: u64) -> Result<u64> {
        let number = value.as_integer().ok_or_else(|| self.wrong_type())?;
        match u64::try_from(number) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.bad(format!("a whole number from {min} to {max}"), self.key.hint)),
        }
    }

    /// The value as a finite number in the row's range.
    pub(super) fn number(&self) -> Result<f64> {
        let Kind::Number(range) = self.key.kind else { return self.no_such_kind("number") };
        let number = as_number(&self.value).ok_or_else(|| self.wrong_type())?;
        if range.contains(number) { Ok(number) } else { Err(self.out_of(range)) }
    }

    /// The value as a list of finite numbers in the row's range and of the row's length.
    pub(super) fn numbers(&self) -> Result<Vec<f64>> {
        let (range, len) = match self.key.kind {
            Kind::Numbers { range, len } => (range, len),
            Kind::NumbersOr(range, _) => (range, None),
            _ => return self.no_such_kind("list"),
        };
        let items = self.value.as_array().ok_or_else(|| self.wrong_type())?;
        let numbers = items
            .iter()
            .map(|item| as_number(item).ok_or_else(|| self.wrong_type()))
            .collect::<Result<Vec<_>>>()?;
        let fits = numbers.iter().all(|number| range.contains(*number));
        if fits && len.is_none_or(|len| len == numbers.len()) { Ok(numbers) } else { Err(self.out_of(range)) }
    }

    fn out_of(&self, range: Range) -> ConfigError {
        self.bad(range.words, self.key.hint)
    }

    /// The value as a string that is not blank.
    pub(super) fn text(&self) -> Result<String> {
        let text = match (&self.value, &self.raw) {
            (Value::String(text), _) => text.clone(),
            (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_), Some(raw)) => {
                raw.clone()
            }
            _ => return Err(self.wrong_type()),
        };
        if text.trim().is_empty() {
            return Err(self.bad("a text that is not empty", self.for_example()));
        }
        Ok(text)
    }

    /// The value as a list of strings, given as a string or a list; the list may be empty if the row allows it.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let (may_be_empty, may_hold_empty) = match self.key.kind {
            Kind::Texts { may_be_empty } => (may_be_empty, false),
            Kind::AnyTexts => (true, true),
            _ => return self.no_such_kind("list of texts"),
        };
        let Some(items) = self.value.as_array() else {
            let text = self.text()?;
            // A name may hold a comma, unlike nearly all marks of missing values.
            return Ok(self.bare_texts().filter(|_| may_hold_empty).unwrap_or_else(|| vec![text]));
        };
        let texts: Option<Vec<_>> = items.iter().map(|item| Some(item.as_str()?.to_owned())).collect();
        let texts = texts.ok_or_else(|| self.wrong_type())?;
        let holds_empty = texts.iter().any(|text| text.trim().is_empty()) && !may_hold_empty;
        if (texts.is_empty() && !may_be_empty) || holds_empty {
            return Err(self.bad("at least one name, none of them empty", self.for_example()));
        }
        Ok(texts)
    }

    /// The texts of a list on the command line that was typed without brackets and without quotes around it.
    pub(super) fn bare_texts(&self) -> Option<Vec<String>> {
        let typed =
            self.value.as_str().filter(|typed| self.raw.as_deref().map(str::trim) == Some(typed.trim()))?;
        (!is_bracketed(typed)).then(|| texts_in(typed))
    }

    /// The value as one of the row's names.
    pub(super) fn name(&self) -> Result<&'static str> {
        let Kind::OneOf(names) = self.key.kind else { return self.no_such_kind("name") };
        self.among(&self.text()?, names)
    }

    /// The value as an optional name of a head and one of the row's metrics; after a head's name the `eval_` may be omitted.
    pub(super) fn head_and_name(&self) -> Result<(Option<String>, &'static str)> {
        let Kind::Metric(names) = self.key.kind else { return self.no_such_kind("metric") };
        let text = self.text()?;
        let Some((head, name)) = text.rsplit_once('.') else { return Ok((None, self.among(&text, names)?)) };
        let of_heads = names.iter().filter(|name| name.starts_with("eval_"));
        let full = if name.starts_with("eval_") { name.to_owned() } else { format!("eval_{name}") };
        match of_heads.clone().find(|name| **name == full) {
            Some(name) => Ok((Some(head.to_owned()), name)),
            None => {
                let names: Vec<_> = of_heads.copied().collect();
                let hint = match similar(name, &names) {
                    Some(name) => format!("did you mean \"{head}.{name}\"?"),
                    None => self.for_example(),
                };
                Err(self.bad(format!("the name of a head, a point and one of {}", names.join(", ")), hint))
            }
        }
    }

    fn among(&self, text: &str, names: &'static [&'static str]) -> Result<&'static str> {
        if let Some(name) = names.iter().find(|name| **name == text) {
            return Ok(name);
        }
        let similar = || similar(text, names).map(|name| format!("did you mean \"{name}\"?"));
        let hint = value_hint(self.key.name, text).or_else(similar).unwrap_or_else(|| self.for_example());
        let expected = match names {
            [only] => format!("\"{only}\""),
            _ => format!("one of {}", names.join(", ")),
        };
        Err(self.bad(expected, hint))
    }

    /// A section's file reads one of its keys with a different type than the row's.
    fn no_such_kind<T>(&self, kind: &str) -> T {
        panic!("`{}` is not a {kind}: {:?}", self.key.name, self.key.kind)
    }
}

pub(super) fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

/// The type of a TOML value in words.
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
