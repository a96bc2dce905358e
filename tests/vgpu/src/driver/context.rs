//! Contexts: the primary context of each device, and the current context of a thread.

use super::ordinal;
use super::stream::STREAMS;
use crate::abi::{Void, api, put, put_if_wanted};
use crate::capture;
use crate::code::{
    DEVICE_UNAVAILABLE, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED,
};
use crate::config::CONFIG;
use crate::fault;
use crate::mem::{MEMORY, pool};
use crate::report::{note, report};
use crate::stream::{self, Kind, Stream};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, LazyLock};

/// The primary context of a device.
pub(crate) struct Ctx {
    /// Ordinal of the device.
    pub(crate) device: usize,
    /// The legacy default stream.
    pub(crate) legacy: Arc<Stream>,
}

/// A context; it is never freed.
type Handle = *const Ctx;

static CONTEXTS: LazyLock<Vec<Ctx>> = LazyLock::new(|| {
    let make = |device| Ctx { device, legacy: Stream::new(device, Kind::Legacy, 0) };
    (0..CONFIG.devices()).map(make).collect()
});

thread_local! {
    /// The stack of contexts of this thread, the current one last.
    static STACK: RefCell<Vec<&'static Ctx>> = const { RefCell::new(Vec::new()) };
}

/// The context of a device.
pub(crate) fn for_device(device: usize) -> &'static Ctx {
    &CONTEXTS[device]
}

/// The current context of this thread.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if there is none; the sticky error of a broken device.
pub(crate) fn current() -> Result<&'static Ctx, i32> {
    let current = STACK.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
    match stream::sticky_error(current.device) {
        0 => Ok(current),
        error => Err(error),
    }
}

/// The context behind a handle.
pub(crate) fn context(handle: Handle) -> Result<&'static Ctx, i32> {
    CONTEXTS.iter().find(|ctx| std::ptr::eq(*ctx, handle)).ok_or(INVALID_CONTEXT)
}

/// Waits for all work of a device, and lets its pools release unused memory.
pub(crate) fn synchronize(device: usize) {
    for_device(device).legacy.sync();
    for stream in STREAMS.all().iter().filter(|stream| stream.device == device) {
        stream.sync();
    }
    pool_sync_point(device);
}

/// Handles a synchronization: pools shrink to their thresholds.
pub(crate) fn pool_sync_point(device: usize) {
    let mut memory = crate::abi::lock(&MEMORY);
    let shrink = |pool: &mut pool::Pool| pool.trim(pool.threshold);
    memory.pools.values_mut().filter(|pool| pool.device == device).for_each(shrink);
}

api! {
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        let made = for_device(ordinal(device)?);
        if let Some(rule) = fault::rule("context") {
            note("cuDevicePrimaryCtxRetain fails on request");
            return Err(rule.at.and_then(|code| i32::try_from(code).ok()).unwrap_or(DEVICE_UNAVAILABLE));
        }
        put(context, made as Handle)?;
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        ordinal(device)?;
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        ordinal(device)?;
        put_if_wanted(flags, 0);
        put_if_wanted(active, 1);
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        ordinal(device)?;
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        ordinal(device)?;
        note("cuDevicePrimaryCtxReset is not modeled");
        return Err(NOT_SUPPORTED);
    }

    fn cuCtxCreate_v4(_context: *mut Handle, _params: *mut Void, _flags: c_uint, _device: c_int) {
        note("contexts other than the primary ones are not modeled");
        return Err(NOT_SUPPORTED);
    }

    fn cuCtxDestroy_v2(_context: Handle) {
        return Err(NOT_SUPPORTED);
    }

    fn cuCtxGetCurrent(context: *mut Handle) {
        let top = STACK.with_borrow(|stack| stack.last().copied());
        put(context, top.map_or(std::ptr::null(), |ctx| ctx as Handle))?;
    }

    fn cuCtxSetCurrent(handle: Handle) {
        let new = if handle.is_null() { None } else { Some(context(handle)?) };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(new);
        });
    }

    fn cuCtxPushCurrent_v2(handle: Handle) {
        let new = context(handle)?;
        STACK.with_borrow_mut(|stack| stack.push(new));
    }

    fn cuCtxPopCurrent_v2(popped: *mut Handle) {
        let top = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        put_if_wanted(popped, top as Handle);
    }

    fn cuCtxGetDevice(device: *mut c_int) {
        put(device, current()?.device as c_int)?;
    }

    fn cuCtxGetApiVersion(_context: Handle, version: *mut c_uint) {
        put(version, 13000)?;
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        current()?;
        put(flags, 0)?;
    }

    fn cuCtxSetFlags(_flags: c_uint) {
        current()?;
    }

    fn cuCtxGetLimit(value: *mut usize, _limit: c_uint) {
        current()?;
        put(value, 0)?;
    }

    /// Limits (stack, printf buffer, heap) are not modeled.
    fn cuCtxSetLimit(_limit: c_uint, _value: usize) {
        current()?;
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        put_if_wanted(least, 0);
        put_if_wanted(greatest, -5);
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        for stream in STREAMS.all().iter().filter(|stream| stream.device == context.device) {
            capture::refuse_on(stream, "cuCtxSynchronize")?;
        }
        capture::refuse_unsafe("cuCtxSynchronize")?;
        synchronize(context.device);
        current()?;
    }

    /// Lets kernels and plain copies of the current context use plain memory of `peer`.
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        let (from, to) = (current()?.device, context(peer)?.device);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if !CONFIG.peers(from, to) {
            report(&format!("cuCtxEnablePeerAccess: device {from} can't reach device {to} (cuDeviceCanAccessPeer)"));
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        crate::abi::lock(&MEMORY).enable_peer(from, to)?;
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let (from, to) = (current()?.device, context(peer)?.device);
        crate::abi::lock(&MEMORY).disable_peer(from, to)?;
    }
}
