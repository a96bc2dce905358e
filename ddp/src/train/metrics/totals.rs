//! All sums of an evaluation, merged over parts and ranks, and the metrics that follow from them.

use std::sync::Arc;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::ops::{self, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{KernelError, TensorMut, TensorRef};

use super::class_counts::ClassCounts;
use super::class_distances::ClassDistances;
use super::probabilities::{ProbabilitySums, softmax};
use super::request::{HeadRequest, MetricRequest};
use super::rows::{EvalRows, RowTargets};
use super::scores::{AllAreas, AllScores, Areas, EXACT_SCORES, OutputAreas, Scores};
use super::target_sums::{self, TargetSums};
use crate::config::{EvalMetric as M, MetricTable, Task};
use crate::data::{HeadOutputs, OutputUnits, cumulative, label_applies};
use crate::model::LossHead;
use crate::report::{ConfusionMatrix, EvalMetrics, EvalTables, NamedFigures};
use crate::train::error::Result;

/// Metrics that follow from the counts of classes.
const OF_CLASSES: [M; 6] =
    [M::BalancedAccuracy, M::PrecisionMacro, M::RecallMacro, M::F1Macro, M::F1Weighted, M::F1Micro];
/// Metrics that need the probabilities of classes.
const OF_PROBABILITIES: [M; 3] = [M::LogLoss, M::Top5Accuracy, M::Ece];
/// Metrics that need all scores.
const OF_SCORES: [M; 2] = [M::RocAuc, M::AveragePrecision];

/// Metrics of the distances between classes.
const OF_DISTANCES: [M; 2] = [M::ClassMae, M::QuadraticKappa];

/// Most sums that each rank gathers from all; more, such as those of a confusion matrix, are reduced.
const GATHERED_SUMS: usize = 1 << 14;
const SAME: &str = "all ranks measure the same";

/// Values that an evaluation must copy to the host for the requested metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) outputs: bool,
    /// Place of each row's largest output.
    pub(crate) predicted: bool,
}

impl Needs {
    pub(crate) fn of(request: &MetricRequest) -> Self {
        let metrics = &request.metrics;
        let probabilities = metrics.has_any(&OF_PROBABILITIES);
        match request.task {
            // The host finds the classes.
            Task::Classification if request.is_cumulative() => Needs { outputs: true, predicted: false },
            Task::Classification => Needs {
                outputs: probabilities || metrics.has_any(&OF_SCORES),
                predicted: probabilities || has_counts(request) || metrics.has_any(&OF_DISTANCES),
            },
            Task::Multilabel | Task::Regression | Task::Heads => Needs { outputs: true, predicted: false },
        }
    }
}

fn has_counts(request: &MetricRequest) -> bool {
    let tables = [MetricTable::PerClass, MetricTable::ConfusionMatrix];
    request.class_use && request.task == Task::Classification
        || request.metrics.has_any(&OF_CLASSES)
        || tables.iter().any(|table| request.metrics.has_table(*table))
}

/// Scores of the rows, where the request needs them; the heads share the number up to which areas are exact.
pub(crate) fn scores(request: &MetricRequest, n_outputs: usize, n_rows: usize) -> AllScores {
    scores_up_to(EXACT_SCORES / request.heads.len().max(1), request, n_outputs, n_rows)
}

fn scores_up_to(limit: usize, request: &MetricRequest, n_outputs: usize, n_rows: usize) -> AllScores {
    let is_multilabel = request.task == Task::Multilabel;
    let has_own = request.task != Task::Heads && request.metrics.has_any(&OF_SCORES);
    let of_head =
        |head: &HeadRequest| scores_up_to(limit, &head.request, head.of.targets.n_targets(), n_rows);
    AllScores {
        own: has_own.then(|| Scores::with_limit(n_outputs, is_multilabel, n_rows, limit)),
        heads: request.heads.iter().map(of_head).collect(),
    }
}

/// Sums over the rows of one part.
#[derive(Debug, Clone)]
pub(crate) struct Totals {
    task: Task,
    n_outputs: usize,
    pub(crate) loss: LossSums,
    /// Weight of the rows, of right rows or labels, and of rows whose labels are all right.
    weight: f64,
    pub(crate) n_correct: f64,
    n_all_correct: f64,
    classes: Option<ClassCounts>,
    distances: Option<ClassDistances>,
    probabilities: Option<ProbabilitySums>,
    /// One per target; none for other tasks.
    targets: Vec<TargetSums>,
    /// Whether outputs are logarithms of what they predict.
    are_logarithms: bool,
    /// Whether outputs are cumulative logits.
    are_cumulative: bool,
    /// Sums of each head of [`Task::Heads`].
    heads: Vec<HeadTotals>,
}

impl Totals {
    pub(crate) fn new(request: &MetricRequest, n_outputs: usize) -> Self {
        let n_targets = if request.task == Task::Regression { n_outputs } else { 0 };
        let classes = (has_counts(request) && request.task != Task::Heads)
            .then(|| ClassCounts::new(n_outputs, request.has_confusion_matrix(n_outputs)));
        let has_own = |metrics: &[M]| request.task != Task::Heads && request.metrics.has_any(metrics);
        Totals {
            task: request.task,
            n_outputs,
            loss: LossSums::default(),
            weight: 0.0,
            n_correct: 0.0,
            n_all_correct: 0.0,
            classes: classes.filter(|_| request.task != Task::Regression),
            distances: has_own(&OF_DISTANCES).then(ClassDistances::default),
            probabilities: has_own(&OF_PROBABILITIES).then(ProbabilitySums::new),
            targets: vec![TargetSums::new(); n_targets],
            are_logarithms: request.units == OutputUnits::Logarithms,
            are_cumulative: request.is_cumulative(),
            heads: request.heads.iter().map(HeadTotals::new).collect(),
        }
    }

    /// Adds a batch. The losses, and for classification the right rows, are added up on the device.
    pub(crate) fn add(&mut self, rows: &EvalRows<'_>, scores: &mut AllScores) {
        let AllScores { own, heads: of_heads } = scores;
        let scores = own.as_mut();
        self.weight += rows.weights().sum::<f64>();
        match self.task {
            Task::Classification if self.are_cumulative => self.add_cumulative(rows, scores),
            Task::Classification => self.add_classes(rows, scores),
            Task::Multilabel => self.add_labels(rows, scores),
            Task::Regression => self.add_targets(rows),
            Task::Heads => {
                self.heads.iter_mut().zip(of_heads).for_each(|(head, scores)| head.add(rows, scores))
            }
        }
    }

    /// Adds a batch of cumulative logits, one less per row than there are classes.
    fn add_cumulative(&mut self, rows: &EvalRows<'_>, scores: Option<&mut Scores>) {
        let (mut outputs, mut predicted) = (Vec::new(), Vec::with_capacity(rows.n_rows));
        for logits in rows.outputs.chunks_exact(self.n_outputs - 1) {
            predicted.push(cumulative::class_of(logits).map_or(-1, |class| class as i64));
            // Of these the softmax is the probabilities.
            outputs.extend(cumulative::probabilities(logits).into_iter().map(|value| value.ln() as f32));
        }
        let rows = EvalRows { outputs: &outputs, predicted: &predicted, ..*rows };
        for ((label, &predicted), weight) in rows.labels().zip(rows.predicted).zip(rows.weights()) {
            self.n_correct += if predicted == label as i64 { weight } else { 0.0 };
        }
        self.add_classes(&rows, scores);
    }

    fn add_classes(&mut self, rows: &EvalRows<'_>, scores: Option<&mut Scores>) {
        if let Some(distances) = &mut self.distances {
            distances.add(rows);
        }
        if let Some(classes) = &mut self.classes {
            classes.add_classes(rows);
        }
        if self.probabilities.is_none() && scores.is_none() {
            return;
        }
        let probabilities = softmax(rows.outputs, self.n_outputs);
        if let Some(sums) = &mut self.probabilities {
            sums.add(rows, &probabilities, self.n_outputs);
        }
        let Some(scores) = scores else { return };
        let of_rows = probabilities.chunks_exact(self.n_outputs).zip(rows.labels()).zip(rows.weights());
        for ((probabilities, label), weight) in of_rows {
            scores.add(weight, |class| (probabilities[class], class == label));
        }
    }

    fn add_labels(&mut self, rows: &EvalRows<'_>, mut scores: Option<&mut Scores>) {
        if let Some(classes) = &mut self.classes {
            classes.add_labels(rows);
        }
        for (row, weight) in rows.values(self.n_outputs) {
            let is_right = |(output, target): (f32, f32)| label_applies(output) == (target > 0.5);
            let n_right = row.clone().filter(|&label| is_right(label)).count();
            self.n_correct += weight * n_right as f64;
            self.n_all_correct += if n_right == self.n_outputs { weight } else { 0.0 };
            if let Some(scores) = scores.as_deref_mut() {
                let labels: Vec<(f32, f32)> = row.collect();
                let sigmoid = |output: f32| 1.0 / (1.0 + (-f64::from(output)).exp());
                scores.add(weight, |label| (sigmoid(labels[label].0), labels[label].1 > 0.5));
            }
        }
    }

    fn add_targets(&mut self, rows: &EvalRows<'_>) {
        for (row, weight) in rows.values(self.n_outputs) {
            for (sums, (output, target)) in self.targets.iter_mut().zip(row) {
                let output = f64::from(output);
                let predicted = if self.are_logarithms { output.exp() } else { output };
                sums.merge(&TargetSums::of(f64::from(target), predicted, weight));
            }
        }
    }

    /// All sums that merge by addition.
    fn sums_mut(&mut self) -> Vec<&mut [f64]> {
        use std::slice::from_mut;
        let mut sums = vec![
            from_mut(&mut self.loss.loss),
            from_mut(&mut self.loss.weight),
            from_mut(&mut self.weight),
            from_mut(&mut self.n_correct),
            from_mut(&mut self.n_all_correct),
        ];
        sums.extend(self.classes.iter_mut().flat_map(ClassCounts::sums_mut));
        sums.extend(self.distances.iter_mut().map(ClassDistances::sums_mut));
        sums.extend(self.probabilities.iter_mut().map(ProbabilitySums::sums_mut));
        sums
    }

    fn sums(&mut self) -> Vec<f64> {
        self.sums_mut().iter().flat_map(|sums| sums.iter().copied()).collect()
    }

    /// Values that merge in another way, and those of the heads.
    fn others(&mut self) -> Vec<f64> {
        let heads = self.heads.iter_mut().flat_map(|head| head.totals.values());
        bytemuck::cast_slice(&self.targets).iter().copied().chain(heads).collect()
    }

    fn values(&mut self) -> Vec<f64> {
        [self.sums(), self.others()].concat()
    }

    /// Merges the first of `values`, as many as [`Totals::values`] returns.
    fn merge_values(&mut self, values: &mut impl Iterator<Item = f64>) {
        for sum in self.sums_mut().into_iter().flatten() {
            *sum += values.next().expect(SAME);
        }
        self.merge_others(values);
    }

    /// Merges the first of `values`, as many as [`Totals::others`] returns.
    fn merge_others(&mut self, values: &mut impl Iterator<Item = f64>) {
        for sums in &mut self.targets {
            let mut other = TargetSums::new();
            bytemuck::cast_slice_mut::<TargetSums, f64>(std::slice::from_mut(&mut other))
                .fill_with(|| values.next().expect(SAME));
            sums.merge(&other);
        }
        self.heads.iter_mut().for_each(|head| head.totals.merge_values(values));
    }

    /// Totals of the `n_parts` parts of all ranks, added in their order. Collective.
    pub(crate) fn from_all_ranks(
        world: &World,
        request: &MetricRequest,
        n_outputs: usize,
        n_parts: usize,
        mut parts: Vec<(usize, Totals)>,
    ) -> Result<Self> {
        let mut all = Totals::new(request, n_outputs);
        let n_sums = all.sums().len();
        if n_parts <= world.world_size() && n_sums > GATHERED_SUMS {
            // One part per rank: the sums of all are those of an all-reduce, which moves two parts per rank, not all of them to each.
            let mut own = parts.pop().map_or_else(|| Totals::new(request, n_outputs), |(_, totals)| totals);
            let mut sums = own.sums();
            world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut sums, &[n_sums])?)?;
            all.sums_mut().into_iter().flatten().zip(sums).for_each(|(of_all, sum)| *of_all = sum);
            for of_rank in world.group().all_gather_bytes(bytemuck::cast_slice(&own.others()))? {
                all.merge_others(&mut bytemuck::pod_collect_to_vec::<u8, f64>(&of_rank).into_iter());
            }
            return Ok(all);
        }
        let values: Vec<f64> = parts.iter_mut().flat_map(|(_, totals)| totals.values()).collect();
        let part_bytes = all.values().len() * size_of::<f64>();
        for of_rank in world.group().all_gather_bytes(bytemuck::cast_slice(&values))? {
            for of_part in of_rank.chunks_exact(part_bytes) {
                let values = bytemuck::pod_collect_to_vec::<u8, f64>(of_part);
                all.merge_values(&mut values.into_iter());
            }
        }
        Ok(all)
    }

    /// Sum of the rows' weights.
    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    /// The metrics that the request asks for, where they are defined.
    pub(crate) fn metrics(&self, request: &MetricRequest, all_areas: &AllAreas) -> EvalMetrics {
        let areas = all_areas.own.as_ref();
        let is_multilabel = self.task == Task::Multilabel;
        let mut metrics = EvalMetrics::default();
        let mut put = |metric: M, value: Option<f64>| {
            if request.metrics.has(metric) {
                metrics = std::mem::take(&mut metrics).with(metric, value);
            }
        };
        put(M::Loss, (self.loss.weight > 0.0).then(|| self.loss.mean()));
        let share = |part: f64, of: f64| (of > 0.0).then(|| part / of);
        match self.task {
            Task::Classification => put(M::Accuracy, share(self.n_correct, self.weight)),
            Task::Multilabel => {
                put(M::Accuracy, share(self.n_correct, self.weight * self.n_outputs as f64));
                put(M::SubsetAccuracy, share(self.n_all_correct, self.weight));
            }
            Task::Regression | Task::Heads => {}
        }
        if let Some(classes) = &self.classes {
            let averages = classes.averages(is_multilabel);
            put(M::BalancedAccuracy, averages.balanced_accuracy);
            put(M::PrecisionMacro, averages.precision_macro);
            put(M::RecallMacro, averages.recall_macro);
            put(M::F1Macro, averages.f1_macro);
            put(M::F1Weighted, averages.f1_weighted);
            put(M::F1Micro, averages.f1_micro);
        }
        if let Some(sums) = &self.probabilities {
            put(M::LogLoss, (self.weight > 0.0).then(|| sums.log_loss(self.weight)));
            put(M::Top5Accuracy, sums.top_5(self.weight, self.n_outputs));
            put(M::Ece, (self.weight > 0.0).then(|| sums.ece(self.weight)));
        }
        if let Some(distances) = &self.distances {
            put(M::ClassMae, distances.mean());
            put(M::QuadraticKappa, distances.quadratic_kappa());
        }
        if let Some(areas) = areas {
            put(M::RocAuc, areas.mean(Areas::roc_auc));
            put(M::AveragePrecision, areas.mean(Areas::average_precision));
        }
        let targets = self.targets_in_units(request);
        put(M::Mae, target_sums::mean(&targets, TargetSums::mae));
        put(M::Rmse, target_sums::mean(&targets, TargetSums::rmse));
        put(M::R2, target_sums::mean(&targets, TargetSums::r2));
        let is_approximate = areas.is_some_and(|areas| areas.is_approximate);
        let classes = self.classes.as_ref().filter(|_| request.class_use && !is_multilabel);
        let class_use = classes.and_then(|classes| classes.class_use(|class| request.output_name(class)));
        metrics
            .with_tables(self.tables(request, &targets, all_areas))
            .approximate(is_approximate)
            .with_class_use(class_use)
    }

    /// The targets' sums in the user's units: the only place where the scale of targets is undone in metrics.
    fn targets_in_units(&self, request: &MetricRequest) -> Vec<TargetSums> {
        let scale = |target: usize| match &request.units {
            OutputUnits::Standardized(scale) => scale.scale[target],
            OutputUnits::Targets | OutputUnits::Logarithms | OutputUnits::Cumulative => 1.0,
        };
        self.targets.iter().enumerate().map(|(target, sums)| sums.in_units(scale(target))).collect()
    }

    fn tables(&self, request: &MetricRequest, targets: &[TargetSums], all_areas: &AllAreas) -> EvalTables {
        let of_output = |output| all_areas.own.as_ref().and_then(|areas: &OutputAreas| areas.of(output));
        let named = |output: usize, figures| NamedFigures { name: request.output_name(output), figures };
        let mut tables = EvalTables::default();
        if let (Some(classes), true) = (&self.classes, request.metrics.has_table(MetricTable::PerClass)) {
            for (class, mut figures) in classes.figures(self.task == Task::Multilabel) {
                let areas = of_output(class);
                let roc_auc = areas.and_then(|areas| areas.roc_auc()).map(|value| ("roc_auc", value));
                let precision = areas.and_then(|areas| areas.average_precision());
                figures.extend(roc_auc.filter(|_| request.metrics.has(M::RocAuc)));
                let precision = precision.filter(|_| request.metrics.has(M::AveragePrecision));
                figures.extend(precision.map(|value| ("average_precision", value)));
                tables.per_class.push(named(class, figures));
            }
        }
        if request.metrics.has_table(MetricTable::PerTarget) {
            for (target, sums) in targets.iter().enumerate() {
                let figures = [("mae", sums.mae()), ("rmse", sums.rmse()), ("r2", sums.r2())];
                let figures = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
                tables.per_target.push(named(target, figures.collect()));
            }
        }
        tables.confusion_matrix = self.classes.as_ref().and_then(ClassCounts::confusion).map(|counts| {
            let classes = (0..self.n_outputs).map(|class| request.output_name(class)).collect();
            ConfusionMatrix { classes, counts }
        });
        let heads = request.heads.iter().zip(&self.heads).zip(&all_areas.heads);
        let metrics = |((head, sums), areas): ((&HeadRequest, &HeadTotals), &AllAreas)| {
            (head.of.targets.name.clone(), sums.totals.metrics(&head.request, areas))
        };
        tables.heads = heads.map(metrics).collect();
        tables
    }
}

/// Sums of one head over the rows of one part.
#[derive(Debug, Clone)]
struct HeadTotals {
    of: HeadOutputs,
    loss: Arc<LossHead>,
    totals: Totals,
}

impl HeadTotals {
    fn new(head: &HeadRequest) -> Self {
        let HeadRequest { of, loss, request } = head;
        let totals = Totals::new(request, of.targets.n_targets());
        HeadTotals { of: of.clone(), loss: loss.clone(), totals }
    }

    /// Adds the rows of a batch that have this head's targets.
    fn add(&mut self, all: &EvalRows<'_>, scores: &mut AllScores) {
        let HeadOutputs { outputs, columns, .. } = &self.of;
        let RowTargets::Values(targets) = all.targets else { unreachable!("heads have columns of targets") };
        if all.n_rows == 0 {
            return;
        }
        let (n_outputs, n_targets) = (all.outputs.len() / all.n_rows, targets.len() / all.n_rows);
        let outputs = HeadOutputs::select(outputs, all.outputs, n_outputs);
        let mut targets = HeadOutputs::select(columns, targets, n_targets);
        let mut weights: Vec<f32> = all.weights().map(|weight| weight as f32).collect();
        for (of_row, weight) in targets.chunks_exact_mut(columns.len()).zip(&mut weights) {
            if of_row.iter().any(|target| target.is_nan()) {
                of_row.fill(0.0);
                *weight = 0.0;
            }
        }
        let labels: Vec<i64> = targets.iter().map(|&target| target as i64).collect();
        let has_classes = self.of.targets.labels.is_some();
        let rows = EvalRows {
            n_rows: all.n_rows,
            outputs: &outputs,
            predicted: &[],
            targets: if has_classes { RowTargets::Labels(&labels) } else { RowTargets::Values(&targets) },
            weights: Some(&weights),
        };
        self.add_loss(&rows).expect("operands of the loss in host memory");
        if !has_classes || self.totals.are_cumulative {
            return self.totals.add(&rows, scores);
        }
        let predicted = predicted(&rows, self.of.outputs.len()).expect("outputs in host memory");
        for ((predicted, label), weight) in predicted.iter().zip(&labels).zip(rows.weights()) {
            self.totals.n_correct += if predicted == label { weight } else { 0.0 };
        }
        self.totals.add(&EvalRows { predicted: &predicted, ..rows }, scores);
    }

    fn add_loss(&mut self, rows: &EvalRows<'_>) -> std::result::Result<(), KernelError> {
        let mut tail = [0.0f32; STEP_SUMS_LEN];
        let sums = SumsOutput {
            tail: TensorMut::from_slice(&mut tail, &[STEP_SUMS_LEN])?,
            accumulate: false,
            extra: None,
        };
        let outputs = TensorRef::from_slice(rows.outputs, &[rows.n_rows, self.of.outputs.len()])?;
        let targets = match rows.targets {
            RowTargets::Labels(labels) => TensorRef::from_slice(labels, &[rows.n_rows])?,
            RowTargets::Values(values) => {
                TensorRef::from_slice(values, &[rows.n_rows, self.of.columns.len()])?
            }
        };
        let weights =
            rows.weights.map(|weights| TensorRef::from_slice(weights, &[rows.n_rows])).transpose()?;
        self.loss.apply(outputs, targets, weights, 1.0, None, sums)?;
        self.totals.loss += LossSums::load(&tail);
        Ok(())
    }
}

/// Place of each row's largest output, -1 for none.
fn predicted(rows: &EvalRows<'_>, n_outputs: usize) -> std::result::Result<Vec<i64>, KernelError> {
    let mut predicted = vec![0; rows.n_rows];
    let outputs = TensorRef::from_slice(rows.outputs, &[rows.n_rows, n_outputs])?;
    ops::argmax(outputs, TensorMut::from_slice(&mut predicted, &[rows.n_rows])?)?;
    Ok(predicted)
}
