//! Memory of another process's GPU, mapped into this one.
//!
//! Source: CUDA driver API, "Memory management", cuIpcGetMemHandle and cuIpcOpenMemHandle.

use cudarc::driver::sys;
use ddp_kernels::cuda::{Gpu, check_driver};

use crate::Result;

/// What another process needs in order to map a buffer.
pub(super) type Handle = [u8; 64];

/// The handle of the allocation of `cuMemAlloc` that begins at `address`, which is mapped whole.
pub(super) fn export_at(gpu: &'static Gpu, address: sys::CUdeviceptr) -> Result<Handle> {
    gpu.bind()?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the pointer is good for one handle; the driver refuses an address that is none of an allocation.
    let got = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) };
    check_driver(gpu.index(), "cuIpcGetMemHandle", got.result())?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// A buffer of another process, as long as this lives.
#[derive(Debug)]
pub(super) struct Mapping {
    gpu: &'static Gpu,
    address: sys::CUdeviceptr,
}

impl Mapping {
    /// Maps a buffer for this device. Fails where the devices don't reach each other, and for a buffer of this process.
    pub(super) fn open(gpu: &'static Gpu, handle: &Handle) -> Result<Self> {
        gpu.bind()?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the pointer is good for one address, and the handle is another process's, who keeps the memory.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        check_driver(gpu.index(), "cuIpcOpenMemHandle", opened.result())?;
        Ok(Mapping { gpu, address })
    }

    /// Where the buffer begins, for this device.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: opened once, closed once; copies out of it were waited for. A failure has nowhere to go.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}
