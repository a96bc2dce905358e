//! Batch normalization; its statistics may cover several groups of rows, such as shards on several devices.
//!
//! The caller exchanges the sums of both passes: forward is [`batch_norm_moments`], an exchange, [`batch_norm_statistics`] and
//! [`batch_norm_forward`]; backward is [`batch_norm_backward_sums`], an exchange, and [`batch_norm_backward`]. Both exchanges gather
//! f64 vectors of all groups in one order, so that every caller merges the same numbers to the same bits.

mod cpu;
pub(crate) mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::base::error::Operand;
use crate::{DType, Result, Shape, TensorMut, TensorRef};

/// Elements of [`batch_norm_moments`] of `n_columns` columns.
#[doc(hidden)]
pub fn batch_norm_moments_len(n_columns: usize) -> usize {
    2 * n_columns + 1
}

/// Statistics of the columns over all rows.
#[derive(Debug)]
#[doc(hidden)]
pub struct BatchNormStats<'a> {
    /// Mean of each column, `[C]`.
    pub mean: TensorMut<'a>,
    /// `1 / sqrt(variance + eps)` of each column, `[C]`.
    pub rstd: TensorMut<'a>,
    /// Number of rows, `[1]` f64; infinite for [`batch_norm_frozen`], whose statistics do not depend on the rows.
    pub count: TensorMut<'a>,
}

/// [`BatchNormStats`] as the later operations read them.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct BatchNormSaved<'a> {
    /// `[C]`.
    pub mean: TensorRef<'a>,
    /// `[C]`.
    pub rstd: TensorRef<'a>,
    /// `[1]` f64.
    pub count: TensorRef<'a>,
}

/// Moving averages of the statistics, for the time after training.
#[derive(Debug)]
#[doc(hidden)]
pub struct RunningStats<'a> {
    /// `[C]`.
    pub mean: TensorMut<'a>,
    /// Moving average of the unbiased variance, `[C]`.
    pub var: TensorMut<'a>,
    /// Weight of the new statistics, from 0 to 1.
    pub momentum: f64,
}

/// Sums that [`batch_norm_backward`] needs.
#[derive(Debug)]
#[doc(hidden)]
pub struct BatchNormSums<'a> {
    /// [`batch_norm_backward_sums`] of the caller's own group, `[2 C]` f64; used as scratch.
    pub own: TensorMut<'a>,
    /// The same sums of all N groups, `[N, 2 C]` f64; `None` for one group.
    pub all: Option<TensorRef<'a>>,
}

/// Gradients that [`batch_norm_backward`] writes.
#[derive(Debug)]
#[doc(hidden)]
pub struct BatchNormGrads<'a> {
    /// `[B, C]`, in: the gradient of `y`; out: the gradient of `x`.
    pub d: TensorMut<'a>,
    /// Summand of the own group, `[C]`.
    pub d_gamma: TensorMut<'a>,
    /// Summand of the own group, `[C]`.
    pub d_beta: TensorMut<'a>,
}

/// Computes the moments of each column of `x`, `[B, C]`: `moments = [B, mean.., Σ (x - mean)²..]`, `[2 C + 1]` f64.
///
/// Zeros without rows. Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
#[doc(hidden)]
pub fn batch_norm_moments(x: TensorRef<'_>, moments: TensorMut<'_>) -> Result<()> {
    const OP: &str = "batch_norm_moments";
    let (x_op, moments_op) = (x.operand("x"), moments.operand("moments"));
    let (rows, cols) = check::matrix(OP, x_op)?;
    check_f64(OP, x_op, moments_op, Shape::vector(batch_norm_moments_len(cols)))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::moments(gpu, x.cuda()?, rows, &mut moments.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        cpu::moments::<T>(x.as_slice(OP, "x")?, rows, moments.into_slice(OP, "moments")?);
        Ok(())
    })
}

/// Merges the moments of all groups to the statistics of their rows, and moves the running averages toward them.
///
/// `running <- (1 - momentum)·running + momentum·new`, the new variance being unbiased; left as it is for fewer than two rows, and for a
/// column whose new averages would not be finite. A single row gets the statistics of [`batch_norm_frozen`].
///
/// - `all`: `[N, 2 C + 1]` f64, [`batch_norm_moments`] of each group
/// - statistics and averages: f32 or f64
///
/// Asynchronous on a GPU: one launch.
///
/// # Errors
/// Same as [`batch_norm_moments`].
///
/// Source: `torch.nn.SyncBatchNorm`; merging by Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
#[doc(hidden)]
pub fn batch_norm_statistics(
    all: TensorRef<'_>,
    eps: f64,
    stats: BatchNormStats<'_>,
    running: RunningStats<'_>,
) -> Result<()> {
    const OP: &str = "batch_norm_statistics";
    let BatchNormStats { mean, rstd, count } = stats;
    let RunningStats { mean: running_mean, var: running_var, momentum } = running;
    let (all_op, mean_op) = (all.operand("all"), mean.operand("mean"));
    let cols = mean_op.shape.numel();
    let (n_groups, _) = check::matrix(OP, all_op)?;
    check_f64(OP, mean_op, all_op, Shape::matrix(n_groups, batch_norm_moments_len(cols)))?;
    check_f64(OP, mean_op, count.operand("count"), Shape::vector(1))?;
    let columns = [mean_op, rstd.operand("rstd"), running_mean.operand("running mean")];
    check_columns(OP, &[columns[0], columns[1], columns[2], running_var.operand("running var")], cols)?;
    if let Some(gpu) = all.gpu() {
        check::dtype(OP, mean_op, WIDE, WIDE_NAMES)?;
        let mut stats =
            cuda::Stats { mean: mean.into_cuda()?, rstd: rstd.into_cuda()?, count: count.into_cuda()? };
        let (mut running_mean, mut running_var) = (running_mean.into_cuda()?, running_var.into_cuda()?);
        let running = [&mut running_mean, &mut running_var];
        return cuda::statistics(gpu, all.cuda()?, (eps, momentum), &mut stats, running);
    }
    check::float_dispatch!(OP, mean_op, T => {
        let out = cpu::Statistics::<T> {
            mean: mean.into_slice(OP, "mean")?,
            rstd: rstd.into_slice(OP, "rstd")?,
            count: &mut count.into_slice::<f64>(OP, "count")?[0],
            running_mean: running_mean.into_slice(OP, "running mean")?,
            running_var: running_var.into_slice(OP, "running var")?,
        };
        cpu::statistics(all.as_slice(OP, "all")?, eps, momentum, out);
        Ok(())
    })
}

/// Uses the running averages as statistics, as for evaluation.
///
/// - `running_mean`, `running_var`: `[C]`, f32 or f64
///
/// # Errors
/// Same as [`batch_norm_moments`].
#[doc(hidden)]
pub fn batch_norm_frozen(
    running_mean: TensorRef<'_>,
    running_var: TensorRef<'_>,
    eps: f64,
    stats: BatchNormStats<'_>,
) -> Result<()> {
    const OP: &str = "batch_norm_frozen";
    let BatchNormStats { mean, rstd, count } = stats;
    let mean_op = mean.operand("mean");
    let running = [running_mean.operand("running mean"), running_var.operand("running var")];
    check_columns(OP, &[mean_op, rstd.operand("rstd"), running[0], running[1]], mean_op.shape.numel())?;
    check_f64(OP, mean_op, count.operand("count"), Shape::vector(1))?;
    if let Some(gpu) = running_mean.gpu() {
        check::dtype(OP, mean_op, WIDE, WIDE_NAMES)?;
        let mut stats =
            cuda::Stats { mean: mean.into_cuda()?, rstd: rstd.into_cuda()?, count: count.into_cuda()? };
        return cuda::frozen(gpu, [running_mean.cuda()?, running_var.cuda()?], eps, &mut stats);
    }
    count.into_slice::<f64>(OP, "count")?[0] = f64::INFINITY;
    check::float_dispatch!(OP, mean_op, T => {
        let running: [&[T]; 2] =
            [running_mean.as_slice(OP, "running mean")?, running_var.as_slice(OP, "running var")?];
        cpu::frozen(running[0], running[1], eps, mean.into_slice(OP, "mean")?, rstd.into_slice(OP, "rstd")?);
        Ok(())
    })
}

/// Normalizes each column of `x` by its statistics, then scales and shifts it.
///
/// `y[n,c] = (x[n,c] - mean[c]) · rstd[c] · gamma[c] + beta[c]`
///
/// - `x`, `y`: `[B, C]`; everything else `[C]`; all f32 or all f64, or `x` and `y` bf16 or f16 and everything else f32
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// Same as [`batch_norm_moments`].
///
/// Source: arXiv:1502.03167; the same as `torch.nn.functional.batch_norm`.
#[doc(hidden)]
pub fn batch_norm_forward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    beta: TensorRef<'_>,
    saved: BatchNormSaved<'_>,
    y: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "batch_norm_forward";
    let BatchNormSaved { mean, rstd, .. } = saved;
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, y.operand("y")])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    let columns = [gamma.operand("gamma"), beta.operand("beta"), mean.operand("mean"), rstd.operand("rstd")];
    check_columns(OP, &columns, cols)?;
    check_parameters(OP, x_op, columns[0])?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let columns = cuda::Columns { gamma: gamma.cuda()?, mean: mean.cuda()?, rstd: rstd.cuda()? };
        return cuda::forward(gpu, x.cuda()?, columns, beta.cuda()?, &mut y.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let saved = cpu::Saved { mean: mean.as_slice(OP, "mean")?, rstd: rstd.as_slice(OP, "rstd")? };
        let (gamma, beta) = (gamma.as_slice(OP, "gamma")?, beta.as_slice(OP, "beta")?);
        cpu::forward::<T>(x.as_slice(OP, "x")?, gamma, beta, &saved, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// Sums over the rows of the own group, `[Σ d.., Σ d·h..]`, `[2 C]` f64, with `h = (x - mean) · rstd`.
///
/// - `x`, `d`: `[B, C]`, `d` the gradient of `y`; dtypes as in [`batch_norm_forward`]
///
/// Asynchronous on a GPU: one launch.
///
/// # Errors
/// Same as [`batch_norm_moments`].
#[doc(hidden)]
pub fn batch_norm_backward_sums(
    x: TensorRef<'_>,
    d: TensorRef<'_>,
    saved: BatchNormSaved<'_>,
    sums: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "batch_norm_backward_sums";
    let BatchNormSaved { mean, rstd, .. } = saved;
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, d.operand("d")])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    check_columns(OP, &[mean.operand("mean"), rstd.operand("rstd")], cols)?;
    check_parameters(OP, x_op, mean.operand("mean"))?;
    check_f64(OP, x_op, sums.operand("sums"), Shape::vector(2 * cols))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let saved = [mean.cuda()?, rstd.cuda()?];
        return cuda::backward_sums(gpu, x.cuda()?, d.cuda()?, saved, &mut sums.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let saved = cpu::Saved { mean: mean.as_slice(OP, "mean")?, rstd: rstd.as_slice(OP, "rstd")? };
        let (x, d) = (x.as_slice(OP, "x")?, d.as_slice(OP, "d")?);
        cpu::backward_sums::<T>(x, d, &saved, sums.into_slice(OP, "sums")?);
        Ok(())
    })
}

/// Computes the gradients of [`batch_norm_forward`]; accumulates the gradients of `gamma` and `beta` if `accumulate`.
///
/// With means over the rows of all groups: `d_x = gamma · rstd · (d_y - mean(d_y) - h·mean(d_y·h))`; over the own group's rows
/// `d_gamma = Σ d_y·h` and `d_beta = Σ d_y`, which callers add up over the groups.
///
/// - `x`: `[B, C]`; `gamma`: `[C]`; dtypes as in [`batch_norm_forward`]
///
/// Asynchronous on a GPU: two launches.
///
/// # Errors
/// Same as [`batch_norm_moments`].
#[doc(hidden)]
pub fn batch_norm_backward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    saved: BatchNormSaved<'_>,
    sums: BatchNormSums<'_>,
    grads: BatchNormGrads<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "batch_norm_backward";
    let BatchNormSaved { mean, rstd, count } = saved;
    let BatchNormSums { mut own, all } = sums;
    let BatchNormGrads { mut d, d_gamma, d_beta } = grads;
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, d.operand("d")])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    let gamma_op = gamma.operand("gamma");
    let columns = [gamma_op, mean.operand("mean"), rstd.operand("rstd"), d_gamma.operand("d_gamma")];
    check_columns(OP, &columns, cols)?;
    check_columns(OP, &[gamma_op, d_beta.operand("d_beta")], cols)?;
    check_parameters(OP, x_op, gamma_op)?;
    check_f64(OP, x_op, own.operand("sums"), Shape::vector(2 * cols))?;
    check_f64(OP, x_op, count.operand("count"), Shape::vector(1))?;
    if let Some(all) = all.map(|all| all.operand("sums of all groups")) {
        check_f64(OP, x_op, all, Shape::matrix(check::matrix(OP, all)?.0, 2 * cols))?;
    }
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let backward = cuda::Backward {
            x: x.cuda()?,
            columns: cuda::Columns { gamma: gamma.cuda()?, mean: mean.cuda()?, rstd: rstd.cuda()? },
            count: count.cuda()?,
            own: own.into_cuda()?,
            all: all.map(|all| all.cuda()).transpose()?,
            d: d.into_cuda()?,
            d_gamma: d_gamma.into_cuda()?,
            d_beta: d_beta.into_cuda()?,
            accumulate,
        };
        return backward.run(gpu);
    }
    let count = count.as_slice::<f64>(OP, "count")?[0];
    let all = all.map(|all| all.as_slice::<f64>(OP, "sums of all groups")).transpose()?;
    check::stored_dispatch!(OP, x_op, T => {
        let own = own.reborrow().into_slice::<f64>(OP, "sums")?;
        let (d_gamma, d_beta) = (d_gamma.into_slice(OP, "d_gamma")?, d_beta.into_slice(OP, "d_beta")?);
        cpu::parameter_gradients::<<T as crate::cpu::Stored>::Real>(own, all, count, d_gamma, d_beta, accumulate);
        let saved = cpu::Saved { mean: mean.as_slice(OP, "mean")?, rstd: rstd.as_slice(OP, "rstd")? };
        let (x, gamma) = (x.as_slice(OP, "x")?, gamma.as_slice(OP, "gamma")?);
        cpu::backward::<T>(x, gamma, &saved, own, d.reborrow().into_slice(OP, "d")?);
        Ok(())
    })
}

/// Allowed dtypes of parameters and statistics.
const WIDE: &[DType] = &[DType::F32, DType::F64];
const WIDE_NAMES: &str = "f32 and f64";

/// Checks that an operand is f64 of this shape, on the device of `beside`.
fn check_f64(op: &'static str, beside: Operand, operand: Operand, shape: Shape) -> Result<()> {
    check::same_device(op, &[beside, operand])?;
    check::dtype(op, operand, &[DType::F64], "f64")?;
    check::shape(op, operand, shape)
}

/// Checks that all operands are vectors of one kind, of `cols` elements.
fn check_columns(op: &'static str, operands: &[Operand], cols: usize) -> Result<()> {
    check::same_kind(op, operands)?;
    operands.iter().try_for_each(|&operand| check::shape(op, operand, Shape::vector(cols)))
}

/// Checks that parameters have the dtype of the rows, or f32 if the rows are bf16 or f16.
fn check_parameters(op: &'static str, rows: Operand, parameter: Operand) -> Result<()> {
    check::same_device(op, &[rows, parameter])?;
    if check::narrows(parameter.dtype, rows.dtype) {
        Ok(())
    } else {
        check::same_dtype(op, &[rows, parameter])
    }
}
