//! The operations, one folder each: `mod.rs` has the contract and the checks, `cpu.rs` the implementation that defines it,
//! `cuda.rs` and `kernel.cu` the one for GPUs.
//!
//! Every operation writes into memory that the caller owns and allocates nothing ([`reduce`] excepted). Losses return sums, never means: only the
//! caller knows the number of rows of the global batch.
//!
//! Each operation that has a gradient is checked by central differences in f64, and compared with PyTorch (`tests/golden`). One
//! test body runs on every device that is there.
//!
//! The crates that multiply matrices on the CPU keep packing buffers of their own; nothing else is allocated.
//!
//! ```
//! use ddp_kernels::{DType, Device, Tensor, ops};
//!
//! let (a, b) = (Tensor::ones(&[2, 3], DType::F32, Device::Cpu)?, Tensor::ones(&[3, 2], DType::F32, Device::Cpu)?);
//! let mut out = Tensor::zeros(&[2, 2], DType::F32, Device::Cpu)?;
//! ops::addmm(2.0, a.view(), false, b.view(), false, 0.0, out.view_mut())?;
//! assert_eq!(out.to_vec::<f32>()?, [6.0; 4]);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

mod activation;
mod add;
mod addmm;
mod argmax;
mod batch_norm;
mod bce_with_logits;
mod begin_step;
mod bias;
mod bmm;
mod cast;
mod cat;
pub(crate) mod check;
mod column_scale;
mod convert;
mod copy;
mod count_correct;
mod dropout;
mod elementwise;
mod embedding;
mod fill;
mod fingerprint;
mod focal_with_logits;
mod gather_rows;
mod glu;
mod huber;
mod layer_norm;
mod linear;
mod load_rows;
mod log_cosh;
mod loss;
mod mse;
mod numeric_embedding;
mod ordinal;
mod orthogonalize;
mod permute;
mod poisson;
mod quantile;
mod reduce;
mod rms_norm;
mod row_tiles;
mod select_targets;
mod softmax;
mod softmax_cross_entropy;
mod step_scalars;
mod step_sums;
mod strided_copy;
mod sum_of_squares;
mod uniform;
mod update;

pub use activation::{Activation, SavedForBackward, activation_backward, activation_forward};
pub use add::add_assign;
pub use addmm::{MatmulMode, addmm, addmm_with};
pub use argmax::argmax;
pub use batch_norm::{
    BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, RunningStats, batch_norm_backward,
    batch_norm_backward_sums, batch_norm_forward, batch_norm_frozen, batch_norm_moments,
    batch_norm_moments_len, batch_norm_statistics,
};
pub use bce_with_logits::bce_with_logits;
pub use begin_step::{ROW_SUMS_LEN, RowNumbersOutput, RowPlaces, ScalarsOutput, begin_step, mix_row};
pub use bias::{bias_backward, bias_forward};
pub use bmm::{bmm, bmm_with};
pub use cast::cast;
pub use cat::cat;
pub use column_scale::{column_scale_backward, column_scale_forward};
pub use convert::convert;
pub use copy::copy;
pub use count_correct::count_correct;
pub use dropout::{DropoutKey, dropout};
pub use elementwise::{CompareOp, Input, MapOp, Scalar, compare, map, select};
pub(crate) use elementwise::{broadcast_shape, shapes_differ};
pub use embedding::{EmbeddingTable, EmbeddingTables, embedding_backward, embedding_forward};
pub use fill::{Pattern, fill};
pub use fingerprint::fingerprint;
pub use focal_with_logits::focal_with_logits;
pub use gather_rows::gather_rows;
pub use glu::{Gate, glu_backward, glu_forward};
pub use huber::huber;
pub use layer_norm::{LayerNormGrads, LayerNormStats, layer_norm_backward, layer_norm_forward};
pub use linear::{
    LinearOutput, ThroughActivation, linear_backward_input, linear_backward_weight, linear_forward,
    linear_workspace_len, relu_mask_len,
};
pub use load_rows::{RowNormalizer, load_rows};
pub use log_cosh::log_cosh;
pub use loss::LossSums;
pub use mse::mse;
pub use numeric_embedding::{
    NumericEmbedding, NumericEmbeddingGrads, numeric_embedding_backward, numeric_embedding_backward_input,
    numeric_embedding_forward,
};
pub use ordinal::ordinal;
pub use orthogonalize::{NewtonSchulzMemory, orthogonalize};
pub use permute::permute;
pub use poisson::poisson;
pub use quantile::quantile;
pub use reduce::{ReduceOp, reduce};
pub use rms_norm::{RmsNormGrads, rms_norm_backward, rms_norm_forward};
pub use select_targets::{TargetColumns, select_targets};
pub use softmax::{softmax_backward, softmax_forward};
pub use softmax_cross_entropy::{CrossEntropyConfig, softmax_cross_entropy};
pub use step_scalars::{STEP_SCALARS_EXTRA, STEP_SCALARS_LEN, StepScalars};
pub use step_sums::{STEP_SUMS_EXTRA, STEP_SUMS_LEN, SumsOutput};
pub use strided_copy::copy_columns;
pub(crate) use strided_copy::{Walk, strided_copy};
pub use sum_of_squares::{sum_of_squares, sum_of_squares_on};
pub use uniform::{UniformStream, uniform};
pub use update::{
    AdafactorFactors, Average, FactoredShape, FirstPassTensors, OptimizerDefaults, OptimizerKind,
    OptimizerParams, OptimizerTensors, StepReport, UpdateInputs, WholeNeed, WholeNumbers, adafactor_factors,
    adafactor_norm, adafactor_sums, optimizer_first_pass, optimizer_step,
};

/// All kernel files.
pub(crate) fn cuda_sources() -> impl Iterator<Item = &'static crate::cuda::launch::Source> {
    SOURCES.iter().chain(&update::OPTIMIZER_SOURCES).copied()
}

static SOURCES: &[&crate::cuda::launch::Source] = &[
    &activation::SOURCE,
    &add::SOURCE,
    &addmm::SOURCE,
    &argmax::SOURCE,
    &batch_norm::SOURCE,
    &begin_step::SOURCE,
    &bias::SOURCE,
    &cast::SOURCE,
    &column_scale::SOURCE,
    &convert::SOURCE,
    &count_correct::SOURCE,
    &count_correct::WEIGHTED_SOURCE,
    &dropout::SOURCE,
    &elementwise::SOURCE,
    &embedding::SOURCE,
    &fill::SOURCE,
    &fingerprint::SOURCE,
    &gather_rows::SOURCE,
    &glu::SOURCE,
    &layer_norm::SOURCE,
    &load_rows::SOURCE,
    &loss::SOURCE,
    &numeric_embedding::SOURCE,
    &permute::SOURCE,
    &reduce::SOURCE,
    &rms_norm::SOURCE,
    &loss::WEIGHTED_SOURCE,
    &select_targets::SOURCE,
    &softmax::SOURCE,
    &softmax_cross_entropy::SOURCE,
    &softmax_cross_entropy::WEIGHTED_SOURCE,
    &softmax_cross_entropy::FOCAL_SOURCE,
    &sum_of_squares::SOURCE,
    &strided_copy::SOURCE,
    &uniform::SOURCE,
];

#[cfg(test)]
pub(crate) mod testing;
