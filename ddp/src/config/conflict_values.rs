//! Values of a key in a conflict: their words and the check.

use std::fmt;

use toml::Value;

use self::Values::{Above, Any, Except, OneOf, TableWith, Words};
use super::setting::as_number;
use super::value::typed;

/// Values of a key, from which both their words and the check come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Any value but an empty list.
    Any,
    /// One of these, as they are typed after `--set`.
    OneOf(&'static [&'static str]),
    /// All but these.
    Except(&'static [&'static str]),
    /// Numbers above this one.
    Above(u32),
    /// Tables with this key.
    TableWith(&'static str),
    /// Values in words, which a config alone does not decide, or only its section.
    Words(&'static str),
}

impl Values {
    /// Whether a key with this value has one of these.
    pub(super) fn contains(self, value: &Value) -> bool {
        let is = |text: &&str| {
            let other = typed(text);
            other == *value || as_number(&other).is_some_and(|number| as_number(value) == Some(number))
        };
        match self {
            Any => value.as_array().is_none_or(|items| !items.is_empty()),
            OneOf(values) => values.iter().any(is),
            Except(values) => !values.iter().any(is),
            Above(most) => as_number(value).is_some_and(|number| number > most.into()),
            TableWith(key) => value.get(key).is_some(),
            Words(_) => false,
        }
    }

    /// The other values, in words.
    pub(super) fn others(self) -> String {
        match self {
            OneOf(["true"]) => "false".to_owned(),
            OneOf(_) => format!("other than {self}"),
            Except(values) => either(values),
            Above(0) => "0".to_owned(),
            Above(most) => format!("at most {most}"),
            Any | TableWith(_) | Words(_) => "absent".to_owned(),
        }
    }
}

/// These values in words: "a, b or c".
pub(super) fn either(values: &[&str]) -> String {
    let words: Vec<_> = values.iter().map(|text| typed(text).to_string()).collect();
    match &words[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        words => words.concat(),
    }
}

/// The values in words; "" for any value.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Any => Ok(()),
            OneOf(values) => f.write_str(&either(values)),
            Except(values) => write!(f, "other than {}", either(values)),
            Above(most) => write!(f, "above {most}"),
            TableWith(key) => write!(f, "with `{key}`"),
            Words(words) => f.write_str(words),
        }
    }
}
