//! Statistics of batch norms for averaged weights.
//!
//! The running averages that training keeps belong to the weights of its steps. For averaged weights they are computed anew: by forward
//! passes over training rows, as many as it takes for the old averages to fade, at most an epoch. Rows and micro-batches are those of a
//! first epoch, so the statistics depend on neither the number of ranks nor the step.
//!
//! Source: `torch.optim.swa_utils.update_bn`, which takes the mean over an epoch.

use std::sync::Arc;

use ddp_comm::World;

use crate::config::{Config, Placement};
use crate::data::batch::Batch;
use crate::data::loader::device_feed::DeviceFeed;
use crate::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use crate::data::step_rows::StepRows as _;
use crate::data::{Dataset, Loaded};
use crate::exchange::rank_exchange::RankExchange;
use crate::model::{DropoutStep, Network};
use crate::train::error::Result;

/// Share of the old averages that remains at most, unless an epoch ends before.
const LEFT: f64 = 1e-3;
/// Passes at most, whatever the momentum.
const MAX_PASSES: f64 = 1000.0;

/// Training rows from which the statistics of averaged weights are computed.
#[derive(Debug, Clone)]
pub struct StatisticsRows {
    rows: Arc<dyn Dataset>,
    batches: BatchPlan,
    loading: LoaderOptions,
    n_passes: usize,
    seed: u64,
}

impl StatisticsRows {
    /// The rows of a run of `config` in micro-batches of `micro_rows` rows over all ranks; None where no average of weights is kept, no
    /// layer has such statistics, or they are to stay as they are.
    pub fn new(config: &Config, data: &Loaded, micro_rows: usize, loading: &LoaderOptions) -> Option<Self> {
        let momentum = config.model.least_momentum()?;
        if config.optimizer.ema_decay == 0.0 || !config.train.ema_statistics {
            return None;
        }
        let (rows, seed) = (data.train.clone(), config.train.seed);
        let shuffle = Shuffle::new(&config.data, &*rows);
        let batches = BatchPlan {
            partition: PartitionKind::SharedMicroBatches { n_micro: 1 },
            shuffle,
            seed,
            n_epochs: Some(1),
            ..BatchPlan::new(micro_rows)
        };
        let n_passes = (LEFT.ln() / (1.0 - momentum).ln()).clamp(1.0, MAX_PASSES).ceil() as usize;
        Some(StatisticsRows { rows, batches, loading: loading.clone(), n_passes, seed })
    }

    /// Computes the statistics of the model's present weights. Collective.
    pub(super) fn renew(&self, world: &World, model: &mut Network, ranks: &mut RankExchange) -> Result<()> {
        let options =
            LoaderOptions { device: model.device(), placement: Placement::Host, ..self.loading.clone() };
        let mut loader = DataLoader::new(world, self.rows.clone(), &self.batches, options)?;
        let mut feed = DeviceFeed::new(model.device())?;
        for _ in 0..self.n_passes {
            let Some(mut rows) = loader.next_step()? else { break };
            world.watchdog().tick();
            let first_row = rows.partition().first_own_row(rows.global_rows()) as u64;
            let dropout = DropoutStep { seed: self.seed, step: 0, first_row, scalars: None };
            let Batch { x, .. } = feed.next(&mut rows)?;
            ranks.run(world, |ranks| Ok(model.forward_over_ranks(x, Some(dropout), ranks).map(drop)?))?;
            feed.consumed()?;
        }
        Ok(())
    }
}
