//! Uniform random numbers as a function of key, stream and element index.

use crate::base::check;
use crate::base::rng::{Philox, to_unit_f32};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source, float_kernel};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, Element, Result, TensorMut};

/// A stream of random numbers; equal streams give the same numbers on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct UniformStream {
    /// The key of Philox.
    pub seed: u64,
    /// The upper half of Philox's counter: separates uses of one seed.
    pub stream: [u32; 2],
}

/// `x[i]` uniform in `low..high`: word `i mod 4` of Philox4x32-10 under the counter `(i / 4, stream)`, its upper 24 bits
/// as a multiple of 2^-24.
///
/// - `x`: any shape and float dtype; computed in f32 and rounded to the dtype: the same bits on every device
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`] for integers.
#[doc(hidden)]
pub fn uniform(x: TensorMut<'_>, low: f32, high: f32, stream: UniformStream) -> Result<()> {
    const OP: &str = "uniform";
    let x_op = x.operand("x");
    check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
    if let Some(gpu) = x.gpu() {
        return fill_cuda(gpu, &mut x.into_cuda()?, low, high, stream);
    }
    check::stored_dispatch!(OP, x_op, T => {
        fill_cpu::<T>(x.into_slice(OP, "x")?, low, high, stream);
        Ok(())
    })
}

/// Elements of sixteen blocks.
const CHUNK: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

/// Sixteen Philox blocks in parallel, so that the rounds vectorize.
fn fill_cpu<T: Element>(x: &mut [T], low: f32, high: f32, stream: UniformStream) {
    let philox = Philox::new(stream.seed);
    let (n, digits) = (x.len(), digits(T::DTYPE));
    let out = SharedMut::new(x);
    for_parts(n, MIN_PART, CHUNK, |part| {
        // SAFETY: the part lies within `x` and is this thread's alone.
        let x = unsafe { out.slice(part.clone()) };
        vectorize(
            #[inline(always)]
            || {
                for (chunk, x) in x.chunks_mut(CHUNK).enumerate() {
                    let first_block = (part.start + chunk * CHUNK) as u64 / 4;
                    let words = philox.blocks_16(
                        #[inline(always)]
                        |b| {
                            let block = first_block + b as u64;
                            [block as u32, (block >> 32) as u32, stream.stream[0], stream.stream[1]]
                        },
                    );
                    for (x, &word) in x.iter_mut().zip(&words) {
                        *x = T::from_f64(f64::from(to_unit_f32(word & digits) * (high - low) + low));
                    }
                }
            },
        );
    });
}

/// The bits of a random word that a number below 1 of this dtype can hold, so that none is rounded to 1.
fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::BF16 => !0 << 24,
        DType::F16 => !0 << 21,
        _ => !0,
    }
}

pub(crate) static SOURCE: Source = Source::new("uniform", include_str!("kernel.cu"));

/// Each thread computes one Philox block, four elements, at a time; two of 16-bit elements.
///
/// Fills `x`, of a float dtype on this device.
fn fill_cuda(
    gpu: &'static Gpu,
    x: &mut CudaSliceMut<'_>,
    low: f32,
    high: f32,
    stream: UniformStream,
) -> Result<()> {
    let n = x.len();
    if n == 0 {
        return Ok(());
    }
    let x_dtype = x.dtype();
    let kernel = float_kernel!("uniform"; x_dtype);
    let per_thread = if x.dtype().size_bytes() == 2 { 8 } else { 4 };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, per_thread).write(x);
    let launch = launch.arg(n).arg(low).arg(high - low).arg(digits(x_dtype));
    let launch = launch.arg(stream.seed).arg(stream.stream[0]).arg(stream.stream[1]);
    // SAFETY: uniform(T* x, size_t n, float low, float range, u32 digits, u64 seed, u32 stream0, u32 stream1); x holds n elements.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::base::rng::{Philox, to_unit_f32};
    use crate::ops::testing::devices;
    use crate::{Device, Element, Tensor};

    const STREAM: UniformStream = UniformStream { seed: 9 << 40 | 9, stream: [3, 4] };

    /// Elements from `start` on; earlier ones stay 0.
    fn draw<T: Element>(n: usize, start: usize, [low, high]: [f32; 2], device: Device) -> Vec<T> {
        let mut x = Tensor::zeros(&[n + start], T::DTYPE, device).unwrap();
        uniform(x.view_mut().range(start, start + n).unwrap(), low, high, STREAM).unwrap();
        x.to_vec().unwrap()
    }

    #[test]
    fn each_number_is_the_word_of_its_place_to_the_bit() {
        // Neither bound is a power of two, so that both roundings matter.
        for [low, high] in [[-2.0f32, 2.0], [-0.037, 0.041], [1.1, 7.7]] {
            let numbers = |digits: u32| -> Vec<f32> {
                let word = |i: usize| Philox::new(STREAM.seed).block([(i / 4) as u32, 0, 3, 4])[i % 4];
                (0..4099).map(|i| to_unit_f32(word(i) & digits) * (high - low) + low).collect()
            };
            let want = numbers(!0);
            for device in devices() {
                for start in [0, 1] {
                    let (got, bounds) = (start..start + 4099, [low, high]);
                    assert!(draw::<f32>(4099, start, bounds, device)[got.clone()] == want, "f32 on {device}");
                    let wide: Vec<f64> = want.iter().map(|&v| f64::from(v)).collect();
                    assert!(draw::<f64>(4099, start, bounds, device)[got.clone()] == wide, "f64 on {device}");
                    let short: Vec<bf16> = numbers(!0 << 24).iter().map(|&v| bf16::from_f32(v)).collect();
                    assert!(
                        draw::<bf16>(4099, start, bounds, device)[got.clone()] == short,
                        "bf16 on {device}"
                    );
                    let half: Vec<f16> = numbers(!0 << 21).iter().map(|&v| f16::from_f32(v)).collect();
                    assert!(draw::<f16>(4099, start, bounds, device)[got] == half, "f16 on {device}");
                }
            }
        }
    }

    #[test]
    fn no_number_is_rounded_to_the_end_of_the_range() {
        for device in devices() {
            let largest = |values: Vec<f32>| values.into_iter().fold(0.0, f32::max);
            let wide = |x: Vec<bf16>| x.into_iter().map(f32::from).collect();
            assert!(largest(wide(draw::<bf16>(1 << 16, 0, [0.0, 1.0], device))) < 1.0, "bf16 on {device}");
            let wide = |x: Vec<f16>| x.into_iter().map(f32::from).collect();
            assert!(largest(wide(draw::<f16>(1 << 17, 0, [0.0, 1.0], device))) < 1.0, "f16 on {device}");
        }
    }

    #[test]
    fn integers_are_refused_and_nothing_is_nothing() {
        for device in devices() {
            let mut x = Tensor::zeros(&[3], DType::I64, device).unwrap();
            assert!(uniform(x.view_mut(), 0.0, 1.0, STREAM).is_err());
            assert!(draw::<f32>(0, 0, [0.0, 1.0], device).is_empty());
        }
    }
}
