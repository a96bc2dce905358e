//! What can go wrong with checkpoints.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::absence::Absence;
use super::fault::{Fault, Newest, Room};
use super::names::folder_of;
use crate::storage::disk::is_out_of_inodes;

/// An error of saving, finding or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A checkpoint could not be written; those before it are as they were.
    #[error(
        "the checkpoint of step {step} was not saved: can't {action} `{}`: {source}{room}\n{newest}\nhint: {}",
        path.display(), write_hint(path, source)
    )]
    Save {
        /// Its step.
        step: u64,
        /// What was tried, such as "write".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
        /// What was needed and what is free.
        room: Room,
        /// What is there to go on from.
        newest: Newest,
    },
    /// Weights that went astray: what could go on from them is lost.
    #[error(
        "the checkpoint of step {step} was not saved: its weights are not all finite\n{newest}\n\
         hint: a smaller `optimizer.lr`, `train.clip_grad_norm = 1.0`, or `data.normalize = \"standard\"`"
    )]
    NotFinite {
        /// Its step.
        step: u64,
        /// What is there to go on from.
        newest: Newest,
    },
    /// Ranks that should have written their part did not.
    #[error(
        "the checkpoint of step {step} was not saved: nothing came from {ranks} for {:.0} s\n{newest}\n\
         hint: is `{}` a folder that all hosts share?", waited.as_secs_f64(), folder.display()
    )]
    RanksMissing {
        /// Its step.
        step: u64,
        /// "rank 3" or "ranks 1, 3".
        ranks: String,
        /// How long nothing came.
        waited: Duration,
        /// Where the checkpoints are.
        folder: PathBuf,
        /// What is there to go on from.
        newest: Newest,
    },
    /// Another rank could not write its part.
    #[error("the checkpoint of step {step} was not saved: rank {rank}: {reason}\n{newest}")]
    RankFailed {
        /// Its step.
        step: u64,
        /// The rank.
        rank: usize,
        /// What it said.
        reason: String,
        /// What is there to go on from.
        newest: Newest,
    },
    /// What was just written reads back as something else.
    #[error(
        "the checkpoint of step {step} does not read back as it was written: {fault}; older ones were kept\n\
         hint: the disk or the memory is faulty, or someone else writes there"
    )]
    ReadBack {
        /// Its step.
        step: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// The thread that writes can't be started, or has died.
    #[error("no thread to write checkpoints: {reason}\nhint: `checkpoint.async = false` needs none")]
    Thread {
        /// Why.
        reason: String,
    },
    /// A folder of checkpoints can't be made ready.
    #[error("can't {action} `{}`: {source}\nhint: {}", path.display(), folder_hint(action, path, source))]
    Folder {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A checkpoint that can't be used.
    #[error(
        "checkpoint `{}` can't be used: {fault}\nhint: `ddp-train checkpoint verify {}` tells which can",
        path.display(), folder_of(path).display()
    )]
    Damaged {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// No checkpoint where one was asked for.
    #[error(
        "no checkpoint at `{}`: {}\nhint: {}", path.display(), Absence::of(path), Absence::of(path).hint(path)
    )]
    NotFound {
        /// What was named.
        path: PathBuf,
    },
    /// One checkpoint where a folder of them is needed.
    #[error("`{}` is one checkpoint\nhint: name the folder that it is in, or the run's", path.display())]
    OneOnly {
        /// What was named.
        path: PathBuf,
    },
    /// Checkpoints, and none that can be used.
    #[error(
        "none of the checkpoints in `{}` can be used:\n  {skipped}\n\
         hint: mend what is told of them (permissions, the disk), copy whole ones there, or start anew with another --out",
        path.display()
    )]
    NoneValid {
        /// Their folder.
        path: PathBuf,
        /// Each with what is wrong with it, a line each.
        skipped: String,
    },
    /// Optimiser state that no file holds.
    #[error("checkpoint `{}` holds no \"{state}\" of elements {start} to {end} of {param}", path.display())]
    Gap {
        /// The checkpoint.
        path: PathBuf,
        /// Name of the state.
        state: String,
        /// Name of the parameter.
        param: String,
        /// First element that is missing.
        start: usize,
        /// The element behind the last that is missing.
        end: usize,
    },
    /// A model of other parameters.
    #[error("checkpoint `{}` is of another model:\n  {differences}\nhint: compare `model` in the configs", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// Every difference, a line each.
        differences: String,
    },
    /// Weights that the checkpoint does not hold.
    #[error("checkpoint `{}` holds no EMA of the weights\nhint: `--weights model`", path.display())]
    NoEma {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A file that is there already.
    #[error("`{}` is there already\nhint: name another file, or give --overwrite", path.display())]
    OutExists {
        /// The file.
        path: PathBuf,
    },
    /// Fewer checkpoints than were asked for.
    #[error("`{}` holds {got} checkpoints that can be used, expected {expected}\nhint: {}", path.display(), too_few_hint(*got))]
    TooFew {
        /// Where they were sought.
        path: PathBuf,
        /// How many there are.
        got: usize,
        /// How many were asked for.
        expected: usize,
    },
    /// A run that may go on from what would be deleted, and deletes old ones itself.
    #[error(
        "`{}` is the folder of a run that goes on: {holder} writes to it (it holds {}/.lock), and nothing was deleted\n\
         hint: prune when it has ended; it deletes old ones itself, down to `checkpoint.keep`; --dry-run looks at any time",
        path.display(), path.display()
    )]
    RunGoesOn {
        /// The run's folder.
        path: PathBuf,
        /// "process 1234 on HOST", as that process wrote it.
        holder: String,
    },
    /// The newest of one run, and paths of several things.
    #[error(
        "--last takes the newest checkpoints of one run, and {n} paths are given\n\
         hint: one run's folder with --last, or each checkpoint's folder without it"
    )]
    LastOfSeveral {
        /// How many.
        n: usize,
    },
    /// A checkpoint that would count twice.
    #[error("`{}` is named twice\nhint: name each checkpoint once", path.display())]
    Twice {
        /// The checkpoint.
        path: PathBuf,
    },
    /// One checkpoint where several are averaged.
    #[error(
        "the mean of one checkpoint, `{}`, is what it holds\n\
         hint: `--last K` takes the K newest of a run, 2 or more; `ddp-train checkpoint export` writes the weights of one",
        path.display()
    )]
    MeanOfOne {
        /// The checkpoint.
        path: PathBuf,
    },
    /// `verify` found something.
    #[error(
        "{n_bad} of {n} checkpoints can't be trusted\n\
         hint: --resume passes over what is BROKEN, down to the newest one that is whole; copy whole ones there if you have some"
    )]
    VerifyFailed {
        /// How many are bad.
        n_bad: usize,
        /// How many were looked at.
        n: usize,
    },
}

impl CheckpointError {
    /// Whether it is a failure of the run, and not of what the user named.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            CheckpointError::Save { .. }
                | CheckpointError::RanksMissing { .. }
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
        0 | 1 => "`ddp-train checkpoint ls` shows which there are, and what is wrong with them".to_owned(),
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
            "the disk holds as many files as it can (`df -i`): delete some, or keep fewer with `checkpoint.keep`"
        }
        io::ErrorKind::StorageFull => {
            "the disk is full: free some space, or keep fewer with `checkpoint.keep`"
        }
        io::ErrorKind::QuotaExceeded => {
            "the disk quota is used up: free some space, or keep fewer with `checkpoint.keep`"
        }
        io::ErrorKind::ReadOnlyFilesystem => "that disk is read-only: mount it writable",
        io::ErrorKind::PermissionDenied => "check who may write there",
        _ => "check permissions and the disk",
    }
}
