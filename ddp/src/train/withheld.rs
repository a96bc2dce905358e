//! Steps whose update is withheld.
//!
//! Device and host decide by the same rule ([`ddp_kernels::ops::StepNumbers::withheld`]): the device before it updates, the host when it
//! reads the outcome. The step's sums of loss and weight, which travel with the last bucket of gradients, and the sum of squares of the
//! reduced gradients are the same on all ranks, so all decide alike.
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

pub use ddp_kernels::ops::Withheld;

/// Treatment of a step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// The step is an error. A gradient is checked where its norm is requested or needed.
    #[default]
    Fail,
    /// The step's update is withheld. Every step computes the norm of its gradient.
    Withhold,
}
