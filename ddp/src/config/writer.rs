//! Collects the values of a config as TOML: each section writes its own.

use super::key::Key;
use super::key_table::KeyTable;
use super::value::ConfigValue;

/// Collects the values of a config, from its sections in any order.
#[derive(Debug)]
pub(super) struct Writer {
    table: &'static KeyTable,
    values: Vec<Entry>,
}

/// A key with its value as TOML.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Index of the key in the order of the rows.
    place: usize,
    pub(super) key: &'static Key,
    pub(super) value: String,
}

impl Writer {
    pub(super) fn new(table: &'static KeyTable) -> Self {
        Writer { table, values: Vec::new() }
    }

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

    /// Adds a value that is already written as TOML.
    pub(super) fn put_toml(&mut self, name: &str, value: String) {
        let (place, key) = self.table.numbered_row(name);
        self.values.push(Entry { place, key, value });
    }

    /// The values, in the order of the rows.
    pub(super) fn finish(mut self) -> Vec<Entry> {
        self.values.sort_unstable_by_key(|entry| entry.place);
        self.values
    }
}
