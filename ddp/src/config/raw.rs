//! A config before it is checked: the given settings, with the defaults of keys that are not given.

use std::collections::BTreeMap;

use super::error::{ConfigError, Result};
use super::key::{Before, Key, KeyDefault};
use super::key_table::KeyTable;
use super::origin::Origin;
use super::setting::Setting;
use super::value::{ConfigValue, parse};

/// Settings, each key at most once, and the rule for keys that are not given.
#[derive(Debug, Clone)]
pub(super) struct RawConfig {
    table: &'static KeyTable,
    settings: BTreeMap<&'static str, Setting>,
    source: Source,
    /// Keys that did not exist when the run to be resumed was started: omitting them means [`Key::before`].
    unknown_to_run: Vec<&'static str>,
}

/// Origin of a config: decides the value of a key that the text omits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Typed by a user: an omitted key has its default.
    Typed,
    /// Saved by a run: an omitted key means [`Key::before`].
    Saved,
}

impl RawConfig {
    /// Merges `upper` over `lower`: a later value replaces an earlier value of the same key and of its alternatives.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] if one layer holds both keys of an alternative.
    pub(super) fn layered(
        table: &'static KeyTable,
        lower: Vec<Setting>,
        upper: Vec<Setting>,
        source: Source,
    ) -> Result<Self> {
        check_no_conflict(table, &lower)?;
        let settings = lower.into_iter().map(|setting| (setting.key.name, setting)).collect();
        RawConfig { table, settings, source, unknown_to_run: Vec::new() }.overlaid(upper)
    }

    /// These settings with `upper` laid over them.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] if `upper` holds both keys of an alternative.
    pub(super) fn overlaid(mut self, upper: Vec<Setting>) -> Result<Self> {
        check_no_conflict(self.table, &upper)?;
        for setting in upper {
            self.settings.retain(|_, old| !exclude(old.key, setting.key));
            self.settings.insert(setting.key.name, setting);
        }
        Ok(self)
    }

    /// Adds the settings of the run to be resumed: a key that neither has keeps the meaning that it had for that run, and one that
    /// these settings lack keeps the default of that run's version.
    pub(super) fn resuming(mut self, saved: &[Setting]) -> Self {
        let had_default =
            |setting: &&Setting| setting.key.former_default.is_some_and(|text| parse(text) == setting.value);
        for setting in saved.iter().filter(had_default) {
            self.settings.entry(setting.key.name).or_insert_with(|| setting.clone());
        }
        let is_unknown = |key: &&'static Key| saved.iter().all(|setting| setting.key.name != key.name);
        let unknown_to_run = self.table.keys().filter(is_unknown).map(|key| key.name).collect();
        RawConfig { unknown_to_run, ..self }
    }

    /// The settings without the key `name`, as if a user had left it out.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut settings = self.settings.clone();
        settings.remove(name);
        RawConfig { settings, source: Source::Typed, ..self.clone() }
    }

    /// The origin of the config.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// The setting that was given for this key, if any.
    pub(super) fn given(&self, name: &str) -> Option<&Setting> {
        let setting = self.settings.get(name);
        debug_assert!(setting.is_some() || self.table.find(name).is_some(), "the config has no row `{name}`");
        setting
    }

    /// The effective setting of this key: the given one, else the row's default if it is a value.
    pub(super) fn setting(&self, name: &str) -> Option<Setting> {
        if let Some(setting) = self.settings.get(name) {
            return Some(setting.clone());
        }
        let key = self.table.row(name);
        let source = if self.unknown_to_run.contains(&name) { Source::Saved } else { self.source };
        Some(Setting { key, value: parse(missing_value(key, source)?), raw: None, origin: Origin::Default })
    }

    /// The value of a key that may have none.
    pub(super) fn optional<T: ConfigValue>(&self, name: &str) -> Result<Option<T>> {
        self.setting(name).as_ref().map(T::read).transpose()
    }

    /// The value of a key whose row has a default.
    pub(super) fn get<T: ConfigValue>(&self, name: &str) -> Result<T> {
        Ok(self.optional(name)?.unwrap_or_else(|| panic!("the row `{name}` has no default")))
    }

    /// The value of a key whose default depends on other keys.
    pub(super) fn get_or<T: ConfigValue>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.optional(name)?.unwrap_or(default))
    }
}

/// The value that a text of this origin implies by omitting the key, if the row defines it.
pub(super) fn missing_value(key: &Key, source: Source) -> Option<&'static str> {
    match (source, key.before, key.default) {
        (Source::Saved, Before::Value(text), _) => Some(text),
        (Source::Saved, Before::Absent, _) => None,
        (_, _, KeyDefault::Value(text)) => Some(text),
        (_, _, KeyDefault::Depends(_) | KeyDefault::Absent(_)) => None,
    }
}

/// Whether only one of the two keys may be given.
fn exclude(a: &Key, b: &Key) -> bool {
    let names = |key: &Key, other: &Key| key.alternative.is_some_and(|of| of.name == other.name);
    names(a, b) || names(b, a)
}

fn check_no_conflict(table: &'static KeyTable, layer: &[Setting]) -> Result<()> {
    for second in table.keys() {
        let Some(first) = second.alternative else { continue };
        let place = |name: &str| layer.iter().rposition(|setting| setting.key.name == name);
        if let (Some(first_place), Some(second_place)) = (place(first.name), place(second.name)) {
            return Err(ConfigError::Conflict {
                at: layer[first_place.max(second_place)].at(),
                key: first.name,
                other: second.name,
                hint: first.hint,
            });
        }
    }
    Ok(())
}
