//! How a rank that fails takes the job with it, and says why.

use std::io::Write;

use crate::{CommError, World};

/// The end of a step that failed on some rank.
#[derive(Debug)]
pub enum Failure<E> {
    /// It failed on this rank.
    Here {
        /// The error.
        error: E,
        /// Whether this rank is the one that reports for all.
        speaks: bool,
        /// Whether all ranks failed.
        everywhere: bool,
    },
    /// It failed on another rank, which reports.
    Elsewhere {
        /// The lowest rank on which it failed.
        rank: usize,
    },
    /// The ranks could not tell each other.
    Comm(CommError),
}

impl World {
    /// Tells all ranks whether any of them failed, at a point that all of them reach.
    ///
    /// # Errors
    /// [`Failure`] on every rank if any failed, so that all can end in good order.
    pub fn collective_result<T, E>(&self, result: Result<T, E>) -> Result<T, Failure<E>> {
        let flags = match self.group().all_gather_bytes(&[u8::from(result.is_err())]) {
            Ok(flags) => flags,
            Err(error) => return Err(Failure::Comm(error)),
        };
        let first = flags.iter().position(|flag| flag == &[1]);
        let everywhere = flags.iter().all(|flag| flag == &[1]);
        match (result, first) {
            (Ok(value), None) => Ok(value),
            (Ok(_), Some(rank)) => Err(Failure::Elsewhere { rank }),
            (Err(error), first) => {
                let speaks = first == Some(self.rank().0);
                Err(Failure::Here { error, speaks, everywhere })
            }
        }
    }

    /// How this rank's messages begin, such as `[rank 1 node7]`; nothing in a world of one.
    pub fn prefix(&self) -> String {
        match self.world_size() {
            1 => String::new(),
            _ => format!("[rank {} {}] ", self.rank(), self.hostname()),
        }
    }
}

/// Prints a message with this rank's prefix and ends the whole job with this status.
pub fn abort(world: &World, exit_code: i32, message: &str) -> ! {
    // One write, so that lines of several ranks don't mix; nobody is left to hear that it failed.
    let _ = std::io::stderr().write_all(format!("{}{message}\n", world.prefix()).as_bytes());
    end_job(exit_code)
}

fn end_job(exit_code: i32) -> ! {
    #[cfg(feature = "mpi")]
    crate::group::mpi::abort(exit_code);
    #[cfg(not(feature = "mpi"))]
    std::process::exit(exit_code);
}

/// Makes a panic on any thread of this process end the whole job, with a message that names rank and host.
pub fn install_panic_hook(world: &World) {
    let prefix = world.prefix();
    if world.world_size() == 1 {
        return;
    }
    std::panic::set_hook(Box::new(move |panic| {
        let _ = std::io::stderr().write_all(format!("{prefix}{panic}\n").as_bytes());
        end_job(101)
    }));
}
