//! Ranks that are processes, joined by MPI.
//!
//! MPI is initialised here and nowhere else, at thread level FUNNELED: all calls come from the thread that made
//! the group, which is `!Send`. Where all ranks are on one host, data go through shared memory
//! ([`lockstep`](super::lockstep)), several times as fast as MPI's own; MPI then only starts and ends the job.

pub(crate) mod abort;
mod call;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod mapping;
mod plain;

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;

use super::buffer::{RawMut, RawRef};
use super::lockstep::{self, Lockstep};
use super::traffic::Counter;
use crate::launcher::Found;
use crate::{Call, CommError, Departure, LocalRank, Rank, Result, WorldOptions};
use call::check;
#[cfg(target_os = "linux")]
pub(crate) use mapping::Mapping;
use plain::Plain;

/// One rank's group among MPI processes.
pub struct MpiGroup {
    /// Finalises MPI when dropped, which is therefore done by hand.
    universe: ManuallyDrop<Universe>,
    /// Our own, so that nothing else in the process can meet our messages.
    comm: ManuallyDrop<SimpleCommunicator>,
    plain: RefCell<Plain>,
    /// The way through shared memory, where all ranks have it.
    host: Option<RefCell<Lockstep>>,
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_size: usize,
    pub(super) traffic: Counter,
}

impl MpiGroup {
    /// Initialises MPI and joins the ranks that the launcher started.
    ///
    /// # Errors
    /// As [`World::init`](crate::World::init).
    pub(crate) fn init(found: Found, options: WorldOptions) -> Result<Self> {
        yield_when_idle();
        let (universe, _) =
            mpi::initialize_with_threading(mpi::Threading::Funneled).ok_or(CommError::MpiInUse)?;
        let world = universe.world();
        let got = world.size() as usize;
        let expected = found.n_ranks.unwrap_or(got);
        if got != expected {
            return Err(CommError::LauncherMismatch { launcher: found.launcher, expected, got });
        }
        return_errors(&world)?;
        let comm = world.duplicate();
        return_errors(&comm)?;
        let (rank, world_size) = (comm.rank() as usize, got);
        let local = comm.split_shared(comm.rank());
        let (local_rank, local_size) = (local.rank() as usize, local.size() as usize);
        drop(local);

        let plain = Plain::new(comm.as_raw(), rank, world_size);
        let host = match options.shared_memory && local_size == world_size {
            #[cfg(target_os = "linux")]
            true => host::join(&plain, rank, world_size, options.timeout)?.map(RefCell::new),
            _ => None,
        };
        Ok(MpiGroup {
            universe: ManuallyDrop::new(universe),
            comm: ManuallyDrop::new(comm),
            plain: RefCell::new(plain),
            host,
            rank,
            world_size,
            local_rank,
            local_size,
            traffic: Counter::default(),
        })
    }

    pub(crate) fn local_rank(&self) -> LocalRank {
        LocalRank(self.local_rank)
    }

    pub(crate) fn local_size(&self) -> usize {
        self.local_size
    }

    pub(super) fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn shares_memory(&self) -> bool {
        self.host.is_some()
    }

    pub(super) fn transport(&self) -> &'static str {
        if self.host.is_some() { "shared memory" } else { "mpi" }
    }

    /// # Safety
    /// As `Group::run`.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        match &self.host {
            // SAFETY: as this function's.
            Some(host) => unsafe { lockstep::run(host, call, input, output) },
            None => {
                // SAFETY: as this function's.
                let result = unsafe { self.plain.borrow_mut().run(call, input, output) };
                if let Err(error) = &result {
                    self.keep_from_returning(error);
                }
                result
            }
        }
    }

    /// `buf` is the whole, `input` and `output` are the ends of the call, which lie within it.
    ///
    /// # Safety
    /// As `Group::start`.
    pub(super) unsafe fn start(
        &self,
        call: Call,
        buf: RawMut,
        (input, output): (RawRef, RawMut),
    ) -> Result<u64> {
        match &self.host {
            // SAFETY: as this function's.
            Some(host) => unsafe { host.borrow_mut().enter(call, input, output) },
            // SAFETY: as this function's.
            None => unsafe { self.plain.borrow_mut().start(call, buf) },
        }
    }

    pub(super) fn progress(&self) -> Result<()> {
        match &self.host {
            Some(host) => host.borrow_mut().progress(),
            None => self.plain.borrow_mut().progress(),
        }
    }

    pub(super) fn wait(&self, number: Option<u64>) -> Result<()> {
        match &self.host {
            Some(host) => host.borrow_mut().wait(number),
            None => self.plain.borrow_mut().wait(number),
        }
    }

    /// Lets go of the buffers in flight. MPI cannot take a collective back: if it still holds one, the job ends.
    pub(super) fn give_up(&self, how: Departure) {
        if let Some(host) = &self.host {
            host.borrow_mut().give_up(how);
        }
        self.keep_from_returning(&format!("this rank {how}"));
    }

    /// Ends the job if MPI still holds a buffer, whose borrow would otherwise end.
    fn keep_from_returning(&self, reason: &dyn std::fmt::Display) {
        if self.plain.borrow().is_in_flight() {
            crate::failure::end_job_because(&format!(
                "[rank {}] {reason}; a collective in flight cannot be taken back, so the job ends",
                self.rank
            ));
        }
    }

    /// Waits for all ranks and finalises MPI.
    pub(super) fn close(mut self) -> Result<()> {
        let result = self.finalize();
        // Everything there was to do in `drop` is done.
        std::mem::forget(self);
        result
    }

    fn finalize(&mut self) -> Result<()> {
        if let Some(host) = self.host.take() {
            host.borrow().depart(Departure::Closed);
        }
        // SAFETY: taken once: `finalize` is called by `close`, which forgets `self`, or else by `drop`.
        drop(unsafe { ManuallyDrop::take(&mut self.comm) });
        // SAFETY: as above. The universe is leaked: finalising is our part, since its own drops the return code.
        let universe = unsafe { ManuallyDrop::take(&mut self.universe) };
        std::mem::forget(universe);
        // SAFETY: MPI is initialised, was not finalised yet, and nothing is in flight: scopes have ended.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }
}

impl Drop for MpiGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // MPI_Finalize would wait for ranks that wait for this one.
            if let Some(host) = self.host.take() {
                host.borrow().depart(Departure::Panicked);
            }
        } else {
            // There is nobody to tell; `close` is for those who want to know.
            let _ = self.finalize();
        }
    }
}

impl std::fmt::Debug for MpiGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MpiGroup(rank {} of {} by {})", self.rank, self.world_size, self.transport())
    }
}

/// Lets MPI's own waiting (at start and end, and between hosts) yield the core, if nobody has said otherwise: a
/// rank that spins takes the core from those it waits for.
fn yield_when_idle() {
    const NAME: &str = "OMPI_MCA_mpi_yield_when_idle";
    if std::env::var_os(NAME).is_none() && is_single_threaded() {
        // SAFETY: this is the process's only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(NAME, "1") };
    }
}

/// Whether this is the process's only thread, for sure.
fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// Makes MPI return error codes on this communicator instead of ending the job without a word from us.
fn return_errors(comm: &SimpleCommunicator) -> Result<()> {
    // SAFETY: the handle is MPI's constant.
    let handler = unsafe { ffi::RSMPI_ERRORS_RETURN };
    // SAFETY: MPI is initialised, and the communicator is alive.
    let status = unsafe { ffi::MPI_Comm_set_errhandler(comm.as_raw(), handler) };
    check("MPI_Comm_set_errhandler", status)
}
