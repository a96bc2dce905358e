//! Sets up the memory that the ranks of one host share; where any of them cannot, all do without.

use std::time::Duration;

use super::super::lockstep::{Board, Geometry, Lockstep, Patience, Region};
use super::mapping::{self, Address, Mapping};
use super::plain::Plain;
use crate::Result;

/// Words of a set of processors, as `sched_getaffinity` fills it (1024 bits).
const CPU_WORDS: usize = 16;

/// Joins the ranks of this host, which are all ranks, by shared memory; `None` where that is impossible, such as
/// in ranks that don't see each other's processes.
pub(super) fn join(
    plain: &Plain,
    rank: usize,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<Option<Lockstep>> {
    let geometry = Geometry::usual(world_size);
    let created = if rank == 0 { mapping::create(geometry.region_bytes()).ok() } else { None };
    let words = created.as_ref().map_or([0; 4], |(_, address)| to_words(*address));
    let all = plain.gather_words(words)?;
    let address = from_words(&all[..4]);
    let mapped = match &created {
        Some((file, _)) => Mapping::new(file, geometry.region_bytes()).ok(),
        // A process 0 is nobody's: rank 0 could not make the file.
        None if address.pid == 0 => None,
        None => mapping::open(address).and_then(|f| Mapping::new(&f, geometry.region_bytes())).ok(),
    };
    // Rank 0's file stays open until all have it: they answer before anybody goes on.
    let answers = plain.gather_words([i64::from(mapped.is_some())])?;
    drop(created);
    let cpus = plain.gather_words(own_cpus())?;
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

/// The processors that this process may run on, as a set of bits.
fn own_cpus() -> [i64; CPU_WORDS] {
    let mut set = [0i64; CPU_WORDS];
    // SAFETY: the set is writable for its size, and any bits in it are a valid value.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), set.as_mut_ptr().cast()) };
    set
}

/// Cores that the ranks have between them: those that any of them may run on, if no quota allows less.
fn count_cores(all: &[i64]) -> usize {
    let union = (0..CPU_WORDS).map(|word| all.iter().skip(word).step_by(CPU_WORDS).fold(0, |a, b| a | b));
    let in_union: u32 = union.map(i64::count_ones).sum();
    let own: u32 = own_cpus().iter().map(|word| word.count_ones()).sum();
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    // The standard library counts a control group's quota in; it is one for all ranks of the host.
    if allowed < own as usize { allowed } else { in_union as usize }
}
