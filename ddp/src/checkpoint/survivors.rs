//! The save by the ranks that are left after a loss, alone or together, in folders of their own.
//!
//! Where none of them has all weights, each passes its shards of them on in a file of the checkpoint's folder.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::error::CheckpointError;
use super::gather::{self, Missing, Note};
use super::options::SaveOptions;
use super::saver::{FIRST_OF_SURVIVORS, Saver};
use super::store::CheckpointStore;
use crate::storage::disk::{at, replace};
use crate::storage::user_file::read_regular;

/// Time between two looks for the weights of the others.
const POLL: Duration = Duration::from_millis(2);
/// Bytes of the bounds of a shard.
const BOUNDS: usize = 2 * size_of::<u64>();

impl Saver {
    /// The saver of one of the ranks that are left: `options` has its place among them as its rank.
    ///
    /// - `lead`: the rank in the run of the one that completes the checkpoint
    pub fn for_survivors(store: CheckpointStore, options: SaveOptions, lead: usize) -> Self {
        Saver::from_attempt(store, options, FIRST_OF_SURVIVORS + lead as u64)
    }

    fn weights_path(&self, step: u64, rank: usize) -> PathBuf {
        self.temp_folder(step).join(format!(".weights-{rank:05}"))
    }

    /// Passes these shards of the weights on to the rank that completes the checkpoint of `step`.
    ///
    /// # Errors
    /// [`CheckpointError::Save`], which that rank is told.
    pub fn pass_on_weights(
        &self,
        step: u64,
        weights: &[f32],
        shards: &[Range<usize>],
    ) -> Result<(), CheckpointError> {
        let (temp, path) = (self.temp_folder(step), self.weights_path(step, self.options().rank));
        let bytes = bytes_of(weights, shards);
        let disk = self.store().disk();
        let made = disk.create_dir_all(&temp).map_err(at("make", &temp));
        let written = made.and_then(|()| replace(disk, &path, &bytes));
        written
            .map_err(|error| self.failed(step, bytes.len() as u64, error))
            .inspect_err(|error| self.give_up(&temp, error))
    }

    /// Completes `weights` by the shards that the other ranks pass on.
    ///
    /// # Errors
    /// [`CheckpointError::Save`] if they do not come in time, or cannot be read; [`CheckpointError::RankFailed`] with the error of one that
    /// could not write them; [`CheckpointError::Abandoned`] if one is lost.
    pub fn collect_weights(&self, step: u64, weights: &mut [f32]) -> Result<(), CheckpointError> {
        let since = Instant::now();
        for rank in 1..self.options().n_savers {
            let path = self.weights_path(step, rank);
            let failed =
                |error: io::Error| self.failed(step, size_of_val(weights) as u64, at("read", &path)(error));
            let most = size_of_val(weights) as u64 + (BOUNDS * weights.len()) as u64;
            while !path.exists() {
                if let Some(Note::Failed(reason)) = gather::read_note(&self.temp_folder(step), rank) {
                    return Err(self.missing(step, Missing::Failed { rank, reason }));
                }
                if self.is_abandoned() {
                    return Err(self.missing(step, Missing::Abandoned));
                }
                if since.elapsed() >= self.options().rank_timeout {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                thread::sleep(POLL);
            }
            let bytes = read_regular(&path, most).map_err(failed)?;
            if !take_shards(&bytes, weights) {
                return Err(self.failed(step, 0, at("read", &path)(io::ErrorKind::InvalidData.into())));
            }
            let removed = self.store().disk().remove_file(&path).map_err(at("remove", &path));
            removed.map_err(|error| self.failed(step, 0, error))?;
        }
        Ok(())
    }
}

/// The shards of `weights`, each after its bounds.
fn bytes_of(weights: &[f32], shards: &[Range<usize>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for shard in shards {
        bytes.extend([shard.start, shard.end].map(|bound| (bound as u64).to_le_bytes()).concat());
        bytes.extend_from_slice(bytemuck::cast_slice(&weights[shard.clone()]));
    }
    bytes
}

/// Copies the shards in `bytes` to their places; false if they are no such shards.
fn take_shards(mut bytes: &[u8], weights: &mut [f32]) -> bool {
    while let Some((bounds, rest)) = bytes.split_first_chunk::<BOUNDS>() {
        let (words, _) = bounds.as_chunks::<8>();
        let [start, end] = [words[0], words[1]].map(|word| u64::from_le_bytes(word) as usize);
        let Some(to) = weights.get_mut(start..end) else { return false };
        let Some((values, rest)) = rest.split_at_checked(size_of_val(to)) else { return false };
        bytemuck::cast_slice_mut(to).copy_from_slice(values);
        bytes = rest;
    }
    bytes.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_weights_reach_their_places() {
        let weights: Vec<f32> = (0..100u8).map(f32::from).collect();
        let bytes = bytes_of(&weights, &[3..10, 50..51, 90..100]);
        let mut collected = vec![-1.0; 100];
        assert!(take_shards(&bytes, &mut collected));
        for (index, (got, want)) in collected.iter().zip(&weights).enumerate() {
            let is_passed_on = (3..10).contains(&index) || index == 50 || index >= 90;
            assert!(if is_passed_on { got == want } else { *got == -1.0 }, "{index}: {got}");
        }
        assert!(!take_shards(&bytes[..bytes.len() - 1], &mut collected), "cut off");
        assert!(!take_shards(&bytes, &mut collected[..99]), "of a larger model");
        assert!(take_shards(&[], &mut collected));
    }
}
