//! Checkpoints on disk: everything that a run needs to resume.
//!
//! ```text
//! <out>/checkpoints/step-<N>/
//!     manifest.json                         run, parameters and files, with checksums; written last
//!     model.safetensors                     the weights, as in a run's model file; by rank 0
//!     best.safetensors                      the weights of the best evaluation, if they are not those above; by rank 0
//!     buffers.safetensors                   buffers that layers registered, if some are saved; by rank 0
//!     optimizer-00000-of-00002.safetensors  optimizer state of a rank's shards; one per rank with state
//! <out>/checkpoints/latest                  name of the newest; `best` likewise
//! <out>/checkpoints/.step-<N>-<k>.tmp/      being written by the k-th save of the process
//! ```
//!
//! Writing: a [`Saver`] blocks, a [`Writer`] saves in the background while training continues. Reading: a resumed run takes the
//! newest that looks intact ([`CheckpointStore::newest`]) and compares checksums while it reads ([`Checkpoint::load`]); everything else
//! verifies every byte first ([`Checkpoint::find`]), then takes what it needs ([`TensorFile`](crate::storage::tensor_file::TensorFile), [`StateReader`]). All ranks
//! need to see the same folder.
//!
//! Three fallbacks are not requested: plain memory in place of page-locked memory (reported), the system's cache in place of direct
//! transfers, and no lock on file systems without locks.
//!
//! ```
//! use std::path::Path;
//!
//! use ddp::checkpoint::Checkpoint;
//!
//! // A run's folder: its newest checkpoint, every byte of which is verified.
//! let run = Path::new("tests/fixtures/saved_runs/regression/finished");
//! let checkpoint = Checkpoint::find(run)?.found.expect("a run with checkpoints");
//! let manifest = checkpoint.manifest();
//! assert_eq!((manifest.run.step, manifest.parameters.len()), (80, 4));
//! # Ok::<(), ddp::checkpoint::CheckpointError>(())
//! ```

mod exact;
mod gather;
mod names;
mod absence;
mod fault;
pub mod error;
mod course;
pub mod run_state;
pub mod manifest;
mod shard_range;
mod options;
mod opened;
mod buffers_file;
mod snapshot;
mod state_header;
mod state_reader;
mod store;
mod find;
mod saver;
mod survivors;
mod verify;
mod load;
mod writer;

pub use course::{Course, LossBin};
pub use error::CheckpointError;
pub use fault::Fault;
pub use find::Located;
pub use load::Load;
pub use manifest::{Manifest, Parameter};
pub use names::{CHECKPOINTS_FOLDER, MANIFEST_FILE, MODEL_FILE, Marker, step_name, step_of};
pub use opened::Checkpoint;
pub use options::{EMA_STATE, SaveOptions};
pub use run_state::{
    Best, EarlyStoppingState, EpochLossState, LeftOut, LossScalerState, RecentLosses, RunState, WhyLeftOut,
};
pub use saver::{Contents, Saved, Saver};
pub use shard_range::ShardRange;
pub use snapshot::SnapshotBuffers;
pub use state_header::StateShare;
pub use state_reader::StateReader;
pub use store::{CheckpointStore, Search, Skipped};
pub use writer::{SaveOutcome, Writer};
