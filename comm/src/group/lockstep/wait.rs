//! Waiting for other ranks: spins briefly, then yields, then sleeps on a futex until woken.
//!
//! Spinning responds within a fraction of a microsecond, but with more ranks than cores it takes the core from the rank that is
//! waited for; there it is kept short.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::{Duration, Instant};

use super::board::Board;

/// The longest sleep before a rank checks again whether the others are still there.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// Number of spins and yields before a rank sleeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) n_spins: u32,
    pub(crate) n_yields: u32,
}

impl Patience {
    /// The limits for `n_ranks` ranks that share `n_cores` cores.
    ///
    /// Measured with two ranks on two cores: 2000 spins are no faster than 200 on free cores, but cost 0.1 ms per wait while
    /// another program keeps one core busy, since both ranks then share the other.
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

/// The action of a waiting rank before it checks again.
pub(crate) enum Step {
    /// None: check again.
    Again,
    /// Announce the sleep, check again, and sleep.
    Sleep,
}

impl Idle {
    pub(crate) fn new(patience: Patience) -> Self {
        Idle { patience, n_tries: 0, since: None }
    }

    /// Restarts the wait after progress.
    pub(crate) fn reset(&mut self) {
        self.n_tries = 0;
        self.since = None;
    }

    /// Spins or yields once, or returns that it is time to sleep.
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

    /// Time since the first sleep of this wait.
    pub(crate) fn elapsed(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

/// Announces that this rank will sleep: from now on others increment its bell. The rank must check once more what it waits for,
/// and then call [`sleep`] or [`stay_awake`].
pub(crate) fn announce_sleep(board: &Board, rank: usize) -> u32 {
    let sleep = board.line(rank).sleep();
    let bell = sleep.bell.load(SeqCst);
    sleep.sleeping.store(1, SeqCst);
    // Pairs with the fence in `wake_others`: either they see the announcement, or this rank's next check sees their
    // progress.
    fence(SeqCst);
    bell
}

/// Sleeps until the bell is incremented, at most about 50 ms.
pub(crate) fn sleep(board: &Board, rank: usize, bell: u32) {
    futex_wait(&board.line(rank).sleep().bell, bell, MAX_SLEEP);
    stay_awake(board, rank);
}

/// Withdraws the announcement.
pub(crate) fn stay_awake(board: &Board, rank: usize) {
    board.line(rank).sleep().sleeping.store(0, Relaxed);
}

/// Wakes the sleeping ranks, after a counter of this rank was incremented.
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

fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    // Without FUTEX_PRIVATE, because processes may share the word.
    // SAFETY: `word` is a valid aligned 32-bit word and `timeout` a valid timespec for the call's duration; a
    // return for any reason is fine, since the caller checks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const timeout) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` is a valid aligned 32-bit word; waking no thread is fine.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
