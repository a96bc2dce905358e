//! Bytes that a rank moves in a step, computed without running one.
//!
//! Each operand of an operation counts once, as if nothing stayed in a cache, and everything that can be fused is fused. Sums of a
//! step, labels' weights and the like are left out where they are a few bytes.

use ddp_kernels::{DType, Device};
use serde::Serialize;

use crate::config::BadStep;
use crate::config::precision::Precision;
use crate::cost::memory_plan::RankPlan;
use crate::model::{PassTraffic, layers};
use crate::optim::optimizer::Optimizer;
use crate::optim::param_groups::{ParamGroups, WholeParameter};

/// Bytes that a rank reads and writes in its memory in the largest step, and bytes that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StepTraffic {
    zero: u8,
    /// Weights: read by the passes; read and written by the update, with their copy in the compute precision.
    pub weights: usize,
    /// Gradients of weights: written by the backward pass, rounded for the exchange, read for their norm and by the update.
    pub gradients: usize,
    /// Optimizer state and the moving average, read and written by the update.
    pub optimizer: usize,
    /// Inputs, outputs of layers, and their gradients.
    pub activations: usize,
    /// Rows on their way to the model's input: gathered, copied, converted.
    pub rows: usize,
    /// Bytes sent to other ranks, for ring algorithms; the memory that this takes is not part of the others.
    pub exchange: usize,
    /// Weights, gradients and optimizer state that the update moves, among the bytes above.
    #[serde(skip)]
    pub update: usize,
}

impl StepTraffic {
    /// Counts the bytes of a step of the rank.
    pub fn new(plan: &RankPlan<'_>) -> Self {
        let (layout, exchange) = (plan.layout(), plan.exchange());
        let RankPlan { config, spec, partition, .. } = *plan;
        let (train, world_size) = (partition.train, partition.train.world_size);
        let (precision, single) = (config.train.precision, DType::F32.size_bytes());
        let short = precision.activations().size_bytes();
        let (flat_len, own_len) = (layout.flat_len(), exchange.own_len());
        // With copies each rank updates those too.
        let updated_len = exchange.state_len();

        let row = plan.data.train.layout();
        let target_bytes = row.row_bytes() - row.n_features() * row.dtype.size_bytes();
        let buffers = plan.buffers(&layout);
        let global_rows = plan.global_rows();
        let n_micro_batches = train.n_micro_batches(global_rows);
        let mut passes = PassTraffic::default();
        for index in 0..n_micro_batches {
            let n_rows = train.micro_batch(global_rows, index).len();
            let PassTraffic { weights, gradients, activations } =
                PassTraffic::of(buffers, n_rows, target_bytes, exchange.way().writes(index));
            passes.weights += weights;
            passes.gradients += gradients;
            passes.activations += activations;
        }

        let n_rounded = exchange.way().n_rounded();
        let of_gradient = if n_rounded.is_some() { DType::BF16.size_bytes() } else { single };
        // Rows that come in the format of activations are not converted by the first layer.
        let is_converted = plan.device != Device::Cpu && plan.format_on_gpu() != DType::F32;
        let conversion =
            if is_converted { plan.step_rows() * row.n_features() * (single + short) } else { 0 };
        let has_norm = config.train.clip_grad_norm > 0.0
            || precision == Precision::F16
            || config.train.bad_steps.on_nonfinite != BadStep::Stop;
        let rounding = n_rounded.unwrap_or(0) * (single + of_gradient);
        let gradients = rounding + (updated_len + if has_norm { own_len } else { 0 }) * of_gradient;
        // The update writes the compute weights, unless ranks gather weights in f32: then they are rounded from those.
        let has_copy = precision.activations() != DType::F32;
        let copy = match (has_copy, exchange.gathers_weights()) {
            (false, _) => 0,
            (true, false) => flat_len * short,
            (true, true) if exchange.gathers_short_weights() => own_len * short,
            (true, true) => flat_len * (single + short),
        };
        let n_states =
            Optimizer::n_moments(&config.optimizer) + usize::from(config.optimizer.ema_decay > 0.0);

        let groups = ParamGroups::new(&config.optimizer, &layout);
        let whole = groups.as_ref().map_or(&[][..], ParamGroups::whole);
        let [norm_reads, state_reads] = two_passes(whole, own_len, flat_len / own_len, world_size);
        let layers = layers::from_spec(spec);
        let sent = exchange.bytes(n_micro_batches, whole, layers.iter().map(|layer| &**layer)).sent;
        let weights = (2 * updated_len + norm_reads) * single + copy;
        let optimizer = (2 * n_states * updated_len + state_reads) * single;
        StepTraffic {
            zero: plan.zero.number(),
            weights: passes.weights + weights,
            gradients: passes.gradients + gradients,
            optimizer,
            update: weights + gradients + optimizer,
            activations: passes.activations - conversion,
            rows: rows_moved(plan),
            exchange: sent as usize,
        }
    }

    /// Name, place and bytes of each kind.
    pub fn kinds(&self) -> [(&'static str, &'static str, usize); 6] {
        [
            ("weights", "device", self.weights),
            ("gradients", "device", self.gradients),
            ("optimizer", "device", self.optimizer),
            ("activations", "device", self.activations),
            ("rows", "device", self.rows),
            ("exchange", "sent", self.exchange),
        ]
    }
}

/// Elements of weights and of state that an optimizer with two passes reads and writes more than one with a single pass.
fn two_passes(whole: &[WholeParameter], own_len: usize, n_shards: usize, world_size: usize) -> [usize; 2] {
    let matrices: Vec<_> = whole.iter().filter_map(|whole| whole.matrix).collect();
    if whole.is_empty() {
        return [0, 0];
    }
    if matrices.is_empty() {
        // LAMB: the squares of weights and directions in one pass; then the step reads both moments, and writes the second one as it is.
        return [own_len, 5 * own_len];
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
            let gathered = row.n_features() * plan.format_on_gpu().size_bytes();
            stored + gathered + targets + DType::I64.size_bytes() * (1 + n_parts)
        }
        Device::Cuda(_) => plan.sent_row_bytes() + if converts { features + floats } else { 0 },
        Device::Cpu => stored + floats + targets,
    };
    plan.step_rows() * of_row
}
