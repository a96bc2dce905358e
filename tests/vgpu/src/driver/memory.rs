//! Device memory, pinned memory, and attributes of pointers. Stream-ordered allocation is in [`super::pool`].

use super::context::{self, current, synchronize};
use super::wrong;
use crate::abi::{Void, api, lock, put, slice};
use crate::capture;
use crate::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::config::CONFIG;
use crate::fault;
use crate::mem::{MEMORY, host, is_device};
use std::ffi::{c_int, c_uint};

api! {
    fn cuMemAlloc_v2(p: *mut u64, bytes: usize) {
        put(p, alloc_in_steps("cuMemAlloc", bytes, 1)?)?;
    }

    /// Waits for all work of the device that holds the memory, like the real function.
    fn cuMemFree_v2(p: u64) {
        current()?;
        capture::refuse_unsafe("cuMemFree")?;
        if p == 0 {
            return Ok(());
        }
        if let Some(fault) = crate::nccl::fault_of_free(p, true) {
            return Err(wrong("cuMemFree", &fault));
        }
        let device = lock(&MEMORY).find(p).map(|(_, a)| a.device);
        if let Some(device) = device {
            synchronize(device);
        }
        let mut memory = lock(&MEMORY);
        if memory.find(p).is_some_and(|(_, a)| a.import.is_some()) {
            return Err(wrong("cuMemFree", "memory from cuIpcOpenMemHandle is closed by cuIpcCloseMemHandle"));
        }
        memory.free(p).map_err(|e| wrong("cuMemFree", &e))?;
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (now, all) = lock(&MEMORY).info(current()?.device);
        put(free, now as usize)?;
        put(total, all as usize)?;
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, p: u64) {
        current()?;
        let found = lock(&MEMORY).find(p).map(|(base, a)| (base, a.size)).ok_or(INVALID_VALUE)?;
        crate::abi::put_if_wanted(base, found.0);
        crate::abi::put_if_wanted(bytes, found.1 as usize);
    }

    /// Not a function of the driver: returns the bytes that streams have read and written so far in the allocation that holds
    /// `p`.
    fn vgpuTraffic(p: u64, read: *mut u64, written: *mut u64) {
        let moved = lock(&MEMORY).find(p).map(|(_, a)| a.moved).filter(|_| CONFIG.check).ok_or(NOT_SUPPORTED)?;
        put(read, moved[0])?;
        put(written, moved[1])?;
    }

    fn cuMemHostAlloc(p: *mut u64, bytes: usize, flags: c_uint) {
        if fault::refuses("pin") {
            return Err(NOT_SUPPORTED);
        }
        put(p, alloc_host("cuMemHostAlloc", bytes, flags)?)?;
    }

    fn cuMemAllocHost_v2(p: *mut u64, bytes: usize) {
        put(p, alloc_host("cuMemAllocHost", bytes, 0)?)?;
    }

    fn cuMemFreeHost(p: u64) {
        let device = current()?.device;
        capture::refuse_unsafe("cuMemFreeHost")?;
        synchronize(device);
        if !host::free(p) {
            return Err(wrong("cuMemFreeHost", &format!("{p:#x} is not the begin of pinned memory")));
        }
    }

    fn cuMemHostRegister_v2(p: u64, bytes: usize, flags: c_uint) {
        current()?;
        capture::refuse_unsafe("cuMemHostRegister")?;
        if p == 0 || bytes == 0 || is_device(p) {
            return Err(wrong("cuMemHostRegister", "no host memory"));
        }
        if !host::register(p, bytes as u64, flags) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
    }

    fn cuMemHostUnregister(p: u64) {
        synchronize(current()?.device);
        if !host::unregister(p) {
            return Err(HOST_MEMORY_NOT_REGISTERED);
        }
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, p: u64) {
        put(flags, host::flags(p).ok_or(INVALID_VALUE)?)?;
    }

    /// Pinned memory has the same address on the devices and is always mapped, because addressing is unified.
    fn cuMemHostGetDevicePointer_v2(p: *mut u64, from: u64, flags: c_uint) {
        current()?;
        if fault::refuses("map") {
            return Err(NOT_SUPPORTED);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(p, host::flags(from).map(|_| from).ok_or(INVALID_VALUE)?)?;
    }

    fn cuMemAllocManaged(_p: *mut u64, _bytes: usize, _flags: c_uint) {
        return Err(NOT_SUPPORTED);
    }

    fn cuPointerGetAttribute(data: *mut Void, attribute: c_int, p: u64) {
        match pointer_attribute(attribute, p)? {
            Attribute::Word(v) => put(data.cast(), v)?,
            Attribute::Int(v) => put(data.cast(), v)?,
            Attribute::Flag(v) => put(data.cast(), v)?,
        }
    }

    /// Same as cuPointerGetAttribute, but an attribute that a pointer doesn't have becomes zero instead of an error.
    fn cuPointerGetAttributes(n: c_uint, attributes: *const c_int, data: *const *mut Void, p: u64) {
        let (attributes, data) = (slice(attributes, n as usize)?, slice(data, n as usize)?);
        for (&attribute, &to) in attributes.iter().zip(data) {
            match pointer_attribute(attribute, p) {
                Ok(Attribute::Word(v)) => put(to.cast(), v)?,
                Ok(Attribute::Int(v)) => put(to.cast(), v)?,
                Ok(Attribute::Flag(v)) => put(to.cast(), v)?,
                // A missing ordinal is -2; for the others an int is the smallest type that the caller provides room for.
                Err(_) if attribute == ORDINAL => put(to.cast(), -2i32)?,
                Err(_) if WORDS.contains(&attribute) => put(to.cast(), 0u64)?,
                Err(_) if FLAGS.contains(&attribute) => put(to.cast(), 0u8)?,
                Err(_) => put(to.cast(), 0i32)?,
            }
        }
    }
}

/// Plain memory, given in multiples of `step` bytes.
pub(crate) fn alloc_in_steps(call: &str, bytes: usize, step: u64) -> Result<u64, i32> {
    let device = current()?.device;
    capture::refuse_unsafe(call)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    lock(&MEMORY).alloc_in_steps(device, bytes as u64, None, step)
}

fn alloc_host(call: &str, bytes: usize, flags: c_uint) -> Result<u64, i32> {
    current()?;
    capture::refuse_unsafe(call)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if fault::due("pin") {
        return Err(OUT_OF_MEMORY);
    }
    host::alloc(bytes as u64, flags).ok_or(OUT_OF_MEMORY)
}

enum Attribute {
    Word(u64),
    Int(i32),
    Flag(u8),
}

const ORDINAL: c_int = 9;
/// Attributes that are 64 bits wide: context, device and host pointer, buffer, range, pool.
const WORDS: [c_int; 7] = [1, 3, 4, 7, 11, 12, 17];
/// Attributes that are a `bool`: managed, exportable, mapped.
const FLAGS: [c_int; 3] = [8, 10, 13];

/// Source: CUDA Driver API, `CUpointer_attribute`.
fn pointer_attribute(attribute: c_int, p: u64) -> Result<Attribute, i32> {
    let memory = lock(&MEMORY);
    let found = memory.find(p);
    let device = match (&found, host::flags(p)) {
        (Some((_, a)), _) => a.device,
        (None, Some(_)) => 0,
        (None, None) => return Err(INVALID_VALUE),
    };
    Ok(match (attribute, found) {
        (1, _) => Attribute::Word(context::for_device(device) as *const _ as u64),
        (2, found) => Attribute::Int(if found.is_some() { 2 } else { 1 }),
        (3, _) => Attribute::Word(p),
        (4, None) => Attribute::Word(p),
        (7, Some((_, a))) => Attribute::Word(a.id),
        (8, _) => Attribute::Flag(0),
        (9, _) => Attribute::Int(device as i32),
        (10, found) => Attribute::Flag(found.is_some_and(|(_, a)| a.pool.is_none()) as u8),
        (11, Some((base, _))) => Attribute::Word(base),
        (12, Some((_, a))) => Attribute::Word(a.size),
        (13, _) => Attribute::Flag(1),
        (17, Some((_, a))) => Attribute::Word(a.pool.map_or(0, super::pool::handle_of)),
        _ => return Err(INVALID_VALUE),
    })
}
