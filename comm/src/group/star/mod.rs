//! Ranks that are processes, joined by what their environment says and without MPI.
//!
//! The ranks of one host exchange data through shared memory ([`lockstep`]), as they do under MPI; their connections to rank 0 then only
//! start and end the job. Ranks of several hosts exchange only what they agree on through rank 0, and the tensors of their GPUs by NCCL.

mod collectives;
mod greeting;
mod peer_user;
mod meeting;

use std::cell::RefCell;

use collectives::Star;

use super::buffer::{RawMut, RawRef};
use super::lockstep::{self, Lockstep};
use super::traffic::Counter;
use super::{host, program};
use crate::environment::Meeting;
use crate::lifeline::{self, Peer};
use crate::this_host::boot_id;
use crate::{Call, CommError, Departure, LocalRank, Rank, Result, WorldOptions};

/// The group of a rank that is a process and met the others without MPI.
pub struct StarGroup {
    star: RefCell<Star>,
    /// Collectives through shared memory, if all ranks have mapped it.
    shared: Option<RefCell<Lockstep>>,
    /// The reason why they have not, although all are on this host.
    unshared: Option<String>,
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_size: usize,
    is_closed: bool,
    pub(super) traffic: Counter,
}

impl StarGroup {
    /// Joins all ranks of the job.
    ///
    /// - `hostname`: of this host
    ///
    /// # Errors
    /// Errors of a meeting that fails; [`CommError::DifferentPrograms`]; [`CommError::PeerLeft`] if a rank ends meanwhile.
    pub(crate) fn join(meeting: &Meeting, options: WorldOptions, hostname: &str) -> Result<Self> {
        let WorldOptions { shared_memory, timeout, program, join_limit, lost_exit_code, .. } = options;
        let Meeting { rank, world_size, .. } = *meeting;
        let links = meeting::meet(&meeting.for_job(options.job), hostname, join_limit)?;
        let mut star = Star::new(rank, world_size, links.streams);
        let identity = format!("{} {hostname} {}", std::process::id(), boot_id());
        let identities = star.exchange(identity.as_bytes())?;
        let identities: Vec<_> = identities.iter().map(|bytes| identity_of(bytes)).collect();
        let others = if rank == 0 { 1..world_size } else { 0..1 };
        let peer = |(rank, stream)| {
            let Identity { pid, host, .. } = &identities[rank];
            Peer { rank, host: host.clone(), pid: *pid, stream }
        };
        let peers = others.zip(links.lifelines).map(peer).collect();
        lifeline::start(rank, hostname, peers, lost_exit_code).map_err(|source| CommError::NotJoined {
            rank,
            text: source.to_string(),
            misses_others: false,
        })?;
        program::agree(|words| star.gather_words(words), rank, program, hostname)?;
        let is_here = |other: &usize| identities[*other].place() == identities[rank].place();
        let local_size = (0..world_size).filter(is_here).count();
        let local_rank = meeting.local_rank.unwrap_or_else(|| (0..rank).filter(is_here).count());
        let (shared, unshared) = if local_size < world_size {
            (None, None)
        } else if !shared_memory {
            (None, Some("it is switched off".to_owned()))
        } else {
            let joined = host::join(|words| star.gather_words(words), rank, world_size, timeout)?;
            joined.map_or_else(|reason| (None, Some(reason)), |shared| (Some(RefCell::new(shared)), None))
        };
        star.set_timeout(timeout);
        let (star, traffic) = (RefCell::new(star), Counter::default());
        let is_closed = false;
        Ok(StarGroup { star, shared, unshared, rank, world_size, local_rank, local_size, is_closed, traffic })
    }

    pub(crate) fn local_rank(&self) -> LocalRank {
        LocalRank(self.local_rank)
    }

    pub(crate) fn local_size(&self) -> usize {
        self.local_size
    }

    /// The reason why ranks of one host share no memory.
    pub(crate) fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    pub(super) fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    /// Collectives through memory that all ranks share.
    pub(super) fn shared(&self) -> Option<&RefCell<Lockstep>> {
        self.shared.as_ref()
    }

    pub(super) fn shares_memory(&self) -> bool {
        self.shared.is_some()
    }

    pub(super) fn transport(&self) -> &'static str {
        if self.shared.is_some() { "shared memory" } else { "tcp" }
    }

    /// # Safety
    /// Same as `Group::run`.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        match &self.shared {
            // SAFETY: as this function's.
            Some(shared) => unsafe { lockstep::run(shared, call, input, output) },
            // SAFETY: as this function's.
            None => unsafe { self.star.borrow_mut().run(call, input, output) },
        }
    }

    /// Starts a collective in place, within whose buffer `input` and `output` lie, and returns its number. Without shared memory it is done
    /// when this returns.
    ///
    /// # Safety
    /// Same as `Group::start`.
    pub(super) unsafe fn start(&self, call: Call, input: RawRef, output: RawMut) -> Result<u64> {
        match &self.shared {
            // SAFETY: as this function's.
            Some(shared) => unsafe { shared.borrow_mut().enter(call, input, output) },
            // SAFETY: as this function's.
            None => unsafe { self.star.borrow_mut().run(call, input, output) }.map(|()| 0),
        }
    }

    pub(super) fn progress(&self) -> Result<()> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.borrow_mut().progress())
    }

    /// Number of collectives that are finished; without shared memory each is when it was started.
    pub(super) fn n_finished(&self) -> u64 {
        self.shared.as_ref().map_or(u64::MAX, |shared| shared.borrow().n_finished())
    }

    pub(super) fn wait(&self, number: Option<u64>) -> Result<()> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.borrow_mut().wait(number))
    }

    /// Releases the buffers in flight.
    pub(super) fn give_up(&self, how: Departure) {
        match &self.shared {
            Some(shared) => shared.borrow_mut().give_up(how),
            None => self.star.borrow_mut().depart(how),
        }
    }

    /// Leaves the job, and waits for all ranks to leave it.
    pub(super) fn close(mut self) {
        self.end(true);
    }

    /// Leaves the job without waiting.
    pub(super) fn leave(mut self) {
        self.end(false);
    }

    fn end(&mut self, waits: bool) {
        self.is_closed = true;
        self.depart(Departure::Closed);
        lifeline::leave(waits);
    }

    fn depart(&self, how: Departure) {
        match &self.shared {
            Some(shared) => shared.borrow().depart(how),
            None => self.star.borrow_mut().depart(how),
        }
    }
}

impl Drop for StarGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.depart(Departure::Panicked);
        } else if !self.is_closed {
            self.end(true);
        }
    }
}

impl std::fmt::Debug for StarGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StarGroup(rank {} of {} by {})", self.rank, self.world_size, self.transport())
    }
}

/// A rank's process and host.
struct Identity {
    pid: u32,
    host: String,
    boot_id: String,
}

impl Identity {
    /// The same for ranks of one host, also if two hosts have one name.
    fn place(&self) -> (&str, &str) {
        (&self.host, &self.boot_id)
    }
}

fn identity_of(bytes: &[u8]) -> Identity {
    let text = String::from_utf8_lossy(bytes);
    let mut words = text.split(' ');
    let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or_default();
    let mut word = || words.next().unwrap_or_default().to_owned();
    Identity { pid, host: word(), boot_id: word() }
}
