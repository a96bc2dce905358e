//! Source of rows: the files that the config names, and what is known about the rows in advance.

use super::vocabulary::Vocabulary;
use crate::config::{DataConfig, EvalSource, Missing};

/// Part of a built-in set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Test,
}

/// Source of rows, and what is known about them before they are read.
#[derive(Debug, Clone, Copy)]
pub struct SourceSpec<'a> {
    /// The config's section on data.
    pub data: &'a DataConfig,
    /// `builtin:NAME`, a file, a folder, or a file name pattern.
    pub source: &'a str,
    /// Files of labels.
    pub labels: Option<&'a str>,
    /// The part of a built-in set.
    pub part: Part,
    /// Number of classes; `None` for the largest label + 1.
    pub classes: Option<usize>,
    /// The features that a model expects; `None` for all features of the files in their order.
    pub features: Option<KnownFeatures<'a>>,
    /// Host memory for rows that can't be read from their files again.
    pub memory_bytes: u64,
    /// Host memory for arrays that must be unpacked or rearranged; `None` for `memory_bytes`.
    pub unpack_bytes: Option<u64>,
}

/// The feature columns of a model.
#[derive(Debug, Clone, Copy)]
pub struct KnownFeatures<'a> {
    /// Names in the order of the model.
    pub names: &'a [String],
    /// Vocabularies of the categorical columns.
    pub vocabularies: &'a [Vocabulary],
    /// Owner of the columns, for messages.
    pub of: &'a str,
}

impl<'a> SourceSpec<'a> {
    /// The training rows of the config.
    pub fn train(data: &'a DataConfig) -> Self {
        SourceSpec {
            data,
            source: &data.train,
            labels: data.labels.as_deref(),
            part: Part::Train,
            classes: data.classes,
            features: None,
            memory_bytes: (data.loader_memory_mib as u64) << 20,
            unpack_bytes: None,
        }
    }

    /// The files with the weights of `data.eval`; `None` for other rows.
    pub(crate) fn eval_weight(&self) -> Option<&'a str> {
        let is_eval = matches!(&self.data.eval, EvalSource::Source(eval) if eval == self.source);
        self.data.eval_weight.as_deref().filter(|_| is_eval && self.part == Part::Test)
    }

    /// Whether missing values are accepted.
    pub fn may_miss(&self) -> bool {
        self.data.missing != Missing::Error
    }
}
