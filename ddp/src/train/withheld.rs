//! Decides whether a step's update is withheld: on the host with the numbers with which the device decides before it updates
//! ([`ddp_kernels::ops::UpdateInputs`]).
//!
//! The flag is the step's sums of loss and weight, which travel with the last bucket of gradients, and the sum of squares of the
//! reduced gradients: all ranks have the same and decide alike.
//!
//! A withheld step updates nothing but running statistics of layers, which stay finite.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ddp::config::precision::Precision;
//! use ddp::config::{OptimizerConfig, OptimizerKind};
//! use ddp::data::TensorDataset;
//! use ddp::data::loader::{BatchPlan, Loader, LoaderOptions, Shuffle};
//! use ddp::model::layer::Sizes;
//! use ddp::model::{LossHead, Sequential};
//! use ddp::prelude::*;
//! use ddp::train::step_info::StepRequest;
//! use ddp::train::trainer::{Trainer, TrainerOptions};
//! use ddp::train::withheld::Withheld;
//!
//! let world = World::single();
//! let x = Tensor::randn(&[8, 3], DType::F32, Device::Cpu, 1)?;
//! let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
//! let plan = BatchPlan::new(&world, 8, 8, 1, 0, Shuffle::Full);
//! let mut loader = Loader::new(rows, plan, LoaderOptions::new(Device::Cpu))?;
//!
//! let sizes = Sizes { max_rows: 8, device: Device::Cpu, precision: Precision::F32 };
//! let (layers, sgd) = (Sequential::new(3).linear(1), OptimizerConfig::new(OptimizerKind::Sgd, 0.1));
//! let mut trainer =
//!     Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, TrainerOptions::default())?;
//! let before = trainer.model().weights().to_vec::<f32>()?;
//! let mut batch = loader.next_step()?.expect("the plan has no last epoch");
//! // No mean loss is that small.
//! trainer.step(&mut batch, StepRequest { loss_limit: 0.0, ..StepRequest::default() })?;
//! let (_, outcome) = trainer.outcome(true)?.expect("one step was enqueued");
//! assert_eq!(outcome.withheld, Some(Withheld::AboveLimit));
//! assert_eq!(trainer.model().weights().to_vec::<f32>()?, before);
//! # Ok::<(), ddp::Error>(())
//! ```

use ddp_kernels::ops::LossSums;

use crate::train::error::{Result, TrainError};
use crate::train::findings::Findings;

/// Treatment of a step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// The step is an error. A gradient is checked where its norm is requested or needed.
    #[default]
    Fail,
    /// The step's update is withheld. Every step computes the norm of its gradient.
    Withhold,
}

/// Reason for which a step's update was withheld: weights and optimiser state are unchanged, and the step counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The loss is NaN or infinite.
    Loss,
    /// The gradient is NaN or infinite.
    Gradient,
    /// The mean loss is above the step's limit.
    AboveLimit,
    /// The limit was negative infinity: the caller left the step's update out.
    LeftOut,
}

/// Decides by the loss, before the gradient's norm is known.
pub(crate) fn by_loss(sums: &LossSums, loss_limit: f64) -> Option<Withheld> {
    if loss_limit == f64::NEG_INFINITY {
        return Some(Withheld::LeftOut);
    }
    (!sums.loss.is_finite()).then_some(Withheld::Loss)
}

/// Decides by the gradient's norm, where it was computed, and by the limit of a finite loss.
pub(crate) fn by_gradient(sums: &LossSums, norm: Option<f64>, loss_limit: f64) -> Option<Withheld> {
    match norm {
        Some(norm) if !norm.is_finite() => Some(Withheld::Gradient),
        _ => (sums.mean() > loss_limit).then_some(Withheld::AboveLimit),
    }
}

impl Withheld {
    /// The step's error, if a step that is not finite is one.
    ///
    /// # Errors
    /// [`TrainError::LossNotFinite`], [`TrainError::GradientNotFinite`].
    pub(crate) fn check(
        self,
        policy: NonFinite,
        step: u64,
        sums: &LossSums,
        norm: Option<f64>,
    ) -> Result<Self> {
        match policy {
            NonFinite::Fail => self.error(step, sums, norm).map_or(Ok(self), Err),
            NonFinite::Withhold => Ok(self),
        }
    }

    /// The error that reports a step that is not finite.
    pub(crate) fn error(self, step: u64, sums: &LossSums, norm: Option<f64>) -> Option<TrainError> {
        let findings = Findings::default();
        match self {
            Withheld::Loss => Some(TrainError::LossNotFinite { step, loss: sums.mean(), findings }),
            Withheld::Gradient => {
                Some(TrainError::GradientNotFinite { step, norm: norm.unwrap_or(f64::NAN), findings })
            }
            Withheld::AboveLimit | Withheld::LeftOut => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_decides() {
        let sums = |loss| LossSums { loss, weight: 2.0 };
        let (no_limit, left_out) = (f64::INFINITY, f64::NEG_INFINITY);
        assert_eq!(by_loss(&sums(f64::NAN), left_out), Some(Withheld::LeftOut));
        assert_eq!(by_loss(&sums(f64::NAN), no_limit), Some(Withheld::Loss));
        assert_eq!(by_loss(&sums(3.0), no_limit), None);
        assert_eq!(by_gradient(&sums(3.0), Some(f64::INFINITY), 1.0), Some(Withheld::Gradient));
        assert_eq!(by_gradient(&sums(3.0), Some(1.0), 1.0), Some(Withheld::AboveLimit));
        // The limit itself is allowed.
        assert_eq!(by_gradient(&sums(3.0), None, 1.5), None);
    }
}
