//! Output of commands: the log, the progress bar, tables and results on stdout.

mod failed_run;
pub mod log;
pub(crate) mod progress;
pub mod stdout;
pub(crate) mod table;

pub use failed_run::FailedRun;
