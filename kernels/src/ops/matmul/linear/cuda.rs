//! One fused matmul of cuBLASLt, or the parts one by one where it has no such epilogue or is slower with it.

use std::ops::Range;

use crate::base::matmul_mode::MatmulMode;
use crate::cuda::blas::{Epilogue, MAX_ALIGNMENT, Matmul, Operands, Scales};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::activation::Activation;
use crate::ops::activation::cuda as activations;
use crate::ops::bias::cuda as biases;
use crate::ops::matmul::addmm::matmul;
use crate::{DType, MemoryUse, Result, Tensor};

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

/// Inputs of [`forward`].
#[derive(Clone, Copy)]
struct Input<'a> {
    gpu: &'static Gpu,
    layer: Layer,
    x: CudaSlice<'a>,
    weight: CudaSlice<'a>,
    bias: Option<CudaSlice<'a>>,
    activation: Option<Activation>,
}

/// Whether the mask was written: its layout is internal to cuBLASLt, so only a fused matmul writes it.
pub(super) fn forward(
    gpu: &'static Gpu,
    layer: Layer,
    x: CudaSlice<'_>,
    weight: CudaSlice<'_>,
    bias: Option<CudaSlice<'_>>,
    activation: Option<Activation>,
    mut output: Output<'_>,
) -> Result<bool> {
    let input = Input { gpu, layer, x, weight, bias, activation };
    let has_pre = output.pre_activation.is_some();
    let fused = match (bias.is_some(), activation) {
        (true, Some(Activation::Relu)) if !has_pre && output.relu_mask.is_some() => Epilogue::ReluAuxBias,
        (true, Some(Activation::Relu)) if !has_pre => Epilogue::ReluBias,
        (false, Some(Activation::Relu)) if !has_pre && output.relu_mask.is_some() => Epilogue::ReluAux,
        (true, Some(Activation::GeluTanh)) if has_pre => Epilogue::GeluAuxBias,
        (true, Some(Activation::GeluTanh)) => Epilogue::GeluBias,
        (true, _) => Epilogue::Bias,
        (false, _) => Epilogue::None,
    };
    let forms = fused.forms();
    let operands = input.operands(fused, &output);
    let shape = input.shape(fused, output.y.dtype());
    // SAFETY: the caller checked that all slices are on this device and of the layer's shape; the outputs are exclusive.
    let first = unsafe { gpu.first_form(shape, operands, |form| input.time(form, &output)) }?;
    for &form in &forms[first..] {
        if let Some(is_masked) = input.run(form, &mut output)? {
            return Ok(is_masked);
        }
    }
    Ok(false)
}

impl Input<'_> {
    fn shape(&self, epilogue: Epilogue, output: DType) -> Matmul {
        Matmul {
            batch: 1,
            m: self.layer.n_rows,
            n: self.layer.out_features,
            k: self.layer.in_features,
            transpose_a: false,
            transpose_b: true,
            inputs: self.x.dtype(),
            output,
            mode: self.layer.mode,
            epilogue,
        }
    }

    fn operands(&self, fused: Epilogue, output: &Output<'_>) -> Operands {
        let aux = match fused {
            Epilogue::ReluAuxBias | Epilogue::ReluAux => output.relu_mask.as_ref(),
            Epilogue::GeluAuxBias => output.pre_activation.as_ref(),
            _ => None,
        };
        Operands {
            a: self.x.ptr(),
            b: self.weight.ptr(),
            c: output.y.ptr(),
            bias: self.bias.map_or(0, |bias| bias.ptr()),
            aux: aux.map_or(0, |aux| aux.ptr()),
        }
    }

    /// Runs the layer in one form. Returns whether the mask was written; None, having done nothing, if there is no such matmul.
    fn run(&self, form: Epilogue, output: &mut Output<'_>) -> Result<Option<bool>> {
        let &Input { gpu, x, weight, bias, activation, .. } = self;
        let shape = self.shape(form, output.y.dtype());
        let Output { y, pre_activation, relu_mask } = output;
        if !matches!(form, Epilogue::Bias | Epilogue::None) {
            let (aux, is_masked) = match form {
                Epilogue::ReluAuxBias | Epilogue::ReluAux => (relu_mask.as_ref(), true),
                Epilogue::GeluAuxBias => (pre_activation.as_ref(), false),
                _ => (None, false),
            };
            let aux = aux.map(CudaSliceMut::as_ref);
            let is_done = matmul(gpu, shape, Scales::overwrite(), x, weight, y.reborrow(), bias, aux)?;
            return Ok(is_done.then_some(is_masked));
        }
        // The sum goes to `pre_activation` if it is kept, else to y; the activation reads it from there and writes y.
        let sum = pre_activation.as_mut().unwrap_or(y);
        if form == Epilogue::Bias {
            if !matmul(gpu, shape, Scales::overwrite(), x, weight, sum.reborrow(), bias, None)? {
                return Ok(None);
            }
        } else {
            matmul(gpu, shape, Scales::overwrite(), x, weight, sum.reborrow(), None, None)?;
            if let Some(bias) = bias {
                biases::forward(gpu, bias, sum)?;
            }
        }
        match (activation, &pre_activation) {
            (Some(activation), Some(pre)) => activations::forward(gpu, activation, pre.as_ref(), y)?,
            (Some(activation), None) => activations::forward_in_place(gpu, activation, y)?,
            (None, Some(pre)) => {
                crate::cuda::peer::copy(pre.as_ref(), y.reborrow())?;
            }
            (None, None) => {}
        }
        Ok(Some(false))
    }

    /// Time of the layer in one form, µs, with its outputs in scratch. Where the form leaves no mask although one is wanted, with that
    /// of a separate derivative.
    fn time(&self, form: Epilogue, output: &Output<'_>) -> Result<f64> {
        let gpu = self.gpu;
        let mut y = Scratch::like(&output.y)?;
        let mut pre_activation = output.pre_activation.as_ref().map(Scratch::like).transpose()?;
        let mut relu_mask = output.relu_mask.as_ref().map(Scratch::like).transpose()?;
        let mut gradient = relu_mask.as_ref().map(|_| Scratch::like(&output.y)).transpose()?;
        gpu.time_us(|| {
            let mut output = Output {
                y: y.slice()?,
                pre_activation: pre_activation.as_mut().map(Scratch::slice).transpose()?,
                relu_mask: relu_mask.as_mut().map(Scratch::slice).transpose()?,
            };
            let is_masked = self.run(form, &mut output)?.unwrap_or(false);
            match (&mut gradient, self.activation) {
                (Some(gradient), Some(activation)) if !is_masked => {
                    let mut gradient = gradient.slice()?;
                    activations::backward(gpu, activation, output.y.as_ref(), &mut gradient)
                }
                _ => Ok(()),
            }
        })
    }
}

/// Zeros in memory of its own, as many as in a slice, and aligned as it is.
struct Scratch {
    memory: Tensor,
    range: Range<usize>,
}

impl Scratch {
    fn like(slice: &CudaSliceMut<'_>) -> Result<Self> {
        let (bytes, dtype) = (slice.dtype().size_bytes(), slice.dtype());
        let start = slice.ptr() as usize % MAX_ALIGNMENT / bytes;
        let range = start..start + slice.len();
        let memory = Tensor::zeros_for(MemoryUse::Workspace, &[range.end], dtype, slice.gpu().device())?;
        Ok(Scratch { memory, range })
    }

    fn slice(&mut self) -> Result<CudaSliceMut<'_>> {
        Ok(self.memory.view_mut().into_cuda()?.range(self.range.start, self.range.end))
    }
}

/// `d_weight = d_yᵀ·x` and `d_bias = Σ_rows d_y`, or `+=`.
pub(super) fn backward_weight(
    gpu: &'static Gpu,
    layer: Layer,
    d_y: CudaSlice<'_>,
    x: CudaSlice<'_>,
    mut d_weight: CudaSliceMut<'_>,
    mut d_bias: Option<CudaSliceMut<'_>>,
    accumulate: bool,
) -> Result<()> {
    let gradient = WeightGradient { gpu, layer, d_y, x, accumulate };
    // The fused sum of the rows overwrites its output; it cannot accumulate. Without rows or inputs there is nothing to fuse.
    let can_be_fused = !accumulate && layer.n_rows > 0 && layer.in_features > 0;
    let fused = match &d_bias {
        Some(_) if can_be_fused => Epilogue::BiasGradient,
        _ => Epilogue::None,
    };
    let operands = Operands {
        a: d_y.ptr(),
        b: x.ptr(),
        c: d_weight.ptr(),
        bias: d_bias.as_ref().map_or(0, CudaSliceMut::ptr),
        aux: 0,
    };
    let shape = gradient.shape(fused, d_weight.dtype());
    // SAFETY: the caller checked that all slices are on this device and of the layer's shape; the outputs are exclusive.
    let first =
        unsafe { gpu.first_form(shape, operands, |form| gradient.time(form, &d_weight, d_bias.as_ref())) }?;
    for &form in &fused.forms()[first..] {
        if gradient.run(form, &mut d_weight, d_bias.as_mut())? {
            break;
        }
    }
    Ok(())
}

/// Inputs of [`backward_weight`].
#[derive(Clone, Copy)]
struct WeightGradient<'a> {
    gpu: &'static Gpu,
    layer: Layer,
    d_y: CudaSlice<'a>,
    x: CudaSlice<'a>,
    accumulate: bool,
}

impl WeightGradient<'_> {
    fn shape(&self, epilogue: Epilogue, output: DType) -> Matmul {
        Matmul {
            batch: 1,
            m: self.layer.out_features,
            n: self.layer.in_features,
            k: self.layer.n_rows,
            transpose_a: true,
            transpose_b: false,
            inputs: self.d_y.dtype(),
            output,
            mode: self.layer.mode,
            epilogue,
        }
    }

    /// Computes the gradients in one form; returns false, having done nothing, if there is no such matmul.
    fn run(
        &self,
        form: Epilogue,
        d_weight: &mut CudaSliceMut<'_>,
        d_bias: Option<&mut CudaSliceMut<'_>>,
    ) -> Result<bool> {
        let &WeightGradient { gpu, layer, d_y, x, accumulate } = self;
        let shape = self.shape(form, d_weight.dtype());
        if form == Epilogue::BiasGradient {
            let d_bias = d_bias.map(|d_bias| d_bias.as_ref());
            return matmul(gpu, shape, Scales::overwrite(), d_y, x, d_weight.reborrow(), d_bias, None);
        }
        let scales = Scales { alpha: 1.0, beta: if accumulate { 1.0 } else { 0.0 } };
        matmul(gpu, shape, scales, d_y, x, d_weight.reborrow(), None, None)?;
        if let Some(d_bias) = d_bias {
            biases::backward(gpu, d_y, layer.out_features, d_bias, accumulate)?;
        }
        Ok(true)
    }

    /// Time in one form, µs, with the gradients in scratch.
    fn time(
        &self,
        form: Epilogue,
        d_weight: &CudaSliceMut<'_>,
        d_bias: Option<&CudaSliceMut<'_>>,
    ) -> Result<f64> {
        let mut d_weight = Scratch::like(d_weight)?;
        let mut d_bias = d_bias.map(Scratch::like).transpose()?;
        self.gpu.time_us(|| {
            let mut d_bias = d_bias.as_mut().map(Scratch::slice).transpose()?;
            self.run(form, &mut d_weight.slice()?, d_bias.as_mut()).map(|_| ())
        })
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
    let (fused, aux) = match through {
        Some(Through { activation: Activation::Relu, relu_mask: Some(mask), .. }) => {
            (Epilogue::DRelu, Some(mask))
        }
        Some(Through { activation: Activation::GeluTanh, saved, .. }) if saved.dtype() != DType::F64 => {
            (Epilogue::DGelu, Some(saved))
        }
        _ => (Epilogue::None, None),
    };
    let gradient = InputGradient { gpu, layer, d_y, weight, through, aux, accumulate };
    let aux = aux.map_or(0, |aux| aux.ptr());
    let operands = Operands { a: d_y.ptr(), b: weight.ptr(), c: d_x.ptr(), bias: 0, aux };
    let shape = gradient.shape(fused, d_x.dtype());
    // SAFETY: the caller checked that all slices are on this device and of the layer's shape; d_x is exclusive.
    let first = unsafe { gpu.first_form(shape, operands, |form| gradient.time(form, &d_x)) }?;
    for &form in &fused.forms()[first..] {
        if gradient.run(form, &mut d_x)? {
            break;
        }
    }
    Ok(())
}

/// Inputs of [`backward_input`].
#[derive(Clone, Copy)]
struct InputGradient<'a> {
    gpu: &'static Gpu,
    layer: Layer,
    d_y: CudaSlice<'a>,
    weight: CudaSlice<'a>,
    through: Option<Through<'a>>,
    /// Input of a fused derivative.
    aux: Option<CudaSlice<'a>>,
    accumulate: bool,
}

impl InputGradient<'_> {
    fn shape(&self, epilogue: Epilogue, output: DType) -> Matmul {
        Matmul {
            batch: 1,
            m: self.layer.n_rows,
            n: self.layer.in_features,
            k: self.layer.out_features,
            transpose_a: false,
            transpose_b: false,
            inputs: self.d_y.dtype(),
            output,
            mode: self.layer.mode,
            epilogue,
        }
    }

    /// Computes the gradient in one form; returns false, having done nothing, if there is no such matmul.
    fn run(&self, form: Epilogue, d_x: &mut CudaSliceMut<'_>) -> Result<bool> {
        let &InputGradient { gpu, d_y, weight, through, aux, accumulate, .. } = self;
        let scales = Scales { alpha: 1.0, beta: if accumulate { 1.0 } else { 0.0 } };
        let shape = self.shape(form, d_x.dtype());
        if form != Epilogue::None {
            return matmul(gpu, shape, scales, d_y, weight, d_x.reborrow(), None, aux);
        }
        matmul(gpu, shape, scales, d_y, weight, d_x.reborrow(), None, None)?;
        if let Some(through) = through {
            activations::backward(gpu, through.activation, through.saved, d_x)?;
        }
        Ok(true)
    }

    /// Time in one form, µs, with the gradient in scratch.
    fn time(&self, form: Epilogue, d_x: &CudaSliceMut<'_>) -> Result<f64> {
        let mut d_x = Scratch::like(d_x)?;
        self.gpu.time_us(|| self.run(form, &mut d_x.slice()?).map(|_| ()))
    }
}
