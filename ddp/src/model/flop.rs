//! Floating-point operations of a model, counted from its layers.

use super::layer::Layer;
use super::layers;
use super::spec::ModelSpec;

impl ModelSpec {
    /// Floating-point operations of the matmuls of one training step on one row, forward and backward.
    pub fn flop_per_row(&self) -> u64 {
        let Flop { forward, backward } = Flop::per_row(&layers::from_spec(self));
        (forward + backward) as u64
    }
}

/// Floating-point operations of matmuls, a multiply-add being 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flop {
    /// Operations of a forward pass: 2 per weight.
    pub forward: usize,
    /// Operations of a backward pass: 2 per weight for its gradient, and 2 for the gradient of the layer's input if a parameter
    /// before the layer requires it.
    pub backward: usize,
}

impl Flop {
    /// The operations of these layers on one row.
    pub fn per_row(layers: &[Box<dyn Layer>]) -> Self {
        let mut flop = Flop { forward: 0, backward: 0 };
        let mut needs_input_gradient = false;
        for layer in layers {
            let one = 2 * layer.matmul_size();
            flop.forward += one;
            flop.backward += if needs_input_gradient { 2 * one } else { one };
            needs_input_gradient |= !layer.parameters().is_empty();
        }
        flop
    }
}
