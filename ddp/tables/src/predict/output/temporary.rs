//! Names and removal of unfinished output files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use ddp::storage::unfinished::{Unfinished, is_running, remove_left_over};
use ddp::storage::user_file::open_unlinked;

const ENDING: &str = ".predict";

/// Names of the temporary files of one command, next to its output.
#[derive(Debug, Clone)]
pub(super) struct Temporary {
    out: PathBuf,
    /// Process id of rank 0.
    process: u32,
    unfinished: Unfinished,
}

impl Temporary {
    pub(super) fn new(out: &Path, process: u32, unfinished: &Unfinished) -> Self {
        Temporary { out: out.to_owned(), process, unfinished: unfinished.clone() }
    }

    /// Creates one of the temporary files.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        self.unfinished.create(path)
    }

    /// Opens one of the temporary files of the ranks.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        open_unlinked(OpenOptions::new().read(true), path)
    }

    /// Renames the complete output to its final name.
    pub(super) fn complete(&self) -> io::Result<()> {
        self.unfinished.complete(&self.whole(), &self.out)
    }

    /// The output.
    #[cfg(not(feature = "parquet"))]
    pub(super) fn out(&self) -> &Path {
        &self.out
    }

    fn file(&self, name: &str) -> PathBuf {
        let out = self.out.file_name().unwrap_or_default().to_string_lossy();
        self.out.with_file_name(format!(".{out}.{name}.{}{ENDING}", self.process))
    }

    /// The output before it is complete.
    pub(super) fn whole(&self) -> PathBuf {
        self.file("whole")
    }

    /// The blocks of one of several ranks.
    pub(super) fn shard(&self, rank: usize) -> PathBuf {
        self.file(&format!("rank-{rank}"))
    }

    /// Removes files that killed processes left behind next to the output.
    pub(super) fn remove_left_over(&self) {
        let folder = self.out.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
        let begin = format!(".{}.", self.out.file_name().unwrap_or_default().to_string_lossy());
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let process = name
                .strip_prefix(&begin)
                .and_then(|rest| rest.strip_suffix(ENDING)?.rsplit('.').next()?.parse::<u32>().ok());
            if let Some(process) = process {
                remove_left_over(&entry.path(), || is_running(process));
            }
        }
    }

    /// Removes the files of this rank; rank 0 removes those of all ranks.
    pub(super) fn remove_all(&self, rank: usize, world_size: usize) {
        let ranks = if rank == 0 { 0..world_size } else { rank..rank + 1 };
        // The file may not have been created.
        ranks.for_each(|rank| self.unfinished.remove(&self.shard(rank)));
        if rank == 0 {
            self.unfinished.remove(&self.whole());
        }
    }
}
