//! Memory of a rank by use, computed without allocating any of it.
//!
//! The sizes come from the code that allocates: the model's buffers, the layout of its parameters, the optimizer's tensors,
//! the loader's buffers.

use ddp_comm::{Rank, registered_step_bytes};
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::{BesideMatmuls, FIXED_WORKSPACE_BYTES, Gpu, GpuFeature};
use ddp_kernels::ops::STEP_SCALARS_LEN;
use ddp_kernels::{DType, Device, MemoryUse};

use crate::config::{Config, Determinism, Placement, ZeroStage};
use crate::data::device_rows::DeviceShape;
use crate::data::loader::{DeviceOrder, DeviceTable, LoaderOptions, Shuffle, host_buffer_bytes};
use crate::data::order::partition::RankPartition;
use crate::data::{self, Loaded};
use crate::exchange::plan::ExchangePlan;
use crate::exchange::rank_exchange::RankExchange;
use crate::exchange::shard_plan::Ranks;
use crate::model::{BufferPlan, ModelBytes, ModelSpec, ParamLayout, has_small_products, layers, loss_bytes};
use crate::optim::optimizer::Optimizer;
use crate::optim::param_groups::ParamGroups;
use crate::train::error::Result;
use crate::train::gpu_step::N_SLOTS;
use crate::train::host_copies::{host_bytes, message_len};
use crate::train::setup::{self, BatchPartition};
use crate::train::trainer::{GraphMode, TrainerOptions};

ddp_kernels::named_enum! {
    /// Use of memory.
    pub enum MemoryKind {
        /// The f32 weights that the optimizer updates.
        Parameters = "parameters",
        /// Their copy in the compute precision.
        ComputeWeights = "compute weights",
        /// Gradients of the weights, with the buffers of their exchange: a copy in another data type, or partial sums.
        Gradients = "gradients",
        /// Optimizer state: moments or velocity.
        Optimizer = "optimizer",
        /// Copy of the optimizer state of another rank, with `comm.zero_copies`; on a GPU a part of it, on its way to host memory.
        OptimizerCopy = "optimizer copy",
        /// Moving average of the weights.
        Average = "average",
        /// Registered buffers of layers: statistics.
        Statistics = "statistics",
        /// Activations of the forward pass and their gradients.
        Activations = "activations",
        /// Scratch memory of matmuls and kernels.
        Workspace = "workspace",
        /// Rows on the device: those of the current steps, or the whole data set if it is kept there.
        Rows = "rows",
        /// Rows on the host: data set and loader buffers.
        Loader = "loader",
        /// Host copies of the weights of the best evaluation.
        BestWeights = "best weights",
        /// Host copy of the state that a checkpoint writes, page-locked if the rank computes on a GPU and goes on meanwhile; at least that
        /// of the weights for the model's file. With `comm.zero_copies` on GPUs also the shards of two states and their copies.
        Snapshot = "snapshot",
    }
}

impl MemoryKind {
    /// The use under which GPU memory is accounted; `None` for memory that is always on the host.
    pub fn memory_use(self) -> Option<MemoryUse> {
        Some(match self {
            MemoryKind::Parameters | MemoryKind::ComputeWeights => MemoryUse::Parameters,
            MemoryKind::Gradients => MemoryUse::Gradients,
            MemoryKind::Optimizer | MemoryKind::OptimizerCopy => MemoryUse::Optimizer,
            MemoryKind::Average => MemoryUse::Average,
            MemoryKind::Statistics => MemoryUse::Other,
            MemoryKind::Activations => MemoryUse::Activations,
            MemoryKind::Workspace => MemoryUse::Workspace,
            MemoryKind::Rows => MemoryUse::Data,
            MemoryKind::Loader | MemoryKind::BestWeights | MemoryKind::Snapshot => return None,
        })
    }
}

/// A run as seen by one rank, which need not exist.
#[derive(Debug, Clone)]
pub struct RankPlan<'a> {
    /// Config of the run.
    pub config: &'a Config,
    /// Training and evaluation rows.
    pub data: &'a Loaded,
    /// Model of the run.
    pub spec: &'a ModelSpec,
    /// Partition of its batches, for rank 0.
    pub partition: BatchPartition,
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Device of the rank; it need not exist.
    pub device: Device,
    /// Whether all rows are kept on the GPU.
    pub keeps_rows_on_device: bool,
    /// Threads of the rank.
    pub n_threads: usize,
}

/// Memory of rank 0 in bytes, by use; no rank needs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Bytes of each [`MemoryKind`], in the order of [`MemoryKind::ALL`].
    pub bytes: [usize; MemoryKind::ALL.len()],
    /// Optional scratch on the device, allocated only if it makes steps faster and enough memory is free; not part of any total.
    pub optional: usize,
}

impl MemoryPlan {
    /// Computes the memory of the rank.
    pub fn new(plan: &RankPlan<'_>) -> Self {
        let (layout, exchange) = (plan.layout(), plan.exchange());
        let RankPlan { config, spec, partition, device, .. } = *plan;
        let (max_rows, world_size) = (partition.max_rows, partition.train.world_size);
        let precision = config.train.precision;
        let on_gpu = device != Device::Cpu;
        let model = ModelBytes::of(plan.buffers(&layout));
        let (own_len, single) = (exchange.own_len(), DType::F32.size_bytes());
        // Ranks gather the weights that they have updated.
        let weights = |bytes| if exchange.gathers_weights() { plan.exchanged_bytes(bytes) } else { bytes };
        let optimizer = Optimizer::n_moments(&config.optimizer) * own_len * single;
        let scratch = |groups: ParamGroups| {
            let gathered = if groups.has_matrices() { exchange.gathered_directions_len() } else { 0 };
            Optimizer::scratch_bytes(&groups) + gathered * single
        };
        let scratch = ParamGroups::new(&config.optimizer, &layout).map_or(0, scratch);
        let has_average = config.optimizer.ema_decay > 0.0;
        let average = if has_average { exchange.average_len() * single } else { 0 };
        let mut bytes = MemoryPlan::default();
        let mut put = |kind: MemoryKind, n: usize| bytes.bytes[kind as usize] = n;
        put(MemoryKind::Parameters, weights(model.parameters));
        put(MemoryKind::ComputeWeights, weights(model.compute_weights));
        put(MemoryKind::Gradients, exchange.gradient_bytes(|bytes| plan.exchanged_bytes(bytes)));
        put(MemoryKind::Optimizer, optimizer + scratch);
        // Shards in host memory, with copies of another rank's, which arrive by way of the device.
        let n_state = Optimizer::n_moments(&config.optimizer) + usize::from(has_average);
        let has_host_copies = on_gpu && config.comm.zero_copies > 0 && exchange.gathers_weights();
        let (message, kept) = if has_host_copies {
            (message_len(own_len) * single, host_bytes(own_len, n_state))
        } else {
            (0, 0)
        };
        put(MemoryKind::OptimizerCopy, if exchange.has_copies() { optimizer } else { message });
        put(MemoryKind::Average, average);
        put(MemoryKind::Statistics, model.registered);
        put(MemoryKind::Activations, model.activations);
        let exchanged = layers::from_spec(spec).iter().map(|layer| layer.exchanged_len()).max().unwrap_or(0);
        let exchanged = RankExchange::len(exchanged, world_size) * DType::F64.size_bytes();
        let fixed = if on_gpu { FIXED_WORKSPACE_BYTES } else { 0 };
        let heads = plan.data.train.layout().targets.heads();
        let of_heads = loss_bytes(&config.loss, heads, max_rows, precision.activations());
        put(MemoryKind::Workspace, model.workspace + exchanged + of_heads + fixed);
        put(MemoryKind::Rows, if on_gpu { plan.rows_on_gpu() } else { 0 });
        put(MemoryKind::Loader, plan.rows_on_host());
        let in_model_file = model.parameters + model.registered;
        let keeps_best = plan.data.eval.is_some() && config.checkpoint.keep_best.is_some();
        // New ones are copied while a checkpoint of the former ones may be under way; kept states may have two more.
        let n_best = if has_host_copies { 4 } else { 2 };
        put(MemoryKind::BestWeights, if keeps_best { n_best * in_model_file } else { 0 });
        let state_of_average = if has_average { own_len * single } else { 0 };
        let is_async = config.checkpoint.is_async && config.checkpoint.is_on();
        // A checkpoint for which training waits is written in place on the CPU, and the copy for the model's file is made after it.
        let state = if is_async || on_gpu { optimizer + state_of_average } else { 0 };
        put(MemoryKind::Snapshot, in_model_file + state + kept);
        bytes.optional = if plan.may_compute_beside() { BesideMatmuls::WORKSPACE_BYTES } else { 0 };
        bytes
    }

    /// Bytes of this kind.
    pub fn of(&self, kind: MemoryKind) -> usize {
        self.bytes[kind as usize]
    }

    /// Bytes on the device.
    pub fn on_device(&self) -> usize {
        let kinds = MemoryKind::ALL.into_iter().filter(|kind| kind.memory_use().is_some());
        kinds.map(|kind| self.of(kind)).sum()
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.bytes.iter().sum()
    }
}

impl<'a> RankPlan<'a> {
    /// Plans rank 0 of `world_size` with the options of the config, and checks that it could train.
    ///
    /// # Errors
    /// The errors that would keep this run from training: of [`BatchPartition::new`], [`setup::schedule`], [`ParamGroups::new`] and the
    /// GPU, too few rows, and options that exclude each other.
    pub fn new(
        config: &'a Config,
        data: &'a Loaded,
        spec: &'a ModelSpec,
        world_size: usize,
        device: Device,
    ) -> Result<Self> {
        data::check_n_rows(&*data.train, world_size)?;
        let partition = BatchPartition::for_rank(config, Rank(0), world_size, data, None)?;
        setup::schedule(config, data.train.len(), partition.global_rows)?;
        setup::trainer_options(config, &partition, GraphMode::default())
            .check(device, config.optimizer.kind)?;
        let plan = RankPlan {
            config,
            data,
            spec,
            partition,
            zero: config.comm.zero,
            device,
            keeps_rows_on_device: keeps_rows_on_device(config, data, device)?,
            n_threads: threads::current(),
        };
        ParamGroups::new(&config.optimizer, &plan.layout())?;
        Ok(plan)
    }

    /// Rows of the largest step over all ranks.
    pub fn global_rows(&self) -> usize {
        self.partition.global_rows.min(self.data.train.len())
    }
}

impl RankPlan<'_> {
    fn options(&self) -> TrainerOptions {
        let options = setup::trainer_options(self.config, &self.partition, GraphMode::default());
        TrainerOptions { zero: self.zero, ..options }
    }

    /// Whether times may decide for gradients of weights beside those of inputs, in steps that are graphs.
    fn may_compute_beside(&self) -> bool {
        let RankPlan { config, spec, partition, device, .. } = self;
        let is_timed = config.train.deterministic == Determinism::Off
            && !config.train.gpu_without.contains(&GpuFeature::TimedMatmuls);
        let is_alone = partition.train.world_size == 1 && config.comm.overlap;
        let layers = layers::from_spec(spec);
        let layers = layers.iter().map(|layer| &**layer);
        *device != Device::Cpu && is_alone && is_timed && has_small_products(layers, partition.max_rows)
    }

    /// Layout of the parameters, with the padding that sharding needs.
    pub fn layout(&self) -> ParamLayout {
        self.options().layout(self.spec, self.partition.train.world_size)
    }

    /// The exchange of the rank. Where ranks share memory it may divide the update, which a plan does not know; memory and bytes are the
    /// same.
    pub fn exchange(&self) -> ExchangePlan {
        let RankPartition { rank, world_size, .. } = self.partition.train;
        let ranks = Ranks { rank, world_size, shares_memory: false };
        let layout = self.layout();
        let options = self.options().exchange().on(self.device);
        ExchangePlan::new(&options, ranks, &layout, &self.buffers(&layout).flat_formats())
    }

    /// The buffers of the model with this layout.
    pub(super) fn buffers<'a>(&'a self, layout: &'a ParamLayout) -> BufferPlan<'a> {
        let (spec, max_rows, device) = (self.spec, self.partition.max_rows, self.device);
        BufferPlan { spec, layout, max_rows, device, precision: self.config.train.precision }
    }

    /// Bytes that a tensor of `bytes` takes which ranks exchange in every step: NCCL takes whole steps for registered ones, by the version
    /// and the GPU of this machine. With `comm.register_buffers = "auto"` ranks that share a GPU register none, which a plan does not
    /// know.
    fn exchanged_bytes(&self, bytes: usize) -> usize {
        let RankPlan { config, partition, device, .. } = self;
        let step = match device {
            Device::Cuda(index) if partition.train.world_size > 1 => {
                let has_multicast = Gpu::get(*index).is_ok_and(|gpu| gpu.info().has_multicast);
                registered_step_bytes(config.comm.register_buffers, has_multicast)
            }
            Device::Cuda(_) | Device::Cpu => None,
        };
        step.map_or(bytes, |step| bytes.next_multiple_of(step))
    }

    /// The format in which a step's rows reach a model on the GPU: f32 where the GPU converts or normalizes rows that are sent.
    pub(super) fn format_on_gpu(&self) -> DType {
        let is_transformed =
            self.data.train.layout().dtype != DType::F32 || self.data.preprocessor.normalizer.is_some();
        if is_transformed && !self.keeps_rows_on_device {
            return DType::F32;
        }
        self.buffers(&self.layout()).input_format()
    }

    /// Bytes of a row that is sent to a GPU: of f32 features that nothing transforms, in the format of the model's input.
    pub(super) fn sent_row_bytes(&self) -> usize {
        let row = self.data.train.layout();
        let sent = if row.dtype == DType::F32 { self.format_on_gpu() } else { row.dtype };
        row.row_bytes() - row.n_features() * (row.dtype.size_bytes() - sent.size_bytes())
    }

    /// Rows of this rank in the largest step.
    pub fn step_rows(&self) -> usize {
        self.partition.train.n_own_rows(self.global_rows())
    }

    /// Bytes of the double-buffered rows of steps and evaluations, and of the data set if it is kept on the GPU.
    fn rows_on_gpu(&self) -> usize {
        let train = self.data.train.layout();
        let converts = train.dtype != DType::F32 || self.data.preprocessor.normalizer.is_some();
        let shape = if self.keeps_rows_on_device {
            DeviceShape::gathered(train).gathered_in(self.format_on_gpu())
        } else {
            DeviceShape::sent(train, converts).sent_in(self.format_on_gpu())
        };
        let groups = &self.config.optimizer.groups;
        let n_schedules = groups.iter().filter(|group| group.schedule.is_some()).count();
        let scalars = (1 + n_schedules) * STEP_SCALARS_LEN * DType::F64.size_bytes();
        let steps = N_SLOTS * (shape.size_bytes(self.step_rows()) + scalars);
        let eval = self.data.eval.as_ref().map_or(0, |eval| {
            let n_rows = self.partition.eval.max_rows.min(eval.len().div_ceil(self.partition.eval.n_parts));
            let format = self.buffers(&self.layout()).input_format();
            let converts = eval.layout().dtype != DType::F32 || self.data.preprocessor.normalizer.is_some();
            2 * DeviceShape::sent(eval.layout(), converts).sent_in(format).size_bytes(n_rows)
        });
        let order = if self.numbers_rows_on_device() {
            DeviceOrder::size_bytes(self.shuffle().n_blocks())
        } else {
            0
        };
        let table = if self.keeps_rows_on_device { DeviceTable::size_bytes(&*self.data.train) } else { 0 };
        steps + eval + order + table
    }

    /// Bytes of the data sets in host memory and of the loader buffers.
    fn rows_on_host(&self) -> usize {
        let normalizer = self.data.preprocessor.normalizer.clone();
        let mut options =
            LoaderOptions::from_config(&self.config.data, self.device, self.n_threads, normalizer);
        options.sent_in = self.buffers(&self.layout()).input_format();
        let eval = self.data.eval.as_ref().map_or(0, |eval| eval.resident_bytes());
        let buffers = if self.numbers_rows_on_device() {
            0
        } else {
            host_buffer_bytes(&*self.data.train, self.step_rows(), &options, self.keeps_rows_on_device)
        };
        self.data.train.resident_bytes() + eval + buffers
    }

    /// Whether the GPU keeps all rows and computes their order.
    fn numbers_rows_on_device(&self) -> bool {
        self.keeps_rows_on_device && self.shuffle().is_computed_on_gpus()
    }

    fn shuffle(&self) -> Shuffle {
        Shuffle::new(&self.config.data, &*self.data.train)
    }
}

/// Whether the whole data set is kept on the device; `auto` needs a GPU with enough free memory.
///
/// # Errors
/// [`TrainError::Kernel`](crate::train::TrainError::Kernel) if the GPU can't report its free memory.
pub fn keeps_rows_on_device(config: &Config, data: &Loaded, device: Device) -> Result<bool> {
    match (device, config.data.placement) {
        (Device::Cpu, _) | (_, Placement::Host) => Ok(false),
        (_, Placement::Device) => Ok(true),
        (Device::Cuda(index), Placement::Auto) => match Gpu::get(index) {
            Ok(gpu) => Ok(DeviceTable::fits(&*data.train, gpu)?),
            // The plan is for a GPU of another machine.
            Err(_) => Ok(false),
        },
    }
}
