//! Errors of checkpoints.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::absence::Absence;
use super::fault::{Fault, Newest, Room};
use super::names::folder_of;
use crate::config::AGAINST_DIVERGENCE;
use crate::exit_code;
use crate::report::visible::shell_word;
use crate::storage::write_error::{FILE_TOO_LARGE, is_out_of_inodes};

/// An error of saving, finding or reading a checkpoint.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum CheckpointError {
    /// Writing a checkpoint failed; older checkpoints are unchanged.
    #[error(
        "the checkpoint of step {step} was not saved: can't {action} `{}`: {source}{room}\n{newest}", path.display()
    )]
    #[diagnostic(help("{}", write_hint(path, source)))]
    Save {
        step: u64,
        /// The failed action, such as "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
        /// Space needed and free.
        room: Room,
        /// The newest checkpoint to resume from.
        newest: Newest,
    },
    /// The weights are not finite, so nothing could resume from them.
    #[error("the checkpoint of step {step} was not saved: its weights are not all finite\n{newest}")]
    #[diagnostic(help("{AGAINST_DIVERGENCE}"))]
    NotFinite {
        step: u64,
        /// The newest checkpoint to resume from.
        newest: Newest,
    },
    /// Some ranks did not write their files in time.
    #[error(
        "the checkpoint of step {step} was not saved: {ranks} wrote nothing for {:.0} s\n{newest}",
        waited.as_secs_f64()
    )]
    #[diagnostic(help("check that `{}` is a folder that all hosts share", folder.display()))]
    RanksMissing {
        step: u64,
        /// "rank 3" or "ranks 1, 3".
        ranks: String,
        /// Time without progress.
        waited: Duration,
        /// Where the checkpoints are.
        folder: PathBuf,
        /// The newest checkpoint to resume from.
        newest: Newest,
    },
    /// The process ends, or a rank is lost, before all ranks have written their files.
    #[error(
        "the checkpoint of step {step} was not completed: the run ended before all ranks had written their files\n{newest}"
    )]
    Abandoned {
        step: u64,
        /// The newest checkpoint to resume from.
        newest: Newest,
    },
    /// Another rank failed to write its files.
    #[error("the checkpoint of step {step} was not saved: rank {rank}: {reason}\n{newest}")]
    RankFailed {
        step: u64,
        rank: usize,
        reason: String,
        /// The newest checkpoint to resume from.
        newest: Newest,
    },
    /// A checkpoint that was just written failed verification.
    #[error(
        "the checkpoint of step {step} failed verification after it was written: {fault}; older ones were kept"
    )]
    #[diagnostic(help("check the disk and the memory for faults, and that nothing else writes there"))]
    ReadBack { step: u64, fault: Fault },
    /// The writer thread can't be started, or has ended.
    #[error("the thread that writes checkpoints is not running: {reason}")]
    #[diagnostic(help("`checkpoint.async = false` needs no thread"))]
    Thread { reason: String },
    /// The folder of checkpoints can't be prepared.
    #[error("can't {action} `{}`: {source}", path.display())]
    #[diagnostic(help("{}", folder_hint(action, path, source)))]
    Folder {
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// A checkpoint that can't be used.
    #[error("checkpoint `{}` can't be used: {fault}", path.display())]
    #[diagnostic(help(
        "`ddp-train checkpoint verify {}` lists the usable ones",
        shell_word(folder_of(path))
    ))]
    Damaged { path: PathBuf, fault: Fault },
    /// No checkpoint at the given path.
    #[error("no checkpoint at `{}`: {}", path.display(), Absence::of(path))]
    #[diagnostic(help("{}", Absence::of(path).hint(path)))]
    NotFound { path: PathBuf },
    /// A single checkpoint where a folder of checkpoints is needed.
    #[error("`{}` is a single checkpoint, expected a folder of checkpoints", path.display())]
    #[diagnostic(help("name the folder that it is in, or the run's folder"))]
    OneOnly { path: PathBuf },
    /// None of the checkpoints is usable.
    #[error("none of the checkpoints in `{}` can be used:\n  {skipped}", path.display())]
    #[diagnostic(help(
        "fix the problems listed above (permissions, the disk), copy intact checkpoints there, or start a new run with another --out"
    ))]
    NoneValid {
        path: PathBuf,
        /// Each checkpoint and its fault, one per line.
        skipped: String,
    },
    /// Optimizer state that is missing from all files.
    #[error("checkpoint `{}` lacks \"{state}\" for elements {start} to {end} of {param}", path.display())]
    Gap {
        path: PathBuf,
        state: String,
        param: String,
        /// First element that is missing.
        start: usize,
        /// End of the missing elements, exclusive.
        end: usize,
    },
    /// The model's parameters differ from the checkpoint's.
    #[error("checkpoint `{}` belongs to a different model:\n  {differences}", path.display())]
    #[diagnostic(help("compare `model` in the configs"))]
    OtherModel {
        path: PathBuf,
        /// Every difference, one per line.
        differences: String,
    },
    /// The checkpoint holds no averaged weights.
    #[error("checkpoint `{}` holds no EMA of the weights", path.display())]
    #[diagnostic(help("`--weights model`"))]
    NoEma { path: PathBuf },
    /// The output file already exists.
    #[error("`{}` already exists", path.display())]
    #[diagnostic(help("name another file, or pass --overwrite"))]
    OutExists { path: PathBuf },
    /// The output file is one of a checkpoint.
    #[error("`{}` belongs to a checkpoint, which could not be used any more", path.display())]
    #[diagnostic(help("name a file outside of the checkpoint's folder"))]
    OutOfCheckpoint { path: PathBuf },
    /// Fewer usable checkpoints than requested.
    #[error("`{}` holds {got} usable checkpoint{}, expected {expected}", path.display(), if *got == 1 { "" } else { "s" })]
    #[diagnostic(help("{}", too_few_hint(*got)))]
    TooFew {
        path: PathBuf,
        /// Usable checkpoints found.
        got: usize,
        /// Checkpoints requested.
        expected: usize,
    },
    /// The run is still in progress and prunes its own checkpoints.
    #[error(
        "`{}` is the folder of a run in progress: {holder} holds {}/.lock; nothing was deleted",
        path.display(),
        path.display()
    )]
    #[diagnostic(help(
        "prune after the run has ended; it deletes old checkpoints itself, down to `checkpoint.keep`; --dry-run works at any time"
    ))]
    RunInProgress {
        path: PathBuf,
        /// "process 1234 on HOST", as that process wrote it.
        holder: String,
    },
    /// `--last` with several paths.
    #[error("--last takes the newest checkpoints of one run, got {n} paths")]
    #[diagnostic(help("pass one run's folder with --last, or each checkpoint's folder without it"))]
    LastOfSeveral {
        /// Paths given.
        n: usize,
    },
    /// The same checkpoint given twice.
    #[error("`{}` is named twice", path.display())]
    #[diagnostic(help("name each checkpoint once"))]
    Twice { path: PathBuf },
    /// A single checkpoint to average.
    #[error("averaging needs at least two checkpoints, got one: `{}`", path.display())]
    #[diagnostic(help(
        "`--last K` averages the K newest of a run, 2 or more; `ddp-train checkpoint export` writes the weights of one"
    ))]
    TooFewToAverage { path: PathBuf },
    /// `verify` found bad checkpoints.
    #[error("{n_bad} of {n} checkpoints failed verification")]
    #[diagnostic(help(
        "--resume skips BROKEN checkpoints and uses the newest intact one; copy intact ones there if you have some"
    ))]
    VerifyFailed {
        /// Bad checkpoints.
        n_bad: usize,
        /// Checkpoints verified.
        n: usize,
    },
}

impl CheckpointError {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Save { .. } | Self::Folder { .. } | Self::ReadBack { .. } | Self::RankFailed { .. } => {
                exit_code::IO
            }
            _ if self.is_failure() => exit_code::FAILED,
            _ => exit_code::USAGE,
        }
    }

    /// Whether the run failed, rather than the user's input being wrong.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            CheckpointError::Save { .. }
                | CheckpointError::RanksMissing { .. }
                | CheckpointError::Abandoned { .. }
                | CheckpointError::RankFailed { .. }
                | CheckpointError::ReadBack { .. }
                | CheckpointError::Thread { .. }
                | CheckpointError::Folder { .. }
                | CheckpointError::VerifyFailed { .. }
        )
    }
}

fn too_few_hint(got: usize) -> String {
    match got {
        0 | 1 => "`ddp-train checkpoint ls` shows all checkpoints and what is wrong with them".to_owned(),
        got => format!("`--last {got}`"),
    }
}

fn folder_hint(action: &str, path: &Path, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied if action == "read" => "check who may read there",
        _ => write_hint(path, source),
    }
}

fn write_hint(path: &Path, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull if is_out_of_inodes(path) => {
            "the disk has no free inodes (`df -i`): delete some files, or keep fewer checkpoints with `checkpoint.keep`"
        }
        io::ErrorKind::StorageFull => {
            "the disk is full: free some space, or keep fewer checkpoints with `checkpoint.keep`"
        }
        io::ErrorKind::QuotaExceeded => {
            "the disk quota is used up: free some space, or keep fewer checkpoints with `checkpoint.keep`"
        }
        io::ErrorKind::FileTooLarge => FILE_TOO_LARGE,
        io::ErrorKind::ReadOnlyFilesystem => "that disk is read-only: mount it writable",
        io::ErrorKind::PermissionDenied => "check who may write there",
        _ => "check permissions and the disk",
    }
}
