//! Ends all ranks of the job at once.
//!
//! # Ways for a rank to end the job (Open MPI 4.1.4, one host)
//!
//! | a rank ...                                 | launcher's own lines after our message | ends after | status |
//! |--------------------------------------------|----------------------------------------|-----------:|-------:|
//! | exits with 3, `MPI_Finalize` called or not | 11 ("Primary job terminated normally") |  1.3–2.5 s |      3 |
//! | is killed by a signal                      | 7 (they name the rank and the signal)  |  1.3–2.5 s | 128 + n |
//! | calls `MPI_Abort(3)`                       | 8 ("MPI_ABORT was invoked on rank")    |      0.4 s |      3 |
//! | calls `ompi_mpi_abort(3)`                  | none                                   |      0.3 s |      3 |
//!
//! So every failure ends by `ompi_mpi_abort` where the library has it, else by `MPI_Abort`. No rank simply exits with a
//! status, not even after all ranks agreed to. `mpirun --quiet` silences all of these lines, but also those that name a rank
//! which the system killed: do not pass it.
//!
//! Ranks that met without MPI end each other through their own connections: see `lifeline.rs`.

use std::io::Write as _;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::lifeline;
use crate::stderr::write_stderr;

/// The longest time that a process which ends at once takes for its report.
const REPORT_WAIT: Duration = Duration::from_secs(1);
/// Time that the launcher may take to end the job. It does not answer if it ends the job already.
const LAUNCHER_WAIT: Duration = Duration::from_millis(300);

/// Ends all ranks of the job with this exit status, and this process in any case. Any thread may call it.
pub fn end_job(exit_code: i32) -> ! {
    by_mpi::abort(exit_code);
    lifeline::end_others(exit_code);
    let _ = std::io::stdout().flush();
    // Not `exit`, which would unload CUDA while other threads, perhaps in NCCL, still use it.
    // SAFETY: the function has no preconditions.
    unsafe { libc::_exit(exit_code) }
}

/// The report of a process that ends.
pub(crate) struct LastWords {
    /// Answered when it is written.
    is_done: Receiver<()>,
    /// Whether this process asks the launcher to end the others.
    ends_others: bool,
}

impl LastWords {
    /// Prints the message, if there is one, and writes files by `record`, on a thread of its own, since stderr and the disk may hang.
    pub(crate) fn say(message: Option<String>, record: impl FnOnce() + Send + 'static) -> Self {
        let (done, is_done) = mpsc::channel();
        let ends_others = message.is_some();
        let write = move || {
            if let Some(message) = &message {
                write_stderr(&format!("{message}\n"));
            }
            record();
            let _ = done.send(());
        };
        // Without a thread nothing is said.
        let _ = std::thread::Builder::new().name("last words".to_owned()).spawn(write);
        LastWords { is_done, ends_others }
    }

    /// Waits for the report to be written, at most a second.
    pub(crate) fn wait(&self) {
        let _ = self.is_done.recv_timeout(REPORT_WAIT);
    }

    /// Ends this process with this exit status within 1.3 s, whatever its other threads are stuck in. The process that has printed a
    /// message asks the launcher to end the others without lines of its own.
    pub(crate) fn end(self, exit_code: i32) -> ! {
        self.wait();
        if self.ends_others {
            let abort = move || by_mpi::abort(exit_code);
            let _ = std::thread::Builder::new().name("abort".to_owned()).spawn(abort);
        }
        std::thread::sleep(LAUNCHER_WAIT);
        // SAFETY: ends the process without running anything else of it.
        unsafe { libc::_exit(exit_code) }
    }
}

/// Prints the reason and ends the job, for places that cannot return an error.
pub(crate) fn end_job_because(reason: &str, exit_code: i32) -> ! {
    write_stderr(&format!("{reason}\n"));
    end_job(exit_code)
}

mod by_mpi {
    use std::ffi::c_int;

    use crate::mpi_library::{Handle, Mpi};

    /// Open MPI's abort without its report.
    type QuietAbort = unsafe extern "C" fn(Handle, c_int) -> c_int;

    /// Ends all processes of the job, this one included. Returns only if MPI is not initialized or already finalized.
    ///
    /// `MPI_Abort` of Open MPI prints eight lines of its own *after* the rank's message; the function `ompi_mpi_abort`, which
    /// it then calls, prints nothing. Open MPI 4 and 5 export it. It is looked up by name, so that any MPI library works.
    pub(super) fn abort(exit_code: i32) {
        let Some(mpi) = Mpi::get().filter(|mpi| mpi.is_running()) else { return };
        let world = mpi.constants.comm_world;
        if let Some(quiet_abort) = quiet_abort() {
            // SAFETY: MPI is initialized, and the signature is from ompi/runtime/mpiruntime.h.
            unsafe { quiet_abort(world, exit_code) };
        }
        // SAFETY: MPI is initialized.
        unsafe { (mpi.calls.MPI_Abort)(world, exit_code) };
    }

    fn quiet_abort() -> Option<QuietAbort> {
        // SAFETY: the name is a C string.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ompi_mpi_abort".as_ptr()) };
        if symbol.is_null() {
            return None;
        }
        // SAFETY: the symbol is Open MPI's function of that name, whose signature is this one.
        Some(unsafe { std::mem::transmute::<*mut libc::c_void, QuietAbort>(symbol) })
    }
}
