//! Output of commands: events of a run, the log, the progress bar, tables and results on stdout.
//!
//! ```
//! use ddp::report::metrics::{Event, MetricsSink, StopEvent};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("metrics.jsonl");
//! let mut metrics = MetricsSink::create(&path, None)?;
//! metrics.write(&Event::Stop(StopEvent { step: 3, reason: "SIGTERM".into() }))?;
//! assert_eq!(std::fs::read_to_string(path)?, "{\"event\":\"stop\",\"step\":3,\"reason\":\"SIGTERM\"}\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub(crate) mod visible;

pub use error::ReportError;
pub use eval_metrics::{ConfusionMatrix, EvalMetrics, EvalTables, NamedFigures, ROWS};
pub use event_stream::EventStream;
pub use failed_run::FailedRun;
