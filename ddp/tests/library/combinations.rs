//! Random programs on the library: layers, losses, optimizers, number formats, ZeRO, accumulation and numbers of rows and ranks
//! are drawn together. Checked for each program:
//!
//! - several ranks train the same model as one rank, bit for bit with micro-shards;
//! - a run that is saved and resumed has the same bits as an uninterrupted run, or the same values if the number of ranks
//!   changes;
//! - gradients agree with difference quotients in f64;
//! - invalid programs are refused with an error before the first step.
//!
//! `COMBINATIONS=1000` runs that many programs, and `COMBINATIONS_SEED` sets the seed of the first one.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use ddp::config::precision::Precision;
use ddp::config::{CommDtype, EvalMetric, OptimizerKind, WeightInit, ZeroStage};
use ddp::data::Dataset;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::data::order::partition::EvalPartition;
use ddp::model::{GradcheckOptions, ModelSpec, Network, gradcheck};
use ddp::train::TrainError;
use ddp::train::checkpoints::Checkpoints;
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp::train::trainer::{StepRequest, StepRows as _, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::gpus;
use crate::made_up::{Setup, by_parameter};
use crate::random_program::{MAX_STEPS, Program};

/// Number of programs in a regular test run, which take a few seconds.
const N_PROGRAMS: u64 = 60;

#[test]
fn random_programs_keep_the_laws() {
    check_programs(false, N_PROGRAMS);
}

#[test]
fn gpus_keep_the_laws_of_random_programs() {
    let Some(_gpus) = gpus(1) else { return };
    check_programs(true, N_PROGRAMS / 6);
}

/// Rows of 28 bytes begin at other addresses on other ranks, for which cuBLASLt may sum in another order.
#[test]
fn micro_shards_give_the_same_bits_on_gpus_whatever_the_address_of_their_rows() {
    let Some(_gpus) = gpus(4) else { return };
    let usual = Setup::usual();
    let dims = [&[7, 9, 7], &usual.spec.dims[usual.spec.dims.len() - 1..]].concat();
    let spec = ModelSpec { dims, residual: false, ..usual.spec.clone() };
    let options = TrainerOptions { micro_shards: Some(4), ..usual.options };
    let setup = Setup { spec, options, n_micro: 1, global_rows: 6, on_gpus: true, ..Setup::usual() };
    let alone = setup.train_on(1);
    for n_ranks in [2, 3, 4] {
        assert!(setup.train_on(n_ranks) == alone, "{n_ranks} ranks differ from one in bits");
    }
    // Another trainer of these GPUs may choose its matmuls by time again, which all its ranks do or none.
    assert!((0..4).all(|index| !Gpu::get(index).unwrap().is_deterministic()));
    // One GPU that enters the mode in between leaves no rank alone in a collective.
    let entered = threads::run(2, |world| {
        let device = Device::Cuda(world.rank().0 as u32);
        world.connect_device(device, DeviceOptions::default()).unwrap();
        let mut trainer = usual.trainer(&world, device);
        let _mode = (world.rank().0 == 1).then(|| Gpu::get(1).unwrap().deterministic_mode());
        let loading = LoaderOptions::new(device);
        let mut loader = DataLoader::new(&world, usual.rows(), &usual.plan(), loading).unwrap();
        let mut step = loader.next_step().unwrap().unwrap();
        trainer.step_and_wait(&mut step, false).unwrap().sums.mean()
    });
    assert!(entered[0] == entered[1] && entered[0].is_finite(), "{entered:?}");
    Gpu::get(1).unwrap().set_deterministic(true);
    let refused = threads::run(2, |world| {
        world.connect_device(Device::Cuda(world.rank().0 as u32), DeviceOptions::default()).unwrap();
        let device = Device::Cuda(world.rank().0 as u32);
        usual.try_trainer(&world, device).map(drop).unwrap_err().to_string()
    });
    Gpu::get(1).unwrap().set_deterministic(false);
    assert!(refused.iter().all(|error| error.contains("Gpu::is_deterministic")), "{refused:?}");
}

/// Checks `n_usual` programs and one with a random seed, or the programs that the environment requests.
fn check_programs(on_gpus: bool, n_usual: u64) {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (count, first) = (setting("COMBINATIONS"), setting("COMBINATIONS_SEED"));
    let mut seeds: Vec<u64> = match (count, first) {
        (None, Some(seed)) => vec![seed],
        (count, first) => (first.unwrap_or(0)..).take(count.unwrap_or(n_usual) as usize).collect(),
    };
    if (count, first) == (None, None) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        seeds.push(time.as_nanos() as u64 % 1_000_000_000);
        println!("random seed: {}", seeds[seeds.len() - 1]);
    }
    for seed in seeds {
        let program = Program::draw(seed, on_gpus);
        if let Some(failure) = failure(&program) {
            let (smallest, failure) = shrunk(program, failure);
            panic!("COMBINATIONS_SEED={seed}: {failure}\nin {smallest:#?}");
        }
    }
}

/// The panic message with which the checks of a program fail.
fn failure(program: &Program) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| program.check())).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).or(Some(String::new()))
}

/// A smaller program that fails with the same message, ignoring numbers.
fn shrunk(mut program: Program, mut text: String) -> (Program, String) {
    let kind = |text: &str| text.split(|c: char| c.is_ascii_digit()).next().map(str::to_owned);
    while let Some(smaller) = program
        .simpler()
        .into_iter()
        .filter_map(|simpler| failure(&simpler).map(|text| (simpler, text)))
        .find(|(_, other)| kind(other) == kind(&text))
    {
        (program, text) = smaller;
    }
    (program, text)
}

/// Final state of a run, the same on all ranks.
#[derive(Debug, PartialEq)]
struct Trained {
    /// Bits of the weights, parameter by parameter.
    weights: Vec<u32>,
    averaged: Option<Vec<u32>>,
    /// Loss over all rows; absent if NaN.
    eval_loss: Option<f64>,
    /// Statistics of the optimizer and of layers.
    statistics: Vec<(String, Vec<u32>)>,
    losses: Vec<f64>,
    /// Bits of the gradient norms, because an overflow can be a NaN.
    grad_norms: Vec<Option<u64>>,
    /// Initial weights.
    initial: Vec<u32>,
}

fn to_bits(values: &Tensor) -> Vec<u32> {
    values.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

impl Program {
    fn check(&self) {
        self.check_gradients();
        let folder = tempfile::tempdir().unwrap();
        let whole = match self.run(self.n_ranks, 0..MAX_STEPS, folder.path()) {
            Ok(whole) => whole,
            Err(error) => {
                let diverged =
                    matches!(error, TrainError::LossNotFinite { .. } | TrainError::GradientNotFinite { .. });
                assert!(diverged || self.is_refused(), "refused: {error}");
                return;
            }
        };
        assert!(!self.is_refused(), "not refused");
        let has_tree = self.setup.options.micro_shards.is_some();
        let mut alone = self.clone();
        (alone.setup.options.zero, alone.setup.options.zero_copies) = (ZeroStage::Off, false);
        if !self.setup.shares_micro_batches {
            alone.setup.n_micro = 1;
        }
        alone.setup.on_gpus = self.setup.on_gpus && has_tree;
        let alone = alone.run(1, 0..MAX_STEPS, folder.path()).unwrap();
        if has_tree {
            assert!(whole == alone, "{} ranks differ from one in bits", self.n_ranks);
        } else {
            self.assert_close(&format!("{} ranks", self.n_ranks), &whole, &alone);
        }
        if self.saved_after == 0 {
            return;
        }
        self.run(self.n_ranks, 0..self.saved_after, folder.path()).unwrap();
        let mut want = whole;
        want.losses.drain(..self.saved_after);
        want.grad_norms.drain(..self.saved_after);
        for n_ranks in [self.n_ranks, self.resumed_on] {
            let resumed = self.run(n_ranks, self.saved_after..MAX_STEPS, folder.path()).unwrap();
            want.initial.clone_from(&resumed.initial);
            if n_ranks == self.n_ranks || has_tree {
                assert!(resumed == want, "resumed on {n_ranks} ranks, other bits");
            } else {
                self.assert_close(&format!("resumed on {n_ranks} ranks"), &resumed, &want);
            }
        }
    }

    /// Runs these steps on threads, starting from the checkpoint in `folder` unless at step 0; saves there if steps are left.
    fn run(&self, n_ranks: usize, steps: Range<usize>, folder: &Path) -> Result<Trained, TrainError> {
        let rows: Arc<dyn Dataset> = self.setup.rows();
        let of_rank = |world: World| self.run_rank(&world, &rows, steps.clone(), folder);
        let mut ranks = threads::run(n_ranks, of_rank).into_iter();
        let first = ranks.next().unwrap();
        for (index, other) in ranks.enumerate() {
            let is_same = match (&first, &other) {
                (Ok(first), Ok(other)) => first == other,
                (Err(first), Err(other)) => first.to_string() == other.to_string(),
                _ => false,
            };
            assert!(is_same, "rank {} of {n_ranks} differs from rank 0", index + 1);
        }
        first
    }

    fn run_rank(
        &self,
        world: &World,
        rows: &Arc<dyn Dataset>,
        steps: Range<usize>,
        folder: &Path,
    ) -> Result<Trained, TrainError> {
        let setup = &self.setup;
        let device = if setup.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions { deterministic: true, ..DeviceOptions::default() })?;
        let mut trainer = setup.try_trainer(world, device)?;
        let mut cursor = 0;
        if steps.start > 0 {
            let checkpoints = Checkpoints::new(world, &trainer, folder)?;
            cursor = checkpoints.resume(&mut trainer)?.expect("it was saved");
        }
        let layout = trainer.model().layout().clone();
        let bits = |weights: &Tensor| by_parameter(&layout, &weights.to_vec::<f32>().unwrap());
        let initial = bits(trainer.model().weights());
        let loading = LoaderOptions { placement: setup.placement, ..LoaderOptions::new(device) };
        let mut loader =
            DataLoader::new(world, rows.clone(), &BatchPlan { cursor, ..setup.plan() }, loading.clone())?;
        let mut outcomes = Vec::new();
        for _ in steps.clone() {
            let Some(mut step) = loader.next_step()? else { break };
            cursor += step.global_rows() as u64;
            trainer.step(&mut step, StepRequest { want_grad_norm: true, ..StepRequest::default() })?;
            outcomes.extend(trainer.outcome(false)?);
            if steps.start > 0 {
                // Comparisons between steps change no bit.
                assert!(trainer.compare_replicas()?.is_none(), "replicas differ");
                trainer.with_averaged(|_, _| Ok(()))?;
            }
        }
        while let Some(outcome) = trainer.outcome(true)? {
            outcomes.push(outcome);
        }
        trainer.gather_weights()?;
        let (request, partition) =
            (MetricRequest::defaults(setup.task()), EvalPartition { n_parts: 8, max_rows: 2 });
        let request = request.in_units_of(&setup.loss, rows.layout());
        let (model, loss) = trainer.model_and_loss();
        let eval_loss = match evaluate(world, model, loss, &request, rows, partition, &loading) {
            Err(TrainError::NoEvalWeight { .. }) => None,
            metrics => metrics?.get(EvalMetric::Loss),
        };
        if steps.end < MAX_STEPS {
            Checkpoints::new(world, &trainer, folder)?.save(&trainer, cursor)?;
        }
        let averaged = trainer.averaged_weights()?.map(bits);
        let buffers = trainer.model().saved_buffers().into_iter();
        Ok(Trained {
            weights: bits(trainer.model().weights()),
            averaged,
            eval_loss,
            statistics: buffers.map(|(name, t)| (name.to_owned(), to_bits(t))).collect(),
            losses: outcomes.iter().map(|(_, outcome)| outcome.sums.mean()).collect(),
            grad_norms: outcomes.iter().map(|(_, outcome)| outcome.grad_norm.map(f64::to_bits)).collect(),
            initial,
        })
    }

    /// Asserts that two runs differ only by rounding: losses relative to the largest one, and weights relative to their distance
    /// from the initial ones. A mean over different rows, or a different dropout mask, would differ by 0.1.
    fn assert_close(&self, what: &str, got: &Trained, want: &Trained) {
        let Setup { precision, on_gpus, options, optimizer, .. } = &self.setup;
        // Their steps have full length even if a gradient is only rounding noise, such as that of a shift before a norm.
        let follows_rounding =
            matches!(optimizer, OptimizerKind::Lion | OptimizerKind::Lamb | OptimizerKind::Muon);
        // Roundings of activations by 2^-24, 2^-9 and 2^-11, about ten times per pass.
        let share = match precision {
            Precision::Bf16 => 0.1,
            _ if *on_gpus && options.comm_dtype == CommDtype::Bf16 => 0.1,
            Precision::F16 => 0.02,
            Precision::Tf32 if *on_gpus => 0.02,
            _ if follows_rounding => 0.01,
            _ => 1e-3,
        };
        let largest = want.losses.iter().fold(0.0, |largest: f64, loss| largest.max(loss.abs()));
        assert_eq!(got.losses.len(), want.losses.len(), "{what}: steps");
        // The averages of batch norm, which an evaluation and a single row use, lag behind these shifts.
        let n_compared = if follows_rounding && self.mixes_rows() { 1 } else { usize::MAX };
        let of_rows = got.losses.iter().zip(&want.losses).chain(got.eval_loss.iter().zip(&want.eval_loss));
        for (index, (got, want)) in of_rows.enumerate().take(n_compared) {
            let is_close = (got - want).abs() <= share * largest.max(want.abs());
            assert!(is_close, "{what}: loss {index}, {got} against {want}");
        }
        if follows_rounding {
            return;
        }
        let gap = |a: &[u32], b: &[u32]| {
            let square = |(a, b): (&u32, &u32)| {
                (f64::from(f32::from_bits(*a)) - f64::from(f32::from_bits(*b))).powi(2)
            };
            a.iter().zip(b).map(square).sum::<f64>().sqrt()
        };
        let (way, rounding) = (gap(&want.weights, &want.initial), 1e-6 * (want.weights.len() as f64).sqrt());
        let averages = got.averaged.iter().zip(&want.averaged);
        for (got, want) in averages.chain([(&got.weights, &want.weights)]) {
            let gap = gap(got, want);
            assert!(gap <= share * way + rounding, "{what}: weights are {gap} apart, on a way of {way}");
        }
    }

    fn check_gradients(&self) {
        let (spec, n_features) = (&self.setup.spec, self.setup.spec.n_features());
        let device = if self.setup.on_gpus { Device::Cuda(0) } else { Device::Cpu };
        let setup = Setup { n_rows: 5, row_weights: None, ..self.setup.clone() };
        let x = Tensor::from_slice(&setup.rows().features, &[5, n_features], device).unwrap();
        let x = x.to_dtype(DType::F64).unwrap();
        let mut network = Network::new(spec.clone(), 5, device, Precision::F64).unwrap();
        // A norm of values near 0 is curved within the root of its eps, so the step is short. Few values are so close to a kink
        // that a step crosses it, and not in two models.
        let mut check = |seed| {
            network.initialize_as(WeightInit::Xavier, seed).unwrap();
            // Biases of 0 would place rows of zeros exactly on a kink.
            let noise = Tensor::randn(&[network.weights().numel()], DType::F64, device, seed).unwrap();
            let weights = network.weights() + &(&noise * 0.1);
            network.set_weights(weights.view()).unwrap();
            network.forward(&x).unwrap();
            let outputs = network.outputs().unwrap().to_tensor().unwrap().to_vec::<f64>().unwrap();
            if outputs.iter().any(|y| y.abs() > 1e3) {
                // For large outputs, such as products of gates, a difference quotient is only rounding noise.
                return Ok(());
            }
            let options =
                GradcheckOptions { step: 1.0 / (1 << 21) as f64, max_elements: 6, ..GradcheckOptions::f64() };
            gradcheck(&mut network, x.view(), &options)
        };
        if check(1).is_err() {
            check(2).unwrap();
        }
    }
}
