//! The first of two passes, and the results that its caller then completes over whole parameters.

use std::ops::Range;

use ddp_kernels::ops::{self, FirstPassTensors, NewtonSchulzMemory};
use ddp_kernels::{KernelError, Tensor, TensorMut, TensorRef};

use super::{Optimizer, slice};
use crate::optim::param_groups::WholeParameter;
use crate::optim::update_scale::UpdateScale;

impl Optimizer {
    /// LAMB's sums of squares, two for each whole parameter, to be added up over the ranks that hold shards of it.
    pub(crate) fn partial_norms(&mut self) -> Option<&mut Tensor> {
        self.norms.as_mut().filter(|_| self.workspace.is_none())
    }

    /// The directions of Muon's matrices, in the layout of the state.
    pub(crate) fn directions(&mut self) -> Option<&mut Tensor> {
        let is_used = self.workspace.is_some();
        self.state.iter_mut().find(|(name, _)| *name == "v" && is_used).map(|(_, tensor)| tensor)
    }

    /// Orthogonalizes the direction of the matrix `whole`: in `directions`, which holds all of its elements, or in the state if
    /// `directions` is `None`.
    pub(crate) fn orthogonalize(
        &mut self,
        whole: usize,
        directions: Option<TensorMut<'_>>,
    ) -> Result<(), KernelError> {
        let WholeParameter { range, matrix, .. } = &self.groups.whole()[whole];
        let (Some(dims), Some(workspace), Some(norms)) = (matrix, &mut self.workspace, &mut self.norms)
        else {
            return Ok(());
        };
        let own = self.state.iter_mut().find(|(name, _)| *name == "v");
        let directions = match (directions, own) {
            (Some(directions), _) => directions,
            (None, Some((_, own))) => slice(own.view_mut(), range)?,
            (None, None) => return Ok(()),
        };
        let memory = NewtonSchulzMemory { workspace: workspace.view_mut(), norm: norms.view_mut() };
        ops::orthogonalize(directions.reshape(dims)?, memory)
    }

    /// Clears the sums that [`Optimizer::first_pass`] adds to.
    pub(crate) fn begin_first_pass(&mut self) -> Result<(), KernelError> {
        self.first_passed = self.n_steps;
        let zeros = ops::Pattern::Line { start: 0.0, step: 0.0 };
        self.partial_norms().map_or(Ok(()), |norms| ops::fill(norms.view_mut(), zeros))
    }

    /// Runs the first pass of the current step over a range of the flat buffers: updates the moments or the momentum of whole
    /// parameters.
    ///
    /// - `weights`, `grads`: master weights and gradients of exactly `range`
    /// - `state_start`: start of the state of `range` in the state tensors
    ///
    /// # Errors
    /// Same as [`Optimizer::step_on`].
    pub(crate) fn first_pass(
        &mut self,
        weights: TensorRef<'_>,
        grads: TensorRef<'_>,
        scale: UpdateScale<'_>,
        range: Range<usize>,
        state_start: usize,
    ) -> Result<(), KernelError> {
        for (part, segment) in self.groups.within(range.clone()) {
            let Some(whole) = segment.whole else { continue };
            let numbers = self.numbers(&segment, scale)?;
            let at = part.start - range.start..part.end - range.start;
            let state_range = state_start + at.start..state_start + at.end;
            let [(_, m), (_, v)] = &mut self.state[..] else { continue };
            let norms = self.norms.as_mut().filter(|_| self.workspace.is_none());
            let norms = norms.map(|norms| slice(norms.view_mut(), &(2 * whole..2 * whole + 2)));
            let tensors = FirstPassTensors {
                master_weights: weights.range(at.start, at.end)?,
                grads: grads.range(at.start, at.end)?,
                state: [slice(m.view_mut(), &state_range)?, slice(v.view_mut(), &state_range)?],
                norms: norms.transpose()?,
                accumulate: true,
            };
            ops::optimizer_first_pass(self.config.kind, &numbers.params, tensors, numbers.inputs.as_ref())?;
        }
        Ok(())
    }
}
