//! Dropout in place, with masks that depend only on seed, step, layer and global row.

use ddp_kernels::{TensorMut, TensorRef, ops};

use crate::model::layer::{Layer, LayerKind, Result};
use crate::model::layer_list::LayerList;
use crate::model::pass::{BackwardPass, ForwardPass};

pub(super) fn add(list: &mut LayerList, p: f64) {
    let index = list.next_index("dropouts");
    list.push(Dropout::new(index, p, list.width));
}

/// In training, drops each value with probability `p` and divides the others by `1 - p`.
#[derive(Debug)]
pub struct Dropout {
    layer: u16,
    p: f64,
    features: usize,
}

impl Dropout {
    /// Makes dropout after linear layer `layer`, whose index is part of the masks' key.
    pub fn new(layer: usize, p: f64, features: usize) -> Self {
        Dropout { layer: layer as u16, p, features }
    }
}

impl Layer for Dropout {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Dropout
    }

    fn describe(&self) -> String {
        format!("dropout {}", self.p)
    }

    fn out_features(&self) -> usize {
        self.features
    }

    fn can_overwrite_input(&self) -> bool {
        true
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, mut y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        ops::copy(x, y.reborrow())?;
        self.forward_in_place(y, pass)
    }

    fn forward_in_place(&mut self, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        pass.dropout.map_or(Ok(()), |step| step.apply(y, self.p, self.layer))
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        pass.dropout.map_or(Ok(()), |step| step.apply(d, self.p, self.layer))
    }
}
