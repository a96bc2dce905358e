//! Who the ranks of a job are: found out once, at the start, and handed on by reference.

use std::cell::OnceCell;
use std::fmt;
use std::time::Duration;

use crate::group::SingleGroup;
#[cfg(feature = "mpi")]
use crate::group::mpi::MpiGroup;
use crate::launcher::{self, Found};
use crate::peer::Peers;
use crate::{Group, Launcher, Result};

/// A rank's number in the world, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub usize);

/// A rank's number among those of its host, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalRank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a world is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldOptions {
    /// Whether ranks of one host exchange data through memory that they share, where that is possible. Otherwise
    /// they send it by MPI, as ranks of several hosts do.
    pub shared_memory: bool,
    /// How long a rank waits in shared memory for another one before its collective fails; `None` for ever, since
    /// a rank may rightly be busy for minutes, and one that died ends the job.
    pub timeout: Option<Duration>,
}

impl Default for WorldOptions {
    fn default() -> Self {
        WorldOptions { shared_memory: true, timeout: None }
    }
}

/// One rank's place among all.
#[derive(Debug)]
pub struct World {
    local_rank: LocalRank,
    local_size: usize,
    hostname: String,
    launcher: Option<Launcher>,
    /// What exchanges tensors between GPUs, once they are joined. Ends before the host's group does.
    pub(crate) device_group: OnceCell<Group>,
    /// What other ranks have mapped of this rank's memory, and it of theirs.
    pub(crate) peers: Peers,
    group: Group,
}

impl World {
    /// Joins the ranks that a launcher started, by MPI; without a launcher, or where it started one rank, the
    /// world is this process alone and MPI is not initialised.
    ///
    /// To be called first thing, on the main thread; collectives are called on the same thread.
    ///
    /// # Errors
    /// [`LauncherWithoutMpi`](crate::CommError::LauncherWithoutMpi) in a build without the feature `mpi`;
    /// [`LauncherMismatch`](crate::CommError::LauncherMismatch) if MPI finds another number of ranks than the
    /// launcher started; [`MpiInUse`](crate::CommError::MpiInUse) for a second world;
    /// [`Mpi`](crate::CommError::Mpi).
    pub fn init() -> Result<Self> {
        Self::init_with(WorldOptions::default())
    }

    /// As [`World::init`], with options.
    ///
    /// # Errors
    /// As [`World::init`].
    pub fn init_with(options: WorldOptions) -> Result<Self> {
        match launcher::detect(|name| std::env::var(name).ok()) {
            None => Ok(Self::single()),
            Some(Found { launcher, n_ranks: Some(1) }) => {
                Ok(World { launcher: Some(launcher), ..Self::single() })
            }
            Some(found) => Self::join(found, options),
        }
    }

    /// This process alone, whoever started it.
    pub fn single() -> Self {
        World {
            local_rank: LocalRank(0),
            local_size: 1,
            hostname: hostname(),
            launcher: None,
            device_group: OnceCell::new(),
            peers: Peers::default(),
            group: Group::Single(SingleGroup::default()),
        }
    }

    #[cfg(feature = "mpi")]
    fn join(found: Found, options: WorldOptions) -> Result<Self> {
        let group = MpiGroup::init(found, options)?;
        Ok(World {
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            hostname: hostname(),
            launcher: Some(found.launcher),
            device_group: OnceCell::new(),
            peers: Peers::default(),
            group: Group::Mpi(Box::new(group)),
        })
    }

    #[cfg(not(feature = "mpi"))]
    fn join(Found { launcher, n_ranks }: Found, _: WorldOptions) -> Result<Self> {
        Err(crate::CommError::LauncherWithoutMpi { launcher, n_ranks })
    }

    /// The world of one thread among threads.
    pub(crate) fn of_threads(group: Group) -> Self {
        World {
            local_rank: LocalRank(group.rank().0),
            local_size: group.world_size(),
            hostname: hostname(),
            launcher: None,
            device_group: OnceCell::new(),
            peers: Peers::default(),
            group,
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.group.world_size()
    }

    /// This rank's number on its host: the index of its GPU.
    pub fn local_rank(&self) -> LocalRank {
        self.local_rank
    }

    /// Number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// Name of this host.
    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    /// Who started the ranks, if it was a launcher.
    pub fn launcher(&self) -> Option<Launcher> {
        self.launcher
    }

    /// The collectives over all ranks, for tensors of the host; [`World::tensor_group`] is the one for those of the
    /// device.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Leaves the world in good order, as all ranks must; see [`Group::close`].
    ///
    /// A world that is dropped is closed too, unless its thread panics, and nobody learns of an error.
    ///
    /// # Errors
    /// [`Mpi`](crate::CommError::Mpi); [`Nccl`](crate::CommError::Nccl).
    pub fn close(self) -> Result<()> {
        let device = self.device_group.into_inner().map_or(Ok(()), Group::close);
        let peers = self.peers.close(&self.group);
        let host = self.group.close();
        device.and(peers).and(host)
    }
}

/// The host's name, or `localhost` where the system does not say.
fn hostname() -> String {
    // POSIX allows 255 bytes.
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is writable for one byte less than its length, so it ends in a zero whatever is written.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let name = buffer.split(|&byte| byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(name) {
        Ok(name) if status == 0 && !name.is_empty() => name.to_owned(),
        _ => "localhost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_launcher_is_a_world_of_one() {
        let world = World::single();
        assert_eq!((world.rank(), world.world_size()), (Rank(0), 1));
        assert_eq!((world.local_rank(), world.local_size()), (LocalRank(0), 1));
        assert!(!world.hostname().is_empty() && world.launcher().is_none());
        world.close().unwrap();
    }
}
