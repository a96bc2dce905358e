//! Keys that may differ between a checkpoint's config and the run that resumes it.

use std::collections::BTreeMap;

use super::key::{Key, OnResume};
use super::{Config, table, writer};

/// A key whose value differs between two configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Its value in this config, as TOML; "absent" where it has none.
    pub ours: String,
    /// Its value in the other one.
    pub theirs: String,
}

/// Keys that a resumed run may change, for help: `SECTION.*` where it may change all of a section.
///
/// Data may have moved: their fingerprint is compared instead. Batch sizes and `train.grad_accum_steps` follow the number of
/// ranks: the rows of a global batch are compared instead.
pub fn resumable_keys() -> Vec<String> {
    let may_change = |key: &Key| !matches!(key.on_resume, OnResume::Fixed);
    let mut names = Vec::new();
    for key in table::keys().filter(|key| may_change(key)) {
        let section = key.section();
        let is_whole =
            !section.is_empty() && table::keys().filter(|other| other.section() == section).all(may_change);
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
        let theirs = writer::entries(saved).into_iter().map(|entry| (entry.key.name, entry.value));
        let mut theirs: BTreeMap<&str, String> = theirs.collect();
        let absent = || "absent".to_owned();
        let mut differences = Vec::new();
        for entry in writer::entries(self) {
            let theirs = theirs.remove(entry.key.name).unwrap_or_else(absent);
            differences.push(Difference { key: entry.key.name.to_owned(), ours: entry.value, theirs });
        }
        differences.extend(theirs.into_iter().map(|(key, theirs)| Difference {
            key: key.to_owned(),
            ours: absent(),
            theirs,
        }));
        let may_differ = |key: &str| match table::row(key).on_resume {
            OnResume::Fixed => false,
            OnResume::MayChange => true,
            OnResume::MayChangeIf(condition, _) => condition(self, saved),
        };
        differences.retain(|d| d.ours != d.theirs && !may_differ(&d.key));
        differences
    }
}
