//! What every loss leaves, and the losses of one predicted and one true value.

mod cpu;
pub(crate) mod cuda;

pub(crate) use cuda::SOURCE;

use std::ops::AddAssign;

use super::{SumsOutput, check};
use crate::cpu::Float;
use crate::error::Operand;
use crate::{DType, Device, Result, TensorMut, TensorRef};

/// A loss over some rows as a sum and what to divide it by, so that sums of several ranks add up to the true mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Sum of the losses, weighted where there are weights.
    pub loss: f64,
    /// Sum of the weights: the number of rows or elements where there are none.
    pub weight: f64,
}

impl LossSums {
    /// The mean: NaN where there was no weight, as in PyTorch.
    pub fn mean(&self) -> f64 {
        self.loss / self.weight
    }
}

impl AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.weight += other.weight;
    }
}

/// A loss of one predicted and one true value.
pub(super) trait ElementLoss: Sync {
    /// Its kernels in `kernel.cu`.
    const KERNELS: cuda::Kernels;
    /// The number that its kernels take beside the scale, where they take one.
    fn parameter(&self) -> f64 {
        0.0
    }
    /// The loss.
    fn value<T: Float>(&self, x: T, target: T) -> T;
    /// Its derivative with respect to `x`.
    fn derivative<T: Float>(&self, x: T, target: T) -> T;
}

/// Leaves the sum of `loss` over all elements in `sums` and writes `scale` times its derivative.
#[allow(clippy::too_many_arguments)] // Those of the losses and their names.
pub(super) fn elementwise_loss<L: ElementLoss>(
    op: &'static str,
    loss: &L,
    x_name: &'static str,
    x: TensorRef<'_>,
    target: TensorRef<'_>,
    scale: f64,
    d_x: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let (x_op, target_op) = (x.operand(x_name), target.operand("target"));
    check::same_kind(op, &[x_op, target_op])?;
    check::shape(op, target_op, x.shape())?;
    if let Some(d_x) = &d_x {
        check_gradient_kind(op, x_op, d_x.operand("gradient"))?;
        check::shape(op, d_x.operand("gradient"), x.shape())?;
    }
    sums.check(op, x_op)?;
    if let Some(gpu) = x.gpu() {
        check::dtype(op, x_op, check::GPU_FLOATS, check::GPU_FLOATS_NAMES)?;
        let d_x = d_x.map(TensorMut::into_cuda).transpose()?;
        return cuda::sum_and_gradient(gpu, loss, x.cuda()?, target.cuda()?, scale, d_x, sums);
    }
    check::float_dispatch!(op, x_op, T => {
        let (x, target) = (x.as_slice::<T>(op, x_name)?, target.as_slice::<T>(op, "target")?);
        let d_x = d_x.map(|d| d.into_slice::<T>(op, "gradient")).transpose()?;
        sums.put(op, cpu::sum_and_gradient(loss, x, target, scale as T, d_x))
    })
}

/// A gradient has its operand's device and dtype; on a GPU the gradient of f32 can be bf16, which the products of bf16
/// training then take as it is.
pub(super) fn check_gradient_kind(op: &'static str, x: Operand, d_x: Operand) -> Result<()> {
    check::same_device(op, &[x, d_x])?;
    let is_narrower = (x.dtype, d_x.dtype) == (DType::F32, DType::BF16);
    if is_narrower && matches!(x.device, Device::Cuda(_)) { Ok(()) } else { check::same_dtype(op, &[x, d_x]) }
}

#[cfg(test)]
pub(super) mod testing {
    use half::bf16;

    use super::*;
    use crate::ops::STEP_SUMS_LEN;
    use crate::ops::testing::{assert_close, assert_gradient, devices, random, rounded, tensor};
    use crate::{Element, Tensor};

    /// Calls `op` with a tail on `device` that holds `before` already, and returns what it holds then.
    pub(in crate::ops) fn sums_after(
        device: Device,
        before: Option<LossSums>,
        op: impl FnOnce(SumsOutput<'_>) -> Result<()>,
    ) -> Result<LossSums> {
        let mut tail = [f32::NAN; STEP_SUMS_LEN];
        if let Some(before) = before {
            before.store(&mut tail);
        }
        let mut tail = tensor(&tail, &[STEP_SUMS_LEN], device);
        op(SumsOutput { tail: tail.view_mut(), accumulate: before.is_some() })?;
        Ok(LossSums::load(&tail.to_vec::<f32>().unwrap()))
    }

    /// What a loss of one value each looks like to a caller.
    pub(in crate::ops) trait Op:
        Fn(TensorRef<'_>, TensorRef<'_>, f64, Option<TensorMut<'_>>, SumsOutput<'_>) -> Result<()>
    {
    }
    impl<F> Op for F where
        F: Fn(TensorRef<'_>, TensorRef<'_>, f64, Option<TensorMut<'_>>, SumsOutput<'_>) -> Result<()>
    {
    }

    fn run<T: Element>(
        op: &impl Op,
        (x, t): (&[T], &[T]),
        gradient: Option<DType>,
        device: Device,
    ) -> (LossSums, Option<Tensor>) {
        let dims = [x.len() / 7, 7];
        let (x, t) = (tensor(x, &dims, device), tensor(t, &dims, device));
        let mut d = gradient.map(|dtype| Tensor::full(&dims, f64::NAN, dtype, device).unwrap());
        let sums = sums_after(device, None, |sums| {
            op(x.view(), t.view(), 0.25, d.as_mut().map(Tensor::view_mut), sums)
        });
        (sums.unwrap(), d)
    }

    /// Checks a loss at random points `range` times -1..1 against targets made by `target`: its gradient in f64, then
    /// what other dtypes and devices make of it.
    pub(in crate::ops) fn assert_loss(op: impl Op, range: f64, target: impl Fn(f64) -> f64) {
        let points = |n: usize| -> (Vec<f64>, Vec<f64>) {
            let x = random::<f64>(n, 1).iter().map(|v| range * v).collect();
            (x, random::<f64>(n, 2).into_iter().map(&target).collect())
        };
        let (x, t) = points(35);
        for device in devices() {
            let (sums, d) = run(&op, (&x, &t), Some(DType::F64), device);
            assert_eq!(sums.weight, 35.0);
            let d = d.unwrap().to_vec::<f64>().unwrap();
            // Row by row, as the tail's 48 bits of the whole sum are too few for a difference.
            let loss_of_row = |row: (&[f64], &[f64])| 0.25 * run(&op, row, None, Device::Cpu).0.loss;
            assert_gradient(&x, &d, |x| x.chunks_exact(7).zip(t.chunks_exact(7)).map(loss_of_row).sum());
            let before = LossSums { loss: 3.0, weight: 5.0 };
            let again = sums_after(device, Some(before), |sums| {
                let (x, t) = (tensor(&x, &[5, 7], device), tensor(&t, &[5, 7], device));
                op(x.view(), t.view(), 0.25, None, sums)
            });
            let again = again.unwrap();
            assert_eq!(again.weight, 40.0);
            // The tail holds 48 bits.
            assert_close(&[again.loss], &[sums.loss + 3.0], 0.0, 1e-13);
            let nothing = run::<f64>(&op, (&[], &[]), Some(DType::F64), device).0;
            assert_eq!(nothing, LossSums::default(), "a batch without rows");
        }

        // Enough for several blocks, and no whole number of packs.
        let (x, t) = points(7 * 1501);
        let (x32, t32) = (rounded::<f64, f32>(&x), rounded::<f64, f32>(&t));
        let (xb, tb) = (rounded::<f64, bf16>(&x), rounded::<f64, bf16>(&t));
        for device in devices() {
            let f64_of = |x: &[f64], t: &[f64]| {
                let (sums, d) = run(&op, (x, t), Some(DType::F64), Device::Cpu);
                (sums, d.unwrap().to_vec::<f64>().unwrap())
            };
            let (want, want_d) = f64_of(&rounded(&x32), &rounded(&t32));
            let (sums, d) = run(&op, (&x32, &t32), Some(DType::F32), device);
            // Each term is a few roundings in f32, in random directions; they are summed in f64.
            assert_close(&[sums.loss, sums.weight], &[want.loss, want.weight], 0.0, 1e-6);
            // e and sigmoid near 0 are differences of numbers up to `range`.
            let d = rounded::<f32, f64>(&d.unwrap().to_vec().unwrap());
            assert_close(&d, &want_d, 1e-7 * range.max(1.0), 1e-6);
            if device == Device::Cpu {
                continue;
            }
            // One rounding to 8 bits of what f32 gave.
            let (same, d) = run(&op, (&x32, &t32), Some(DType::BF16), device);
            assert_eq!(same, sums);
            let d = rounded::<bf16, f64>(&d.unwrap().to_vec().unwrap());
            assert_close(&d, &want_d, 1e-7 * range.max(1.0), 0.004);
            let (want, want_d) = f64_of(&rounded(&xb), &rounded(&tb));
            let (sums, d) = run(&op, (&xb, &tb), Some(DType::BF16), device);
            assert_close(&[sums.loss, sums.weight], &[want.loss, want.weight], 0.0, 1e-6);
            let d = rounded::<bf16, f64>(&d.unwrap().to_vec().unwrap());
            assert_close(&d, &want_d, 1e-7 * range.max(1.0), 0.004);
        }
    }

    #[test]
    fn a_wrong_tail_or_gradient_is_named() {
        let (x, mut d) = ([0.0f32; 4], [0.0f64; 4]);
        let x = TensorRef::from_slice(&x, &[2, 2]).unwrap();
        let mse = |d: Option<TensorMut<'_>>| {
            let mut short = [0.0f32; 4];
            let tail = TensorMut::from_slice(&mut short, &[4]).unwrap();
            let sums = SumsOutput { tail, accumulate: false };
            crate::ops::mse(x, x, 1.0, d, sums).unwrap_err().to_string()
        };
        assert_eq!(mse(None), "mse: sums [4] f32 on cpu should be [16]");
        let error = mse(Some(TensorMut::from_slice(&mut d, &[2, 2]).unwrap()));
        assert!(error.contains("gradient [2, 2] f64 on cpu"), "{error}");
    }
}
