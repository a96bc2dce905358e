//! How a rank waits for others: it spins a little, yields a while, then sleeps until it is woken.
//!
//! Spinning answers within a fraction of a microsecond, but takes the core from the very rank that is waited for
//! where there are more ranks than cores; there it is kept short.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::{Duration, Instant};

use super::board::Board;

/// The longest sleep before a rank looks again whether the others are still there.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// How long to spin and to yield before sleeping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) n_spins: u32,
    pub(crate) n_yields: u32,
}

impl Patience {
    /// For ranks that have `n_cores` between them.
    ///
    /// Measured: 2000 spins are no quicker than 200 on free cores, but cost 0.1 ms a wait while another program
    /// keeps a core busy, since both ranks then share the other.
    pub(crate) fn new(n_ranks: usize, n_cores: usize) -> Self {
        if n_ranks <= n_cores {
            Patience { n_spins: 200, n_yields: 1000 }
        } else {
            Patience { n_spins: 20, n_yields: 20 }
        }
    }
}

/// One wait in progress.
pub(crate) struct Idle {
    patience: Patience,
    n_tries: u32,
    since: Option<Instant>,
}

/// What a waiting rank should do before it looks again.
pub(crate) enum Step {
    /// Nothing: look again.
    Again,
    /// Announce that it sleeps, look again, and sleep.
    Sleep,
}

impl Idle {
    pub(crate) fn new(patience: Patience) -> Self {
        Idle { patience, n_tries: 0, since: None }
    }

    /// Something has happened: patience is new.
    pub(crate) fn reset(&mut self) {
        self.n_tries = 0;
        self.since = None;
    }

    /// Nothing has happened: passes some time.
    pub(crate) fn pause(&mut self) -> Step {
        self.n_tries = self.n_tries.saturating_add(1);
        if self.n_tries <= self.patience.n_spins {
            std::hint::spin_loop();
            Step::Again
        } else if self.n_tries <= self.patience.n_spins + self.patience.n_yields {
            std::thread::yield_now();
            Step::Again
        } else {
            Step::Sleep
        }
    }

    /// How long the wait has lasted, counted from the first sleep.
    pub(crate) fn elapsed(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

/// Announces that this rank will sleep: others ring its bell from now on. The rank must look once more at what it
/// waits for, and then call [`sleep`] or [`stay_awake`].
pub(crate) fn announce_sleep(board: &Board, rank: usize) -> u32 {
    let sleep = board.line(rank).sleep();
    let bell = sleep.bell.load(SeqCst);
    sleep.sleeping.store(1, SeqCst);
    // Pairs with the fence in `wake_others`: either they see the announcement, or this rank's next look sees what
    // they did.
    fence(SeqCst);
    bell
}

/// Sleeps until the bell rings, at most some 50 ms.
pub(crate) fn sleep(board: &Board, rank: usize, bell: u32) {
    futex_wait(&board.line(rank).sleep().bell, bell, MAX_SLEEP);
    stay_awake(board, rank);
}

/// Takes the announcement back.
pub(crate) fn stay_awake(board: &Board, rank: usize) {
    board.line(rank).sleep().sleeping.store(0, Relaxed);
}

/// Wakes the ranks that sleep, after a counter of this rank was raised.
pub(crate) fn wake_others(board: &Board, rank: usize) {
    fence(SeqCst);
    for other in 0..board.geometry().world_size {
        let sleep = board.line(other).sleep();
        if other != rank && sleep.sleeping.load(Relaxed) != 0 {
            sleep.bell.fetch_add(1, SeqCst);
            futex_wake(&sleep.bell);
        }
    }
}

#[cfg(target_os = "linux")]
fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    // The flag FUTEX_PRIVATE is left out: the word may be shared by processes.
    // SAFETY: `word` is a valid aligned 32-bit word and `timeout` a valid timespec for the call's duration; a
    // return for whatever reason is fine, since the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const timeout) };
}

#[cfg(target_os = "linux")]
fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` is a valid aligned 32-bit word; waking nobody is fine.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

#[cfg(not(target_os = "linux"))]
fn futex_wait(_word: &AtomicU32, _expected: u32, _timeout: Duration) {
    std::thread::sleep(Duration::from_micros(100));
}

#[cfg(not(target_os = "linux"))]
fn futex_wake(_word: &AtomicU32) {}
