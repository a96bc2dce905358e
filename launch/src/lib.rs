//! The supervisor of `ddp-train launch`: starts the ranks of a training run, and restarts them if a rank or a host is lost.
//!
//! Data flow: hosts that respond -> number of ranks -> the launcher's command line -> its process group -> how it ended ->
//! decision: end, or restart from the newest valid checkpoint. The run folder shows whether the run is complete
//! ([`done.json`](ddp::run_folder::done)), not the launcher's status. The supervisor is outside the job: it starts mpirun and,
//! through it, this program, or the ranks themselves on this host, and knows the run only by its folder.

#![forbid(unsafe_code)]

mod decision;
mod error;
mod faulty_gpus;
mod hosts;
mod output;
mod processes;
mod run_watch;
mod messages;
mod starter;
mod job;
mod training;
mod supervisor;

pub use error::LaunchError;
pub use output::JOINED;
pub use starter::LauncherChoice;
pub use supervisor::{JobOptions, refuse_launcher, supervise};
pub use training::Training;
