//! Coordination of a save through files: each rank leaves a note in the checkpoint's folder once its files are on disk, and
//! rank 0 waits for the notes of all ranks.
//!
//! It avoids MPI: the writer threads are not the training threads, and MPI may support only one thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde::{Deserialize, Serialize};

use crate::storage::disk::{Disk, DiskError, replace};
use crate::storage::fault::FileEntry;
use crate::storage::user_file::read_regular;

/// Polling interval, at first and later.
const POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// Interval between checks of the sizes of the other ranks' files.
const LOOK_AT_SIZES: Duration = Duration::from_secs(1);

/// Largest note that is read: it names a few files.
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// A rank's note about its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Note {
    /// Its files are on disk.
    Done(Vec<FileEntry>),
    /// It could not write them.
    Failed(String),
}

/// Reason why files are missing.
#[derive(Debug)]
pub(super) enum Missing {
    /// These ranks wrote nothing for this long.
    Silent { ranks: Vec<usize>, waited: Duration },
    /// A rank could not write its files.
    Failed { rank: usize, reason: String },
    /// This process is ending, or a rank is lost.
    Abandoned,
}

fn note_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!(".rank-{rank:05}.json"))
}

/// Leaves the note of this rank; if a failure note can't be written, an empty file, which takes no space, stands for it.
pub(super) fn leave_note(disk: &dyn Disk, folder: &Path, rank: usize, note: &Note) -> Result<(), DiskError> {
    let text = serde_json::to_vec(note).expect("names and numbers are plain text");
    let left = replace(disk, &note_path(folder, rank), &text);
    if let (Err(_), Note::Failed(_)) = (&left, note) {
        // If this fails too, rank 0 runs into its timeout.
        let _ = disk.create(&failed_path(folder, rank));
    }
    left
}

fn failed_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!(".rank-{rank:05}.failed"))
}

/// Waits for the notes of ranks `1..n_savers` and returns their files by rank. While files in the folder still grow, no rank
/// counts as silent.
pub(super) fn wait(
    folder: &Path,
    n_savers: usize,
    timeout: Duration,
    is_abandoned: &dyn Fn() -> bool,
) -> Result<Vec<FileEntry>, Missing> {
    let mut notes = BTreeMap::new();
    let (mut pause, mut last_sign) = (POLL[0], Instant::now());
    let (mut looked, mut size) = (Instant::now(), 0);
    loop {
        for rank in 1..n_savers {
            if notes.contains_key(&rank) {
                continue;
            }
            match read_note(folder, rank) {
                Some(Note::Done(files)) => {
                    notes.insert(rank, files);
                    last_sign = Instant::now();
                }
                Some(Note::Failed(reason)) => return Err(Missing::Failed { rank, reason }),
                None => {}
            }
        }
        if notes.len() + 1 >= n_savers {
            return Ok(notes.into_values().flatten().collect());
        }
        let silent = || (1..n_savers).filter(|rank| !notes.contains_key(rank)).collect();
        if is_abandoned() {
            return Err(Missing::Abandoned);
        }
        if looked.elapsed() >= LOOK_AT_SIZES.min(timeout / 4) {
            let now = size_of_files(folder).unwrap_or(size);
            if now != size {
                (size, last_sign) = (now, Instant::now());
            }
            looked = Instant::now();
        }
        if last_sign.elapsed() >= timeout {
            return Err(Missing::Silent { ranks: silent(), waited: last_sign.elapsed() });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(POLL[1]);
    }
}

pub(super) fn read_note(folder: &Path, rank: usize) -> Option<Note> {
    let note = read_regular(&note_path(folder, rank), MAX_NOTE_BYTES)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let silent = || Note::Failed("it could not write the reason".to_owned());
    note.or_else(|| failed_path(folder, rank).exists().then(silent))
}

/// Removes the notes of ranks `1..n_savers`.
pub(super) fn remove_notes(disk: &dyn Disk, folder: &Path, n_savers: usize) -> Result<(), DiskError> {
    for rank in 1..n_savers {
        let path = note_path(folder, rank);
        disk.remove_file(&path).map_err(crate::storage::disk::at("remove", &path))?;
    }
    Ok(())
}

fn size_of_files(folder: &Path) -> io::Result<u64> {
    let lengths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len()));
    lengths.sum()
}

/// "rank 3", or "ranks 1, 3 and 4".
pub(super) fn list_ranks(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        [.., last] => {
            let first: Vec<_> = ranks[..ranks.len() - 1].iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
        [] => "no rank".to_owned(),
    }
}
