//! `data.split`: selects the evaluation rows among the training rows by a column.

use std::fmt;

use toml::Value;

use super::error::Result;
use super::key::{Key, Kind, key, text};
use super::nested::Place;
use super::raw::RawConfig;
use super::setting::Setting;
use super::value::ConfigValue as _;

/// Evaluation rows, taken out of the training rows by the values of a column, which is then not a feature.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// By the values of a column.
    Column {
        /// Name of the column in the training data.
        column: String,
        /// Values that select evaluation rows; if empty, the value in the data that is named for it, such as `test`.
        eval: Vec<String>,
        /// Values that select training rows; if empty, all other values.
        train: Vec<String>,
    },
    /// Whole groups of rows, drawn by the seed.
    Group {
        /// The column that names a row's group.
        column: String,
        /// Fraction of the rows to evaluate on, in (0, 1).
        fraction: f64,
        /// The fold that has this fraction, in place of rows drawn for it.
        fold: Option<Fold>,
    },
    /// The last rows by time.
    Time {
        /// The column of dates, times or numbers.
        column: String,
        /// Fraction of the rows to evaluate on, in (0, 1).
        fraction: f64,
        /// The fold, in place of the last rows: of K + 1 spans of equal numbers of rows by time, fold k trains on the first k and evaluates on
        /// the next one.
        fold: Option<Fold>,
    },
}

/// Most folds of a cross-validation.
const MAX_FOLDS: usize = 1000;

/// One of the equal parts of the training rows in a cross-validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Number of the part, from 1.
    pub number: usize,
    /// Number of parts, at least 2.
    pub of: usize,
}

impl Fold {
    /// Reads `data.fold`, if it is given.
    pub(super) fn read(raw: &RawConfig) -> Result<Option<Self>> {
        let Some(setting) = raw.given("data.fold") else { return Ok(None) };
        let text: String = raw.get("data.fold")?;
        let numbers = text.split_once('/').map(|(number, of)| (number.trim().parse(), of.trim().parse()));
        match numbers {
            Some((Ok(number), Ok(of))) if (2..=MAX_FOLDS).contains(&of) && (1..=of).contains(&number) => {
                Ok(Some(Fold { number, of }))
            }
            _ => Err(setting.bad(
                format!("NUMBER/OF, up to {MAX_FOLDS} folds"),
                "\"2/5\" evaluates on the second of five parts; `ddp-train sweep --folds 5` trains all",
            )),
        }
    }
}

impl fmt::Display for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// Keys of `data.split`.
pub(super) const SPLIT_KEYS: &[Key] = &[
    text("data.split.column").help("Column whose value says where a row belongs").example(r#""fold""#),
    key("data.split.eval", Kind::Texts { may_be_empty: false })
        .help("Values of the rows to evaluate on")
        .example(r#""test""#),
    key("data.split.train", Kind::Texts { may_be_empty: false })
        .help("Values of the rows to train on; rows with other values are left out")
        .example(r#""train""#),
    text("data.split.group")
        .help("Column of groups, which are evaluated or trained on as a whole")
        .example(r#""patient""#),
    text("data.split.time")
        .help("Column of dates, times or numbers, whose last rows are evaluated")
        .example(r#""date""#),
];

const ONE_OF: &str = "a table with one of `column`, `group` and `time`";

impl Split {
    /// Reads the table; `fraction` is `data.eval_fraction`, and `fold` `data.fold`.
    pub(super) fn read(setting: &Setting, fraction: Option<&Setting>, fold: Option<Fold>) -> Result<Self> {
        let Some(table) = setting.value.as_table() else {
            return Err(setting.bad(ONE_OF, example()));
        };
        let place = Place { setting, tables: "a table", table: "" };
        place.check_names(table, &SPLIT_KEYS.iter().map(Key::short_name).collect::<Vec<_>>())?;
        let kinds: Vec<&str> =
            ["column", "group", "time"].into_iter().filter(|kind| table.contains_key(*kind)).collect();
        let [kind] = kinds[..] else { return Err(setting.bad(ONE_OF, example())) };
        let Some(column) = table[kind].as_str().filter(|name| !name.trim().is_empty()) else {
            return Err(setting.bad(format!("a table whose `{kind}` is the name of a column"), example()));
        };
        let column = column.to_owned();
        let (eval, train) = (values(setting, table, "eval")?, values(setting, table, "train")?);
        if kind == "column" {
            if let Some(both) = eval.iter().find(|value| train.contains(value)) {
                let expected = format!("different values in `eval` and `train`, and \"{both}\" is in both");
                return Err(setting.bad(expected, "a row is evaluated or trained on"));
            }
            return Ok(Split::Column { column, eval, train });
        }
        if !eval.is_empty() || !train.is_empty() {
            let expected = format!("a table without `eval` and `train` where it names a `{kind}`");
            return Err(setting.bad(expected, "`data.eval_fraction` says how many rows are evaluated"));
        }
        if let Some(fold) = fold {
            return Ok(match kind {
                "group" => Split::Group { column, fraction: 1.0 / fold.of as f64, fold: Some(fold) },
                _ => Split::Time { column, fraction: 1.0 / (fold.of + 1) as f64, fold: Some(fold) },
            });
        }
        let Some(fraction) = fraction else {
            let expected = format!("given with `data.eval_fraction` where it names a `{kind}`");
            let hint = "set `data.eval_fraction` to 0.2 to evaluate on about a fifth of the rows";
            return Err(setting.bad(expected, hint));
        };
        let fraction = f64::read(fraction)?;
        Ok(match kind {
            "group" => Split::Group { column, fraction, fold: None },
            _ => Split::Time { column, fraction, fold: None },
        })
    }

    /// Writes the table; [`Split::read`] reads it back.
    pub(super) fn to_toml(&self) -> String {
        match self {
            Split::Column { column, eval, train } => {
                let mut pairs = format!("column = {}", column.write());
                for (name, values) in [("eval", eval), ("train", train)] {
                    match &values[..] {
                        [] => {}
                        [value] => pairs += &format!(", {name} = {}", value.write()),
                        _ => pairs += &format!(", {name} = {}", values.write()),
                    }
                }
                format!("{{ {pairs} }}")
            }
            Split::Group { column, .. } => format!("{{ group = {} }}", column.write()),
            Split::Time { column, .. } => format!("{{ time = {} }}", column.write()),
        }
    }

    /// The column that defines the split.
    pub fn column(&self) -> &str {
        match self {
            Split::Column { column, .. } | Split::Group { column, .. } | Split::Time { column, .. } => column,
        }
    }

    /// `data.eval_fraction`, if the split uses it.
    pub(super) fn fraction(&self) -> Option<f64> {
        match self {
            Split::Column { .. } => None,
            Split::Group { fraction, .. } | Split::Time { fraction, .. } => Some(*fraction),
        }
    }

    /// `data.fold`, if it decides.
    pub(super) fn fold(&self) -> Option<Fold> {
        match self {
            Split::Group { fold, .. } | Split::Time { fold, .. } => *fold,
            Split::Column { .. } => None,
        }
    }
}

/// Reads a string or a list of strings; empty if the table has no such key.
fn values(setting: &Setting, table: &toml::Table, key: &str) -> Result<Vec<String>> {
    let text = |value: &Value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    let texts = match table.get(key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(text).collect::<Option<Vec<_>>>(),
        Some(value) => text(value).map(|text| vec![text]),
    };
    texts.filter(|texts| !texts.is_empty()).ok_or_else(|| {
        let hint = format!("write a number as a text too: {key} = \"1\"");
        setting.bad(format!("a table whose `{key}` is a text or a list of texts"), hint)
    })
}

/// Quoted, because a shell would remove the braces and the inner quotes.
fn example() -> String {
    "write split = { group = \"patient\" } in a config, --set 'data.split={group=\"patient\"}' on the command line"
        .to_owned()
}
