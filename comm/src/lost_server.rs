//! Keeps a rank alive when the launcher's daemon on its host ends, so that the rank may save before it ends.
//!
//! Open MPI ends a rank at once when the connection to the daemon, its PMIx server, closes: by the handler that it registers for
//! all events of PMIx. A handler for this one event is called before that one, and reports the event as handled.
//!
//! The functions are those of PMIx 2 to 6. They are looked up by name in the library that MPI has loaded; where MPI brings a copy of
//! its own under other names, nothing changes.
//!
//! Source: the PMIx Standard 4.1, sections 9.1.1 to 9.1.4.

use std::ffi::{c_int, c_void};
use std::ptr;

/// `PMIX_ERR_LOST_CONNECTION` of PMIx 4 and later, and `PMIX_ERR_LOST_CONNECTION_TO_SERVER` of earlier versions.
static CODES: [c_int; 2] = [-61, -101];
/// `PMIX_EVENT_ACTION_COMPLETE`: no further handler is called.
const COMPLETE: c_int = -334;

/// `pmix_event_notification_cbfunc_fn_t`
type Done = unsafe extern "C" fn(
    status: c_int,
    results: *mut c_void,
    n_results: usize,
    release: *const c_void,
    release_data: *mut c_void,
    data: *mut c_void,
);

/// `pmix_notification_fn_t`
type Handler = unsafe extern "C" fn(
    id: usize,
    status: c_int,
    source: *const c_void,
    info: *mut c_void,
    n_info: usize,
    results: *mut c_void,
    n_results: usize,
    done: Option<Done>,
    data: *mut c_void,
);

/// `PMIx_Register_event_handler`; before version 3 it returns nothing.
type Register = unsafe extern "C" fn(
    codes: *mut c_int,
    n_codes: usize,
    info: *mut c_void,
    n_info: usize,
    handler: Handler,
    registered: *const c_void,
    data: *mut c_void,
) -> c_int;

unsafe extern "C" fn ignore(
    _: usize,
    _: c_int,
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    done: Option<Done>,
    data: *mut c_void,
) {
    if let Some(done) = done {
        // SAFETY: PMIx passes this function and `data` for this one call; there are no results to release.
        unsafe { done(COMPLETE, ptr::null_mut(), 0, ptr::null(), ptr::null_mut(), data) };
    }
}

/// From now on this process does not end when its PMIx server does. MPI is initialized.
pub(crate) fn outlive() {
    let Some(register) = register() else { return };
    let codes = CODES.as_ptr().cast_mut();
    // SAFETY: `register` is PMIx's function of that name; the codes are a static array of this length, from which PMIx only reads;
    // no further info and no callback are given, which the standard allows.
    unsafe { register(codes, CODES.len(), ptr::null_mut(), 0, ignore, ptr::null(), ptr::null_mut()) };
}

fn register() -> Option<Register> {
    // SAFETY: the name is a C string, and with NOLOAD no code of a library runs. The handle is kept: MPI has loaded the library.
    let library = unsafe { libc::dlopen(c"libpmix.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library was opened above, and the name is a C string.
    let symbol = unsafe { libc::dlsym(library, c"PMIx_Register_event_handler".as_ptr()) };
    // SAFETY: the symbol is PMIx's function of that name, whose signature is this one.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Register>(symbol) })
}
