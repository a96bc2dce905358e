//! A thread per number of the output or of the input; a block per cosine for the gradients of parameters.

use super::{Dims, NumericEmbedding};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Result, TensorMut};

pub(crate) static SOURCE: Source = Source::new("numeric_embedding", include_str!("kernel.cu"));

pub(super) struct Params<'a> {
    frequencies: CudaSlice<'a>,
    phases: CudaSlice<'a>,
    weight: CudaSlice<'a>,
    bias: CudaSlice<'a>,
}

impl<'a> Params<'a> {
    pub(super) fn new(params: NumericEmbedding<'a>) -> Result<Self> {
        Ok(Params {
            frequencies: params.frequencies.cuda()?,
            phases: params.phases.cuda()?,
            weight: params.weight.cuda()?,
            bias: params.bias.cuda()?,
        })
    }

    /// Adds the parameters and their dimensions as arguments.
    fn add(&self, launch: Launch, dims: Dims) -> Launch {
        let launch = launch.read(self.frequencies).read(self.phases).read(self.weight).read(self.bias);
        launch.arg(dims.features).arg(dims.frequencies).arg(dims.outputs)
    }
}

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    y: &mut CudaSliceMut<'_>,
    dims: Dims,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("numeric_embedding_fwd", x.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(y.len(), 1);
    let launch = params.add(launch.read(x), dims).write(y).arg(y.len());
    // SAFETY: fwd(const T* x, const M* frequencies, const M* phases, const M* weight, const M* bias, size_t F, size_t K, size_t E, T* y,
    // size_t n); x, the parameters and y hold what `check_operands` requires, y n elements.
    unsafe { launch.run() }
}

/// Same as `cpu::backward`; the caller checked the operands.
pub(super) fn backward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    d: CudaSlice<'_>,
    grads: [(TensorMut<'_>, bool); 4],
    dims: Dims,
) -> Result<()> {
    let Dims { features, frequencies, outputs } = dims;
    if features == 0 {
        return Ok(());
    }
    let rows = x.len() / features;
    // After the blocks of the cosines one for each bias.
    let kernel = typed_kernel!("numeric_embedding_bwd", x.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(features * (frequencies + outputs));
    let mut launch = params.add(launch.read(x), dims).read(d).arg(rows);
    for (grad, accumulate) in grads {
        launch = launch.write(&mut grad.into_cuda()?).arg(i32::from(accumulate));
    }
    // SAFETY: bwd(const T* x, .. as in `forward`, const T* d, size_t rows, M* d_frequencies, int, M* d_phases, int, M* d_weight, int, M*
    // d_bias, int); the gradients are as long as the parameters.
    unsafe { launch.run() }
}

/// Same as `cpu::backward_input`; the caller checked the operands.
pub(super) fn backward_input(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    d: CudaSlice<'_>,
    d_x: &mut CudaSliceMut<'_>,
    accumulate: bool,
    dims: Dims,
) -> Result<()> {
    if x.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("numeric_embedding_bwd_input", x.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(x.len(), 1);
    let launch = params.add(launch.read(x), dims).read(d).write(d_x).arg(x.len()).arg(i32::from(accumulate));
    // SAFETY: bwd_input(const T* x, .. as in `forward`, const T* d, T* d_x, size_t n, int accumulate); x and d_x hold n elements.
    unsafe { launch.run() }
}
