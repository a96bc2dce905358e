//! One fused matmul of cuBLASLt, or the parts one by one where it has no such epilogue or is slower with it.

use std::ops::Range;

use crate::base::matmul_mode::MatmulMode;
use crate::cuda::blas::{Epilogue, MAX_ALIGNMENT, Matmul, Operands, Scales};
use crate::cuda::{BesideMatmuls, CudaSlice, CudaSliceMut, Gpu, GpuFeature};
use crate::ops::activation::Activation;
use crate::ops::activation::cuda as activations;
use crate::ops::bias::cuda as biases;
use crate::ops::matmul::addmm::matmul;
use crate::ops::matmul::split::Factors;
use crate::{DType, MemoryUse, Result, Tensor};

/// Sizes and precision of a layer's matmuls.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) mode: MatmulMode,
    pub(super) n_rows: usize,
    pub(super) in_features: usize,
    pub(super) out_features: usize,
    /// For the split factors of one matmul at a time; without it all are multiplied as they are.
    pub(super) scratch: Option<CudaSlice<'a>>,
}

impl<'a> Layer<'a> {
    /// The matmul of these factors, without its output and epilogue.
    fn product(&self, [m, n, k]: [usize; 3], [transpose_a, transpose_b]: [bool; 2], inputs: DType) -> Matmul {
        let (mode, output, epilogue) = (self.mode, inputs, Epilogue::None);
        Matmul { batch: 1, m, n, k, transpose_a, transpose_b, inputs, output, mode, epilogue }
    }

    /// `x·weightᵀ`.
    fn outputs(&self, gpu: &'static Gpu, x: CudaSlice<'a>, weight: CudaSlice<'a>) -> Result<Factors<'a>> {
        let sizes = [self.n_rows, self.out_features, self.in_features];
        Factors::of(gpu, self.product(sizes, [false, true], x.dtype()), x, weight, self.scratch)
    }

    /// `d_yᵀ·x`.
    fn weight_gradient(
        &self,
        gpu: &'static Gpu,
        d_y: CudaSlice<'a>,
        x: CudaSlice<'a>,
    ) -> Result<Factors<'a>> {
        let sizes = [self.out_features, self.in_features, self.n_rows];
        Factors::of(gpu, self.product(sizes, [true, false], d_y.dtype()), d_y, x, self.scratch)
    }

    /// `d_y·weight`.
    fn input_gradient(
        &self,
        gpu: &'static Gpu,
        d_y: CudaSlice<'a>,
        weight: CudaSlice<'a>,
    ) -> Result<Factors<'a>> {
        let sizes = [self.n_rows, self.in_features, self.out_features];
        Factors::of(gpu, self.product(sizes, [false, false], d_y.dtype()), d_y, weight, self.scratch)
    }

    /// The layer whose factors stay whole, for the times of its other matmuls while split ones are in the scratch.
    fn whole(self) -> Self {
        Layer { scratch: None, ..self }
    }
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
    layer: Layer<'a>,
    x: CudaSlice<'a>,
    weight: CudaSlice<'a>,
    factors: Factors<'a>,
    bias: Option<CudaSlice<'a>>,
    activation: Option<Activation>,
}

/// Whether the mask was written: its layout is internal to cuBLASLt, so only a fused matmul writes it.
pub(super) fn forward(
    gpu: &'static Gpu,
    layer: Layer<'_>,
    x: CudaSlice<'_>,
    weight: CudaSlice<'_>,
    bias: Option<CudaSlice<'_>>,
    activation: Option<Activation>,
    mut output: Output<'_>,
) -> Result<bool> {
    let factors = layer.outputs(gpu, x, weight)?;
    let input = Input { gpu, layer, x, weight, factors, bias, activation };
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
        Matmul { output, epilogue, ..self.factors.product }
    }

    fn operands(&self, fused: Epilogue, output: &Output<'_>) -> Operands {
        let aux = match fused {
            Epilogue::ReluAuxBias | Epilogue::ReluAux => output.relu_mask.as_ref(),
            Epilogue::GeluAuxBias => output.pre_activation.as_ref(),
            _ => None,
        };
        Operands {
            a: self.factors.a.ptr(),
            b: self.factors.b.ptr(),
            c: output.y.ptr(),
            bias: self.bias.map_or(0, |bias| bias.ptr()),
            aux: aux.map_or(0, |aux| aux.ptr()),
        }
    }

    /// Runs the layer in one form. Returns whether the mask was written; None, having done nothing, if there is no such matmul.
    fn run(&self, form: Epilogue, output: &mut Output<'_>) -> Result<Option<bool>> {
        let &Input { gpu, factors: Factors { a, b, .. }, bias, activation, .. } = self;
        let shape = self.shape(form, output.y.dtype());
        let Output { y, pre_activation, relu_mask } = output;
        if !matches!(form, Epilogue::Bias | Epilogue::None) {
            let (aux, is_masked) = match form {
                Epilogue::ReluAuxBias | Epilogue::ReluAux => (relu_mask.as_ref(), true),
                Epilogue::GeluAuxBias => (pre_activation.as_ref(), false),
                _ => (None, false),
            };
            let aux = aux.map(CudaSliceMut::as_ref);
            let is_done = matmul(gpu, shape, Scales::overwrite(), a, b, y.reborrow(), bias, aux)?;
            return Ok(is_done.then_some(is_masked));
        }
        // The sum goes to `pre_activation` if it is kept, else to y; the activation reads it from there and writes y.
        let sum = pre_activation.as_mut().unwrap_or(y);
        if form == Epilogue::Bias {
            if !matmul(gpu, shape, Scales::overwrite(), a, b, sum.reborrow(), bias, None)? {
                return Ok(None);
            }
        } else {
            matmul(gpu, shape, Scales::overwrite(), a, b, sum.reborrow(), None, None)?;
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

    /// Time of the layer in one form, µs, with its outputs in scratch. Where a mask is wanted, plus the time of the backward pass, which
    /// depends on whether there is one.
    fn time(&self, form: Epilogue, output: &Output<'_>) -> Result<f64> {
        let mut y = Scratch::like(&output.y)?;
        let mut pre_activation = output.pre_activation.as_ref().map(Scratch::like).transpose()?;
        let mut relu_mask = output.relu_mask.as_ref().map(Scratch::like).transpose()?;
        let mut is_masked = false;
        let forward_us = self.gpu.time_us(|| {
            let mut output = Output {
                y: y.slice()?,
                pre_activation: pre_activation.as_mut().map(Scratch::slice).transpose()?,
                relu_mask: relu_mask.as_mut().map(Scratch::slice).transpose()?,
            };
            is_masked = self.run(form, &mut output)?.unwrap_or(false);
            Ok(())
        })?;
        let y = y.slice()?;
        Ok(match output.relu_mask {
            None => forward_us,
            Some(_) if is_masked => forward_us + self.backward_with_mask_us(y.as_ref())?,
            Some(_) => forward_us + self.backward_without_mask_us(y.as_ref())?,
        })
    }

    /// Time of the backward pass through a ReLU whose mask the layer wrote, µs: its derivative may be part of the matmul before it, the
    /// gradient of the bias part of that matmul or of the one for the weight. The former belongs to the layer after this one; the gradient of this layer's
    /// input, as if it came from a ReLU, stands for it. `y` stands for the gradient of the output.
    fn backward_with_mask_us(&self, y: CudaSlice<'_>) -> Result<f64> {
        let &Input { gpu, layer, x, .. } = self;
        let n_mask = super::relu_mask_len(layer.n_rows, layer.in_features);
        let mask = Tensor::zeros_for(MemoryUse::Workspace, &[n_mask], DType::I64, gpu.device())?;
        let mask = Some(mask.view().cuda()?);
        let through = Through { activation: Activation::Relu, saved: x, relu_mask: mask };
        let input = self.input_gradient(y, Some(through), mask)?;
        let mut weight = self.weight_gradient(y)?;
        let mut d_x = Scratch::of(gpu, x.dtype(), x.len())?;
        let input_us =
            fastest_us(gpu, Epilogue::DRelu.forms(), |form| input.run(form, &mut d_x.slice()?, None))?;
        let apart_us = input_us + weight.us(false)?;
        // Without a bias there is no gradient of one to fuse.
        if weight.d_bias.is_none() {
            return Ok(apart_us);
        }
        let mut sums = Scratch::of(gpu, x.dtype(), layer.in_features)?;
        let input_us = fastest_us(gpu, &[Epilogue::DReluBiasGradient], |form| {
            input.run(form, &mut d_x.slice()?, Some(sums.slice()?.as_ref()))
        })?;
        Ok(apart_us.min(input_us + weight.us(true)?))
    }

    /// The same without a mask: one pass computes the derivative and the gradient of the bias, between plain matmuls.
    fn backward_without_mask_us(&self, y: CudaSlice<'_>) -> Result<f64> {
        let &Input { gpu, layer, x, .. } = self;
        let input = self.input_gradient(y, None, None)?;
        let TimedGradient { of, mut d_weight, mut d_bias } = self.weight_gradient(y)?;
        let mut d_x = Scratch::of(gpu, x.dtype(), x.len())?;
        let mut d_y = Scratch::of(gpu, y.dtype(), y.len())?;
        gpu.time_us(|| {
            input.run(Epilogue::None, &mut d_x.slice()?, None)?;
            let mut d_y = d_y.slice()?;
            match &mut d_bias {
                Some(d_bias) => {
                    let mut d_bias = d_bias.slice()?;
                    biases::backward_through_relu(gpu, y, &mut d_y, layer.out_features, &mut d_bias, false)?;
                }
                None => activations::backward(gpu, Activation::Relu, y, &mut d_y)?,
            }
            of.run(Epilogue::None, &mut d_weight.slice()?, None, None).map(|_| ())
        })
    }

    fn input_gradient<'a>(
        &'a self,
        d_y: CudaSlice<'a>,
        through: Option<Through<'a>>,
        aux: Option<CudaSlice<'a>>,
    ) -> Result<InputGradient<'a>> {
        let &Input { gpu, layer, weight, .. } = self;
        let (layer, accumulate) = (layer.whole(), false);
        let factors = layer.input_gradient(gpu, d_y, weight)?;
        Ok(InputGradient { gpu, layer, factors, through, aux, accumulate })
    }

    fn weight_gradient<'a>(&self, d_y: CudaSlice<'a>) -> Result<TimedGradient<'a>>
    where
        Self: 'a,
    {
        let &Input { gpu, layer, x, bias, .. } = self;
        TimedGradient::new(WeightGradient::new(gpu, layer.whole(), d_y, x, false)?, bias.is_some())
    }
}

/// The gradient of a weight, with scratch for it and for the gradient of the bias.
struct TimedGradient<'a> {
    of: WeightGradient<'a>,
    d_weight: Scratch,
    d_bias: Option<Scratch>,
}

impl<'a> TimedGradient<'a> {
    fn new(of: WeightGradient<'a>, has_bias: bool) -> Result<Self> {
        let WeightGradient { gpu, layer, d_y, .. } = of;
        // In short formats it is summed in f32.
        let dtype = if d_y.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let d_bias = has_bias.then(|| Scratch::of(gpu, dtype, layer.out_features)).transpose()?;
        let d_weight = Scratch::of(gpu, dtype, layer.out_features * layer.in_features)?;
        Ok(TimedGradient { of, d_weight, d_bias })
    }

    /// Time of the gradients of weight and bias in their fastest form, µs, or of that of the weight where that of the bias is there and
    /// remains to be passed on, as a sum over one row.
    fn us(&mut self, has_sums: bool) -> Result<f64> {
        let TimedGradient { of, d_weight, d_bias } = self;
        let has_bias = d_bias.is_some();
        let fused = if has_bias && !has_sums { Epilogue::BiasGradient } else { Epilogue::None };
        fastest_us(of.gpu, fused.forms(), |form| {
            let mut d_bias = d_bias.as_mut().map(Scratch::slice).transpose()?;
            let n_sums = of.layer.out_features;
            match d_bias.as_mut().filter(|_| has_sums) {
                Some(d_bias) => {
                    biases::backward(of.gpu, of.d_y.range(0, n_sums), n_sums, d_bias, false)?;
                    of.run(form, &mut d_weight.slice()?, None, None)
                }
                None => of.run(form, &mut d_weight.slice()?, d_bias.as_mut(), None),
            }
        })
    }
}

/// Time of the fastest of these forms, µs; `run` returns false, having done nothing, for one that is not there.
fn fastest_us(
    gpu: &'static Gpu,
    forms: &[Epilogue],
    mut run: impl FnMut(Epilogue) -> Result<bool>,
) -> Result<f64> {
    let mut fastest = f64::INFINITY;
    for &form in forms {
        let mut is_done = false;
        let us = gpu.time_us(|| run(form).map(|done| is_done = done))?;
        if is_done {
            fastest = fastest.min(us);
        }
    }
    Ok(fastest)
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

    /// The same of `len` numbers, aligned as the memory of a tensor is.
    fn of(gpu: &'static Gpu, dtype: DType, len: usize) -> Result<Self> {
        let memory = Tensor::zeros_for(MemoryUse::Workspace, &[len], dtype, gpu.device())?;
        Ok(Scratch { memory, range: 0..len })
    }

    fn slice(&mut self) -> Result<CudaSliceMut<'_>> {
        Ok(self.memory.view_mut().into_cuda()?.range(self.range.start, self.range.end))
    }
}

/// `d_weight = d_yᵀ·x` and `d_bias = Σ_rows d_y`, or `+=`; the matmul beside the compute stream, if so requested.
#[allow(clippy::too_many_arguments)] // Operands, sizes and results.
pub(super) fn backward_weight(
    gpu: &'static Gpu,
    layer: Layer<'_>,
    d_y: CudaSlice<'_>,
    x: CudaSlice<'_>,
    mut d_weight: CudaSliceMut<'_>,
    mut d_bias: Option<CudaSliceMut<'_>>,
    accumulate: bool,
    beside: Option<&BesideMatmuls>,
) -> Result<()> {
    let gradient = WeightGradient::new(gpu, layer, d_y, x, accumulate)?;
    // The fused sum of the rows overwrites its output; it cannot accumulate. Without rows or inputs there is nothing to fuse.
    let can_be_fused = !accumulate && layer.n_rows > 0 && layer.in_features > 0;
    let fused = match &d_bias {
        Some(_) if can_be_fused => Epilogue::BiasGradient,
        _ => Epilogue::None,
    };
    let operands = Operands {
        a: gradient.factors.a.ptr(),
        b: gradient.factors.b.ptr(),
        c: d_weight.ptr(),
        bias: d_bias.as_ref().map_or(0, CudaSliceMut::ptr),
        aux: 0,
    };
    let shape = gradient.shape(fused, d_weight.dtype());
    // SAFETY: the caller checked that all slices are on this device and of the layer's shape; the outputs are exclusive.
    let first =
        unsafe { gpu.first_form(shape, operands, |form| gradient.time(form, &d_weight, d_bias.as_ref())) }?;
    for &form in &fused.forms()[first..] {
        if gradient.run(form, &mut d_weight, d_bias.as_mut(), beside)? {
            break;
        }
    }
    Ok(())
}

/// Inputs of [`backward_weight`].
#[derive(Clone, Copy)]
struct WeightGradient<'a> {
    gpu: &'static Gpu,
    layer: Layer<'a>,
    d_y: CudaSlice<'a>,
    factors: Factors<'a>,
    accumulate: bool,
}

impl<'a> WeightGradient<'a> {
    fn new(
        gpu: &'static Gpu,
        layer: Layer<'a>,
        d_y: CudaSlice<'a>,
        x: CudaSlice<'a>,
        accumulate: bool,
    ) -> Result<Self> {
        Ok(WeightGradient { gpu, layer, d_y, factors: layer.weight_gradient(gpu, d_y, x)?, accumulate })
    }

    fn shape(&self, epilogue: Epilogue, output: DType) -> Matmul {
        Matmul { output, epilogue, ..self.factors.product }
    }

    /// Computes the gradients in one form; returns false, having done nothing, if there is no such matmul.
    fn run(
        &self,
        form: Epilogue,
        d_weight: &mut CudaSliceMut<'_>,
        d_bias: Option<&mut CudaSliceMut<'_>>,
        beside: Option<&BesideMatmuls>,
    ) -> Result<bool> {
        let &WeightGradient { gpu, layer, d_y, factors, accumulate } = self;
        let shape = self.shape(form, d_weight.dtype());
        let fuses = form == Epilogue::BiasGradient;
        let fused = d_bias.as_ref().filter(|_| fuses).map(|d_bias| d_bias.as_ref());
        let scales = Scales { alpha: 1.0, beta: if accumulate { 1.0 } else { 0.0 } };
        let Factors { a, b, .. } = factors;
        let mut multiply = || matmul(gpu, shape, scales, a, b, d_weight.reborrow(), fused, None);
        // The next matmul on the compute stream takes the scratch of split factors.
        let is_done = match beside.filter(|_| shape.k > 0 && !factors.are_split()) {
            Some(beside) => beside.matmul(&mut multiply)?,
            None => multiply()?,
        };
        if fuses {
            return Ok(is_done);
        }
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
            self.run(form, &mut d_weight.slice()?, d_bias.as_mut(), None).map(|_| ())
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

/// `d_x = d_y·weight`, or `+=`, times the derivative of the activation that computed x, if any. Returns whether `d_bias` received the
/// sums of its columns: where it was measured that this is faster than to sum them later.
#[allow(clippy::too_many_arguments)] // Operands, sizes and results.
pub(super) fn backward_input(
    gpu: &'static Gpu,
    layer: Layer<'_>,
    d_y: CudaSlice<'_>,
    weight: CudaSlice<'_>,
    mut d_x: CudaSliceMut<'_>,
    through: Option<Through<'_>>,
    d_bias: Option<CudaSliceMut<'_>>,
    accumulate: bool,
) -> Result<bool> {
    let (fused, aux) = match through {
        Some(Through { activation: Activation::Relu, relu_mask: Some(mask), .. }) => {
            (Epilogue::DRelu, Some(mask))
        }
        Some(Through { activation: Activation::GeluTanh, saved, .. }) if saved.dtype() != DType::F64 => {
            (Epilogue::DGelu, Some(saved))
        }
        _ => (Epilogue::None, None),
    };
    // What is not timed is as it would be without.
    let d_bias = d_bias.filter(|_| !gpu.is_deterministic() && gpu.uses(GpuFeature::TimedMatmuls));
    let fused = match (fused, &d_bias) {
        (Epilogue::DRelu, Some(_)) => Epilogue::DReluBiasGradient,
        (Epilogue::DGelu, Some(_)) => Epilogue::DGeluBiasGradient,
        _ => fused,
    };
    let factors = layer.input_gradient(gpu, d_y, weight)?;
    let gradient = InputGradient { gpu, layer, factors, through, aux, accumulate };
    let (aux, bias) = (aux.map_or(0, |aux| aux.ptr()), d_bias.as_ref().map_or(0, CudaSliceMut::ptr));
    let operands = Operands { a: factors.a.ptr(), b: factors.b.ptr(), c: d_x.ptr(), bias, aux };
    let shape = gradient.shape(fused, d_x.dtype());
    // SAFETY: the caller checked that all slices are on this device and of the layer's shape; d_x and d_bias are exclusive.
    let first =
        unsafe { gpu.first_form(shape, operands, |form| gradient.time(form, &d_x, d_bias.as_ref())) }?;
    for &form in &fused.forms()[first..] {
        if gradient.run(form, &mut d_x, d_bias.as_ref().map(CudaSliceMut::as_ref))? {
            return Ok(matches!(form, Epilogue::DReluBiasGradient | Epilogue::DGeluBiasGradient));
        }
    }
    Ok(false)
}

/// Inputs of [`backward_input`].
#[derive(Clone, Copy)]
struct InputGradient<'a> {
    gpu: &'static Gpu,
    layer: Layer<'a>,
    factors: Factors<'a>,
    through: Option<Through<'a>>,
    /// Input of a fused derivative.
    aux: Option<CudaSlice<'a>>,
    accumulate: bool,
}

impl InputGradient<'_> {
    fn shape(&self, epilogue: Epilogue, output: DType) -> Matmul {
        Matmul { output, epilogue, ..self.factors.product }
    }

    /// Computes the gradient in one form, and in some the sums of its columns in `d_bias`; returns false, having done nothing, if there is
    /// no such matmul.
    fn run(&self, form: Epilogue, d_x: &mut CudaSliceMut<'_>, d_bias: Option<CudaSlice<'_>>) -> Result<bool> {
        let &InputGradient { gpu, factors: Factors { a, b, .. }, through, aux, accumulate, .. } = self;
        let scales = Scales { alpha: 1.0, beta: if accumulate { 1.0 } else { 0.0 } };
        let shape = self.shape(form, d_x.dtype());
        if form != Epilogue::None {
            let d_bias = d_bias.filter(|_| form.takes_bias());
            return matmul(gpu, shape, scales, a, b, d_x.reborrow(), d_bias, aux);
        }
        matmul(gpu, shape, scales, a, b, d_x.reborrow(), None, None)?;
        if let Some(through) = through {
            activations::backward(gpu, through.activation, through.saved, d_x)?;
        }
        Ok(true)
    }

    /// Time in one form, µs, with the gradient in scratch. Where sums of its columns are wanted, plus the time of the gradients of the layer
    /// before, which depends on whether they are there: of a layer as wide as its output, since its input is not at hand.
    fn time(&self, form: Epilogue, d_x: &CudaSliceMut<'_>, d_bias: Option<&CudaSliceMut<'_>>) -> Result<f64> {
        let &InputGradient { gpu, layer, through, .. } = self;
        let mut d_x = Scratch::like(d_x)?;
        let mut sums = d_bias.map(Scratch::like).transpose()?;
        let us = gpu.time_us(|| {
            let sums = sums.as_mut().map(Scratch::slice).transpose()?;
            self.run(form, &mut d_x.slice()?, sums.as_ref().map(CudaSliceMut::as_ref)).map(|_| ())
        })?;
        let (Some(Through { saved, .. }), Some(_)) = (through, d_bias) else { return Ok(us) };
        let before = Layer { out_features: layer.in_features, ..layer.whole() };
        let d_y = d_x.slice()?;
        let gradient = WeightGradient::new(gpu, before, d_y.as_ref(), saved, false)?;
        Ok(us + TimedGradient::new(gradient, true)?.us(form.takes_bias())?)
    }
}
