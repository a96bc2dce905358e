//! One class label.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::data::spelling::{integer, is_code, truth_text, whole};

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
    pub fn from_number(number: f64) -> Option<Self> {
        whole(number).map(Label::Integer)
    }

    /// The label of a truth value, spelled as in Python.
    pub fn from_bool(value: bool) -> Self {
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

/// A truth value as Python spells it.
pub fn bool_text(value: bool) -> &'static str {
    truth_text(value)
}
