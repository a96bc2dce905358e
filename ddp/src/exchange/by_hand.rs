//! The exchange of a training loop without a trainer: one all-reduce of all gradients, after backward.

use ddp_comm::{CommError, ReduceOp, World};

use crate::model::GradientSums;

impl GradientSums {
    /// Adds the sums of the other ranks. Collective, once per step, also on a rank without rows.
    ///
    /// In the first step, and then in steps 2, 4, 8 and so on, the ranks compare their models, their weights, and the unit of their gradients.
    ///
    /// # Errors
    /// [`CommError::Disagreement`] if the ranks hold other models, weights or units; [`KernelError::Misuse`](ddp_kernels::KernelError::Misuse) on a
    /// second call before the step, and after the sums were clipped, and
    /// for rows that a loader has divided among another number of ranks; the failure of the collective.
    pub fn all_reduce(&mut self, world: &World) -> Result<(), CommError> {
        let compared = self.held_alike().filter(|_| world.world_size() > 1);
        if let Some(entries) = compared {
            let own = self.weights_before().map_or(Vec::new(), |weights| weights.to_le_bytes().to_vec());
            world.agree(&entries)?;
            let all = world.group().all_gather_bytes(&own)?;
            let known = || all.iter().filter(|weights| !weights.is_empty());
            if known().any(|weights| Some(weights) != known().next()) {
                // A rank without rows in this step agrees with the first that has some.
                let own = if own.is_empty() { known().next().cloned().unwrap_or_default() } else { own };
                let hash: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
                let text = format!("{hash} (a hash of all weights)");
                world.agree(&[("weights before this step".to_owned(), text)])?;
            }
        }
        for sums in self.begin_reduction(world.world_size())? {
            world.tensor_group().all_reduce(ReduceOp::Sum, sums.view_mut())?;
        }
        Ok(())
    }
}
