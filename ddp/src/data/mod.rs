//! Rows to train and evaluate on: a [`Dataset`] of the program's own, or one of files (the crate `ddp-tables`).
//!
//! Data flow: **dataset** -> loader -> shard of the global batch. [`Loaded`] holds the datasets of a run and what was learned of them.
//!
//! Transformations are layered on top of a dataset: a selection of rows (`subset.rs`), a permutation, an encoding. Each layer is a [`DatasetWrapper`], which states only what it changes. Normalization comes last, on the device
//! and in f64, so that all devices give the same bits.
//!
//! The loader changes only the time: batches come in the order of the plan, whatever the number of threads and buffers and the
//! place of the rows. Small batches are handed over together, since a handover takes as long as their step.

#[doc(hidden)]
pub mod parallel;
#[doc(hidden)]
pub mod cumulative;
#[doc(hidden)]
pub mod column_kind;
#[doc(hidden)]
pub mod spelling;
#[doc(hidden)]
pub mod vocabulary;
#[doc(hidden)]
pub mod labels;
mod tensor_rows_error;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod order;
#[doc(hidden)]
pub mod datasets;
#[doc(hidden)]
pub mod builtin;
#[doc(hidden)]
pub mod embedding_spec;
#[doc(hidden)]
pub mod normalize;
#[doc(hidden)]
pub mod saved_preprocessor;
#[doc(hidden)]
pub mod device_rows;
#[doc(hidden)]
pub mod head_outputs;
#[doc(hidden)]
pub mod step_rows;
#[doc(hidden)]
pub mod loader;
#[doc(hidden)]
pub mod loaded;
mod made_up_rows;
#[cfg(test)]
pub(crate) mod testing;

pub use self::builtin::digits;
pub use self::datasets::batch::{Batch, BatchMut};
pub use self::datasets::dataset::{Dataset, RowLayout, TargetLayout, numbered_columns};
pub use self::datasets::resident::TensorDataset;
pub use self::datasets::subset::split;
pub use self::datasets::wrapper::{Changes, DatasetWrapper};
pub use self::error::DataError;
pub use self::loader::{
    BatchPlan, Batches, DataLoader, LoaderOptions, PartitionKind, RowsInBatches, Shuffle, TensorBatch,
};
pub use self::order::partition::EvalPartition;
pub use self::order::sampler::{GroupSampler, Sampler};
#[doc(hidden)]
pub use self::{
    datasets::batch,
    datasets::dataset::Summary,
    datasets::resident::Targets,
    datasets::subset::Subset,
    datasets::target_scale::{OutputUnits, TargetScale},
    embedding_spec::EmbeddingSpec,
    head_outputs::{HeadOutputs, label_applies},
    labels::head_targets::{HeadTargets, head_columns, heads_from_json, heads_to_json},
    labels::{Label, LabelVocabulary},
    loaded::{Loaded, check_n_rows, without_target},
    loader::LoadedStep,
    made_up_rows::{absent_rows, made_up_rows},
    normalize::{DeviceNormalizer, Normalizer},
    saved_preprocessor::SavedPreprocessor,
    tensor_rows_error::TensorRowsError,
};
pub use crate::config::Placement;
