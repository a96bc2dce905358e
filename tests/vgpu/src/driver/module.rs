//! Modules and the functions in them. Their implementation is in [`crate::nvrtc::module`].

use super::context::current;
use super::device::arch;
use super::handle::Registry;
use super::wrong;
use crate::abi::{Void, api, put, text};
use crate::capture;
use crate::code::{FILE_NOT_FOUND, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::config::CONFIG;
use crate::fault;
use crate::nvrtc::module::{Kernel, Module};
use crate::report::note;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

static MODULES: Registry<Module> = Registry::new("a module");
/// Functions that the client looked up.
pub(crate) static KERNELS: Registry<Kernel> = Registry::new("a function");

/// Shared memory that a block may have, static and dynamic, unless its kernel requests more.
pub(crate) const BLOCK_SHARED: u32 = 48 << 10;

api! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        put(module, load(image)?)?;
    }

    fn cuModuleLoadDataEx(module: *mut usize, image: *const c_char, _n: c_uint, _options: *mut Void, _values: *mut Void) {
        put(module, load(image)?)?;
    }

    fn cuModuleLoad(module: *mut usize, path: *const c_char) {
        let path = std::ffi::OsStr::from_bytes(text(path)?.to_bytes());
        let image = CString::new(std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?).map_err(|_| INVALID_IMAGE)?;
        put(module, load(image.as_ptr())?)?;
    }

    /// Destroys the handle but keeps the code, because queued launches still need it.
    fn cuModuleUnload(module: usize) {
        MODULES.remove(module)?;
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        let module = MODULES.get(module)?;
        let kernel = module.kernel(text(name)?).ok_or(NOT_FOUND)?;
        put(function, KERNELS.insert(Arc::new(kernel)))?;
    }

    fn cuModuleGetGlobal_v2(_p: *mut u64, _bytes: *mut usize, module: usize, name: *const c_char) {
        MODULES.get(module)?;
        note(&format!("cuModuleGetGlobal({}): globals of a module are not modeled", text(name)?.to_string_lossy()));
        return Err(NOT_SUPPORTED);
    }

    fn cuModuleGetLoadingMode(mode: *mut c_uint) {
        // Eager loading: a missing function is detected when the module is loaded.
        put(mode, 1)?;
    }

    fn cuFuncGetName(name: *mut *const c_char, function: usize) {
        put(name, KERNELS.get(function)?.c_name())?;
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) {
        let kernel = KERNELS.get(function)?;
        put(value, match attribute {
            0 => kernel.most_threads() as c_int,
            1 => kernel.static_shared as c_int,
            4 => kernel.registers() as c_int,
            5 | 6 => CONFIG.arch.0 * 10 + CONFIG.arch.1,
            8 => kernel.dynamic_limit.load(Relaxed) as c_int,
            _ => 0,
        })?;
    }

    /// Only attribute 8, the limit of dynamic shared memory, has an effect.
    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let kernel = KERNELS.get(function)?;
        if attribute == 8 {
            let (most, own) = (arch().shared_block, kernel.static_shared as c_int);
            if value < 0 || value > most - own {
                let what = format!(
                    "can't have {value} bytes of dynamic shared memory next to {own} of static: at most {most} together"
                );
                return Err(wrong(kernel.name, &what));
            }
            kernel.dynamic_limit.store(value as u32, Relaxed);
        }
    }

    fn cuFuncSetCacheConfig(function: usize, _config: c_uint) {
        KERNELS.get(function)?;
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(n: *mut c_int, function: usize, block: c_int, shared: usize) {
        put(n, blocks_per_multiprocessor(function, block, shared)?)?;
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        n: *mut c_int, function: usize, block: c_int, shared: usize, _flags: c_uint,
    ) {
        put(n, blocks_per_multiprocessor(function, block, shared)?)?;
    }

    /// The largest block that the kernel allows, and a grid that fills the device with it.
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int, block: *mut c_int, function: usize, shared_for: Option<extern "C" fn(c_int) -> usize>,
        shared: usize, limit: c_int,
    ) {
        let kernel = KERNELS.get(function)?;
        let most = kernel.most_threads() as c_int;
        let size = if limit > 0 { most.min(limit) } else { most };
        let shared = shared_for.map_or(shared, |f| f(size));
        put(grid, blocks_per_multiprocessor(function, size, shared)? * arch().multiprocessors)?;
        put(block, size)?;
    }
}

fn load(image: *const c_char) -> Result<usize, i32> {
    current()?;
    capture::refuse_unsafe("cuModuleLoadData")?;
    if fault::due("module") {
        return Err(INVALID_IMAGE);
    }
    Ok(MODULES.insert(Arc::new(Module::load(text(image)?)?)))
}

/// Computed from threads and shared memory only; registers are not modeled.
fn blocks_per_multiprocessor(function: usize, block: c_int, shared: usize) -> Result<c_int, i32> {
    let own = KERNELS.get(function)?.static_shared;
    if block <= 0 {
        return Err(INVALID_VALUE);
    }
    let arch = arch();
    let by_threads = arch.threads / (block as u32).next_multiple_of(32) as c_int;
    // A block takes 1 KiB of shared memory for the system (compute capability 8.0 and above).
    let by_shared = arch.shared / (own as c_int + shared as c_int + (1 << 10));
    Ok(by_threads.min(by_shared).min(32))
}
