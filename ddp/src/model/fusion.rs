//! Passes over the layers that fuse neighbors for which the kernels have a single call. They match on [`Layer::kind`], so a layer
//! of an unknown kind is left unchanged.

use ddp_kernels::Device;

use super::layer::{Layer, LayerKind};
use super::layers::Linear;
use super::linear_spec::LinearSpec;

/// Fuses layers where `device` has fused kernels; the model computes the same function in fewer calls.
pub(crate) fn fuse(layers: Vec<Box<dyn Layer>>, device: Device) -> Vec<Box<dyn Layer>> {
    let mut layers = activations_into_linear(layers);
    derivatives_to_themselves(&mut layers);
    if matches!(device, Device::Cuda(_)) {
        derivatives_into_next(&mut layers);
    }
    layers
}

/// Fuses each activation into the linear layer before it: bias and activation are then applied while the product is in cache.
fn activations_into_linear(layers: Vec<Box<dyn Layer>>) -> Vec<Box<dyn Layer>> {
    let mut fused: Vec<Box<dyn Layer>> = Vec::with_capacity(layers.len());
    for layer in layers {
        let both = (fused.last().map(|before| before.kind()), layer.kind());
        if let (
            Some(LayerKind::Linear(linear @ LinearSpec { activation: None, .. })),
            LayerKind::Activation(f),
        ) = both
        {
            let spec = LinearSpec { activation: Some(f), ..linear.clone() };
            fused.pop();
            fused.push(Box::new(Linear::new(spec)));
        } else {
            fused.push(layer);
        }
    }
    fused
}

/// Undoes [`derivatives_into_next`], for layers that were on a GPU.
fn derivatives_to_themselves(layers: &mut [Box<dyn Layer>]) {
    for layer in layers {
        if let LayerKind::Linear(linear @ LinearSpec { derivative_in_next: true, .. }) = layer.kind() {
            *layer = Box::new(Linear::new(LinearSpec { derivative_in_next: false, ..linear.clone() }));
        }
    }
}

/// Lets the matmul that computes the gradient of a layer's input multiply it by the derivative of the activation before that
/// layer.
fn derivatives_into_next(layers: &mut [Box<dyn Layer>]) {
    for index in 1..layers.len() {
        let both = (layers[index - 1].kind(), layers[index].kind());
        if let (LayerKind::Linear(before @ LinearSpec { activation: Some(_), .. }), LayerKind::Linear(_)) =
            both
        {
            let spec = LinearSpec { derivative_in_next: true, ..before.clone() };
            layers[index - 1] = Box::new(Linear::new(spec));
        }
    }
}
