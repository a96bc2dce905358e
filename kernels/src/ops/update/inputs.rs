//! The numbers of a step as an update reads them from device memory, so that a captured graph sees new ones at each replay.

use super::report::StepReport;
use crate::base::check;
use crate::ops::loss::sums::{LossSums, check_sums};
use crate::ops::step_scalars::{STEP_SCALARS_LEN, StepScalars};
use crate::{DType, Operand, Result, Shape, TensorRef};

/// Numbers of a step that an update reads from device memory instead of from its arguments.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs<'a> {
    /// [`StepScalars`], `[STEP_SCALARS_LEN]` f64.
    pub scalars: TensorRef<'a>,
    /// The step's loss sums, `[STEP_SUMS_LEN]` f32. If their loss or `sum_of_squares` is not finite, or their
    /// mean loss is above [`StepScalars::loss_limit`], the update writes nothing.
    pub sums: TensorRef<'a>,
    /// `Σ grads²` over the whole model, `[1]` f64, if the gradient is clipped.
    pub sum_of_squares: Option<TensorRef<'a>>,
    /// Largest allowed norm of the gradient, infinity for no limit; used with `sum_of_squares` only.
    pub max_norm: f64,
    /// On a GPU: receives the sums for the host.
    pub report: Option<&'a StepReport<'a>>,
}

/// The factor of a step's gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GradScale {
    pub(super) scale: f64,
    /// Whether loss and gradient are finite and the loss is within its limit; if not, the update is skipped.
    pub(super) applies: bool,
}

impl UpdateInputs<'_> {
    /// Checks shapes, dtypes and devices against the documentation.
    pub(super) fn check(&self, op: &'static str, beside: Operand) -> Result<()> {
        let (scalars, sums) = (self.scalars.operand("scalars"), self.sums.operand("sums"));
        check::same_device(op, &[beside, scalars])?;
        check::dtype(op, scalars, &[DType::F64], "f64")?;
        check::shape(op, scalars, Shape::vector(STEP_SCALARS_LEN))?;
        check_sums(op, sums, beside)?;
        if let Some(report) = self.report {
            check::same_device(op, &[beside, report.operand()])?;
        }
        if let Some(squares) = self.sum_of_squares {
            let squares = squares.operand("sum_of_squares");
            check::same_device(op, &[beside, squares])?;
            check::dtype(op, squares, &[DType::F64], "f64")?;
            check::shape(op, squares, Shape::vector(1))?;
        }
        Ok(())
    }

    /// Computes the step's numbers as `update_inputs` in `prelude.cuh` does:
    /// `unscaled = unscale · mean_scale` ([`LossSums::mean_scale`]),
    /// `scale = unscaled · min(1, max_norm / (unscaled · √sum_of_squares + 1e-6))`.
    ///
    /// Source: `torch.nn.utils.clip_grad_norm_`.
    pub(super) fn on_host(&self, op: &'static str) -> Result<(StepScalars, GradScale)> {
        let scalars = StepScalars::from_slice(self.scalars.as_slice(op, "scalars")?);
        let sums = LossSums::load(self.sums.as_slice(op, "sums")?);
        let unscaled = sums.mean_scale(scalars.expected_weight) * scalars.unscale;
        let squares = match self.sum_of_squares {
            Some(squares) => Some(squares.as_slice::<f64>(op, "sum_of_squares")?[0]),
            None => None,
        };
        let clip_scale = squares.map_or(1.0, |squares| {
            let norm = squares.sqrt() * unscaled;
            (self.max_norm / (norm + 1e-6)).min(1.0)
        });
        let is_finite = sums.loss.is_finite() && squares.is_none_or(f64::is_finite);
        let applies = is_finite && sums.mean() <= scalars.loss_limit;
        Ok((scalars, GradScale { scale: unscaled * clip_scale, applies }))
    }
}
