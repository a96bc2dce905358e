//! How much memory a rank of a run takes, and what for, without making any of it.
//!
//! The sizes come from where the memory is made: the model's buffers, the layout of its parameters, the optimiser's tensors,
//! the loader's buffers.

use ddp_kernels::cuda::{FIXED_WORKSPACE_BYTES, Gpu, MemoryUse};
use ddp_kernels::ops::STEP_SCALARS_LEN;
use ddp_kernels::{DType, Device};

use crate::config::{CommDtype, Config, Placement, ZeroStage};
use crate::data::Loaded;
use crate::data::device_rows::DeviceShape;
use crate::data::loader::{DeviceTable, LoaderOptions, host_buffer_bytes};
use crate::data::order::partition::PartitionKind;
use crate::data_parallel::buckets::{BucketPlan, TAIL_ELEMENTS};
use crate::data_parallel::fixed_tree::TreeSum;
use crate::data_parallel::zero2::BucketBuffers;
use crate::error::Result;
use crate::model::{BufferPlan, ModelBytes, ModelSpec, ParamLayout};
use crate::optim::optimizer::Optimizer;
use crate::train::gpu_step::N_SLOTS;
use crate::train::setup::BatchPartition;
use crate::train::trainer::TrainerOptions;

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The weights that are updated.
    Parameters,
    /// Their copy in a shorter format.
    WorkingCopy,
    /// Gradients of the weights, and what they need to travel: a copy in another format, or partial sums.
    Gradients,
    /// Moments or velocity.
    Optimizer,
    /// The weights' moving average.
    Average,
    /// What a forward pass leaves, and gradients of it.
    Activations,
    /// Scratch.
    Workspace,
    /// Rows where the model computes: those of the steps, and all of them where they are kept there.
    Rows,
    /// Rows that wait on the host.
    Loader,
    /// The host's copy of what a checkpoint writes while training goes on; page-locked where the rank computes on a GPU.
    Snapshot,
}

impl MemoryKind {
    /// All of them, in the order of reports.
    pub const ALL: [MemoryKind; 10] = [
        MemoryKind::Parameters,
        MemoryKind::WorkingCopy,
        MemoryKind::Gradients,
        MemoryKind::Optimizer,
        MemoryKind::Average,
        MemoryKind::Activations,
        MemoryKind::Workspace,
        MemoryKind::Rows,
        MemoryKind::Loader,
        MemoryKind::Snapshot,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Parameters => "parameters",
            MemoryKind::WorkingCopy => "working copy",
            MemoryKind::Gradients => "gradients",
            MemoryKind::Optimizer => "optimiser",
            MemoryKind::Average => "average",
            MemoryKind::Activations => "activations",
            MemoryKind::Workspace => "workspace",
            MemoryKind::Rows => "rows",
            MemoryKind::Loader => "loader",
            MemoryKind::Snapshot => "snapshot",
        }
    }

    /// The account of a GPU's memory that it is in; `None` where it is the host's on a GPU run too.
    pub fn memory_use(self) -> Option<MemoryUse> {
        Some(match self {
            MemoryKind::Parameters | MemoryKind::WorkingCopy => MemoryUse::Parameters,
            MemoryKind::Gradients => MemoryUse::Gradients,
            MemoryKind::Optimizer => MemoryUse::Optimizer,
            MemoryKind::Average => MemoryUse::Average,
            MemoryKind::Activations => MemoryUse::Activations,
            MemoryKind::Workspace => MemoryUse::Workspace,
            MemoryKind::Rows => MemoryUse::Data,
            MemoryKind::Loader | MemoryKind::Snapshot => return None,
        })
    }
}

/// A run as one rank sees it, real or imagined.
#[derive(Debug, Clone)]
pub struct RankPlan<'a> {
    /// The run's config.
    pub config: &'a Config,
    /// Its rows.
    pub data: &'a Loaded,
    /// Its model.
    pub spec: &'a ModelSpec,
    /// How its rows are cut, as rank 0 of the run sees it.
    pub cuts: BatchPartition,
    /// What the ranks divide between them.
    pub zero: ZeroStage,
    /// Where the rank computes; it need not be there.
    pub device: Device,
    /// Whether all rows are kept on the GPU.
    pub keeps_rows_there: bool,
    /// Threads of the rank.
    pub n_threads: usize,
}

/// Bytes of a rank's memory by what they are for: on rank 0, which no rank exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Bytes of each [`MemoryKind`], in the order of [`MemoryKind::ALL`].
    pub bytes: [usize; MemoryKind::ALL.len()],
}

impl MemoryPlan {
    /// The memory that the rank takes.
    pub fn new(plan: &RankPlan<'_>) -> Self {
        let layout = plan.layout();
        let RankPlan { config, spec, cuts, zero, device, .. } = *plan;
        let (max_rows, world_size) = (cuts.max_rows, cuts.train.world_size);
        let precision = config.train.precision;
        let on_gpu = device != Device::Cpu;
        let model = ModelBytes::of(BufferPlan { spec, layout: &layout, max_rows, device, precision });
        let (flat_len, single) = (layout.flat_len(), DType::F32.size_bytes());
        // A rank alone divides nothing.
        let zero = if world_size == 1 { ZeroStage::Off } else { zero };
        let state_len = if zero == ZeroStage::Off { flat_len } else { flat_len / world_size };
        let gradients = match zero {
            ZeroStage::Gradients => {
                let buckets = BucketPlan::new(&layout, config.comm.bucket_bytes()).without_tail();
                let (longest, longest_gap) = BucketBuffers::lens(&layout, &buckets);
                state_len + 2 * longest + longest_gap
            }
            ZeroStage::Off | ZeroStage::Optimizer => flat_len,
        };
        let is_compressed = on_gpu && world_size > 1 && config.comm.dtype == CommDtype::Bf16;
        let wire = match (cuts.train.kind, zero) {
            (PartitionKind::MicroShards { .. }, _) => {
                TreeSum::extra_len(&cuts.train, gradients + TAIL_ELEMENTS) * DType::F32.size_bytes()
            }
            (_, ZeroStage::Off | ZeroStage::Optimizer) if is_compressed => {
                flat_len * DType::BF16.size_bytes()
            }
            _ => 0,
        };
        let optimizer = Optimizer::n_moments(&config.optimizer) * state_len * single;
        let average = match (config.optimizer.ema_decay > 0.0, &plan.data.eval) {
            (false, _) => 0,
            (true, None) => state_len * single,
            // An evaluation gathers it, and keeps the weights whose place it takes.
            (true, Some(_)) => (state_len + 2 * flat_len) * single,
        };
        let mut bytes = MemoryPlan::default();
        let mut put = |kind: MemoryKind, n: usize| bytes.bytes[kind as usize] = n;
        put(MemoryKind::Parameters, model.parameters);
        put(MemoryKind::WorkingCopy, model.compute_weights);
        put(MemoryKind::Gradients, (gradients + TAIL_ELEMENTS) * single + wire);
        put(MemoryKind::Optimizer, optimizer);
        put(MemoryKind::Average, average);
        put(MemoryKind::Activations, model.activations);
        put(MemoryKind::Workspace, model.workspace + if on_gpu { FIXED_WORKSPACE_BYTES } else { 0 });
        put(MemoryKind::Rows, if on_gpu { plan.rows_on_gpu() } else { 0 });
        put(MemoryKind::Loader, plan.rows_on_host());
        let snapshot_of_average = if average > 0 { state_len * single } else { 0 };
        let is_async = config.checkpoint.is_async && config.checkpoint.is_on();
        put(
            MemoryKind::Snapshot,
            if is_async { model.parameters + optimizer + snapshot_of_average } else { 0 },
        );
        bytes
    }

    /// Bytes of this kind.
    pub fn of(&self, kind: MemoryKind) -> usize {
        self.bytes[kind as usize]
    }

    /// Bytes where the model computes.
    pub fn on_device(&self) -> usize {
        let kinds = MemoryKind::ALL.into_iter().filter(|kind| kind.memory_use().is_some());
        kinds.map(|kind| self.of(kind)).sum()
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.bytes.iter().sum()
    }
}

impl RankPlan<'_> {
    /// Where the parameters lie, with the gaps that the ranks need to divide them.
    pub fn layout(&self) -> ParamLayout {
        let options = TrainerOptions { zero: self.zero, ..TrainerOptions::default() };
        options.layout(self.spec, self.cuts.train.world_size)
    }

    /// Rows of the rank in the largest step.
    fn step_rows(&self) -> usize {
        self.cuts.train.own_rows(self.cuts.global_rows.min(self.data.train.len())).len()
    }

    /// Of the steps whose rows are copied while the one before computes, of evaluations likewise, and what keeps all rows.
    fn rows_on_gpu(&self) -> usize {
        let train = self.data.train.layout();
        let converts = train.dtype != DType::F32 || self.data.preprocessor.normalizer.is_some();
        let shape = match self.keeps_rows_there {
            true => DeviceShape::gathered(train),
            false => DeviceShape::sent(train, converts),
        };
        let scalars = STEP_SCALARS_LEN * DType::F64.size_bytes();
        let steps = N_SLOTS * (shape.size_bytes(self.step_rows()) + scalars);
        let eval = self.data.eval.as_ref().map_or(0, |eval| {
            let n_rows = self.cuts.eval.max_rows.min(eval.len().div_ceil(self.cuts.eval.n_parts));
            2 * DeviceShape::sent(eval.layout(), converts).size_bytes(n_rows)
        });
        let table = if self.keeps_rows_there { DeviceTable::size_bytes(&*self.data.train) } else { 0 };
        steps + eval + table
    }

    /// What the datasets hold in memory, and the loader's buffers.
    fn rows_on_host(&self) -> usize {
        let normalizer = self.data.preprocessor.normalizer.clone();
        let options = LoaderOptions::from_config(&self.config.data, self.device, self.n_threads, normalizer);
        let eval = self.data.eval.as_ref().map_or(0, |eval| eval.resident_bytes());
        self.data.train.resident_bytes()
            + eval
            + host_buffer_bytes(&*self.data.train, self.step_rows(), &options, self.keeps_rows_there)
    }
}

/// Whether all rows are kept on the device: where nobody asks for it, there must be a GPU that has room for them.
///
/// # Errors
/// Those of asking the GPU.
pub fn keeps_rows_there(config: &Config, data: &Loaded, device: Device) -> Result<bool> {
    match (device, config.data.placement) {
        (Device::Cpu, _) | (_, Placement::Host) => Ok(false),
        (_, Placement::Device) => Ok(true),
        (Device::Cuda(index), Placement::Auto) => match Gpu::get(index) {
            Ok(gpu) => Ok(DeviceTable::fits(&*data.train, gpu)?),
            // The plan is for a GPU elsewhere.
            Err(_) => Ok(false),
        },
    }
}
