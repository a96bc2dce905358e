//! `[[heads]]`: several groups of outputs of one model, each with its own targets, task and loss.

use toml::Value;

use super::conflicts;
use super::data_values::Task;
use super::error::{ConfigError, Result};
use super::key::{Key, KeyDefault, Kind, Range, key, number, one_of, text};
use super::key_table::KeyTable;
use super::loss::{self, HeadLoss, Loss};
use super::nested::Place;
use super::raw::RawConfig;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, list, parse};
use super::writer::Writer;

/// Maximum number of heads of a model.
const MAX_HEADS: usize = 256;

/// A group of outputs with targets of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadConfig {
    /// Name of the head, unique in the model.
    pub name: String,
    /// Kind of the head's targets; never [`Task::Heads`].
    pub task: Task,
    /// Columns of the head's targets, which no other head uses; exactly one for classification.
    pub target: Vec<String>,
}

pub(super) const KEYS: &[Key] = &[key("heads", Kind::Tables(HEAD_KEYS))
    .help("Groups of outputs with targets, task and loss of their own, in place of data.target, data.task and [loss]; tables only")
    .absent("one group of outputs, as data.target, data.task and [loss] say")
    .example(r#"[{ name = "size", task = "regression", target = ["width", "length"], weight = 0.5, loss = { kind = "mse" } }]"#)];

/// Hint that shows an example with two heads.
const EXAMPLE: &str =
    r#"for example [{ name = "species", task = "classification" }, { name = "size", task = "regression" }]"#;

/// Keys of a head.
const HEAD_KEYS: &[Key] = &[
    text("heads.name").help("Name of the head in metrics").example(r#""species""#),
    one_of("heads.task", HeadTask::NAMES).help("Kind of the head's targets").example(r#""classification""#),
    key("heads.target", Kind::Texts { may_be_empty: false })
        .help("Columns of the head's targets; one for classification")
        .default_depends("the head's name")
        .example(r#"["width", "length"]"#),
    number("heads.weight", Range::above(0.0, "a number above 0"))
        .help("Weight of the head's loss in the weighted mean over the heads")
        .hint("weights of 1 and 2 mean the same as 10 and 20")
        .default("1.0"),
    key("heads.loss", Kind::Table(loss::KEYS))
        .help("Loss of the head, with the keys of [loss] and their defaults")
        .absent("the usual loss of the head's task")
        .example(r#"{ kind = "huber", delta = 2.0 }"#),
];

/// The keys of `[loss]`, which each head sets for itself.
static LOSS: KeyTable = KeyTable::new(&[loss::KEYS]);

/// The values of a head's `task`.
#[derive(Clone, Copy, PartialEq)]
struct HeadTask(Task);

impl ConfigEnum for HeadTask {
    const NAMES: &'static [&'static str] = &["classification", "regression", "multilabel"];
    const VALUES: &'static [Self] =
        &[HeadTask(Task::Classification), HeadTask(Task::Regression), HeadTask(Task::Multilabel)];
}

/// The heads in the config; empty if it lists none.
pub(super) fn read(raw: &RawConfig) -> Result<Vec<HeadConfig>> {
    let heads: Vec<HeadConfig> = entries(raw)?.into_iter().map(|(head, _)| head).collect();
    let Some(setting) = raw.given("heads").filter(|_| !heads.is_empty()) else { return Ok(heads) };
    let mut taken: Vec<(&String, &String)> = Vec::new();
    for (index, head) in heads.iter().enumerate() {
        if heads[..index].iter().any(|other| other.name == head.name) {
            let expected = format!("heads of different names, and two are \"{}\"", head.name);
            return Err(setting.bad(expected, "metrics are reported by the names of heads"));
        }
        for column in &head.target {
            if let Some((_, other)) = taken.iter().find(|(name, _)| *name == column) {
                let expected = format!(
                    "columns that are the target of one head; \"{column}\" is a target of \"{other}\" too"
                );
                return Err(setting.bad(expected, "name each target column once"));
            }
            taken.push((column, &head.name));
        }
    }
    Ok(heads)
}

/// The losses of the heads, in their order.
pub(super) fn losses(raw: &RawConfig) -> Result<Vec<HeadLoss>> {
    Ok(entries(raw)?.into_iter().map(|(_, loss)| loss).collect())
}

fn entries(raw: &RawConfig) -> Result<Vec<(HeadConfig, HeadLoss)>> {
    let Some(setting) = raw.given("heads") else { return Ok(Vec::new()) };
    let tables = "a list of heads, each a table with a `name` and a `task`";
    let Some(items) = setting.value.as_array() else {
        return Err(setting.bad(tables, EXAMPLE));
    };
    if items.len() > MAX_HEADS {
        return Err(setting.bad(format!("at most {MAX_HEADS} heads"), "one head may have many targets"));
    }
    let read = |(index, item): (usize, &Value)| match item.as_table() {
        Some(values) => entry(&Table { values, setting, place: format!("head {}", index + 1) }),
        None => Err(setting.bad(tables, EXAMPLE)),
    };
    items.iter().enumerate().map(read).collect()
}

/// A head as it is written in the config.
struct Table<'a> {
    values: &'a toml::Table,
    setting: &'a Setting,
    place: String,
}

impl Table<'_> {
    fn place(&self) -> Place<'_> {
        Place { setting: self.setting, tables: "heads", table: &self.place }
    }

    fn wrong(&self, expected: String, got: &str, hint: String) -> ConfigError {
        self.place().wrong(expected, got, hint)
    }

    /// The value of this key, or the key's default.
    fn get<T: ConfigValue>(&self, name: &str) -> Result<Option<T>> {
        let key = HEAD_KEYS.iter().find(|key| key.short_name() == name).expect("a key of heads");
        let default = || match key.default {
            KeyDefault::Value(text) => Some(parse(text)),
            KeyDefault::Depends(_) | KeyDefault::Absent(_) => None,
        };
        let Some(value) = self.values.get(name).cloned().or_else(default) else { return Ok(None) };
        let setting = Setting { key, value, raw: None, origin: self.setting.origin.clone() };
        T::read(&setting).map(Some).map_err(|error| self.within(error))
    }

    fn require<T: ConfigValue>(&self, name: &str) -> Result<T> {
        let missing = || self.wrong(format!("heads that each have a `{name}`"), "none", EXAMPLE.to_owned());
        self.get(name)?.ok_or_else(missing)
    }

    /// Adds the place of the head to the error.
    fn within(&self, mut error: ConfigError) -> ConfigError {
        if let ConfigError::BadValue { got, .. } | ConfigError::WrongType { got, .. } = &mut error {
            *got += &format!(" in {}", self.place);
        }
        if let ConfigError::BadValue { expected, hint, .. } = &mut error {
            for words in [expected, hint] {
                *words = words.replace("`data.task`", "the `task` of the head");
            }
        }
        error
    }

    fn loss(&self, task: Task) -> Result<Loss> {
        let none = toml::Table::new();
        let values = match self.values.get("loss") {
            None => &none,
            Some(Value::Table(values)) => values,
            Some(Value::String(kind)) => {
                let hint = format!("write loss = {{ kind = {} }}", kind.write());
                return Err(self.wrong("heads whose `loss` is a table".to_owned(), "a text", hint));
            }
            Some(_) => {
                let hint = "for example loss = { kind = \"huber\", delta = 2.0 }".to_owned();
                return Err(self.wrong("heads whose `loss` is a table".to_owned(), "another value", hint));
            }
        };
        let raw = self.place().section("loss", values, &LOSS)?;
        let loss = Loss::read(&raw, task, false, None).map_err(|error| self.within(error))?;
        let resolved = [("data.task", Some(task.name())), ("loss.kind", Some(loss.kind_in(&raw)?))];
        conflicts::check(&raw, &resolved).map_err(|error| self.within(error))?;
        match raw.given("loss.class_weights") {
            Some(setting) if loss.is_balanced() => {
                let error = setting.bad("a list of numbers", "give one weight for each class of the head");
                Err(self.within(error))
            }
            _ => Ok(loss),
        }
    }
}

fn entry(table: &Table<'_>) -> Result<(HeadConfig, HeadLoss)> {
    table.place().check_names(table.values, &HEAD_KEYS.iter().map(Key::short_name).collect::<Vec<_>>())?;
    let name: String = table.require("name")?;
    let HeadTask(task) = table.require("task")?;
    let target: Vec<String> = table.get("target")?.unwrap_or_else(|| vec![name.clone()]);
    if task == Task::Classification && target.len() > 1 {
        let hint = "give each column of labels a head of its own, or set `task` to \"multilabel\"";
        return Err(table.wrong(
            "one column for a head of classes".to_owned(),
            &format!("{} columns", target.len()),
            hint.to_owned(),
        ));
    }
    let loss = HeadLoss { name: name.clone(), weight: table.require("weight")?, loss: table.loss(task)? };
    Ok((HeadConfig { name, task, target }, loss))
}

/// Writes the heads as one key.
pub(super) fn write(heads: &[HeadConfig], loss: &Loss, writer: &mut Writer) {
    let Loss::Heads(losses) = loss else { return };
    let heads: Vec<(&HeadConfig, &HeadLoss)> = heads.iter().zip(losses).collect();
    writer.put_toml("heads", list(&heads, to_toml));
}

fn to_toml((head, HeadLoss { weight, loss, .. }): &(&HeadConfig, &HeadLoss)) -> String {
    let HeadConfig { name, task, target } = head;
    let mut writer = Writer::new(&LOSS);
    loss.write(&mut writer);
    let entries = writer.finish().into_iter();
    let loss: Vec<_> = entries.map(|entry| format!("{} = {}", entry.key.short_name(), entry.value)).collect();
    format!(
        "{{ name = {}, task = {}, target = {}, weight = {}, loss = {{ {} }} }}",
        name.write(),
        HeadTask(*task).write(),
        target.write(),
        weight.write(),
        loss.join(", ")
    )
}
