//! Notes, warnings and spans of a run: from `tracing` to the terminal and to the log file of the rank.
//!
//! All rooms emit events; only the binary [installs](Log::install) their output. A step has no span unless one is requested.
//!
//! ```
//! use ddp_train::report::log::error_line;
//!
//! let line = error_line("the disk is full");
//! assert!(line.contains("error") && line.contains("the disk is full"), "{line}");
//! ```

mod line;
mod line_queue;
mod terminal;
mod rank_log;
mod setup;

pub use line::{LogFormat, LogOptions};
pub use setup::Log;
pub use terminal::{ShownBar, Terminal, error_line};
