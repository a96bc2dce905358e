//! Writes a config: as TOML with every key, and as the flat list that ranks and resumed runs compare.

use super::key::{Key, KeyDefault};
use super::origin::Origin;
use super::raw::{RawConfig, Source, parse};
use super::setting::Setting;
use super::value::ConfigValue;
use super::{Config, table};

/// Collects the values of a config, from its sections in any order.
#[derive(Debug, Default)]
pub(super) struct Writer {
    values: Vec<Entry>,
}

/// A key with its value as TOML.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: &'static Key,
    pub(super) value: String,
}

impl Writer {
    /// Adds a value.
    pub(super) fn put<T: ConfigValue>(&mut self, name: &str, value: &T) {
        self.put_toml(name, value.write());
    }

    /// Adds a value if there is one.
    pub(super) fn put_optional<T: ConfigValue>(&mut self, name: &str, value: Option<&T>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Adds a value that is written as TOML already.
    pub(super) fn put_toml(&mut self, name: &str, value: String) {
        self.values.push(Entry { key: table::row(name), value });
    }
}

/// Every key that has a value, in the order of the rows.
pub(super) fn entries(config: &Config) -> Vec<Entry> {
    let Config { name, data, model, loss, optimizer, schedule, train, comm, checkpoint, log } = config;
    let mut writer = Writer::default();
    writer.put("name", name);
    data.write(&mut writer);
    model.write(&mut writer);
    loss.write(&mut writer);
    optimizer.write(&mut writer);
    schedule.write(&mut writer);
    train.write(&mut writer);
    comm.write(&mut writer);
    checkpoint.write(&mut writer);
    log.write(&mut writer);
    let mut values = writer.values;
    values.sort_by_cached_key(|entry| table::keys().position(|key| key.name == entry.key.name));
    values
}

/// Writes a TOML document with every key: values that equal the default are marked, keys without a value are comments.
pub(super) fn document(config: &Config) -> String {
    let entries = entries(config);
    let mut document = String::new();
    let mut open_section = "";
    for key in table::keys() {
        if key.section() != open_section {
            open_section = key.section();
            document += &format!("\n[{open_section}]\n");
        }
        let name = key.short_name();
        document += &match entries.iter().find(|entry| entry.key.name == key.name) {
            Some(entry) if is_default(entry, &entries) => format!("{name} = {}  # default\n", entry.value),
            Some(entry) => format!("{name} = {}\n", entry.value),
            None => match key.default {
                KeyDefault::Absent(meaning) => format!("# {name}: {meaning}\n"),
                KeyDefault::Value(_) | KeyDefault::Depends(_) => format!("# {name}: not used\n"),
            },
        };
    }
    document
}

/// Whether the config would be the same if a user left this key out.
fn is_default(entry: &Entry, all: &[Entry]) -> bool {
    match entry.key.default {
        KeyDefault::Value(value) => value == entry.value,
        KeyDefault::Absent(_) => false,
        KeyDefault::Depends(_) => {
            let setting = |Entry { key, value }: &Entry| Setting {
                key,
                value: parse(value),
                raw: None,
                origin: Origin::Default,
            };
            let raw = RawConfig::layered(all.iter().map(setting).collect(), Vec::new(), Source::Typed);
            let resolved = raw.and_then(|raw| Config::resolve(&raw.without(entry.key.name), None));
            resolved.is_ok_and(|config| {
                entries(&config)
                    .iter()
                    .any(|other| other.key.name == entry.key.name && other.value == entry.value)
            })
        }
    }
}
