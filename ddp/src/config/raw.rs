//! A config before it is checked: the given settings, with the defaults of keys that are not given.

use std::collections::BTreeMap;

use super::error::{ConfigError, Result};
use super::key::{Key, KeyDefault};
use super::key_table::KeyTable;
use super::origin::Origin;
use super::setting::Setting;
use super::value::{ConfigValue, parse};

/// Settings, each key at most once.
#[derive(Debug, Clone)]
pub(super) struct RawConfig {
    table: &'static KeyTable,
    settings: BTreeMap<&'static str, Setting>,
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
    ) -> Result<Self> {
        check_no_conflict(table, &lower)?;
        let settings = lower.into_iter().map(|setting| (setting.key.name, setting)).collect();
        RawConfig { table, settings }.overlaid(upper)
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

    /// The settings without the key `name`, as if a user had left it out.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut settings = self.settings.clone();
        settings.remove(name);
        RawConfig { settings, table: self.table }
    }

    /// Whether the table has a row for this key.
    pub(super) fn has_row(&self, name: &str) -> bool {
        self.table.find(name).is_some()
    }

    /// Whether this key was given; the table may have no row for it.
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.settings.contains_key(name)
    }

    /// Names of the keys that were given.
    pub(super) fn given_keys(&self) -> impl Iterator<Item = &'static str> {
        self.settings.keys().copied()
    }

    /// The setting that was given for this key, if any.
    pub(super) fn given(&self, name: &str) -> Option<&Setting> {
        let setting = self.settings.get(name);
        debug_assert!(setting.is_some() || self.has_row(name), "the config has no row `{name}`");
        setting
    }

    /// The effective setting of this key: the given one, else the row's default if it is a value.
    pub(super) fn setting(&self, name: &str) -> Option<Setting> {
        if let Some(setting) = self.settings.get(name) {
            return Some(setting.clone());
        }
        let key = self.table.row(name);
        let KeyDefault::Value(default) = key.default else { return None };
        Some(Setting { key, value: parse(default), raw: None, origin: Origin::Default })
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
