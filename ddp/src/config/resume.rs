//! What may change in the config between a checkpoint and the run that goes on from it.

use std::collections::BTreeMap;

use super::{Config, write};

/// Keys that may differ when a run is resumed; any other difference is refused.
///
/// The data may lie elsewhere: its fingerprint is compared instead. Sizes of batches and `train.grad_accum_steps` follow the
/// number of ranks: the rows of a global batch are compared instead.
pub const RESUMABLE: &[&str] = &[
    "name",
    "data.train",
    "data.labels",
    "data.eval",
    "data.eval_labels",
    "data.eval_weight",
    "data.placement",
    "data.prefetch",
    "data.loader_threads",
    "data.loader_memory_mib",
    "train.epochs",
    "train.steps",
    "train.batch_size",
    "train.global_batch_size",
    "train.grad_accum_steps",
    "train.stop_after_steps",
    "train.early_stop_patience",
    "train.early_stop_min_delta",
    "comm.*",
    "checkpoint.*",
    "log.*",
];

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

impl Config {
    /// Where this config differs from the `saved` one, but for the keys of [`RESUMABLE`]: what stands in the way of
    /// resuming. Keys that only `saved` has come last.
    pub fn differences(&self, saved: &Config) -> Vec<Difference> {
        let mut theirs: BTreeMap<String, String> = write::entries(saved).into_iter().collect();
        let absent = || "absent".to_owned();
        let mut differences = Vec::new();
        for (key, ours) in write::entries(self) {
            let theirs = theirs.remove(&key).unwrap_or_else(absent);
            differences.push(Difference { key, ours, theirs });
        }
        differences.extend(theirs.into_iter().map(|(key, theirs)| Difference {
            key,
            ours: absent(),
            theirs,
        }));
        differences.retain(|d| d.ours != d.theirs && !is_resumable(&d.key));
        differences
    }
}

fn is_resumable(key: &str) -> bool {
    RESUMABLE.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some(section) => key.starts_with(section),
        None => key == *allowed,
    })
}
