//! Checks of an elementwise loss, and its run on either device.

use super::element_loss::ElementLoss;
use super::sums::SumsOutput;
use super::{cpu, cuda};
use crate::base::check;
use crate::{Result, TensorMut, TensorRef};

/// Writes the sum of `loss` over all elements to `sums`, and `scale` times its derivative, each times the row's weight.
#[allow(clippy::too_many_arguments)] // The operands of a loss, and their names.
pub(super) fn elementwise_loss<L: ElementLoss>(
    op: &'static str,
    loss: &L,
    x_name: &'static str,
    x: TensorRef<'_>,
    target: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_x: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let (x_op, target_op) = (x.operand(x_name), target.operand("target"));
    check::same_kind(op, &[x_op, target_op])?;
    check::shape(op, target_op, x.shape())?;
    if let Some(d_x) = &d_x {
        check::gradient_kind(op, x_op, d_x.operand("gradient"))?;
        check::shape(op, d_x.operand("gradient"), x.shape())?;
    }
    if row_weights.is_some() {
        let (n_rows, _) = check::matrix(op, x_op)?;
        check::row_weights(op, row_weights.map(|w| w.operand("row_weights")), n_rows, x_op)?;
    }
    sums.check(op, x_op)?;
    if let Some(gpu) = x.gpu() {
        check::dtype(op, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let d_x = d_x.map(TensorMut::into_cuda).transpose()?;
        return cuda::sum_and_gradient(gpu, loss, x.cuda()?, target.cuda()?, row_weights, scale, d_x, sums);
    }
    let row_weights = row_weights.map(|w| w.as_slice::<f32>(op, "row_weights")).transpose()?;
    let d_op = d_x.as_ref().map_or(x_op, |d_x| d_x.operand("gradient"));
    check::gradient_dispatch!(op, x_op, d_op, T, D => {
        let (x, target) = (x.as_slice::<T>(op, x_name)?, target.as_slice::<T>(op, "target")?);
        let d_x = d_x.map(|d| d.into_slice::<D>(op, "gradient")).transpose()?;
        sums.write(op, cpu::sum_and_gradient(loss, x, target, row_weights, scale as _, d_x))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_tail_or_gradient_is_named() {
        let (x, mut d) = ([0.0f32; 4], [0.0f64; 4]);
        let x = TensorRef::from_slice(&x, &[2, 2]).unwrap();
        let mse = |d: Option<TensorMut<'_>>| {
            let mut short = [0.0f32; 4];
            let tail = TensorMut::from_slice(&mut short, &[4]).unwrap();
            let sums = SumsOutput { tail, accumulate: false, extra: None };
            crate::ops::mse(x, x, None, 1.0, d, sums).unwrap_err().to_string()
        };
        assert_eq!(mse(None), "mse: sums [4] f32 on cpu should be [16]");
        let error = mse(Some(TensorMut::from_slice(&mut d, &[2, 2]).unwrap()));
        assert!(error.contains("gradient [2, 2] f64 on cpu"), "{error}");
    }
}
