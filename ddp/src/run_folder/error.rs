//! Errors of the run folder and of resuming the run in it.

use std::io;
use std::path::{Path, PathBuf};

use crate::exit_code;
use crate::storage::write_error::{FILE_TOO_LARGE, is_out_of_inodes};

/// The reason why a run cannot start or resume in a folder.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum FolderError {
    /// `--out` names a file.
    #[error("output folder `{}`: a file of that name exists", path.display())]
    #[diagnostic(help("choose another folder with --out"))]
    IsFile { path: PathBuf },
    /// `--out` names a folder that holds a run.
    #[error("output folder `{}` already holds a run ({found})", path.display())]
    #[diagnostic(help(
        "choose another folder with --out, resume that run with --resume auto, or delete it with --overwrite"
    ))]
    HoldsRun {
        path: PathBuf,
        /// A file of that run.
        found: &'static str,
    },
    /// `--resume` names a checkpoint of a run with a different config or different data.
    #[error("checkpoint `{}` belongs to a different run:\n  {differences}", path.display())]
    #[diagnostic(help(
        "use the run's own config, without these settings or a RUN.toml, or start a new run with --init-from its model.safetensors; \
         `ddp-train train --help` lists the keys that may differ"
    ))]
    OtherRun {
        path: PathBuf,
        /// The differences, one per line.
        differences: String,
    },
    /// The data changed since the checkpoint was written.
    #[error("checkpoint `{}` was trained on other data:\n  {differences}", path.display())]
    #[diagnostic(help(
        "restore the data, or name the run's data with `--set data.train=PATH` and `--eval PATH`; to continue on changed data, start a \
         new run with --init-from and the folder of this one"
    ))]
    OtherData {
        path: PathBuf,
        /// The differences, one per line.
        differences: String,
    },
    /// `--resume auto` was given without an output folder.
    #[error("--resume auto needs the output folder of the run to find checkpoints")]
    #[diagnostic(help("add --out DIR, or name a checkpoint with --resume PATH"))]
    NoneToResume,
    /// The checkpoint is not the newest one in its run folder.
    #[error(
        "`{}` holds checkpoints up to step {newest}, but the run would resume there from step {step}", run.display()
    )]
    #[diagnostic(help("choose another folder with --out, or resume from step {newest} with --resume auto"))]
    Behind {
        run: PathBuf,
        /// Step of the named checkpoint.
        step: u64,
        /// Step of the newest checkpoint.
        newest: u64,
    },
    /// A checkpoint outside of a run's folder.
    #[error("`{}` lies in no folder of a run", checkpoint.display())]
    #[diagnostic(help("name the folder in which the run continues with --out"))]
    NoRun {
        /// Its folder.
        checkpoint: PathBuf,
    },
    /// A run that looks for its newest checkpoint by itself found that another run has saved a later one, or its model, meanwhile.
    #[error("output folder `{}`: another run has saved its state there while this one started, which deletes nothing", path.display())]
    #[diagnostic(help("start the same command again: it continues from what that run has saved"))]
    Continued { path: PathBuf },
    /// The run to resume is finished and has no checkpoints.
    #[error("output folder `{}` holds a finished run and no checkpoint to resume from", path.display())]
    #[diagnostic(help(
        "choose another folder with --out, or give --overwrite instead of --resume to delete that run"
    ))]
    Finished { path: PathBuf },
    /// The folder of the run's checkpoints is empty, though the run has saved some.
    #[error("`{}` is empty, and the run has saved checkpoints there", path.display())]
    #[diagnostic(help(
        "mount the disk that holds them; if they were deleted, remove the empty folder too, and the run starts over"
    ))]
    CheckpointsGone { path: PathBuf },
    /// Another running process owns the folder.
    #[error(
        "output folder `{}` is in use by {holder}, which is still running (it holds {}/.lock)",
        path.display(),
        path.display()
    )]
    #[diagnostic(help("choose another folder with --out, or wait for that run to end"))]
    Busy {
        path: PathBuf,
        /// Owner of the lock, such as "process 1234 on HOST".
        holder: String,
    },
    /// The folder was deleted or moved while the run wrote into it.
    #[error(
        "output folder `{}` was deleted or moved during the run: its config, metrics and earlier checkpoints are not there",
        path.display()
    )]
    #[diagnostic(help(
        "the model was saved as {}/model.safetensors; keep the folder until the run ends", path.display()
    ))]
    Deleted { path: PathBuf },
    /// The run lost its folder during training.
    #[error("output folder `{}`: {loss}", path.display())]
    #[diagnostic(forward(loss))]
    Lost { path: PathBuf, loss: Loss },
    /// The file system of the folder lacks a call that a run needs.
    #[error("output folder `{}`: its file system can't {call}: {source}", path.display())]
    #[diagnostic(help(
        "name a folder on a local disk or a shared file system with --out, and copy it to this one (such as a bucket) when the run has \
         ended"
    ))]
    Unsuited {
        path: PathBuf,
        /// The call in words, such as "rename a folder".
        call: &'static str,
        source: io::Error,
    },
    /// A folder in the run's folder is a link that another user made.
    #[error("`{}` is a link of another user (uid {owner}): what is written and deleted there would be elsewhere", path.display())]
    #[diagnostic(help(
        "remove the link, or make it your own: `ln -sfn \"$(readlink '{0}')\" '{0}'`", path.display()
    ))]
    ForeignLink {
        path: PathBuf,
        /// User of the link.
        owner: u32,
    },
    /// The system refused to start the thread that keeps the folder.
    #[error("output folder `{}` can't be kept: {source}", path.display())]
    #[diagnostic(help("raise that limit, or lower --threads"))]
    Thread { path: PathBuf, source: io::Error },
    /// The folder can't be created or written.
    #[error("output folder `{}` can't be written: {source}", path.display())]
    #[diagnostic(help("{}, or choose another folder with --out", folder_hint(path, source)))]
    Unwritable { path: PathBuf, source: io::Error },
}

impl FolderError {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unsuited { .. } | Self::Unwritable { .. } => exit_code::IO,
            Self::Continued { .. } => exit_code::RESTARTABLE,
            Self::Deleted { .. } | Self::Lost { .. } | Self::Thread { .. } => exit_code::FAILED,
            _ => exit_code::USAGE,
        }
    }
}

/// Way in which a run lost its folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub enum Loss {
    /// The folder or its lock was deleted, moved or replaced.
    #[error(
        "the folder or its file .lock was deleted, moved or replaced during the run, which ends, since its results would be lost"
    )]
    #[diagnostic(help(
        "keep the folder until the run ends; where it was moved to, --resume auto continues from its newest checkpoint"
    ))]
    Deleted,
    /// Another process owns the folder.
    #[error("{by} took the folder over during this run, which ends, so that no two runs write there")]
    #[diagnostic(help(
        "this host was suspended, or could not reach the file system for seconds; let the other run end"
    ))]
    TakenOver {
        /// The owner, such as "process 1234 on HOST".
        by: String,
    },
}

fn folder_hint(path: &Path, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull if is_out_of_inodes(path) => {
            "the disk has no inodes left (`df -i`): delete some files"
        }
        io::ErrorKind::StorageFull => "the disk is full: free some space",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up: free some space",
        io::ErrorKind::FileTooLarge => FILE_TOO_LARGE,
        io::ErrorKind::ReadOnlyFilesystem => "the disk is mounted read-only: remount it writable",
        io::ErrorKind::PermissionDenied => "check the permissions",
        io::ErrorKind::NotADirectory => "a component of the path is a file: check the spelling",
        _ => "check the path and the disk",
    }
}
