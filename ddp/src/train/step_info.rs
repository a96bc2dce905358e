//! Data of one step: the request, what is known before it runs, the shape that selects its kernels, and its outcome.
//!
//! Device and host decide by one rule whether a step's update is withheld ([`StepNumbers::withheld`]): the device before it updates, the
//! host when it reads the outcome. The sums of loss and weight, which travel with the last bucket of gradients, and the sum of squares
//! of the reduced gradients are the same on all ranks, so all decide alike. A withheld step updates nothing but running statistics of
//! layers, which stay finite.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
//! use ddp::nn::{LossHead, Precision, Sequential, Sizes};
//! use ddp::optim::{OptimizerConfig, OptimizerKind};
//! use ddp::prelude::*;
//! use ddp::train::{StepRequest, Trainer, TrainerOptions, Withheld};
//!
//! let world = World::single();
//! let x = Tensor::randn(&[8, 3], DType::F32, Device::Cpu, 1)?;
//! let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
//! let plan = BatchPlan::new(8);
//! let mut loader = DataLoader::new(&world, rows, &plan, LoaderOptions::new(Device::Cpu))?;
//!
//! let sizes = Sizes { max_rows: 8, device: Device::Cpu, precision: Precision::F32 };
//! let (layers, sgd) = (Sequential::new(3).linear(1), OptimizerConfig::new(OptimizerKind::Sgd, 0.1));
//! let mut trainer =
//!     Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, TrainerOptions::default())?;
//! let mut batch = loader.next_step()?.expect("the plan has no last epoch");
//! trainer.step(&mut batch, StepRequest { want_grad_norm: true, ..StepRequest::default() })?;
//! let (info, outcome) = trainer.outcome(true)?.expect("one step was enqueued");
//! assert_eq!((info.step, info.n_rows, info.lr), (1, 8, 0.1));
//! assert!(outcome.grad_norm.is_some_and(|norm| norm > 0.0));
//!
//! let before = trainer.model().weights().to_vec::<f32>()?;
//! let mut batch = loader.next_step()?.expect("the plan has no last epoch");
//! // No mean loss is that small.
//! trainer.step(&mut batch, StepRequest { loss_limit: 0.0, ..StepRequest::default() })?;
//! let (_, outcome) = trainer.outcome(true)?.expect("one step was enqueued");
//! assert_eq!(outcome.withheld, Some(Withheld::AboveLimit));
//! assert_eq!(trainer.model().weights().to_vec::<f32>()?, before);
//! # Ok::<(), ddp::Error>(())
//! ```

pub use ddp_kernels::ops::Withheld;
use ddp_kernels::ops::{LossSums, StepNumbers, StepScalars};

use crate::data::order::partition::RankPartition;
use crate::exchange::bucket_plan::STEP_VOTE;
use crate::train::error::{Result, TrainError};
use crate::train::findings::Findings;
use crate::train::options::NonFinite;

/// Outcome of a step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Sums over the rows of all ranks.
    pub sums: LossSums,
    /// 2-norm of the gradient before clipping, where it was requested or needed.
    pub grad_norm: Option<f64>,
    /// Sum of the ranks' votes.
    pub votes: u64,
    /// Whether the step was skipped, because the gradients of a scaled loss were not finite: weights, state and step count are
    /// unchanged.
    pub skipped: bool,
    /// Why the step's update was withheld, if it was.
    pub withheld: Option<Withheld>,
}

impl StepOutcome {
    /// The error that reports the step, if it is not finite and was not skipped.
    pub(crate) fn error(&self, step: u64) -> Option<TrainError> {
        let findings = Findings::default();
        match self.withheld? {
            Withheld::Loss => Some(TrainError::LossNotFinite { step, loss: self.sums.mean(), findings }),
            Withheld::Gradient => {
                let norm = self.grad_norm.unwrap_or(f64::NAN);
                Some(TrainError::GradientNotFinite { step, norm, findings })
            }
            Withheld::AboveLimit | Withheld::LeftOut => None,
        }
    }
}

/// Options of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRequest {
    /// Whether the outcome must report the norm of the gradient.
    pub want_grad_norm: bool,
    /// This rank's vote; the outcome holds the sum over the ranks, exact up to 2^24.
    pub vote: u32,
    /// Largest mean loss of a step that updates the weights; infinity for any finite one, negative infinity for none.
    pub loss_limit: f64,
    /// Whether a GPU measures the parts of the step ([`StepTimes`](crate::train::step_times::StepTimes)).
    pub is_timed: bool,
}

impl Default for StepRequest {
    /// No norm, no vote, any finite loss, no times.
    fn default() -> Self {
        StepRequest { want_grad_norm: false, vote: 0, loss_limit: f64::INFINITY, is_timed: false }
    }
}

/// Facts about a step that are known before it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepInfo {
    /// Its number, from 1.
    pub step: u64,
    /// Rows of the global batch.
    pub n_rows: usize,
    /// Learning rate.
    pub lr: f64,
}

/// Everything that determines a step's kernels and their arguments: the key of its captured graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// This rank's rows.
    pub(crate) own_rows: usize,
    pub(crate) global_rows: usize,
    /// Partition of the rows into micro-batches.
    pub(crate) partition: RankPartition,
    /// Whether the norm of the gradient is computed.
    pub(crate) has_norm: bool,
    /// Loss scale as bits, where the loss is scaled.
    pub(crate) loss_scale: Option<u64>,
    /// Whether its parts are marked on the device.
    pub(crate) is_timed: bool,
    /// Whether its collectives are marked too, for a trace.
    pub(crate) is_traced: bool,
}

impl StepShape {
    /// The same step without marks.
    pub(crate) fn untimed(self) -> Self {
        StepShape { is_timed: false, is_traced: false, ..self }
    }
}

/// A step before it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedStep {
    pub(crate) info: StepInfo,
    pub(crate) shape: StepShape,
    pub(crate) scalars: StepScalars,
    /// Norm to which the gradient is clipped; infinity for no limit.
    pub(crate) max_norm: f64,
    /// Sum of weights by which the gradient is divided, where neither rows nor classes have weights.
    pub(crate) divisor: Option<f64>,
}

impl PlannedStep {
    /// The outcome of the step, by the rule by which its update was withheld or not.
    ///
    /// - `tail`: its sums over all ranks
    ///
    /// # Errors
    /// With [`NonFinite::Fail`] the error of a step that is not finite; [`TrainError::RowsLeftOut`].
    pub(crate) fn outcome(
        &self,
        tail: &[f32],
        sum_of_squares: Option<f64>,
        nonfinite: NonFinite,
    ) -> Result<StepOutcome> {
        let PlannedStep { info, shape, scalars, max_norm, divisor } = *self;
        let numbers = StepNumbers { scalars, sums: LossSums::load(tail), sum_of_squares };
        let counted = numbers.sums.weight;
        if let Some(all) = divisor.filter(|all| counted > 0.0 && (all - counted).abs() >= 0.5 + all * 1e-6) {
            return Err(TrainError::RowsLeftOut { step: info.step, all, counted });
        }
        let withheld = numbers.withheld(max_norm);
        // The loss scale was too large.
        let skipped = shape.loss_scale.is_some() && withheld == Some(Withheld::Gradient);
        let outcome = StepOutcome {
            sums: numbers.sums,
            grad_norm: numbers.grad_norm(),
            votes: tail[STEP_VOTE] as u64,
            skipped,
            withheld: withheld.filter(|_| !skipped),
        };
        match outcome.error(info.step) {
            Some(error) if nonfinite == NonFinite::Fail => Err(error),
            _ => Ok(outcome),
        }
    }
}
