//! Launches: their limits, and their arguments, which are copied at the call.

use super::device::arch;
use super::module::KERNELS;
use super::stream::stream;
use super::wrong;
use crate::abi::{Void, api, get, lock, slice};
use crate::code::{
    ILLEGAL_ADDRESS, INVALID_VALUE, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES, MISALIGNED_ADDRESS, NOT_SUPPORTED,
};
use crate::config::CONFIG;
use crate::counts::Tally;
use crate::fault;
use crate::mem::host::{self, Touch};
use crate::mem::{self, MEMORY, SHIFT};
use crate::nvrtc::module::{BLOCK_REGISTERS, Kernel, Pointer, Range};
use crate::order::Stamp;
use crate::report::{note, report};
use crate::stream::{Outcome, Task};
use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// `CUlaunchAttribute`; of the value only what the attribute below has.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attribute {
    id: c_uint,
    pad: [u8; 4],
    value: [i32; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC: c_uint = 6;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: *mut Void,
    attributes: *const Attribute,
    n_attributes: c_uint,
}

api! {
    fn cuLaunchKernel(
        function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        s: *mut Void, params: *const *const u8, extra: *const Void,
    ) {
        if !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared }, false, s, params)?;
    }

    fn cuLaunchKernelEx(config: *const Config, function: usize, params: *const *const u8, extra: *const Void) {
        let Config { grid, block, shared, stream, attributes, n_attributes } = get(config)?;
        let attributes = if n_attributes == 0 { &[] } else { slice(attributes, n_attributes as usize)? };
        if !extra.is_null() || attributes.iter().any(|attribute| attribute.id != PROGRAMMATIC) {
            note("cuLaunchKernelEx: attributes of a launch (clusters, ...) are not modeled");
            return Err(NOT_SUPPORTED);
        }
        let is_dependent = attributes.iter().any(|attribute| attribute.value[0] != 0);
        if is_dependent && fault::refuses("dependent") {
            return Err(NOT_SUPPORTED);
        }
        if is_dependent && CONFIG.arch < (9, 0) {
            return Err(wrong("cuLaunchKernelEx", "a dependent launch needs compute capability 9.0"));
        }
        launch(function, Shape { grid, block, shared }, is_dependent, stream, params)?;
    }

    /// Blocks run one after another, so they can't wait for each other.
    fn cuLaunchCooperativeKernel(
        _function: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, _s: *mut Void, _params: *const *const u8,
    ) {
        return Err(NOT_SUPPORTED);
    }
}

/// Blocks, threads per block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

impl Shape {
    /// Refuses launches that a real GPU would refuse.
    fn check(&self, kernel: &Kernel) -> Result<(), String> {
        let threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        let own = kernel.static_shared;
        let limit = kernel.dynamic_limit.load(Relaxed).max(super::module::BLOCK_SHARED - own);
        let limit = limit.min(arch().shared_block as u32 - own);
        if self.grid.contains(&0) || self.block.contains(&0) {
            return Err("a dimension is zero".into());
        }
        if self.grid[0] > i32::MAX as u32 || self.grid[1] > 65535 || self.grid[2] > 65535 {
            return Err("a grid may have 2147483647 x 65535 x 65535 blocks".into());
        }
        if threads > 1024 || self.block[2] > 64 {
            return Err("a block may have 1024 threads, and 64 in z".into());
        }
        if threads > u64::from(kernel.most_threads()) {
            return Err(format!("its __launch_bounds__ allow {} threads", kernel.most_threads()));
        }
        if self.shared > limit {
            return Err(format!(
                "it may have {limit} bytes of dynamic shared memory (cuFuncSetAttribute), as it has {own} of static"
            ));
        }
        Ok(())
    }

    /// Refuses launches for which a real GPU would lack registers; registers are allocated to whole warps, eight per thread at a
    /// time.
    fn check_registers(&self, kernel: &Kernel) -> Result<(), String> {
        let threads: u32 = self.block.iter().product();
        let (threads, each) = (threads.next_multiple_of(32), kernel.registers().next_multiple_of(8));
        if threads * each <= BLOCK_REGISTERS {
            return Ok(());
        }
        Err(format!(
            "{threads} threads of {each} registers, but a block may have {BLOCK_REGISTERS} registers: \
             say __launch_bounds__, so that the compiler uses fewer"
        ))
    }
}

fn launch(
    function: usize,
    shape: Shape,
    is_dependent: bool,
    s: *mut Void,
    params: *const *const u8,
) -> Result<(), i32> {
    let (kernel, stream) = (KERNELS.get(function)?, stream(s)?);
    shape
        .check(&kernel)
        .map_err(|e| wrong(kernel.name, &format!("can't be launched with {shape:?}: {e}")))?;
    shape.check_registers(&kernel).map_err(|e| {
        wrong(kernel.name, &format!("can't be launched with {shape:?}: {e}"));
        LAUNCH_OUT_OF_RESOURCES
    })?;
    let mut args = Args::new(&kernel, params, stream.device)?;
    if fault::due("launch") {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    let (name, touches) = (kernel.name, std::mem::take(&mut args.touches));
    let is_wrong = fault::is_wrong(name);
    let work = Box::new(
        move |stamp: &Stamp| {
            if is_wrong { Ok(()) } else { args.launch(&kernel, shape, is_dependent, stamp) }
        },
    );
    let tally = if is_dependent { Tally::DependentKernel(name) } else { Tally::Kernel(name) };
    stream.submit(Task { name, tally, touches, host_function: false, work });
    Ok(())
}

/// The arguments of a launch. Sizes and kinds come from the kernel's C++ type.
struct Args {
    /// All values, each at a multiple of 16 bytes.
    bytes: Vec<u128>,
    at: Vec<usize>,
    /// The device pointers among the arguments, including those inside structures.
    pointers: Vec<u64>,
    /// The pointers to pinned host memory, as host addresses.
    host_pointers: Vec<u64>,
    /// The ranges of that memory that the kernel may access.
    touches: Vec<Touch>,
    device: usize,
}

impl Args {
    fn new(kernel: &Arc<Kernel>, params: *const *const u8, device: usize) -> Result<Args, i32> {
        let n = kernel.n_params();
        let mut args = Args {
            bytes: Vec::new(),
            at: Vec::new(),
            pointers: Vec::new(),
            host_pointers: Vec::new(),
            touches: Vec::new(),
            device,
        };
        for (i, &from) in slice(params, n)?.iter().enumerate() {
            let (size, pointer) = kernel.param(i);
            let begin = args.bytes.len();
            args.at.push(begin);
            args.bytes.resize(begin + size.div_ceil(16), 0);
            let value: &mut [u8] = as_bytes(&mut args.bytes[begin..]);
            value[..size].copy_from_slice(slice(from, size)?);
            // Replaces every aligned word that is a device pointer by the real address of its bytes. In a structure it may be a number of any
            // meaning, and is a pointer only if something is allocated there.
            for word in value[..size].chunks_exact_mut(8) {
                let p = u64::from_ne_bytes(word.try_into().map_err(|_| INVALID_VALUE)?);
                if mem::is_device(p) && (pointer != Pointer::None || lock(&MEMORY).find(p).is_some()) {
                    args.pointers.push(p);
                    word.copy_from_slice(&(p + SHIFT).to_ne_bytes());
                } else if pointer != Pointer::None && p != 0 {
                    let Some((base, len)) = host::range_of(p) else {
                        return Err(wrong(
                            kernel.name,
                            &format!(
                                "argument {i} is a pointer, but {p:#x} is not a device address or pinned host memory"
                            ),
                        ));
                    };
                    args.host_pointers.push(p);
                    let write = pointer == Pointer::Mutable;
                    args.touches.push(Touch { at: p, len: base + len - p, write, whole: false });
                    word.copy_from_slice(&host::device_view(p, 1).to_ne_bytes());
                }
            }
        }
        let memory = lock(&MEMORY);
        for &p in &args.pointers {
            if let Some((_, a)) = memory.find(p).filter(|(_, a)| a.freeing) {
                report(&format!("{}: allocation #{} is used after cuMemFreeAsync", kernel.name, a.id));
            }
        }
        Ok(args)
    }

    fn launch(&self, kernel: &Kernel, shape: Shape, is_dependent: bool, stamp: &Stamp) -> Outcome {
        let illegal = |e: String| (ILLEGAL_ADDRESS, format!("{}: {e}", kernel.name));
        let mut ranges: Vec<Range> = Vec::new();
        {
            let memory = lock(&MEMORY);
            for &p in &self.pointers {
                memory.real(self.device, p, 0).map_err(illegal)?;
                if let Some((base, a)) = memory.find(p)
                    && !ranges.iter().any(|r| r.base == base + SHIFT)
                {
                    ranges.push(Range::untouched(base + SHIFT, a.size));
                }
            }
        }
        for &p in &self.host_pointers {
            let Some((base, len)) = host::range_of(p) else {
                return Err(illegal(format!("illegal address {p:#x}: pinned host memory that was freed")));
            };
            ranges.push(Range::untouched(host::device_view(base, len), len));
        }
        let at: Vec<*const u8> = self.at.iter().map(|&i| self.bytes[i..].as_ptr().cast()).collect();
        kernel.run(shape, is_dependent, &at, &mut ranges).map_err(|e| {
            let code = match () {
                () if e.contains("misaligned") => MISALIGNED_ADDRESS,
                () if e.contains("illegal") => ILLEGAL_ADDRESS,
                () => LAUNCH_FAILED,
            };
            (code, e)
        })?;
        {
            let memory = lock(&MEMORY);
            for &p in &self.pointers {
                memory.check_canary(p).map_err(illegal)?;
            }
        }
        for range in ranges.iter().filter(|range| mem::is_device(range.base.wrapping_sub(SHIFT))) {
            for ([lo, hi], moved, write) in
                [(range.read, range.n_read, false), (range.write, range.n_written, true)]
            {
                if lo < hi {
                    stamp.access_within(lo - SHIFT, hi - lo, moved, write)?;
                }
            }
        }
        Ok(())
    }
}

fn as_bytes(words: &mut [u128]) -> &mut [u8] {
    // SAFETY: any 16 bytes are a u128 and the other way round; the length is that of the slice.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}
