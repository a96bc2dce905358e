//! Ranks that are processes, joined by MPI.
//!
//! MPI is initialized here and nowhere else, at thread level FUNNELED: all calls come from the thread that created the group,
//! which is `!Send`. If all ranks are on one host, data go through shared memory ([`lockstep`](super::lockstep)), several times
//! as fast as MPI's own collectives; MPI then only starts and ends the job.

mod call;
mod collectives;
mod message;

use std::cell::RefCell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;

use call::check;
use collectives::MpiCollectives;

use super::buffer::{RawMut, RawRef};
use super::envelope::Envelope;
use super::host::{Joined, Place};
use super::{host, program};
use crate::end_job::end_job_because;
use crate::launcher::Found;
use crate::mpi_library::{Handle, Mpi};
use crate::{Call, CommError, Result, WorldOptions};

/// MPI, and this rank's end of it.
pub(crate) struct MpiTransport {
    mpi: &'static Mpi,
    /// A duplicate of MPI_COMM_WORLD, so that messages of other code in the process cannot match ours.
    comm: Handle,
    rank: usize,
    /// Stays on the thread that initialized MPI.
    of_thread: PhantomData<*const ()>,
    pub(super) messages: RefCell<MpiCollectives>,
}

/// Initializes MPI and joins the ranks that the launcher started.
///
/// - `hostname`: of this host, for errors
///
/// # Errors
/// [`CommError::NoMpiLibrary`], [`CommError::LauncherMismatch`], [`CommError::MpiInUse`] or [`CommError::Mpi`];
/// [`CommError::DifferentPrograms`]. MPI stays initialized after an error, so that the job can be ended through it.
pub(crate) fn join(found: Found, options: WorldOptions, hostname: &str) -> Result<Joined<MpiTransport>> {
    let WorldOptions { shared_memory, timeout, program, .. } = options;
    let mpi = Mpi::open(found.launcher, found.n_ranks)?;
    initialize(mpi)?;
    let all = mpi.constants.comm_world;
    let got = number(mpi, "MPI_Comm_size", mpi.calls.MPI_Comm_size, all)?;
    let expected = found.n_ranks.unwrap_or(got);
    if got != expected {
        return Err(CommError::LauncherMismatch { launcher: found.launcher, expected, got });
    }
    return_errors(mpi, all)?;
    let mut comm: Handle = 0;
    // SAFETY: MPI is initialized, and the handle is writable.
    check(mpi, "MPI_Comm_dup", unsafe { (mpi.calls.MPI_Comm_dup)(all, &raw mut comm) })?;
    return_errors(mpi, comm)?;
    let (rank, world_size) = (number(mpi, "MPI_Comm_rank", mpi.calls.MPI_Comm_rank, comm)?, got);
    let (local_rank, local_size) = place_on_host(mpi, comm, rank)?;

    let messages = MpiCollectives::new(mpi, comm, rank, world_size);
    // At the first exchange of earlier builds.
    program::agree(|words| messages.gather_words(words), rank, program, hostname)?;
    let shared = if shared_memory && local_size == world_size {
        host::join(|words| messages.gather_words(words), rank, world_size, timeout)?.map_err(Some)
    } else {
        Err(None)
    };
    let messages = RefCell::new(messages);
    let transport = MpiTransport { mpi, comm, rank, of_thread: PhantomData, messages };
    let place = Place { rank, world_size, local_rank, local_size };
    Ok(Joined { transport, shared, place })
}

impl MpiTransport {
    /// Runs a collective by messages, also where the ranks share memory.
    ///
    /// # Safety
    /// Same as `Group::run`.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        // SAFETY: as this function's.
        let result = unsafe { self.messages.borrow_mut().run(call, input, output) };
        if let Err(error) = &result {
            self.end_job_if_in_flight(error);
        }
        result
    }

    /// Runs one end of a message, after the collectives in flight.
    ///
    /// # Safety
    /// `input` is readable and `output` writable for the elements of the envelope, and nothing else accesses them meanwhile.
    pub(super) unsafe fn message(&self, own: Envelope, input: RawRef, output: RawMut) -> Result<()> {
        self.messages.borrow_mut().wait(None)?;
        let Self { mpi, comm, rank, .. } = *self;
        // SAFETY: as this function's; the communicator is alive.
        unsafe { message::run(mpi, comm, rank, own, input, output) }
    }

    /// Ends the job if MPI still uses a buffer: returning would end the borrow of that buffer.
    pub(super) fn end_job_if_in_flight(&self, reason: &dyn std::fmt::Display) {
        if self.messages.borrow().is_in_flight() {
            end_job_because(
                &format!(
                    "[rank {}] {reason}; a collective in flight cannot be canceled, so the job ends",
                    self.rank
                ),
                1,
            );
        }
    }

    /// Waits for all ranks and finalizes MPI.
    pub(super) fn finalize(&mut self) -> Result<()> {
        let mpi = self.mpi;
        // SAFETY: the communicator is alive, and nothing is in flight: scopes have ended.
        check(mpi, "MPI_Comm_free", unsafe { (mpi.calls.MPI_Comm_free)(&raw mut self.comm) })?;
        // SAFETY: MPI is initialized, was not finalized yet, and nothing is in flight: scopes have ended.
        check(mpi, "MPI_Finalize", unsafe { (mpi.calls.MPI_Finalize)() })
    }
}

/// Sets variables of Open MPI that the user has not set, to better defaults, unless the process already has other threads.
pub(crate) fn set_defaults() {
    if !is_single_threaded() {
        return;
    }
    for (name, value) in defaults(|name| std::env::var(name).ok()) {
        // SAFETY: this is the process's only thread, so nothing else reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Variables of Open MPI to be set, given the environment.
fn defaults(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
    let is_unset = |name: &&str| variable(name).is_none();
    let mut defaults = Vec::new();
    // MPI's own waiting (at start and end, and between hosts) yields the core: a rank that spins takes it from the ranks that it
    // waits for.
    const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";
    if is_unset(&YIELD) {
        defaults.push((YIELD, "1"));
    }
    // Ranks of one host need no fabric, and looking for one takes Open MPI 4 a fifth of a second.
    let [ranks, of_host] = ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"].map(&variable);
    const CHOICES: [&str; 3] = ["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"];
    if ranks.is_some() && ranks == of_host && CHOICES.iter().all(is_unset) {
        defaults.push((CHOICES[0], "ob1"));
    }
    defaults
}

/// Whether this is certainly the process's only thread.
fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// Initializes MPI.
fn initialize(mpi: &Mpi) -> Result<()> {
    let (mut is_used, mut provided): (c_int, c_int) = (0, 0);
    // SAFETY: may be called at any time; the integer is writable.
    check(mpi, "MPI_Initialized", unsafe { (mpi.calls.MPI_Initialized)(&raw mut is_used) })?;
    if is_used != 0 {
        return Err(CommError::MpiInUse);
    }
    let level = mpi.constants.thread_funneled;
    // SAFETY: MPI was not initialized; it may be given no arguments; the integer is writable.
    let status =
        unsafe { (mpi.calls.MPI_Init_thread)(ptr::null_mut(), ptr::null_mut(), level, &raw mut provided) };
    check(mpi, "MPI_Init_thread", status)
}

/// A property of a communicator: its number of ranks, or this rank.
fn number(
    mpi: &Mpi,
    name: &'static str,
    call: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    comm: Handle,
) -> Result<usize> {
    let mut number: c_int = 0;
    // SAFETY: MPI is initialized, the communicator alive, the integer writable.
    check(mpi, name, unsafe { call(comm, &raw mut number) })?;
    Ok(number as usize)
}

/// This rank's number among the ranks of its host, and their number. Collective.
fn place_on_host(mpi: &Mpi, comm: Handle, rank: usize) -> Result<(usize, usize)> {
    let mut of_host: Handle = 0;
    let (shared, info) = (mpi.constants.comm_type_shared, mpi.constants.info_null);
    // SAFETY: MPI is initialized, the communicator alive, the handle writable.
    let status =
        unsafe { (mpi.calls.MPI_Comm_split_type)(comm, shared, rank as c_int, info, &raw mut of_host) };
    check(mpi, "MPI_Comm_split_type", status)?;
    let local_rank = number(mpi, "MPI_Comm_rank", mpi.calls.MPI_Comm_rank, of_host)?;
    let local_size = number(mpi, "MPI_Comm_size", mpi.calls.MPI_Comm_size, of_host)?;
    // SAFETY: the communicator is alive and not used afterward.
    check(mpi, "MPI_Comm_free", unsafe { (mpi.calls.MPI_Comm_free)(&raw mut of_host) })?;
    Ok((local_rank, local_size))
}

/// Makes MPI return error codes on this communicator instead of ending the job without our message.
fn return_errors(mpi: &Mpi, comm: Handle) -> Result<()> {
    // SAFETY: MPI is initialized, the communicator is alive, and the handler is MPI's constant.
    let status = unsafe { (mpi.calls.MPI_Comm_set_errhandler)(comm, mpi.constants.errors_return) };
    check(mpi, "MPI_Comm_set_errhandler", status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_look_for_no_fabric_unless_the_user_chose_one() {
        let set_for = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(found, _)| *found == name);
            defaults(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        let (idle, ob1) = (("OMPI_MCA_mpi_yield_when_idle", "1"), ("OMPI_MCA_pml", "ob1"));
        let of = |ranks, of_host| [("OMPI_COMM_WORLD_SIZE", ranks), ("OMPI_COMM_WORLD_LOCAL_SIZE", of_host)];
        assert_eq!(set_for(&of("4", "4")), [idle, ob1]);
        // Two hosts, and a launcher that says nothing.
        assert_eq!(set_for(&of("4", "2")), [idle]);
        assert_eq!(set_for(&[]), [idle]);
        for name in ["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"] {
            let [a, b] = of("4", "4");
            assert_eq!(set_for(&[a, b, (name, "x")]), [idle]);
            assert_eq!(set_for(&[a, b, (name, "x"), (idle.0, "0")]), []);
        }
    }
}
