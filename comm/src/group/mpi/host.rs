//! Sets up the memory that the ranks of one host share; if any rank cannot map it, none uses it.

use std::time::Duration;

use super::super::host_memory::{self, Address, Mapping};
use super::super::lockstep::{Board, Geometry, Lockstep, Patience, Region};
use super::collectives::MpiCollectives;
use crate::Result;

/// Words of a CPU set, as `sched_getaffinity` fills it (1024 bits).
const CPU_WORDS: usize = 16;

/// Joins the ranks of this host, which are all ranks, by shared memory. `None` if that is impossible, for example because the
/// ranks run in different PID namespaces.
pub(super) fn join(
    messages: &MpiCollectives,
    rank: usize,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<Option<Lockstep>> {
    let geometry = Geometry::usual(world_size);
    let created = if rank == 0 { host_memory::create(geometry.region_bytes()).ok() } else { None };
    let words = created.as_ref().map_or([0; 4], |(_, address)| to_words(*address));
    let all = messages.gather_words(words)?;
    let address = from_words(&all[..4]);
    let mapped = match &created {
        Some((file, _)) => Mapping::new(file, geometry.region_bytes()).ok(),
        // No process has id 0: rank 0 could not create the file.
        None if address.pid == 0 => None,
        None => host_memory::open(address).and_then(|f| Mapping::new(&f, geometry.region_bytes())).ok(),
    };
    // Rank 0's file stays open until all ranks have mapped it: this all-gather returns after all have.
    let answers = messages.gather_words([i64::from(mapped.is_some())])?;
    drop(created);
    let cpus = messages.gather_words(own_cpus())?;
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

/// The CPUs that this process may run on, one bit each.
fn own_cpus() -> [i64; CPU_WORDS] {
    let mut set = [0i64; CPU_WORDS];
    // SAFETY: the set is writable for its size, and any bits in it are a valid value.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), set.as_mut_ptr().cast()) };
    set
}

/// Number of cores that the ranks share: those that any rank may run on, or fewer if a quota is lower.
fn count_cores(all: &[i64]) -> usize {
    let union = (0..CPU_WORDS).map(|word| all.iter().skip(word).step_by(CPU_WORDS).fold(0, |a, b| a | b));
    let in_union: u32 = union.map(i64::count_ones).sum();
    let own: u32 = own_cpus().iter().map(|word| word.count_ones()).sum();
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    // The standard library respects the quota of a control group, which holds for all ranks of the host together.
    if allowed < own as usize { allowed } else { in_union as usize }
}
