//! A list of layers under construction. `layers/` adds the layers of a config, `Sequential` adds the layers of a program.

use std::collections::BTreeMap;

use super::layer::Layer;

/// Layers in forward order, each of which fits the width of the rows so far.
///
/// Parameters are named by their family and a number within it: `layers.0.weight` of a linear layer, `norms.0.weight` of a norm.
#[derive(Debug)]
pub(super) struct LayerList {
    pub(super) layers: Vec<Box<dyn Layer>>,
    /// Width of the rows after the layers so far.
    pub(super) width: usize,
    /// Next number of each family.
    indices: BTreeMap<&'static str, usize>,
}

impl LayerList {
    /// No layers yet, for rows of this width.
    pub(super) fn new(width: usize) -> Self {
        LayerList { layers: Vec::new(), width, indices: BTreeMap::new() }
    }

    /// Adds a layer.
    pub(super) fn push(&mut self, layer: impl Layer + 'static) {
        self.width = layer.out_features();
        self.layers.push(Box::new(layer));
    }

    /// The number of the next layer of `family`, from 0.
    pub(super) fn next_index(&mut self, family: &'static str) -> usize {
        let next = self.indices.entry(family).or_default();
        *next += 1;
        *next - 1
    }
}
