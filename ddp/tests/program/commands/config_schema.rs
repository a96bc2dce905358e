//! The JSON schema of configs (draft 4) accepts and refuses the same configs as the program.
//!
//! Two validators check each config: a small one in this file, which is always available, and Python's `jsonschema` if it is
//! installed.

// A test that cannot continue panics, and a test that is skipped prints that it is.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use ddp::config::{Config, keys};
use serde_json::{Value, json};

use crate::common::{ddp_folder, ddp_train};

/// Configs that are refused, each for a different reason.
const WRONG: [(&str, &str); 17] = [
    ("a text for a number", "[optimizer]\nlr = \"0.1\""),
    ("a fraction for a whole number", "[train]\nepochs = 2.5"),
    ("a number for a list", "[model]\nhidden = 64"),
    ("a number for a switch", "[data]\nshuffle = 1"),
    ("an unknown key", "[train]\nepoch = 3"),
    ("a key of another section", "[train]\nlr = 0.1"),
    ("an unknown section", "[training]\nepochs = 3"),
    ("a section that is none", "train = 3"),
    ("below the range", "[train]\nbatch_size = 0"),
    ("on an excluded end of the range", "[model]\ndropout = 1.0"),
    ("above the range", "[comm]\nzero = 3"),
    ("an unknown name", "[optimizer]\nkind = \"adan\""),
    ("neither a switch nor the name", "[train]\ndeterministic = \"worl\""),
    ("a list of the wrong length", "[optimizer]\nbetas = [0.9]"),
    ("a group without a pattern", "[[optimizer.groups]]\nlr_scale = 0.1"),
    ("a table with an unknown key", "[data]\nsplit = { groups = \"a\" }"),
    ("two keys of a pair", "[train]\nepochs = 3\nsteps = 5"),
];

fn schema() -> Value {
    let output = Command::new(ddp_train()).args(["config", "schema"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn to_json(toml: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Value>(toml).unwrap()).unwrap()
}

/// Valid configs: the examples, a saved one, and one for each key.
fn right() -> Vec<(String, String)> {
    let mut right = Vec::new();
    let folder = ddp_folder().join("../examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_config =
            path.extension().is_some_and(|ending| ending == "toml") && !path.ends_with("Cargo.toml");
        if is_config {
            Config::load(Some(&path), &[]).unwrap();
            right.push((path.display().to_string(), std::fs::read_to_string(path).unwrap()));
        }
    }
    assert!(right.len() >= 3, "{}", right.len());
    right.push(("saved".to_owned(), Config::load(None, &[]).unwrap().to_toml()));
    for key in keys() {
        let head = if key.section().is_empty() { String::new() } else { format!("[{}]\n", key.section()) };
        let toml = format!("{head}{} = {}", key.short_name(), key.example);
        right.push((format!("the example of {}", key.name), toml));
    }
    right
}

#[test]
fn the_schema_accepts_what_the_program_accepts() {
    let schema = schema();
    for (name, toml) in right() {
        let faults = faults(&schema, &to_json(&toml), "");
        assert!(faults.is_empty(), "{name}: {faults:?}");
    }
    for (name, toml) in WRONG {
        assert!(!faults(&schema, &to_json(toml), "").is_empty(), "{name}");
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let digits = ["data.train=builtin:digits".to_owned()];
        assert!(Config::load(Some(file.path()), &digits).is_err(), "{name}");
    }
}

#[test]
fn python_agrees() {
    const CHECK: &str = "
import json, sys
from jsonschema import Draft4Validator
given = json.load(sys.stdin)
Draft4Validator.check_schema(given['schema'])
validator = Draft4Validator(given['schema'])
print(json.dumps([validator.is_valid(config) for config in given['configs']]))
";
    let python = |args: &[&str]| {
        let mut command = Command::new("python3");
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if !python(&["-c", "import jsonschema"]).output().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: needs Python with jsonschema");
    }
    let right = right();
    let wrong = WRONG.map(|(name, toml)| (name.to_owned(), toml.to_owned()));
    let configs: Vec<_> = right.iter().chain(&wrong).map(|(_, toml)| to_json(toml)).collect();
    let mut child = python(&["-c", CHECK]).spawn().unwrap();
    let given = json!({ "schema": schema(), "configs": configs });
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let verdicts: Vec<bool> =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(verdicts.len(), configs.len());
    for (i, ((name, _), is_valid)) in right.iter().chain(&wrong).zip(verdicts).enumerate() {
        assert_eq!(is_valid, i < right.len(), "{name}");
    }
}

/// The faults of `value` at `place` under a schema that uses only the keywords that the program writes.
fn faults(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        let number = || rule.as_f64().unwrap();
        let n_items = value.as_array().map(|items| items.len() as f64);
        let is = |flag: &str| schema.get(flag).is_some_and(|flag| flag == true);
        let list = || rule.as_array().unwrap();
        let fits = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            // In draft 4 these two are flags of a bound, which must be given next to them.
            "exclusiveMinimum" => schema.get("minimum").is_some(),
            "exclusiveMaximum" => schema.get("maximum").is_some(),
            "type" => has_type(value, rule.as_str().unwrap()),
            "enum" => list().contains(value),
            "minimum" if is("exclusiveMinimum") => value.as_f64().is_none_or(|value| value > number()),
            "minimum" => value.as_f64().is_none_or(|value| value >= number()),
            "maximum" if is("exclusiveMaximum") => value.as_f64().is_none_or(|value| value < number()),
            "maximum" => value.as_f64().is_none_or(|value| value <= number()),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() as f64 >= number()),
            "minItems" => n_items.is_none_or(|n_items| n_items >= number()),
            "maxItems" => n_items.is_none_or(|n_items| n_items <= number()),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                !value.is_object() || list().iter().all(has)
            }
            "not" => !faults(rule, value, place).is_empty(),
            "anyOf" => list().iter().any(|rule| faults(rule, value, place).is_empty()),
            "allOf" => list().iter().all(|rule| faults(rule, value, place).is_empty()),
            "additionalProperties" => {
                assert_eq!(rule, false);
                let known = schema["properties"].as_object().unwrap();
                value.as_object().is_none_or(|object| object.keys().all(|name| known.contains_key(name)))
            }
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if let Some(rule) = rule.get(name) {
                        all.extend(faults(rule, value, &format!("{place}.{name}")));
                    }
                }
                true
            }
            "items" => {
                let items = value.as_array().into_iter().flatten();
                all.extend(items.flat_map(|item| faults(rule, item, &format!("{place}[]"))));
                true
            }
            other => panic!("unknown keyword {other} at {place}"),
        };
        if !fits {
            all.push(format!("{place}: {value} against {keyword} {rule}"));
        }
    }
    all
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("unknown type {other}"),
    }
}
