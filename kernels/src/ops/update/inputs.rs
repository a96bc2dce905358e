//! The numbers of a step as an update reads them from device memory, so that a captured graph sees new ones at each replay.

use super::decision::StepNumbers;
use super::report::StepReport;
use crate::base::check;
use crate::ops::loss::sums::{LossSums, check_sums};
use crate::ops::step_scalars::{STEP_SCALARS_LEN, StepScalars};
use crate::{DType, Operand, Result, Shape, TensorRef};

/// Numbers of a step that an update reads from device memory instead of from its arguments.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct UpdateInputs<'a> {
    /// [`StepScalars`], `[STEP_SCALARS_LEN]` f64.
    pub scalars: TensorRef<'a>,
    /// The step's loss sums, `[STEP_SUMS_LEN]` f32. If they, `sum_of_squares` or [`StepScalars::loss_limit`] withhold the update
    /// ([`StepNumbers::withheld`]), it writes nothing. On a GPU the update marks weights that are not finite in the last element.
    pub sums: TensorRef<'a>,
    /// `Σ grads²` over the whole model, `[1]` f64, if the decision needs the gradient's norm.
    pub sum_of_squares: Option<TensorRef<'a>>,
    /// Largest allowed norm of the gradient, infinity for no limit; used with `sum_of_squares` only.
    pub max_norm: f64,
    /// On a GPU: receives the sums for the host.
    pub report: Option<&'a StepReport<'a>>,
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

    /// The same numbers in host memory.
    pub(super) fn on_host(&self, op: &'static str) -> Result<StepNumbers> {
        let squares = self.sum_of_squares.map(|squares| squares.as_slice::<f64>(op, "sum_of_squares"));
        Ok(StepNumbers {
            scalars: StepScalars::from_slice(self.scalars.as_slice(op, "scalars")?),
            sums: LossSums::load(self.sums.as_slice(op, "sums")?),
            sum_of_squares: squares.transpose()?.map(|squares| squares[0]),
        })
    }
}
