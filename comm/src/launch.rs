//! One program for a laptop and for a cluster: ranks are threads, or processes where a launcher started this one.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::thread;

use ddp_kernels::cpu::threads::{joins_by_itself, share_of_thread};

use crate::{CommError, Launcher, Reporter, World, failure, threads};

/// Exit status of a job in which `body` failed on a rank.
const EXIT_FAILED: i32 = 1;

/// Runs `body` on every rank and returns the results of the ranks of this process, in their order.
///
/// - without a launcher, `n_threads` ranks are threads of this process, for tests and laptops
/// - under `mpirun`, or another launcher, this process is one rank, and `n_threads` is ignored
///
/// Call it first in `main`.
///
/// # Errors
/// If ranks are threads, returns the error of the rank that failed first; collectives of the others fail with
/// [`CommError::PeerLeft`]. If ranks are processes, returns the errors of [`World::init`] and [`World::close`]; a rank on which `body`
/// fails prints its error to stderr and ends the whole job with status 1.
///
/// # Panics
/// If a rank that is a thread panicked, or `n_threads` is 0. A panic of a rank that is a process ends the job.
///
/// ```
/// use ddp_comm::{CommError, ReduceOp, launch};
/// use ddp_kernels::TensorMut;
///
/// let sums = launch(3, |world| -> Result<f32, CommError> {
///     let mut x = [world.rank().0 as f32];
///     world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut x, &[1])?)?;
///     Ok(x[0])
/// })?;
/// assert_eq!(sums, [3.0; 3]);
/// # Ok::<(), CommError>(())
/// ```
pub fn launch<T, E>(n_threads: usize, body: impl Fn(&World) -> Result<T, E> + Sync) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<CommError> + Display + Send,
{
    if Launcher::detect().is_none() {
        return on_threads(n_threads, body);
    }
    let world = World::init()?;
    failure::install_panic_hook(&world);
    match body(&world) {
        Ok(result) => {
            world.close()?;
            Ok(vec![result])
        }
        Err(error) => failure::abort(&world, EXIT_FAILED, Reporter::ThisRank, error),
    }
}

fn on_threads<T: Send, E: Send>(
    n_threads: usize,
    body: impl Fn(&World) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let first_error = Mutex::new(None);
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let results = threads::run(n_threads, |world| {
        let _share = joins_by_itself().then(|| share_of_thread((cores / n_threads).max(1)));
        // Recorded before the world is dropped, which fails the collectives of the others.
        body(&world).map_err(|error| {
            first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        })
    });
    match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_return_their_results_in_rank_order() {
        let ranks = launch(3, |world| Ok::<_, CommError>((world.rank().0, world.world_size())));
        assert_eq!(ranks.unwrap(), [(0, 3), (1, 3), (2, 3)]);
    }

    #[test]
    fn the_cause_is_returned_and_not_what_followed_from_it() {
        for failing in 0..3 {
            let cause = CommError::CountMismatch { bucket: failing, rank: failing, got: 1, expected: 2 };
            let failed = launch(3, |world| match world.rank().0 {
                rank if rank == failing => Err(cause.clone()),
                _ => world.group().barrier(),
            });
            assert_eq!(failed.unwrap_err(), cause);
        }
    }
}
