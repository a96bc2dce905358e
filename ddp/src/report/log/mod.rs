//! Notes, warnings and spans of a run: from `tracing` to the terminal and to the rank's own log file.
//!
//! All rooms emit events; only the binary [installs](Log::install) what shows them. A step has no span unless one was requested.
//!
//! ```
//! use ddp::report::log::error_line;
//!
//! let line = error_line("the disk is full");
//! assert!(line.contains("error") && line.contains("the disk is full"), "{line}");
//! ```

mod fields;
mod line;
mod line_queue;
mod options;
mod rank_log;
mod rotating_file;
mod setup;
mod terminal;

pub use options::{LogFormat, LogOptions};
pub use setup::Log;
pub use terminal::{ShownBar, Terminal, error_line};

/// Target of the lines of progress, which a terminal with a bar does not show.
pub(crate) const PROGRESS: &str = "ddp::progress";
/// Target of events for the rank's log file alone: the terminal shows them in another way.
pub(crate) const LOG_FILE: &str = "ddp::log_file";
/// Target of the answer to a stop signal, after which the bar is no longer drawn.
pub(crate) const STOPPING: &str = "ddp::stopping";

/// Warns of what all ranks see: rank 0 on the terminal, the others in their log files only.
pub(crate) fn warn_of_all_ranks(rank: usize, message: &str) {
    if rank == 0 {
        tracing::warn!("{message}");
    } else {
        tracing::warn!(target: LOG_FILE, "{message}");
    }
}
