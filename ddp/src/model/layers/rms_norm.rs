//! Root mean square normalization.

use ddp_kernels::ops::{self, RmsNormGrads};
use ddp_kernels::{TensorMut, TensorRef};

use crate::model::layer::{BufferSpec, Layer, Result, Sizes};
use crate::model::layer_list::LayerList;
use crate::model::operator::{Operator, OperatorInput};
use crate::model::param::{Init, ParamKind, ParamSpec};
use crate::model::pass::{BackwardPass, ForwardPass};

/// Constant added to the mean of the squares.
const EPS: f64 = 1e-6;

pub(super) fn add(list: &mut LayerList) {
    let index = list.next_index("norms");
    list.push(RmsNorm::new(index, list.width));
}

/// Divides each row by its root mean square, then scales it; the scale is f32 in every precision.
///
/// Source: arXiv:1910.07467; the same as `torch.nn.RMSNorm` with `eps = 1e-6`.
#[derive(Debug)]
pub struct RmsNorm {
    features: usize,
    params: [ParamSpec; 1],
}

impl RmsNorm {
    /// Norm `index` of a model: `norms.{index}.weight`.
    pub fn new(index: usize, features: usize) -> Self {
        let name = format!("norms.{index}.weight");
        let weight = ParamSpec::new(name, ParamKind::NormWeight, &[features], Init::Constant(1.0));
        RmsNorm { features, params: [weight] }
    }
}

impl Layer for RmsNorm {
    fn describe(&self) -> String {
        "rms norm".to_owned()
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn is_capturable(&self) -> bool {
        true
    }

    /// `1 / root mean square` of each row.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        vec![BufferSpec::activations(&[sizes.max_rows], sizes.precision.master())]
    }

    fn keeps_output(&self) -> bool {
        false
    }

    /// The sums over columns and the gradients of rows need two passes.
    fn backward_values(&self) -> usize {
        5 * self.features
    }

    fn operators(&self) -> Option<Vec<Operator>> {
        use OperatorInput::{Float, Ints, Param, Result, X};
        Some(vec![
            Operator::new("Mul", vec![X, X]),
            Operator::new("ReduceMean", vec![Result(0), Ints(vec![-1])]),
            Operator::new("Add", vec![Result(1), Float(EPS as f32)]),
            Operator::new("Sqrt", vec![Result(2)]),
            Operator::new("Div", vec![X, Result(3)]),
            Operator::new("Mul", vec![Result(4), Param(0)]),
        ])
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let (n_rows, _) = x.shape().rows_cols();
        let [rstd] = pass.buffers else { unreachable!("as declared") };
        ops::rms_norm_forward(x, pass.params.master(0)?, EPS, y, rstd.view_mut().rows(0, n_rows)?)
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let (n_rows, _) = pass.x.shape().rows_cols();
        let [rstd] = pass.buffers else { unreachable!("as declared") };
        let gamma = pass.grads.take()?;
        let grads = RmsNormGrads { d, d_gamma: gamma.d };
        let rstd = rstd.view().rows(0, n_rows)?;
        ops::rms_norm_backward(pass.x, pass.params.master(0)?, rstd, grads, gamma.accumulate)
    }
}
