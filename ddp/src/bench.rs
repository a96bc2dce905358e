//! `ddp-train bench step`: the time of a training step on resident random rows.

use std::time::Instant;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::cpu::threads;
use ddp_kernels::ops::{self, Activation};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};
use serde::Serialize;

use crate::batches::Table;
use crate::cli::{BenchOptim, BenchStepArgs};
use crate::config::{OptimizerConfig, OptimizerKind};
use crate::error::{Error, Result};
use crate::metrics::json_line;
use crate::model::{LossHead, Mlp, ModelSpec, Optimizer};
use crate::outcome::Stop;
use crate::process;
use crate::run::pin_device;
use crate::trainer::{MicroBatch, MicroBatches, Trainer, TrainerOptions};

/// Batches of random rows that steps take in turn.
const POOL: usize = 8;
/// Repeats of the single parts that are timed behind the steps.
const PART_REPEATS: usize = 7;

/// The result, one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    dims: Vec<usize>,
    batch: usize,
    steps: usize,
    optim: &'static str,
    dtype: &'static str,
    world_size: usize,
    threads: usize,
    transport: &'static str,
    params: usize,
    /// Rows of all ranks a second over all timed steps.
    samples_per_s: f64,
    step_ms_median: f64,
    step_ms_min: f64,
    /// The optimiser's pass alone.
    optimizer_ms_median: f64,
    /// The matrix products of a step alone, at their median times.
    gemm_gflops_per_s: f64,
    /// All of a step's products over the time of a step.
    gflops_per_s: f64,
    /// From the start, the launcher's where there is one, to the end of the first step.
    startup_s: f64,
    peak_rss_mib: f64,
    peak_rss_mib_all_ranks: f64,
    final_loss: f64,
}

/// Times as `args` say and prints the result on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn step(world: &World, args: &BenchStepArgs) -> Result<(), Stop> {
    let device = world.collective_result(pin_device(world, "auto", args.threads))?;
    let mut trainer = trainer(world, args, device)?;
    let table = random_rows(world, args, device).map_err(Error::from)?;
    let mut batches = Pool { table: &table, batch: args.batch, world_size: world.world_size(), next: 0 };

    let mut startup_s = 0.0;
    let mut final_loss = f64::NAN;
    for index in 0..args.warmup.max(1) {
        trainer.step(&mut batches, false)?;
        if index == 0 {
            startup_s = process::seconds_since_start(world.launcher().is_some());
        }
    }
    world.group().barrier().map_err(Error::from)?;
    let mut step_ms = Vec::with_capacity(args.steps);
    let started = Instant::now();
    let mut mark = started;
    for _ in 0..args.steps {
        final_loss = trainer.step(&mut batches, false)?.sums.mean();
        let now = Instant::now();
        step_ms.push((now - mark).as_secs_f64() * 1e3);
        mark = now;
    }
    let mut sums = [(mark - started).as_secs_f64(), process::peak_rss_mib()];
    let peak_rss_mib = sums[1];
    let all = TensorMut::from_slice(&mut sums, &[2]).map_err(Error::from)?;
    world.group().all_reduce(ReduceOp::Sum, all).map_err(Error::from)?;
    let wall_s = sums[0] / world.world_size() as f64;

    let rows = (args.batch * world.world_size()) as f64;
    let gflop_a_step = trainer.model().spec().flop_per_row() as f64 * rows * 1e-9;
    let report = Report {
        dims: args.dims.0.clone(),
        batch: args.batch,
        steps: args.steps,
        optim: optimizer_config(args.optim).kind.name(),
        dtype: "f32",
        world_size: world.world_size(),
        threads: threads::current(),
        transport: world.group().transport(),
        params: trainer.model().layout().n_params(),
        samples_per_s: rows * args.steps as f64 / wall_s,
        step_ms_min: step_ms.iter().copied().fold(f64::INFINITY, f64::min),
        step_ms_median: median(&mut step_ms),
        optimizer_ms_median: time_optimizer(args, trainer.model()).map_err(Error::from)?,
        gemm_gflops_per_s: gemm_rate(trainer.model().spec(), args.batch, device).map_err(Error::from)?,
        gflops_per_s: gflop_a_step * args.steps as f64 / wall_s,
        startup_s,
        peak_rss_mib,
        peak_rss_mib_all_ranks: sums[1],
        final_loss,
    };
    if world.rank().0 == 0 {
        print(&report, args.json);
    }
    Ok(())
}

fn trainer<'w>(world: &'w World, args: &BenchStepArgs, device: Device) -> Result<Trainer<'w>> {
    let spec = ModelSpec::plain(&args.dims.0, Activation::Relu);
    let mut model = Mlp::new(spec, args.batch, device)?;
    model.initialize(0)?;
    let optimizer = Optimizer::new(&optimizer_config(args.optim), model.weights())?;
    let loss = LossHead::cross_entropy();
    let options = TrainerOptions::default();
    Trainer::new(world, model, loss, optimizer, options)
}

fn optimizer_config(optim: BenchOptim) -> OptimizerConfig {
    match optim {
        BenchOptim::Sgd => OptimizerConfig::new(OptimizerKind::Sgd, 0.01),
        BenchOptim::AdamW => OptimizerConfig::new(OptimizerKind::AdamW, 1e-3),
    }
}

/// Random rows whose labels a linear map of the features gives, so that there is something to learn.
fn random_rows(world: &World, args: &BenchStepArgs, device: Device) -> Result<Table, KernelError> {
    let (n_rows, dims) = (POOL * args.batch, &args.dims.0);
    let (n_features, n_classes) = (dims[0], dims[dims.len() - 1]);
    let x = Tensor::randn(&[n_rows, n_features], DType::F32, device, 1000 + world.rank().0 as u64)?;
    let teacher = Tensor::randn(&[n_features, n_classes], DType::F32, device, 999)?;
    let mut scores = Tensor::zeros(&[n_rows, n_classes], DType::F32, device)?;
    ops::addmm(1.0, x.view(), false, teacher.view(), false, 0.0, scores.view_mut())?;
    let scores = scores.to_vec::<f32>()?;
    let largest =
        |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as i64);
    let labels: Vec<i64> = scores.chunks_exact(n_classes).map(largest).collect();
    Ok(Table::from_tensors(x, Tensor::from_slice(&labels, &[n_rows], device)?))
}

/// The batches of the pool in turn.
struct Pool<'a> {
    table: &'a Table,
    batch: usize,
    world_size: usize,
    next: usize,
}

impl MicroBatches for Pool<'_> {
    fn n_micro_batches(&self) -> usize {
        1
    }

    fn global_rows(&self) -> usize {
        self.batch * self.world_size
    }

    fn micro_batch(&mut self, _index: usize) -> Result<MicroBatch<'_>> {
        let start = self.next * self.batch;
        self.next = (self.next + 1) % POOL;
        Ok(MicroBatch { rows: self.table.rows(start..start + self.batch)?, first_row: 0 })
    }
}

/// Median time of the optimiser's pass over buffers like the model's.
fn time_optimizer(args: &BenchStepArgs, model: &Mlp) -> Result<f64, KernelError> {
    let mut weights = model.weights().zeros_like()?;
    let grads = model.weights().zeros_like()?;
    let mut optimizer = Optimizer::new(&optimizer_config(args.optim), &weights)?;
    let all = 0..weights.numel();
    median_ms(|| {
        optimizer.begin_step();
        optimizer.step_on(&mut weights, grads.view(), 1.0, all.clone())
    })
}

/// FLOP of a step's matrix products over the sum of their median times, in GFLOP/s.
fn gemm_rate(spec: &ModelSpec, batch: usize, device: Device) -> Result<f64, KernelError> {
    let randn = |dims: [usize; 2]| Tensor::randn(&dims, DType::F32, device, 1);
    let (mut ms, mut flop) = (0.0, 0.0);
    for layer in 0..spec.n_layers() {
        let (i, o) = spec.in_out(layer);
        let (mut x, mut w, mut y) = (randn([batch, i])?, randn([o, i])?, randn([batch, o])?);
        let mut x_t = randn([i, batch])?;
        let mut y_t = randn([o, batch])?;
        let product = 2e-9 * (batch * i * o) as f64;
        // Forward in its faster form: the weight in its own order.
        ms += median_ms(|| ops::addmm(1.0, w.view(), false, x_t.view(), false, 0.0, y_t.view_mut()))?;
        ms += median_ms(|| ops::addmm(1.0, y.view(), true, x.view(), false, 0.0, w.view_mut()))?;
        flop += 2.0 * product;
        if layer > 0 {
            ms += median_ms(|| ops::addmm(1.0, y.view(), false, w.view(), false, 0.0, x.view_mut()))?;
            flop += product;
        }
        let _ = (&mut y, &mut x_t);
    }
    Ok(flop / ms * 1e3)
}

/// Median over [`PART_REPEATS`] repeats, each long enough for the clock.
fn median_ms(mut part: impl FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let once = Instant::now();
    part()?;
    let n = (1e-3 / once.elapsed().as_secs_f64().max(1e-7)).ceil().max(1.0);
    let mut times = Vec::with_capacity(PART_REPEATS);
    for _ in 0..PART_REPEATS {
        let started = Instant::now();
        for _ in 0..n as usize {
            part()?;
        }
        times.push(started.elapsed().as_secs_f64() * 1e3 / n);
    }
    Ok(median(&mut times))
}

/// The middle of the values, or the mean of the two in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[n / 2] + values[(n - 1) / 2]) / 2.0 }
}

/// The result on stdout: it is what the command is for.
#[allow(clippy::print_stdout)]
fn print(report: &Report, json: bool) {
    if json {
        return print!("{}", json_line(report));
    }
    println!(
        "{} rank{} x {} thread{}: {:.0} samples/s, {:.3} ms a step (median), {:.0} GFLOP/s; optimiser {:.3} ms; start \
         {:.2} s; peak memory {:.0} MiB a rank",
        report.world_size,
        if report.world_size == 1 { "" } else { "s" },
        report.threads,
        if report.threads == 1 { "" } else { "s" },
        report.samples_per_s,
        report.step_ms_median,
        report.gflops_per_s,
        report.optimizer_ms_median,
        report.startup_s,
        report.peak_rss_mib,
    );
}
