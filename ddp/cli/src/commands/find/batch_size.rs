//! `ddp-train find-batch-size`: the largest batch whose memory fits on every rank, and the rate of batches up to it.
//!
//! The plan of memory, which is what the trainer allocates, finds the largest batch; steps of the run confirm it and are timed.

use std::time::Instant;

use ddp::config::{Batch, Config, ScheduleConfig};
use ddp::host_memory::{available, host_share, size};
use ddp::report::metrics::json_line;
use ddp::report::process::peak_rss_mib;
use ddp::report::units::rate;
use ddp::storage::unfinished::Unfinished;
use ddp::train::TrainError;
use ddp::train::setup;
use ddp::train::trainer::{StepRequest, Trainer};
use ddp_comm::{ReduceOp, World, local_ranks};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, KernelError, TensorMut};
use serde::Serialize;
use tracing::info;

use super::{next_command, refuse_folder};
use crate::cli::FindBatchSizeArgs;
use crate::commands::train::{Plan, Ready, Run};
use crate::commands::watchdog::Watched;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::{print_result, table};

/// Share of the memory that batches may take; the rest is for libraries and the program.
const SHARE: f64 = 0.9;
/// Share of the best rate that the proposed batch reaches.
const ENOUGH: f64 = 0.9;
/// Steps before the timed ones: a GPU compiles kernels and captures a graph for each of its two input slots.
const WARMUP: usize = 4;
/// Time of the timed steps, in s, and their least and most number.
const TIMED_S: f64 = 0.2;
const TIMED: (f64, f64) = (3.0, 100.0);

/// Result; one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    /// The proposed batch: the smallest whose rate is nearly the best, or the largest below it that leaves the schedule enough steps.
    suggested_batch_size: usize,
    /// The largest batch that fits, or has all rows.
    largest_batch_size: usize,
    world_size: usize,
    /// Memory of the device, which for the CPU is the host, that a run may take on each rank.
    room_bytes: u64,
    batches: Vec<Measured>,
    command: String,
}

/// A batch that was tried.
#[derive(Debug, Serialize)]
struct Measured {
    /// Rows per rank and micro-batch.
    batch_size: usize,
    /// Rows of a step over all ranks.
    global_rows: usize,
    /// Planned memory of a rank on its device.
    memory_bytes: u64,
    step_ms: f64,
    samples_per_s: f64,
}

/// Finds the batch and prints the result on rank 0; every rank of the world calls it.
///
/// # Errors
/// The errors that would keep the run from training; [`CommandError::NoBatchFits`].
pub fn find_batch_size(world: &World, log: &Log, args: &FindBatchSizeArgs) -> Result<(), Stop> {
    let train = &args.train;
    refuse_folder(train)?;
    let (run, ready) = Run::load(world, log, train, Watched::Other(Unfinished::default()))?;
    let finder = Finder { args, run, ready };
    let room = finder.room()?;
    let mut largest = finder.largest(room)?;
    info!("{} may be used per rank: batches of up to {largest} rows fit", size(room));
    // The largest one first: if it does not fit after all, smaller ones are tried.
    let of_largest = loop {
        match finder.measure(largest)? {
            Some(measured) => break measured,
            None if largest == finder.smallest() => {
                return Err(finder.does_not_fit(room)?.into());
            }
            None => largest = (largest / 4 * 3).max(finder.smallest()),
        }
    };
    let powers = (0..usize::BITS).map(|power| 1 << power).filter(|rows| *rows >= finder.smallest());
    let mut batches = Vec::new();
    for rows in powers.take_while(|rows| *rows < largest) {
        batches.extend(finder.measure(rows)?);
    }
    batches.push(of_largest);
    let best = batches.iter().map(|of| of.samples_per_s).fold(0.0, f64::max);
    let is_enough = |of: &&Measured| of.samples_per_s >= ENOUGH * best;
    let fastest = batches.iter().find(is_enough).map_or(largest, |of| of.batch_size);
    let Run { plan, data, .. } = &finder.run;
    let with_batch = |rows| with_batch(&plan.config, rows, world.world_size());
    // The batch of the run has enough steps, so a smaller one has.
    let has_steps = |rows: &usize| *rows <= fastest && Plan::of(world, with_batch(*rows), data, None).is_ok();
    let suggested = batches.iter().map(|of| of.batch_size).rfind(has_steps).unwrap_or(fastest);
    let (key, value) = match with_batch(suggested).train.batch {
        Batch::PerRank(rows) => ("train.batch_size", rows),
        Batch::Global(rows) => ("train.global_batch_size", rows),
    };
    let report = Report {
        suggested_batch_size: suggested,
        largest_batch_size: largest,
        world_size: world.world_size(),
        room_bytes: room,
        batches,
        command: next_command(world, train, &[(key, value.to_string())]),
    };
    let printed = match world.rank().0 {
        0 => print_result(&if train.json { json_line(&report) } else { report.to_text(best, fastest) }),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// The same run with `rows` per rank and micro-batch.
fn with_batch(config: &Config, rows: usize, world_size: usize) -> Config {
    let mut config = config.clone();
    config.train.batch = match config.train.batch {
        Batch::PerRank(_) => Batch::PerRank(rows),
        Batch::Global(_) => Batch::Global(rows * world_size * config.train.grad_accum_steps),
    };
    config
}

/// The run whose batch is sought.
struct Finder<'w> {
    args: &'w FindBatchSizeArgs,
    run: Run<'w>,
    ready: Ready,
}

impl Finder<'_> {
    /// Memory of the device that a run may take on this rank, the least of all ranks. Collective.
    fn room(&self) -> Result<u64> {
        let Run { world, device, data, .. } = &self.run;
        let bytes = match device {
            Device::Cpu => {
                // The rows that this process holds are part of the plan; program and libraries are not.
                let rows =
                    data.train.resident_bytes() + data.eval.as_ref().map_or(0, |eval| eval.resident_bytes());
                let held = (peak_rss_mib() * f64::from(1 << 20)) as u64;
                let free = available().map_or(u64::MAX, |bytes| bytes / local_ranks() as u64 + held);
                let host = host_share().unwrap_or(u64::MAX).min(free);
                host.saturating_sub(held.saturating_sub(rows as u64))
            }
            Device::Cuda(index) => Gpu::get(*index)?.memory_in_use()?.free as u64,
        };
        let mut bytes = [bytes as f64 * SHARE];
        world.group().all_reduce(ReduceOp::Min, TensorMut::from_slice(&mut bytes, &[1])?)?;
        Ok(bytes[0] as u64)
    }

    /// Rows of the smallest batch: statistics over a batch need two.
    fn smallest(&self) -> usize {
        if self.run.plan.config.model.mixes_rows() { 2 } else { 1 }
    }

    fn plan(&self, rows: usize) -> Result<Plan> {
        let Run { world, data, plan, .. } = &self.run;
        let mut config = with_batch(&plan.config, rows, world.world_size());
        // A schedule may not fit into the fewer steps of larger batches, and needs no memory.
        config.schedule = ScheduleConfig::CONSTANT;
        config.optimizer.groups.iter_mut().for_each(|group| group.schedule = None);
        Plan::of(world, config, data, None)
    }

    /// Memory of a rank on its device with batches of `rows`; no rank needs more than rank 0.
    fn needed(&self, rows: usize) -> Result<u64> {
        let Run { data, device, .. } = &self.run;
        let memory = self.plan(rows)?.memory(data, *device)?;
        Ok(if *device == Device::Cpu { memory.total() } else { memory.on_device() } as u64)
    }

    fn does_not_fit(&self, room: u64) -> Result<CommandError> {
        let rows = self.smallest();
        Ok(CommandError::NoBatchFits { rows, needed: self.needed(rows)?, allowed: room })
    }

    /// The most rows whose memory fits: at most all rows of the data, and of `--max`. All ranks find the same. Collective.
    fn largest(&self, room: u64) -> Result<usize, Stop> {
        let Run { world, data, plan, device, .. } = &self.run;
        let n_parts = world.world_size() * plan.config.train.grad_accum_steps;
        let find = || -> Result<usize> {
            let mut low = self.smallest();
            if self.needed(low)? > room {
                return Err(self.does_not_fit(room)?.into());
            }
            self.plan(low)?.check_container(data, *device)?;
            let fits = |rows: usize| -> Result<bool> {
                Ok(self.needed(rows)? <= room && self.plan(rows)?.check_container(data, *device).is_ok())
            };
            let all = data.train.len().div_ceil(n_parts);
            let mut high = self.args.max.map_or(all, |max| all.min(max)).max(low) + 1;
            // `low` fits, `high` does not or is too many.
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                *if fits(middle)? { &mut low } else { &mut high } = middle;
            }
            Ok(low)
        };
        let largest =
            world.agreed_result(find(), |rows| vec![("largest batch".to_owned(), rows.to_string())]);
        Ok(largest?)
    }

    /// Trains some steps of `rows` per rank; `None` if a rank has no memory for them. Collective.
    fn measure(&self, rows: usize) -> Result<Option<Measured>, Stop> {
        let (Finder { args, run, ready }, plan) = (self, self.plan(rows)?);
        let Run { world, data, device, .. } = run;
        let trainer = plan.trainer(world, data, *device, ready, &args.train);
        let is_out_of_memory = trainer.as_ref().is_err_and(is_out_of_memory);
        let votes = world.group().all_gather_bytes(&[u8::from(is_out_of_memory)]).map_err(Error::from)?;
        if votes.iter().any(|vote| vote[..] == [1]) {
            info!("batches of {rows} rows do not fit after all");
            return Ok(None);
        }
        let trainer = world.collective_result(trainer)?;
        let (step_s, samples_per_s) = self.time(&plan, trainer)?;
        let global_rows = plan.partition.global_rows.min(data.train.len());
        let (memory_bytes, step_ms) = (self.needed(rows)?, step_s * 1e3);
        Ok(Some(Measured { batch_size: rows, global_rows, memory_bytes, step_ms, samples_per_s }))
    }

    /// Mean time of a step in s, the most of all ranks, and rows of all ranks per second. Collective.
    fn time(&self, plan: &Plan, mut trainer: Trainer<'_>) -> Result<(f64, f64), Stop> {
        let Run { world, data, device, .. } = &self.run;
        let loader = setup::loader(&plan.config, data, &plan.partition, world, *device, None);
        let (mut loader, _) = world.collective_result(loader)?;
        let mut steps = |n: usize| -> Result<(f64, f64)> {
            // The last step of an epoch may have fewer rows.
            let (started, mut n_rows) = (Instant::now(), 0);
            for step in 1..=n {
                world.watchdog().step(step as u64);
                let mut rows = loader.next_step()?.expect("the plan of a run has no end");
                n_rows += rows.positions().len();
                // Losses that are not finite take the same time.
                ignore_failure(trainer.step(&mut rows, StepRequest::default()))?;
                ignore_failure(trainer.outcome(step == n).map(drop))?;
            }
            trainer.discard_outcomes()?;
            let mut s = [started.elapsed().as_secs_f64()];
            world.group().all_reduce(ReduceOp::Max, TensorMut::from_slice(&mut s, &[1])?)?;
            Ok((s[0] / n as f64, n_rows as f64 / s[0]))
        };
        steps(if *device == Device::Cpu { 1 } else { WARMUP })?;
        let (first_s, _) = steps(1)?;
        Ok(steps((TIMED_S / first_s).clamp(TIMED.0, TIMED.1) as usize)?)
    }
}

/// Passes on every error but that of a step that is not finite.
fn ignore_failure(result: Result<(), TrainError>) -> Result<()> {
    match result {
        Err(error) if !error.is_failure() => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    let is_one = |error: &KernelError| matches!(error, KernelError::OutOfMemory { .. });
    match error {
        Error::Library(ddp::Error::Kernel(error)) => is_one(error),
        Error::Library(ddp::Error::Train(error)) => {
            matches!(&**error, TrainError::Kernel(error) if is_one(error))
        }
        _ => false,
    }
}

impl Report {
    fn to_text(&self, best: f64, fastest: usize) -> String {
        let row = |of: &Measured| {
            vec![
                of.batch_size.to_string(),
                of.global_rows.to_string(),
                size(of.memory_bytes),
                format!("{:.3}", of.step_ms),
                rate(of.samples_per_s),
                format!("{:.0}%", of.samples_per_s / best * 100.0),
            ]
        };
        let why = if self.suggested_batch_size < fastest {
            "the largest with steps enough for the schedule".to_owned()
        } else {
            format!("the smallest with {:.0}% of the best samples/s", ENOUGH * 100.0)
        };
        let titles = ["batch size", "rows per step", "memory", "ms per step", "samples/s", "of the best"];
        format!(
            "{}\nlargest batch that fits: {} rows per rank, of {} that may be used\nsuggested: {}, {why}; another batch size needs another \
             learning rate: `ddp-train find-lr`\nnext: {}\n",
            table(&titles, &self.batches.iter().map(row).collect::<Vec<_>>()),
            self.largest_batch_size,
            size(self.room_bytes),
            self.suggested_batch_size,
            self.command,
        )
    }
}
