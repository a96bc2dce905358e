//! Modules: each is a private copy of a shared object with its kernels.
//!
//! The copy is an anonymous file, because the dynamic loader returns the same object, with the same statics, for
//! the same path. Statics are the state of a running block, so kernels of one module run one after another. A module
//! is never unmapped, because a queued launch may still need it.

use super::image::Image;
use super::stacks::with_stacks;
use crate::code::INVALID_IMAGE;
use crate::config::CONFIG;
use crate::driver::launch::Shape;
use crate::driver::module::BLOCK_SHARED;
use crate::mem::trap::{self, Escape};
use crate::report::say;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

/// `VgpuRange` of `device/fibers.h`: an allocation that a kernel received, the first and the end address that it read
/// and wrote, and the bytes of its accesses. Real addresses.
#[repr(C)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) read: [u64; 2],
    pub(crate) write: [u64; 2],
    pub(crate) n_read: u64,
    pub(crate) n_written: u64,
}

impl Range {
    pub(crate) fn untouched(base: u64, size: u64) -> Range {
        let none = [u64::MAX, 0];
        Range { base, end: base + size, read: none, write: none, n_read: 0, n_written: 0 }
    }
}

/// `VgpuLaunch` of `device/fibers.h`.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    seed: u64,
    args: *const *const u8,
    at_block: [u32; 3],
    at_thread: [u32; 3],
    error: [c_char; 512],
    ranges: *mut Range,
    n_ranges: u32,
    stacks: *mut *mut c_void,
    is_dependent: u32,
    n_waits: u64,
}

/// `KernelInfo` of `device/launch.h`.
#[repr(C)]
struct Info {
    name: *const c_char,
    run: unsafe extern "C" fn(*mut Launch) -> c_int,
    n_params: u32,
    size: *const u32,
    pointer: *const u32,
    most_threads: u32,
}

// SAFETY: an Info is constant data of a module that is never unmapped.
unsafe impl Sync for Info {}

/// Kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pointer {
    /// Not a pointer.
    None,
    /// A pointer to elements that the kernel may write.
    Mutable,
    /// A pointer to constants.
    Const,
}

/// Registers that a block may have, on all architectures since 5.0.
pub(crate) const BLOCK_REGISTERS: u32 = 1 << 16;

/// A loaded module.
pub(crate) struct Module {
    library: usize,
    running: Arc<Mutex<()>>,
}

/// A kernel of a loaded module.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Static shared memory in bytes.
    pub(crate) static_shared: u32,
    /// Maximum dynamic shared memory in bytes.
    pub(crate) dynamic_limit: AtomicU32,
    info: &'static Info,
    escape: Escape,
    running: Arc<Mutex<()>>,
}

impl Module {
    /// Loads an image.
    ///
    /// # Errors
    /// Same as [`Image::open`].
    pub(crate) fn load(image: &CStr) -> Result<Module, i32> {
        let path = Image::open(image.to_str().map_err(|_| INVALID_IMAGE)?)?;
        let bytes = std::fs::read(path).map_err(|_| INVALID_IMAGE)?;
        // SAFETY: a new descriptor that nobody else knows.
        let descriptor = unsafe { libc::memfd_create(c"vgpu-module".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(INVALID_IMAGE);
        }
        // SAFETY: the descriptor is valid and owned by nobody else.
        let mut file = unsafe { File::from_raw_fd(descriptor) };
        file.write_all(&bytes).map_err(|_| INVALID_IMAGE)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| INVALID_IMAGE)?;
        // SAFETY: the path is terminated. The object is from our own compiler: its initializers set statics.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: dlopen() of this thread has failed, so there is a message.
            let why = unsafe { libc::dlerror() };
            // SAFETY: the message is a terminated string that lives until the next call of this thread.
            let why = unsafe { CStr::from_ptr(why) };
            say(&format!("a compiled module can't be loaded: {}", why.to_string_lossy()));
            return Err(INVALID_IMAGE);
        }
        // The descriptor stays open: the loader identifies a library by its path, and would return this one if the number of the
        // descriptor were reused.
        std::mem::forget(file);
        Ok(Module { library: library as usize, running: Arc::default() })
    }

    /// The kernel of that name, if the module has it.
    pub(crate) fn kernel(&self, name: &CStr) -> Option<Kernel> {
        let name = name.to_str().ok()?;
        let info = self.symbol(&format!("vgpu_kernel_{name}"))?;
        let static_shared = self.symbol(&format!("vgpu_static_{name}"))?;
        let escape = self.symbol("vgpu_fault")?;
        // SAFETY: VGPU_KERNEL made this symbol a KernelInfo, which lives as long as the module.
        let info: &'static Info = unsafe { info.cast().as_ref() };
        // SAFETY: launch.h defines vgpu_fault as a function of this type.
        let escape = unsafe { std::mem::transmute::<NonNull<c_void>, Escape>(escape) };
        // SAFETY: `static_shared::sizes` made this symbol such a word, which lives as long as the module.
        let static_shared = unsafe { static_shared.cast::<u32>().read() };
        // SAFETY: the name is a string literal of the module.
        let name = unsafe { CStr::from_ptr(info.name) }.to_str().ok()?;
        Some(Kernel {
            name,
            static_shared,
            dynamic_limit: AtomicU32::new(BLOCK_SHARED - static_shared),
            info,
            escape,
            running: self.running.clone(),
        })
    }

    fn symbol(&self, name: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is from dlopen() and never closed; the name is terminated.
        NonNull::new(unsafe { libc::dlsym(self.library as *mut c_void, name.as_ptr()) })
    }
}

impl Kernel {
    pub(crate) fn c_name(&self) -> *const c_char {
        self.info.name
    }

    pub(crate) fn n_params(&self) -> usize {
        self.info.n_params as usize
    }

    /// Value of `__launch_bounds__`, or 1024 without it.
    pub(crate) fn most_threads(&self) -> u32 {
        if self.info.most_threads > 0 { self.info.most_threads } else { 1024 }
    }

    /// Nominal number of registers per thread, because nothing here has registers. For a kernel with `__launch_bounds__` a
    /// compiler uses no more than a block of that size may have.
    pub(crate) fn registers(&self) -> u32 {
        match self.info.most_threads {
            0 => CONFIG.registers,
            threads => CONFIG.registers.min(BLOCK_REGISTERS / threads.next_multiple_of(32) / 8 * 8),
        }
    }

    /// Size in bytes and kind of a parameter.
    pub(crate) fn param(&self, i: usize) -> (usize, Pointer) {
        let n = self.n_params();
        // SAFETY: the array is constant data of the module, one element for each parameter.
        let sizes = unsafe { std::slice::from_raw_parts(self.info.size, n) };
        // SAFETY: as above.
        let pointers = unsafe { std::slice::from_raw_parts(self.info.pointer, n) };
        let pointer = match pointers[i] {
            0 => Pointer::None,
            1 => Pointer::Mutable,
            _ => Pointer::Const,
        };
        (sizes[i] as usize, pointer)
    }

    /// Runs all blocks. With `VGPU_CHECK` records in `ranges` which bytes were accessed.
    ///
    /// # Errors
    /// A description of the thread, its block, and its fault.
    pub(crate) fn run(
        &self,
        shape: Shape,
        is_dependent: bool,
        args: &[*const u8],
        ranges: &mut [Range],
    ) -> Result<(), String> {
        let mut launch = Launch {
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            seed: CONFIG.fuzz,
            args: args.as_ptr(),
            at_block: [0; 3],
            at_thread: [0; 3],
            error: [0; 512],
            ranges: ranges.as_mut_ptr(),
            n_ranges: ranges.len() as u32,
            stacks: std::ptr::null_mut(),
            is_dependent: u32::from(is_dependent),
            n_waits: 0,
        };
        let _one_at_a_time = crate::abi::lock(&self.running);
        // SAFETY: `launch` is laid out as VgpuLaunch and outlives the call; the arguments have the sizes that the
        // kernel's type says. A fault of the kernel comes back as the result 1.
        let run = |launch: *mut Launch| trap::in_kernel(self.escape, || unsafe { (self.info.run)(launch) });
        let failed = with_stacks(|stacks| {
            launch.stacks = stacks;
            run(&mut launch) != 0
        });
        if !failed {
            let n_threads: u64 = shape.grid.iter().chain(&shape.block).map(|&n| u64::from(n)).product();
            if is_dependent && launch.n_waits != n_threads {
                return Err(format!(
                    "kernel {}: {} of {n_threads} threads wait for the kernel before it, as a dependent launch must",
                    self.name, launch.n_waits
                ));
            }
            return Ok(());
        }
        // SAFETY: `die` writes a terminated string.
        let error = unsafe { CStr::from_ptr(launch.error.as_ptr()) }.to_string_lossy();
        let (block, thread) = (launch.at_block, launch.at_thread);
        Err(format!("kernel {}, block {block:?}, thread {thread:?}: {error}", self.name))
    }
}
