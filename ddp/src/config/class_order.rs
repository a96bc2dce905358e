//! `data.class_order`: the order of the classes.

use super::data_values::Task;
use super::error::Result;
use super::raw::RawConfig;
use super::setting::Setting;

/// Whether the config lists the labels.
pub(super) fn is_given(raw: &RawConfig) -> bool {
    let is_list = |setting: &Setting| setting.value.as_array().is_none_or(|labels| !labels.is_empty());
    raw.given("data.class_order").is_some_and(is_list)
}

/// The labels in the order of their classes; empty if the config does not list them.
pub(super) fn read(raw: &RawConfig, task: Task, train: &str) -> Result<Vec<String>> {
    let Some(setting) = raw.given("data.class_order") else { return Ok(Vec::new()) };
    let order: Vec<String> = raw.get("data.class_order")?;
    if let Some(twice) = order.iter().enumerate().find(|(n, label)| order[..*n].contains(label)) {
        return Err(setting.bad("each label once", format!("remove one \"{}\"", twice.1)));
    }
    if order.len() == 1 {
        return Err(setting.bad("all labels, two or more", "list the label of each class, the lowest first"));
    }
    if order.is_empty() {
        return Ok(order);
    }
    if task != Task::Classification {
        return Err(
            setting.bad(format!("absent for task \"{task}\""), "only task \"classification\" has classes")
        );
    }
    if raw.given("data.classes").is_some() {
        return Err(setting.bad(
            "absent next to `data.classes`",
            "remove `data.classes`: the list says how many classes there are",
        ));
    }
    if train.starts_with("builtin:") {
        return Err(
            setting.bad("absent for a built-in set", "its classes are the numbers from 0, in this order")
        );
    }
    Ok(order)
}
