//! A config key is one row: name, type, range, default, example, synonyms, resume rule and help line.
//!
//! Rows are constants in the file of their section. Reading, `--set`, errors, writing, the comparison of ranks, the resume rules,
//! `config keys` and `config schema` all come from them.
//!
//! ```
//! use ddp::config::key::Kind;
//! use ddp::config::keys;
//!
//! let lr = keys().find(|key| key.name == "optimizer.lr").expect("the key of the learning rate");
//! assert_eq!((lr.section(), lr.short_name()), ("optimizer", "lr"));
//! assert!(matches!(lr.kind, Kind::Number(range) if range.min == 0.0 && range.is_min_excluded));
//! ```

use std::fmt;

use serde::Deserialize as _;
use toml::Value;
use toml::de::ValueDeserializer;

use super::other_values::squashed;
use super::typed_texts::{is_bracketed, texts_in};

/// The properties of a config key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name with its section: `optimizer.lr`.
    pub name: &'static str,
    /// One line of help for the reference and for editors.
    pub help: &'static str,
    /// Type and range.
    pub kind: Kind,
    /// Value of the key if a config omits it.
    pub default: KeyDefault,
    /// A valid value, written as TOML.
    pub example: &'static str,
    /// Hint for a value that is out of range.
    pub hint: &'static str,
    /// Names of this key in other programs.
    pub synonyms: &'static [&'static str],
    /// Another key for the same quantity in a different unit; only one of the two may be given.
    pub alternative: Option<Alternative>,
    /// Whether a resumed run may change it.
    pub on_resume: OnResume,
    /// Whether ranks compare it at start.
    pub is_compared: bool,
}

/// Type and range of a key's value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer in `min..=max`.
    Count {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A list of integers in `min..=max`.
    Counts {
        /// Smallest value of an item.
        min: u64,
        /// Largest value of an item.
        max: u64,
    },
    /// A finite number.
    Number(Range),
    /// A list of finite numbers.
    Numbers {
        /// Range of each item.
        range: Range,
        /// Number of items; `None` for any.
        len: Option<usize>,
    },
    /// A list of finite numbers in this range, or this name.
    NumbersOr(Range, &'static str),
    /// A string that is not blank.
    Text,
    /// A string or a list of strings.
    Texts {
        /// Whether the list may be empty.
        may_be_empty: bool,
    },
    /// A string or a list of strings; the list and each of the strings may be empty.
    AnyTexts,
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// The name of a metric, or a head and a metric: `species.eval_loss`.
    Metric(&'static [&'static str]),
    /// `true`, `false` or this name.
    BoolOr(&'static str),
    /// A list of tables with these keys, the first of which is required.
    Tables(&'static [Key]),
    /// A table with some of these keys.
    Table(&'static [Key]),
}

/// A range of finite numbers.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Lower end.
    pub min: f64,
    /// Upper end; infinity for none.
    pub max: f64,
    /// Whether `min` itself is excluded.
    pub is_min_excluded: bool,
    /// Whether `max` itself is excluded.
    pub is_max_excluded: bool,
    /// A further condition.
    pub also: Option<fn(f64) -> bool>,
    /// The range in words: "a number above 0".
    pub words: &'static str,
}

/// Value of a key that is not given.
#[derive(Debug, Clone, Copy)]
pub enum KeyDefault {
    /// A fixed value, written as TOML in the same form as saved configs.
    Value(&'static str),
    /// A value that depends on other keys.
    Depends(DefaultRule),
    /// No value; holds the meaning of its absence in words.
    Absent(&'static str),
}

/// The rule by which other keys determine a default.
#[derive(Debug, Clone, Copy)]
pub enum DefaultRule {
    /// The rule in words.
    Words(&'static str),
    /// A function that makes the words from a table.
    Table(fn() -> String),
}

impl fmt::Display for DefaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DefaultRule::Words(words) => f.write_str(words),
            DefaultRule::Table(words) => f.write_str(&words()),
        }
    }
}

/// The other key of a pair of which only one may be given.
#[derive(Debug, Clone, Copy)]
pub struct Alternative {
    /// Name with its section, such as `train.steps`.
    pub name: &'static str,
    /// The meaning of both keys.
    pub hint: &'static str,
}

/// Whether a resumed run may change the key.
#[derive(Debug, Clone, Copy)]
pub enum OnResume {
    /// It may not: a different value makes it a different run.
    Fixed,
    /// It may.
    MayChange,
    /// It may if the function returns true for the values of the new and of the saved config; the string states the condition.
    MayChangeIf(fn(Lookup<'_>, Lookup<'_>) -> bool, &'static str),
}

/// Looks up the value of a key by its name; `None` if it has none.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Makes a row for a key of this name and kind, with no value by default.
pub(super) const fn key(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        help: "",
        kind,
        default: KeyDefault::Absent("not set"),
        example: "",
        hint: "",
        synonyms: &[],
        alternative: None,
        on_resume: OnResume::Fixed,
        is_compared: true,
    }
}

/// Makes a row for an integer in `min..=max`.
pub(super) const fn count(name: &'static str, min: u64, max: u64) -> Key {
    key(name, Kind::Count { min, max })
}

/// Makes a row for a finite number in `range`.
pub(super) const fn number(name: &'static str, range: Range) -> Key {
    key(name, Kind::Number(range))
}

/// Makes a row for `true` or `false`.
pub(super) const fn switch(name: &'static str) -> Key {
    key(name, Kind::Bool)
}

/// Makes a row for a string.
pub(super) const fn text(name: &'static str) -> Key {
    key(name, Kind::Text)
}

/// Makes a row for one of the names of an enum.
pub(super) const fn one_of(name: &'static str, names: &'static [&'static str]) -> Key {
    key(name, Kind::OneOf(names))
}

/// Makes a row for the metric of all rows or of a head.
pub(super) const fn metric(name: &'static str, names: &'static [&'static str]) -> Key {
    key(name, Kind::Metric(names))
}

impl Key {
    /// Sets the help line.
    pub(super) const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    /// Sets the default, which is also the example unless one is set.
    pub(super) const fn default(mut self, value: &'static str) -> Self {
        self.default = KeyDefault::Value(value);
        if self.example.is_empty() {
            self.example = value;
        }
        self
    }

    /// Sets the rule by which other keys determine the default.
    pub(super) const fn default_depends(mut self, rule: &'static str) -> Self {
        self.default = KeyDefault::Depends(DefaultRule::Words(rule));
        self
    }

    /// Sets a rule whose words are made from a table.
    pub(super) const fn default_from_table(mut self, words: fn() -> String) -> Self {
        self.default = KeyDefault::Depends(DefaultRule::Table(words));
        self
    }

    /// Sets the meaning of an absent value.
    pub(super) const fn absent(mut self, meaning: &'static str) -> Self {
        self.default = KeyDefault::Absent(meaning);
        self
    }

    /// Sets the example.
    pub(super) const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// Sets the hint for a value out of range.
    pub(super) const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// Sets the names of the key in other programs.
    pub(super) const fn synonyms(mut self, synonyms: &'static [&'static str]) -> Self {
        self.synonyms = synonyms;
        self
    }

    /// Makes the key exclude `other`.
    pub(super) const fn instead_of(mut self, other: &'static str, hint: &'static str) -> Self {
        self.alternative = Some(Alternative { name: other, hint });
        self
    }

    /// Lets a resumed run change the key.
    pub(super) const fn may_change(mut self) -> Self {
        self.on_resume = OnResume::MayChange;
        self
    }

    /// Lets a resumed run change the key if `condition` holds for the new and the saved config.
    pub(super) const fn may_change_if(
        mut self,
        condition: fn(Lookup<'_>, Lookup<'_>) -> bool,
        words: &'static str,
    ) -> Self {
        self.on_resume = OnResume::MayChangeIf(condition, words);
        self
    }

    /// Excludes the key from the comparison of ranks at start.
    pub(super) const fn not_compared(mut self) -> Self {
        self.is_compared = false;
        self
    }

    /// Section of the key; "" for a key at the top level.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Name of the key without its section.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Converts `typed` to a TOML value of this key; `None` if its type does not fit. Items of lists are separated by commas, and
    /// names may be written in capitals or with other separators.
    pub fn as_toml(&self, typed: &str) -> Option<String> {
        let typed = typed.trim();
        let quoted = |text: &str| Value::String(text.to_owned()).to_string();
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
        let is_list = is_bracketed(typed);
        let items = || typed.trim_start_matches('[').trim_end_matches(']').split(',').map(str::trim);
        let list = |fits: &dyn Fn(&str) -> bool| {
            items().all(fits).then(|| format!("[{}]", items().map(as_number).collect::<Vec<_>>().join(", ")))
        };
        match self.kind {
            Kind::Bool => as_bool(typed).map(|value| value.to_string()),
            Kind::BoolOr(name) => match as_bool(typed) {
                Some(value) => Some(value.to_string()),
                None => (typed == name).then(|| quoted(name)),
            },
            Kind::Count { .. } => typed.parse::<u64>().ok().map(|value| value.to_string()),
            Kind::Number(_) => number(typed).map(|_| as_number(typed)),
            Kind::Counts { .. } => list(&|item| item.parse::<u64>().is_ok()),
            Kind::Numbers { len, .. } => {
                list(&|item| number(item).is_some()).filter(|_| len.is_none_or(|len| items().count() == len))
            }
            Kind::NumbersOr(_, name) if squashed(typed) == name => Some(quoted(name)),
            Kind::NumbersOr(..) => list(&|item| number(item).is_some()),
            Kind::OneOf(names) => {
                let typed = squashed(typed);
                names.iter().find(|name| squashed(name) == typed).map(|name| quoted(name))
            }
            Kind::Metric(names) => {
                let (head, metric) =
                    typed.rsplit_once('.').map_or((None, typed), |(head, of)| (Some(head), of));
                let metric = metric_name(names, metric)?;
                Some(quoted(&head.map_or(metric.to_owned(), |head| format!("{head}.{metric}"))))
            }
            Kind::Text => Some(quoted(typed)),
            Kind::Texts { .. } | Kind::AnyTexts if is_list => as_list(typed),
            // A column may have commas in its name.
            Kind::Texts { may_be_empty: false } if self.name != "train.eval_metrics" => {
                Some(format!("[{}]", quoted(typed)))
            }
            Kind::Texts { .. } | Kind::AnyTexts => {
                let texts: Vec<_> = texts_in(typed).iter().map(|text| quoted(text)).collect();
                Some(format!("[{}]", texts.join(", ")))
            }
            Kind::Tables(_) if is_list => as_list(typed),
            Kind::Table(_) if typed.starts_with('{') => parsed(typed).map(|_| typed.to_owned()),
            Kind::Tables(_) | Kind::Table(_) => None,
        }
    }
}

/// A number as TOML writes it, with a digit before and after the point.
fn as_number(typed: &str) -> String {
    let is_toml = parsed(typed).is_some_and(|value| !value.is_str());
    typed.parse::<f64>().ok().filter(|_| !is_toml).map_or(typed.to_owned(), |number| format!("{number:?}"))
}

/// A truth value as programs write it.
fn as_bool(typed: &str) -> Option<bool> {
    match typed.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// The metric that other programs call `val_accuracy`, `acc` or `auc`.
fn metric_name(names: &[&'static str], typed: &str) -> Option<&'static str> {
    let typed = typed.to_lowercase().replace('-', "_");
    let bare =
        ["eval_", "val_", "valid_", "validation_", "test_"].iter().find_map(|side| typed.strip_prefix(side));
    let bare = match bare.unwrap_or(&typed) {
        "acc" => "accuracy",
        "auc" | "auroc" => "roc_auc",
        "logloss" => "log_loss",
        bare => bare,
    };
    names.iter().find(|name| **name == typed || name.strip_prefix("eval_") == Some(bare)).copied()
}

fn parsed(typed: &str) -> Option<Value> {
    Value::deserialize(ValueDeserializer::parse(typed).ok()?).ok()
}

/// A list as it is written in TOML.
fn as_list(typed: &str) -> Option<String> {
    parsed(typed).filter(Value::is_array).map(|_| typed.to_owned())
}

impl Kind {
    /// The type in words, for messages about a value of a different type.
    pub(super) fn type_words(self) -> &'static str {
        match self {
            Kind::Bool => "true or false",
            Kind::Count { .. } => "a whole number",
            Kind::Counts { .. } => "a list of whole numbers",
            Kind::Number(_) => "a number",
            Kind::Numbers { .. } => "a list of numbers",
            Kind::NumbersOr(..) => "a list of numbers or a text",
            Kind::Text | Kind::OneOf(_) | Kind::Metric(_) => "a text",
            Kind::Texts { .. } | Kind::AnyTexts => "a text or a list of texts",
            Kind::BoolOr(_) => "true, false or a text",
            Kind::Tables(_) => "a list of tables",
            Kind::Table(_) => "a table",
        }
    }

    /// Whether values are numbers or lists of numbers.
    pub(super) fn is_number(self) -> bool {
        matches!(self, Kind::Count { .. } | Kind::Counts { .. } | Kind::Number(_) | Kind::Numbers { .. })
    }

    /// Type and range in words, for the reference.
    pub fn words(self) -> String {
        let quoted = |names: &[&str]| format!("\"{}\"", names.join("\", \""));
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Count { min, max } => format!("whole number from {min} to {max}"),
            Kind::Counts { min, max } => format!("list of whole numbers from {min} to {max}"),
            Kind::Number(range) | Kind::Numbers { range, .. } => {
                range.words.strip_prefix("a ").unwrap_or(range.words).to_owned()
            }
            Kind::NumbersOr(range, name) => format!("{} or \"{name}\"", range.words),
            Kind::Text => "text".to_owned(),
            Kind::Texts { .. } | Kind::AnyTexts => "text or list of texts".to_owned(),
            Kind::OneOf(names) => quoted(names),
            Kind::Metric(names) => format!("{}, or of a head as \"HEAD.eval_loss\"", quoted(names)),
            Kind::BoolOr(name) => format!("true, false or \"{name}\""),
            Kind::Tables(keys) => {
                let names: Vec<_> = keys.iter().map(Key::short_name).collect();
                format!("list of tables of `{}`", names.join("`, `"))
            }
            Kind::Table(keys) => {
                let names: Vec<_> = keys.iter().map(Key::short_name).collect();
                format!("table of `{}`", names.join("`, `"))
            }
        }
    }
}

impl Range {
    const fn new(min: f64, max: f64, words: &'static str) -> Self {
        Range { min, max, is_min_excluded: false, is_max_excluded: false, also: None, words }
    }

    /// Numbers above `min`.
    pub(super) const fn above(min: f64, words: &'static str) -> Self {
        Range { is_min_excluded: true, ..Range::new(min, f64::INFINITY, words) }
    }

    /// Numbers of at least `min`.
    pub(super) const fn at_least(min: f64, words: &'static str) -> Self {
        Range::new(min, f64::INFINITY, words)
    }

    /// Numbers from `min` to `max`.
    pub(super) const fn from_to(min: f64, max: f64, words: &'static str) -> Self {
        Range::new(min, max, words)
    }

    /// Numbers from `min` to below `max`.
    pub(super) const fn from_below(min: f64, max: f64, words: &'static str) -> Self {
        Range { is_max_excluded: true, ..Range::new(min, max, words) }
    }

    /// Numbers above `min`, up to `max`.
    pub(super) const fn above_to(min: f64, max: f64, words: &'static str) -> Self {
        Range { is_min_excluded: true, ..Range::new(min, max, words) }
    }

    /// Numbers between `min` and `max`, both excluded.
    pub(super) const fn between(min: f64, max: f64, words: &'static str) -> Self {
        Range { is_min_excluded: true, is_max_excluded: true, ..Range::new(min, max, words) }
    }

    /// Adds a condition.
    pub(super) const fn also(mut self, condition: fn(f64) -> bool) -> Self {
        self.also = Some(condition);
        self
    }

    /// Whether `number` is finite and in the range.
    pub(super) fn contains(&self, number: f64) -> bool {
        let above = if self.is_min_excluded { number > self.min } else { number >= self.min };
        let below = if self.is_max_excluded { number < self.max } else { number <= self.max };
        number.is_finite() && above && below && self.also.is_none_or(|condition| condition(number))
    }
}
