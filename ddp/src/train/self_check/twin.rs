//! The steps of a GPU and of its twin on the CPU, compared.

use std::collections::BTreeSet;

use ddp_comm::{Rank, World};
use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;

use super::difference::{
    Comparison, Tolerances, magnitude, mean_difference, relative_difference, root_mean_square,
};
use super::limits::limited;
use crate::config::precision::Precision;
use crate::config::{Batch, Config, Determinism};
use crate::data::loader::{DataLoader, LoadedStep};
use crate::data::step_rows::StepRows as _;
use crate::data::{Loaded, made_up_rows};
use crate::model::layers;
use crate::train::error::Result;
use crate::train::setup::{self, BatchPartition};
use crate::train::step_info::PlannedStep;
use crate::train::trainer::{GraphMode, Named, StepOutcome, StepRequest, StepValues, Trainer};

/// Steps over full batches: one runs kernel by kernel, and one is captured for each of the two places of input rows.
const N_FULL: usize = 3;
/// Rows of the last step, which runs kernel by kernel.
const TAIL_ROWS: usize = 11;
/// Rounding of a weight, relative to the largest one of its parameter: two units in the last place.
const ROUNDING: f64 = 1.0 / (1 << 22) as f64;

/// Trains the [`limited`] model of `config` on `device` for an epoch of four steps, repeats each step on the CPU, and compares rows, layers,
/// gradients and update. A difference is a result, no error.
///
/// # Errors
/// [`TrainError`](crate::train::TrainError) for a config that cannot be trained, and of work on the device that fails.
pub fn compare_with_cpu(config: &Config, device: Device, graph: GraphMode) -> Result<Vec<Comparison>> {
    let Device::Cuda(index) = device else { return compared(config, device, graph) };
    let gpu = Gpu::get(index)?;
    let _mode = (config.train.deterministic != Determinism::Off).then(|| gpu.deterministic_mode());
    // The products of the limited model are smaller than those that are faster so.
    gpu.set_splits_all(config.train.precision == Precision::F32x3);
    let found = compared(config, device, graph);
    gpu.set_splits_all(false);
    found
}

fn compared(config: &Config, device: Device, graph: GraphMode) -> Result<Vec<Comparison>> {
    let world = World::single();
    let mut config = limited(config);
    let rows = match config.train.batch {
        Batch::Global(rows) | Batch::PerRank(rows) => rows,
    };
    let data = made_up_rows(&config, N_FULL * rows + TAIL_ROWS.min(rows - 1))?;
    if config.loss.is_balanced() {
        // As if each class had another number of rows.
        let n_classes = data.train.layout().targets.n_outputs() as u64;
        config.loss = config.loss.with_class_counts(&Vec::from_iter(1..=n_classes));
    }
    let mut gpu = Side::new(&world, &config, &data, device, graph)?;
    let mut cpu = Side::new(&world, &config, &data, Device::Cpu, GraphMode::Off)?;
    let mut rounding = Rounding::new(&world, &config, &data)?;
    let tolerances = Tolerances::of(config.train.precision, config.optimizer.kind);
    let mut found = Found { tolerances, loss: 0.0, list: Vec::new() };
    let initial = gpu.trainer.model().weights().to_vec::<f32>()?;
    let own = cpu.trainer.model().weights().to_vec::<f32>()?;
    found.parameters("initial value", &cpu.trainer, &initial, &own, None);
    for step in 0..=N_FULL {
        if !compare_step(&mut gpu, &mut cpu, &mut rounding, step == N_FULL, &mut found)? {
            break;
        }
    }
    Ok(found.list)
}

/// The operations that a run of this config consists of, in words: two runs with the same words compute by the same code, but for the
/// sizes of their layers.
///
/// # Errors
/// Same as [`made_up_rows`].
pub fn operations(config: &Config) -> Result<String> {
    let config = limited(config);
    let spec = setup::model_spec(&config, &made_up_rows(&config, 2)?);
    let kinds: BTreeSet<String> =
        layers::from_spec(&spec).iter().map(|layer| without_numbers(&layer.describe())).collect();
    let (Config { train, optimizer, loss, data, .. }, mut words) = (&config, Vec::from_iter(kinds));
    words.push(without_numbers(&format!("{loss:?}")));
    words.push(format!("{} {} {:?}", optimizer.kind, train.precision.name(), train.deterministic));
    words.push(format!("{:?} {:?} {}", data.placement, data.normalize, data.weight.is_some()));
    let numbers = [train.clip_grad_norm, optimizer.ema_decay, optimizer.weight_decay, optimizer.momentum];
    words.push(numbers.map(|number| (number > 0.0).to_string()).join(" "));
    words.push(format!(
        "{} {:?} {}",
        train.grad_accum_steps, train.bad_steps.on_nonfinite, optimizer.nesterov
    ));
    Ok(words.join("; "))
}

fn without_numbers(text: &str) -> String {
    text.split(|c: char| c.is_ascii_digit()).collect()
}

/// A trainer and its rows.
struct Side<'w> {
    trainer: Trainer<'w>,
    loader: DataLoader,
}

impl<'w> Side<'w> {
    fn new(
        world: &'w World,
        config: &Config,
        data: &Loaded,
        device: Device,
        graph: GraphMode,
    ) -> Result<Self> {
        let partition = BatchPartition::for_rank(config, Rank(0), 1, data, None)?;
        let trainer = setup::trainer(world, graph, config, data, &partition, device)?;
        let (loader, _) = setup::loader(config, data, &partition, world, device, None)?;
        Ok(Side { trainer, loader })
    }
}

/// Takes a step on the GPU and its twin on the CPU. Returns false after a step that says that further ones say nothing.
fn compare_step(
    gpu: &mut Side<'_>,
    cpu: &mut Side<'_>,
    rounding: &mut Rounding<'_>,
    want_grad_norm: bool,
    found: &mut Found,
) -> Result<bool> {
    cpu.trainer.take_over(&gpu.trainer)?;
    let before = cpu.trainer.model().weights().to_vec::<f32>()?;
    let state_before = cpu.trainer.state_values()?;
    let request = StepRequest { want_grad_norm, ..StepRequest::default() };
    let mut cpu_rows = cpu.loader.next_step()?.expect("the plan has no last epoch");
    let (planned, want) = differentiate(&mut cpu.trainer, &mut cpu_rows, request)?;
    let rounding = rounding.compute_step(&gpu.trainer, request)?;

    let mut gpu_rows = gpu.loader.next_step()?.expect("the plan has no last epoch");
    let outcome = match gpu.trainer.step_and_wait(&mut gpu_rows, want_grad_norm) {
        Err(error) if error.step().is_none() => return Err(error),
        outcome => outcome.ok(),
    };
    let (n_own, n_last) = (planned.shape.own_rows, n_last_rows(&gpu_rows));
    let got = gpu.trainer.step_values(None, n_own, n_last)?;
    found.rows(&got, &want);
    if !want.is_finite() {
        // The model overflows by itself.
        return Ok(false);
    }
    let by_mean = !matches!(cpu.trainer.model().precision(), Precision::F32 | Precision::F32x3);
    found.computed(&computed(&cpu.trainer, &got, &want, by_mean), &rounding);
    let Some(outcome) = outcome else {
        found.add("loss or gradient, which must be finite".to_owned(), f64::INFINITY, 0.0);
        return Ok(false);
    };
    let twin = cpu.trainer.update_by(&got.gradients, &mut cpu_rows, planned)?;
    found.outcome(&outcome, &twin);
    let (weights, own) = (gpu.trainer.model().weights().to_vec()?, cpu.trainer.model().weights().to_vec()?);
    found.parameters("update", &cpu.trainer, &weights, &own, Some(&before));
    found.state(&cpu.trainer, gpu.trainer.state_values()?, cpu.trainer.state_values()?, state_before);
    Ok(outcome.withheld.is_none() && !outcome.skipped)
}

/// Computes loss and gradients of a step on the CPU.
fn differentiate(
    trainer: &mut Trainer<'_>,
    rows: &mut LoadedStep<'_>,
    request: StepRequest,
) -> Result<(PlannedStep, StepValues)> {
    let planned = trainer.differentiate(rows, request)?;
    let n_last = n_last_rows(rows);
    let values = trainer.step_values(Some(rows.batch()?), planned.shape.own_rows, n_last)?;
    Ok((planned, values))
}

/// Rows of the step's last micro-batch.
fn n_last_rows(rows: &LoadedStep<'_>) -> usize {
    let (partition, n_rows) = (rows.partition(), rows.global_rows());
    partition.micro_batch(n_rows, partition.n_micro_batches(n_rows) - 1).len()
}

/// The model in f32 and in bf16 on the CPU, whose difference says how it amplifies rounding errors.
struct Rounding<'w> {
    exact: Side<'w>,
    rough: Side<'w>,
}

impl<'w> Rounding<'w> {
    fn new(world: &'w World, config: &Config, data: &Loaded) -> Result<Self> {
        let side = |precision| {
            let mut config = config.clone();
            config.train.precision = precision;
            Side::new(world, &config, data, Device::Cpu, GraphMode::Off)
        };
        Ok(Rounding { exact: side(Precision::F32)?, rough: side(Precision::Bf16)? })
    }

    /// The differences in the next step, from the weights of `leader`.
    fn compute_step(&mut self, leader: &Trainer<'_>, request: StepRequest) -> Result<Vec<Computed>> {
        let values = |side: &mut Side<'_>| -> Result<StepValues> {
            side.trainer.take_over(leader)?;
            let mut rows = side.loader.next_step()?.expect("the plan has no last epoch");
            Ok(differentiate(&mut side.trainer, &mut rows, request)?.1)
        };
        let (rough, exact) = (values(&mut self.rough)?, values(&mut self.exact)?);
        Ok(computed(&self.exact.trainer, &rough, &exact, true))
    }
}

/// A result of the forward or backward pass and the relative difference of two computations of it.
struct Computed {
    result: String,
    is_gradient: bool,
    difference: f64,
}

/// Compares outputs of layers and gradients: in f32 value by value, in short formats by root mean squares. Those that are small among
/// all, such as gradients that cancel, are measured by a part of the largest.
fn computed(trainer: &Trainer<'_>, got: &StepValues, want: &StepValues, by_mean: bool) -> Vec<Computed> {
    let (size, floor): (fn(&[f32]) -> f64, _) =
        if by_mean { (root_mean_square, 0.1) } else { (magnitude, 0.01) };
    let compare = |got: &[f32], want: &[f32], largest: f64| {
        let scale = size(want).max(floor * largest);
        if by_mean {
            mean_difference(got, want, scale)
        } else {
            relative_difference(got, want, 0.0, scale, 0)
        }
    };
    let mut list = Vec::new();
    let largest = want.layers.iter().map(|(_, values)| size(values)).fold(0.0, f64::max);
    for ((name, got), (_, want)) in got.layers.iter().zip(&want.layers) {
        let difference = compare(got, want, largest);
        list.push(Computed { result: format!("output of {name}"), is_gradient: false, difference });
    }
    let entries = trainer.model().layout().forward_order();
    let largest = entries.iter().map(|entry| size(&want.gradients[entry.range()])).fold(0.0, f64::max);
    for entry in entries {
        let difference = compare(&got.gradients[entry.range()], &want.gradients[entry.range()], largest);
        list.push(Computed { result: format!("gradient of {}", entry.name), is_gradient: true, difference });
    }
    list
}

/// Comparisons so far, one per result over all steps.
struct Found {
    tolerances: Tolerances,
    /// Tolerance of the loss, which sums the outputs.
    loss: f64,
    list: Vec<Comparison>,
}

impl Found {
    fn add(&mut self, result: String, relative_difference: f64, tolerance: f64) {
        let new = Comparison { result, relative_difference, tolerance };
        match self.list.iter_mut().find(|known| known.result == new.result) {
            // The step that comes closest to its tolerance counts.
            Some(known) if new.part_of_tolerance() > known.part_of_tolerance() => *known = new,
            Some(_) => {}
            None => self.list.push(new),
        }
    }

    /// Adds the rows.
    fn rows(&mut self, got: &StepValues, want: &StepValues) {
        // Rows may lack targets of a head.
        let known = |values: &[f32]| -> Vec<f32> {
            values.iter().map(|value| if value.is_nan() { f32::MAX } else { *value }).collect()
        };
        for ((name, got), (_, want)) in got.rows.iter().zip(&want.rows) {
            let (got, want) = (known(got), known(want));
            let difference = relative_difference(&got, &want, 0.0, magnitude(&want), 0);
            self.add(format!("{name} of the rows"), difference, self.tolerances.computed);
        }
    }

    /// Adds layers and gradients.
    fn computed(&mut self, list: &[Computed], rounding: &[Computed]) {
        let mean = |is_gradient: bool| {
            let of_kind = || rounding.iter().filter(|of| of.is_gradient == is_gradient);
            of_kind().map(|of| of.difference).filter(|of| of.is_finite()).sum::<f64>()
                / of_kind().count() as f64
        };
        let means = [mean(false), mean(true)];
        self.loss = self.tolerances.with_rounding(0.0, means[0]);
        for Computed { result, is_gradient, difference } in list {
            let own = rounding.iter().find(|of| of.result == *result).map_or(0.0, |of| of.difference);
            let own = if own.is_finite() { own } else { 0.0 };
            let tolerance = self.tolerances.with_rounding(own, means[usize::from(*is_gradient)]);
            self.add(result.clone(), *difference, tolerance);
        }
    }

    /// Adds loss and norm.
    fn outcome(&mut self, got: &StepOutcome, want: &StepOutcome) {
        let relative = |got: f64, want: f64| {
            let difference = (got - want).abs();
            if got == want {
                0.0
            } else if difference.is_finite() {
                difference / want.abs()
            } else {
                f64::INFINITY
            }
        };
        self.add("loss".to_owned(), relative(got.sums.mean(), want.sums.mean()), self.loss);
        self.add(
            "sum of weights".to_owned(),
            relative(got.sums.weight, want.sums.weight),
            self.tolerances.update,
        );
        if let (Some(got), Some(want)) = (got.grad_norm, want.grad_norm) {
            self.add("norm of the gradient".to_owned(), relative(got, want), self.tolerances.update);
        }
    }

    /// Adds changes of flat values, parameter by parameter; of the values themselves where there is nothing `before` them.
    fn parameters(
        &mut self,
        what: &str,
        trainer: &Trainer<'_>,
        got: &[f32],
        want: &[f32],
        before: Option<&[f32]>,
    ) {
        for entry in trainer.model().layout().forward_order() {
            let range = entry.range();
            let (got, want) = (&got[range.clone()], &want[range.clone()]);
            let change: Vec<f32> = match before {
                Some(before) => want.iter().zip(&before[range]).map(|(want, before)| want - before).collect(),
                None => want.to_vec(),
            };
            let slack = ROUNDING * magnitude(want);
            let difference =
                relative_difference(got, want, slack, magnitude(&change), self.tolerances.n_flips);
            self.add(format!("{what} of {}", entry.name), difference, self.tolerances.update);
        }
    }

    /// Adds optimizer state and registered buffers.
    fn state(
        &mut self,
        trainer: &Trainer<'_>,
        got: (Named, Named),
        want: (Named, Named),
        before: (Named, Named),
    ) {
        let flat_len = trainer.model().layout().flat_len();
        for (((name, got), (_, want)), (_, before)) in got.0.iter().zip(&want.0).zip(&before.0) {
            if got.len() == flat_len {
                self.parameters(name, trainer, got, want, Some(before));
            } else {
                let difference = relative_difference(got, want, 0.0, magnitude(want), 0);
                self.add(name.clone(), difference, self.tolerances.update);
            }
        }
        for ((name, got), (_, want)) in got.1.iter().zip(&want.1) {
            let difference = relative_difference(got, want, 0.0, magnitude(want), 0);
            self.add(name.clone(), difference, self.tolerances.computed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::examples::examples;

    /// The CPU is its own twin: both computations of each result have the same bits, which shows that the twin takes the same steps from
    /// the same state.
    #[test]
    fn the_cpu_is_its_own_twin_in_every_example() {
        for example in examples(&Precision::ALL).unwrap() {
            let found = compare_with_cpu(&example.config, Device::Cpu, GraphMode::Off);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", example.name));
            let has = |start: &str| found.iter().any(|of| of.result.starts_with(start));
            let kinds = ["initial value of ", "output of ", "gradient of ", "loss", "norm of ", "update of "];
            assert!(kinds.into_iter().all(has), "{}: {found:?}", example.name);
            for Comparison { result, relative_difference, tolerance } in &found {
                assert_eq!(*relative_difference, 0.0, "{}: {result}", example.name);
                assert!((1e-4..200.0).contains(tolerance), "{}: {result}: {tolerance}", example.name);
            }
        }
    }
}
