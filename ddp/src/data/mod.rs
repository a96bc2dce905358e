//! Training and evaluation rows: from files of all formats, built-in sets, or a user's own [`Dataset`].
//!
//! Data flow: config -> **dataset** -> loader -> shard of the global batch. `load` opens the rows of a config as a [`Dataset`].
//! The crate `ddp-rows` reads and writes files of all formats. Files of arrays (npy, npz, safetensors, IDX) are mapped (`raw`); tables
//! (CSV, Parquet) are read row by row (`table`).
//!
//! Transformations are layered on top of a dataset: a selection of rows (`subset.rs`), then missing values and categories
//! (`preprocess.rs`). Each layer is a [`DatasetWrapper`], which states only what it changes. Normalization comes last, on the device and in f64, so that all devices give the same bits. Statistics
//! are merged over a fixed number of parts of the rows, in order, so that the number of ranks changes no bit.
//!
//! The loader changes only the time: batches come in the order of the plan, whatever the number of threads and buffers and the
//! place of the rows. Small batches are handed over together, since a handover takes as long as their step.

mod data_fingerprint;
pub(crate) mod parallel;
pub(crate) mod cumulative;
#[doc(hidden)]
pub mod column_kind;
#[doc(hidden)]
pub mod labels;
pub(crate) mod errors;
#[doc(hidden)]
pub mod error;
mod checks;
#[doc(hidden)]
pub mod order;
pub(crate) mod datasets;
#[doc(hidden)]
pub mod row_values;
#[doc(hidden)]
pub mod shared_types;
mod source;
mod builtin;
pub(crate) mod fit;
#[doc(hidden)]
pub mod device_rows;
pub(crate) mod heads;
pub(crate) mod label_classes;
#[doc(hidden)]
pub mod step_rows;
#[doc(hidden)]
pub mod loader;
mod target_columns;
#[doc(hidden)]
pub mod raw;
#[doc(hidden)]
pub mod table;
mod folder;
mod files;
#[doc(hidden)]
pub mod open_arrays;
#[doc(hidden)]
pub mod list_arrays;
mod open;
pub(crate) mod split;
mod load;
mod made_up_rows;
#[doc(hidden)]
pub mod tensor_io;
#[cfg(test)]
pub(crate) mod testing;

#[cfg(feature = "onnx")]
pub(crate) use self::fit::preprocess::Column as EncodedColumn;

pub use self::builtin::digits;
pub use self::datasets::batch::{Batch, BatchMut};
pub use self::datasets::dataset::{Dataset, RowLayout, Summary, TargetLayout, numbered_columns};
pub use self::datasets::resident::{ResidentRows, Targets};
pub use self::datasets::subset::{Subset, split};
pub use self::datasets::tensor_rows::TensorDataset;
pub use self::datasets::wrapper::{Changes, DatasetWrapper};
pub use self::error::DataError;
pub use self::errors::tensor_rows_error::TensorRowsError;
pub use self::fit::preprocess::Preprocessor;
pub use self::loader::{
    BatchPlan, Batches, DataLoader, LoadedStep, LoaderOptions, PartitionKind, Shuffle, TensorBatch,
};
pub use self::order::partition::EvalPartition;
pub use self::order::sampler::{GroupSampler, Sampler};
pub use crate::config::Placement;

#[doc(hidden)]
pub use self::{
    builtin::NAMES as BUILTIN_NAMES,
    datasets::batch,
    datasets::target_scale::{OutputUnits, TargetScale},
    errors::split_error::SplitError,
    errors::target_error::TargetError,
    files::{files_and_format, files_of, pattern_of},
    fit::column_advice::{ONE_HOT, far_value, has_one_label},
    fit::embedding_spec::EmbeddingSpec,
    fit::normalize::{DeviceNormalizer, Normalizer},
    fit::permuted_columns::{ColumnValues, UserColumn, permuted_columns},
    fit::preprocess::ColumnCodes,
    fit::scan::column_stats,
    fit::stats::ColumnStats,
    fit::train_categories::unknown_values,
    folder::notes_on_folders,
    heads::head_outputs::HeadOutputs,
    labels::head_targets::{HeadTargets, head_columns, heads_from_json, heads_to_json},
    labels::{Label, LabelVocabulary},
    load::{Divided, Fitted, Loaded, check_n_rows, load, load_with, open_eval, take_eval, without_target},
    made_up_rows::{absent_rows, made_up_rows},
    source::{ClassLabels, KnownFeatures, SourceSpec, ToPredict},
    split::class_rows::split_by_class,
    split::own_eval::{holds_eval_rows, resolve_eval},
};
#[doc(hidden)]
pub use ddp_rows::{
    arrays::reader::SplitSide,
    compression::Compression,
    error::{CellProblem, ColumnError, CsvError, RowsError},
    values::vocabulary::{CategoryColumn, MAX_VALUES, Vocabulary},
};
