//! Keys that may differ between a checkpoint's config and the run that resumes it.

use super::Config;
use super::document::entries;
use super::key::{Key, OnResume};
use super::table::keys;
use super::value::parse;
use super::writer::Entry;

/// A key whose value differs between two configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Key with its section, such as `optimizer.lr`.
    pub key: String,
    /// Value of the key in this config, as TOML; "absent" if it has none.
    pub ours: String,
    /// Value of the key in the other config.
    pub theirs: String,
}

/// Keys that a resumed run may change, for help; `SECTION.*` if it may change all keys of a section.
///
/// Data may have moved, so their fingerprint is compared instead of their path. Batch sizes and `train.grad_accum_steps` depend
/// on the number of ranks, so the rows of a global batch are compared instead.
pub fn resumable_keys() -> Vec<String> {
    let may_change = |key: &Key| !matches!(key.on_resume, OnResume::Fixed);
    let mut names = Vec::new();
    for key in keys().filter(|key| may_change(key)) {
        let section = key.section();
        let is_whole =
            !section.is_empty() && keys().filter(|other| other.section() == section).all(may_change);
        let name = match key.on_resume {
            _ if is_whole => format!("{section}.*"),
            OnResume::MayChangeIf(_, condition) => format!("{} ({condition})", key.name),
            OnResume::MayChange | OnResume::Fixed => key.name.to_owned(),
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names
}

impl Config {
    /// The differences from the `saved` config in keys that a resumed run may not change. Keys that only `saved` has come last.
    pub fn differences(&self, saved: &Config) -> Vec<Difference> {
        let (ours, theirs) = (entries(self), entries(saved));
        let value = |entries: &[Entry], key: &str| {
            entries.iter().find(|entry| entry.key.name == key).map(|entry| entry.value.clone())
        };
        let only_theirs = theirs.iter().filter(|entry| value(&ours, entry.key.name).is_none());
        let may_differ = |key: &Key| match key.on_resume {
            OnResume::Fixed => false,
            OnResume::MayChange => true,
            OnResume::MayChangeIf(condition, _) => {
                condition(&|key| value(&ours, key).map(|text| parse(&text)), &|key| {
                    value(&theirs, key).map(|text| parse(&text))
                })
            }
        };
        let mut differences = Vec::new();
        for key in ours.iter().chain(only_theirs).map(|entry| entry.key) {
            let (ours, theirs) = (value(&ours, key.name), value(&theirs, key.name));
            if ours != theirs && !may_differ(key) {
                let text = |value: Option<String>| value.unwrap_or_else(|| "absent".to_owned());
                differences.push(Difference {
                    key: key.name.to_owned(),
                    ours: text(ours),
                    theirs: text(theirs),
                });
            }
        }
        differences
    }
}
