//! Names and values of an event or span.

use std::fmt::{Debug, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

/// The message and the other fields, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    pub(super) fn of_message(message: String) -> Self {
        Fields { message, values: Vec::new() }
    }

    fn set(&mut self, field: &Field, value: Value) {
        // Every layer records the fields of a span.
        match self.values.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, before)) => *before = value,
            None => self.values.push((field.name(), value)),
        }
    }

    /// `a=1 b=text`
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for (index, (name, value)) in self.values.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let _ = match value {
                Value::String(value) => write!(text, "{space}{name}={value}"),
                value => write!(text, "{space}{name}={value}"),
            };
        }
        text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn to_map(&self) -> Map<String, Value> {
        self.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.set(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.set(field, value.into()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}
