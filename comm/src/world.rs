//! The ranks of a job: found once, at the start, and passed on by reference.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ddp_kernels::cpu::threads::{joins_by_itself, set_share};

use crate::device_groups::DeviceGroups;
use crate::environment::{Meeting, is_alone_by_accelerate};
use crate::group::SingleGroup;
use crate::group::host_group::HostGroup;
use crate::group::mpi;
use crate::host_place::HostPlace;
use crate::launcher::{self, Found};
use crate::launcher_process::LauncherProcess;
use crate::mpi_library::Mpi;
use crate::recorder::Recorder;
use crate::shared_tensor::Peers;
use crate::stderr::write_stderr;
use crate::this_host::{boot_id, hostname};
use crate::watchdog::{LossReport, Unwatched, Watchdog, WatchdogOptions};
use crate::{CommError, Group, Launcher, LocalRank, Rank, Result, WorldOptions};

thread_local! {
    /// Where ranks are threads.
    static PLACE_OF_THREAD: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}
/// Where ranks are processes.
static RANK_OF_PROCESS: AtomicUsize = AtomicUsize::new(0);
static RANKS_WITH_PROCESS: AtomicUsize = AtomicUsize::new(1);

/// The ranks of a job, as one of them sees them.
///
/// ```
/// use ddp_comm::World;
///
/// let world = World::single();
/// assert_eq!((world.rank().0, world.world_size()), (0, 1));
/// ```
#[derive(Debug)]
pub struct World {
    local_rank: LocalRank,
    local_size: usize,
    hostname: String,
    launcher: Option<Launcher>,
    /// The process that joined them, if it is on this host.
    launcher_process: Option<LauncherProcess>,
    /// Exchange tensors between GPUs, once they are joined. Closed before the host's group.
    pub(crate) device_groups: DeviceGroups,
    /// Memory of this rank that other ranks have mapped, and memory of theirs that this rank has mapped.
    pub(crate) peers: Peers,
    recorder: Arc<Recorder>,
    group: Group,
    /// The last one to be dropped: it watches the other ranks while the groups wait for them.
    watchdog: Own,
}

/// The watchdog of a world, which leaves with it.
#[derive(Debug, Default)]
struct Own(Watchdog);

impl Drop for Own {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The end of a rank that panics is a loss: its thread must not take the world's for a goodbye.
            std::mem::forget(self.0.clone());
        } else {
            self.0.leave();
        }
    }
}

impl World {
    /// Joins the ranks that a launcher started, by MPI; ranks that the environment describes as torchrun does
    /// ([`Launcher::Environment`]) join without MPI. Without a launcher, or if it started one rank, the world is this process alone and
    /// MPI is not initialized.
    ///
    /// Call it first in `main`, and call collectives on the same thread. Waits for all ranks.
    ///
    /// # Errors
    /// [`NoMpiLibrary`](crate::CommError::NoMpiLibrary) in a build without the feature `mpi`, if that of the launcher cannot be opened;
    /// [`Environment`](crate::CommError::Environment) if variables do not fit, and [`MissingRanks`](crate::CommError::MissingRanks) if
    /// ranks that they describe do not come;
    /// [`LauncherMismatch`](crate::CommError::LauncherMismatch) if MPI finds another number of ranks than the
    /// launcher started; [`DifferentPrograms`](crate::CommError::DifferentPrograms) if the ranks run different builds;
    /// [`MpiInUse`](crate::CommError::MpiInUse) for a second world; [`Mpi`](crate::CommError::Mpi) if a call to MPI fails.
    ///
    /// Source: MPI 4.0, chapter 11, `MPI_Init_thread` with `MPI_THREAD_FUNNELED`.
    pub fn init() -> Result<Self> {
        Self::init_with(WorldOptions::default())
    }

    /// Makes settings of MPI that a user who made none is better off with, such as none of a network for ranks of one host.
    ///
    /// They are variables of the environment, so nothing is set in a process that has other threads already. [`World::init`] does the
    /// same: a program that starts threads before it joins the ranks calls this first.
    pub fn before_threads() {
        mpi::set_defaults();
    }

    /// Joins the ranks as [`World::init`] does, with options, and returns the same errors.
    pub fn init_with(options: WorldOptions) -> Result<Self> {
        Self::before_threads();
        let found = launcher::detect(|name| std::env::var(name).ok());
        let alone = match &found {
            Ok(Some(Found { meeting: Some(_), launcher, .. })) => Some(*launcher),
            Err(_) => Some(Launcher::Environment),
            _ => None,
        };
        if let (Some(launcher), false) = (alone, options.joins_by_environment) {
            return Ok(World { launcher: Some(launcher), ..Self::single() });
        }
        match found? {
            None => {
                if options.joins_by_environment {
                    HostPlace::refuse_alone()?;
                    if is_alone_by_accelerate(|name| std::env::var(name).ok()) {
                        write_stderr(
                            "warning: accelerate was asked for several processes and has started one, which runs alone\n\
                             hint: accelerate launch --multi_gpu, torchrun and `ddp-train launch -n N -- ...` start each rank\n",
                        );
                    }
                }
                Ok(Self::single())
            }
            Some(Found { launcher, n_ranks: Some(1), .. }) => {
                Ok(World { launcher: Some(launcher), ..Self::single() })
            }
            Some(Found { meeting: Some(meeting), launcher, .. }) => Self::meet(&meeting, launcher, options),
            Some(found) => Self::join(found, options),
        }
        .and_then(Self::begin)
    }

    /// Records this process's rank, and its share of the cores for its first operation.
    fn begin(self) -> Result<Self> {
        RANK_OF_PROCESS.store(self.rank().0, Ordering::Relaxed);
        RANKS_WITH_PROCESS.store(self.world_size(), Ordering::Relaxed);
        if self.world_size() > 1 && joins_by_itself() {
            set_share(self.cores_per_rank()?);
        }
        Ok(self)
    }

    /// The rank of this thread or, where ranks are processes, of this process: 0 until a world of several ranks is made here.
    pub fn own_rank() -> Rank {
        Rank(PLACE_OF_THREAD.get().map_or_else(|| RANK_OF_PROCESS.load(Ordering::Relaxed), |(rank, _)| rank))
    }

    /// The number of ranks of the world that [`World::own_rank`] is of; 1 without one.
    #[doc(hidden)]
    pub fn own_world_size() -> usize {
        PLACE_OF_THREAD.get().map_or_else(|| RANKS_WITH_PROCESS.load(Ordering::Relaxed), |(_, size)| size)
    }

    /// Joins ranks without MPI.
    fn meet(meeting: &Meeting, launcher: Launcher, options: WorldOptions) -> Result<Self> {
        let hostname = hostname();
        let group = HostGroup::by_star(meeting, options, &hostname)?;
        Ok(World {
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            hostname,
            launcher: Some(launcher),
            launcher_process: None,
            device_groups: DeviceGroups::default(),
            peers: Peers::default(),
            recorder: Arc::default(),
            watchdog: Own::default(),
            group: Group::Host(Box::new(group)),
        })
    }

    /// The world of this process alone, even under a launcher.
    pub fn single() -> Self {
        World {
            local_rank: LocalRank(0),
            local_size: 1,
            hostname: hostname(),
            launcher: None,
            launcher_process: None,
            device_groups: DeviceGroups::default(),
            peers: Peers::default(),
            recorder: Arc::default(),
            watchdog: Own::default(),
            group: Group::Single(SingleGroup::default()),
        }
    }

    fn join(found: Found, options: WorldOptions) -> Result<Self> {
        let launcher_process = LauncherProcess::find(true);
        let launcher = found.launcher;
        let group = HostGroup::by_mpi(found, options, &hostname())?;
        Ok(World {
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            hostname: hostname(),
            launcher: Some(launcher),
            launcher_process,
            device_groups: DeviceGroups::default(),
            peers: Peers::default(),
            recorder: Arc::default(),
            watchdog: Own::default(),
            group: Group::Host(Box::new(group)),
        })
    }

    /// The world of a rank that is a thread.
    pub(crate) fn from_threads(group: Group) -> Self {
        PLACE_OF_THREAD.set(Some((group.rank().0, group.world_size())));
        World {
            local_rank: LocalRank(group.rank().0),
            local_size: group.world_size(),
            hostname: hostname(),
            launcher: None,
            launcher_process: None,
            device_groups: DeviceGroups::default(),
            peers: Peers::default(),
            recorder: Arc::default(),
            watchdog: Own::default(),
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

    /// [`World::world_size`], as MPI calls it.
    pub fn size(&self) -> usize {
        self.world_size()
    }

    /// This rank's number among the ranks of its host.
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

    /// Tells this host from all others, also from one of the same name.
    pub(crate) fn host_key(&self) -> String {
        format!("{} {}", self.hostname, boot_id())
    }

    /// Distance from a rank to the one that keeps a copy of what it holds: that for which as many ranks as possible have their copy on another
    /// host, and 1 on a single host. Collective.
    ///
    /// # Errors
    /// The errors of [`Group::all_gather_bytes`].
    pub fn distance_to_copies(&self) -> Result<usize> {
        Ok(distance_between_hosts(&self.group.all_gather_bytes(self.host_key().as_bytes())?))
    }

    /// The launcher that started the ranks, if any.
    pub fn launcher(&self) -> Option<Launcher> {
        self.launcher
    }

    /// From now on this rank does not end when its launcher does: the caller ends it, once it has saved. Does nothing for a rank alone.
    pub fn outlive_launcher(&self) {
        if self.launcher_process.is_some() {
            crate::lost_server::outlive();
        }
    }

    /// The collectives over all ranks for tensors in host memory. [`World::tensor_group`] is the one for tensors of the rank's
    /// device.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The watchdog of this rank.
    pub fn watchdog(&self) -> &Watchdog {
        &self.watchdog.0
    }

    /// The recorder of traces of this rank.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Records slices of this rank's time from now on, among them its collectives; [`Recorder::end`] returns them.
    pub fn begin_recording(&self) {
        std::iter::once(&self.group)
            .chain(self.device_groups.get())
            .for_each(|group| group.trace_in(&self.recorder));
        self.recorder.begin();
    }

    /// Starts the watchdog of each rank that is a process; ranks that are threads have none. That of a rank alone only knows its place. Collective.
    ///
    /// When a rank is lost, each of the others writes its `report` and ends within 1.3 s, whatever its own thread is stuck in.
    ///
    /// Returns, on rank 0, the ranks that cannot be watched, if there are some; the job continues without them being watched.
    ///
    /// # Errors
    /// The errors of [`Group::all_gather_bytes`].
    pub fn start_watchdog(
        &self,
        options: WatchdogOptions,
        report: impl LossReport,
    ) -> Result<Option<Unwatched>> {
        let is_thread = self.launcher.is_none() && self.world_size() > 1;
        if is_thread || self.watchdog.0.progress().is_some() {
            return Ok(None);
        }
        let is_one_host = self.local_size == self.world_size();
        let unwatched = self.watchdog.0.start(&self.group, &self.hostname, is_one_host, options, report)?;
        self.count_progress();
        Ok(unwatched.filter(|_| self.rank().0 == 0))
    }

    /// Lets the groups of this world record their collectives in the watchdog's progress.
    pub(crate) fn count_progress(&self) {
        let Some(progress) = self.watchdog.0.progress() else { return };
        for group in std::iter::once(&self.group).chain(self.device_groups.get()) {
            group.record_in(progress);
        }
    }

    /// Closes the groups of this world in order; see [`Group::close`]. Collective; waits for all ranks.
    ///
    /// Dropping a world closes it too, unless its thread panics, but ignores errors.
    ///
    /// # Errors
    /// [`Mpi`](crate::CommError::Mpi) or [`Nccl`](crate::CommError::Nccl) if the library fails to shut down;
    /// [`SlowClose`](crate::CommError::SlowClose) if only NCCL does, after all work was done.
    pub fn close(self) -> Result<()> {
        let device = self.device_groups.close();
        let peers = self.peers.close(&self.group);
        let is_alone = self.launcher_process.as_ref().is_some_and(LauncherProcess::is_gone);
        // MPI would wait for the launcher.
        let host = if is_alone { self.group.leave() } else { self.group.close() };
        let closed = device.and(peers).and(host);
        if !closed.as_ref().map_or_else(CommError::is_after_work, |()| true) {
            // The failure is still to be announced.
            std::mem::forget(self.watchdog);
        }
        closed
    }
}

/// The least distance along the ring of ranks that crosses hosts most often.
fn distance_between_hosts(host_of_rank: &[impl PartialEq]) -> usize {
    let n = host_of_rank.len();
    let n_crossing = |distance: usize| {
        (0..n).filter(|rank| host_of_rank[*rank] != host_of_rank[(rank + distance) % n]).count()
    };
    (1..n).max_by_key(|distance| (n_crossing(*distance), n - distance)).unwrap_or(1)
}

/// Name and version of the MPI library, such as `Open MPI v4.1.4`; `None` if this program is neither linked to one nor has opened one. MPI
/// is not initialized.
pub fn mpi_version() -> Option<String> {
    let text = Mpi::get()?.version();
    // Open MPI adds the package and a date, MPICH the options of its build.
    let first = text.split(',').next()?.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(first).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_on_another_host_where_there_is_one() {
        let distance = |hosts: &str| distance_between_hosts(hosts.as_bytes());
        assert_eq!(["A", "AA", "AAAA"].map(distance), [1; 3]);
        assert_eq!(["AB", "ABAB", "ABCABC"].map(distance), [1; 3], "ranks go round the hosts");
        assert_eq!(["AABB", "AABBCC"].map(distance), [2; 2]);
        assert_eq!(["AAAABBBB", "AAAABBBBCCCC"].map(distance), [4; 2]);
        assert_eq!(distance("AAABB"), 2, "more ranks than the other host has have theirs on their own");
    }

    #[test]
    fn a_process_without_launcher_is_a_world_of_one() {
        let world = World::single();
        assert_eq!((world.rank(), world.world_size()), (Rank(0), 1));
        assert_eq!((world.local_rank(), world.local_size()), (LocalRank(0), 1));
        assert!(!world.hostname().is_empty() && world.launcher().is_none());
        world.close().unwrap();
    }
}
