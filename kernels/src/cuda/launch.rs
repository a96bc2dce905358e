//! Launches kernels: their names by dtype, grid, arguments, and the one unsafe call.

pub(crate) use super::source::Source;

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use super::feature::GpuFeature;
use super::gpu::{Gpu, StreamKind};
use super::slice::{CudaSlice, CudaSliceMut};
use crate::Result;

/// Default number of threads per block.
pub(crate) const BLOCK: u32 = 256;
/// Capacity for all arguments of a kernel; CUDA allows 4 KiB, ours take far less.
const MAX_ARG_WORDS: usize = 128;
const MAX_ARGS: usize = 24;

/// A kernel argument, passed by value as its bytes.
pub(crate) trait Argument: bytemuck::Pod {}
impl Argument for u32 {}
impl Argument for i32 {}
impl Argument for u64 {}
impl Argument for i64 {}
impl Argument for usize {}
impl Argument for f32 {}
impl Argument for f64 {}

/// The name of the kernel `$name` for a dtype.
macro_rules! typed_kernel {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            $crate::DType::F32 => concat!($name, "_f32"),
            $crate::DType::F64 => concat!($name, "_f64"),
            $crate::DType::BF16 => concat!($name, "_bf16"),
            $crate::DType::F16 => concat!($name, "_f16"),
            $crate::DType::I64 => concat!($name, "_int64"),
            $crate::DType::I32 => concat!($name, "_int32"),
            $crate::DType::U8 => concat!($name, "_int8"),
            $crate::DType::Bool => concat!($name, "_int1"),
        }
    };
}
pub(crate) use typed_kernel;

/// The name of the kernel whose name begins with these parts, for a float dtype.
macro_rules! float_kernel {
    ($($part:literal),+; $dtype:expr) => {
        match $dtype {
            $crate::DType::F64 => concat!($($part),+, "_f64"),
            $crate::DType::BF16 => concat!($($part),+, "_bf16"),
            $crate::DType::F16 => concat!($($part),+, "_f16"),
            _ => concat!($($part),+, "_f32"),
        }
    };
}
pub(crate) use float_kernel;

/// Builder of a launch. Arguments are given in the order of the kernel's parameters.
pub(crate) struct Launch {
    gpu: &'static Gpu,
    stream: StreamKind,
    function: sys::CUfunction,
    /// [`Source::follows`].
    follows: bool,
    grid: [u32; 3],
    block: u32,
    words: [u64; MAX_ARG_WORDS],
    n_words: usize,
    at: [usize; MAX_ARGS],
    n_args: usize,
}

impl Launch {
    /// One block of [`BLOCK`] threads of this kernel.
    ///
    /// # Errors
    /// [`crate::KernelError::Compile`], [`crate::KernelError::DeviceUnavailable`] or [`crate::KernelError::Cuda`] from the first use.
    pub(crate) fn new(gpu: &'static Gpu, source: &Source, kernel: &'static str) -> Result<Self> {
        let function = gpu.kernel(source, kernel)?;
        Ok(Launch {
            gpu,
            stream: StreamKind::Compute,
            function,
            follows: source.follows,
            grid: [1; 3],
            block: BLOCK,
            words: [0; MAX_ARG_WORDS],
            n_words: 0,
            at: [0; MAX_ARGS],
            n_args: 0,
        })
    }

    /// Sets the number of blocks for a grid-stride loop over `n` elements, `per_thread` at a time: at most eight per
    /// multiprocessor.
    pub(crate) fn for_elements(self, n: usize, per_thread: usize) -> Self {
        self.for_elements_at_once(n, per_thread, 8)
    }

    /// The same with at most `resident` blocks per multiprocessor, for a kernel whose registers allow no more at once: a second round of
    /// the remaining blocks would leave much of the device idle.
    pub(crate) fn for_elements_at_once(self, n: usize, per_thread: usize, resident: usize) -> Self {
        let wanted = n.div_ceil(self.block as usize * per_thread).max(1);
        let blocks = wanted.min(self.gpu.info().multiprocessors as usize * resident);
        self.blocks(blocks)
    }

    /// Sets a one-dimensional grid of `n` blocks, clamped to 1..=2^31 - 1.
    pub(crate) fn blocks(mut self, n: usize) -> Self {
        self.grid = [n.clamp(1, i32::MAX as usize) as u32, 1, 1];
        self
    }

    /// Sets a grid of `x` by `y` blocks; `y` is clamped to 65,535.
    pub(crate) fn grid_2d(self, x: usize, y: usize) -> Self {
        self.grid_3d(x, y, 1)
    }

    /// Sets a grid of `x` by `y` by `z` blocks; `y` and `z` are clamped to 65,535.
    pub(crate) fn grid_3d(mut self, x: usize, y: usize, z: usize) -> Self {
        let [y, z] = [y, z].map(|n| n.clamp(1, 65_535) as u32);
        self.grid = [x.clamp(1, i32::MAX as usize) as u32, y, z];
        self
    }

    /// Sets the threads per block: a multiple of 32, at most 1024.
    pub(crate) fn threads(mut self, n: u32) -> Self {
        debug_assert!(n.is_multiple_of(32) && (32..=1024).contains(&n));
        self.block = n;
        self
    }

    /// Sets the stream; initially the compute stream.
    pub(crate) fn on(mut self, stream: StreamKind) -> Self {
        self.stream = stream;
        self
    }

    /// Adds an argument by value.
    pub(crate) fn arg<T: Argument>(mut self, value: T) -> Self {
        let n_words = size_of::<T>().div_ceil(8);
        debug_assert!(self.n_words + n_words <= MAX_ARG_WORDS && self.n_args < MAX_ARGS);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[self.n_words..][..n_words]);
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.at[self.n_args] = self.n_words;
        self.n_words += n_words;
        self.n_args += 1;
        self
    }

    /// Adds an argument: elements to read. An empty slice becomes a null pointer, since it may start one past the end of the
    /// memory.
    pub(crate) fn read(self, slice: CudaSlice<'_>) -> Self {
        self.arg(if slice.is_empty() { 0 } else { slice.ptr() })
    }

    /// Adds an argument: elements to write; as [`Launch::read`].
    pub(crate) fn write(self, slice: &mut CudaSliceMut<'_>) -> Self {
        self.read(slice.as_ref())
    }

    /// Adds an argument: elements to read, or a null pointer.
    pub(crate) fn read_opt(self, slice: Option<CudaSlice<'_>>) -> Self {
        match slice {
            Some(slice) => self.read(slice),
            None => self.arg(0u64),
        }
    }

    /// Adds an argument: elements to write, or a null pointer.
    pub(crate) fn write_opt(self, slice: Option<&mut CudaSliceMut<'_>>) -> Self {
        self.read_opt(slice.map(|s| s.as_ref()))
    }

    /// Enqueues the kernel on its stream.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    ///
    /// # Safety
    /// The arguments match the kernel's parameters in number, order and type; the kernel stays within its slices, which are on
    /// this device and alive until the work is complete or freed after it in the stream.
    pub(crate) unsafe fn run(mut self) -> Result<()> {
        self.gpu.bind()?;
        let base = self.words.as_mut_ptr();
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (pointer, &at) in pointers.iter_mut().zip(&self.at[..self.n_args]) {
            *pointer = base.wrapping_add(at).cast();
        }
        let [x, y, z] = self.grid;
        let (stream, follows_kernel) = self.gpu.stream(self.stream).for_kernel();
        if follows_kernel && self.follows && self.gpu.uses(GpuFeature::DependentLaunches) {
            // SAFETY: as below; the kernel waits for the one before it (source.rs).
            return unsafe { self.run_behind_kernel(stream, &mut pointers) };
        }
        // SAFETY: the caller guarantees the arguments; the driver copies their bytes before the call returns.
        let launched = unsafe {
            result::launch_kernel(
                self.function,
                (x, y, z),
                (self.block, 1, 1),
                0,
                stream,
                &mut pointers[..self.n_args],
            )
        };
        check_driver(self.gpu.index(), "cuLaunchKernel", launched)
    }

    /// Enqueues the kernel, which may be launched before the one before it in the stream is complete and then waits for it.
    ///
    /// Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
    ///
    /// # Safety
    /// Same as [`Launch::run`]; `pointers` are those of the arguments.
    unsafe fn run_behind_kernel(
        &self,
        stream: sys::CUstream,
        pointers: &mut [*mut c_void; MAX_ARGS],
    ) -> Result<()> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let [x, y, z] = self.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let none = std::ptr::null_mut();
        // SAFETY: the caller guarantees the arguments; the driver copies them, the configuration and its attribute before the call returns.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&raw const config, self.function, pointers.as_mut_ptr(), none) };
        check_driver(self.gpu.index(), "cuLaunchKernelEx", launched.result())
    }
}

/// Resident threads per multiprocessor on a fully occupied device.
const RESIDENT_THREADS: usize = 2048;
/// Maximum number of blocks per multiprocessor: several times what is resident, so that the last ones leave little idle.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

/// A grid of blocks of [`BLOCK`] threads over rows of items, laid out so that the kernel needs no division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowTiles {
    /// Logarithm of the number of threads that share a row within a block.
    log2_width: u32,
    /// Number of blocks that share the rows.
    x: usize,
    /// Number of blocks that share the items of a row.
    y: usize,
}

impl RowTiles {
    /// Grid for `rows` rows of `items` items, one item per thread at a time.
    pub(crate) fn new(gpu: &Gpu, rows: usize, items: usize) -> Self {
        Self::on(gpu.info().multiprocessors as usize, rows, items)
    }

    /// The same for a kernel that reads several numbers per item once: as few blocks share the rows as fill the device.
    pub(crate) fn by_columns(gpu: &Gpu, rows: usize, items: usize) -> Self {
        Self::by_columns_on(gpu.info().multiprocessors as usize, rows, items)
    }

    fn by_columns_on(multiprocessors: usize, rows: usize, items: usize) -> Self {
        let block = BLOCK as usize;
        let width = items.clamp(1, block).next_power_of_two();
        let blocks = multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let y = items.div_ceil(width).clamp(1, blocks);
        let at_a_time = rows.div_ceil(block / width).max(1);
        // Whole batches of 4 rows per thread.
        let rows_per_thread = at_a_time.div_ceil(blocks.div_ceil(y)).next_multiple_of(4);
        RowTiles { log2_width: width.ilog2(), x: at_a_time.div_ceil(rows_per_thread), y }
    }

    fn on(multiprocessors: usize, rows: usize, items: usize) -> Self {
        let block = BLOCK as usize;
        let mut width = items.clamp(1, block).next_power_of_two();
        // With enough work, a thread takes several items of its row, so that their loads overlap.
        while width > 8
            && items / width < 4
            && rows.saturating_mul(width / 2) >= multiprocessors * RESIDENT_THREADS
        {
            width /= 2;
        }
        let blocks = multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let x = rows.div_ceil(block / width).clamp(1, blocks);
        let y = items.div_ceil(width).clamp(1, blocks.div_ceil(x));
        RowTiles { log2_width: width.ilog2(), x, y }
    }

    /// Sets the grid of `launch`.
    pub(crate) fn grid(self, launch: Launch) -> Launch {
        launch.grid_2d(self.x, self.y)
    }

    /// The kernel's argument `log2_width`.
    pub(crate) fn log2_width(self) -> u32 {
        self.log2_width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shapes_get_a_grid_that_fits() {
        for rows in [0, 1, 7, 128, 65_536, 1 << 33] {
            for items in [0, 1, 3, 10, 196, 5000, 1 << 34] {
                for tiles in [RowTiles::on(132, rows, items), RowTiles::by_columns_on(132, rows, items)] {
                    assert!(
                        tiles.x * tiles.y <= 2 * 132 * 16 && tiles.y <= 65_535,
                        "{rows} x {items}: {tiles:?}"
                    );
                    assert!(1 << tiles.log2_width <= BLOCK);
                }
            }
        }
        // Narrow rows share a block, wide ones are shared by blocks.
        assert_eq!(RowTiles::on(132, 128, 3), RowTiles { log2_width: 2, x: 2, y: 1 });
        assert_eq!(RowTiles::on(132, 32, 16_384), RowTiles { log2_width: 8, x: 32, y: 64 });
        assert_eq!(RowTiles::by_columns_on(132, 8192, 1024), RowTiles { log2_width: 8, x: 512, y: 4 });
    }
}
