//! Memory that another process maps. Events between processes are not modeled.

use super::context::{current, synchronize};
use super::wrong;
use crate::abi::{Void, api, lock, put};
use crate::capture;
use crate::code::NOT_SUPPORTED;
use crate::mem::MEMORY;
use crate::mem::ipc::Handle;
use std::ffi::c_uint;

const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

api! {
    fn cuIpcGetMemHandle(handle: *mut Handle, p: u64) {
        let device = current()?.device;
        capture::refuse_unsafe("cuIpcGetMemHandle")?;
        // The bytes move to shareable memory, so no work on them may be in flight.
        let owner = lock(&MEMORY).find(p).map_or(device, |(_, a)| a.device);
        synchronize(owner);
        put(handle, lock(&MEMORY).export(p)?)?;
    }

    fn cuIpcOpenMemHandle_v2(p: *mut u64, handle: Handle, flags: c_uint) {
        let device = current()?.device;
        capture::refuse_unsafe("cuIpcOpenMemHandle")?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(wrong("cuIpcOpenMemHandle", "the flag must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"));
        }
        put(p, lock(&MEMORY).import(handle, device)?)?;
    }

    fn cuIpcCloseMemHandle(p: u64) {
        synchronize(current()?.device);
        lock(&MEMORY).close_import(p)?;
    }

    fn cuIpcGetEventHandle(_handle: *mut Void, _event: usize) {
        return Err(NOT_SUPPORTED);
    }

    fn cuIpcOpenEventHandle(_event: *mut usize, _handle: Handle) {
        return Err(NOT_SUPPORTED);
    }
}
