//! The linear layer `y = f(x·Wᵀ + b)`, with the activation fused in.

mod cpu;
mod cuda;
mod bf16;
mod short;

#[cfg(test)]
mod operand_tests;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use super::addmm::addmm;
use super::split::{checked_scratch, split_factors_len};
use crate::base::check;
use crate::base::matmul_mode::MatmulMode;
use crate::cpu::gemm::multiplies_bf16;
use crate::cuda::blas::relu_mask_row_bits;
use crate::cuda::{BesideMatmuls, CudaSlice, Gpu};
use crate::ops::activation::{Activation, activation_backward};
use crate::ops::bias::bias_backward;
use crate::{DType, Device, KernelError, Operand, Result, Shape, TensorMut, TensorRef};

/// Outputs of [`linear_forward`].
#[derive(Debug)]
#[doc(hidden)]
pub struct LinearOutput<'a> {
    /// The result, `[B, O]`.
    pub y: TensorMut<'a>,
    /// `x·Wᵀ + b` before the activation, `[B, O]`, for activations whose derivative needs it.
    pub pre_activation: Option<TensorMut<'a>>,
    /// For ReLU on a GPU, at least [`relu_mask_len`] i64: the bit mask of positive values, for [`ThroughActivation`].
    pub relu_mask: Option<TensorMut<'a>>,
    /// Scratch of at least [`linear_workspace_len`] elements: f32 if x is bf16 or f16, else of the dtype of x.
    pub workspace: TensorMut<'a>,
}

/// Length of the scratch that the matmuls of a layer of this shape need, forward and backward, for an `x` of this dtype: for f16 on the
/// CPU, and for bf16 where the CPU has no instructions for it, because both are widened to f32; and on GPUs for split factors of f32.
#[doc(hidden)]
pub fn linear_workspace_len(
    mode: MatmulMode,
    n_rows: usize,
    in_features: usize,
    out_features: usize,
    dtype: DType,
    device: Device,
) -> usize {
    match device {
        Device::Cpu if dtype == DType::BF16 && multiplies_bf16() => 0,
        Device::Cpu if check::is_short(dtype) => short::workspace_len(n_rows, in_features, out_features),
        Device::Cuda(index) if splits(mode, dtype) && may_split_on(index) => {
            let [rows, inputs, outputs] = [n_rows, in_features, out_features];
            let products = [(rows, outputs, inputs), (outputs, inputs, rows), (rows, inputs, outputs)];
            products.into_iter().map(|(m, n, k)| split_factors_len(m, n, k)).max().unwrap_or(0)
        }
        Device::Cpu | Device::Cuda(_) => 0,
    }
}

/// Whether this GPU has TF32; of one that is not there nothing is known.
fn may_split_on(index: u32) -> bool {
    Gpu::get(index).map_or(true, |gpu| gpu.info().has_bf16_matmuls())
}

/// Whether the factors of matmuls may be split.
fn splits(mode: MatmulMode, dtype: DType) -> bool {
    mode == MatmulMode::F32x3 && dtype == DType::F32
}

/// The scratch of a GPU's split factors; none in other modes.
fn split_scratch<'a>(
    op: &'static str,
    mode: MatmulMode,
    x: TensorRef<'_>,
    workspace: TensorRef<'a>,
    Sizes { n_rows, in_features, out_features }: Sizes,
) -> Result<Option<CudaSlice<'a>>> {
    if !splits(mode, x.dtype()) {
        return Ok(None);
    }
    let needed = linear_workspace_len(mode, n_rows, in_features, out_features, x.dtype(), x.device());
    checked_scratch(op, x, workspace, needed).map(Some)
}

/// Rows and features of a linear layer.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    n_rows: usize,
    in_features: usize,
    out_features: usize,
}

/// Checks the CPU workspace of a matmul with operand `x`: its dtype, which is the dtype of the sums, and its length.
fn check_workspace(op: &'static str, x: Operand, workspace: Operand, sizes: Sizes) -> Result<()> {
    let Sizes { n_rows, in_features, out_features } = sizes;
    let sums = if check::is_short(x.dtype) { DType::F32 } else { x.dtype };
    check::same_kind(op, &[Operand { dtype: sums, ..x }, workspace])?;
    let mode = MatmulMode::default();
    let needed = linear_workspace_len(mode, n_rows, in_features, out_features, x.dtype, Device::Cpu);
    let got = workspace.shape.numel();
    if got < needed {
        return Err(KernelError::ElementCount { op, got, shape: Shape::vector(needed) });
    }
    Ok(())
}

/// Length in i64 of the ReLU mask of `[n_rows, out_features]`.
#[doc(hidden)]
pub fn relu_mask_len(n_rows: usize, out_features: usize) -> usize {
    n_rows * relu_mask_row_bits(out_features) / 64
}

/// `y[n, o] = f(Σ_i x[n, i] · weight[o, i] + bias[o])`, without `f` if `activation` is `None`.
///
/// - `x`: `[B, I]`; `weight`: `[O, I]`; `bias`: `[O]`; `output.y`: `[B, O]`
/// - bias and activation are applied while the result is in cache; on a GPU they are fused with the matmul if cuBLASLt supports
///   it (ReLU, GELU by tanh)
/// - in [`MatmulMode::F32x3`] a GPU splits f32 factors where that was measured to be faster, or else is by a fixed rule
/// - x and weight can be bf16 or f16, with sums in f32; y, bias and the values before the activation are then of that format, or
///   all f32
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`], and
/// [`KernelError::ElementCount`] for too small a workspace or mask; on a GPU [`KernelError::Cublas`] and
/// [`KernelError::Cuda`].
///
/// Returns whether `output.relu_mask` was written: only by a fused matmul of cuBLASLt, never on the CPU.
///
/// Source: `torch.nn.functional.linear`.
#[doc(hidden)]
pub fn linear_forward(
    mode: MatmulMode,
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    bias: Option<TensorRef<'_>>,
    activation: Option<Activation>,
    output: LinearOutput<'_>,
) -> Result<bool> {
    const OP: &str = "linear_forward";
    let LinearOutput { y, pre_activation, relu_mask, workspace } = output;
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    check::same_kind(OP, &[x_op, weight.operand("weight")])?;
    check::output_kind(OP, x_op, y_op)?;
    let (n_rows, _) = check::matrix(OP, x_op)?;
    // The layer decides how many features a row has, so a difference is a fault of x.
    let (out_features, in_features) = check::matrix(OP, weight.operand("weight"))?;
    check::shape(OP, x_op, Shape::matrix(n_rows, in_features))?;
    check::shape(OP, y_op, Shape::matrix(n_rows, out_features))?;
    if let Some(bias) = bias {
        check::same_kind(OP, &[y_op, bias.operand("bias")])?;
        check::shape(OP, bias.operand("bias"), Shape::vector(out_features))?;
    }
    if let Some(pre) = &pre_activation {
        check::same_kind(OP, &[y_op, pre.operand("pre_activation")])?;
        check::shape(OP, pre.operand("pre_activation"), y.shape())?;
    }
    check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
    if let Some(gpu) = x.gpu() {
        if let Some(mask) = &relu_mask {
            check_mask(OP, y_op, mask.as_ref(), n_rows, out_features)?;
        }
        let output = cuda::Output {
            y: y.into_cuda()?,
            pre_activation: pre_activation.map(TensorMut::into_cuda).transpose()?,
            relu_mask: relu_mask.map(TensorMut::into_cuda).transpose()?,
        };
        let sizes = Sizes { n_rows, in_features, out_features };
        let scratch = split_scratch(OP, mode, x, workspace.as_ref(), sizes)?;
        let layer = cuda::Layer { mode, n_rows, in_features, out_features, scratch };
        let bias = bias.map(TensorRef::cuda).transpose()?;
        return cuda::forward(gpu, layer, x.cuda()?, weight.cuda()?, bias, activation, output);
    }
    let sizes = Sizes { n_rows, in_features, out_features };
    check_workspace(OP, x_op, workspace.operand("workspace"), sizes)?;
    if check::is_short(x_op.dtype) {
        return check::short_dispatch!(OP, x_op, S => check::short_dispatch!(f32: OP, y_op, Y => {
            let (x, weight) = (x.as_slice::<S>(OP, "x")?, weight.as_slice::<S>(OP, "weight")?);
            let bias = bias.map(|b| b.as_slice::<Y>(OP, "bias")).transpose()?;
            let pre = pre_activation.map(|p| p.into_slice::<Y>(OP, "pre_activation")).transpose()?;
            let (y, workspace) = (y.into_slice(OP, "y")?, workspace.into_slice(OP, "workspace")?);
            short::forward(x, weight, bias, sizes, activation, y, pre, workspace);
            Ok(false)
        }));
    }
    check::float_dispatch!(OP, x_op, T => {
        let bias = bias.map(|b| b.as_slice::<T>(OP, "bias")).transpose()?;
        let pre = pre_activation.map(|p| p.into_slice::<T>(OP, "pre_activation")).transpose()?;
        let problem = cpu::Problem {
            x: x.as_slice::<T>(OP, "x")?,
            weight: weight.as_slice::<T>(OP, "weight")?,
            bias,
            n_rows,
            in_features,
            out_features,
        };
        cpu::forward(problem, activation, y.into_slice(OP, "y")?, pre);
        Ok(false)
    })
}

/// `d_weight = d_yᵀ·x` and, if given, `d_bias = Σ_n d_y[n]`; `+=` if `accumulate`.
///
/// - `d_y`: `[B, O]`, the gradient before the activation; `x`: `[B, I]`; `d_weight`: `[O, I]`; `d_bias`: `[O]`
/// - `d_y` and `x` can be bf16 or f16 with both gradients in f32, on a GPU also in that format; a GPU fuses both gradients into one
///   matmul unless `accumulate`
/// - `workspace`: as [`LinearOutput::workspace`]
/// - `beside`: on a GPU the matmul then runs beside the compute stream until it is joined, unless its factors are split; operands and
///   gradients must be left alone until then
///
/// # Errors
/// Same as [`addmm`]; [`KernelError::ElementCount`] for too small a workspace.
#[doc(hidden)]
#[allow(clippy::too_many_arguments)] // Operands, results and where.
pub fn linear_backward_weight(
    mode: MatmulMode,
    d_y: TensorRef<'_>,
    x: TensorRef<'_>,
    d_weight: TensorMut<'_>,
    d_bias: Option<TensorMut<'_>>,
    accumulate: bool,
    workspace: TensorMut<'_>,
    beside: Option<&BesideMatmuls>,
) -> Result<()> {
    const OP: &str = "linear_backward_weight";
    let (d_y_op, x_op, d_weight_op) = (d_y.operand("d_y"), x.operand("x"), d_weight.operand("d_weight"));
    check::same_kind(OP, &[d_y_op, x_op])?;
    check::dtype(OP, d_y_op, check::FLOATS, check::FLOATS_NAMES)?;
    check::output_kind(OP, d_y_op, d_weight_op)?;
    let (n_rows, out_features) = check::matrix(OP, d_y_op)?;
    let (_, in_features) = check::matrix(OP, x_op)?;
    check::shape(OP, x_op, Shape::matrix(n_rows, in_features))?;
    check::shape(OP, d_weight_op, Shape::matrix(out_features, in_features))?;
    if let Some(d_bias) = &d_bias {
        check::same_kind(OP, &[d_weight_op, d_bias.operand("d_bias")])?;
        check::shape(OP, d_bias.operand("d_bias"), Shape::vector(out_features))?;
    }
    let Some(gpu) = d_y.gpu() else {
        if check::is_short(d_y_op.dtype) {
            let sizes = Sizes { n_rows, in_features, out_features };
            check_workspace(OP, d_y_op, workspace.operand("workspace"), sizes)?;
            check::short_dispatch!(OP, d_y_op, S => {
                let (d_y, x) = (d_y.as_slice::<S>(OP, "d_y")?, x.as_slice::<S>(OP, "x")?);
                let d_weight = d_weight.into_slice(OP, "d_weight")?;
                let workspace = workspace.into_slice(OP, "workspace")?;
                short::backward_weight(d_y, x, sizes, d_weight, accumulate, workspace);
            });
        } else {
            addmm(1.0, d_y, true, x, false, if accumulate { 1.0 } else { 0.0 }, d_weight)?;
        }
        return match d_bias {
            Some(d_bias) => bias_backward(d_y, d_bias, accumulate),
            None => Ok(()),
        };
    };
    let scratch =
        split_scratch(OP, mode, d_y, workspace.as_ref(), Sizes { n_rows, in_features, out_features })?;
    let layer = cuda::Layer { mode, n_rows, in_features, out_features, scratch };
    let d_bias = d_bias.map(TensorMut::into_cuda).transpose()?;
    let (d_y, x, d_weight) = (d_y.cuda()?, x.cuda()?, d_weight.into_cuda()?);
    cuda::backward_weight(gpu, layer, d_y, x, d_weight, d_bias, accumulate, beside)
}

/// Input of an activation's derivative, which is fused with a matmul.
#[derive(Debug)]
#[doc(hidden)]
pub struct ThroughActivation<'a> {
    /// The activation that computed the layer's input.
    pub activation: Activation,
    /// Its input or output: [`Activation::saved_for_backward`].
    pub saved: TensorRef<'a>,
    /// For ReLU on a GPU, the mask that [`linear_forward`] wrote.
    pub relu_mask: Option<TensorRef<'a>>,
    /// Memory for the gradient of the bias of the layer with that activation, which the matmul computes on a GPU where this is faster.
    pub d_bias: Option<BiasBefore<'a>>,
}

/// Memory for the gradient of a bias that may be computed before its layer's turn.
#[derive(Debug)]
#[doc(hidden)]
pub struct BiasBefore<'a> {
    /// `Σ_n d_x[n]`, `[I]`, of the dtype of `d_x`.
    pub d: TensorMut<'a>,
    /// Set if it was computed.
    pub is_written: &'a Cell<bool>,
}

/// `d_x = d_y·weight`, or `+=` if `accumulate`, then times `f'` if `through` gives the activation `f` that computed x.
///
/// - `d_y`: `[B, O]`, the gradient before the activation; `weight`: `[O, I]`; `d_x`: `[B, I]`; all of one float dtype; on a GPU
///   also `d_x` f32 with bf16 or f16 operands
/// - `workspace`: as [`LinearOutput::workspace`]
///
/// # Errors
/// Same as [`addmm`] and [`activation_backward`]; [`KernelError::ElementCount`] for too small a workspace.
#[doc(hidden)]
pub fn linear_backward_input(
    mode: MatmulMode,
    d_y: TensorRef<'_>,
    weight: TensorRef<'_>,
    mut d_x: TensorMut<'_>,
    through: Option<ThroughActivation<'_>>,
    accumulate: bool,
    workspace: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "linear_backward_input";
    let (d_y_op, weight_op, d_x_op) = (d_y.operand("d_y"), weight.operand("weight"), d_x.operand("d_x"));
    check::same_kind(OP, &[d_y_op, weight_op])?;
    check::dtype(OP, d_y_op, check::FLOATS, check::FLOATS_NAMES)?;
    check::output_kind(OP, d_y_op, d_x_op)?;
    let (n_rows, out_features) = check::matrix(OP, d_y_op)?;
    let (_, in_features) = check::matrix(OP, weight_op)?;
    check::shape(OP, weight_op, Shape::matrix(out_features, in_features))?;
    check::shape(OP, d_x_op, Shape::matrix(n_rows, in_features))?;
    let Some(gpu) = d_y.gpu() else {
        if check::is_short(d_y_op.dtype) {
            let sizes = Sizes { n_rows, in_features, out_features };
            check_workspace(OP, d_y_op, workspace.operand("workspace"), sizes)?;
            check::short_dispatch!(OP, d_y_op, S => {
                let (d_y, weight) = (d_y.as_slice::<S>(OP, "d_y")?, weight.as_slice::<S>(OP, "weight")?);
                let d_x = d_x.reborrow().into_slice(OP, "d_x")?;
                let workspace = workspace.into_slice(OP, "workspace")?;
                short::backward_input(d_y, weight, sizes, d_x, accumulate, workspace);
            });
        } else {
            let beta = if accumulate { 1.0 } else { 0.0 };
            addmm(1.0, d_y, false, weight, false, beta, d_x.reborrow())?;
        }
        return match through {
            Some(through) => activation_backward(through.activation, through.saved, d_x, None, false),
            None => Ok(()),
        };
    };
    let mut d_bias = None;
    let through = match through {
        Some(ThroughActivation { activation, saved, relu_mask, d_bias: before }) => {
            check::same_kind(OP, &[d_x_op, saved.operand("saved")])?;
            check::shape(OP, saved.operand("saved"), d_x.shape())?;
            if let Some(mask) = relu_mask {
                check_mask(OP, d_x_op, mask, n_rows, in_features)?;
            }
            let relu_mask = relu_mask.map(TensorRef::cuda).transpose()?;
            if let Some(BiasBefore { d, .. }) = &before {
                check::same_kind(OP, &[d_x_op, d.operand("d_bias")])?;
                check::shape(OP, d.operand("d_bias"), Shape::vector(in_features))?;
            }
            d_bias = before;
            Some(cuda::Through { activation, saved: saved.cuda()?, relu_mask })
        }
        None => None,
    };
    let scratch =
        split_scratch(OP, mode, d_y, workspace.as_ref(), Sizes { n_rows, in_features, out_features })?;
    let layer = cuda::Layer { mode, n_rows, in_features, out_features, scratch };
    let (d_bias, is_written) = d_bias.map(|BiasBefore { d, is_written }| (d, is_written)).unzip();
    let d_bias = d_bias.map(TensorMut::into_cuda).transpose()?;
    let (d_y, weight, d_x) = (d_y.cuda()?, weight.cuda()?, d_x.into_cuda()?);
    let has_sums = cuda::backward_input(gpu, layer, d_y, weight, d_x, through, d_bias, accumulate)?;
    is_written.inspect(|is_written| is_written.set(has_sums));
    Ok(())
}

/// Checks that the mask is i64, on the same device, and long enough.
fn check_mask(
    op: &'static str,
    beside: Operand,
    mask: TensorRef<'_>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    check::same_device(op, &[beside, mask.operand("relu_mask")])?;
    check::dtype(op, mask.operand("relu_mask"), &[DType::I64], "i64")?;
    let needed = relu_mask_len(rows, cols);
    if mask.numel() < needed {
        return Err(KernelError::ElementCount { op, got: mask.numel(), shape: Shape::vector(needed) });
    }
    Ok(())
}
