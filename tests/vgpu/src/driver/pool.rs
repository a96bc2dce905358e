//! Stream-ordered allocation and memory pools.
//!
//! Memory from a pool may be used only by work that is ordered after the allocation and before the free. Therefore both are
//! work on the stream: for [`crate::order`] they are writes of the whole allocation.

use super::context::current;
use super::handle::Registry;
use super::stream::stream;
use super::{ordinal, wrong};
use crate::abi::{Void, api, get, lock, put, slice};
use crate::capture;
use crate::code::{INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::config::CONFIG;
use crate::fault;
use crate::mem::MEMORY;
use crate::mem::pool::{Level, Pool};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, LazyLock, Mutex};

/// Handles of pools; the object is the pool's number in [`crate::mem::Memory::pools`].
static POOLS: Registry<u64> = Registry::new("a memory pool");

/// The default pool of each device, and the pool from which cuMemAllocAsync allocates.
static OF_DEVICE: LazyLock<Mutex<Vec<[usize; 2]>>> = LazyLock::new(|| {
    let make = |device| [POOLS.insert(Arc::new(device as u64)); 2];
    Mutex::new((0..CONFIG.devices()).map(make).collect())
});

const DEFAULT: usize = 0;
const CURRENT: usize = 1;

/// `CUmemLocation`: 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_uint,
    id: c_int,
}

/// The head of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Props {
    allocation: c_uint,
    handles: c_uint,
    location: Location,
    security: usize,
    most: usize,
}

/// `CUmemAccessDesc`; access 0 is none, 3 is reading and writing.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    location: Location,
    flags: c_uint,
}

const DEVICE: c_uint = 1;
const PINNED: c_uint = 1;
const READ_WRITE: c_uint = 3;

api! {
    fn cuMemAllocAsync(p: *mut u64, bytes: usize, s: *mut Void) {
        let device = stream(s)?.device;
        let pool = lock(&OF_DEVICE)[device][CURRENT];
        put(p, alloc("cuMemAllocAsync", bytes, pool, s)?)?;
    }

    fn cuMemAllocFromPoolAsync(p: *mut u64, bytes: usize, pool: usize, s: *mut Void) {
        put(p, alloc("cuMemAllocFromPoolAsync", bytes, pool, s)?)?;
    }

    /// After the call the host must not use the memory; the stream frees it when it reaches this point.
    fn cuMemFreeAsync(p: u64, s: *mut Void) {
        let stream = stream(s)?;
        capture::refuse_on(&stream, "cuMemFreeAsync")?;
        lock(&MEMORY).announce_free(p).map_err(|e| wrong("cuMemFreeAsync", &e))?;
        stream.run("cuMemFreeAsync", move |stamp| {
            stamp.access_within(p, u64::MAX - p, 0, true)?;
            lock(&MEMORY).free(p).map_err(|e| (crate::code::ILLEGAL_ADDRESS, format!("cuMemFreeAsync: {e}")))
        });
    }

    fn cuMemPoolCreate(pool: *mut usize, props: *const Props) {
        let props = get(props)?;
        if fault::refuses("pool") {
            return Err(NOT_SUPPORTED);
        }
        if props.allocation != PINNED || props.location.kind != DEVICE {
            return Err(wrong("cuMemPoolCreate", "only pinned allocations on a device are known"));
        }
        if props.handles != 0 {
            return Err(wrong("cuMemPoolCreate", "pools that can be exported are not modeled"));
        }
        let device = ordinal(props.location.id)?;
        let mut memory = lock(&MEMORY);
        let number = memory.pools.keys().next_back().map_or(0, |last| last + 1);
        memory.pools.insert(number, Pool::new(device, props.most as u64));
        put(pool, POOLS.insert(Arc::new(number)))?;
    }

    /// Memory that is still allocated remains until it is freed.
    fn cuMemPoolDestroy(pool: usize) {
        if lock(&OF_DEVICE).iter().any(|pools| pools[DEFAULT] == pool) {
            return Err(wrong("cuMemPoolDestroy", "the default pool of a device can't be destroyed"));
        }
        let number = POOLS.remove(pool)?;
        for pools in lock(&OF_DEVICE).iter_mut().filter(|pools| pools[CURRENT] == pool) {
            pools[CURRENT] = pools[DEFAULT];
        }
        if let Some(pool) = lock(&MEMORY).pools.get_mut(&number) {
            pool.threshold = 0;
            pool.trim(0);
        }
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) {
        put(pool, lock(&OF_DEVICE)[ordinal(device)?][DEFAULT])?;
    }

    fn cuDeviceGetMemPool(pool: *mut usize, device: c_int) {
        put(pool, lock(&OF_DEVICE)[ordinal(device)?][CURRENT])?;
    }

    fn cuDeviceSetMemPool(device: c_int, pool: usize) {
        let device = ordinal(device)?;
        if with(pool, |p| p.device)? != device {
            return Err(wrong("cuDeviceSetMemPool", "the pool is of another device"));
        }
        lock(&OF_DEVICE)[device][CURRENT] = pool;
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) {
        with(pool, |p| p.trim(keep as u64))?;
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, value: *mut Void) {
        match attribute {
            1..=3 => put(value.cast(), with(pool, |p| p.reuse[attribute as usize - 1])?)?,
            4 => put(value.cast(), with(pool, |p| p.threshold)?)?,
            5 => put(value.cast(), with(pool, |p| p.reserved.now)?)?,
            6 => put(value.cast(), with(pool, |p| p.reserved.high)?)?,
            7 => put(value.cast(), with(pool, |p| p.used.now)?)?,
            8 => put(value.cast(), with(pool, |p| p.used.high)?)?,
            _ => return Err(INVALID_VALUE),
        }
    }

    /// High-water marks can only be set to zero, which resets them to the current value.
    fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, value: *const Void) {
        let reset = |level: &mut Level| level.high = level.now;
        match attribute {
            1..=3 => {
                let on: c_int = get(value.cast())?;
                with(pool, |p| p.reuse[attribute as usize - 1] = on)?;
            }
            4 => {
                let bytes: u64 = get(value.cast())?;
                with(pool, |p| p.threshold = bytes)?;
            }
            6 | 8 if get::<u64>(value.cast())? == 0 => {
                with(pool, |p| if attribute == 6 { reset(&mut p.reserved) } else { reset(&mut p.used) })?;
            }
            _ => return Err(INVALID_VALUE),
        }
    }

    /// Sets which other devices can access the pool's memory; cuCtxEnablePeerAccess does not affect pools.
    fn cuMemPoolSetAccess(pool: usize, list: *const Access, n: usize) {
        let owner = with(pool, |p| p.device)?;
        for access in slice(list, n)? {
            if access.location.kind != DEVICE {
                return Err(INVALID_VALUE);
            }
            let device = ordinal(access.location.id)?;
            if device == owner && access.flags != READ_WRITE {
                return Err(wrong("cuMemPoolSetAccess", "a pool's own device can't lose access"));
            }
            if device != owner && access.flags != 0 && !CONFIG.peers(device, owner) {
                wrong("cuMemPoolSetAccess", &format!("device {device} can't reach device {owner}"));
                return Err(INVALID_DEVICE);
            }
            with(pool, |p| p.access[device] = access.flags != 0)?;
        }
    }

    fn cuMemPoolGetAccess(flags: *mut c_uint, pool: usize, location: *const Location) {
        let location = get(location)?;
        if location.kind != DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = ordinal(location.id)?;
        put(flags, if with(pool, |p| p.access[device])? { READ_WRITE } else { 0 })?;
    }
}

/// The handle of a pool, by its number.
pub(crate) fn handle_of(number: u64) -> u64 {
    POOLS.handle_of(|&n| n == number).unwrap_or(0) as u64
}

fn with<T>(pool: usize, f: impl FnOnce(&mut Pool) -> T) -> Result<T, i32> {
    LazyLock::force(&OF_DEVICE);
    let number = POOLS.get(pool)?;
    lock(&MEMORY).pools.get_mut(&number).map(f).ok_or(INVALID_HANDLE)
}

fn alloc(call: &'static str, bytes: usize, pool: usize, s: *mut Void) -> Result<u64, i32> {
    let stream = stream(s)?;
    capture::refuse_on(&stream, call)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let number = *POOLS.get(pool)?;
    let device = with(pool, |p| p.device)?;
    let p = lock(&MEMORY).alloc(device, bytes as u64, Some(number))?;
    if CONFIG.check || CONFIG.fuzz != 0 {
        let len = bytes as u64;
        // Values that another stream wrote before the allocation is done are lost here, as the order allows.
        stream.run(call, move |stamp| {
            lock(&MEMORY).poison(p);
            stamp.access_within(p, len, 0, true)
        });
    }
    current()?;
    Ok(p)
}
