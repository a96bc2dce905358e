//! Conversion of the model's f32 input to the format of activations, before all other layers.

use ddp_kernels::{TensorMut, TensorRef, ops};

use crate::model::layer::{Layer, LayerKind, Result};
use crate::model::pass::{BackwardPass, ForwardPass};

/// `y = x` in the format of activations. It is the first layer: its backward pass, which only `Network::input_gradient` has, leaves the gradient as it is.
#[derive(Debug)]
pub struct Cast {
    features: usize,
}

impl Cast {
    /// Makes the conversion for rows of this width.
    pub fn new(features: usize) -> Self {
        Cast { features }
    }
}

impl Layer for Cast {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Cast
    }

    fn describe(&self) -> String {
        "cast".to_owned()
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        ops::cast(x, y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }
}
