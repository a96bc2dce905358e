//! An integer hash of the bits of a buffer, to compare copies of it without moving them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::check;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::for_parts;
use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result, Shape, TensorMut, TensorRef};

/// `out = Σ mix(bits(x[i]), i)` modulo 2^64, where `mix` is a bijection of the bits for each `i`.
///
/// - `x`: any shape, f32; `out`: `[1]` i64
/// - the same bits on every device and with any number of threads; a buffer of which one element differs always has another
///   fingerprint; any other difference goes unnoticed with a probability of about 2^-64
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`]; [`crate::KernelError::DTypeUnsupported`] unless
/// `x` is f32 and `out` is i64.
#[doc(hidden)]
pub fn fingerprint(x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "fingerprint";
    let (x_op, out_op) = (x.operand("x"), out.operand("out"));
    check::same_device(OP, &[x_op, out_op])?;
    check::dtype(OP, x_op, &[DType::F32], "f32")?;
    check::dtype(OP, out_op, &[DType::I64], "i64")?;
    check::shape(OP, out_op, Shape::vector(1))?;
    if let Some(gpu) = x.gpu() {
        return sum_cuda(gpu, x.cuda()?, &mut out.into_cuda()?);
    }
    let sum = sum_cpu(x.as_slice(OP, "x")?);
    out.into_slice::<i64>(OP, "out")?[0] = sum.cast_signed();
    Ok(())
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

/// Each thread sums a range; 64-bit integer sums wrap, so their order changes no bit.
fn sum_cpu(x: &[f32]) -> u64 {
    let total = AtomicU64::new(0);
    for_parts(x.len(), MIN_PART, 16, |part| {
        let first = part.start as u64;
        let of_part = vectorize(
            #[inline(always)]
            || {
                let elements = x[part.clone()].iter().zip(first..);
                elements.fold(0u64, |sum, (v, index)| sum.wrapping_add(mix_cpu(v.to_bits(), index)))
            },
        );
        total.fetch_add(of_part, Ordering::Relaxed);
    });
    total.into_inner()
}

/// For each `index` a bijection of the bits, so that one changed element always changes the sum.
///
/// Source: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[inline(always)]
fn mix_cpu(bits: u32, index: u64) -> u64 {
    let z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(bits);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

pub(crate) static SOURCE: Source = Source::new("fingerprint", include_str!("kernel.cu"));

/// Maximum number of blocks: about four per multiprocessor of the largest GPUs today.
const MAX_BLOCKS: usize = 512;
/// Elements that a thread loads at a time.
const PER_THREAD: usize = 4;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS);

/// One pass over the elements, completed by the last block.
///
/// The fingerprint of `x`, f32, into the one i64 of `out`, on this device.
fn sum_cuda(gpu: &'static Gpu, x: CudaSlice<'_>, out: &mut CudaSliceMut<'_>) -> Result<()> {
    let scratch = gpu.scratch()?;
    let n_blocks = x.len().div_ceil(BLOCK as usize * PER_THREAD).clamp(1, MAX_BLOCKS);
    let launch = Launch::new(gpu, &SOURCE, "fingerprint")?.blocks(n_blocks);
    let launch = launch.read(x).arg(x.len()).write(out);
    // SAFETY: fingerprint(const u32* x, size_t n, u64* out, u32* counter, u64* partials); x holds n elements of 4 bytes, out
    // one of 8, partials one of 8 bytes for each block.
    unsafe { launch.arg(scratch.counter).arg(scratch.partials).run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::threads::join_pool;
    use crate::ops::testing::{devices, random, tensor};
    use crate::{Device, Tensor};

    fn run(x: &[f32], start: usize, device: Device) -> i64 {
        let x = tensor(x, &[x.len()], device);
        let mut out = tensor(&[-1i64], &[1], device);
        fingerprint(x.view().range(start, x.numel()).unwrap(), out.view_mut()).unwrap();
        out.to_vec::<i64>().unwrap()[0]
    }

    #[test]
    fn all_devices_and_numbers_of_threads_give_the_sum_that_is_documented() {
        for n in [0, 1, 31, 1024, 4097, 100_003, 700_001] {
            let x = random::<f32>(n, 5);
            let terms = x.iter().zip(0..).map(|(v, index)| mix_cpu(v.to_bits(), index));
            let want = terms.fold(0, u64::wrapping_add).cast_signed();
            let shifted: Vec<f32> = [0.0].iter().chain(&x).copied().collect();
            for device in devices() {
                assert_eq!(run(&x, 0, device), want, "{n} on {device}");
                assert_eq!(run(&shifted, 1, device), want, "{n} on {device}, at another address");
            }
            let threads = std::thread::scope(|scope| {
                let in_pool = || {
                    join_pool(3).unwrap();
                    run(&x, 0, Device::Cpu)
                };
                scope.spawn(in_pool).join().unwrap()
            });
            assert_eq!(threads, want, "{n} on three threads");
        }
    }

    #[test]
    fn one_bit_shows_wherever_it_is_flipped_and_so_does_an_exchange() {
        let x = random::<f32>(5003, 5);
        for device in devices() {
            let before = run(&x, 0, device);
            for at in [0, 1023, 4096, 5002] {
                for bit in 0..32 {
                    let mut flipped = x.clone();
                    flipped[at] = f32::from_bits(x[at].to_bits() ^ 1 << bit);
                    assert_ne!(run(&flipped, 0, device), before, "bit {bit} of element {at} on {device}");
                }
            }
            let mut exchanged = x.clone();
            exchanged.swap(17, 4000);
            assert_ne!(run(&exchanged, 0, device), before);
        }
        // Zeros of both signs and the many NaN differ.
        let of = |bits: u32| run(&[f32::from_bits(bits)], 0, Device::Cpu);
        assert!(of(0) != of(1 << 31) && of(0x7fc0_0000) != of(0x7fc0_0001));
    }

    #[test]
    fn other_types_are_refused() {
        for device in devices() {
            let (x, wide) = (tensor(&[1f32], &[1], device), tensor(&[1f64], &[1], device));
            let mut out = Tensor::zeros(&[1], DType::I64, device).unwrap();
            assert!(fingerprint(wide.view(), out.view_mut()).is_err());
            assert!(fingerprint(x.view(), tensor(&[1f32], &[1], device).view_mut()).is_err());
            assert!(fingerprint(x.view(), tensor(&[1i64, 2], &[2], device).view_mut()).is_err());
        }
    }
}
