//! Layers, models and losses: the names of [`mod@crate::model`] and [`crate::config`] that a program needs.
//!
//! ```
//! use ddp::nn::{Sequential, Sizes};
//! use ddp::prelude::*;
//!
//! let layers = Sequential::new(4).linear(8).relu().linear(2);
//! let mut model = layers.build(Sizes::new(16, Device::Cpu), 0)?;
//! let x = Tensor::randn(&[16, 4], DType::F32, Device::Cpu, 1)?;
//! assert_eq!(model.forward(&x)?.shape().dims(), [16, 2]);
//! # Ok::<(), KernelError>(())
//! ```
//!
//! Source: `torch.nn`.

pub use crate::config::{Activation, ClassWeights, ElementLoss, Gate, HeadLoss, Loss, Precision};
pub use crate::model::expression::{Expression, Gradients, Own, Var};
pub use crate::model::layer::{BufferSpec, Layer, RegisteredBuffer, Sizes};
#[doc(hidden)]
pub use crate::model::layers::{
    ActivationLayer, Cast, EmbeddingLayer, Gated, NumericEmbeddingLayer, Scale, SkipBegin, SkipEnd, from_spec,
};
pub use crate::model::layers::{BatchNorm1d, Dropout, LayerNorm, Linear, RmsNorm};
pub use crate::model::linear_spec::LinearSpec;
pub use crate::model::param::{Init, ParamEntry, ParamKind, ParamSpec};
pub use crate::model::pass::{
    BackwardPass, ForwardPass, InputGradientPass, ParamGradient, ParamGradients, ParamViews,
};
pub use crate::model::{
    AllRanks, EmbeddingSpec, GradcheckOptions, GradientSums, LocalGradients, LossFunction, LossHead,
    ModelError, ModelSpec, Network, Operator, OperatorInput, RowsOfStep, Sequential, StateDictReport,
    gradcheck,
};
#[doc(hidden)]
pub use crate::model::{DropoutStep, GradientSink, ParamLayout, PassRows, PassTraffic, WeightsMut};
