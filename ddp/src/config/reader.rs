//! Parses config text into settings with their origin: the TOML file and the `--set` arguments.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use toml::Value;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{ConfigError, Result};
use super::key_table::KeyTable;
use super::origin::Origin;
use super::overrides::Overrides;
use super::setting::Setting;
use super::value::typed;
use crate::storage::user_file;
use crate::storage::user_file::FileError;

/// Far above the size of any config that a person writes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the settings of a config file, in the file's order.
pub(super) fn file(table: &'static KeyTable, path: &Path) -> Result<Vec<Setting>> {
    document(table, &text_of(path)?, path)
}

/// Reads the settings of a TOML text; `path` is its origin in messages.
pub(super) fn document(table: &'static KeyTable, text: &str, path: &Path) -> Result<Vec<Setting>> {
    let syntax = |message: &str, offset: usize| ConfigError::Syntax {
        at: Box::new(Origin::in_file(path, text, offset)),
        message: message.trim().replace('\n', ", "),
    };
    if text.trim_start().starts_with('{') {
        let message = "a config is TOML, and this is JSON: a section is a line such as [data], with `train = \"rows.csv\"` below it";
        return Err(syntax(message, 0));
    }
    let root = DeTable::parse(text)
        .map_err(|error| syntax(error.message(), error.span().map_or(0, |span| span.start)))?;

    let mut found: Vec<(usize, Setting)> = Vec::new();
    let mut first_error: Option<(usize, ConfigError)> = None;
    let mut fail = |offset: usize, error: ConfigError| {
        if first_error.as_ref().is_none_or(|(earliest, _)| offset < *earliest) {
            first_error = Some((offset, error));
        }
    };
    let mut leaf = |name: String,
                    key_at: usize,
                    value: &toml::Spanned<DeValue<'_>>,
                    fail: &mut dyn FnMut(usize, ConfigError)| {
        let at = Origin::in_file(path, text, key_at);
        let Some(key) = table.find(&name) else {
            let hint = table.hint(&name);
            return fail(key_at, ConfigError::UnknownKey { at: Box::new(at), key: name, hint });
        };
        match Value::deserialize(ValueDeserializer::from(value.clone())) {
            Ok(value) => found.push((key_at, Setting { key, value, raw: None, origin: at })),
            // Integers in TOML are signed 64-bit.
            Err(_) if matches!(value.get_ref(), DeValue::Integer(_)) => {
                let raw = text[value.span()].to_owned();
                fail(key_at, Setting { key, value: Value::String(raw), raw: None, origin: at }.out_of_i64());
            }
            Err(error) => {
                let value_at = value.span().start;
                fail(key_at, syntax(&format!("`{name}`: {}", error.message()), value_at));
            }
        }
    };
    for (section, value) in root.get_ref() {
        let name = section.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(keys) if table.is_section(name) => {
                for (key, value) in keys {
                    leaf(format!("{name}.{}", key.get_ref()), key.span().start, value, &mut fail);
                }
            }
            _ if table.is_section(name) => {
                let at = Box::new(Origin::in_file(path, text, section.span().start));
                fail(section.span().start, not_a_section(at, name, value.get_ref()));
            }
            _ => leaf(name.to_owned(), section.span().start, value, &mut fail),
        }
    }
    if let Some((_, error)) = first_error {
        return Err(error);
    }
    found.sort_by_key(|(offset, _)| *offset);
    Ok(found.into_iter().map(|(_, setting)| setting).collect())
}

fn not_a_section(at: Box<Origin>, name: &str, value: &DeValue<'_>) -> ConfigError {
    ConfigError::WrongType {
        at,
        key: name.to_owned(),
        expected: "a section",
        got: value.type_str().to_owned(),
        example: format!("[{name}]"),
    }
}

/// Reads the settings of the command line.
pub(super) fn overrides(table: &'static KeyTable, overrides: &Overrides) -> Result<Vec<Setting>> {
    let sets = overrides.sets.iter().map(|arg| set_argument(table, arg));
    let mut settings = sets.collect::<Result<Vec<_>>>()?;
    for short in &overrides.shorts {
        let key = table.row(short.key);
        if let Some(other) = settings.iter().find(|setting| setting.key.name == key.name) {
            let first = other.origin.to_string().trim_matches('`').to_owned();
            return Err(ConfigError::GivenTwice { key: key.name, first, second: short.shown() });
        }
        let origin = Origin::Short { flag: short.flag, shown: short.shown() };
        settings.push(Setting { key, value: short.value.clone(), raw: Some(short.raw.clone()), origin });
    }
    Ok(settings)
}

/// Reads one `--set KEY=VALUE`. The value is TOML; a word that is not valid TOML is read as a string.
fn set_argument(table: &'static KeyTable, arg: &str) -> Result<Setting> {
    let Some((name, raw)) = arg.split_once('=') else {
        return Err(ConfigError::BadSet { arg: arg.to_owned() });
    };
    let (name, raw) = (name.trim(), raw.trim());
    let origin = Origin::Set(arg.to_owned());
    if name.is_empty() || table.is_section(name) {
        return Err(ConfigError::BadSet { arg: arg.to_owned() });
    }
    let Some(key) = table.find(name) else {
        let hint = table.hint(name);
        return Err(ConfigError::UnknownKey { at: Box::new(origin), key: name.to_owned(), hint });
    };
    let value = match (typed(raw), raw.parse::<f64>()) {
        // Numbers without a digit before or after the point are none of TOML.
        (value, Ok(number))
            if value.is_str() && number.is_finite() && raw.contains('.') && key.kind.is_number() =>
        {
            number.into()
        }
        (value, _) => value,
    };
    let setting = Setting { key, value, raw: Some(raw.to_owned()), origin };
    let digits = raw.trim_start_matches(['+', '-']);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number that TOML can't represent: its integers are signed 64-bit.
    if is_number && setting.value.is_str() && !digits.starts_with('0') && setting.key.kind.is_number() {
        return Err(setting.out_of_i64());
    }
    Ok(setting)
}

fn text_of(path: &Path) -> Result<String> {
    const WHAT: &str = "config file";
    let file = user_file::open(WHAT, path)?;
    let unreadable = |source| FileError::Unreadable { what: WHAT, path: path.to_owned(), source };
    let too_large = |n_bytes| ConfigError::TooLarge { path: path.to_owned(), n_bytes, max_bytes: MAX_BYTES };
    let n_bytes = file.metadata().map_err(unreadable)?.len();
    if n_bytes > MAX_BYTES {
        return Err(too_large(n_bytes));
    }
    let bytes = read_at_most(file, MAX_BYTES + 1).map_err(unreadable)?;
    // The size of a pipe or device is not known beforehand.
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_large(bytes.len() as u64));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        ConfigError::NotUtf8 { at: Box::new(Origin::in_bytes(path, error.as_bytes(), offset)) }
    })
}

fn read_at_most(file: File, max_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}
