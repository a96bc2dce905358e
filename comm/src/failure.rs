//! How a rank that fails takes the job with it, and says why: its message stands last on stderr, the launcher's
//! status is not zero, and all is over within 2 s.
//!
//! # What was found by experiment (Open MPI 4.1.4, one host)
//!
//! | a rank ...                                | launcher's own lines after our message | ends after | status |
//! |-------------------------------------------|----------------------------------------|-----------:|-------:|
//! | exits with 3, `MPI_Finalize` called or not | 11 ("Primary job terminated normally") |  1.3–2.5 s |      3 |
//! | is killed by a signal                     | 7 (they name the rank and the signal)  |  1.3–2.5 s | 128 + n |
//! | calls `MPI_Abort(3)`                      | 8 ("MPI_ABORT was invoked on rank")    |      0.4 s |      3 |
//! | calls `ompi_mpi_abort(3)`                 | none                                   |      0.3 s |      3 |
//!
//! So every failure ends by `ompi_mpi_abort` where the library has it, else by `MPI_Abort`; no rank simply exits
//! with a status, not even when all have agreed to. `mpirun --quiet` silences all of these lines, but also those
//! that name a rank which the system has killed: better not to pass it.
//!
//! # Who speaks
//!
//! When one rank fails, the others soon fail too, because they wait for it. [`Voice`] tells the one who has
//! something to say from those who would only bury it.

use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{CommError, World};

/// The exit status of a Rust program that panics.
const PANIC_EXIT_CODE: i32 = 101;
/// How long a rank that is not the one to speak waits to be ended by the one that is.
const PATIENCE: Duration = Duration::from_millis(1500);

thread_local! {
    /// Whether a panic of this thread is expected, and caught by [`catch_panic`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whose part it is to report a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// It is this rank's own: it speaks.
    Own,
    /// Every rank has the same one: rank 0 speaks.
    Shared,
    /// It follows from another rank's failure: that rank speaks, or failing that, this one after a while.
    Consequence,
}

/// A failure on some rank, as [`World::collective_result`] tells it to this one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure<E> {
    /// It failed on this rank.
    #[error("{error}")]
    Here {
        /// The error.
        error: E,
        /// Whether this is the lowest rank on which it failed, which reports for all.
        speaks: bool,
        /// Whether it failed on all ranks: a prefix that names one would mislead.
        everywhere: bool,
    },
    /// It failed on another rank, which reports.
    #[error("rank {rank} failed")]
    Elsewhere {
        /// The lowest rank on which it failed.
        rank: usize,
    },
    /// The ranks could not tell each other.
    #[error(transparent)]
    Comm(CommError),
}

impl<E> Failure<E> {
    /// Whose part it is to report.
    pub fn voice(&self) -> Voice {
        match self {
            Failure::Here { everywhere: true, .. } => Voice::Shared,
            Failure::Here { speaks: true, .. } => Voice::Own,
            Failure::Here { .. } | Failure::Elsewhere { .. } => Voice::Consequence,
            Failure::Comm(error) => error.voice(),
        }
    }
}

impl World {
    /// Tells all ranks whether any of them failed, at a point that all of them reach.
    ///
    /// # Errors
    /// [`Failure`] on every rank if it failed on any.
    pub fn collective_result<T, E>(&self, result: Result<T, E>) -> Result<T, Failure<E>> {
        let flags = match self.group().all_gather_bytes(&[u8::from(result.is_err())]) {
            Ok(flags) => flags,
            Err(error) => return Err(Failure::Comm(error)),
        };
        let failed = |flag: &Vec<u8>| flag[..] == [1];
        let first = flags.iter().position(failed);
        match (result, first) {
            (Ok(value), None) => Ok(value),
            (Ok(_), Some(rank)) => Err(Failure::Elsewhere { rank }),
            (Err(error), _) => {
                let speaks = first == Some(self.rank().0);
                Err(Failure::Here { error, speaks, everywhere: flags.iter().all(failed) })
            }
        }
    }

    /// How this rank's messages begin, such as `[rank 1 node7] `; nothing in a world of one.
    pub fn prefix(&self) -> String {
        match self.world_size() {
            1 => String::new(),
            _ => format!("[rank {} {}] ", self.rank(), self.hostname()),
        }
    }
}

/// Says why, if it is this rank's part, and ends the whole job with this status.
///
/// The world must still be alive: a rank that has left it makes the others speak of that. Where ranks are
/// threads, this ends the process.
pub fn abort(world: &World, exit_code: i32, voice: Voice, message: impl Display) -> ! {
    let (speaks, prefix) = match voice {
        Voice::Own => (true, world.prefix()),
        Voice::Shared => (world.rank().0 == 0, String::new()),
        Voice::Consequence => (world.world_size() == 1, world.prefix()),
    };
    if !speaks {
        std::thread::sleep(PATIENCE);
    }
    say(&format!("{prefix}{message}\n"));
    end_job(exit_code)
}

/// Makes a panic on any thread of this process end the whole job, with a message that names rank and host.
///
/// In a world of one, panics stay as they are; those under [`catch_panic`] are passed over. The hook is the process's: for
/// ranks that are processes.
pub fn install_panic_hook(world: &World) {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    if world.world_size() == 1 {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                usual(panic);
            }
        }));
        return;
    }
    let prefix = world.prefix();
    std::panic::set_hook(Box::new(move |panic| {
        if IS_CAUGHT.get() {
            return;
        }
        if PANICKED.swap(true, Ordering::SeqCst) {
            // Another thread of this rank is ending the job.
            std::thread::sleep(PATIENCE);
        }
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{backtrace}\n"),
            _ => String::new(),
        };
        say(&format!("{trace}{prefix}{panic}\n"));
        end_job(PANIC_EXIT_CODE)
    }));
}

/// What `call` gives, or its panic, which is then neither told nor the end of the job: for code of others that panics at bad
/// input.
///
/// # Errors
/// The panic.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_CAUGHT.set(before);
    result
}

/// One write, so that lines of several ranks don't mix; nobody is left to hear that it failed.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Ends the job with a failed run's status, from a place where nothing can be returned.
pub(crate) fn end_job_because(reason: &str) -> ! {
    say(&format!("{reason}\n"));
    end_job(1)
}

/// Ends all ranks, and this process at least.
fn end_job(exit_code: i32) -> ! {
    #[cfg(feature = "mpi")]
    crate::group::mpi::abort::abort(exit_code);
    std::process::exit(exit_code)
}

#[cfg(test)]
mod tests {
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
    fn the_lowest_failing_rank_speaks() {
        let here =
            |rank, speaks| Err(Failure::Here { error: format!("no file {rank}"), speaks, everywhere: false });
        assert_eq!(outcomes(&[1, 2]), [Err(Failure::Elsewhere { rank: 1 }), here(1, true), here(2, false)]);
        let voices = outcomes(&[1, 2]).map_err_voices();
        assert_eq!(voices, [Voice::Consequence, Voice::Own, Voice::Consequence]);
    }

    #[test]
    fn a_failure_of_all_is_told_once() {
        assert_eq!(outcomes(&[0, 1, 2]).map_err_voices(), [Voice::Shared; 3]);
    }

    trait Voices {
        fn map_err_voices(self) -> Vec<Voice>;
    }

    impl Voices for Vec<Result<usize, Failure<String>>> {
        fn map_err_voices(self) -> Vec<Voice> {
            self.into_iter().map(|outcome| outcome.unwrap_err().voice()).collect()
        }
    }

    #[test]
    fn panics_that_are_caught_are_results() {
        install_panic_hook(&World::single());
        assert!(catch_panic(|| -> i32 { panic!("not to be seen") }).is_err());
        assert_eq!(catch_panic(|| catch_panic(|| 1).unwrap() + 1).unwrap(), 2);
        assert!(!IS_CAUGHT.get());
    }

    #[test]
    fn a_world_of_one_has_no_prefix() {
        assert_eq!(World::single().prefix(), "");
        let prefixes = threads::run(2, |world| world.prefix());
        assert!(prefixes[1].starts_with("[rank 1 ") && prefixes[1].ends_with("] "), "{prefixes:?}");
    }
}
