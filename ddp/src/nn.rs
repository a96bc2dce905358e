//! Layers, models and losses: the names of [`mod@crate::model`] and [`crate::config`] that a program needs.
//!
//! ```
//! use ddp::nn::{Activation, Sequential, Sizes};
//! use ddp::prelude::*;
//!
//! let layers = Sequential::new(4).linear(8).activation(Activation::Relu).linear(2);
//! let mut model = layers.build(Sizes::new(16, Device::Cpu), 0)?;
//! let x = Tensor::randn(&[16, 4], DType::F32, Device::Cpu, 1)?;
//! assert_eq!(model.forward(x.view(), None)?.shape().dims(), [16, 2]);
//! # Ok::<(), KernelError>(())
//! ```
//!
//! Source: `torch.nn`.

pub use crate::config::{Activation, ElementLoss, Gate, Loss, Precision};
pub use crate::model::expression::{Expression, Var};
pub use crate::model::layer::{Layer, RegisteredBuffer, Sizes};
pub use crate::model::layers::*;
pub use crate::model::param::{Init, ParamKind, ParamSpec};
pub use crate::model::{
    DropoutStep, GradcheckOptions, GradientSums, LocalGradients, LossFunction, LossHead, Network, Sequential,
    gradcheck,
};
