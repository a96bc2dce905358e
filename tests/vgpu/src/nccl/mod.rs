//! libnccl: communicators over threads and processes of one machine. The files are: `call` (an operation on its
//! stream), `comm` (a rank), `hub` (where the ranks meet), `wire` (their messages), `reduce`, `fault`.
//!
//! Not implemented: ncclCommSplit and its relatives, windows and one-sided operations, user-defined reductions, FP8.
mod call;
mod comm;
mod fault;
mod hub;
mod reduce;
mod register;
mod wire;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use call::{Arguments, Operation, post};
use comm::{Comm, misuse};
use fault::{Fault, is_due};
pub(crate) use register::fault_of_free;
use wire::UniqueId;

use crate::abi::{self, Void, api, lock};
use crate::config::CONFIG;
use crate::counts::{self, Counter};
use crate::driver::handle::Registry;
use crate::driver::memory::alloc_in_steps;
use crate::driver::{self};
use crate::report::note;

/// `ncclResult_t`
const UNHANDLED_CUDA_ERROR: i32 = 1;
const SYSTEM_ERROR: i32 = 2;
const INTERNAL_ERROR: i32 = 3;
const INVALID_ARGUMENT: i32 = 4;
const INVALID_USAGE: i32 = 5;
const REMOTE_ERROR: i32 = 6;
const IN_PROGRESS: i32 = 7;

/// Granularity of ncclMemAlloc, the same as that of cuMemCreate.
const MEMORY_STEP: u64 = 2 << 20;
/// Granularity where devices share a switch: that of multicast objects.
const MULTICAST_STEP: u64 = 512 << 20;
/// Versions in which ncclMemAlloc rounds to that of multicast objects.
const ROUNDS_TO_MULTICAST: std::ops::Range<c_int> = 21_903..22_602;
/// Since this version ncclCommAbort returns before its work is over.
const ABORT_RETURNS_EARLY: c_int = 22_600;
/// The last version in which ncclCommAbort waits until no graph holds operations of the communicator.
const ABORT_WAITS_FOR_GRAPHS: c_int = 22_199;

static COMMS: Registry<Comm> = Registry::new("a communicator");
static LAST_ERROR: Mutex<String> = Mutex::new(String::new());

/// Stores the message for ncclGetLastError.
fn remember(what: &str) {
    what.clone_into(&mut lock(&LAST_ERROR));
}

fn find(handle: usize) -> Result<Arc<Comm>, i32> {
    COMMS.get(handle).map_err(|_| INVALID_ARGUMENT)
}

/// Writes the result of a call to the caller's pointer.
fn put<T>(to: *mut T, value: T) -> Result<(), i32> {
    abi::put(to, value).map_err(|_| misuse(INVALID_ARGUMENT, "an argument for a result is NULL"))
}

thread_local! {
    /// Ranks that this thread initializes in one group.
    static JOINING: RefCell<Vec<JoinHandle<Result<(), i32>>>> = const { RefCell::new(Vec::new()) };
}

/// The start of `ncclConfig_t`, which is the same in all of its versions.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
}

/// Value that `NCCL_CONFIG_INITIALIZER` writes.
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`
const UNDEFINED: c_int = c_int::MIN;

/// Whether calls on a communicator with this configuration block, which is the default.
fn is_blocking(config: Option<&Config>) -> Result<bool, i32> {
    let Some(config) = config else { return Ok(true) };
    if config.magic != CONFIG_MAGIC || config.size < size_of::<Config>() {
        return Err(misuse(
            INVALID_ARGUMENT,
            "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER",
        ));
    }
    match config.blocking {
        0 => Ok(false),
        1 | UNDEFINED => Ok(true),
        other => Err(misuse(INVALID_ARGUMENT, &format!("Invalid config blocking attribute value {other}"))),
    }
}

/// Starts a thread that joins, for a call that doesn't block.
fn join_later(comm: &Arc<Comm>, id: UniqueId) -> Result<JoinHandle<Result<(), i32>>, i32> {
    let comm = comm.clone();
    std::thread::Builder::new()
        .name("nccl join".into())
        .spawn(move || comm.join(&id))
        .map_err(|_| SYSTEM_ERROR)
}

/// Creates one rank of a communicator and returns its handle.
///
/// A non-blocking communicator, and any communicator in a group, joins on a separate thread.
fn init(
    out: *mut usize,
    n_ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: Option<&Config>,
) -> Result<(), i32> {
    let device = driver::current().map_err(|_| UNHANDLED_CUDA_ERROR)?.device;
    let is_blocking = is_blocking(config)?;
    if n_ranks < 1 || !(0..n_ranks).contains(&rank) {
        return Err(misuse(INVALID_ARGUMENT, &format!("Invalid rank requested : {rank}/{n_ranks}")));
    }
    if let Some(n @ 1..) = config.map(|config| config.max_ctas) {
        counts::add(&format!("nccl_max_ctas:{n}"), 1);
    }
    let comm = Comm::new(rank as u64, n_ranks as u64, device, is_blocking);
    let handle = COMMS.insert(comm.clone());
    put(out, handle)?;
    if call::in_group() {
        let thread = join_later(&comm, id)?;
        JOINING.with_borrow_mut(|joining| joining.push(thread));
        return Ok(());
    }
    if !is_blocking {
        join_later(&comm, id)?;
        return Err(IN_PROGRESS);
    }
    comm.join(&id).inspect_err(|_| {
        let _ = COMMS.remove(handle);
        let _ = abi::put(out, 0);
    })
}

/// Waits for the ranks of this thread's group.
fn join_group() -> Result<(), i32> {
    let mut result = Ok(());
    for thread in JOINING.take() {
        result = result.and(thread.join().unwrap_or(Err(INTERNAL_ERROR)));
    }
    result
}

/// Checks the communicator and the stream of a call and posts it.
fn operate(comm: usize, stream: *mut Void, arguments: &Arguments) -> Result<(), i32> {
    let comm = find(comm)?;
    let stream = driver::stream(stream).map_err(|_| UNHANDLED_CUDA_ERROR)?;
    post(comm, stream, arguments)
}

// Memory of NCCL is plain memory here; the functions come from the driver side of this library.
unsafe extern "C" {
    fn cuMemFree_v2(address: u64) -> i32;
}

api! {
    fn ncclGetVersion(version: *mut c_int) {
        put(version, CONFIG.nccl_version)?;
    }
    fn ncclGetUniqueId(id: *mut UniqueId) {
        let made = hub::start().map_err(|error| misuse(SYSTEM_ERROR, &format!("ncclGetUniqueId: {error}")))?;
        put(id, made)?;
    }

    fn ncclCommInitRank(comm: *mut usize, n_ranks: c_int, id: UniqueId, rank: c_int) {
        init(comm, n_ranks, id, rank, None)?
    }
    fn ncclCommInitRankConfig(comm: *mut usize, n_ranks: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        // SAFETY: the function's contract: null, or a configuration.
        let config = unsafe { config.as_ref() };
        init(comm, n_ranks, id, rank, config)?
    }
    fn ncclCommInitAll(comms: *mut usize, n: c_int, devices: *const c_int) {
        if comms.is_null() || n < 1 {
            return Err(misuse(INVALID_ARGUMENT, "ncclCommInitAll: no room for communicators"));
        }
        let id = hub::start().map_err(|error| misuse(SYSTEM_ERROR, &format!("ncclCommInitAll: {error}")))?;
        let mut joining = Vec::new();
        for rank in 0..n as usize {
            // SAFETY: the function's contract: null, or `n` devices.
            let device = if devices.is_null() { rank } else { unsafe { devices.wrapping_add(rank).read() as usize } };
            let comm = Comm::new(rank as u64, n as u64, device, true);
            // SAFETY: the function's contract: room for `n` communicators.
            unsafe { comms.wrapping_add(rank).write(COMMS.insert(comm.clone())) };
            joining.push(join_later(&comm, id)?);
        }
        for thread in joining {
            thread.join().unwrap_or(Err(INTERNAL_ERROR))?;
        }
    }

    fn ncclCommFinalize(comm: usize) {
        let comm = find(comm)?;
        comm.ensure_ready("ncclCommFinalize")?;
        if comm.is_blocking {
            return comm.finalize();
        }
        comm.begin_finalize();
        let background = comm.clone();
        std::thread::spawn(move || background.finalize());
        return Err(IN_PROGRESS);
    }
    fn ncclCommDestroy(comm: usize) {
        let found = find(comm)?;
        COMMS.remove(comm).map_err(|_| INVALID_ARGUMENT)?;
        if let Some(seconds) = fault::slow_destroy_s(found.rank) {
            std::thread::sleep(Duration::from_secs(seconds));
        }
        register::end(&found, true);
        found.destroy()?
    }
    fn ncclCommAbort(comm: usize) {
        let found = find(comm)?;
        COMMS.remove(comm).map_err(|_| INVALID_ARGUMENT)?;
        found.abort();
        register::end(&found, false);
    }
    fn ncclCommGetAsyncError(comm: usize, error: *mut c_int) {
        let status = find(comm)?.status();
        put(error, status)?;
    }
    fn ncclCommCount(comm: usize, count: *mut c_int) {
        let comm = find(comm)?;
        comm.ensure_ready("ncclCommCount")?;
        put(count, comm.n_ranks as c_int)?;
    }
    fn ncclCommUserRank(comm: usize, rank: *mut c_int) {
        let comm = find(comm)?;
        comm.ensure_ready("ncclCommUserRank")?;
        put(rank, comm.rank as c_int)?;
    }
    fn ncclCommCuDevice(comm: usize, device: *mut c_int) {
        let comm = find(comm)?;
        comm.ensure_ready("ncclCommCuDevice")?;
        put(device, comm.device as c_int)?;
    }

    fn ncclGroupStart() { call::group_start() }
    fn ncclGroupEnd() {
        match call::group_end() {
            Ok(false) => (),
            Ok(true) => join_group()?,
            Err(code) => {
                let joined = join_group();
                return if code == IN_PROGRESS { joined.and(Err(code)) } else { Err(code) };
            }
        }
    }

    fn ncclAllReduce(send: u64, recv: u64, count: usize, dtype: c_int, op: c_int, comm: usize, stream: *mut Void) {
        operate(comm, stream, &Arguments { operation: Operation::AllReduce, send, recv, count, dtype, op, root: 0 })?
    }
    fn ncclReduce(
        send: u64, recv: u64, count: usize, dtype: c_int, op: c_int, root: c_int, comm: usize, stream: *mut Void,
    ) {
        operate(comm, stream, &Arguments { operation: Operation::Reduce, send, recv, count, dtype, op, root })?
    }
    fn ncclBroadcast(
        send: u64, recv: u64, count: usize, dtype: c_int, root: c_int, comm: usize, stream: *mut Void,
    ) {
        operate(comm, stream, &Arguments { operation: Operation::Broadcast, send, recv, count, dtype, op: 0, root })?
    }
    fn ncclAllGather(send: u64, recv: u64, count: usize, dtype: c_int, comm: usize, stream: *mut Void) {
        let arguments = Arguments { operation: Operation::AllGather, send, recv, count, dtype, op: 0, root: 0 };
        operate(comm, stream, &arguments)?
    }
    fn ncclReduceScatter(
        send: u64, recv: u64, count: usize, dtype: c_int, op: c_int, comm: usize, stream: *mut Void,
    ) {
        let arguments = Arguments { operation: Operation::ReduceScatter, send, recv, count, dtype, op, root: 0 };
        operate(comm, stream, &arguments)?
    }
    fn ncclSend(send: u64, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: *mut Void) {
        let arguments = Arguments { operation: Operation::Send, send, recv: 0, count, dtype, op: 0, root: peer };
        operate(comm, stream, &arguments)?
    }
    fn ncclRecv(recv: u64, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: *mut Void) {
        let arguments = Arguments { operation: Operation::Receive, send: 0, recv, count, dtype, op: 0, root: peer };
        operate(comm, stream, &arguments)?
    }

    fn ncclMemAlloc(address: *mut u64, bytes: usize) {
        let is_large = ROUNDS_TO_MULTICAST.contains(&CONFIG.nccl_version);
        let step = if is_large { MULTICAST_STEP } else { MEMORY_STEP };
        let own = alloc_in_steps("ncclMemAlloc", bytes, step).map_err(|_| UNHANDLED_CUDA_ERROR)?;
        register::allocated(own);
        put(address, own)?;
    }
    fn ncclMemFree(address: u64) {
        if let Some(fault) = fault_of_free(address, false) {
            return Err(misuse(INVALID_USAGE, &format!("ncclMemFree: {fault}")));
        }
        register::give_up(address)?;
        // SAFETY: cuMemFree takes any address and refuses those that it doesn't know.
        match unsafe { cuMemFree_v2(address) } {
            0 => (),
            _ => return Err(UNHANDLED_CUDA_ERROR),
        }
    }
    fn ncclCommRegister(comm: usize, buffer: u64, bytes: usize, handle: *mut usize) {
        let comm = find(comm)?;
        comm.ensure_ready("ncclCommRegister")?;
        if is_due(Fault::Register, comm.rank) {
            note("nccl: ncclCommRegister fails on request (VGPU_FAIL)");
            return Err(SYSTEM_ERROR);
        }
        put(handle, register::register(&comm, buffer, bytes as u64)?)?;
    }
    fn ncclCommDeregister(comm: usize, handle: usize) {
        register::deregister(&find(comm)?, handle)?
    }
}

/// Description of the last error. The string stays valid for ever; the communicator is ignored, as in NCCL.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ncclGetLastError(_comm: usize) -> *const c_char {
    static CALLS: Counter = Counter::new("ncclGetLastError");
    CALLS.hit();
    let text = lock(&LAST_ERROR).replace('\0', " ");
    CString::new(text).map_or(c"".as_ptr(), |text| Box::leak(text.into_boxed_c_str()).as_ptr())
}

/// Meaning of a result code.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        0 => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INTERNAL_ERROR => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
