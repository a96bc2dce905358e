//! Training and evaluation rows: from files of all formats, built-in sets, or a user's own [`Dataset`].
//!
//! Data flow: config -> **dataset** -> loader -> shard of the global batch. [`load`] opens the rows of a config as a [`Dataset`].
//! Files of arrays (npy, npz, safetensors, IDX) are mapped (`raw`); tables (CSV, Parquet) are read row by row (`table`). A format
//! is a folder in `raw` or `table` and a row in that module's `FORMATS`, where `formats` finds it; `write` holds what the
//! formats' writers share.
//!
//! Transformations are layered on top of a dataset: a selection of rows (`subset.rs`), then missing values and categories
//! (`preprocess.rs`). Each layer is a [`DatasetWrapper`], which states only what it changes. Normalisation comes last, on the device and in f64, so that all devices give the same bits. Statistics
//! are merged over a fixed number of parts of the rows, in order, so that the number of ranks changes no bit.
//!
//! The loader changes only the time: batches come in the order of the plan, whatever the number of threads and buffers and the
//! place of the rows. Small batches are handed over together, since a handover takes as long as their step.

pub mod batch;
mod builtin;
mod cell_problem;
mod checks;
mod class_rows;
mod column_advice;
mod column_error;
mod column_split;
mod compression;
pub(crate) mod cumulative;
mod data_fingerprint;
mod dataset;
pub mod device_rows;
mod embedding_spec;
pub mod error;
mod exact_stats;
mod files;
#[doc(hidden)]
pub mod foreign;
#[doc(hidden)]
pub mod format;
#[doc(hidden)]
pub mod formats;
#[doc(hidden)]
pub mod formatted;
mod head_outputs;
mod head_rows;
mod head_targets;
pub mod labels;
mod load;
pub mod loader;
mod lost_values;
mod normalize;
mod offsets;
mod open;
pub mod order;
mod own_eval;
mod permuted_columns;
mod preprocess;
mod quartiles;
pub mod raw;
pub(crate) mod remainders;
mod resident;
mod scaled_targets;
mod scan;
mod source;
mod split_error;
mod split_values;
mod stats;
pub mod step_rows;
mod subset;
#[doc(hidden)]
pub mod table;
mod target_columns;
mod target_error;
mod target_scale;
pub mod tensor_io;
mod tensor_rows;
mod tensor_rows_error;
#[cfg(test)]
pub(crate) mod testing;
mod train_categories;
mod vocabulary;
mod wrapper;
#[doc(hidden)]
pub mod write;

pub use self::builtin::{NAMES as BUILTIN_NAMES, digits};
pub use self::cell_problem::CellProblem;
pub use self::class_rows::split_by_class;
pub use self::column_error::ColumnError;
pub use self::compression::Compression;
pub use self::dataset::{CategoryColumn, Dataset, RowLayout, Summary, TargetLayout, numbered_columns};
pub use self::embedding_spec::EmbeddingSpec;
pub use self::error::DataError;
pub use self::files::{files_and_format, files_of};
pub use self::head_outputs::HeadOutputs;
pub use self::head_targets::{HeadTargets, head_columns, heads_from_json, heads_to_json};
pub use self::labels::{Label, LabelVocabulary};
pub use self::load::check_n_rows;
pub use self::load::{Divided, Fitted, Loaded, load, load_with, open_eval, take_eval, without_target};
pub use self::normalize::{DeviceNormalizer, Normalizer};
pub use self::order::sampler::{GroupSampler, Sampler};
pub use self::own_eval::{holds_eval_rows, resolve_eval};
pub use self::permuted_columns::{ColumnValues, UserColumn, permuted_columns};
pub(crate) use self::preprocess::Column as EncodedColumn;
pub use self::preprocess::{ColumnCodes, Preprocessor};
pub use self::resident::{ResidentRows, Targets};
pub use self::scan::column_stats;
pub use self::source::{ClassLabels, KnownFeatures, SourceSpec, SplitSide, ToPredict};
pub use self::split_error::SplitError;
pub use self::stats::ColumnStats;
pub use self::subset::{Subset, split};
pub use self::table::CsvError;
pub(crate) use self::table::quoted_cell;
pub use self::target_error::TargetError;
pub use self::target_scale::{OutputUnits, TargetScale};
pub use self::tensor_rows::TensorDataset;
pub use self::tensor_rows_error::TensorRowsError;
pub use self::train_categories::unknown_values;
pub use self::vocabulary::MAX_VALUES;
pub use self::vocabulary::Vocabulary;
pub use self::wrapper::{Changes, DatasetWrapper};
