//! Statistics of batch norms for averaged weights.
//!
//! The running averages that training keeps belong to the weights of its steps. For averaged weights they are computed anew: by forward
//! passes over training rows, as many as it takes for the old averages to fade, at most an epoch. Rows and micro-batches are those of a
//! first epoch, so the statistics depend on neither the number of ranks nor the step.
//!
//! Source: `torch.optim.swa_utils.update_bn`, which takes the mean over an epoch.

use std::sync::Arc;

use crate::config::{Config, Placement};
use crate::data::batch::Batch;
use crate::data::loader::device_feed::DeviceFeed;
use crate::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use crate::data::step_rows::StepRows as _;
use crate::data::{Dataset, Loaded};
use crate::exchange::rank_exchange::RankExchange;
use crate::model::{DropoutStep, Network};
use crate::train::error::{Result, TrainError};
use crate::train::eval_votes::Until;

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
    ///
    /// # Errors
    /// [`TrainError::EvaluationStopped`] on all ranks after a signal to any of them; errors of the rows and the devices.
    pub(super) fn renew(
        &self,
        until: Until<'_>,
        model: &mut Network,
        ranks: &mut RankExchange,
    ) -> Result<()> {
        let world = until.world;
        let options =
            LoaderOptions { device: model.device(), placement: Placement::Host, ..self.loading.clone() };
        let mut loader = DataLoader::new(world, self.rows.clone(), &self.batches, options)?;
        let mut feed = DeviceFeed::new(model.device())?;
        let mut votes = until.votes(self.n_passes);
        for _ in 0..self.n_passes {
            let Some(mut rows) = loader.next_step()? else { break };
            world.watchdog().tick();
            let first_row = rows.partition().first_own_row(rows.global_rows()) as u64;
            let dropout = DropoutStep { seed: self.seed, step: 0, first_row, scalars: None };
            let Batch { x, .. } = feed.next(&mut rows)?;
            ranks.run(world, |ranks| Ok(model.forward_over_ranks(x, Some(dropout), ranks).map(drop)?))?;
            feed.consumed()?;
            if votes.stop_after_batch()? {
                return Err(TrainError::EvaluationStopped);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use ddp_comm::threads;
    use ddp_kernels::{DType, Device, Tensor};

    use super::*;
    use crate::config::precision::Precision;
    use crate::config::{LayerConfig, ModelConfig};
    use crate::data::TensorDataset;
    use crate::model::ModelSpec;
    use crate::train::stop_signals::StopSignals;

    #[test]
    fn a_signal_to_one_rank_stops_the_passes_of_all() {
        let x = Tensor::randn(&[64, 3], DType::F32, Device::Cpu, 1).unwrap();
        let y = Tensor::zeros(&[64, 1], DType::F32, Device::Cpu).unwrap();
        let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x, &y).unwrap());
        for stops in [false, true] {
            threads::run(2, |world| {
                let batch_norm = LayerConfig::BatchNorm { eps: 1e-5, momentum: 0.1 }.once();
                let config = ModelConfig::from_layers(vec![batch_norm], true);
                let mut model =
                    Network::new(ModelSpec::new(&config, 3, 1), 8, Device::Cpu, Precision::F32).unwrap();
                model.initialize(1).unwrap();
                let statistics = StatisticsRows {
                    rows: rows.clone(),
                    batches: BatchPlan {
                        partition: PartitionKind::SharedMicroBatches { n_micro: 1 },
                        n_epochs: Some(1),
                        ..BatchPlan::new(4)
                    },
                    loading: LoaderOptions::new(Device::Cpu),
                    n_passes: 1000,
                    seed: 0,
                };
                let signals = StopSignals::default();
                if stops && world.rank().0 == 1 {
                    signals.last.store(15, Ordering::Relaxed);
                }
                let mut ranks = RankExchange::new(&world, &model).unwrap();
                let until = Until { world: &world, signals: Some(&signals) };
                let renewed = statistics.renew(until, &mut model, &mut ranks);
                assert_eq!(matches!(renewed, Err(TrainError::EvaluationStopped)), stops);
                assert_eq!(renewed.is_ok(), !stops);
            });
        }
    }
}
