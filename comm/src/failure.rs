//! Failures: a rank that fails prints why as the last line of stderr and ends the whole job with a nonzero status.
//!
//! The job ends within 2 s of the failure on one host, and within 3 s on several. [`Reporter`] says which rank prints the
//! message.
//!
//! ```
//! use ddp_comm::{Failure, threads};
//!
//! let failures = threads::run(2, |world| {
//!     let opened = if world.rank().0 == 1 { Err("no such file") } else { Ok("a file") };
//!     world.collective_result(opened).unwrap_err()
//! });
//! assert!(matches!(failures[0], Failure::Elsewhere { rank: 1 }));
//! assert!(matches!(failures[1], Failure::Here { error: "no such file", .. }));
//! ```

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ddp_kernels::cpu::caught_panic::is_caught;

#[doc(hidden)]
pub use crate::end_job::end_job;
#[doc(hidden)]
pub use crate::lifeline::end_others;
use crate::stderr::write_stderr;
use crate::watchdog;
use crate::{CommError, Reporter, World};

/// The exit status of a Rust program that panics.
const PANIC_EXIT_CODE: i32 = 101;
/// Time for which a rank that does not report the failure waits for the reporting rank to end the job.
const REPORTER_GRACE: Duration = Duration::from_secs(10);

/// A failure on some rank, as [`World::collective_result`] returns it on this one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[doc(hidden)]
pub enum Failure<E> {
    /// It failed on this rank.
    #[error("{error}")]
    Here {
        /// Error of this rank.
        error: E,
        /// Whether this is the lowest failing rank, which reports for all.
        reports: bool,
        /// Whether it failed on all ranks: a prefix that names one would mislead.
        on_all_ranks: bool,
    },
    /// It failed on another rank, which reports.
    #[error("rank {rank} failed")]
    Elsewhere {
        /// The lowest rank on which it failed.
        rank: usize,
    },
    /// The ranks could not exchange their results.
    #[error(transparent)]
    Comm(CommError),
}

impl<E> Failure<E> {
    /// The rank that reports this failure.
    pub fn reporter(&self) -> Reporter {
        match self {
            Failure::Here { on_all_ranks: true, .. } => Reporter::RankZero,
            Failure::Here { reports: true, .. } => Reporter::ThisRank,
            Failure::Here { .. } | Failure::Elsewhere { .. } => Reporter::OtherRank,
            Failure::Comm(error) => error.reporter(),
        }
    }
}

impl World {
    /// Returns `result` if it is `Ok` on all ranks, at a point that all of them reach. Collective; waits for all ranks.
    ///
    /// # Errors
    /// [`Failure::Here`] on the ranks that failed, [`Failure::Elsewhere`] on the others; [`Failure::Comm`] if the collective
    /// itself failed.
    pub fn collective_result<T, E>(&self, result: Result<T, E>) -> Result<T, Failure<E>> {
        self.result_of_some(result, self.world_size())
    }

    /// [`World::collective_result`] of work that `n_ranks` of the ranks did, while the others bring `Ok`: if all of those fail, the error is
    /// that of all ranks. Collective.
    ///
    /// # Errors
    /// Same as [`World::collective_result`].
    pub fn result_of_some<T, E>(&self, result: Result<T, E>, n_ranks: usize) -> Result<T, Failure<E>> {
        let flags = self.group().all_gather_bytes(&[u8::from(result.is_err())]).map_err(Failure::Comm)?;
        self.result_of_all(result, n_ranks, |rank| flags[rank][..] == [1])
    }

    /// Returns `result` unless it is an error on some rank, as `fails` says of each.
    pub(crate) fn result_of_all<T, E>(
        &self,
        result: Result<T, E>,
        n_ranks: usize,
        fails: impl Fn(usize) -> bool,
    ) -> Result<T, Failure<E>> {
        let failing: Vec<usize> = (0..self.world_size()).filter(|&rank| fails(rank)).collect();
        match (result, failing.first()) {
            (Ok(value), None) => Ok(value),
            (Ok(_), Some(&rank)) => Err(Failure::Elsewhere { rank }),
            (Err(error), first) => {
                let reports = first == Some(&self.rank().0);
                Err(Failure::Here { error, reports, on_all_ranks: failing.len() == n_ranks })
            }
        }
    }

    /// The prefix of this rank's messages, such as `[rank 1 node7] `; empty in a world of one.
    pub fn prefix(&self) -> String {
        match self.world_size() {
            1 => String::new(),
            _ => format!("[rank {} {}] ", self.rank(), self.hostname()),
        }
    }
}

/// Prints `message` to stderr if this rank is the reporter, and ends the whole job with status `exit_code`.
///
/// The other ranks wait up to 10 s to be ended; if the reporter does not come, they print their own message.
///
/// The world must still be alive: if a rank leaves it, the others report that instead. If ranks are threads, this ends the
/// process.
#[doc(hidden)]
pub fn abort(world: &World, exit_code: i32, reporter: Reporter, message: impl Display) -> ! {
    abort_with(world, exit_code, reporter, |prefix| format!("{prefix}{message}"))
}

/// Ends the job as [`abort`] does; `report` returns the message. It is called on a rank that reports, with the prefix that names
/// the rank where that is not obvious.
#[doc(hidden)]
pub fn abort_with(
    world: &World,
    exit_code: i32,
    reporter: Reporter,
    report: impl FnOnce(&str) -> String,
) -> ! {
    let (reports, prefix) = match reporter {
        Reporter::ThisRank => (true, world.prefix()),
        Reporter::RankZero => (world.rank().0 == 0, String::new()),
        Reporter::OtherRank => (world.world_size() == 1, world.prefix()),
    };
    let watchdog = world.watchdog();
    // Of a rank that has withdrawn the others know no more than that.
    let (reports, prefix) = if watchdog.has_withdrawn() { (true, world.prefix()) } else { (reports, prefix) };
    if !reports {
        std::thread::sleep(REPORTER_GRACE);
    }
    watchdog.yield_to_end();
    let message = report(&prefix);
    watchdog.announce_failure(&message);
    write_stderr(&format!("{message}\n"));
    watchdog.wait_for_release();
    end_job(exit_code)
}

/// Reports `error` of [`World::init`], with `message`, and ends the job: there is no world to abort.
///
/// An error that all ranks have is reported by rank 0, and the others wait up to 10 s to be ended. Ranks that have not met report each
/// for themselves: each may have a log of its own.
#[doc(hidden)]
pub fn abort_init(error: &CommError, exit_code: i32, message: impl Display) -> ! {
    if matches!(error, CommError::DifferentPrograms { rank: 1.., .. }) {
        std::thread::sleep(REPORTER_GRACE);
    }
    end_unjoined(exit_code, message)
}

/// Reports `message` and ends this process, and the job as far as it is joined. Any thread may call it.
#[doc(hidden)]
pub fn end_unjoined(exit_code: i32, message: impl Display) -> ! {
    write_stderr(&format!("{message}\n"));
    end_job(exit_code)
}

/// Installs a panic hook: a panic on any thread of this process ends the whole job, with a message that names rank and host.
///
/// A world of one keeps the usual hook. Panics under [`catch_panic`](ddp_kernels::cpu::caught_panic::catch_panic) are ignored. The hook belongs to the process, so use it
/// only where ranks are processes.
pub fn install_panic_hook(world: &World) {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    if world.world_size() == 1 {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_caught() {
                usual(panic);
            }
        }));
        return;
    }
    let (prefix, watchdog) = (world.prefix(), world.watchdog().clone());
    std::panic::set_hook(Box::new(move |panic| {
        if is_caught() {
            return;
        }
        watchdog.yield_to_end();
        if PANICKED.swap(true, Ordering::SeqCst) {
            // Another thread of this rank is ending the job.
            std::thread::sleep(REPORTER_GRACE);
        }
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{backtrace}\n"),
            _ => String::new(),
        };
        let message = panic.to_string();
        // The thread of the watchdog can't wait for itself.
        let is_watchdog = std::thread::current().name() == Some(watchdog::THREAD);
        if is_watchdog || !watchdog.withdraw(&message) {
            watchdog.announce_failure(&message);
        }
        write_stderr(&format!("{trace}{prefix}{panic}\n"));
        if !is_watchdog {
            watchdog.wait_for_release();
        }
        end_job(PANIC_EXIT_CODE)
    }));
}

#[cfg(test)]
mod tests {
    use ddp_kernels::cpu::caught_panic::catch_panic;

    use super::*;
    use crate::threads;

    fn outcomes(failing: &[usize]) -> Vec<Result<usize, Failure<String>>> {
        threads::run(3, |world| {
            let rank = world.rank().0;
            let own = if failing.contains(&rank) { Err(format!("no file {rank}")) } else { Ok(rank) };
            world.collective_result(own)
        })
    }

    #[test]
    fn success_everywhere_is_success() {
        assert_eq!(outcomes(&[]), [Ok(0), Ok(1), Ok(2)]);
    }

    #[test]
    fn the_lowest_failing_rank_reports() {
        let here = |rank, reports| {
            Err(Failure::Here { error: format!("no file {rank}"), reports, on_all_ranks: false })
        };
        assert_eq!(outcomes(&[1, 2]), [Err(Failure::Elsewhere { rank: 1 }), here(1, true), here(2, false)]);
        let reporters = reporters(outcomes(&[1, 2]));
        assert_eq!(reporters, [Reporter::OtherRank, Reporter::ThisRank, Reporter::OtherRank]);
    }

    #[test]
    fn a_failure_of_all_ranks_is_reported_once() {
        assert_eq!(reporters(outcomes(&[0, 1, 2])), [Reporter::RankZero; 3]);
    }

    fn reporters(outcomes: Vec<Result<usize, Failure<String>>>) -> Vec<Reporter> {
        outcomes.into_iter().map(|outcome| outcome.unwrap_err().reporter()).collect()
    }

    #[test]
    fn panics_that_are_caught_are_results() {
        install_panic_hook(&World::single());
        assert!(catch_panic(|| -> i32 { panic!("not to be seen") }).is_err());
        assert_eq!(catch_panic(|| catch_panic(|| 1).unwrap() + 1).unwrap(), 2);
        assert!(!is_caught());
    }

    #[test]
    fn a_world_of_one_has_no_prefix() {
        assert_eq!(World::single().prefix(), "");
        let prefixes = threads::run(2, |world| world.prefix());
        assert!(prefixes[1].starts_with("[rank 1 ") && prefixes[1].ends_with("] "), "{prefixes:?}");
    }
}
