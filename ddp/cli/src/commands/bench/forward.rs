//! `ddp-train bench step --forward`: time of forward passes on random rows in memory, an upper limit for the speed of `ddp-train
//! predict`.

use std::time::Instant;

use ddp::model::{ModelSpec, Network};
use ddp::report::metrics::json_line;
use ddp_comm::{ReduceOp, World};
use ddp_kernels::TensorMut;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::Activation;
use serde::Serialize;

use super::buffers::random_rows;
use super::place::{Place, Work};
use super::report::{heading, number};
use super::timing::Times;
use crate::cli::BenchStepArgs;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::stdout::print_result;

/// Result; one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    place: Place,
    dims: Vec<usize>,
    batch: usize,
    steps: usize,
    dtype: &'static str,
    /// Rows of all ranks per second.
    samples_per_s: f64,
    forward_ms_median: f64,
    forward_ms_min: f64,
    forward_ms_max: f64,
    /// FLOPs of the matmuls over the time of all passes.
    gflops_per_s: f64,
}

/// Runs the benchmark and prints the result on rank 0; every rank of the world calls it.
pub(super) fn forward(world: &World, args: &BenchStepArgs) -> Result<(), Stop> {
    let place = Place::pin(world, &args.place, Work::Layers, &[args.dtype])?;
    let spec = ModelSpec::plain(&args.dims.0, Activation::Relu);
    let flop_per_row = 2.0 * args.dims.0.windows(2).map(|dims| (dims[0] * dims[1]) as f64).sum::<f64>();
    let network = Network::new(spec, args.batch, place.device, args.dtype.precision());
    let mut network = network.map_err(Error::from)?;
    network.initialize(0).map_err(Error::from)?;
    let mut batches = random_rows(world, args, place.device).map_err(Error::from)?;
    let gpu = place.gpu().map_err(Error::from)?;
    let mut pass = || -> Result<()> {
        network.forward(batches.take()?.x)?;
        Ok(gpu.map_or(Ok(()), Gpu::synchronize)?)
    };
    for _ in 0..args.warmup.max(1) {
        pass()?;
    }
    world.group().barrier().map_err(Error::from)?;
    let mut ms = Vec::with_capacity(args.steps);
    let started = Instant::now();
    for _ in 0..args.steps {
        let mark = Instant::now();
        pass()?;
        ms.push(mark.elapsed().as_secs_f64() * 1e3);
    }
    let mut sums = [started.elapsed().as_secs_f64()];
    let view = TensorMut::from_slice(&mut sums, &[1]).map_err(Error::from)?;
    world.group().all_reduce(ReduceOp::Sum, view).map_err(Error::from)?;
    let wall_s = sums[0] / world.world_size() as f64;
    let rows = (args.batch * world.world_size() * args.steps) as f64;
    let times = Times::of(ms);
    let report = Report {
        dims: args.dims.0.clone(),
        batch: args.batch,
        steps: args.steps,
        dtype: args.dtype.precision().name(),
        samples_per_s: rows / wall_s,
        forward_ms_median: times.median,
        forward_ms_min: times.min,
        forward_ms_max: times.max,
        gflops_per_s: flop_per_row * rows / wall_s * 1e-9,
        place,
    };
    if world.rank().0 != 0 {
        return Ok(());
    }
    let text = if args.place.json {
        json_line(&report)
    } else {
        format!(
            "{}: {:.0} samples/s, {} ms per forward pass (median), {:.0} GFLOP/s\n",
            heading(&report.place),
            report.samples_per_s,
            number(report.forward_ms_median),
            report.gflops_per_s,
        )
    };
    Ok(print_result(&text).map_err(Error::from)?)
}
