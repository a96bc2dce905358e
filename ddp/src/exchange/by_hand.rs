//! The exchange of a training loop without a trainer: one all-reduce of all gradients, after backward.

use ddp_comm::{CommError, ReduceOp, World};

use crate::model::GradientSums;

impl GradientSums {
    /// Adds the sums of the other ranks. Collective, once per step, also on a rank without rows.
    ///
    /// # Errors
    /// The failure of the collective.
    ///
    /// # Panics
    /// On a second call before the step.
    pub fn all_reduce(&mut self, world: &World) -> Result<(), CommError> {
        for sums in self.begin_reduction()? {
            world.tensor_group().all_reduce(ReduceOp::Sum, sums.view_mut())?;
        }
        Ok(())
    }
}
