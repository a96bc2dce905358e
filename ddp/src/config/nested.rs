//! Tables within the value of a key: checks their names, and reads tables that hold the keys of a section.

use super::error::{ConfigError, Result};
use super::key_table::KeyTable;
use super::nearest::nearest;
use super::raw::RawConfig;
use super::setting::Setting;

/// A table within the value of a key, for messages.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The key and its value.
    pub(super) setting: &'a Setting,
    /// Name for all tables of this kind: "heads".
    pub(super) tables: &'a str,
    /// Name of this table if there are several: "head 2"; else empty.
    pub(super) table: &'a str,
}

impl Place<'_> {
    /// The error for a table that is not as `expected`.
    pub(super) fn wrong(self, expected: String, got: &str, hint: String) -> ConfigError {
        let got = match self.table {
            "" => got.to_owned(),
            table => format!("{got} in {table}"),
        };
        ConfigError::BadValue { at: self.setting.at(), key: self.setting.key.name, expected, got, hint }
    }

    /// Refuses a name in `table` that is not in `names`.
    pub(super) fn check_names(self, table: &toml::Table, names: &[&str]) -> Result<()> {
        let Some(unknown) = table.keys().find(|name| !names.contains(&name.as_str())) else { return Ok(()) };
        let hint = match nearest(unknown, names.iter().copied()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => self.setting.for_example(),
        };
        let expected = format!("{} with the keys `{}`", self.tables, names.join("`, `"));
        Err(self.wrong(expected, &format!("the key `{unknown}`"), hint))
    }

    /// Reads `table`, the value of `section` in this table, like that section of a config with the keys `rows`.
    pub(super) fn section(
        self,
        section: &str,
        table: &toml::Table,
        rows: &'static KeyTable,
    ) -> Result<RawConfig> {
        let mut settings = Vec::new();
        for (name, value) in table {
            let full = format!("{section}.{name}");
            let Some(key) = rows.find(&full) else {
                let expected = format!("{} whose `{section}` has keys of [{section}]", self.tables);
                return Err(self.wrong(expected, &format!("the key `{name}`"), rows.hint(&full)));
            };
            let (raw, origin) = (None, self.setting.origin.clone());
            settings.push(Setting { key, value: value.clone(), raw, origin });
        }
        RawConfig::layered(rows, settings, Vec::new())
    }
}
