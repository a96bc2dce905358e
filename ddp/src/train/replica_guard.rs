//! Compares the ranks' replicas every so many steps, and acts on a difference as the config says.
//!
//! A replica changes alone by a fault of memory or device, or by a program error: the data-parallel law does not hold from then on,
//! and nothing else would show it.
//!
//! ```
//! use ddp::config::Config;
//! use ddp::train::replica_guard::ReplicaGuard;
//!
//! let config = Config::load(None, &["train.replica_check_steps=100".to_owned()])?;
//! ddp::launch(2, |world| -> ddp::Result<()> {
//!     let guard = ReplicaGuard::new(world, &config.train);
//!     assert!(guard.is_due(200) && !guard.is_due(250));
//!     Ok(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use ddp_comm::{Phase, World};
use tracing::debug;

use crate::config::{OnReplicaDifference, TrainConfig};
use crate::report::notes::warn_of_all_ranks;
use crate::train::error::{Result, TrainError};
use crate::train::trainer::Trainer;

/// The check of a run's replicas.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaGuard {
    /// Steps between two checks; 0 for none.
    every_steps: u64,
    on_difference: OnReplicaDifference,
}

impl ReplicaGuard {
    /// The check that the config of a run on `world` asks for: none on a single rank.
    pub fn new(world: &World, config: &TrainConfig) -> Self {
        let every_steps = if world.world_size() > 1 { config.replica_check_steps } else { 0 };
        ReplicaGuard { every_steps, on_difference: config.on_replica_difference }
    }

    /// Whether the replicas are compared after this many steps.
    pub fn is_due(&self, n_steps: u64) -> bool {
        self.every_steps > 0 && n_steps > 0 && n_steps.is_multiple_of(self.every_steps)
    }

    /// Compares the replicas, and repairs them if that is requested. Collective; no step may be in flight whose outcome is unread.
    ///
    /// # Errors
    /// On all ranks alike [`TrainError::ReplicasDiffer`], or [`TrainError::NoMajority`] if they cannot be repaired; the errors of
    /// [`Trainer::compare_replicas`].
    pub fn check(&self, world: &World, trainer: &mut Trainer<'_>) -> Result<()> {
        let _phase = world.watchdog().during(Phase::ReplicaCheck);
        let step = trainer.n_steps();
        let Some(differences) = trainer.compare_replicas()? else {
            debug!(step, "all ranks hold the same bits");
            return Ok(());
        };
        let last_check = step - self.every_steps;
        match self.on_difference {
            OnReplicaDifference::Stop => {
                Err(TrainError::ReplicasDiffer { step, last_check, differences: Box::new(differences) })
            }
            OnReplicaDifference::Repair if !differences.have_majority() => {
                Err(TrainError::NoMajority { step, differences: Box::new(differences) })
            }
            OnReplicaDifference::Repair => {
                trainer.repair_replicas(&differences)?;
                let warning = format!(
                    "the ranks held different bits after step {step}, and were repaired from the majority:\n  {differences}\n\
                     hint: if it is the same rank again, check the memory and the device of its host"
                );
                warn_of_all_ranks(world.rank().0, &warning);
                Ok(())
            }
        }
    }
}
