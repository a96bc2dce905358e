//! Where rows come from: what the config names, and what is known of the rows before they are read.

use super::vocabulary::Vocabulary;
use crate::config::{DataConfig, EvalSource, Missing};

/// Which part of a built-in set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Test,
}

/// Where rows come from, and what is known of them before they are read.
#[derive(Debug, Clone, Copy)]
pub struct SourceSpec<'a> {
    /// What the config says of rows.
    pub data: &'a DataConfig,
    /// `builtin:NAME`, a file, a folder, or a pattern of files.
    pub source: &'a str,
    /// Labels in files of their own.
    pub labels: Option<&'a str>,
    /// Which rows of a built-in set.
    pub part: Part,
    /// Number of classes; `None` means largest label + 1.
    pub classes: Option<usize>,
    /// Names of the features in the model's order; `None` takes all that are there, as they are there.
    pub features: Option<KnownFeatures<'a>>,
    /// Host memory for rows that can't be read again piece by piece.
    pub memory_bytes: u64,
}

/// The columns that a model was made for.
#[derive(Debug, Clone, Copy)]
pub struct KnownFeatures<'a> {
    /// Names in their order.
    pub names: &'a [String],
    /// Vocabularies of the categorical ones.
    pub vocabularies: &'a [Vocabulary],
    /// Whose columns they are, for messages.
    pub of: &'a str,
}

impl<'a> SourceSpec<'a> {
    /// The training rows that the config names.
    pub fn train(data: &'a DataConfig) -> Self {
        SourceSpec {
            data,
            source: &data.train,
            labels: data.labels.as_deref(),
            part: Part::Train,
            classes: data.classes,
            features: None,
            memory_bytes: (data.loader_memory_mib as u64) << 20,
        }
    }

    /// The files with the weights of `data.eval`; None for other rows.
    pub(crate) fn eval_weight(&self) -> Option<&'a str> {
        let is_eval = matches!(&self.data.eval, EvalSource::Source(eval) if eval == self.source);
        self.data.eval_weight.as_deref().filter(|_| is_eval && self.part == Part::Test)
    }

    /// Whether a missing value is no error.
    pub fn may_miss(&self) -> bool {
        self.data.missing != Missing::Error
    }
}
