//! What may change in the config between a checkpoint and the run that goes on from it.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Config, DataConfig, DataFormat, write};
use crate::data::format_by_name;

/// Keys that may differ when a run is resumed; any other difference is refused.
///
/// The data may lie elsewhere: its fingerprint is compared instead. `data.weight` may differ where it names files, as it does
/// beside npy and IDX; the name of a column or array is part of the run. Sizes of batches and `train.grad_accum_steps` follow the
/// number of ranks: the rows of a global batch are compared instead.
pub const RESUMABLE: &[&str] = &[
    "name",
    "data.train",
    "data.labels",
    "data.weight",
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
        let are_files = self.data.weight_is_files() && saved.data.weight_is_files();
        let may_differ = |key: &str| is_resumable(key) && (key != "data.weight" || are_files);
        differences.retain(|d| d.ours != d.theirs && !may_differ(&d.key));
        differences
    }
}

impl DataConfig {
    /// Whether `weight` names files, and no column or array.
    fn weight_is_files(&self) -> bool {
        let is_beside = |format| matches!(format, DataFormat::Npy | DataFormat::Idx);
        self.weight.as_deref().is_some_and(|weight| {
            is_beside(self.format)
                || weight.contains('/')
                || format_by_name(Path::new(weight)).is_some_and(is_beside)
        })
    }
}

fn is_resumable(key: &str) -> bool {
    RESUMABLE.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some(section) => key.starts_with(section),
        None => key == *allowed,
    })
}
