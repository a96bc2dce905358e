//! Exchanges of the host: bytes of any length, and the lengths of buckets.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use crate::{CommError, Result};

impl Group {
    /// Gathers the ranks' bytes in rank order; their lengths may differ. Waits for all ranks. For groups of the host only.
    ///
    /// # Errors
    /// [`CommError::WrongMemory`] over NCCL; the errors of [`Group::all_gather`].
    ///
    /// Source: MPI 4.0, section 6.7, `MPI_Allgatherv`, by two all-gathers.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let world_size = self.world_size();
        let mut lens = vec![0i64; world_size];
        let len = [bytes.len() as i64];
        self.all_gather(
            TensorRef::from_slice(&len, &[1])?,
            TensorMut::from_slice(&mut lens, &[world_size])?,
        )?;
        // Padded to the longest, in words of eight bytes.
        let n_words = lens.iter().max().map_or(0, |&n| n as usize).div_ceil(8);
        let mut words = vec![0i64; n_words];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = i64::from_le_bytes(padded);
        }
        let mut gathered = vec![0i64; n_words * world_size];
        self.all_gather(
            TensorRef::from_slice(&words, &[n_words])?,
            TensorMut::from_slice(&mut gathered, &[n_words * world_size])?,
        )?;
        let of_rank = |rank: usize| gathered[rank * n_words..(rank + 1) * n_words].iter();
        let bytes_of = |(rank, &len): (usize, &i64)| {
            of_rank(rank).flat_map(|word| word.to_le_bytes()).take(len as usize).collect()
        };
        Ok(lens.iter().enumerate().map(bytes_of).collect())
    }

    /// Checks that all ranks will reduce buckets of the same lengths (elements). Waits for all ranks. For groups of the host only,
    /// also if NCCL reduces the buckets.
    ///
    /// # Errors
    /// On every rank [`CommError::BucketCountMismatch`] or [`CommError::CountMismatch`], with the first rank that differs from
    /// rank 0 and the first bucket that differs; the errors of [`Group::all_gather_bytes`].
    pub fn agree_lengths(&self, lens: &[usize]) -> Result<()> {
        let bytes: Vec<u8> = lens.iter().flat_map(|&len| (len as u64).to_le_bytes()).collect();
        let all = self.all_gather_bytes(&bytes)?;
        for (rank, theirs) in all.iter().enumerate().skip(1) {
            let (got, expected) = (theirs.len() / 8, all[0].len() / 8);
            if got != expected {
                return Err(CommError::BucketCountMismatch { rank, got, expected });
            }
            let pairs = theirs.chunks(8).zip(all[0].chunks(8));
            if let Some((bucket, (got, expected))) = pairs.enumerate().find(|(_, (a, b))| a != b) {
                let number = |le: &[u8]| le.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte));
                let (got, expected) = (number(got), number(expected));
                return Err(CommError::CountMismatch { bucket, rank, got, expected });
            }
        }
        Ok(())
    }
}
