//! A learned factor for each column.

use ddp_kernels::{TensorMut, TensorRef, ops};

use crate::model::layer::{Layer, Result};
use crate::model::layer_list::LayerList;
use crate::model::operator::{Operator, OperatorInput};
use crate::model::param::{Init, ParamKind, ParamSpec};
use crate::model::pass::{BackwardPass, ForwardPass};

pub(super) fn add(list: &mut LayerList) {
    let index = list.next_index("scales");
    list.push(Scale::new(index, list.width));
}

/// `y = x · s`, column by column; the factors are f32 in every precision and begin at 1.
///
/// Source: the scaling layer of arXiv:2407.04491.
#[derive(Debug)]
pub struct Scale {
    features: usize,
    params: [ParamSpec; 1],
}

impl Scale {
    /// Scale `index` of a model: `scales.{index}.weight`.
    pub fn new(index: usize, features: usize) -> Self {
        let name = format!("scales.{index}.weight");
        let weight = ParamSpec::new(name, ParamKind::NormWeight, &[features], Init::Constant(1.0));
        Scale { features, params: [weight] }
    }
}

impl Layer for Scale {
    fn describe(&self) -> String {
        "scale".to_owned()
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

    fn keeps_output(&self) -> bool {
        false
    }

    /// The sums over columns and the gradients of rows need two passes on a GPU.
    fn backward_values(&self) -> usize {
        4 * self.features
    }

    fn operators(&self) -> Option<Vec<Operator>> {
        Some(vec![Operator::new("Mul", vec![OperatorInput::X, OperatorInput::Param(0)])])
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        ops::column_scale_forward(x, pass.params.master(0)?, y)
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let grad = pass.grads.take()?;
        ops::column_scale_backward(pass.x, pass.params.master(0)?, d, grad.d, grad.accumulate)
    }
}
