//! The config as text: TOML with every key, and the flat list that ranks and resumed runs compare.

use super::key::KeyDefault;
use super::origin::Origin;
use super::raw::RawConfig;
use super::setting::Setting;
use super::table::TABLE;
use super::value::parse;
use super::writer::{Entry, Writer};
use super::{Config, heads};

impl Config {
    /// The resolved config as TOML, with every key; loading it returns this config. Values equal to the default are marked
    /// `# default`; keys without a value are comments.
    pub fn to_toml(&self) -> String {
        let entries = entries(self);
        let raw = as_settings(&entries);
        // Both lists are in the order of the rows.
        let mut left = entries.iter().peekable();
        let mut document = String::new();
        let mut open_section = "";
        for key in TABLE.keys() {
            if key.section() != open_section {
                open_section = key.section();
                document += &format!("\n[{open_section}]\n");
            }
            let name = key.short_name();
            document += &match left.next_if(|entry| entry.key.name == key.name) {
                Some(entry) if is_default(entry, raw.as_ref()) => {
                    format!("{name} = {}  # default\n", entry.value)
                }
                Some(entry) => format!("{name} = {}\n", entry.value),
                None => match key.default {
                    KeyDefault::Absent(meaning) => format!("# {name}: {meaning}\n"),
                    KeyDefault::Value(_) | KeyDefault::Depends(_) => format!("# {name}: not used\n"),
                },
            };
        }
        debug_assert!(left.next().is_none(), "an entry twice, or without a row");
        document
    }

    /// The keys that were given, in the order of the rows: section, name in it, and value as TOML.
    pub fn given_keys(&self) -> Vec<(&'static str, &'static str, String)> {
        let is_given = |entry: &Entry| self.given.raw.given(entry.key.name).is_some();
        let entries = entries(self).into_iter().filter(is_given);
        entries.map(|entry| (entry.key.section(), entry.key.short_name(), entry.value)).collect()
    }

    /// Each key with its value as TOML, in a fixed order: the list that ranks compare at start.
    pub fn agreement_entries(&self) -> Vec<(String, String)> {
        let entries = entries(self).into_iter().filter(|entry| entry.key.is_compared);
        entries.map(|entry| (entry.key.name.to_owned(), entry.value)).collect()
    }
}

/// Every key that has a value, in the order of the rows.
pub(super) fn entries(config: &Config) -> Vec<Entry> {
    let Config {
        name,
        data,
        model,
        loss,
        optimizer,
        schedule,
        train,
        comm,
        checkpoint,
        log,
        watchdog,
        run,
        given: _,
    } = config;
    let mut writer = Writer::new(&TABLE);
    writer.put("name", name);
    heads::write(&data.heads, loss, &mut writer);
    data.write(&mut writer);
    model.write(&mut writer);
    loss.write(&mut writer);
    optimizer.write(&mut writer);
    schedule.write(&mut writer);
    train.write(&mut writer);
    comm.write(&mut writer);
    checkpoint.write(&mut writer);
    log.write(&mut writer);
    watchdog.write(&mut writer);
    run.write(&mut writer);
    writer.finish()
}

/// The settings that a user would write for these entries; `None` if no config can have all of them.
fn as_settings(entries: &[Entry]) -> Option<RawConfig> {
    let setting = |Entry { key, value, .. }: &Entry| Setting {
        key,
        value: parse(value),
        raw: None,
        origin: Origin::Default,
    };
    RawConfig::layered(&TABLE, entries.iter().map(setting).collect(), Vec::new()).ok()
}

/// Whether the config made from the settings `all` would be the same without this key.
fn is_default(entry: &Entry, all: Option<&RawConfig>) -> bool {
    match entry.key.default {
        KeyDefault::Value(value) => value == entry.value,
        KeyDefault::Absent(_) => false,
        KeyDefault::Depends(_) => {
            let resolved = all.and_then(|all| Config::resolve(&all.without(entry.key.name), None).ok());
            resolved.is_some_and(|config| {
                entries(&config)
                    .iter()
                    .any(|other| other.key.name == entry.key.name && other.value == entry.value)
            })
        }
    }
}
