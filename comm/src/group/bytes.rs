//! Exchanges of the host: bytes of any length, and the lengths of buckets.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use crate::{CommError, Result};

/// Bytes that travel with their number.
const HEAD_BYTES: usize = 24;

/// The bytes in `n` words of eight, padded with zeros.
fn words_of(bytes: &[u8], n: usize) -> Vec<i64> {
    let mut words = vec![0i64; n];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = i64::from_le_bytes(padded);
    }
    words
}

/// The first `len` bytes of words.
fn bytes_of(words: &[i64], len: usize) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect()
}

impl Group {
    /// Gathers the ranks' bytes in rank order; their lengths may differ. Waits for all ranks. For groups of the host only.
    ///
    /// # Errors
    /// [`CommError::WrongMemory`] over NCCL; the errors of [`Group::all_gather`].
    ///
    /// Source: MPI 4.0, section 6.7, `MPI_Allgatherv`, by one all-gather for up to 24 bytes, such as votes, and by two for more.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut head = words_of(&bytes[..bytes.len().min(HEAD_BYTES)], HEAD_BYTES.div_ceil(8));
        head.insert(0, bytes.len() as i64);
        let heads = self.all_gather_words(&head)?;
        let heads: Vec<&[i64]> = heads.chunks_exact(head.len()).collect();
        let lens = || heads.iter().map(|head| head[0] as usize);
        let longest = lens().max().unwrap_or(0);
        if longest <= HEAD_BYTES {
            return Ok(heads.iter().zip(lens()).map(|(head, len)| bytes_of(&head[1..], len)).collect());
        }
        // Padded to the longest.
        let n_words = longest.div_ceil(8);
        let gathered = self.all_gather_words(&words_of(bytes, n_words))?;
        Ok(gathered.chunks_exact(n_words).zip(lens()).map(|(words, len)| bytes_of(words, len)).collect())
    }

    /// Gathers the ranks' words, as many of each.
    fn all_gather_words(&self, words: &[i64]) -> Result<Vec<i64>> {
        let n = words.len() * self.world_size();
        let mut gathered = vec![0i64; n];
        let from = TensorRef::from_slice(words, &[words.len()])?;
        self.all_gather(from, TensorMut::from_slice(&mut gathered, &[n])?)?;
        Ok(gathered)
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
