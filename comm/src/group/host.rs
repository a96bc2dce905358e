//! Sets up the memory that the ranks of one host share; if any rank cannot map it, none uses it.

use std::io;
use std::time::Duration;

use ddp_kernels::cpu::cpu_set::CpuSet;

use super::host_memory::{self, Address, Mapping};
use super::lockstep::{Board, Geometry, Lockstep, Patience, Region};
use crate::Result;

/// The memory, or the reason of the first rank that can't map it, the same on all ranks.
pub(super) type Shared = std::result::Result<Lockstep, String>;

/// A rank among all, and among those of its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: usize,
    pub(super) local_size: usize,
}

/// A rank that has been joined with the others.
pub(crate) struct Joined<T> {
    /// Connection to the other ranks.
    pub(super) transport: T,
    /// Memory that all ranks share; the reason why they do not, where they could.
    pub(super) shared: std::result::Result<Lockstep, Option<String>>,
    pub(super) place: Place,
}

impl<T> Joined<T> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Joined<U> {
        let Joined { transport, shared, place } = self;
        Joined { transport: to(transport), shared, place }
    }
}

/// Joins the ranks of this host, which are all ranks, by shared memory. That may be impossible, for example because the ranks run in
/// different PID namespaces.
///
/// - `gather`: gathers the same number of words from every rank, in rank order
pub(super) fn join(
    mut gather: impl FnMut(&[i64]) -> Result<Vec<i64>>,
    rank: usize,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<Shared> {
    let geometry = Geometry::usual(world_size);
    let n_bytes = geometry.region_bytes();
    let created = (rank == 0).then(|| host_memory::create(n_bytes).map_err(|error| code(&error)));
    // No process has id 0: rank 0 could not create the file.
    let words = created.as_ref().and_then(|of| of.as_ref().ok()).map_or([0; 4], |(_, of)| to_words(*of));
    let all = gather(&words)?;
    let opened = || host_memory::open(from_words(&all[..4])).and_then(|file| Mapping::new(&file, n_bytes));
    let mapped = match &created {
        Some(Ok((file, _))) => Mapping::new(file, n_bytes).map_err(|error| code(&error)),
        Some(Err(code)) => Err(*code),
        None => opened().map_err(|error| code(&error)),
    };
    // Rank 0's file stays open until all ranks have mapped it: this all-gather returns after all have.
    let answers = gather(&[mapped.as_ref().err().copied().unwrap_or(MAPPED)])?;
    drop(created);
    let cpus = gather(&CpuSet::for_thread().to_words().map(|word| word as i64))?;
    let failed = answers.iter().position(|answer| *answer != MAPPED);
    let (Ok(mapping), None) = (mapped, failed) else {
        let rank = failed.unwrap_or_default();
        return Ok(Err(format!("rank {rank}: {}", text(answers[rank]))));
    };
    let board = Board::new(Region::Mapped(mapping), geometry);
    let patience = Patience::new(world_size, count_cores(&cpus));
    Ok(Ok(Lockstep::new(board, rank, patience, timeout)))
}

/// The answer of a rank that has mapped the memory.
const MAPPED: i64 = 0;
/// That of one that finds another file where rank 0 has its own.
const OTHER_FILE: i64 = -1;

/// The answer of a rank that can't map the memory.
fn code(error: &io::Error) -> i64 {
    error.raw_os_error().map_or(OTHER_FILE, i64::from)
}

fn text(code: i64) -> String {
    match code {
        OTHER_FILE => "/proc shows it the processes of another container".to_owned(),
        code => io::Error::from_raw_os_error(code as i32).to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_finds_no_memory_says_why() {
        let mut n_calls = 0;
        // This process cannot see the process of rank 0.
        let gather = |own: &[i64]| {
            n_calls += 1;
            let of_rank_0 =
                if n_calls == 1 { vec![i64::from(i32::MAX), 3, 1, 1] } else { vec![0; own.len()] };
            Ok([&of_rank_0, own].concat())
        };
        let joined = join(gather, 1, 2, None).unwrap();
        assert_eq!(joined.err().unwrap(), "rank 1: No such file or directory (os error 2)");
        assert!(text(OTHER_FILE).contains("container"));
    }
}
