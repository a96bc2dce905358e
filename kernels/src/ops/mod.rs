//! The operations, one folder each: `mod.rs` has the contract, the checks and, where both are short, the implementations: a function
//! `_cpu`, which defines the operation, and one `_cuda`, which launches `kernel.cu`. Longer ones are `cpu.rs` and `cuda.rs` next to it.
//! The losses of elements are formulas in `loss/`.
//!
//! Every operation writes into memory that the caller owns and allocates nothing ([`reduce()`] and [`argsort()`] excepted). Losses return sums, never
//! means: only the caller knows the number of rows of the global batch.
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

// Shared by several operations.
mod step_scalars;

// Copies and conversions.
mod copy;
mod cast;
mod convert;
mod fill;
mod gather_rows;
mod permute;
mod strided_copy;
mod uniform;

// Elements and sums.
mod add;
mod column_scale;
mod elementwise;
mod fingerprint;
mod known_numbers;
mod reduce;
mod scan;
mod sort;
mod argmax;
mod sum_of_squares;

// Layers.
mod bias;
mod activation;
mod glu;
mod dropout;
mod embedding;
mod numeric_embedding;
mod row_norm;
mod layer_norm;
mod rms_norm;
mod batch_norm;
mod softmax;
mod matmul;

// The step of a training run.
mod load_rows;
mod begin_step;
mod select_targets;
mod loss;
mod count_correct;
mod update;

// Trials of a GPU.
mod dependent_launches;

// All kernels.
pub(crate) mod sources;

pub use activation::{Activation, SavedForBackward, activation_backward, activation_forward};
pub use add::add_assign;
pub use argmax::argmax;
pub use batch_norm::{
    BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, RunningStats, batch_norm_backward,
    batch_norm_backward_sums, batch_norm_forward, batch_norm_frozen, batch_norm_moments,
    batch_norm_moments_len, batch_norm_statistics,
};
pub use begin_step::{ROW_SUMS_LEN, RowNumbersOutput, RowPlaces, ScalarsOutput, begin_step, mix_row};
pub use bias::{bias_backward, bias_forward};
pub use cast::cast;
pub use column_scale::{column_scale_backward, column_scale_forward};
pub use convert::convert;
pub use copy::{cat, copy};
pub use count_correct::count_correct;
pub use dependent_launches::try_dependent_launches;
pub use dropout::{DropoutKey, dropout};
pub use elementwise::{AsInput, CompareOp, Input, MapOp, Scalar, compare, map, select};
pub(crate) use elementwise::{broadcast_shape, shapes_differ};
pub use embedding::{EmbeddingTable, EmbeddingTables, embedding_backward, embedding_forward};
pub use fill::{Pattern, fill};
pub use fingerprint::fingerprint;
pub use gather_rows::gather_rows;
pub use glu::{Gate, glu_backward, glu_forward};
pub use known_numbers::KnownNumbers;
pub use layer_norm::{LayerNormGrads, LayerNormStats, layer_norm_backward, layer_norm_forward};
pub use load_rows::{RowNormalizer, load_rows};
pub use loss::{
    CrossEntropyConfig, ElementLoss, LossSums, STEP_SUMS_EXTRA, STEP_SUMS_LEN, SumsOutput, element_loss,
    ordinal, softmax_cross_entropy, sum_losses,
};
pub use matmul::{
    BiasBefore, LinearOutput, NewtonSchulzMemory, ThroughActivation, addmm, addmm_f32x3, addmm_with, bmm,
    bmm_with, linear_backward_input, linear_backward_weight, linear_forward, linear_workspace_len,
    orthogonalize, relu_mask_len, split_factors_len,
};
pub use numeric_embedding::{
    NumericEmbedding, NumericEmbeddingGrads, numeric_embedding_backward, numeric_embedding_backward_input,
    numeric_embedding_forward,
};
pub use permute::permute;
pub(crate) use permute::read_strided;
pub use reduce::{ReduceOp, reduce, reduce_whole};
pub use rms_norm::{RmsNormGrads, rms_norm_backward, rms_norm_forward};
pub use scan::{ScanOp, scan};
pub use select_targets::{TargetColumns, select_targets};
pub use softmax::{softmax_backward, softmax_forward};
pub use sort::argsort;
pub use sources::{compile_all, fill_cache, kernel_sources};
pub use step_scalars::{STEP_SCALARS_EXTRA, STEP_SCALARS_LEN, StepScalars};
pub use strided_copy::copy_columns;
pub(crate) use strided_copy::{Walk, strided_copy};
pub use sum_of_squares::{sum_of_squares, sum_of_squares_on};
pub use uniform::{UniformStream, uniform};
pub use update::{
    Average, FirstPassTensors, MAX_SEGMENTS, OptimizerDefaults, OptimizerKind, OptimizerParams,
    OptimizerTensors, StepNumbers, StepReport, UpdateInputs, UpdateSegment, WholeNeed, Withheld,
    optimizer_first_pass, optimizer_step, optimizer_step_by_segment,
};

pub use crate::base::matmul_mode::MatmulMode;

#[cfg(test)]
pub(crate) mod testing;
