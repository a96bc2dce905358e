//! Targets of events that a program shows in another way than a line of its log, and warnings of what all ranks see.

/// Lines of progress, which a terminal with a bar does not show.
pub const PROGRESS: &str = "ddp::progress";
/// Events for the rank's log file alone: the terminal shows them in another way.
pub const LOG_FILE: &str = "ddp::log_file";
/// The answer to a stop signal, after which a bar is no longer drawn.
pub const STOPPING: &str = "ddp::stopping";

/// Warns of what all ranks see: rank 0 on the terminal, the others in their log files only.
pub fn warn_of_all_ranks(rank: usize, message: &str) {
    if rank == 0 {
        tracing::warn!("{message}");
    } else {
        tracing::warn!(target: LOG_FILE, "{message}");
    }
}
