//! Collectives over TCP connections to rank 0: for the few and short ones by which ranks of several hosts agree, and to set up the
//! memory that ranks of one host share.
//!
//! Before each collective the ranks exchange the words of their calls, so that a difference is an error on all of them. Rank 0 reduces in
//! rank order, so sums have the same bits as in shared memory.

use std::io::{self, ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::super::buffer::{RawMut, RawRef};
use super::super::number::fold;
use crate::{Call, CallKind, CommError, Departure, Result};

/// Marks the words of a rank that leaves; no call has it.
const DEPARTURE: u64 = u64::MAX;
/// Most bytes of a rank's record in [`Star::exchange`].
const MAX_RECORD: usize = 1 << 16;

/// One rank's connections.
pub(crate) struct Star {
    rank: usize,
    world_size: usize,
    /// To all other ranks, in their order, on rank 0; to rank 0 on the others.
    streams: Vec<TcpStream>,
    timeout: Option<Duration>,
    /// Why no further collective can succeed.
    broken: Option<CommError>,
}

impl Star {
    pub(super) fn new(rank: usize, world_size: usize, streams: Vec<TcpStream>) -> Self {
        Star { rank, world_size, streams, timeout: None, broken: None }
    }

    /// Limits the time for which a collective waits for one rank.
    pub(super) fn set_timeout(&mut self, timeout: Option<Duration>) {
        for stream in &self.streams {
            // Rank 0 finds out which rank is late; the others wait longer for its answer.
            let of_rank = timeout.map(|timeout| if self.rank == 0 { timeout } else { 2 * timeout });
            // Without the limit the rank waits longer.
            let _ = stream.set_read_timeout(of_rank.filter(|limit| !limit.is_zero()));
        }
        self.timeout = timeout;
    }

    /// Gathers a record from every rank, in rank order; their lengths may differ.
    pub(super) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let framed = |record: &[u8]| [&(record.len() as u32).to_le_bytes(), record].concat();
        let mut all = vec![mine.to_vec()];
        if self.rank == 0 {
            for other in 1..self.world_size {
                let record = self.at(other, Call::BARRIER, read_record)?;
                all.push(record);
            }
            let answer: Vec<u8> = all.iter().flat_map(|record| framed(record)).collect();
            self.send_to_all(Call::BARRIER, &answer)?;
        } else {
            self.at(0, Call::BARRIER, |stream| stream.write_all(&framed(mine)))?;
            let n = self.world_size;
            all = self.at(0, Call::BARRIER, |stream| (0..n).map(|_| read_record(stream)).collect())?;
        }
        Ok(all)
    }

    /// Gathers words from every rank, the same number from each, in rank order.
    pub(super) fn gather_words(&mut self, mine: &[i64]) -> Result<Vec<i64>> {
        let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = self.exchange(&bytes)?.concat();
        let (words, _) = all.as_chunks::<8>();
        Ok(words.iter().map(|word| i64::from_le_bytes(*word)).collect())
    }

    /// Runs one collective to its end.
    ///
    /// # Safety
    /// Same as `Group::run`; input and output may overlap.
    pub(crate) unsafe fn run(&mut self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        // SAFETY: as this function's.
        let result = self.compare(call).and_then(|()| unsafe { self.transfer(call, input, output) });
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    /// Tells the other ranks, when they enter the next collective, that this one does not take part any more.
    pub(crate) fn depart(&mut self, how: Departure) {
        let departed = CommError::PeerLeft { call: Call::BARRIER, rank: self.rank, how };
        if self.broken.replace(departed).is_some() {
            return;
        }
        let code = match how {
            Departure::Closed => 1,
            Departure::Panicked => 2,
            Departure::Failed => 3,
        };
        let own = bytes_of([DEPARTURE, code]);
        if self.rank != 0 {
            let _ = self.at(0, Call::BARRIER, |stream| stream.write_all(&own));
            return;
        }
        // The words of all ranks, as in an answer.
        let answer = own.repeat(self.world_size);
        let _ = self.send_to_all(Call::BARRIER, &answer);
    }

    /// Compares the calls of all ranks.
    fn compare(&mut self, call: Call) -> Result<()> {
        let own = bytes_of(call.to_words());
        let mut all = vec![0; own.len() * self.world_size];
        let mut sent = Ok(());
        if self.rank == 0 {
            all[..own.len()].copy_from_slice(&own);
            for (other, words) in all.chunks_mut(own.len()).enumerate().skip(1) {
                self.at(other, call, |stream| stream.read_exact(words))?;
            }
            sent = self.send_to_all(call, &all);
        } else {
            self.at(0, call, |stream| stream.write_all(&own))?;
            self.at(0, call, |stream| stream.read_exact(&mut all))?;
        }
        let words: Vec<[u64; 2]> = all.chunks(own.len()).map(words_of).collect();
        let departed = words.iter().position(|words| words[0] == DEPARTURE);
        if let Some(rank) = departed {
            let how = match words[rank][1] {
                1 => Departure::Closed,
                2 => Departure::Panicked,
                _ => Departure::Failed,
            };
            return Err(CommError::PeerLeft { call, rank, how });
        }
        sent?;
        let Some(rank) = words.iter().position(|other| *other != words[0]) else { return Ok(()) };
        match (Call::from_words(words[rank]), Call::from_words(words[0])) {
            (Some(got), Some(expected)) => Err(CommError::CallMismatch { rank, got, expected }),
            _ => Err(CommError::PeerLeft { call, rank, how: Departure::Failed }),
        }
    }

    /// Moves and reduces the data of a call that all ranks have entered.
    ///
    /// # Safety
    /// Same as [`Star::run`].
    unsafe fn transfer(&mut self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        let n_bytes = call.len * call.dtype.size_bytes();
        let of_all = n_bytes * self.world_size;
        let (n_in, n_out) = match call.kind {
            _ if n_bytes == 0 => return Ok(()),
            CallKind::Barrier => return Ok(()),
            CallKind::AllReduce(_) | CallKind::Broadcast { .. } => (n_bytes, n_bytes),
            CallKind::ReduceScatter(_) => (of_all, n_bytes),
            CallKind::AllGather => (n_bytes, of_all),
            CallKind::Shift | CallKind::Send { .. } | CallKind::Receive { .. } => {
                unreachable!("`Group` refuses sends of tensors in host memory")
            }
        };
        // SAFETY: `input` is readable for these elements, and no other slice of them is alive.
        let mine = unsafe { std::slice::from_raw_parts(input.ptr, n_in) }.to_vec();
        let result = match call.kind {
            CallKind::Broadcast { root } => self.broadcast(call, root, mine)?,
            _ if self.rank == 0 => self.combine(call, mine)?,
            _ => {
                let mut answer = vec![0; n_out];
                self.at(0, call, |stream| stream.write_all(&mine))?;
                self.at(0, call, |stream| stream.read_exact(&mut answer))?;
                answer
            }
        };
        // SAFETY: `output` is writable for these elements, nothing else accesses them, and the result is a buffer of its own.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), output.ptr, n_out) };
        Ok(())
    }

    fn broadcast(&mut self, call: Call, root: usize, mut data: Vec<u8>) -> Result<Vec<u8>> {
        if self.rank == 0 {
            if root != 0 {
                self.at(root, call, |stream| stream.read_exact(&mut data))?;
            }
            for other in (1..self.world_size).filter(|other| *other != root) {
                self.at(other, call, |stream| stream.write_all(&data))?;
            }
        } else if self.rank == root {
            self.at(0, call, |stream| stream.write_all(&data))?;
        } else {
            self.at(0, call, |stream| stream.read_exact(&mut data))?;
        }
        Ok(data)
    }

    /// Receives the data of all ranks on rank 0, and sends each its result; returns that of rank 0.
    fn combine(&mut self, call: Call, mine: Vec<u8>) -> Result<Vec<u8>> {
        let n_in = mine.len();
        let n_out = call.len * call.dtype.size_bytes();
        let op = match call.kind {
            CallKind::AllReduce(op) | CallKind::ReduceScatter(op) => op,
            _ => {
                let mut all = mine;
                all.resize(n_in * self.world_size, 0);
                for (other, data) in all.chunks_mut(n_in).enumerate().skip(1) {
                    self.at(other, call, |stream| stream.read_exact(data))?;
                }
                self.send_to_all(call, &all)?;
                return Ok(all);
            }
        };
        let (mut sum, mut other_data) = (aligned(&mine), aligned(&mine));
        for other in 1..self.world_size {
            self.at(other, call, |stream| stream.read_exact(as_bytes(&mut other_data, n_in)))?;
            let (acc, data) = (sum.as_mut_ptr().cast(), other_data.as_ptr().cast());
            // SAFETY: both hold `n_in` bytes, that is, whole elements of this type, and are aligned to 8 bytes; they are different
            // buffers, which nothing else accesses.
            unsafe { fold(op, call.dtype, acc, data, n_in / call.dtype.size_bytes()) };
        }
        let sum = as_bytes(&mut sum, n_in);
        if let CallKind::AllReduce(_) = call.kind {
            self.send_to_all(call, sum)?;
            return Ok(sum.to_vec());
        }
        for (other, shard) in sum.chunks(n_out).enumerate().skip(1) {
            self.at(other, call, |stream| stream.write_all(shard))?;
        }
        Ok(sum[..n_out].to_vec())
    }

    fn send_to_all(&mut self, call: Call, bytes: &[u8]) -> Result<()> {
        let sent: Vec<_> = (1..self.world_size)
            .map(|other| self.at(other, call, |stream| stream.write_all(bytes)))
            .collect();
        // All of them get it, also if one has gone.
        sent.into_iter().collect()
    }

    /// Reads or writes at the connection to another rank.
    fn at<T>(
        &mut self,
        rank: usize,
        call: Call,
        transfer: impl FnOnce(&mut TcpStream) -> io::Result<T>,
    ) -> Result<T> {
        transfer(&mut self.streams[rank.saturating_sub(1)]).map_err(|error| {
            match (error.kind(), self.timeout) {
                (ErrorKind::WouldBlock | ErrorKind::TimedOut, Some(timeout)) => {
                    CommError::Timeout { call, missing: vec![rank], timeout_s: timeout.as_secs_f64() }
                }
                _ => CommError::PeerLeft { call, rank, how: Departure::Closed },
            }
        })
    }
}

fn read_record(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_RECORD {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut record = vec![0; len];
    stream.read_exact(&mut record)?;
    Ok(record)
}

/// A copy that is aligned for every type.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0; bytes.len().div_ceil(8)];
    as_bytes(&mut words, bytes.len()).copy_from_slice(bytes);
    words
}

fn as_bytes(words: &mut [u64], n_bytes: usize) -> &mut [u8] {
    assert!(n_bytes <= words.len() * 8);
    // SAFETY: the words hold that many bytes, any of which are valid, and are borrowed for as long as the result.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), n_bytes) }
}

fn bytes_of(words: [u64; 2]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> [u64; 2] {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    [word(0), word(8)]
}
