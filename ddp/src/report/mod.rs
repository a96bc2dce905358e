//! Reports of a run: events, metrics, and targets of log events.
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

mod error;
mod class_use;
mod eval_metrics;
mod event_stream;
pub mod times;
mod kept_lines;
pub mod metrics;
#[doc(hidden)]
pub mod notes;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod units;
#[doc(hidden)]
pub mod visible;

pub use class_use::ClassUse;
pub(crate) use class_use::NAMED_CLASSES;
pub use error::ReportError;
pub use eval_metrics::{ConfusionMatrix, EvalMetrics, EvalTables, NamedFigures, ROWS};
pub use event_stream::EventStream;
