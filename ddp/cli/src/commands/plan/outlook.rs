//! The plan of a run for one number of ranks.

use ddp::cost::memory_plan::RankPlan;
use ddp::cost::step_time::StepTime;
use ddp::data::order::partition::GlobalBatches;
use ddp::model::layers;
use ddp::optim::param_groups::ParamGroups;
use serde::Serialize;

use super::memory::RankMemory;
use super::subject::Subject;

/// One JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Outlook {
    plan: String,
    device: &'static str,
    per_host: usize,
    pub(super) world_size: usize,
    /// Always true.
    is_estimate: bool,
    /// The error that would keep the run from training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impossible: Option<String>,
    #[serde(flatten)]
    pub(super) estimate: Option<Estimate>,
}

/// Memory, exchange and time of a step.
#[derive(Debug, Serialize)]
pub(super) struct Estimate {
    /// Parameters of the model.
    parameters: usize,
    /// Training rows.
    pub(super) rows: usize,
    /// Rows of a step over all ranks.
    pub(super) global_rows: usize,
    /// Micro-batches of a step, and rows of the largest one.
    micro_batches: usize,
    micro_batch_rows: usize,
    #[serde(flatten)]
    pub(super) memory: RankMemory,
    /// Collectives of gradients and weights in a step.
    pub(super) exchange: String,
    buckets: usize,
    /// Bytes that a rank sends per step, by ring algorithms.
    pub(super) sent_bytes: u64,
    #[serde(flatten)]
    pub(super) time: StepTime,
    pub(super) samples_per_s: f64,
    /// Samples per second relative to that many single ranks.
    pub(super) scaling_efficiency: f64,
    steps_per_epoch: usize,
    pub(super) epoch_s: f64,
    /// Remarks on the partition of rows.
    pub(super) notes: Vec<String>,
}

impl Outlook {
    /// Plans the run for `n_ranks` ranks; a run that is impossible with them is part of the plan.
    pub(super) fn new(subject: &Subject, n_ranks: usize) -> Self {
        let estimate = subject.with_plan(&subject.config, n_ranks, |plan| Estimate::new(subject, plan));
        let (impossible, estimate) = match estimate {
            Ok(estimate) => (None, Some(estimate)),
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                (Some(error.message() + &hint), None)
            }
        };
        Outlook {
            plan: subject.config.name.clone(),
            device: subject.machine.hardware.name,
            per_host: subject.machine.per_host,
            world_size: n_ranks,
            is_estimate: true,
            impossible,
            estimate,
        }
    }
}

impl Estimate {
    fn new(subject: &Subject, plan: &RankPlan<'_>) -> Self {
        let (layout, exchange, global_rows) = (plan.layout(), plan.exchange(), plan.global_rows());
        let (train, n_rows) = (plan.partition.train, plan.data.train.len());
        let time_of = |plan: &RankPlan<'_>| StepTime::new(plan, &subject.machine);
        let per_s = |plan: &RankPlan<'_>| plan.global_rows() as f64 / time_of(plan).step_ms * 1e3;
        let per_s_alone = subject.with_plan(&subject.config, 1, per_s).unwrap_or(f64::NAN);
        let micro_batches = train.n_micro_batches(global_rows);
        let groups = ParamGroups::new(&plan.config.optimizer, &layout);
        let whole = groups.as_ref().map_or(&[][..], ParamGroups::whole);
        let layers = layers::from_spec(plan.spec);
        let samples_per_s = per_s(plan);
        let steps_per_epoch = GlobalBatches::steps_per_epoch(n_rows, global_rows);
        Estimate {
            parameters: layout.n_params(),
            rows: n_rows,
            global_rows,
            micro_batches,
            micro_batch_rows: train.micro_batch(global_rows, 0).len(),
            memory: RankMemory::new(subject, plan),
            exchange: exchange.describe(micro_batches),
            buckets: exchange.n_buckets(),
            sent_bytes: exchange.bytes(micro_batches, whole, layers.iter().map(|layer| &**layer)).sent,
            time: time_of(plan),
            samples_per_s,
            scaling_efficiency: samples_per_s / (per_s_alone * train.world_size as f64),
            steps_per_epoch,
            epoch_s: n_rows as f64 / samples_per_s,
            notes: notes(plan),
        }
    }
}

/// Remarks on rows that the ranks cannot share evenly.
fn notes(plan: &RankPlan<'_>) -> Vec<String> {
    let (rows, n_ranks) = (plan.global_rows(), plan.partition.train.world_size);
    let mut notes = Vec::new();
    if plan.partition.global_rows > rows {
        notes.push(format!("a step of {} rows takes all {rows} training rows", plan.partition.global_rows));
    }
    if rows < n_ranks {
        notes.push(format!(
            "{} of {n_ranks} ranks have no rows in any step of {rows}; train.global_batch_size = {n_ranks} or more gives each some",
            n_ranks - rows
        ));
    } else if rows % n_ranks > 0 {
        notes.push(format!(
            "a step of {rows} rows does not divide by {n_ranks} ranks: {} of them have {} rows, the others {}, and wait for those",
            rows % n_ranks,
            rows / n_ranks + 1,
            rows / n_ranks
        ));
    }
    notes
}
