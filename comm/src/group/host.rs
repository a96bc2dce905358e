//! Sets up the memory that the ranks of one host share; if any rank cannot map it, none uses it.

use std::time::Duration;

use ddp_kernels::cpu::cpu_set::CpuSet;

use super::host_memory::{self, Address, Mapping};
use super::lockstep::{Board, Geometry, Lockstep, Patience, Region};
use crate::Result;

/// Joins the ranks of this host, which are all ranks, by shared memory. `None` if that is impossible, for example because the
/// ranks run in different PID namespaces.
///
/// - `gather`: gathers the same number of words from every rank, in rank order
pub(super) fn join(
    mut gather: impl FnMut(&[i64]) -> Result<Vec<i64>>,
    rank: usize,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<Option<Lockstep>> {
    let geometry = Geometry::usual(world_size);
    let created = if rank == 0 { host_memory::create(geometry.region_bytes()).ok() } else { None };
    let words = created.as_ref().map_or([0; 4], |(_, address)| to_words(*address));
    let all = gather(&words)?;
    let address = from_words(&all[..4]);
    let mapped = match &created {
        Some((file, _)) => Mapping::new(file, geometry.region_bytes()).ok(),
        // No process has id 0: rank 0 could not create the file.
        None if address.pid == 0 => None,
        None => host_memory::open(address).and_then(|f| Mapping::new(&f, geometry.region_bytes())).ok(),
    };
    // Rank 0's file stays open until all ranks have mapped it: this all-gather returns after all have.
    let answers = gather(&[i64::from(mapped.is_some())])?;
    drop(created);
    let cpus = gather(&CpuSet::for_thread().to_words().map(|word| word as i64))?;
    let Some(mapping) = mapped.filter(|_| answers.iter().all(|&answer| answer == 1)) else {
        return Ok(None);
    };
    let board = Board::new(Region::Mapped(mapping), geometry);
    let patience = Patience::new(world_size, count_cores(&cpus));
    Ok(Some(Lockstep::new(board, rank, patience, timeout)))
}

fn to_words(address: Address) -> [i64; 4] {
    [address.pid.into(), address.fd.into(), address.device as i64, address.inode as i64]
}

fn from_words(words: &[i64]) -> Address {
    Address { pid: words[0] as u32, fd: words[1] as i32, device: words[2] as u64, inode: words[3] as u64 }
}

/// Number of cores that the ranks share: those that any rank may run on, or fewer if a quota is lower.
fn count_cores(all: &[i64]) -> usize {
    let n_words = CpuSet::default().to_words().len();
    let union = (0..n_words).map(|word| all.iter().skip(word).step_by(n_words).fold(0, |a, b| a | b));
    let in_union: u32 = union.map(i64::count_ones).sum();
    let own = CpuSet::for_thread().len();
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    // The standard library respects the quota of a control group, which holds for all ranks of the host together.
    if allowed < own { allowed } else { in_union as usize }
}
