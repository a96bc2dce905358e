//! Checkpoints on disk: what a run needs to go on from where it was.
//!
//! ```text
//! <out>/checkpoints/step-<N>/
//!     manifest.json                         what it is of and what belongs to it; written last
//!     model.safetensors                     the weights, as in a run's model file; by rank 0
//!     optimizer-00000-of-00002.safetensors  optimiser state of the pieces of parameters that a rank owns; one a rank with state
//! <out>/checkpoints/latest                  name of the newest; `best` likewise
//! <out>/checkpoints/.step-<N>-<k>.tmp/      while it is written
//! ```
//!
//! All ranks need to see the same folder.

pub mod checksum;
pub mod error;
mod exact;
pub mod manifest;
pub mod piece;
pub mod run_state;

pub use checksum::Checksum;
pub use error::{CheckpointError, Fault};
pub use manifest::{FileEntry, Manifest, Parameter};
pub use piece::Piece;
pub use run_state::{Best, EarlyStoppingState, EpochLossState, LossScalerState, RunState};
