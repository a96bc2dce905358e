//! Time of a training step on one of several ranks: its operations one after another, and the exchange of buckets next to them.
//!
//! The all-reduce of a bucket begins when backward has finished its gradients and the bucket before it is reduced. On the CPU the cores
//! that compute also sum, so nothing is hidden; on a GPU collectives slow nothing down. Evaluations, checkpoints, reading of files and
//! waiting for late ranks are not counted.

use ddp_kernels::DType;
use serde::Serialize;

use crate::config::ZeroStage;
use crate::config::precision::Precision;
use crate::cost::machine::{Machine, RankSpeed};
use crate::cost::memory_plan::RankPlan;
use crate::cost::step_traffic::StepTraffic;
use crate::data::order::partition::PartitionKind;
use crate::exchange::bucket_plan::TAIL_ELEMENTS;
use crate::exchange::plan::ExchangePlan;
use crate::model::{Flop, PassOperation, layers};

/// Predicted time of the largest step by part, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StepTime {
    /// Start of the step, and rows on their way to the model's input.
    pub input_ms: f64,
    /// Outputs.
    pub forward_ms: f64,
    /// Loss and gradients.
    pub backward_ms: f64,
    /// All collectives.
    pub exchange_ms: f64,
    /// The part of the collectives that no computation hides.
    pub exposed_exchange_ms: f64,
    /// Norm of the gradient and optimizer.
    pub update_ms: f64,
    /// Copies from host memory, next to the computation of the step before.
    pub host_to_device_ms: f64,
    /// The step.
    pub step_ms: f64,
    /// Floating-point operations of the matmuls of the rank.
    #[serde(skip)]
    pub flop: f64,
}

/// A collective that reduces a range of the gradients.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// Its gradients are finished when all before this element are.
    end: usize,
    ms: f64,
    /// Update of its weights after it, next to later messages; 0 if the update waits for all.
    update_ms: f64,
}

impl StepTime {
    /// Predicts the time of the largest step of the plan on this machine.
    pub fn new(plan: &RankPlan<'_>, machine: &Machine) -> Self {
        let (layout, exchange, global_rows) = (plan.layout(), plan.exchange(), plan.global_rows());
        let train = plan.partition.train;
        let speed = machine.rank(train.world_size, plan.config.train.precision);
        let row = plan.data.train.layout();
        let target_bytes = row.row_bytes() - row.n_features() * row.dtype.size_bytes();
        let n_micro = train.n_micro_batches(global_rows).max(1);
        let pass = |index: usize| {
            let n_rows = train.micro_batch(global_rows, index).len();
            PassOperation::list(plan.buffers(&layout), n_rows, target_bytes, exchange.way().writes(index))
        };
        let (first, last) = (pass(0), pass(n_micro - 1));
        let ms = |operation: &PassOperation| operation_ms(operation, &speed, plan);
        let sum = |pass: &[PassOperation], is_backward: bool| -> f64 {
            pass.iter().filter(|operation| operation.is_backward == is_backward).map(ms).sum()
        };
        let of_passes =
            |is_backward| sum(&first, is_backward) + (n_micro - 1) as f64 * sum(&last, is_backward);

        let traffic = StepTraffic::new(plan);
        let flop = Flop::per_row(&layers::from_spec(plan.spec));
        let flop = (flop.forward + flop.backward) as f64 * plan.step_rows() as f64;
        let ratio = speed.step_ratio(flop);
        let inputs =
            speed.bytes_ms(traffic.rows) + if speed.is_gpu() { 2.0 * speed.operation_ms() } else { 0.0 };
        let uploaded = if plan.keeps_rows_on_device { 0 } else { plan.step_rows() * plan.sent_row_bytes() };
        let mut time = StepTime {
            input_ms: ratio * (speed.start_ms() + inputs),
            forward_ms: ratio * of_passes(false),
            backward_ms: ratio * of_passes(true),
            update_ms: ratio * speed.bytes_ms(traffic.update),
            host_to_device_ms: speed.upload_ms(uploaded),
            flop,
            ..StepTime::default()
        };
        if train.world_size > 1 {
            let timeline: Vec<(f64, Option<usize>)> =
                last.iter().filter(|op| op.is_backward).map(|op| (ratio * ms(op), op.finishes)).collect();
            time.add_exchange(plan, &exchange, &speed, &timeline, n_micro);
        }
        let local_ms = time.input_ms + time.forward_ms + time.backward_ms + time.update_ms;
        // Rows of the next step are copied meanwhile.
        time.step_ms = (local_ms + time.exposed_exchange_ms).max(time.host_to_device_ms);
        time
    }

    fn add_exchange(
        &mut self,
        plan: &RankPlan<'_>,
        exchange: &ExchangePlan,
        speed: &RankSpeed<'_>,
        timeline: &[(f64, Option<usize>)],
        n_micro: usize,
    ) {
        let flat_len = plan.layout().flat_len();
        let is_tree = matches!(plan.partition.train.kind, PartitionKind::MicroShards { .. });
        let element =
            if exchange.way().n_rounded().is_some() { DType::BF16 } else { DType::F32 }.size_bytes();
        let overlaps = speed.is_gpu() && plan.config.comm.overlap && !is_tree;
        // A reduce-scatter and an all-gather are the halves of an all-reduce.
        let (part, n_sweeps) = match plan.zero {
            ZeroStage::Off => (1.0, 1),
            _ if is_tree => (1.0, 1),
            ZeroStage::Optimizer => (0.5, 1),
            ZeroStage::Gradients => (0.5, n_micro),
        };
        let lens = if is_tree { vec![flat_len + TAIL_ELEMENTS] } else { exchange.bucket_lens.clone() };
        let updates = exchange.way().updates_buckets();
        let mut end = 0;
        let messages: Vec<Message> = lens
            .into_iter()
            .map(|len| {
                end += len;
                let ms = part * speed.all_reduce_ms(len * element);
                let update_ms = if updates { self.update_ms * len as f64 / flat_len as f64 } else { 0.0 };
                Message { end: end.min(flat_len), ms, update_ms }
            })
            .collect();
        let exposed =
            if overlaps { exposed_ms(timeline, &messages) } else { messages.iter().map(|one| one.ms).sum() };
        self.exchange_ms = n_sweeps as f64 * messages.iter().map(|one| one.ms).sum::<f64>();
        let mut more = 0.0;
        if exchange.gathers_weights() {
            more += 0.5 * speed.all_reduce_ms(exchange.gathered_bytes());
        }
        // What layers gather in a pass, forward and backward.
        let layers = layers::from_spec(plan.spec);
        let of_layers = layers.iter().map(|layer| layer.exchanged_per_pass()).filter(|len| *len > 0);
        more += of_layers.map(|len| speed.all_reduce_ms(len * DType::F64.size_bytes())).sum::<f64>()
            * n_micro as f64;
        self.exchange_ms += more;
        self.exposed_exchange_ms = n_sweeps as f64 * exposed + more;
    }
}

/// Time of an operation of a pass.
fn operation_ms(operation: &PassOperation, speed: &RankSpeed<'_>, plan: &RankPlan<'_>) -> f64 {
    let bytes = operation.traffic.total();
    let Some(sizes) = operation.matmul else { return speed.bytes_ms(bytes) };
    // In f32 the derivative of an activation is a kernel of its own, which reads two values and writes one: cuBLASLt's epilogue is slower.
    let is_fused = matches!(plan.config.train.precision, Precision::Bf16 | Precision::F16) || !speed.is_gpu();
    let derivative =
        if is_fused { 0 } else { 3 * sizes[0] * operation.derivative_width * DType::F32.size_bytes() };
    speed.matmul_ms(sizes, bytes) + speed.bytes_ms(derivative)
}

/// Time after the end of backward until all messages are exchanged, without the update of their weights.
///
/// - `timeline`: the time of each operation of backward, and the element before which all gradients are finished then
fn exposed_ms(timeline: &[(f64, Option<usize>)], messages: &[Message]) -> f64 {
    let backward_ms: f64 = timeline.iter().map(|(ms, _)| ms).sum();
    let mut operations = timeline.iter();
    let (mut now, mut finished) = (0.0, 0);
    let (mut is_free, mut is_updated): (f64, f64) = (0.0, 0.0);
    for message in messages {
        while finished < message.end {
            let Some((ms, finishes)) = operations.next() else { break };
            now += ms;
            finished = finishes.unwrap_or(finished);
        }
        is_free = is_free.max(now) + message.ms;
        // Updates run in the stream of backward.
        is_updated = is_updated.max(is_free).max(backward_ms) + message.update_ms;
    }
    let update_ms: f64 = messages.iter().map(|message| message.update_ms).sum();
    let exposed_ms = is_updated.max(is_free) - backward_ms - update_ms;
    // Sums of the same times in another order differ by their rounding.
    if exposed_ms > 1e-9 * backward_ms { exposed_ms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exchanged_behind_backward() {
        let timeline = [(1.0, None), (1.0, Some(10)), (2.0, None), (1.0, Some(20)), (3.0, None)];
        let message = |end, ms| Message { end, ms, update_ms: 0.0 };
        // Ready at 2 and 5 of 8: the second one waits for the first until 6.
        assert_eq!(exposed_ms(&timeline, &[message(10, 4.0), message(20, 1.5)]), 0.0);
        assert_eq!(exposed_ms(&timeline, &[message(10, 4.0), message(20, 5.0)]), 3.0);
        assert_eq!(exposed_ms(&timeline, &[message(10, 1.0), message(20, 5.0)]), 2.0);
        // One bucket cannot begin before all gradients are finished.
        assert_eq!(exposed_ms(&timeline, &[message(20, 9.0)]), 6.0);
        // The update of the first bucket hides a part of the second one.
        let updated = |end, ms| Message { end, ms, update_ms: 2.0 };
        assert_eq!(exposed_ms(&timeline, &[updated(10, 4.0), updated(20, 5.0)]), 1.0);
    }
}
