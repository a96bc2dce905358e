//! Options of [`Trainer`](crate::train::trainer::Trainer).
//!
//! ```
//! use ddp::exchange::ExchangeError;
//! use ddp::nn::{Activation, ModelSpec};
//! use ddp::optim::OptimizerKind;
//! use ddp::prelude::*;
//! use ddp::train::{TrainerOptions, ZeroStage};
//!
//! // With ZeRO, four ranks share each layer evenly.
//! let options = TrainerOptions { zero: ZeroStage::Gradients, ..TrainerOptions::default() };
//! let layout = options.layout(&ModelSpec::plain(&[3, 5, 2], Activation::Relu), 4);
//! assert!(layout.layer_ends().iter().all(|end| end % 4 == 0));
//!
//! // Sums along one fixed tree need whole gradients.
//! let options = TrainerOptions { micro_shards: Some(4), ..options };
//! let refused = options.check(Device::Cpu, OptimizerKind::AdamW);
//! assert!(matches!(refused, Err(ExchangeError::TreeOfWhole)));
//! ```

use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::ops::WholeNeed;

use crate::config::{CommDtype, OptimizerKind, ZeroStage};
use crate::exchange::ExchangeError;
use crate::exchange::bucket_plan::BucketPlan;
use crate::exchange::plan::ExchangeOptions;
use crate::exchange::shard_plan::Ranks;
use crate::model::{Layer, ModelSpec, ParamLayout};
use crate::optim::loss_scaler::LossScalerConfig;

/// Whether steps on a GPU are captured once and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GraphMode {
    /// Replay a captured graph where driver and NCCL allow it; else launch kernel by kernel.
    #[default]
    Auto,
    /// Like `auto`, but a failed capture ends the run with its error; an error on the CPU.
    On,
    /// Launch kernel by kernel.
    Off,
}

/// Treatment of a step whose loss or gradient is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// The step is an error. A gradient is checked where its norm is requested or needed.
    #[default]
    Fail,
    /// The step's update is withheld. Every step computes the norm of its gradient.
    Withhold,
}

/// Options of a trainer, resolved from the config.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainerOptions {
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Largest norm of the gradient; 0 for any.
    pub clip_grad_norm: f64,
    /// Largest bucket in bytes.
    pub bucket_bytes: usize,
    /// Whether buckets are reduced while backward computes.
    pub overlap: bool,
    /// Number format of gradients between GPUs.
    pub comm_dtype: CommDtype,
    /// Whether no step has more than one micro-batch. Then matmuls in bf16 write gradients that travel in bf16 as such.
    pub has_one_micro_batch: bool,
    /// Elements of the flat buffer from which ranks that share memory divide the update between them.
    pub divide_update_from: usize,
    /// Whether steps on a GPU are graphs.
    pub graph: GraphMode,
    /// ZeRO stage: the training state that is sharded over the ranks.
    pub zero: ZeroStage,
    /// With ZeRO, whether the state of each rank's shards has a copy on another rank, so that the ranks that are left after a loss hold the
    /// whole state: on CPUs that share memory each rank also updates the state of the rank before it; on GPUs a run of a config refreshes
    /// copies in host memory every so many steps, and a program's own loop keeps none.
    pub zero_copies: bool,
    /// Whether ranks with shards of the weights (ZeRO) gather them after an update in the format of matmuls, if they compute on GPUs in
    /// bf16 or f16: half as many bytes. Before whole master weights are read, [`Trainer::gather_weights`] gathers them; what the trainer
    /// does by itself calls it, but [`Network::weights`] panics without, and so does [`Checkpoints::save`].
    ///
    /// [`Trainer::gather_weights`]: crate::train::trainer::Trainer::gather_weights
    /// [`Network::weights`]: crate::model::Network::weights
    /// [`Checkpoints::save`]: crate::train::checkpoints::Checkpoints::save
    pub gathers_short_weights: bool,
    /// Number of micro-shards of every global batch, a power of two and at least the number of ranks. Their gradients are summed
    /// along one fixed tree, so any number of ranks trains to the same bits; a trainer on a GPU keeps its deterministic
    /// mode on for them ([`Gpu::deterministic_mode`](ddp_kernels::cuda::Gpu::deterministic_mode)). Rows come from a loader of as many
    /// [`PartitionKind::MicroShards`](crate::data::PartitionKind::MicroShards).
    pub micro_shards: Option<usize>,
    /// Usual weight of a row, on all ranks the same: gradients in f16 then have the same size whatever the unit of the weights. The result is
    /// that of any other value, but for overflow and rounding. 1 for a loss without weights.
    pub mean_weight: f64,
    /// Loss scaling, which gradients in f16 need.
    pub loss_scaling: Option<LossScalerConfig>,
    /// Treatment of a loss that is not finite, and of a gradient unless the loss is scaled.
    pub nonfinite: NonFinite,
}

impl Default for TrainerOptions {
    /// No clipping; buckets of 32 MiB, reduced while backward computes; the update divided from 32 MiB of weights on,
    /// which no processor's private cache holds.
    fn default() -> Self {
        TrainerOptions {
            seed: 0,
            clip_grad_norm: 0.0,
            bucket_bytes: 32 << 20,
            overlap: true,
            comm_dtype: CommDtype::F32,
            has_one_micro_batch: false,
            divide_update_from: 8 << 20,
            graph: GraphMode::Auto,
            zero: ZeroStage::Off,
            zero_copies: false,
            gathers_short_weights: false,
            micro_shards: None,
            mean_weight: 1.0,
            loss_scaling: None,
            nonfinite: NonFinite::Fail,
        }
    }
}

impl TrainerOptions {
    /// Checks that a model on `device` can be trained by this optimizer with these options.
    ///
    /// # Errors
    /// [`ExchangeError::ZeroWire`], [`ExchangeError::TreeOfWhole`] and [`ExchangeError::ShardedNorms`]; [`ExchangeError::CopiesOfWhole`]
    /// and [`ExchangeError::CopiesInTwoPasses`].
    pub fn check(&self, device: Device, optimizer: OptimizerKind) -> Result<(), ExchangeError> {
        let is_sharded = self.zero != ZeroStage::Off;
        let has_sums = optimizer.whole_need() == Some(WholeNeed::Norms);
        if has_sums && is_sharded && self.micro_shards.is_some() {
            return Err(ExchangeError::ShardedNorms { optimizer });
        }
        let is_rounded = device != Device::Cpu && self.comm_dtype == CommDtype::Bf16;
        if is_rounded && self.zero == ZeroStage::Gradients {
            return Err(ExchangeError::ZeroWire);
        }
        if self.zero_copies && !is_sharded {
            return Err(ExchangeError::CopiesOfWhole);
        }
        if self.zero_copies && device == Device::Cpu && optimizer.whole_need().is_some() {
            return Err(ExchangeError::CopiesInTwoPasses { optimizer });
        }
        if self.micro_shards.is_some() && (is_rounded || self.zero == ZeroStage::Gradients) {
            return Err(ExchangeError::TreeOfWhole);
        }
        Ok(())
    }

    /// Parameter layout for these options: with ZeRO, ranks share each layer evenly.
    pub fn layout(&self, spec: &ModelSpec, world_size: usize) -> ParamLayout {
        ParamLayout::shared_by(spec, self.n_sharing(world_size))
    }

    /// Same as [`TrainerOptions::layout`], of any layers in forward order.
    pub fn layout_of_layers(&self, layers: &[Box<dyn Layer>], world_size: usize) -> ParamLayout {
        ParamLayout::from_layers(layers, self.n_sharing(world_size))
    }

    /// Ranks that share each layer.
    fn n_sharing(&self, world_size: usize) -> usize {
        if self.zero == ZeroStage::Off { 1 } else { world_size }
    }

    /// Elements of each tensor of optimizer state that a rank of `world` needs for a model of this layout.
    pub fn state_len(&self, world: &World, layout: &ParamLayout) -> usize {
        let (buckets, ranks) = (BucketPlan::new(layout, self.bucket_bytes), Ranks::of(world));
        let mut exchange = self.exchange();
        exchange.has_copies &= ranks.shares_memory;
        exchange.shard_plan(ranks, &buckets, layout.flat_len()).state_len()
    }

    /// Options of the exchange.
    pub fn exchange(&self) -> ExchangeOptions {
        let TrainerOptions { zero, comm_dtype, has_one_micro_batch, micro_shards, overlap, .. } = *self;
        let TrainerOptions { bucket_bytes, divide_update_from, gathers_short_weights, zero_copies, .. } =
            *self;
        ExchangeOptions {
            zero,
            has_copies: zero_copies,
            comm_dtype,
            has_one_micro_batch,
            micro_shards,
            overlap,
            bucket_bytes,
            divide_update_from,
            gathers_short_weights,
            updates_buckets: !self.needs_norm(),
        }
    }

    /// Norm to which gradients are clipped; infinity for no limit.
    pub(crate) fn max_norm(&self) -> f64 {
        if self.clip_grad_norm > 0.0 { self.clip_grad_norm } else { f64::INFINITY }
    }

    /// Whether each update needs the norm of the whole gradient.
    pub(crate) fn needs_norm(&self) -> bool {
        self.clip_grad_norm > 0.0 || self.loss_scaling.is_some() || self.nonfinite == NonFinite::Withhold
    }
}
