//! The supervisor of `ddp-train launch`: starts the ranks of a training run, and starts them again when a rank or a host is lost.
//!
//! hosts that answer -> number of ranks -> launcher's command line -> its process group -> how it ended -> decision: the end, or
//! the same again from the newest valid checkpoint. Whether the run is complete is read from its folder
//! ([`done.json`](ddp::run_folder::done)), not from the launcher's status. The supervisor is outside the job: it starts mpirun
//! and this program again, and knows the run by its folder only.

#![forbid(unsafe_code)]

mod batches;
mod decision;
mod error;
mod hosts;
mod messages;
mod probe;
mod processes;
mod run_watch;
mod starter;
mod stop_requests;
mod job;
mod training;
mod supervisor;

pub use error::LaunchError;
pub use supervisor::{JobOptions, refuse_launcher, supervise};
pub use training::Training;
