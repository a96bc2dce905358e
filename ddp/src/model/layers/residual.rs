//! Both ends of a residual (skip) connection, which adds the input of some layers to their output.
//!
//! The gradient flows back along both paths: the end copies it to the shortcut's buffer, and the start adds that buffer to the
//! gradient of the layers in between. If the first of these is linear, its matmul adds to the shortcut's buffer directly, and the
//! start does nothing.

use ddp_kernels::{TensorMut, TensorRef, ops};

use crate::config::LayerEntry;
use crate::model::layer::{Layer, LayerKind, Result};
use crate::model::layer_list::LayerList;
use crate::model::pass::{BackwardPass, ForwardPass};

pub(super) fn add(list: &mut LayerList, layers: Vec<LayerEntry>) {
    list.push(SkipBegin::new(list.width));
    list.add_entries(&layers);
    list.push(SkipEnd::new(list.width));
}

/// Start of a skip connection: passes its input through unchanged.
#[derive(Debug)]
pub struct SkipBegin {
    features: usize,
}

/// End of the innermost open skip connection: `y = x + value at its start`.
#[derive(Debug)]
pub struct SkipEnd {
    features: usize,
}

impl SkipBegin {
    /// Makes the start for rows of this width.
    pub fn new(features: usize) -> Self {
        SkipBegin { features }
    }
}

impl SkipEnd {
    /// Makes the end for rows of this width, which must equal the width at the start.
    pub fn new(features: usize) -> Self {
        SkipEnd { features }
    }
}

impl Layer for SkipBegin {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::SkipBegin
    }

    fn describe(&self) -> String {
        "skip begins".to_owned()
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

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        ops::copy(x, y)
    }

    fn forward_in_place(&mut self, _y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        pass.skip.map_or(Ok(()), |skip| ops::add_assign(d, skip.as_ref()))
    }
}

impl Layer for SkipEnd {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::SkipEnd
    }

    fn describe(&self) -> String {
        "plus the value where the skip began".to_owned()
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
        ops::add_assign(y, pass.skip.expect("the plan pairs both ends"))
    }

    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        pass.skip.map_or(Ok(()), |skip| ops::copy(d.as_ref(), skip))
    }
}
