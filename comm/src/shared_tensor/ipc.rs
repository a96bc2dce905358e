//! Memory of another process's GPU, mapped into this one.
//!
//! Source: CUDA driver API, "Memory management", cuIpcGetMemHandle and cuIpcOpenMemHandle.

use cudarc::driver::sys;
use ddp_kernels::cuda::{Gpu, check_driver};

use crate::Result;

/// The handle with which another process maps an allocation.
pub(crate) type Handle = [u8; 64];

/// The handle of the allocation of `cuMemAlloc` that begins at `address`; it is always mapped whole.
pub(super) fn export_at(gpu: &'static Gpu, address: sys::CUdeviceptr) -> Result<Handle> {
    gpu.bind()?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the pointer is valid for one handle; the driver rejects an address outside of any allocation.
    let got = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) };
    check_driver(gpu.index(), "cuIpcGetMemHandle", got.result())?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// An allocation of another process, mapped for as long as this value lives.
#[derive(Debug)]
pub(super) struct Mapping {
    gpu: &'static Gpu,
    address: sys::CUdeviceptr,
}

impl Mapping {
    /// Maps an allocation for this device. Fails if the devices have no peer access, and for an allocation of this process.
    pub(super) fn open(gpu: &'static Gpu, handle: &Handle) -> Result<Self> {
        gpu.bind()?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the pointer is valid for one address; the handle comes from another process, which keeps the memory.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        check_driver(gpu.index(), "cuIpcOpenMemHandle", opened.result())?;
        Ok(Mapping { gpu, address })
    }

    /// The address at which the allocation begins, for this device.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: opened once, closed once; copies out of it were waited for. `drop` cannot return a failure.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}
