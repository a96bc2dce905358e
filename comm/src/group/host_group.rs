//! Ranks that exchange host memory: threads of a process, or processes joined by MPI or without.
//!
//! If all ranks are on one host, data go through memory that all of them have mapped ([`lockstep`]), as fast as they can be copied; what
//! joined the ranks then only starts and ends the job.

use std::cell::RefCell;

use super::buffer::{RawMut, RawRef};
use super::host::{Joined, Place};
use super::lockstep::{self, Lockstep};
use super::mpi::{self, MpiTransport};
use super::star::{self, Star};
use super::traffic::Counter;
use crate::environment::Meeting;
use crate::launcher::Found;
use crate::{Call, Departure, LocalRank, Rank, Result, WorldOptions, lifeline};

/// One rank's end of collectives in host memory.
pub struct HostGroup {
    pub(super) transport: Transport,
    /// Collectives through memory that all ranks share, if they do.
    pub(super) shared: Option<RefCell<Lockstep>>,
    /// The reason why they do not, although all are on this host and could.
    unshared: Option<String>,
    place: Place,
    is_closed: bool,
    pub(super) traffic: Counter,
}

/// Connections of the ranks, by which they exchange data without shared memory.
pub(super) enum Transport {
    /// They are threads, which always share memory.
    Threads,
    /// By MPI.
    Mpi(Box<MpiTransport>),
    /// By connections to rank 0, which carry only what the ranks agree on.
    Star(RefCell<Star>),
}

impl HostGroup {
    /// Joins the ranks by MPI: [`mpi::join`], with its errors.
    pub(crate) fn by_mpi(found: Found, options: WorldOptions, hostname: &str) -> Result<Self> {
        let joined = mpi::join(found, options, hostname)?;
        Ok(Self::new(joined.map(|mpi| Transport::Mpi(Box::new(mpi)))))
    }

    /// Joins the ranks by connections: [`star::join`], with its errors.
    pub(crate) fn by_star(meeting: &Meeting, options: WorldOptions, hostname: &str) -> Result<Self> {
        let joined = star::join(meeting, options, hostname)?;
        Ok(Self::new(joined.map(|star| Transport::Star(RefCell::new(star)))))
    }

    pub(super) fn new(Joined { transport, shared, place }: Joined<Transport>) -> Self {
        let (shared, unshared) = match shared {
            Ok(shared) => (Some(RefCell::new(shared)), None),
            Err(reason) => (None, reason),
        };
        HostGroup { transport, shared, unshared, place, is_closed: false, traffic: Counter::default() }
    }

    pub(super) fn rank(&self) -> Rank {
        Rank(self.place.rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.place.world_size
    }

    pub(crate) fn local_rank(&self) -> LocalRank {
        LocalRank(self.place.local_rank)
    }

    pub(crate) fn local_size(&self) -> usize {
        self.place.local_size
    }

    /// Whether ranks are threads of this process.
    pub(crate) fn is_of_threads(&self) -> bool {
        matches!(self.transport, Transport::Threads)
    }

    /// Whether data go by connections to rank 0, which carry only what the ranks agree on.
    pub(crate) fn is_star(&self) -> bool {
        matches!((&self.transport, &self.shared), (Transport::Star(_), None))
    }

    /// The reason why ranks of one host share no memory, if they could.
    pub(crate) fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    pub(super) fn transport(&self) -> &'static str {
        match (&self.transport, &self.shared) {
            (Transport::Threads, _) => "threads",
            (_, Some(_)) => "shared memory",
            (Transport::Mpi(_), None) => "mpi",
            (Transport::Star(_), None) => "tcp",
        }
    }

    /// # Safety
    /// Same as `Group::run`.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        match (&self.shared, &self.transport) {
            // SAFETY: as this function's.
            (Some(shared), _) => unsafe { lockstep::run(shared, call, input, output) },
            // SAFETY: as this function's.
            (None, Transport::Mpi(mpi)) => unsafe { mpi.run(call, input, output) },
            // SAFETY: as this function's.
            (None, Transport::Star(star)) => unsafe { star.borrow_mut().run(call, input, output) },
            (None, Transport::Threads) => unreachable!("threads share memory"),
        }
    }

    /// Starts a collective in place on `buf`, within which `input` and `output` lie, and returns its number. By connections to rank 0 it is
    /// done when this returns.
    ///
    /// # Safety
    /// Same as `Group::start`.
    pub(super) unsafe fn start(&self, call: Call, buf: RawMut, input: RawRef, output: RawMut) -> Result<u64> {
        match (&self.shared, &self.transport) {
            // SAFETY: as this function's; a shard is read or copied elsewhere before it is written.
            (Some(shared), _) => unsafe { shared.borrow_mut().enter(call, input, output) },
            // SAFETY: as this function's.
            (None, Transport::Mpi(mpi)) => unsafe { mpi.messages.borrow_mut().start(call, buf) },
            // SAFETY: as this function's.
            (None, _) => unsafe { self.run(call, input, output) }.map(|()| 0),
        }
    }

    /// Advances collectives in flight, and returns how many are finished, which are the first ones.
    pub(super) fn progress(&self) -> Result<u64> {
        match (&self.shared, &self.transport) {
            (Some(shared), _) => {
                let mut shared = shared.borrow_mut();
                shared.progress()?;
                Ok(shared.n_finished())
            }
            (None, Transport::Mpi(mpi)) => {
                let mut messages = mpi.messages.borrow_mut();
                messages.progress()?;
                Ok(messages.n_finished())
            }
            (None, _) => Ok(u64::MAX),
        }
    }

    pub(super) fn wait(&self, number: Option<u64>) -> Result<()> {
        match (&self.shared, &self.transport) {
            (Some(shared), _) => shared.borrow_mut().wait(number),
            (None, Transport::Mpi(mpi)) => mpi.messages.borrow_mut().wait(number),
            (None, _) => Ok(()),
        }
    }

    /// Releases the buffers in flight. MPI cannot cancel a collective: if one is still in flight, the job ends.
    pub(super) fn give_up(&self, how: Departure) {
        match (&self.shared, &self.transport) {
            (Some(shared), _) => shared.borrow_mut().give_up(how),
            (None, Transport::Star(star)) => star.borrow_mut().depart(how),
            (None, _) => {}
        }
        if let Transport::Mpi(mpi) = &self.transport {
            mpi.end_job_if_in_flight(&format!("this rank {how}"));
        }
    }

    /// Leaves the job; `waits` for all ranks to leave it, and then finalizes MPI.
    pub(super) fn leave(mut self, waits: bool) -> Result<()> {
        let result = self.end(waits);
        if !waits {
            // The process ends, and MPI may still use buffers.
            std::mem::forget(self);
        }
        result
    }

    fn end(&mut self, waits: bool) -> Result<()> {
        self.is_closed = true;
        self.depart(Departure::Closed);
        match &mut self.transport {
            Transport::Mpi(mpi) if waits => mpi.finalize()?,
            Transport::Star(_) => lifeline::leave(waits),
            Transport::Mpi(_) | Transport::Threads => {}
        }
        Ok(())
    }

    fn depart(&self, how: Departure) {
        match (&self.shared, &self.transport) {
            (Some(shared), _) => shared.borrow().depart(how),
            (None, Transport::Star(star)) => star.borrow_mut().depart(how),
            (None, _) => {}
        }
    }
}

impl Drop for HostGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // MPI_Finalize would wait for ranks that wait for this one.
            self.depart(Departure::Panicked);
        } else if !self.is_closed {
            // `drop` cannot return an error; `close` does.
            let _ = self.end(true);
        }
    }
}

impl std::fmt::Debug for HostGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Place { rank, world_size, .. } = self.place;
        write!(f, "HostGroup(rank {rank} of {world_size} by {})", self.transport())
    }
}
