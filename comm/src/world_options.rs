//! Options of the world.

use std::time::Duration;

use crate::fnv1a::fnv1a_128;

/// Options of [`World::init_with`](crate::World::init_with).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldOptions {
    /// Whether ranks of one host exchange data through shared memory, where possible. Otherwise they send it by MPI, as ranks
    /// of several hosts do.
    pub shared_memory: bool,
    /// Time for which a rank waits in shared memory for another one before its collective fails. `None`: without limit, since a
    /// rank may legitimately be busy for minutes, and one that dies ends the job.
    pub timeout: Option<Duration>,
    /// Name and version of the program. Ranks with another one are refused before they exchange anything else.
    pub program: &'static str,
    /// Whether ranks that join without MPI ([`Launcher::Environment`](crate::Launcher::Environment)) do so. Otherwise this process is
    /// alone: for a command that needs no other rank and must not wait for one.
    pub joins_by_environment: bool,
    /// Tells the job from others whose ranks meet at the same place, where the environment does not; see [`WorldOptions::for_job`].
    pub job: u128,
    /// Time for which such ranks wait for each other when they join.
    pub join_limit: Duration,
    /// Exit status of such ranks after one of them died before the watchdog was started.
    pub lost_exit_code: i32,
}

impl WorldOptions {
    /// The same options for a job that `name` tells from others, such as the folder of its results. It is the same on all ranks.
    pub fn for_job(self, name: &str) -> Self {
        WorldOptions { job: fnv1a_128(name.as_bytes()), ..self }
    }
}

impl Default for WorldOptions {
    fn default() -> Self {
        let program = concat!("ddp-comm ", env!("CARGO_PKG_VERSION"));
        WorldOptions {
            shared_memory: true,
            timeout: None,
            program,
            joins_by_environment: true,
            job: 0,
            join_limit: Duration::from_secs(300),
            lost_exit_code: 1,
        }
    }
}
