//! Ends the job by MPI, as quietly as MPI allows.

use std::ffi::c_int;

use mpi::ffi;

/// Open MPI's abort without its report.
type QuietAbort = unsafe extern "C" fn(ffi::MPI_Comm, c_int) -> c_int;

/// Ends all processes of the job, this one too; returns if MPI is not there to do it.
///
/// `MPI_Abort` of Open MPI prints eight lines of its own *after* whatever the rank has said; the function
/// `ompi_mpi_abort`, which it then calls, prints nothing. It is exported by Open MPI 4 and 5, and looked up by
/// name so that any MPI library will do.
pub(crate) fn abort(exit_code: i32) {
    if !mpi::environment::is_initialized() || mpi::environment::is_finalized() {
        return;
    }
    // SAFETY: a constant of the MPI library.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    if let Some(quiet_abort) = quiet_abort() {
        // SAFETY: MPI is initialised, and the signature is that of ompi/runtime/mpiruntime.h.
        unsafe { quiet_abort(world, exit_code) };
    }
    // SAFETY: MPI is initialised.
    unsafe { ffi::MPI_Abort(world, exit_code) };
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
