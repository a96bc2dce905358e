//! The table of all keys: the rows of each section.

use super::error::ConfigError;
use super::key::Key;
use super::key_table::KeyTable;
use super::{
    checkpoint, comm, data, heads, log, loss, model, name, optimizer, run, schedule, train, watchdog,
};

/// The rows, one section each, in the order in which configs are written.
pub(super) static TABLE: KeyTable = KeyTable::new(&[
    name::KEYS,
    heads::KEYS,
    data::KEYS,
    model::KEYS,
    loss::KEYS,
    optimizer::KEYS,
    schedule::KEYS,
    train::KEYS,
    comm::KEYS,
    checkpoint::KEYS,
    log::KEYS,
    watchdog::KEYS,
    run::KEYS,
]);

/// All keys, in the order in which configs are written.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    TABLE.keys()
}

/// The keys that a flag of this name may mean, such as `seed`, `num-classes` or `train.seed`; several sections have a `kind`.
pub fn keys_for_flag(flag: &str) -> Vec<&'static Key> {
    TABLE.for_flag(flag)
}

/// The key of this name.
pub fn find_key(name: &str) -> Option<&'static Key> {
    TABLE.find(name)
}

/// Whether a section has this name.
pub fn is_section(name: &str) -> bool {
    TABLE.is_section(name)
}

/// The keys whose names begin with `prefix`, which is a section or a part of a name; all keys for "".
///
/// # Errors
/// [`ConfigError::NoSuchPrefix`].
pub fn keys_with_prefix(prefix: &str) -> Result<Vec<&'static Key>, ConfigError> {
    let found: Vec<_> = keys().filter(|key| key.name.starts_with(prefix)).collect();
    if found.is_empty() {
        return Err(ConfigError::NoSuchPrefix { prefix: prefix.to_owned(), hint: TABLE.hint(prefix) });
    }
    Ok(found)
}
