//! Output of commands: the log, the progress bar, tables, results on stdout and the page of a run.

pub(crate) mod page;
mod failed_run;
mod live;
pub(crate) mod kubeflow;
pub(crate) mod prometheus;
pub mod log;
mod progress_text;
pub(crate) mod progress;
pub mod stdout;
pub(crate) mod tensorboard;

pub use failed_run::FailedRun;
