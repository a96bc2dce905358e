//! The JSON schema of the config (draft 4), generated from the rows: TOML language servers use it to complete and check configs.
//!
//! ```
//! use ddp::config::schema::schema;
//!
//! let schema = schema();
//! let lr = &schema["properties"]["optimizer"]["properties"]["lr"];
//! assert_eq!(lr["type"], "number");
//! assert_eq!(schema["additionalProperties"], false);
//! ```

use serde_json::{Map, Value, json};

use super::conflicts;
use super::key::{Key, KeyDefault, Kind, Range};
use super::table::TABLE;
use super::value::parse;

/// The schema of a whole config.
pub fn schema() -> Value {
    let mut properties = Map::new();
    for key in TABLE.keys().filter(|key| key.section().is_empty()) {
        properties.insert(key.name.to_owned(), property(key));
    }
    for section in TABLE.sections() {
        let keys: Vec<_> = TABLE.keys().filter(|key| key.section() == section).collect();
        properties.insert(section.to_owned(), object(&keys));
    }
    json!({
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": "Config of ddp-train",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// Schema of a table with exactly these keys.
fn object(keys: &[&Key]) -> Value {
    let properties: Map<_, _> = keys.iter().map(|key| (key.short_name().to_owned(), property(key))).collect();
    let mut object = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let conflicts: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((TABLE.row(key.alternative?.name), key)))
        .map(|(other, key)| json!({ "not": { "required": [other.short_name(), key.short_name()] } }))
        .collect();
    if !conflicts.is_empty() {
        object["allOf"] = conflicts.into();
    }
    object
}

fn property(key: &Key) -> Value {
    let mut property = kind(key.kind);
    let mut description = key.help.to_owned();
    match key.default {
        KeyDefault::Value(value) => property["default"] = to_json(parse(value)),
        KeyDefault::Depends(rule) => description += &format!(". Default: {rule}"),
        KeyDefault::Absent(meaning) => description += &format!(". If absent: {meaning}"),
    }
    for conflict in conflicts::conflicts_with(key.name) {
        description += &format!(". {}", conflict.words().replacen("not", "Not", 1));
    }
    property["description"] = description.into();
    property
}

fn kind(kind: Kind) -> Value {
    let texts = |min_items: usize| {
        let text = json!({ "type": "string", "minLength": 1 });
        json!({ "anyOf": [text, { "type": "array", "items": text, "minItems": min_items }] })
    };
    match kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Counts { min, max } => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": min, "maximum": max } })
        }
        Kind::Number(range) => number(range),
        Kind::Numbers { range, len } => {
            let mut list = json!({ "type": "array", "items": number(range), "minItems": len.unwrap_or(1) });
            if let Some(len) = len {
                list["maxItems"] = len.into();
            }
            list
        }
        Kind::NumbersOr(range, name) => {
            let list = json!({ "type": "array", "items": number(range), "minItems": 1 });
            json!({ "anyOf": [list, { "enum": [name] }] })
        }
        Kind::Text => json!({ "type": "string", "minLength": 1 }),
        Kind::Texts { may_be_empty } => texts(usize::from(!may_be_empty)),
        Kind::AnyTexts => {
            let list = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "anyOf": [{ "type": "string", "minLength": 1 }, list] })
        }
        Kind::OneOf(names) => json!({ "type": "string", "enum": names }),
        Kind::Metric(names) => {
            let of_heads: Vec<_> = names.iter().filter_map(|name| name.strip_prefix("eval_")).collect();
            let pattern = format!("\\.(eval_)?({})$", of_heads.join("|"));
            json!({ "anyOf": [{ "enum": names }, { "type": "string", "pattern": pattern }] })
        }
        Kind::BoolOr(name) => json!({ "enum": [false, true, name] }),
        Kind::Tables(keys) => {
            let mut item = object(&keys.iter().collect::<Vec<_>>());
            item["required"] = json!([keys[0].short_name()]);
            json!({ "type": "array", "items": item })
        }
        Kind::Table(keys) => object(&keys.iter().collect::<Vec<_>>()),
    }
}

fn number(range: Range) -> Value {
    let mut number = json!({ "type": "number", "minimum": range.min });
    if range.is_min_excluded {
        number["exclusiveMinimum"] = true.into();
    }
    if range.max.is_finite() {
        number["maximum"] = range.max.into();
        if range.is_max_excluded {
            number["exclusiveMaximum"] = true.into();
        }
    }
    number
}

/// Converts the TOML value of a default to JSON; defaults use only types that both formats have.
fn to_json(value: toml::Value) -> Value {
    serde_json::to_value(value).expect("defaults are texts, numbers, truth values and lists")
}
