//! Bytes that a rank moves in a step, computed without running one.
//!
//! Each operand of an operation counts once, as if nothing stayed in a cache, and everything that can be fused is fused. Sums of a
//! step, labels' weights and the like are left out where they are a few bytes.

use ddp::config::precision::Precision;
use ddp::config::{BadStep, CommDtype, ZeroStage};
use ddp::data::order::partition::PartitionKind;
use ddp::exchange::buckets::{BucketPlan, TAIL_ELEMENTS};
use ddp::exchange::fixed_tree::TreeSum;
use ddp::exchange::gradients::{ExchangeBytes, ExchangeWay};
use ddp::exchange::rank_exchange::RankExchange;
use ddp::exchange::weight_gather::ShortGather;
use ddp::exchange::whole_parameters::WholeParameters;
use ddp::model::{BufferPlan, GradientWrites, PassTraffic, layers};
use ddp::optim::optimizer::Optimizer;
use ddp::optim::param_groups::{ParamGroups, WholeParameter};
use ddp_kernels::{DType, Device};
use serde::Serialize;

use crate::commands::describe::memory_plan::RankPlan;

/// Bytes that a rank reads and writes in its memory in the largest step, and bytes that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StepTraffic {
    zero: u8,
    /// Weights: read by the passes; read and written by the update, with their copy in the compute precision.
    pub weights: usize,
    /// Gradients of weights: written by the backward pass, rounded for the exchange, read for their norm and by the update.
    pub gradients: usize,
    /// Optimiser state and the moving average, read and written by the update.
    pub optimizer: usize,
    /// Inputs, outputs of layers, and their gradients.
    pub activations: usize,
    /// Rows on their way to the model's input: gathered, copied, converted.
    pub rows: usize,
    /// Bytes sent to other ranks, for ring algorithms; the memory that this takes is not part of the others.
    pub exchange: usize,
}

impl StepTraffic {
    /// Counts the bytes of a step of the rank.
    pub fn new(plan: &RankPlan<'_>) -> Self {
        let layout = plan.layout();
        let RankPlan { config, spec, partition, device, .. } = *plan;
        let (train, world_size) = (partition.train, partition.train.world_size);
        let zero = if world_size == 1 { ZeroStage::Off } else { plan.zero };
        let (precision, single) = (config.train.precision, DType::F32.size_bytes());
        let short = precision.activations().size_bytes();
        let flat_len = layout.flat_len();
        let own_len = if zero == ZeroStage::Off { flat_len } else { flat_len / world_size };

        let row = plan.data.train.layout();
        let target_bytes = row.row_bytes() - row.n_features() * row.dtype.size_bytes();
        let buffers = BufferPlan { spec, layout: &layout, max_rows: partition.max_rows, device, precision };
        let global_rows = partition.global_rows.min(plan.data.train.len());
        let is_tree = matches!(train.kind, PartitionKind::MicroShards { .. });
        let n_micro_batches = train.n_micro_batches(global_rows);
        let is_rounded = device != Device::Cpu
            && world_size > 1
            && config.comm.dtype == CommDtype::Bf16
            && !is_tree
            && zero != ZeroStage::Gradients;
        let unrounded_len = if is_rounded { plan.unrounded_gradients_len() } else { 0 };
        let is_rounded_by_layers = is_rounded && plan.rounds_gradients_in_layers();
        let mut passes = PassTraffic::default();
        for index in 0..n_micro_batches {
            // Micro-shards, and shards of ZeRO 2, are added up elsewhere.
            let accumulates = index > 0 && !is_tree && zero != ZeroStage::Gradients;
            let writes = match (accumulates, is_rounded_by_layers) {
                (true, _) => GradientWrites::Accumulated,
                (false, true) => GradientWrites::Rounded,
                (false, false) => GradientWrites::Singles,
            };
            let n_rows = train.micro_batch(global_rows, index).len();
            let PassTraffic { weights, gradients, activations } =
                PassTraffic::of(buffers, n_rows, target_bytes, writes);
            passes.weights += weights;
            passes.gradients += gradients;
            passes.activations += activations;
        }

        let of_gradient = if is_rounded { DType::BF16.size_bytes() } else { single };
        // Rows that are gathered in the format of activations are not converted by the first layer.
        let is_converted = plan.keeps_rows_on_device && plan.gathered_format() != DType::F32;
        let conversion =
            if is_converted { plan.step_rows() * row.n_features() * (single + short) } else { 0 };
        let has_norm = config.train.clip_grad_norm > 0.0
            || precision == Precision::F16
            || config.train.bad_steps.on_nonfinite != BadStep::Stop;
        let rounding = unrounded_len * (single + of_gradient);
        let gradients = rounding + own_len * of_gradient * if has_norm { 2 } else { 1 };
        // The update writes the compute weights, unless ranks gather weights in f32: then they are rounded from those.
        let has_copy = precision.activations() != DType::F32;
        let gathers_short = zero != ZeroStage::Off && {
            let n_reads = buffers.master_reads_len();
            ShortGather::is_used(device, precision.activations(), flat_len, n_reads)
        };
        let copy = match (has_copy, zero) {
            (false, _) => 0,
            (true, ZeroStage::Off) => flat_len * short,
            (true, _) if gathers_short => own_len * short,
            (true, _) => flat_len * (single + short),
        };
        let weight_bytes = if gathers_short {
            ShortGather::bytes(precision.activations(), flat_len, buffers.master_reads_len())
        } else {
            flat_len * single
        };
        let n_states =
            Optimizer::n_moments(&config.optimizer) + usize::from(config.optimizer.ema_decay > 0.0);

        let buckets = BucketPlan::new(&layout, config.comm.bucket_bytes()).without_tail();
        let shards = (zero != ZeroStage::Off).then_some(buckets.ranges());
        let groups = ParamGroups::new(&config.optimizer, &layout);
        let whole = groups.as_ref().map_or(&[][..], ParamGroups::whole);
        let of_optimizer = WholeParameters::bytes_sent(whole, shards, world_size);
        let of_layers = layers::of_spec(spec);
        let of_layers =
            RankExchange::bytes_sent(of_layers.iter().map(|layer| &**layer), world_size, n_micro_batches);
        let [norm_reads, state_reads] = two_passes(whole, own_len, flat_len / own_len, world_size);
        let way = match zero {
            _ if is_tree => {
                let len = flat_len + TAIL_ELEMENTS;
                let gathers_weights = zero != ZeroStage::Off;
                ExchangeWay::Tree { sent: TreeSum::exchange_bytes_of(&train, len), gathers_weights }
            }
            _ if world_size == 1 => ExchangeWay::Alone,
            ZeroStage::Off => ExchangeWay::AllReduce { is_rounded },
            ZeroStage::Optimizer => ExchangeWay::ReduceScatter { is_rounded },
            ZeroStage::Gradients => ExchangeWay::EveryMicroBatch { n_micro_batches },
        };
        StepTraffic {
            zero: plan.zero.number(),
            weights: passes.weights + (2 * own_len + norm_reads) * single + copy,
            gradients: passes.gradients + gradients,
            optimizer: (2 * n_states * own_len + state_reads) * single,
            activations: passes.activations - conversion,
            rows: rows_moved(plan),
            exchange: (ExchangeBytes::new(way, world_size, flat_len, weight_bytes).sent
                + of_optimizer
                + of_layers) as usize,
        }
    }

    /// Name, place and bytes of each kind.
    pub fn kinds(&self) -> [(&'static str, &'static str, usize); 6] {
        [
            ("weights", "device", self.weights),
            ("gradients", "device", self.gradients),
            ("optimiser", "device", self.optimizer),
            ("activations", "device", self.activations),
            ("rows", "device", self.rows),
            ("exchange", "sent", self.exchange),
        ]
    }
}

/// Elements of weights and of state that an optimiser with two passes reads and writes more than one with a single pass.
fn two_passes(whole: &[WholeParameter], own_len: usize, n_shards: usize, world_size: usize) -> [usize; 2] {
    let matrices: Vec<_> = whole.iter().filter_map(|whole| whole.matrix).collect();
    if whole.is_empty() {
        return [0, 0];
    }
    if matrices.is_empty() {
        // LAMB: the squares of weights and of directions; then the step reads both moments, and writes the second one as it is.
        return [2 * own_len, 5 * own_len];
    }
    let len: usize = matrices.iter().map(|[rows, cols]| rows * cols).sum();
    let squares: usize = matrices.iter().map(|[rows, cols]| rows.min(cols).pow(2)).sum();
    // Muon: norm and scaling, then in each of 5 iterations the operands of 3 matmuls and 2 copies; the step reads the direction.
    [0, (38 * len + 40 * squares) / world_size + len / n_shards]
}

/// Bytes read and written until a step's rows are the model's input.
fn rows_moved(plan: &RankPlan<'_>) -> usize {
    let row = plan.data.train.layout();
    let (stored, floats) = (row.row_bytes(), row.n_features() * DType::F32.size_bytes());
    let features = row.n_features() * row.dtype.size_bytes();
    let targets = stored - features;
    let converts = row.dtype != DType::F32 || plan.data.preprocessor.normalizer.is_some();
    let of_row = match plan.device {
        Device::Cuda(_) if plan.keeps_rows_on_device => {
            // The row's number is written once, and read for the features, the targets and the weight.
            let n_parts = 2 + usize::from(row.has_weights);
            let gathered = row.n_features() * plan.gathered_format().size_bytes();
            stored + gathered + targets + DType::I64.size_bytes() * (1 + n_parts)
        }
        Device::Cuda(_) => stored + if converts { features + floats } else { 0 },
        Device::Cpu => stored + floats + targets,
    };
    plan.step_rows() * of_row
}
