//! Source of rows: the files that the config names, and what is known about the rows in advance.
//!
//! ```
//! use ddp::config::Config;
//! use ddp_tables::SourceSpec;
//!
//! let config = Config::load(None, &["data.train=builtin:digits".to_owned()])?;
//! let rows = SourceSpec::train(&config.data).open()?;
//! assert_eq!((rows.len(), rows.layout().n_features()), (1438, 64));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ddp::config::table_options::Decimal;
use ddp::config::{DataConfig, Datetime, EvalSource, Missing, MissingTarget, Task, UnknownLabel};
use ddp::data::RowLayout;
use ddp::data::column_kind::ColumnKind;
use ddp::data::labels::head_targets::HeadTargets;
use ddp::data::labels::{Label, LabelVocabulary};
use ddp::data::vocabulary::Vocabulary;
use ddp_comm::HostShare;

use crate::formats::arrays::reader::SplitSide;
use crate::formats::table::source::ReadOptions;
use crate::shared_types::SharedTypes;
use crate::values::filter::Filter;
use crate::values::number::DecimalMark;
use crate::values::texts::Texts;

/// Source of rows, and what is known about them before they are read.
#[derive(Debug, Clone, Copy)]
pub struct SourceSpec<'a> {
    /// The config's section on data.
    pub data: &'a DataConfig,
    /// `builtin:NAME`, a file, a folder, or a file name pattern.
    pub source: &'a str,
    /// Files of labels.
    pub labels: Option<&'a str>,
    /// Side to take where files or a built-in set hold both.
    pub side: SplitSide,
    /// Classes of the labels.
    pub classes: ClassLabels<'a>,
    /// The features that a model expects; `None` for all features of the files in their order.
    pub features: Option<KnownFeatures<'a>>,
    /// Host memory for this rank's rows that can't be read from their files again.
    pub memory_bytes: u64,
    /// Bytes of files with arrays that are mapped; larger ones are read in pieces.
    pub mapped_bytes: u64,
    /// Types that the files of a table have in common, once they were looked at.
    pub types: Option<&'a SharedTypes>,
    /// Memory in common with the other ranks of the host, if they open these rows too.
    pub host: Option<&'a HostShare>,
    /// Its slots, for parts of rows that exceed the memory.
    pub slots: Option<&'a HostShare>,
    /// Decimal mark of a file that shows none.
    pub decimal: Option<DecimalMark>,
    /// A column whose texts are taken while the rows are read.
    pub taken: Option<&'a TakenColumn>,
    /// Rows of a table that are left out: where it is set, they are never seen.
    pub filter: Option<&'a Arc<Filter>>,
    /// Rows to predict: their targets and weights are not read, nor need they exist.
    pub to_predict: Option<ToPredict<'a>>,
}

/// Columns of rows that are read to predict them.
#[derive(Debug, Clone, Copy)]
pub struct ToPredict<'a> {
    /// Columns to pass through.
    pub kept: &'a [String],
    /// Whether a row with a value that can't be used is skipped rather than an error.
    pub skips_bad_rows: bool,
    /// Whether nothing else is read, no features either.
    pub only_kept: bool,
    /// Whether the columns to pass through keep the types of files that have some.
    pub keeps_types: bool,
}

/// A column whose texts are taken, one by one and in order, while a table is read into memory.
pub struct TakenColumn {
    pub(crate) name: String,
    take: Mutex<TakeText>,
}

type TakeText = Box<dyn FnMut(&str, DecimalMark) + Send>;

impl TakenColumn {
    pub(crate) fn new(name: &str, take: impl FnMut(&str, DecimalMark) + Send + 'static) -> Self {
        TakenColumn { name: name.to_owned(), take: Mutex::new(Box::new(take)) }
    }

    /// Takes the texts of a file whose numbers have this mark, and leaves none.
    pub(crate) fn take(&self, texts: &mut Texts, decimal: DecimalMark) {
        let mut take = self.take.lock().unwrap_or_else(PoisonError::into_inner);
        (0..texts.n_rows()).for_each(|row| take(texts.get(row), decimal));
        texts.truncate(0);
    }
}

impl fmt::Debug for TakenColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TakenColumn").field(&self.name).finish()
    }
}

/// Classes of a source's labels.
#[derive(Debug, Clone, Copy)]
pub enum ClassLabels<'a> {
    /// The labels of all its rows, sorted.
    Discover,
    /// The numbers 0 to n - 1.
    Numbers(usize),
    /// Classes of a model or of other rows.
    Known(&'a Arc<LabelVocabulary>),
    /// Classes of the heads of a model or of other rows.
    Heads(&'a [HeadTargets]),
    /// None: integers stay as they are, to be inspected or converted.
    AsStored,
}

impl<'a> ClassLabels<'a> {
    /// The classes that a model knows, for rows to be read for it; `None` without classes.
    pub fn from_model(labels: Option<&'a Arc<LabelVocabulary>>, heads: &'a [HeadTargets]) -> Option<Self> {
        match labels {
            Some(labels) => Some(ClassLabels::Known(labels)),
            None => (!heads.is_empty()).then_some(ClassLabels::Heads(heads)),
        }
    }
}

/// The feature columns of a model.
#[derive(Debug, Clone, Copy)]
pub struct KnownFeatures<'a> {
    /// Names in the order of the model.
    pub names: &'a [String],
    /// Vocabularies of the categorical columns.
    pub vocabularies: &'a [Vocabulary],
    /// Kinds of the values, one per name; empty where they are unknown.
    pub kinds: &'a [Option<ColumnKind>],
    /// Decimal mark of the numbers in its files.
    pub decimal: Decimal,
    /// Owner of the columns, for messages.
    pub of: &'a str,
    /// Whether columns keep only the digits that rows without a model keep: a run that resumes reads its rows without one.
    pub prunes: bool,
}

impl<'a> KnownFeatures<'a> {
    /// The columns of the first file of `of`, for the others; without vocabularies and kinds.
    pub(crate) fn from_shards(names: &'a [String], of: &'a str) -> Self {
        KnownFeatures { names, vocabularies: &[], kinds: &[], decimal: Decimal::Auto, of, prunes: false }
    }

    /// The columns of the training rows `of`, for others.
    pub(crate) fn from_rows(layout: &'a RowLayout, vocabularies: &'a [Vocabulary], of: &'a str) -> Self {
        let RowLayout { kinds, decimal, .. } = layout;
        let known = KnownFeatures::from_shards(&layout.features, of);
        KnownFeatures { vocabularies, kinds, decimal: *decimal, ..known }
    }
}

impl<'a> SourceSpec<'a> {
    /// Most rows that are read: `data.max_rows` for training rows.
    pub(crate) fn max_rows(&self) -> usize {
        let is_train = self.side == SplitSide::Train && self.to_predict.is_none();
        self.data.max_rows.filter(|_| is_train).unwrap_or(usize::MAX)
    }

    /// The training rows of the config.
    pub fn train(data: &'a DataConfig) -> Self {
        SourceSpec {
            data,
            source: &data.train,
            labels: data.labels.as_deref(),
            side: SplitSide::Train,
            classes: data.classes.map_or(ClassLabels::Discover, ClassLabels::Numbers),
            features: None,
            memory_bytes: data.rows_memory_bytes(),
            mapped_bytes: data.mapped_bytes(),
            types: None,
            host: None,
            slots: None,
            decimal: None,
            taken: None,
            filter: None,
            to_predict: None,
        }
    }

    /// Host memory for the rows of a table: that of all ranks of the host if they share it.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.host.map_or(self.memory_bytes, |_| self.data.host_rows_memory_bytes())
    }

    /// Settings for reading the files.
    pub(crate) fn read_options(&self) -> ReadOptions<'a> {
        ReadOptions {
            delimiter: self.data.delimiter,
            header: self.data.header,
            decimal: self.data.decimal,
            known_decimal: self.decimal,
            missing_values: &self.data.missing_values,
            dropped: &self.data.drop,
            label: self.named_label(),
            has_parts: self.features.is_none() && self.data.datetime == Datetime::Parts,
            memory_bytes: self.memory_bytes,
        }
    }

    /// The target whose labels may be names: the only one, unless the classes are known to be numbers.
    fn named_label(&self) -> Option<&'a str> {
        let has_names = |vocabulary: Arc<LabelVocabulary>| {
            vocabulary.labels().any(|label| matches!(label, Label::Text(_)))
        };
        match &self.data.target[..] {
            [target] if self.data.task == Task::Classification => {
                Some(target.as_str()).filter(|_| self.vocabulary().is_none_or(has_names))
            }
            _ => None,
        }
    }

    /// The files with the weights of `data.eval`; `None` for other rows.
    pub(crate) fn eval_weight(&self) -> Option<&'a str> {
        let is_eval = matches!(&self.data.eval, EvalSource::Source(eval) if eval == self.source);
        self.data.eval_weight.as_deref().filter(|_| is_eval && self.side == SplitSide::Test)
    }

    /// The note on rows of an evaluation that lack the config's weight.
    pub(crate) fn note_without_weight(&self, has: impl Fn(&str) -> bool) -> Option<String> {
        let is_eval = self.side == SplitSide::Test && self.to_predict.is_none();
        let name = self.data.weight.as_deref().filter(|name| is_eval && !has(name))?;
        Some(format!("its rows have no \"{name}\", so all weigh 1"))
    }

    /// The classes, if they are known before the rows are read.
    pub fn vocabulary(&self) -> Option<Arc<LabelVocabulary>> {
        match self.classes {
            ClassLabels::Numbers(n) => Some(Arc::new(LabelVocabulary::numbers(n))),
            ClassLabels::Known(vocabulary) => Some(vocabulary.clone()),
            ClassLabels::Heads(_) | ClassLabels::Discover | ClassLabels::AsStored => None,
        }
    }

    /// Whether rows whose label is not a class are left out, marked by the class -1 until then.
    pub(crate) fn skips_unknown(&self) -> bool {
        self.side == SplitSide::Test && self.data.unknown_label == UnknownLabel::Skip
    }

    /// Whether rows without a target are left out.
    pub(crate) fn skips_missing_targets(&self) -> bool {
        self.data.missing_target == MissingTarget::Skip && self.to_predict.is_none()
    }

    /// Whether missing values are accepted.
    pub fn may_miss(&self) -> bool {
        self.data.missing != Missing::Error || self.to_predict.is_some_and(|rows| rows.skips_bad_rows)
    }
}
