//! Builds the partition, model, trainer and loader of a run from its config.
//!
//! ```
//! use ddp::config::Config;
//! use ddp::train::setup;
//!
//! let sets = ["train.epochs=2", "optimizer.lr=0.5", "schedule.kind=linear"].map(str::to_owned);
//! let config = Config::load(None, &sets)?;
//! // Two epochs of 5 steps.
//! let schedule = setup::schedule(&config, 50, 10)?;
//! assert_eq!([0, 5, 10].map(|step| schedule.lr(step)), [0.5, 0.25, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use ddp_comm::{Rank, World};
use ddp_kernels::cpu::threads;
use ddp_kernels::{DType, Device};

use crate::checkpoint::RunState;
use crate::config::precision::Precision;
use crate::config::{BadStep, Batch, Config, Determinism, Length, TrainConfig};
use crate::data::Loaded;
use crate::data::datasets::dataset::usual_weight;
use crate::data::loader::{BatchPlan, DataLoader, LoaderOptions, Shuffle};
use crate::data::order::partition::{EvalPartition, GlobalBatches, PartitionKind, RankPartition};
use crate::model::file::ModelFile;
use crate::model::{BufferPlan, LossHead, ModelSpec, Network};
use crate::optim::loss_scaler::LossScalerConfig;
use crate::optim::optimizer::Optimizer;
use crate::optim::param_groups::ParamGroups;
use crate::optim::run_schedule::RunSchedule;
use crate::train::error::{Result, TrainError};
use crate::train::trainer::{GraphMode, NonFinite, Trainer, TrainerOptions};

/// Rows of an evaluation batch, where training's micro-batches are smaller.
const EVAL_ROWS: usize = 256;

/// Partition of a run's rows over steps, ranks and micro-batches.
#[derive(Debug, Clone, Copy)]
pub struct BatchPartition {
    /// Rows of a step over all ranks.
    pub global_rows: usize,
    /// Partition of a training step.
    pub train: RankPartition,
    /// Partition of an evaluation.
    pub eval: EvalPartition,
    /// Rows of the largest batch that the model must hold.
    pub max_rows: usize,
}

impl BatchPartition {
    /// Creates the partition that `config` describes. A resumed run keeps its `global_rows`; where the config names the rows of a
    /// rank, it takes as many micro-batches of that size as another number of ranks needs.
    ///
    /// # Errors
    /// [`TrainError::BatchOverflows`]; [`TrainError::MoreRanksThanShards`] where a rank would have no rows in any step.
    pub fn new(config: &Config, world: &World, data: &Loaded, global_rows: Option<usize>) -> Result<Self> {
        Self::for_rank(config, world.rank(), world.world_size(), data, global_rows)
    }

    /// [`BatchPartition::new`] as seen by rank `rank` of `world_size`, which need not be running.
    ///
    /// # Errors
    /// See [`BatchPartition::new`].
    pub fn for_rank(
        config: &Config,
        rank: Rank,
        world_size: usize,
        data: &Loaded,
        global_rows: Option<usize>,
    ) -> Result<Self> {
        let train = &config.train;
        let n_micro = n_micro_batches(train, world_size, global_rows);
        let global_rows = match global_rows {
            Some(rows) => rows,
            None => train.global_rows(world_size).ok_or(TrainError::BatchOverflows)?,
        };
        let n_eval = data.eval.as_ref().map_or(0, |eval| eval.len());
        let (kind, n_parts) = match train.deterministic {
            Determinism::World => {
                let n_shards = train.micro_shards;
                if world_size > n_shards {
                    return Err(TrainError::MoreRanksThanShards { world_size, n_shards });
                }
                (PartitionKind::MicroShards { n_shards }, n_shards)
            }
            Determinism::Off | Determinism::On if config.model.mixes_rows() => {
                (PartitionKind::SharedMicroBatches { n_micro }, world_size)
            }
            Determinism::Off | Determinism::On => (PartitionKind::Ranks { n_micro }, world_size),
        };
        let partition = RankPartition { kind, rank: rank.0, world_size };
        let step_rows = global_rows.min(data.train.len());
        // The last step of an epoch may have a single row: it takes the running averages.
        if config.model.mixes_rows() && step_rows == 1 {
            return Err(TrainError::OneRow);
        }
        let largest_step = partition.max_micro_batch_rows(step_rows);
        let eval_rows = n_eval.div_ceil(n_parts).min(EVAL_ROWS);
        let max_rows = largest_step.max(eval_rows).max(1);
        // Where the result must not depend on the number of ranks, the evaluation batches must not either.
        let is_fixed = train.deterministic == Determinism::World && n_eval > 0;
        let eval_rows = if is_fixed { eval_rows } else { max_rows };
        let eval = EvalPartition { n_parts, max_rows: eval_rows };
        Ok(BatchPartition { global_rows, train: partition, eval, max_rows })
    }
}

impl BatchPartition {
    /// Rows of the largest micro-batch over all ranks, in epochs of `n_rows` rows.
    pub fn micro_rows(&self, n_rows: usize) -> usize {
        let step_rows = self.global_rows.min(n_rows);
        match self.train.kind {
            PartitionKind::MicroShards { .. } => step_rows,
            _ => self.train.micro_batch_rows_of_all(step_rows, 0),
        }
    }
}

/// Micro-batches per step of a run; a resumed run's steps take `global_rows` rows.
pub(crate) fn n_micro_batches(train: &TrainConfig, world_size: usize, global_rows: Option<usize>) -> usize {
    match (train.batch, global_rows) {
        // The micro-batch keeps its size, for which there is memory.
        (Batch::PerRank(rows), Some(global_rows)) => global_rows.div_ceil(rows.saturating_mul(world_size)),
        _ => train.grad_accum_steps,
    }
}

/// Returns the learning-rate schedules of a run over `n_rows` rows.
///
/// # Errors
/// See [`RunSchedule::new`].
pub fn schedule(config: &Config, n_rows: usize, global_rows: usize) -> Result<RunSchedule> {
    let of = |n_steps| RunSchedule::new(&config.schedule, &config.optimizer, Some(n_steps));
    Ok(match config.train.schedule_steps {
        Some(n_steps) => of(n_steps)?.held_after(n_steps),
        None => of(n_steps(&config.train, n_rows, global_rows))?,
    })
}

/// Optimizer steps of a run over `n_rows` rows.
pub(crate) fn n_steps(train: &TrainConfig, n_rows: usize, global_rows: usize) -> u64 {
    match train.length {
        Length::Steps(n) => n as u64,
        Length::Epochs(n) => n as u64 * GlobalBatches::steps_per_epoch(n_rows, global_rows) as u64,
    }
}

/// Returns the layers of a run of `config` on `data`.
pub fn model_spec(config: &Config, data: &Loaded) -> ModelSpec {
    let layout = data.train.layout();
    ModelSpec::new(&config.model, layout.n_features(), config.loss.n_outputs(layout.targets.n_outputs()))
        .with_embeddings(data.preprocessor.embeddings.clone())
}

/// Creates the trainer of a run of `config` on `data` before its first step, with weights initialized from the seed.
///
/// # Errors
/// [`TrainError::Kernel`] if `device` is unavailable or out of memory; [`TrainError::Comm`] if the ranks' buckets differ.
pub fn trainer<'w>(
    world: &'w World,
    graph: GraphMode,
    config: &Config,
    data: &Loaded,
    partition: &BatchPartition,
    device: Device,
) -> Result<Trainer<'w>> {
    let spec = model_spec(config, data);
    let mut options = trainer_options(config, partition, graph);
    if options.loss_scaling.is_some() {
        // A power of two keeps the digits.
        options.mean_weight = usual_weight(&*data.train)?.unwrap_or(1.0).log2().round().exp2();
    }
    let layout = options.layout(&spec, world.world_size());
    let groups = ParamGroups::new(&config.optimizer, &layout)?;
    let state_len = options.state_len(world, &layout);
    let mut model = Network::with_layout(spec, layout, partition.max_rows, device, config.train.precision)?;
    model.initialize_as(config.train.init, config.train.seed)?;
    let optimizer = Optimizer::new(&config.optimizer, groups, state_len, device)?;
    let loss = LossHead::for_model(&config.loss, data.train.layout().targets.heads(), &model)?;
    Trainer::new(world, model, loss, optimizer, options)
}

/// Returns the trainer's options for a run of `config`.
pub fn trainer_options(config: &Config, partition: &BatchPartition, graph: GraphMode) -> TrainerOptions {
    let Config { train, comm, .. } = config;
    let scaling = || LossScalerConfig { init_scale: train.loss_scale_init, ..LossScalerConfig::default() };
    TrainerOptions {
        seed: train.seed,
        clip_grad_norm: train.clip_grad_norm,
        bucket_bytes: comm.bucket_bytes(),
        overlap: comm.overlap,
        comm_dtype: comm.dtype,
        has_one_micro_batch: partition.train.has_one_micro_batch(),
        graph,
        zero: comm.zero,
        zero_copies: comm.zero_copies > 0,
        gathers_short_weights: true,
        micro_shards: match partition.train.kind {
            PartitionKind::MicroShards { n_shards } => Some(n_shards),
            PartitionKind::Ranks { .. } | PartitionKind::SharedMicroBatches { .. } => None,
        },
        loss_scaling: (train.precision == Precision::F16).then(scaling),
        nonfinite: match train.bad_steps.on_nonfinite {
            BadStep::Stop => NonFinite::Fail,
            BadStep::Skip | BadStep::Rollback => NonFinite::Withhold,
        },
        ..TrainerOptions::default()
    }
}

/// Loads the trainer's weights from a model file; with `has_new_head` the output layer keeps its initial weights.
///
/// # Errors
/// See [`ModelFile::weights`].
pub fn init_from(trainer: &mut Trainer<'_>, file: &ModelFile, has_new_head: bool) -> Result<()> {
    let model = trainer.model();
    let weights = if has_new_head {
        file.weights_without_head(model.layout(), model.weights().to_vec()?)?
    } else {
        file.weights(model.layout())?
    };
    let statistics = file.statistics(trainer.model().layout())?;
    if !statistics.is_empty() {
        trainer.set_buffers(&statistics)?;
    }
    trainer.set_weights(weights.view())
}

/// Creates the loader of the run's steps, starting at `state`, and the options it loads rows with.
///
/// # Errors
/// See [`DataLoader::new`].
pub fn loader(
    config: &Config,
    data: &Loaded,
    partition: &BatchPartition,
    world: &World,
    device: Device,
    state: Option<&RunState>,
) -> Result<(DataLoader, LoaderOptions)> {
    let cores = threads::current();
    let normalizer = data.preprocessor.normalizer.clone();
    let mut loading = LoaderOptions::from_config(&config.data, device, cores, normalizer);
    loading.sent_in = input_format(config, data, partition, world.world_size(), device);
    let plan =
        BatchPlan { cursor: state.map_or(0, |state| state.cursor), ..batch_plan(config, data, partition) };
    Ok((DataLoader::new(world, data.train.clone(), &plan, loading.clone())?, loading))
}

/// Format of input that the model of the run reads without conversion.
pub fn input_format(
    config: &Config,
    data: &Loaded,
    partition: &BatchPartition,
    world_size: usize,
    device: Device,
) -> DType {
    let spec = &model_spec(config, data);
    let layout = &trainer_options(config, partition, GraphMode::Off).layout(spec, world_size);
    let precision = config.train.precision;
    BufferPlan { spec, layout, max_rows: partition.max_rows, device, precision }.input_format()
}

/// The steps of the run from its start.
pub(crate) fn batch_plan(config: &Config, data: &Loaded, partition: &BatchPartition) -> BatchPlan {
    BatchPlan {
        partition: partition.train.kind,
        shuffle: Shuffle::new(&config.data, &*data.train),
        seed: config.train.seed,
        ..BatchPlan::new(partition.global_rows)
    }
}

/// Returns the state of a new run.
pub fn first_state(config: &Config, data: &Loaded, partition: &BatchPartition) -> RunState {
    RunState {
        n_rows: data.train.len() as u64,
        global_rows: partition.global_rows as u64,
        seed: config.train.seed,
        keeps_best_weights: config.checkpoint.keep_best.is_some(),
        ..RunState::default()
    }
}
