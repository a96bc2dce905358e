//! A list of layers under construction. `layers/` adds the layers of a config; `Sequential` adds layers that a program chooses.

use std::collections::BTreeMap;

use super::layer::Layer;

/// Layers in forward order; each fits the width of the rows after the previous one.
///
/// Parameters are named by their family and an index within it: `layers.0.weight` for a linear layer, `norms.0.weight` for a
/// norm.
#[derive(Debug)]
pub(super) struct LayerList {
    pub(super) layers: Vec<Box<dyn Layer>>,
    /// Width of the rows after the layers so far.
    pub(super) width: usize,
    /// Next index of each family.
    indices: BTreeMap<&'static str, usize>,
}

impl LayerList {
    /// An empty list for rows of this width.
    pub(super) fn new(width: usize) -> Self {
        LayerList { layers: Vec::new(), width, indices: BTreeMap::new() }
    }

    /// Adds a layer.
    pub(super) fn push(&mut self, layer: impl Layer + 'static) {
        self.width = layer.out_features();
        self.layers.push(Box::new(layer));
    }

    /// The index of the next layer of `family`, from 0.
    pub(super) fn next_index(&mut self, family: &'static str) -> usize {
        let next = self.indices.entry(family).or_default();
        *next += 1;
        *next - 1
    }
}
