//! Work that the first rank of each host does, and whose result the others take from it.
//!
//! A stage of loading runs on the first rank of each host, which records the results of its expensive steps, and then on the others, which
//! take each step's result instead: [`in_turn`] and [`once`]. So all ranks of a host hold the same rows, which are read and kept once.

use ddp::data::error::{DataError, Result};
use ddp::data::parallel;
use ddp_comm::{Failure, HostShare, World};
use ddp_kernels::cpu::cpu_set::CpuSet;

use crate::error::TableError;

/// Runs `stage` on the first rank of each host, which may use all of its CPUs, and then on the other ranks. Collective.
///
/// # Errors
/// The errors of `stage`, of any rank.
pub fn in_turn<T, E>(
    world: &World,
    host: Option<&HostShare>,
    stage: impl FnOnce() -> Result<T, E>,
) -> Result<T, Failure<E>> {
    let Some(host) = host else { return world.collective_result(stage()) };
    if host.leads() {
        let result = if host.has_readers() { with_all_cpus(host, stage) } else { stage() };
        let result = world.result_of_some(result, host.n_hosts())?;
        host.follow(world).map_err(Failure::Comm)?;
        return world.collective_result(Ok(result));
    }
    world.result_of_some(Ok(()), host.n_hosts())?;
    host.follow(world).map_err(Failure::Comm)?;
    world.collective_result(stage())
}

/// Lets `stage` use the CPUs of all ranks of this host, which wait for it.
fn with_all_cpus<T>(host: &HostShare, stage: impl FnOnce() -> T) -> T {
    let own = CpuSet::for_thread();
    let is_wider = host.cpus() != own && host.cpus().bind_thread().is_ok();
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let result = parallel::with_threads(n_threads, stage);
    if is_wider {
        // It was allowed before.
        let _ = own.bind_thread();
    }
    result
}

/// The result of `compute` as bytes: the first rank of a host computes and records it, the others read it.
///
/// # Errors
/// The errors of `compute`; [`TableError::HostMemory`].
pub(crate) fn once(host: Option<&HostShare>, compute: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let failed = |source| DataError::from(TableError::HostMemory { source });
    match host.filter(|host| host.takes_part()) {
        None => compute(),
        Some(host) if host.leads() => {
            let result = compute()?;
            host.write(&result).map_err(failed)?;
            Ok(result)
        }
        Some(host) => host.read().map_err(failed),
    }
}
