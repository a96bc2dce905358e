//! Elementwise activation that is not fused: after a norm, or after any other layer that can't compute it.

use ddp_kernels::ops::{self, Activation, SavedForBackward};
use ddp_kernels::{TensorMut, TensorRef};

use crate::model::layer::{Layer, LayerKind, Result};
use crate::model::layer_list::LayerList;
use crate::model::pass::{BackwardPass, ForwardPass};

pub(super) fn add(list: &mut LayerList, activation: Activation) {
    list.push(ActivationLayer::new(activation, list.width));
}

/// `y = f(x)`.
#[derive(Debug)]
pub struct ActivationLayer {
    activation: Activation,
    features: usize,
}

impl ActivationLayer {
    /// Makes an `activation` layer for rows of this width.
    pub fn new(activation: Activation, features: usize) -> Self {
        ActivationLayer { activation, features }
    }
}

impl Layer for ActivationLayer {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Activation(self.activation)
    }

    fn describe(&self) -> String {
        self.activation.to_string()
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn keeps_output(&self) -> bool {
        self.activation.saved_for_backward() == SavedForBackward::Output
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        ops::activation_forward(self.activation, x, y)
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        let saved = if self.keeps_output() { pass.y } else { pass.x };
        ops::activation_backward(self.activation, saved, d, None, false)
    }
}
