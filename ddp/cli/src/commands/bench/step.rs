//! `ddp-train bench step`: time of a training step on random rows in memory.

use std::collections::BTreeMap;
use std::time::Instant;

use ddp::config::{OptimizerConfig, OptimizerKind, WatchdogConfig};
use ddp::cost::bench_step::step_ms_on_gpu;
use ddp::cost::calibration::BenchStep;
use ddp::model::{LossHead, ModelSpec, Network, WeightsMut};
use ddp::optim::UpdateScale;
use ddp::optim::optimizer::Optimizer;
use ddp::optim::param_groups::ParamGroups;
use ddp::report::metrics::json_line;
use ddp::report::process;
use ddp::storage::unfinished::Unfinished;
use ddp::train::trainer::{StepRequest, Trainer, TrainerOptions};
use ddp_comm::{ReduceOp, World};
use ddp_kernels::cuda::{Gpu, MatmulChoice};
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorMut};
use serde::Serialize;

use super::addmm::{Product, products_of_layers, square};
use super::buffers::{Rotating, random_rows};
use super::forward::forward;
use super::place::{Place, Work};
use super::report::{heading, number, percent};
use super::timing::{Clock, Effort, Times};
use crate::cli::{BenchDtype, BenchOptim, BenchStepArgs};
use crate::commands::train::check_graph;
use crate::commands::watchdog::{self, Watched};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::print_result;

/// Measurements of the separate parts of a step.
const PART: Effort = Effort { repeats: 7, repeat_ms: 1.0 };
/// Warm-up steps on a GPU: compilation, and the capture of a graph for each of the two input slots.
const GPU_WARMUP: usize = 4;

/// Result; one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    place: Place,
    dims: Vec<usize>,
    batch: usize,
    steps: usize,
    optim: &'static str,
    dtype: &'static str,
    transport: &'static str,
    params: usize,
    /// Rows per second over all ranks and all timed steps.
    samples_per_s: f64,
    step_ms_median: f64,
    /// Mean time of a step in each repeat, on this rank.
    repeat_step_ms: Vec<f64>,
    step_ms_min: f64,
    step_ms_max: f64,
    /// The optimizer update alone.
    optimizer_ms_median: f64,
    /// A comparison of the ranks' replicas, on this rank.
    replica_check_ms_median: f64,
    /// The matmuls of a step alone, at their median times.
    gemm_gflops_per_s: f64,
    /// FLOPs of all matmuls of a step over the time of a step.
    gflops_per_s: f64,
    /// Time from the start of the process or its launcher to the end of the first step.
    startup_s: f64,
    peak_rss_mib: f64,
    peak_rss_mib_all_ranks: f64,
    final_loss: f64,
    #[serde(flatten)]
    gpu: Option<GpuReport>,
}

/// Additional results of a step on a GPU.
#[derive(Debug, Serialize)]
struct GpuReport {
    /// Whether steps were replayed as CUDA graphs.
    cuda_graph: bool,
    /// Sum over all ranks.
    tflops_per_s: f64,
    /// The fastest square matmul of the same data type on this GPU.
    best_gemm_tflops_per_s: f64,
    /// `tflops_per_s` relative to the fastest matmul on every rank.
    mfu: f64,
    /// Predicted time of a step, for a world of one and a GPU whose data sheet is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_step_ms: Option<f64>,
    /// Peak memory of this rank's tensors during the timed steps.
    peak_gpu_memory_mib: f64,
    /// Memory of the tensors, by use.
    gpu_memory_mib: BTreeMap<&'static str, f64>,
    /// Memory reserved by the pool, in use or cached.
    gpu_memory_reserved_mib: f64,
    /// Algorithms and forms of this rank's matmuls that were chosen by timing.
    matmul_choices: Vec<ChoiceReport>,
}

/// A choice made by timing.
#[derive(Debug, Serialize)]
struct ChoiceReport {
    matmul: String,
    chosen: String,
    us: f64,
    /// Time of the first algorithm of cuBLASLt's heuristic, or of the form with everything fused.
    first_us: f64,
}

/// Runs the benchmark and prints the result on rank 0; every rank of the world calls it.
pub(super) fn step(world: &World, args: &BenchStepArgs) -> Result<(), Stop> {
    if args.forward {
        return forward(world, args);
    }
    if args.watchdog {
        let config = WatchdogConfig { enabled: true, interval_s: 0.5, timeout_s: 10.0, save_s: 0.0 };
        watchdog::start(world, &Log::none(world), &config, Watched::Other(Unfinished::default()))?;
    }
    let place = Place::pin(world, &args.place, Work::Layers, &[args.dtype])?;
    world.collective_result(check_graph(args.graph_mode(), place.device))?;
    let mut trainer = trainer(world, args, place.device)?;
    let mut batches = random_rows(world, args, place.device).map_err(Error::from)?;
    let gpu = place.gpu().map_err(Error::from)?;

    let mut startup_s = 0.0;
    let mut final_loss = f64::NAN;
    for index in 0..args.warmup.max(if gpu.is_some() { GPU_WARMUP } else { 1 }) {
        trainer.step(&mut batches, StepRequest::default())?;
        trainer.outcome(true)?;
        if index == 0 {
            startup_s = process::seconds_since_start(world.launcher());
        }
    }
    synchronize(gpu)?;
    gpu.inspect(|gpu| gpu.reset_peak_memory());
    world.group().barrier().map_err(Error::from)?;
    let mut step_ms = Vec::with_capacity(args.repeats * args.steps);
    let mut repeat_s = Vec::with_capacity(args.repeats);
    for _ in 0..args.repeats {
        let started = Instant::now();
        let mut mark = started;
        for n_enqueued in 1..=args.steps {
            world.watchdog().step(n_enqueued as u64);
            trainer.step(&mut batches, StepRequest::default())?;
            // On a GPU the next step is enqueued while one computes, so a step lasts from one outcome to the next.
            while let Some((_, outcome)) = trainer.outcome(n_enqueued == args.steps)? {
                final_loss = outcome.sums.mean();
                let now = Instant::now();
                step_ms.push((now - mark).as_secs_f64() * 1e3);
                mark = now;
            }
        }
        synchronize(gpu)?;
        repeat_s.push(started.elapsed().as_secs_f64());
    }
    let mut sums = [repeat_s.iter().sum(), process::peak_rss_mib()];
    let peak_rss_mib = sums[1];
    let all = TensorMut::from_slice(&mut sums, &[2]).map_err(Error::from)?;
    world.group().all_reduce(ReduceOp::Sum, all).map_err(Error::from)?;
    let wall_s = sums[0] / world.world_size() as f64;

    let rows = (args.batch * world.world_size()) as f64;
    let gflop_per_step = ModelSpec::plain(&args.dims.0, Activation::Relu).flop_per_row() as f64 * rows * 1e-9;
    let n_steps = (args.repeats * args.steps) as f64;
    let gflops_per_s = gflop_per_step * n_steps / wall_s;
    // Measured before the parts are timed separately, because that allocates memory.
    let gpu = gpu.map(|gpu| gpu_report(gpu, &trainer, gflops_per_s)).transpose()?;
    let replica_check = time_replica_check(&mut trainer)?;
    let times = Times::of(step_ms);
    let mut report = Report {
        dims: args.dims.0.clone(),
        batch: args.batch,
        steps: args.steps,
        optim: optimizer_config(args.optim).kind.name(),
        dtype: args.dtype.precision().name(),
        transport: world.tensor_group().transport(),
        params: trainer.model().layout().n_params(),
        samples_per_s: rows * n_steps / wall_s,
        repeat_step_ms: repeat_s.iter().map(|s| s * 1e3 / args.steps as f64).collect(),
        step_ms_median: times.median,
        step_ms_min: times.min,
        step_ms_max: times.max,
        optimizer_ms_median: time_optimizer(&place, args, trainer.model()).map_err(Error::from)?,
        replica_check_ms_median: replica_check.median,
        gemm_gflops_per_s: gemm_rate(&place, args).map_err(Error::from)?,
        gflops_per_s,
        startup_s,
        peak_rss_mib,
        peak_rss_mib_all_ranks: sums[1],
        final_loss,
        gpu,
        place,
    };
    if let Some(gpu) = &mut report.gpu {
        let name = report.place.gpu().map_err(Error::from)?.map_or("", |gpu| &gpu.info().name);
        if world.world_size() == 1 {
            let step = BenchStep {
                dims: args.dims.0.clone(),
                batch: args.batch,
                optimizer: report.optim.to_owned(),
                precision: report.dtype.to_owned(),
                ..BenchStep::default()
            };
            gpu.predicted_step_ms = step_ms_on_gpu(name, &step).map_err(Error::from)?;
        }
        gpu.compare(&report.place, args.dtype).map_err(Error::from)?;
    }
    if world.rank().0 == 0 {
        print(&report, args.place.json)?;
    }
    Ok(())
}

fn synchronize(gpu: Option<&'static Gpu>) -> Result<()> {
    Ok(gpu.map_or(Ok(()), Gpu::synchronize)?)
}

/// Times of a comparison of the ranks' replicas; the first one allocates and is not timed. Collective.
fn time_replica_check(trainer: &mut Trainer<'_>) -> Result<Times> {
    trainer.compare_replicas()?;
    let time = |_| {
        let started = Instant::now();
        trainer.compare_replicas()?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    };
    Ok(Times::of((0..PART.repeats).map(time).collect::<Result<_>>()?))
}

fn trainer<'w>(world: &'w World, args: &BenchStepArgs, device: Device) -> Result<Trainer<'w>> {
    let spec = ModelSpec::plain(&args.dims.0, Activation::Relu);
    let mut model = Network::new(spec, args.batch, device, args.dtype.precision())?;
    model.initialize(0)?;
    let optimizer = Optimizer::for_model(&optimizer_config(args.optim), &model)?;
    let loss = LossHead::cross_entropy();
    let (graph, overlap) = (args.graph_mode(), !args.place.safe);
    let options = TrainerOptions { graph, overlap, ..TrainerOptions::default() };
    Ok(Trainer::new(world, model, loss, optimizer, options)?)
}

fn optimizer_config(optim: BenchOptim) -> OptimizerConfig {
    match optim {
        BenchOptim::Sgd => OptimizerConfig::new(OptimizerKind::Sgd, 0.01),
        BenchOptim::AdamW => OptimizerConfig::new(OptimizerKind::AdamW, 1e-3),
    }
}

/// Median time of an optimizer update on buffers with the sizes of the model's.
fn time_optimizer(place: &Place, args: &BenchStepArgs, model: &Network) -> Result<f64, KernelError> {
    let weights = model.weights();
    let config = optimizer_config(args.optim);
    let (n, format) = (weights.numel(), model.precision().activations());
    let mut optimizer = Optimizer::new(&config, ParamGroups::uniform(&config, n), n, place.device)?;
    let mut copy = match format {
        DType::F32 => None,
        _ => Some(Tensor::zeros(&[n], format, place.device)?),
    };
    // Zeros on the CPU, for comparison with earlier results; random numbers where the speed of memory depends on the content.
    let like = |seed| {
        if place.is_cpu() {
            weights.zeros_like()
        } else {
            Rotating::random(place, &[n], DType::F32, 1, seed)?.get(0)?.to_tensor()
        }
    };
    let (mut weights, grads) = (like(1)?, like(2)?);
    let times = Clock::of(place)?.time(PART, |_| {
        optimizer.begin_step();
        let weights = WeightsMut { master: weights.view_mut(), compute: copy.as_mut().map(Tensor::view_mut) };
        optimizer.step_on(weights, grads.view(), UpdateScale::Host(1.0), 0..n, 0)
    })?;
    Ok(times.median)
}

/// FLOPs of a step's matmuls over the sum of their median times, in GFLOP/s; NaN, which is written as null, in formats in which the CPU
/// has layers alone.
fn gemm_rate(place: &Place, args: &BenchStepArgs) -> Result<f64, KernelError> {
    if place.device == Device::Cpu && args.dtype != BenchDtype::F32 {
        return Ok(f64::NAN);
    }
    let (mut ms, mut flop) = (0.0, 0.0);
    for product in products_of_layers(&args.dims.0, args.batch) {
        ms += product.time_on(place, args.dtype, PART, 1)?.median;
        flop += product.flop();
    }
    Ok(flop / ms * 1e-6)
}

/// Reports the current GPU memory; [`GpuReport::compare`] adds the comparison with the fastest matmul.
fn gpu_report(gpu: &'static Gpu, trainer: &Trainer<'_>, gflops_per_s: f64) -> Result<GpuReport> {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let in_use = gpu.memory_in_use()?;
    let by_use = MemoryUse::ALL.iter().zip(in_use.bytes).map(|(kind, bytes)| (kind.name(), mib(bytes)));
    Ok(GpuReport {
        cuda_graph: trainer.n_graphs() > 0,
        tflops_per_s: gflops_per_s * 1e-3,
        best_gemm_tflops_per_s: f64::NAN,
        mfu: f64::NAN,
        predicted_step_ms: None,
        peak_gpu_memory_mib: mib(gpu.memory_peak()),
        gpu_memory_mib: by_use.filter(|(_, mib)| *mib > 0.0).collect(),
        gpu_memory_reserved_mib: mib(gpu.memory_reserved()?),
        matmul_choices: gpu.matmul_choices()?.into_iter().map(ChoiceReport::from).collect(),
    })
}

impl From<MatmulChoice> for ChoiceReport {
    fn from(MatmulChoice { matmul, chosen, us, first_us }: MatmulChoice) -> Self {
        ChoiceReport { matmul, chosen, us, first_us }
    }
}

impl GpuReport {
    /// Measures the fastest square matmul and compares the step with it.
    fn compare(&mut self, place: &Place, dtype: BenchDtype) -> Result<(), KernelError> {
        let sides: &[usize] = if place.is_virtual { &[64] } else { &[4096, 8192] };
        let effort = Effort { repeats: 5, repeat_ms: if place.is_virtual { 0.0 } else { 20.0 } };
        let rate = |product: Product| {
            Ok::<_, KernelError>(product.tflops_per_s(&product.time(place, dtype, effort)?))
        };
        let rates = sides.iter().map(|&side| rate(square(side))).collect::<Result<Vec<_>, _>>()?;
        self.best_gemm_tflops_per_s = rates.into_iter().fold(0.0, f64::max);
        self.mfu = self.tflops_per_s / (self.best_gemm_tflops_per_s * place.world_size as f64);
        Ok(())
    }
}

/// Prints the result to stdout.
fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return Ok(print_result(&json_line(report))?);
    }
    let Report { place, gpu, .. } = report;
    let mut text = format!(
        "{}: {:.0} samples/s, {} ms per step (median), {:.0} GFLOP/s; optimizer {} ms; startup {:.2} s; peak memory {:.0} MiB \
         per rank\n",
        heading(place),
        report.samples_per_s,
        number(report.step_ms_median),
        report.gflops_per_s,
        number(report.optimizer_ms_median),
        report.startup_s,
        report.peak_rss_mib,
    );
    let Some(gpu) = gpu else { return Ok(print_result(&text)?) };
    let memory: Vec<_> =
        gpu.gpu_memory_mib.iter().map(|(kind, mib)| format!("{kind} {}", number(*mib))).collect();
    text += &format!(
        "{}, {} by {}; {} TFLOP/s, {} of the fastest {} matmul ({} TFLOP/s); GPU memory peak {} MiB, now {}\n",
        if gpu.cuda_graph { "steps replayed as CUDA graphs" } else { "steps launched kernel by kernel" },
        report.dtype,
        report.transport,
        number(gpu.tflops_per_s),
        percent(gpu.mfu),
        report.dtype,
        number(gpu.best_gemm_tflops_per_s),
        number(gpu.peak_gpu_memory_mib),
        memory.join(", "),
    );
    if let Some(predicted) = gpu.predicted_step_ms {
        let ratio = report.step_ms_median / predicted;
        text += &format!(
            "predicted {} ms per step (docs/gpus.md); measured {ratio:.2} times that\n",
            number(predicted)
        );
    }
    for ChoiceReport { matmul, chosen, us, first_us } in &gpu.matmul_choices {
        text += &format!("{matmul}: {chosen}, {} us (the first: {} us)\n", number(*us), number(*first_us));
    }
    Ok(print_result(&text)?)
}
