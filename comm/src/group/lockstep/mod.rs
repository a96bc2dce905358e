//! Collectives over memory that the ranks of one host share, as processes or as threads.
//!
//! Every rank copies its data into its own slots, chunk by chunk, follows the others by their counters, and reads their slots
//! ([`board`]). Only the rank itself accesses its buffers, and only in [`Lockstep::advance`]: a rank that panics or returns early
//! leaves nothing in flight. A chunk fits the second-level cache, so a large buffer crosses the memory bus twice, once read and
//! once written, for any number of ranks.
//!
//! The first slot of a collective holds its call; ranks compare the calls before they use any data. Sums are taken in rank order,
//! so results have the same bits on all ranks and in every run.

mod board;
mod job;
mod wait;
mod message;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use board::Post;
pub(crate) use board::{Board, Geometry, HeapRegion, Region};
use job::Job;
pub(crate) use wait::Patience;
use wait::{Idle, Step, announce_sleep, sleep, stay_awake, wake_others};

use super::buffer::{RawMut, RawRef};
use crate::progress::Progress;
use crate::{Call, CommError, Departure, Result};

/// One rank's end of the collectives.
pub(crate) struct Lockstep {
    board: Board,
    rank: usize,
    patience: Patience,
    timeout: Option<Duration>,
    /// Collectives entered and not finished, oldest first; the memory is kept, so a steady state allocates nothing.
    jobs: VecDeque<Job>,
    n_entered: u64,
    n_finished: u64,
    /// One past the last chunk of the last job.
    end_chunk: u64,
    /// This rank's own counters, which are copied to the board.
    posted: u64,
    reduced: u64,
    consumed: u64,
    /// The last known minima over all ranks.
    posted_by_all: u64,
    reduced_by_all: u64,
    consumed_by_all: u64,
    /// Why no further collective can succeed.
    broken: Option<CommError>,
    /// Says whether the watchdog has noticed the loss of a rank.
    progress: Option<Arc<Progress>>,
}

impl Lockstep {
    pub(crate) fn new(board: Board, rank: usize, patience: Patience, timeout: Option<Duration>) -> Self {
        Lockstep {
            board,
            rank,
            patience,
            timeout,
            jobs: VecDeque::with_capacity(64),
            n_entered: 0,
            n_finished: 0,
            end_chunk: 0,
            posted: 0,
            reduced: 0,
            consumed: 0,
            posted_by_all: 0,
            reduced_by_all: 0,
            consumed_by_all: 0,
            broken: None,
            progress: None,
        }
    }

    /// From now on waiting ends when the watchdog has noticed the loss of a rank, where one of the others is to save.
    pub(crate) fn watch_losses(&mut self, progress: &Arc<Progress>) {
        self.progress = Some(progress.clone());
    }

    /// Starts a collective and returns its number, to wait for it.
    ///
    /// # Safety
    /// Until it is finished or [`Lockstep::give_up`] was called, `input` is readable for `len` elements (times
    /// `world_size` for a reduce-scatter), `output` writable (times `world_size` for an all-gather), and nothing
    /// else accesses them. They may be the same for an all-reduce or a broadcast.
    pub(crate) unsafe fn enter(&mut self, call: Call, input: RawRef, output: RawMut) -> Result<u64> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let geometry = self.board.geometry();
        let job = Job::new(call, input.ptr, output.ptr, self.end_chunk, geometry);
        self.end_chunk = job.end_chunk();
        self.jobs.push_back(job);
        self.n_entered += 1;
        // Posts at once what it can, so that others do not wait for this rank's next call.
        self.advance()?;
        Ok(self.n_entered - 1)
    }

    /// Advances as far as possible without waiting.
    pub(crate) fn progress(&mut self) -> Result<()> {
        while self.advance()? {}
        Ok(())
    }

    /// Waits until the collective of this number, and all before it, are finished; without a number, until all
    /// are.
    pub(crate) fn wait(&mut self, number: Option<u64>) -> Result<()> {
        let Some(last) = self.n_entered.checked_sub(1) else {
            return Ok(());
        };
        // A number of another group may never be reached by this one.
        let number = number.map_or(last, |number| number.min(last));
        let mut idle = Idle::new(self.patience);
        while self.n_finished <= number {
            if self.advance()? {
                idle.reset();
                continue;
            }
            match idle.pause() {
                Step::Again => {}
                Step::Sleep => self.sleep(&mut idle)?,
            }
        }
        Ok(())
    }

    /// Number of collectives that are finished, which are the first ones.
    pub(crate) fn n_finished(&self) -> u64 {
        self.n_finished
    }

    /// Drops the collectives in progress and so releases their buffers. The group cannot be used afterward.
    pub(crate) fn give_up(&mut self, how: Departure) {
        let rank = self.rank;
        let call = self.jobs.front().map_or(Call::BARRIER, |job| job.call);
        self.broken.get_or_insert(CommError::PeerLeft { call, rank, how });
        self.jobs.clear();
        // The watchdog tells the others.
        if !matches!(self.broken, Some(CommError::RankLost)) {
            self.depart(how);
        }
    }

    /// Publishes that this rank no longer takes part.
    pub(crate) fn depart(&self, how: Departure) {
        self.board.line(self.rank).depart(how);
        wake_others(&self.board, self.rank);
    }

    /// Does the next piece of work of each kind that need not wait; returns whether there was any.
    fn advance(&mut self) -> Result<bool> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let staged = self.stage_next();
        let reduced = self.reduce_next().and_then(|reduced| Ok(reduced | self.consume_next()?));
        match reduced {
            Ok(moved) => Ok(staged | moved),
            Err(error) => Err(self.break_with(error)),
        }
    }

    fn break_with(&mut self, error: CommError) -> CommError {
        self.broken = Some(error.clone());
        self.give_up(Departure::Failed);
        error
    }

    fn stage_next(&mut self) -> bool {
        let chunk = self.posted;
        let n_slots = self.board.geometry().n_slots as u64;
        if chunk == self.end_chunk || (chunk >= n_slots && !self.all_have_consumed(chunk - n_slots)) {
            return false;
        }
        let job = self.job_of(chunk);
        let words = job.call.to_words();
        // SAFETY: all ranks have consumed the chunk that was in the slot, as checked above.
        unsafe { self.board.write_call(self.rank, chunk, words) };
        // SAFETY: as above; the buffers satisfy `enter`'s contract.
        unsafe { job.stage(&self.board, self.rank, chunk) };
        self.posted += 1;
        self.board.line(self.rank).posted.store(self.posted, Release);
        wake_others(&self.board, self.rank);
        true
    }

    fn reduce_next(&mut self) -> Result<bool> {
        let chunk = self.reduced;
        if chunk == self.posted {
            return Ok(false);
        }
        let world_size = self.board.geometry().world_size;
        if !self.job_of(chunk).is_two_phase(chunk, world_size) {
            // Nothing to do, and the others do not wait for this counter.
            self.reduced += 1;
            return Ok(false);
        }
        if !self.all_have_posted(chunk) {
            return Ok(false);
        }
        self.compare_calls(chunk)?;
        // SAFETY: all have posted; by this rank's counter it has not reduced; buffers of `enter`'s contract.
        unsafe { self.job_of(chunk).reduce_slice(&self.board, self.rank, chunk) };
        self.reduced += 1;
        self.board.line(self.rank).reduced.store(self.reduced, Release);
        wake_others(&self.board, self.rank);
        Ok(true)
    }

    fn consume_next(&mut self) -> Result<bool> {
        let chunk = self.consumed;
        if chunk == self.reduced || !self.all_have_posted(chunk) {
            return Ok(false);
        }
        let world_size = self.board.geometry().world_size;
        let job = self.job_of(chunk);
        let (two_phase, is_last) = (job.is_two_phase(chunk, world_size), chunk + 1 == job.end_chunk());
        if two_phase && !self.all_have_reduced(chunk) {
            return Ok(false);
        }
        self.compare_calls(chunk)?;
        // SAFETY: all have posted, and reduced where it counts; not consumed yet; buffers of `enter`'s contract.
        unsafe { self.job_of(chunk).consume(&self.board, self.rank, chunk) };
        self.consumed += 1;
        self.board.line(self.rank).consumed.store(self.consumed, Release);
        wake_others(&self.board, self.rank);
        if is_last {
            self.jobs.pop_front();
            self.n_finished += 1;
        }
        Ok(true)
    }

    fn job_of(&self, chunk: u64) -> &Job {
        let job = self.jobs.iter().find(|job| chunk < job.end_chunk());
        job.expect("a chunk between `consumed` and `end_chunk` belongs to a job in the queue")
    }

    /// Compares the calls of all ranks at the first chunk of a job, which all have posted.
    fn compare_calls(&self, chunk: u64) -> Result<()> {
        if self.job_of(chunk).first_chunk != chunk {
            return Ok(());
        }
        // SAFETY: all have posted, and this rank has not consumed the chunk.
        let words_of = |rank| unsafe { self.board.read_call(rank, chunk) };
        let expected = words_of(0);
        let differing = (1..self.board.geometry().world_size).find(|&rank| words_of(rank) != expected);
        match differing.map(|rank| (rank, Call::from_words(words_of(rank)), Call::from_words(expected))) {
            Some((rank, Some(got), Some(expected))) => Err(CommError::CallMismatch { rank, got, expected }),
            Some((_, None, _) | (_, _, None)) => unreachable!("slots hold the words of calls"),
            None => Ok(()),
        }
    }

    fn all_have_posted(&mut self, chunk: u64) -> bool {
        if self.posted_by_all <= chunk {
            self.posted_by_all = self.minimum(|line| &line.posted);
        }
        self.posted_by_all > chunk
    }

    fn all_have_reduced(&mut self, chunk: u64) -> bool {
        if self.reduced_by_all <= chunk {
            self.reduced_by_all = self.minimum(|line| &line.reduced);
        }
        self.reduced_by_all > chunk
    }

    fn all_have_consumed(&mut self, chunk: u64) -> bool {
        if self.consumed_by_all <= chunk {
            self.consumed_by_all = self.minimum(|line| &line.consumed);
        }
        self.consumed_by_all > chunk
    }

    fn minimum(&self, counter: impl Fn(&board::RankLine) -> &AtomicU64) -> u64 {
        let ranks = 0..self.board.geometry().world_size;
        let values = ranks.map(|r| counter(self.board.line(r)).load(Acquire));
        values.min().unwrap_or(0)
    }

    /// Sleeps until another rank has advanced; an error if a needed rank has left, or after the time limit.
    fn sleep(&mut self, idle: &mut Idle) -> Result<()> {
        let waited = idle.elapsed();
        // Read before the counters are checked again: a rank that finished its work and then left is not missing.
        let departures: Vec<_> = self.ranks().map(|r| self.board.line(r).departure()).collect();
        let bell = announce_sleep(&self.board, self.rank);
        let moved = self.advance();
        if !matches!(moved, Ok(false)) {
            stay_awake(&self.board, self.rank);
            idle.reset();
            return moved.map(|_| ());
        }
        let hopeless = self.lost().or_else(|| self.departed(&departures)).or_else(|| self.timed_out(waited));
        if let Some(error) = hopeless {
            stay_awake(&self.board, self.rank);
            return Err(self.break_with(error));
        }
        sleep(&self.board, self.rank, bell);
        Ok(())
    }

    fn lost(&self) -> Option<CommError> {
        let progress = self.progress.as_ref()?;
        progress.is_to_save().then_some(CommError::RankLost)
    }

    /// The ranks that this rank waits for.
    fn missing(&self) -> Vec<usize> {
        let load = |counter: &AtomicU64| counter.load(Acquire);
        let line = |rank| self.board.line(rank);
        let chunk = self.consumed;
        if self.posted == chunk {
            // Not even posted: another rank still reads the slot.
            let needed = (chunk + 1).saturating_sub(self.board.geometry().n_slots as u64);
            return self.ranks().filter(|&r| load(&line(r).consumed) < needed).collect();
        }
        let not_posted: Vec<_> = self.ranks().filter(|&r| load(&line(r).posted) <= chunk).collect();
        if !not_posted.is_empty() {
            return not_posted;
        }
        self.ranks().filter(|&r| load(&line(r).reduced) <= chunk).collect()
    }

    /// The error of a wait for a rank that left.
    fn departed(&self, departures: &[Option<Departure>]) -> Option<CommError> {
        let missing = self.missing();
        let mut left = missing.into_iter().filter_map(|rank| Some((rank, departures[rank]?)));
        let (rank, how) = left.next()?;
        // If a rank failed because of another, that other one is named.
        let culprit =
            self.ranks().filter_map(|r| Some((r, departures[r]?))).find(|d| d.1 != Departure::Failed);
        let (rank, how) = culprit.filter(|_| how == Departure::Failed).unwrap_or((rank, how));
        Some(CommError::PeerLeft { call: self.job_of(self.consumed).call, rank, how })
    }

    fn timed_out(&self, waited: Duration) -> Option<CommError> {
        let timeout = self.timeout.filter(|&timeout| waited > timeout)?;
        Some(CommError::Timeout {
            call: self.job_of(self.consumed).call,
            missing: self.missing(),
            timeout_s: timeout.as_secs_f64(),
        })
    }

    fn ranks(&self) -> std::ops::Range<usize> {
        0..self.board.geometry().world_size
    }
}

/// Runs one collective to completion.
///
/// # Safety
/// Same as [`Lockstep::enter`].
pub(crate) unsafe fn run(
    lockstep: &RefCell<Lockstep>,
    call: Call,
    input: RawRef,
    output: RawMut,
) -> Result<()> {
    /// Releases the buffers if this crate panics.
    struct OnPanic<'a>(&'a RefCell<Lockstep>);
    impl Drop for OnPanic<'_> {
        fn drop(&mut self) {
            if let Ok(mut lockstep) = self.0.try_borrow_mut()
                && lockstep.n_finished < lockstep.n_entered
            {
                lockstep.give_up(Departure::Panicked);
            }
        }
    }
    let on_panic = OnPanic(lockstep);
    // SAFETY: as this function's: on return it is finished, has failed and so was given up, or is given up by the guard.
    let number = unsafe { lockstep.borrow_mut().enter(call, input, output) }?;
    lockstep.borrow_mut().wait(Some(number))?;
    std::mem::forget(on_panic);
    Ok(())
}
