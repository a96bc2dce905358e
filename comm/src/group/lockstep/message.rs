//! Messages from one rank to another, beside the collectives.
//!
//! Each rank has a place for the one message that it sends. The sender writes its envelope there and says that the message has begun;
//! the receiver answers with its own. Both compare them, so a difference is an error on both. Then the data pass in pieces, each of
//! half of the place. Meanwhile both advance the collectives that they have started.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::super::buffer::{RawMut, RawRef};
use super::super::envelope::{ENVELOPE_WORDS, Envelope};
use super::wait::{Idle, Step, announce_sleep, sleep, stay_awake, wake_others};
use super::{Lockstep, Post};
use crate::{Call, CommError, Result};

/// Pieces that fit the place of a message.
const N_PIECES: u64 = 2;
/// Bits of the word of a message for its receiver; the others count the messages of its sender.
const RANK_BITS: u32 = 16;

/// The word of message `number`, from 1, to rank `to`.
fn begun(number: u64, to: usize) -> u64 {
    number << RANK_BITS | to as u64
}

fn receiver(begun: u64) -> usize {
    (begun & ((1 << RANK_BITS) - 1)) as usize
}

/// The word of the message of this place, if rank `rank` is to receive it.
fn message_to(rank: usize, post: &Post) -> Option<u64> {
    // In this order: what was begun is then no older than what was answered, and only its receiver answers it.
    let answered = post.by_receiver.answered.load(Acquire);
    let begun = post.begun.load(Acquire);
    (begun != answered && receiver(begun) == rank).then_some(begun)
}

impl Lockstep {
    /// Sends a buffer to rank `to`, which receives it; returns when it has.
    ///
    /// # Safety
    /// `data` is readable for its elements, and nothing writes them meanwhile.
    pub(crate) unsafe fn send(&mut self, to: usize, own: Envelope, data: RawRef) -> Result<()> {
        let (call, rank) = (own.call(), self.rank);
        let post = self.board.post(rank);
        let word = begun((post.begun.load(Relaxed) >> RANK_BITS) + 1, to);
        store(&post.sent, own.to_words());
        post.begun.store(word, Release);
        wake_others(&self.board, rank);
        self.wait_for(call, to, |post| post.by_receiver.answered.load(Acquire) == word)?;
        own.check(rank, Envelope::from_words(load(&self.board.post(rank).by_receiver.expected)))?;
        for (start, n) in self.pieces(&data) {
            self.wait_for(call, to, |post| n_waiting(post) < N_PIECES)?;
            let post = self.board.post(rank);
            let place = self.place(rank, post.written.load(Relaxed));
            // SAFETY: the piece lies within the buffer, and its place is free: the receiver has read what was in it.
            unsafe { std::ptr::copy_nonoverlapping(data.ptr.wrapping_add(start), place, n) };
            post.written.fetch_add(1, Release);
            wake_others(&self.board, rank);
        }
        self.wait_for(call, to, |post| n_waiting(post) == 0)
    }

    /// Receives the buffer that rank `from` sends.
    ///
    /// # Safety
    /// `data` is writable for its elements, and nothing else accesses them meanwhile.
    pub(crate) unsafe fn receive(&mut self, from: usize, own: Envelope, data: RawMut) -> Result<()> {
        let (call, rank) = (own.call(), self.rank);
        let word = Cell::new(None);
        self.wait_on(from, call, from, |post| {
            word.set(message_to(rank, post));
            word.get().is_some()
        })?;
        let word = word.get().expect("waited for");
        let post = self.board.post(from);
        let sent = Envelope::from_words(load(&post.sent));
        store(&post.by_receiver.expected, own.to_words());
        post.by_receiver.answered.store(word, Release);
        wake_others(&self.board, rank);
        own.check(rank, sent)?;
        for (start, n) in self.pieces(&data.as_ref()) {
            self.wait_on(from, call, from, |post| n_waiting(post) > 0)?;
            let post = self.board.post(from);
            let place = self.place(from, post.by_receiver.read.load(Relaxed));
            // SAFETY: the piece lies within the buffer, and the sender has written its place and leaves it alone until it was read.
            unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), data.ptr.wrapping_add(start), n) };
            post.by_receiver.read.fetch_add(1, Release);
            wake_others(&self.board, rank);
        }
        Ok(())
    }

    /// Start and number of bytes of each piece.
    fn pieces(&self, data: &RawRef) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (n_bytes, piece) = (data.len * data.dtype.size_bytes(), self.piece_bytes());
        (0..n_bytes).step_by(piece).map(move |start| (start, piece.min(n_bytes - start)))
    }

    fn piece_bytes(&self) -> usize {
        self.board.geometry().chunk_bytes / N_PIECES as usize
    }

    /// Memory for piece `number` of the messages of a rank.
    fn place(&self, rank: usize, number: u64) -> *mut u8 {
        self.board.message_data(rank).wrapping_add((number % N_PIECES) as usize * self.piece_bytes())
    }

    /// Waits for this rank's message.
    fn wait_for(&mut self, call: Call, other: usize, is_done: impl Fn(&Post) -> bool) -> Result<()> {
        self.wait_on(self.rank, call, other, is_done)
    }

    /// Waits for the message of rank `of`, which rank `other` is to advance.
    fn wait_on(
        &mut self,
        of: usize,
        call: Call,
        other: usize,
        is_done: impl Fn(&Post) -> bool,
    ) -> Result<()> {
        let mut idle = Idle::new(self.patience);
        while !is_done(self.board.post(of)) {
            if self.advance()? {
                idle.reset();
                continue;
            }
            let Step::Sleep = idle.pause() else { continue };
            let waited = idle.elapsed();
            // Read before the message is checked again: a rank that did its part and then left is not missing.
            let departure = self.board.line(other).departure();
            let bell = announce_sleep(&self.board, self.rank);
            if is_done(self.board.post(of)) {
                stay_awake(&self.board, self.rank);
                break;
            }
            let left = departure.map(|how| CommError::PeerLeft { call, rank: other, how });
            let late = self.timeout.filter(|&timeout| waited > timeout).map(|timeout| CommError::Timeout {
                call,
                missing: vec![other],
                timeout_s: timeout.as_secs_f64(),
            });
            let hopeless = self.all_send().or_else(|| self.lost()).or(left).or(late);
            if let Some(error) = hopeless {
                stay_awake(&self.board, self.rank);
                return Err(self.break_with(error));
            }
            // A collective may have moved in the meantime, too; a short sleep ends soon.
            sleep(&self.board, self.rank, bell);
        }
        Ok(())
    }

    /// The error of ranks that all wait for the next of them to receive.
    fn all_send(&self) -> Option<CommError> {
        let ring = self.ring_of_senders()?;
        // Each of them was still waiting when the last one was looked at.
        (self.ring_of_senders()? == ring).then(|| {
            let mut ranks: Vec<usize> = ring.into_iter().map(|(rank, _)| rank).collect();
            ranks.sort_unstable();
            CommError::NoReceiver { op: "send", ranks }
        })
    }

    /// The ranks from this one on that each send to the next, back to this one, and the numbers of their messages.
    fn ring_of_senders(&self) -> Option<Vec<(usize, u64)>> {
        let mut ring: Vec<(usize, u64)> = Vec::new();
        let mut rank = self.rank;
        loop {
            let post = self.board.post(rank);
            let begun = post.begun.load(Acquire);
            if post.by_receiver.answered.load(Acquire) == begun {
                return None;
            }
            ring.push((rank, begun));
            rank = receiver(begun);
            if rank == self.rank {
                return Some(ring);
            }
            if ring.iter().any(|(other, _)| *other == rank) {
                return None;
            }
        }
    }
}

/// Pieces that were written and not yet read.
fn n_waiting(post: &Post) -> u64 {
    let read = post.by_receiver.read.load(Acquire);
    post.written.load(Acquire) - read
}

fn store(words: &[AtomicU64; ENVELOPE_WORDS], values: [u64; ENVELOPE_WORDS]) {
    words.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
}

fn load(words: &[AtomicU64; ENVELOPE_WORDS]) -> [u64; ENVELOPE_WORDS] {
    std::array::from_fn(|index| words[index].load(Relaxed))
}
