//! One fused matmul of cuBLASLt, or the parts one by one if it has no such epilogue.

use super::{Activation, MatmulMode};
use crate::cuda::blas::{Epilogue, Matmul, Scales};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::activation::cuda as activations;
use crate::ops::addmm::matmul;
use crate::ops::bias::cuda as biases;
use crate::{DType, Result};

/// Sizes and precision of a layer's matmuls.
#[derive(Clone, Copy)]
pub(super) struct Layer {
    pub(super) mode: MatmulMode,
    pub(super) n_rows: usize,
    pub(super) in_features: usize,
    pub(super) out_features: usize,
}

/// Outputs of [`forward`].
pub(super) struct Output<'a> {
    pub(super) y: CudaSliceMut<'a>,
    pub(super) pre_activation: Option<CudaSliceMut<'a>>,
    pub(super) relu_mask: Option<CudaSliceMut<'a>>,
}

/// Whether the mask was written: its layout is internal to cuBLASLt, so only a fused matmul writes it.
pub(super) fn forward(
    gpu: &'static Gpu,
    layer: Layer,
    x: CudaSlice<'_>,
    weight: CudaSlice<'_>,
    bias: Option<CudaSlice<'_>>,
    activation: Option<Activation>,
    output: Output<'_>,
) -> Result<bool> {
    let Output { mut y, mut pre_activation, relu_mask } = output;
    let (rows, cols, inputs, output) = (layer.n_rows, layer.out_features, x.dtype(), y.dtype());
    let shape = |epilogue| Matmul {
        m: rows,
        n: cols,
        k: layer.in_features,
        transpose_a: false,
        transpose_b: true,
        inputs,
        output,
        mode: layer.mode,
        epilogue,
    };
    let fused = match (bias, activation) {
        (Some(_), Some(Activation::Relu)) if pre_activation.is_none() => match &relu_mask {
            Some(mask) => Some((Epilogue::ReluAuxBias, Some(mask.as_ref()))),
            None => Some((Epilogue::ReluBias, None)),
        },
        (None, Some(Activation::Relu)) if pre_activation.is_none() => {
            relu_mask.as_ref().map(|mask| (Epilogue::ReluAux, Some(mask.as_ref())))
        }
        (Some(_), Some(Activation::GeluTanh)) => match &pre_activation {
            Some(pre) => Some((Epilogue::GeluAuxBias, Some(pre.as_ref()))),
            None => Some((Epilogue::GeluBias, None)),
        },
        _ => None,
    };
    if let Some((epilogue, aux)) = fused
        && matmul(gpu, shape(epilogue), Scales::overwrite(), x, weight, y.reborrow(), bias, aux)?
    {
        return Ok(relu_mask.is_some());
    }
    // The derivative of ReLU needs no mask: the output tells the sign.
    let without_mask = matches!(fused, Some((Epilogue::ReluAuxBias, _)));
    if without_mask
        && matmul(gpu, shape(Epilogue::ReluBias), Scales::overwrite(), x, weight, y.reborrow(), bias, None)?
    {
        return Ok(false);
    }

    // The sum goes to `pre` if it is kept, else to y; the activation reads it from there and writes y.
    let sum = pre_activation.as_mut().unwrap_or(&mut y);
    let epilogue = if bias.is_some() { Epilogue::Bias } else { Epilogue::None };
    let is_done = matmul(gpu, shape(epilogue), Scales::overwrite(), x, weight, sum.reborrow(), bias, None)?;
    if let (false, Some(bias)) = (is_done, bias) {
        matmul(gpu, shape(Epilogue::None), Scales::overwrite(), x, weight, sum.reborrow(), None, None)?;
        biases::forward(gpu, bias, sum)?;
    }
    match (activation, &pre_activation) {
        (Some(activation), Some(pre)) => activations::forward(gpu, activation, pre.as_ref(), &mut y)?,
        (Some(activation), None) => activations::forward_in_place(gpu, activation, &mut y)?,
        (None, Some(pre)) => {
            crate::cuda::peer::copy(pre.as_ref(), y.reborrow())?;
        }
        (None, None) => {}
    }
    Ok(false)
}

/// `d_weight = d_yᵀ·x` and `d_bias = Σ_rows d_y`, or `+=`.
pub(super) fn backward_weight(
    gpu: &'static Gpu,
    layer: Layer,
    d_y: CudaSlice<'_>,
    x: CudaSlice<'_>,
    mut d_weight: CudaSliceMut<'_>,
    d_bias: Option<CudaSliceMut<'_>>,
    accumulate: bool,
) -> Result<()> {
    let (inputs, output) = (d_y.dtype(), d_weight.dtype());
    let shape = |epilogue| Matmul {
        m: layer.out_features,
        n: layer.in_features,
        k: layer.n_rows,
        transpose_a: true,
        transpose_b: false,
        inputs,
        output,
        mode: layer.mode,
        epilogue,
    };
    let plain = shape(Epilogue::None);
    let beta = if accumulate { 1.0 } else { 0.0 };
    // The fused sum of the rows overwrites its output; it cannot accumulate.
    if let Some(d_bias) = d_bias.as_ref().filter(|_| !accumulate) {
        let fused = shape(Epilogue::BiasGradient);
        if matmul(gpu, fused, Scales::overwrite(), d_y, x, d_weight.reborrow(), Some(d_bias.as_ref()), None)?
            && layer.n_rows > 0
            && layer.in_features > 0
        {
            return Ok(());
        }
    }
    matmul(gpu, plain, Scales { alpha: 1.0, beta }, d_y, x, d_weight, None, None)?;
    match d_bias {
        Some(mut d_bias) => biases::backward(gpu, d_y, layer.out_features, &mut d_bias, accumulate),
        None => Ok(()),
    }
}

/// Input of the derivative of the activation before the layer.
#[derive(Clone, Copy)]
pub(super) struct Through<'a> {
    pub(super) activation: Activation,
    pub(super) saved: CudaSlice<'a>,
    pub(super) relu_mask: Option<CudaSlice<'a>>,
}

/// `d_x = d_y·weight`, or `+=`, times the derivative of the activation that computed x, if any.
pub(super) fn backward_input(
    gpu: &'static Gpu,
    layer: Layer,
    d_y: CudaSlice<'_>,
    weight: CudaSlice<'_>,
    mut d_x: CudaSliceMut<'_>,
    through: Option<Through<'_>>,
    accumulate: bool,
) -> Result<()> {
    let (inputs, output) = (d_y.dtype(), d_x.dtype());
    let shape = |epilogue| Matmul {
        m: layer.n_rows,
        n: layer.in_features,
        k: layer.out_features,
        transpose_a: false,
        transpose_b: false,
        inputs,
        output,
        mode: layer.mode,
        epilogue,
    };
    let beta = if accumulate { 1.0 } else { 0.0 };
    let fused = match through {
        Some(Through { activation: Activation::Relu, relu_mask: Some(mask), .. }) => {
            Some((Epilogue::DRelu, mask))
        }
        Some(Through { activation: Activation::GeluTanh, saved, .. }) if saved.dtype() != DType::F64 => {
            Some((Epilogue::DGelu, saved))
        }
        _ => None,
    };
    if let Some((epilogue, aux)) = fused
        && matmul(
            gpu,
            shape(epilogue),
            Scales { alpha: 1.0, beta },
            d_y,
            weight,
            d_x.reborrow(),
            None,
            Some(aux),
        )?
    {
        return Ok(());
    }
    let plain = shape(Epilogue::None);
    matmul(gpu, plain, Scales { alpha: 1.0, beta }, d_y, weight, d_x.reborrow(), None, None)?;
    match through {
        Some(through) => activations::backward(gpu, through.activation, through.saved, &mut d_x),
        None => Ok(()),
    }
}
