//! Numbers whose sum over the ranks is known, to try a collective with.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, Result, Shape, TensorMut, TensorRef};

/// Numbers that differ by element and by round. Of each element two ranks have a share from 1 to 64, the others 0 (a single rank has
/// both), so that the sum is exact in every format and in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
            Some(gpu) => cuda::fill(gpu, &mut x.into_cuda()?, rank, self),
            None => check::short_dispatch!(f32: OP, x_op, T => {
                cpu::fill::<T>(x.into_slice(OP, "x")?, rank, self);
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
            Some(gpu) => cuda::count(gpu, x.cuda()?, self, &mut wrong.into_cuda()?),
            None => check::short_dispatch!(f32: OP, x_op, T => {
                wrong.into_slice::<i64>(OP, "wrong")?[0] += cpu::count::<T>(x.as_slice(OP, "x")?, self);
                Ok(())
            }),
        }
    }
}

const DTYPES: &[DType] = &[DType::F32, DType::BF16, DType::F16];
const DTYPE_NAMES: &str = "f32, bf16 or f16";

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
