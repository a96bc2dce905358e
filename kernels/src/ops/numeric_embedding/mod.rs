//! Periodic embeddings of numbers: each column becomes itself and linear functions of cosines of it.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::base::error::Operand;
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// Parameters of an embedding of `F` columns by `K` cosines into `1 + E` numbers each; of the dtype of the rows, or f32 if they are bf16
/// or f16.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct NumericEmbedding<'a> {
    /// `[F, K]`.
    pub frequencies: TensorRef<'a>,
    /// `[F, K]`.
    pub phases: TensorRef<'a>,
    /// `[F, K, E]`.
    pub weight: TensorRef<'a>,
    /// `[F, E]`.
    pub bias: TensorRef<'a>,
}

/// Gradients of [`NumericEmbedding`], of the same shapes; each is added to where its flag says so.
#[derive(Debug)]
#[doc(hidden)]
pub struct NumericEmbeddingGrads<'a> {
    /// Gradient of the frequencies, and whether it is added.
    pub frequencies: (TensorMut<'a>, bool),
    /// Gradient of the phases, and whether it is added.
    pub phases: (TensorMut<'a>, bool),
    /// Gradient of the weight, and whether it is added.
    pub weight: (TensorMut<'a>, bool),
    /// Gradient of the bias, and whether it is added.
    pub bias: (TensorMut<'a>, bool),
}

/// `F`, `K` and `E`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dims {
    features: usize,
    frequencies: usize,
    outputs: usize,
}

/// `y[n,f,0] = x[n,f]`, `y[n,f,1+e] = Σ_k weight[f,k,e] · cos(2π·frequencies[f,k]·x[n,f] + phases[f,k]) + bias[f,e]`
///
/// - `x`: `[N, F]`; `y`: `[N, F·(1+E)]`; of one float dtype; bf16 and f16 are computed in f32
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: PBLD embeddings of arXiv:2407.04491, after arXiv:2203.05556.
#[doc(hidden)]
pub fn numeric_embedding_forward(
    x: TensorRef<'_>,
    params: NumericEmbedding<'_>,
    y: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "numeric_embedding_forward";
    let x_op = x.operand("x");
    let dims = check_operands(OP, x_op, params, y.operand("y"))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::forward(gpu, x.cuda()?, cuda::Params::new(params)?, &mut y.into_cuda()?, dims);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let params = cpu::Params::<T>::new(OP, params)?;
        cpu::forward::<T>(x.as_slice(OP, "x")?, params, y.into_slice(OP, "y")?, dims);
        Ok(())
    })
}

/// Writes the gradients of the parameters of [`numeric_embedding_forward`].
///
/// - `d`: `[N, F·(1+E)]`, the gradient of the output
///
/// Asynchronous as [`numeric_embedding_forward`].
///
/// # Errors
/// Same as [`numeric_embedding_forward`].
#[doc(hidden)]
pub fn numeric_embedding_backward(
    x: TensorRef<'_>,
    params: NumericEmbedding<'_>,
    d: TensorRef<'_>,
    grads: NumericEmbeddingGrads<'_>,
) -> Result<()> {
    const OP: &str = "numeric_embedding_backward";
    let x_op = x.operand("x");
    let dims = check_operands(OP, x_op, params, d.operand("d"))?;
    let NumericEmbeddingGrads { frequencies, phases, weight, bias } = grads;
    for ((grad, _), param) in [
        (&frequencies, params.frequencies),
        (&phases, params.phases),
        (&weight, params.weight),
        (&bias, params.bias),
    ] {
        check::output_kind(OP, x_op, grad.operand("gradient"))?;
        check::shape(OP, grad.operand("gradient"), param.shape())?;
    }
    let grads = [frequencies, phases, weight, bias];
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::backward(gpu, x.cuda()?, cuda::Params::new(params)?, d.cuda()?, grads, dims);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let params = cpu::Params::<T>::new(OP, params)?;
        let mut slices = Vec::with_capacity(grads.len());
        for (grad, accumulate) in grads {
            let slice = grad.into_slice(OP, "gradient")?;
            if !accumulate {
                slice.fill(Element::ZERO);
            }
            slices.push(slice);
        }
        cpu::backward::<T>(x.as_slice(OP, "x")?, params, d.as_slice(OP, "d")?, slices, dims);
        Ok(())
    })
}

/// Writes the gradient of the input of [`numeric_embedding_forward`], `[N, F]`, or adds it if `accumulate`.
///
/// Asynchronous as [`numeric_embedding_forward`].
///
/// # Errors
/// Same as [`numeric_embedding_forward`].
#[doc(hidden)]
pub fn numeric_embedding_backward_input(
    x: TensorRef<'_>,
    params: NumericEmbedding<'_>,
    d: TensorRef<'_>,
    d_x: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "numeric_embedding_backward_input";
    let x_op = x.operand("x");
    let dims = check_operands(OP, x_op, params, d.operand("d"))?;
    check::same_kind(OP, &[x_op, d_x.operand("d_x")])?;
    check::shape(OP, d_x.operand("d_x"), x.shape())?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let mut d_x = d_x.into_cuda()?;
        let params = cuda::Params::new(params)?;
        return cuda::backward_input(gpu, x.cuda()?, params, d.cuda()?, &mut d_x, accumulate, dims);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let params = cpu::Params::<T>::new(OP, params)?;
        let (x, d, d_x) = (x.as_slice(OP, "x")?, d.as_slice(OP, "d")?, d_x.into_slice(OP, "d_x")?);
        cpu::backward_input::<T>(x, params, d, d_x, accumulate, dims);
        Ok(())
    })
}

/// Checks `x` and `y` or its gradient against the parameters.
fn check_operands(op: &'static str, x: Operand, params: NumericEmbedding<'_>, y: Operand) -> Result<Dims> {
    let (rows, features) = check::matrix(op, x)?;
    let (_, frequencies) = check::matrix(op, params.frequencies.operand("frequencies"))?;
    let (_, outputs) = check::matrix(op, params.bias.operand("bias"))?;
    for (param, shape) in [
        (params.frequencies.operand("frequencies"), Shape::matrix(features, frequencies)),
        (params.phases.operand("phases"), Shape::matrix(features, frequencies)),
        (params.bias.operand("bias"), Shape::matrix(features, outputs)),
        (params.weight.operand("weight"), Shape::new(&[features, frequencies, outputs])?),
    ] {
        check::output_kind(op, x, param)?;
        check::shape(op, param, shape)?;
    }
    check::same_kind(op, &[x, y])?;
    check::shape(op, y, Shape::matrix(rows, features * (1 + outputs)))?;
    Ok(Dims { features, frequencies, outputs })
}
