//! Rows and targets of `[data]`, which decide how other keys of the section are read.

use super::data_values::Task;
use super::error::Result;
use super::heads::{self, HeadConfig};
use super::loss_names::task_of_loss;
use super::raw::RawConfig;
use super::setting::Setting;
use super::split::{Fold, Split};
use super::value::ConfigEnum;
use super::writer::Writer;

/// Source of evaluation rows.
#[derive(Debug, Clone, PartialEq)]
pub enum EvalSource {
    /// Not given: uses the test rows next to the training rows, if there are any.
    Unset,
    /// No evaluation.
    None,
    /// `builtin:NAME` (its test rows), a file, a folder, or a pattern of files.
    Source(String),
    /// This fraction of the training rows, in (0, 1), drawn by the seed and taken out of training.
    Fraction(f64),
    /// This part of the training rows, drawn by the seed and taken out of training.
    Fold(Fold),
    /// Training rows selected by the values of a column, and taken out of training.
    Split(Split),
}

impl EvalSource {
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            EvalSource::Unset | EvalSource::None => writer.put("data.eval", &"none".to_owned()),
            EvalSource::Source(source) => writer.put("data.eval", source),
            EvalSource::Fraction(fraction) => writer.put("data.eval_fraction", fraction),
            EvalSource::Fold(fold) => writer.put("data.fold", &fold.to_string()),
            EvalSource::Split(split) => {
                writer.put_toml("data.split", split.to_toml());
                match split.fold() {
                    Some(fold) => writer.put("data.fold", &fold.to_string()),
                    None => writer.put_optional("data.eval_fraction", split.fraction().as_ref()),
                }
            }
        }
    }
}

/// Rows and targets, which decide how other keys are read.
pub(super) struct Sources {
    pub(super) train: String,
    pub(super) eval: EvalSource,
    pub(super) heads: Vec<HeadConfig>,
    pub(super) task: Task,
    pub(super) auto_task: bool,
}

impl Sources {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let train: String = raw.get("data.train")?;
        let heads = heads::read(raw)?;
        let (task, auto_task) = if heads.is_empty() { task(raw, &train)? } else { (Task::Heads, false) };
        Ok(Sources { eval: eval(raw, &train)?, train, heads, task, auto_task })
    }

    pub(super) fn target(&self, raw: &RawConfig) -> Result<Vec<String>> {
        match &self.heads[..] {
            [] => target(raw, self.task, self.auto_task),
            heads => Ok(heads.iter().flat_map(|head| head.target.clone()).collect()),
        }
    }
}

/// The values of `data.task`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TaskSetting {
    Auto,
    Task(Task),
}

impl ConfigEnum for TaskSetting {
    const NAMES: &'static [&'static str] = &["auto", "classification", "regression", "multilabel"];
    const VALUES: &'static [Self] = &[
        TaskSetting::Auto,
        TaskSetting::Task(Task::Classification),
        TaskSetting::Task(Task::Regression),
        TaskSetting::Task(Task::Multilabel),
    ];
}

fn eval(raw: &RawConfig, train: &str) -> Result<EvalSource> {
    let fold = Fold::read(raw)?;
    if let Some(split) = raw.given("data.split") {
        return Ok(EvalSource::Split(Split::read(split, raw.given("data.eval_fraction"), fold)?));
    }
    if let Some(fold) = fold {
        return Ok(EvalSource::Fold(fold));
    }
    let fraction = raw.optional("data.eval_fraction")?;
    Ok(match (raw.optional::<String>("data.eval")?, fraction) {
        (_, Some(fraction)) => EvalSource::Fraction(fraction),
        (Some(source), _) if source == "none" => EvalSource::None,
        (Some(source), _) => {
            if let (Some(setting), Some(hint)) = (raw.given("data.eval"), no_source(&source)) {
                return Err(setting.bad("a file of evaluation rows, or \"none\"", hint));
            }
            EvalSource::Source(source)
        }
        // A built-in set brings its own test rows.
        (None, None) if train.starts_with("builtin:") => EvalSource::Source(train.to_owned()),
        (None, None) => EvalSource::Unset,
    })
}

/// Key to set in place of a value of `data.eval` that was meant as a fraction of the rows, or to turn evaluation off.
fn no_source(value: &str) -> Option<String> {
    let number = match value.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => value.parse(),
    };
    if number.as_ref().is_ok_and(|number| *number > 0.0 && *number < 1.0) {
        return Some(format!(
            "`data.eval_fraction = {}` evaluates on that fraction of the training rows",
            number.unwrap_or_default()
        ));
    }
    let is_off = number.is_ok_and(|number| number == 0.0)
        || ["false", "off", "no", "null"].iter().any(|word| value.eq_ignore_ascii_case(word));
    is_off.then(|| "`data.eval = \"none\"` trains without evaluation".to_owned())
}

/// The task, and whether the target values determine it.
fn task(raw: &RawConfig, train: &str) -> Result<(Task, bool)> {
    Ok(match raw.get_or("data.task", TaskSetting::Auto)? {
        TaskSetting::Task(task) => (task, false),
        // Only classes have a count, and the targets of the built-in sets are classes.
        TaskSetting::Auto
            if raw.given("data.classes").is_some() || lists_classes(raw) || train.starts_with("builtin:") =>
        {
            (Task::Classification, false)
        }
        TaskSetting::Auto => task_of_loss(raw)?.map_or((Task::Classification, true), |task| (task, false)),
    })
}

fn target(raw: &RawConfig, task: Task, auto_task: bool) -> Result<Vec<String>> {
    let target: Vec<String> = raw.get("data.target")?;
    let Some(setting) = raw.given("data.target") else { return Ok(target) };
    for (i, name) in target.iter().enumerate() {
        if target[..i].contains(name) {
            return Err(setting.bad("each column once", format!("remove one `{name}`")));
        }
    }
    if task == Task::Classification && !auto_task && target.len() > 1 {
        return Err(setting.bad(
            "one column for task \"classification\"",
            "set `data.task` to \"regression\" or \"multilabel\" for several targets",
        ));
    }
    Ok(target)
}

/// Whether the config lists the labels.
fn lists_classes(raw: &RawConfig) -> bool {
    let is_list = |setting: &Setting| setting.value.as_array().is_none_or(|labels| !labels.is_empty());
    raw.given("data.class_order").is_some_and(is_list)
}

/// The labels in the order of their classes; empty if the config does not list them.
pub(super) fn class_order(raw: &RawConfig, train: &str) -> Result<Vec<String>> {
    let Some(setting) = raw.given("data.class_order") else { return Ok(Vec::new()) };
    let mut order: Vec<String> = raw.get("data.class_order")?;
    // One label alone would be no order.
    if let Some(labels) = setting.bare_texts() {
        order = labels;
        if order.iter().any(|label| label.trim().is_empty()) {
            return Err(setting.bad("at least one name, none of them empty", setting.for_example()));
        }
    }
    if let Some(twice) = order.iter().enumerate().find(|(n, label)| order[..*n].contains(label)) {
        return Err(setting.bad("each label once", format!("remove one \"{}\"", twice.1)));
    }
    if order.len() == 1 {
        return Err(setting.bad("all labels, two or more", "list the label of each class, the lowest first"));
    }
    if !order.is_empty() && train.starts_with("builtin:") {
        return Err(
            setting.bad("absent for a built-in set", "its classes are the numbers from 0, in this order")
        );
    }
    Ok(order)
}
