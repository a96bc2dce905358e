//! What can be wrong with the folder that a run writes to, and with going on with the run in it.

use std::io;
use std::path::{Path, PathBuf};

use crate::storage::disk::is_out_of_inodes;

/// Why a run does not begin, or not go on, in a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// `--out` names something that is no folder.
    #[error(
        "output folder `{}`: a file of that name exists\n\
         hint: name another folder with --out",
        path.display()
    )]
    IsFile {
        /// The folder asked for.
        path: PathBuf,
    },
    /// `--out` names a folder with a run in it.
    #[error(
        "output folder `{}` already holds a run ({found})\n\
         hint: name another folder with --out, or give --resume auto to go on with that run, or --overwrite to lose it",
        path.display()
    )]
    HoldsRun {
        /// The folder.
        path: PathBuf,
        /// The file that shows it.
        found: &'static str,
    },
    /// `--resume` with something else than the checkpoint's run.
    #[error(
        "checkpoint `{}` is of another run than this:\n  {differences}\n\
         hint: take the run's own config (leave RUN.toml out), or start a new run with --init-from its model.safetensors; \
         `ddp-train train --help` lists what may differ",
        path.display()
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// Every difference, a line each.
        differences: String,
    },
    /// `--resume auto` without a folder to look in.
    #[error(
        "--resume auto looks for checkpoints in the output folder, and there is none\nhint: --out DIR, or --resume PATH"
    )]
    NoneToResume,
    /// A checkpoint that is not the newest of its run's folder.
    #[error(
        "`{}` holds checkpoints up to step {newest}, and the run would go on in it from step {step}\n\
         hint: name another folder with --out; --resume auto goes on from step {newest}",
        run.display()
    )]
    Behind {
        /// The run's folder.
        run: PathBuf,
        /// Step of the checkpoint that was named.
        step: u64,
        /// Step of the newest.
        newest: u64,
    },
    /// A finished run without checkpoints, which was to be gone on with.
    #[error(
        "output folder `{}` holds a run that has come to its end, and no checkpoint to go on from\n\
         hint: name another folder with --out, or give --overwrite instead of --resume to lose that run",
        path.display()
    )]
    Finished {
        /// The folder.
        path: PathBuf,
    },
    /// Another process that still runs writes to the folder.
    #[error(
        "output folder `{}` is in use by {holder}, which still runs (it holds {}/.lock)\n\
         hint: name another folder with --out, or wait until that run has ended",
        path.display(), path.display()
    )]
    Busy {
        /// The folder.
        path: PathBuf,
        /// "process 1234 on HOST", as that process wrote it.
        holder: String,
    },
    /// The folder can't be made or written to.
    #[error(
        "output folder `{}` can't be written: {source}\n\
         hint: {}, or name another folder with --out",
        path.display(), folder_hint(path, source)
    )]
    Unwritable {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

fn folder_hint(path: &Path, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull if is_out_of_inodes(path) => {
            "the disk holds as many files as it can (`df -i`): delete some"
        }
        io::ErrorKind::StorageFull => "the disk is full: free some space",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up: free some space",
        io::ErrorKind::ReadOnlyFilesystem => "that disk is read-only: mount it writable",
        io::ErrorKind::PermissionDenied => "check who may write there",
        io::ErrorKind::NotADirectory => "a part of its path is a file: check the spelling",
        _ => "check its path and the disk",
    }
}
