//! Output of commands: events of a run, the log, the progress bar, tables and results on stdout.

mod bar;
mod error;
mod eval_metrics;
mod event_stream;
mod failed_run;
pub mod log;
pub mod metrics;
pub(crate) mod process;
pub(crate) mod progress;
pub mod stdout;
pub(crate) mod table;
pub(crate) mod units;

pub use error::ReportError;
pub use eval_metrics::{ConfusionMatrix, EvalMetrics, EvalTables, NamedFigures, ROWS};
pub use event_stream::EventStream;
pub use failed_run::FailedRun;
