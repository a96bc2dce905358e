//! Layer normalization.

use ddp_kernels::ops::{self, LayerNormGrads, LayerNormStats};
use ddp_kernels::{TensorMut, TensorRef};

use crate::model::layer::{BufferSpec, Layer, LayerKind, Result, Sizes};
use crate::model::layer_list::LayerList;
use crate::model::param::{Init, ParamKind, ParamSpec};
use crate::model::pass::{BackwardPass, ForwardPass};

/// `eps` of PyTorch's `nn.LayerNorm`.
const EPS: f64 = 1e-5;

pub(super) fn add(list: &mut LayerList) {
    let index = list.next_index("norms");
    list.push(LayerNorm::new(index, list.width));
}

/// Normalizes each row, then scales and shifts it; scale and shift are f32 in every precision.
///
/// Source: arXiv:1607.06450; the same as `torch.nn.LayerNorm`.
#[derive(Debug)]
pub struct LayerNorm {
    features: usize,
    params: [ParamSpec; 2],
}

impl LayerNorm {
    /// Makes the norm after linear layer `layer`: `norms.{layer}.weight` and `norms.{layer}.bias`.
    pub fn new(layer: usize, features: usize) -> Self {
        let param = |name: &str, kind, value| {
            ParamSpec::new(format!("norms.{layer}.{name}"), kind, &[features], Init::Constant(value))
        };
        let params = [param("weight", ParamKind::NormWeight, 1.0), param("bias", ParamKind::NormBias, 0.0)];
        LayerNorm { features, params }
    }
}

impl Layer for LayerNorm {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::LayerNorm { eps: EPS }
    }

    fn describe(&self) -> String {
        "layer norm".to_owned()
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Mean and `1 / deviation` of each row.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        let per_row = BufferSpec::activations(&[sizes.max_rows], sizes.precision.master());
        vec![per_row.clone(), per_row]
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let (n_rows, _) = x.shape().rows_cols();
        let [mean, rstd] = pass.buffers else { unreachable!("as declared") };
        let (mean, rstd) = (mean.view_mut().rows(0, n_rows)?, rstd.view_mut().rows(0, n_rows)?);
        let (gamma, beta) = (pass.params.master(0)?, pass.params.master(1)?);
        ops::layer_norm_forward(x, gamma, beta, EPS, y, LayerNormStats { mean, rstd })
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let (n_rows, _) = pass.x.shape().rows_cols();
        let [mean, rstd] = pass.buffers else { unreachable!("as declared") };
        let (mean, rstd) = (mean.view().rows(0, n_rows)?, rstd.view().rows(0, n_rows)?);
        let (gamma, beta) = (pass.grads.take()?, pass.grads.take()?);
        let grads = LayerNormGrads { d, d_gamma: gamma.d, d_beta: beta.d };
        ops::layer_norm_backward(pass.x, pass.params.master(0)?, mean, rstd, grads, gamma.accumulate)
    }
}
