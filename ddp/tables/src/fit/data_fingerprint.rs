//! Hash of the rows of a run, which a resumed run compares.

use std::fmt;
use std::sync::Arc;

use ddp::data::datasets::dataset::Dataset;
use ddp::data::error::Result;
use ddp::storage::fingerprint::Fingerprint;

/// A hash of training and evaluation rows. As text, a hash of all values begins with its version; without one, it is that of
/// earlier versions: all rows in memory, but only a sample of arrays on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataFingerprint {
    /// Arrays on disk count by 1,024 of their rows.
    Sampled(u64),
    /// Every value counts.
    Full(u64),
}

impl DataFingerprint {
    /// Combines the sampled hash, which covers names and layout, with hashes of all values of training and evaluation rows.
    pub(crate) fn full(sampled: u64, train: u64, eval: Option<u64>) -> Self {
        let mut hash = Fingerprint::default();
        [sampled, train, eval.unwrap_or(0)].into_iter().for_each(|part| hash.number(part));
        DataFingerprint::Full(hash.finish())
    }
}

/// Hash of names, layout, rows in memory and a sample of others, of training and evaluation.
pub(crate) fn fingerprint(train: &Arc<dyn Dataset>, eval: Option<&Arc<dyn Dataset>>) -> Result<u64> {
    let eval = eval.map_or(Ok(0), |eval| eval.fingerprint())?;
    let mut of_labels = 0;
    // Numbers need no vocabulary: their classes are in the rows.
    let heads = train.layout().targets.heads();
    let all = train.layout().labels.iter().chain(heads.iter().filter_map(|head| head.labels.as_ref()));
    let listed: Vec<_> = all.filter(|labels| !labels.is_numbers()).collect();
    if !listed.is_empty() {
        let mut hash = Fingerprint::default();
        listed.iter().flat_map(|labels| labels.labels()).for_each(|label| hash.text(&label.to_string()));
        of_labels = hash.finish();
    }
    Ok(train.fingerprint()? ^ eval.rotate_left(1) ^ of_labels.rotate_left(2))
}

impl fmt::Display for DataFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataFingerprint::Sampled(hash) => write!(f, "{hash:016x}"),
            DataFingerprint::Full(hash) => write!(f, "full-1:{hash:016x}"),
        }
    }
}
