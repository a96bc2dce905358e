//! Targets of log events that a program shows in a special way, and warnings about conditions that all ranks detect.

/// Target of progress lines, which a terminal with a bar does not show.
pub const PROGRESS: &str = "ddp::progress";
/// Target of events that only go to the rank's log file, because the terminal shows them in a different way.
pub const LOG_FILE: &str = "ddp::log_file";
/// Target of the response to a stop signal, after which no bar is drawn.
pub const STOPPING: &str = "ddp::stopping";

/// Warns about a condition that all ranks detect: rank 0 on the terminal, the others only in their log files.
pub fn warn_of_all_ranks(rank: usize, message: &str) {
    if rank == 0 {
        tracing::warn!("{message}");
    } else {
        tracing::warn!(target: LOG_FILE, "{message}");
    }
}
