//! Numbers whose sum over the ranks is known, to try a collective with.

use crate::base::check;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Element, Result, Shape, TensorMut, TensorRef};

/// Numbers that differ by element and by round. Of each element two ranks have a share from 1 to 64, the others 0 (a single rank has
/// both), so that the sum is exact in every format and in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct KnownNumbers {
    /// Number of the first element.
    pub first: usize,
    /// Number of ranks, at least 1.
    pub n_ranks: usize,
    /// Rounds have other numbers.
    pub round: u32,
}

impl KnownNumbers {
    /// The numbers from `n` elements on.
    pub fn from(self, n: usize) -> Self {
        KnownNumbers { first: self.first + n, ..self }
    }

    /// `x[i] =` the share of rank `rank` in element `first + i`, or without a rank the sum over all ranks.
    ///
    /// - `x`: any shape; f32, bf16 or f16
    ///
    /// Asynchronous on the device's compute stream.
    ///
    /// # Errors
    /// [`crate::KernelError::DTypeUnsupported`].
    pub fn fill(self, x: TensorMut<'_>, rank: Option<usize>) -> Result<()> {
        const OP: &str = "known_numbers";
        let x_op = x.operand("x");
        check::dtype(OP, x_op, DTYPES, DTYPE_NAMES)?;
        let rank = rank.unwrap_or(self.n_ranks) as u32;
        match x.gpu() {
            _ if x.numel() == 0 => Ok(()),
            Some(gpu) => fill_cuda(gpu, &mut x.into_cuda()?, rank, self),
            None => check::short_dispatch!(f32: OP, x_op, T => {
                fill_cpu::<T>(x.into_slice(OP, "x")?, rank, self);
                Ok(())
            }),
        }
    }

    /// `wrong +=` the number of elements of `x` that are not the sum of element `first + i` over all ranks.
    ///
    /// - `x`: any shape; f32, bf16 or f16
    /// - `wrong`: `[1]` i64
    ///
    /// Asynchronous on the device's compute stream.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
    pub fn count_wrong(self, x: TensorRef<'_>, wrong: TensorMut<'_>) -> Result<()> {
        const OP: &str = "known_numbers";
        let (x_op, wrong_op) = (x.operand("x"), wrong.operand("wrong"));
        check::same_device(OP, &[x_op, wrong_op])?;
        check::dtype(OP, x_op, DTYPES, DTYPE_NAMES)?;
        check::dtype(OP, wrong_op, &[DType::I64], "i64")?;
        check::shape(OP, wrong_op, Shape::vector(1))?;
        match x.gpu() {
            _ if x.numel() == 0 => Ok(()),
            Some(gpu) => count_cuda(gpu, x.cuda()?, self, &mut wrong.into_cuda()?),
            None => check::short_dispatch!(f32: OP, x_op, T => {
                wrong.into_slice::<i64>(OP, "wrong")?[0] += count_cpu::<T>(x.as_slice(OP, "x")?, self);
                Ok(())
            }),
        }
    }
}

const DTYPES: &[DType] = &[DType::F32, DType::BF16, DType::F16];
const DTYPE_NAMES: &str = "f32, bf16 or f16";

/// Element by element.
fn hash(i: usize, round: u32) -> u32 {
    let z = (i as u64 ^ u64::from(round) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 32) as u32
}

fn share(h: u32, rank: u32, n_ranks: u32) -> u32 {
    let owner = (h >> 12) % n_ranks;
    let of = |of: u32, bits: u32| if rank == of % n_ranks { 1 + (bits & 63) } else { 0 };
    of(owner, h) + of(owner + 1, h >> 6)
}

fn total(h: u32) -> u32 {
    2 + (h & 63) + (h >> 6 & 63)
}

fn fill_cpu<T: Element>(x: &mut [T], rank: u32, of: KnownNumbers) {
    let n_ranks = of.n_ranks as u32;
    for (i, x) in x.iter_mut().enumerate() {
        let h = hash(of.first + i, of.round);
        *x = T::from_f64(if rank == n_ranks { total(h) } else { share(h, rank, n_ranks) }.into());
    }
}

fn count_cpu<T: Element>(x: &[T], of: KnownNumbers) -> i64 {
    let is_wrong = |(i, x): (usize, &T)| x.to_f64() != f64::from(total(hash(of.first + i, of.round)));
    x.iter().enumerate().filter(|&element| is_wrong(element)).count() as i64
}

pub(crate) static SOURCE: Source = Source::new("known_numbers", include_str!("kernel.cu"));

/// One kernel that writes the numbers, one that counts the wrong ones.
///
/// Fills `x`, f32, bf16 or f16 on this device, with the share of `rank`, or with the sums if it is `n_ranks`.
fn fill_cuda(gpu: &'static Gpu, x: &mut CudaSliceMut<'_>, rank: u32, of: KnownNumbers) -> Result<()> {
    let (n, KnownNumbers { first, n_ranks, round }) = (x.len(), of);
    let kernel = match x.dtype() {
        DType::BF16 => "known_fill_bf16",
        DType::F16 => "known_fill_f16",
        _ => "known_fill_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).write(x);
    let launch = launch.arg(n).arg(first as u64).arg(rank).arg(n_ranks as u32).arg(round);
    // SAFETY: known_fill(T* x, size_t n, u64 first, u32 rank, u32 n_ranks, u32 round); x holds n elements.
    unsafe { launch.run() }
}

/// Adds the number of wrong elements of `x` to the one i64 of `wrong`.
fn count_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    of: KnownNumbers,
    wrong: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (n, KnownNumbers { first, round, .. }) = (x.len(), of);
    let kernel = match x.dtype() {
        DType::BF16 => "known_count_bf16",
        DType::F16 => "known_count_f16",
        _ => "known_count_f32",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).read(x);
    let launch = launch.arg(n).arg(first as u64).arg(round).write(wrong);
    // SAFETY: known_count(const T* x, size_t n, u64 first, u32 round, u64* wrong); x holds n elements, wrong one.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::devices;
    use crate::{Device, Tensor};

    const N: usize = 5003;

    fn filled(rank: Option<usize>, of: KnownNumbers, dtype: DType, device: Device) -> Tensor {
        let mut x = Tensor::zeros(&[N], dtype, device).unwrap();
        of.fill(x.view_mut(), rank).unwrap();
        x
    }

    fn values(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
    }

    #[test]
    fn shares_add_up_to_the_sum_on_every_device_in_every_format() {
        for n_ranks in [1, 2, 3, 8] {
            let of = KnownNumbers { first: 7, n_ranks, round: 2 };
            let want = values(&filled(None, of, DType::F32, Device::Cpu));
            for device in devices() {
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    assert_eq!(values(&filled(None, of, dtype, device)), want, "{dtype} on {device}");
                    let mut sum = vec![0.0; N];
                    for rank in 0..n_ranks {
                        let share = values(&filled(Some(rank), of, dtype, device));
                        assert_eq!(share, values(&filled(Some(rank), of, dtype, Device::Cpu)));
                        sum.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
                    }
                    assert_eq!(sum, want, "{n_ranks} ranks, {dtype} on {device}");
                }
            }
        }
    }

    #[test]
    fn wrong_elements_are_counted() {
        let of = KnownNumbers { first: 7, n_ranks: 3, round: 2 };
        for device in devices() {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let mut wrong = Tensor::zeros(&[1], DType::I64, device).unwrap();
                let mut count = |x: TensorRef<'_>, of: KnownNumbers| {
                    let before = wrong.item::<i64>().unwrap();
                    of.count_wrong(x, wrong.view_mut()).unwrap();
                    wrong.item::<i64>().unwrap() - before
                };
                let mut x = filled(None, of, dtype, device);
                assert_eq!(count(x.view(), of), 0);
                assert_eq!(count(x.view().range(100, N).unwrap(), of.from(100)), 0);
                // Other rounds and places have other numbers.
                assert!(count(x.view(), KnownNumbers { round: 3, ..of }) > N as i64 * 9 / 10);
                assert!(count(x.view(), of.from(1)) > N as i64 * 9 / 10);
                // The share of one rank of three is the sum nowhere.
                assert_eq!(count(filled(Some(0), of, dtype, device).view(), of), N as i64);
                for (at, value) in [(0, f64::NAN), (N - 1, 0.0)] {
                    let bad = x.view_mut().range(at, at + 1).unwrap();
                    crate::ops::fill(bad, crate::ops::Pattern::Line { start: value, step: 0.0 }).unwrap();
                }
                assert_eq!(count(x.view(), of), 2, "{dtype} on {device}");
            }
        }
    }

    #[test]
    fn other_types_are_refused() {
        let of = KnownNumbers { first: 0, n_ranks: 2, round: 0 };
        for device in devices() {
            let mut wide = Tensor::zeros(&[1], DType::F64, device).unwrap();
            assert!(of.fill(wide.view_mut(), None).is_err());
            let x = Tensor::zeros(&[1], DType::F32, device).unwrap();
            assert!(of.count_wrong(x.view(), wide.view_mut()).is_err());
        }
    }
}
