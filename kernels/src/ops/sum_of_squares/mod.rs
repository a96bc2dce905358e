//! Sum of squares of a buffer, for norms.

use crate::base::check;
use crate::cpu::copy::prefetch_at;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::cuda::launch::{BLOCK, Launch, Source, float_kernel};
use crate::cuda::{COMMUNICATION_PARTIAL_SUMS, CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS, StreamKind};
use crate::{DType, Element, Result, Shape, TensorMut, TensorRef};

/// `out = Σ x²` in f64, or `out += Σ x²` if `accumulate`.
///
/// - `x`: any shape of a float dtype; `out`: `[1]` f64
/// - on one kind of device the order of summation depends only on the length, so that equal buffers give equal bits
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`]; [`crate::KernelError::DTypeUnsupported`] for integers
/// and for an `out` that is not f64.
#[doc(hidden)]
pub fn sum_of_squares(x: TensorRef<'_>, out: TensorMut<'_>, accumulate: bool) -> Result<()> {
    sum_of_squares_on(StreamKind::Compute, x, out, accumulate)
}

/// Same as [`sum_of_squares`], on another stream of a GPU: the compute stream or the communication stream. The caller orders it with
/// other work on the tensors; on the CPU the stream is of no meaning.
///
/// # Errors
/// Same as [`sum_of_squares`].
#[doc(hidden)]
pub fn sum_of_squares_on(
    stream: StreamKind,
    x: TensorRef<'_>,
    out: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "sum_of_squares";
    let (x_op, out_op) = (x.operand("x"), out.operand("out"));
    check::same_device(OP, &[x_op, out_op])?;
    check::dtype(OP, out_op, &[DType::F64], "f64")?;
    check::shape(OP, out_op, Shape::vector(1))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return sum_cuda(gpu, stream, x.cuda()?, &mut out.into_cuda()?, accumulate);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let total = sum_cpu::<T>(x.as_slice(OP, "x")?);
        let out = &mut out.into_slice::<f64>(OP, "out")?[0];
        *out = if accumulate { *out + total } else { total };
        Ok(())
    })
}

const CHUNK: usize = 4096;
/// Chunks at a time.
const CHUNKS: usize = 256;
/// Chunks per thread below which a second thread does not pay off.
const MIN_PART: usize = 16;
/// Interleaved partial sums of a chunk.
const LANES: usize = 32;
/// Bytes from a block of numbers to what is fetched meanwhile: a page of memory.
const AHEAD: usize = 4096;

/// Squares are summed per chunk in the tensor's precision (bf16 and f16: f32), and chunks in f64, in their order: so any number of
/// threads gives the same bits.
fn sum_cpu<T: Stored>(x: &[T]) -> f64 {
    let mut total = 0.0;
    let mut sums = [0.0; CHUNKS];
    for x in x.chunks(CHUNK * CHUNKS) {
        let n_chunks = x.len().div_ceil(CHUNK);
        let shared_sums = SharedMut::new(&mut sums);
        for_parts(n_chunks, MIN_PART, 1, |part| {
            let x = &x[part.start * CHUNK..(part.end * CHUNK).min(x.len())];
            // SAFETY: within `sums`, and these chunks are this part's alone.
            sum_chunks(x, unsafe { shared_sums.slice(part) });
        });
        total = sums[..n_chunks].iter().fold(total, |total, sum| total + sum);
    }
    total
}

/// The sum of each chunk of `x`.
fn sum_chunks<T: Stored>(x: &[T], sums: &mut [f64]) {
    vectorize(
        #[inline(always)]
        || {
            for (chunk, sum) in x.chunks(CHUNK).zip(sums) {
                let mut lanes = [T::Real::ZERO; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    prefetch_at(block.as_ptr().wrapping_byte_add(AHEAD), size_of_val(block));
                    for (lane, &v) in lanes.iter_mut().zip(block) {
                        *lane = v.load().mul_add(v.load(), *lane);
                    }
                }
                *sum = lanes
                    .iter()
                    .chain([&rest.iter().map(|&v| v.load() * v.load()).sum()])
                    .map(|v| v.to_f64())
                    .sum::<f64>();
            }
        },
    );
}

pub(crate) static SOURCE: Source = Source::new("sum_of_squares", include_str!("kernel.cu"));

/// Number of blocks on every device, so that the order of summation depends only on the length: about four per multiprocessor
/// of the largest today, with four wide loads in flight per thread.
const MAX_BLOCKS: usize = 512;
/// Bytes that a block reads at a time.
const STRIDE_BYTES: usize = BLOCK as usize * 16 * 4;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS && MAX_BLOCKS <= COMMUNICATION_PARTIAL_SUMS);

/// One pass over the elements, completed by the last block.
///
/// `out = Σ x²`, or `+=`; `x` of a float dtype and one f64 on this device.
fn sum_cuda(
    gpu: &'static Gpu,
    stream: StreamKind,
    x: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let kernel = float_kernel!("sum_of_squares"; x.dtype());
    let scratch = gpu.scratch_on(stream)?;
    let launch =
        Launch::new(gpu, &SOURCE, kernel)?.blocks(x.len_bytes().div_ceil(STRIDE_BYTES).min(MAX_BLOCKS));
    let launch = launch.on(stream).read(x).arg(x.len()).write(out).arg(i32::from(accumulate));
    // SAFETY: sum_of_squares(const T* x, size_t n, double* out, int accumulate, u32* counter, double* partials); x holds n elements,
    // out one, partials one for each block.
    unsafe { launch.arg(scratch.counter).arg(scratch.partials).run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::cpu::threads::join_pool;
    use crate::ops::testing::{devices, random, rounded, tensor};
    use crate::{Device, Element};

    /// The sum from element `start` on, added to `before` if given.
    fn run<T: Element>(x: &[T], start: usize, before: Option<f64>, device: Device) -> f64 {
        let x = tensor(x, &[x.len()], device);
        let mut out = tensor(&[before.unwrap_or(f64::NAN)], &[1], device);
        sum_of_squares(x.view().range(start, x.numel()).unwrap(), out.view_mut(), before.is_some()).unwrap();
        out.to_vec::<f64>().unwrap()[0]
    }

    #[test]
    fn agrees_with_f64() {
        for n in [0, 1, 31, 4096, 100_003, 2_200_003] {
            let x = random::<f32>(n, 1);
            let short = rounded::<f32, bf16>(&x);
            let exact = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>();
            let want = exact(&rounded::<f32, f64>(&x));
            let want_short = exact(&rounded::<bf16, f64>(&short));
            let half = rounded::<f32, f16>(&x);
            let want_half = exact(&rounded::<f16, f64>(&half));
            for device in devices() {
                // Sums of up to 128 squares in f32, none of them negative: a few units of 2^-24.
                let is_close = |got: f64, want: f64| (got - want).abs() <= 1e-6 * want;
                assert!(is_close(run(&x, 0, None, device), want), "f32 {n} on {device}");
                let wide = rounded::<f32, f64>(&x);
                // `want` itself is a sequential sum of n terms, off by up to n times 2^-54.
                let got = run(&wide, 0, None, device);
                assert!((got - want).abs() <= 1e-11 * want, "f64 {n} on {device}: {got} against {want}");
                assert!(is_close(run(&short, 0, None, device), want_short), "bf16 {n} on {device}");
                assert!(is_close(run(&half, 0, None, device), want_half), "f16 {n} on {device}");
            }
        }
    }

    #[test]
    fn adds_to_what_is_there_only_if_told_to() {
        for device in devices() {
            for n in [3, 40_000] {
                let x = vec![2.0f32; n];
                assert_eq!(run(&x, 0, Some(0.5), device), 4.0 * n as f64 + 0.5);
                assert_eq!(run(&x, 0, None, device), 4.0 * n as f64);
            }
        }
    }

    /// Values that are not finite must be detected, also squares that overflow f32 only.
    #[test]
    fn a_single_nan_or_infinity_is_seen_wherever_it_stands() {
        for device in devices() {
            for at in [0, 4097, 99_998, 100_002] {
                for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
                    let mut x = random::<f32>(100_003, 1);
                    x[at] = bad;
                    assert!(!run(&x, 0, None, device).is_finite());
                }
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let x = random::<f32>(2_200_003, 1);
        let [one, two, three] = [1, 2, 3].map(|n_threads| {
            let compute = || {
                join_pool(n_threads).unwrap();
                run(&x, 0, None, Device::Cpu).to_bits()
            };
            std::thread::scope(|scope| scope.spawn(compute).join().unwrap())
        });
        assert!(one == two && one == three);
    }

    #[test]
    fn the_bits_depend_on_the_values_alone() {
        let x = random::<f32>(700_003, 1);
        let shifted: Vec<f32> = [0.0].iter().chain(&x).copied().collect();
        for device in devices() {
            let first = run(&x, 0, None, device);
            assert_eq!(first, run(&x, 0, None, device));
            assert_eq!(first, run(&shifted, 1, None, device), "another address on {device}");
        }
        let on_gpus: Vec<f64> =
            devices().into_iter().filter(|d| *d != Device::Cpu).map(|d| run(&x, 0, None, d)).collect();
        assert!(on_gpus.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
