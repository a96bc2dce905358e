//! `ddp-train bench loader`: data loading of a run, without training.
//!
//! Rows, order and loader are the same as for `ddp-train train` with the same config; the result is compared with the memcpy
//! speed of one thread on this machine.

use std::time::Instant;

use ddp::config::Config;
use ddp::data::device_rows::DeviceRows;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, Shuffle};
use ddp::data::{Dataset, Loaded};
use ddp::train::TrainError;
use ddp::train::setup::{self, BatchPartition};
use ddp::train::trainer::StepRows as _;
use ddp_comm::World;
use ddp_kernels::KeyedPermutation;

use super::place::{Place, Work};
use super::report::{self, Row};
use super::timing::Times;
use crate::cli::BenchLoaderArgs;
use crate::error::{Error, Result};
use crate::exit::Stop;

/// Size of the reference copy; larger than any cache.
const COPY_BYTES: usize = 128 << 20;
/// Size of the reference copy of rows: the total size of a loader's buffers.
const ROW_COPIES_BYTES: usize = 16 << 20;
/// Maximum warm-up time; the first pass reads files into the page cache.
const WARM_UP_S: f64 = 20.0;

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn loader(world: &World, args: &BenchLoaderArgs) -> Result<(), Stop> {
    let config = world
        .collective_result(Config::load_with(args.run.file(), &args.run.overrides()).map_err(Error::from))?;
    world.agree(&config.agreement_entries()).map_err(Error::from)?;
    let place = Place::pin(world, &args.place, Work::Operations, &[])?;
    let data = ddp_tables::load(&config, world)?;
    let measured = world.collective_result(measure(world, args, &config, &data, &place))?;
    report::print(world, "loader", &place, args.place.json, &[measured])?;
    Ok(())
}

fn measure(
    world: &World,
    args: &BenchLoaderArgs,
    config: &Config,
    data: &Loaded,
    place: &Place,
) -> Result<Row> {
    let rows = &data.train;
    let global_rows = config.train.global_rows(world.world_size()).ok_or(TrainError::BatchOverflows)?;
    let shuffle = Shuffle::new(&config.data, &**rows);
    let plan = BatchPlan { shuffle, seed: config.train.seed, ..BatchPlan::new(global_rows) };
    let normalizer = data.preprocessor.normalizer.clone();
    let mut options = LoaderOptions::from_config(&config.data, place.device, place.threads, normalizer);
    // What no run could take has rows in the format of the data.
    if let Ok(partition) = BatchPartition::new(config, world, data, None) {
        options.sent_in = setup::input_format(config, data, &partition, world.world_size(), place.device);
    }
    let mut consumer = Consumer {
        loader: DataLoader::new(world, rows.clone(), &plan, options)?,
        place: place.clone(),
        slots: Vec::new(),
        next: 0,
    };
    let started = Instant::now();
    let mut warm = 0;
    while warm < rows.len() && started.elapsed().as_secs_f64() < WARM_UP_S {
        warm += consumer.fetch()?;
    }
    consumer.finish()?;
    let memcpy_gb_per_s = memcpy();
    let row_memcpy_gb_per_s = row_memcpy(&**rows, config)?;
    let (mut times, mut rows_timed) = (Vec::new(), 0);
    // The first pass determines the number of batches per pass.
    let mut n_batches = usize::MAX;
    for repeat in 0..=args.repeats {
        let started = Instant::now();
        let (mut n, mut taken) = (0, 0);
        let is_first = repeat == 0;
        while n < n_batches
            && !(is_first && started.elapsed().as_secs_f64() * 1e3 > f64::from(args.repeat_ms))
        {
            taken += consumer.fetch()?;
            n += 1;
        }
        consumer.finish()?;
        if is_first {
            n_batches = n;
        } else {
            times.push(started.elapsed().as_secs_f64() * 1e3);
            rows_timed = taken;
        }
    }
    let times = Times::of(times);
    let rows_per_s = rows_timed as f64 / times.median * 1e3;
    let row_bytes = rows.layout().row_bytes();
    let gb_per_s = rows_per_s * row_bytes as f64 * 1e-9;
    let loader_threads = consumer.loader.n_threads();
    let order = if config.data.shuffle {
        format!("shuffled {}", config.data.shuffle_mode)
    } else {
        "in order".into()
    };
    let placement = if consumer.loader.is_on_gpu() { "on the GPU" } else { "on the host" };
    // The same number of threads that each copy rows (or bytes) at the speed of one thread.
    let reference = row_memcpy_gb_per_s.unwrap_or(memcpy_gb_per_s) * loader_threads.max(1) as f64;
    Ok(Row::default()
        .cell("<rows", format!("{}, {placement}, {order}", rows.source()))
        .value("source", rows.source())
        .value("rows", rows.len())
        .value("features", rows.layout().n_features())
        .plain("bytes/row", "row_bytes", row_bytes)
        .plain("batch", "batch", global_rows.min(rows.len()))
        .value("shuffle", order)
        .value("placement", placement)
        .plain("threads", "loader_threads", loader_threads)
        .times(times)
        .value("rows_timed", rows_timed)
        .number("samples/s", "rows_per_s", rows_per_s)
        .number("GB/s", "gb_per_s", gb_per_s)
        .value("memcpy_gb_per_s", memcpy_gb_per_s)
        .value("row_memcpy_gb_per_s", row_memcpy_gb_per_s)
        .percent("of memcpy", "of_memcpy", gb_per_s / reference)
        // Data that is mapped or held in memory, rather than read in pieces.
        .value("resident_mib", rows.resident_bytes() >> 20))
}

/// Fetches batches, to the GPU if there is one, and discards them.
struct Consumer {
    loader: DataLoader,
    place: Place,
    slots: Vec<DeviceRows>,
    next: usize,
}

impl Consumer {
    /// Fetches the next batch and returns its number of rows.
    fn fetch(&mut self) -> Result<usize> {
        let gpu = self.place.gpu()?;
        let mut step = self.loader.next_step()?.expect("the plan has no end");
        let n_rows = step.n_own_rows();
        let Some(gpu) = gpu else { return Ok(n_rows) };
        while self.slots.len() < 2 {
            self.slots.push(DeviceRows::new(gpu, n_rows, step.device_shape())?);
        }
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % 2;
        if slot.holds(n_rows, step.device_shape()) {
            step.send(slot, None)?;
            slot.consumed()?;
        }
        Ok(n_rows)
    }

    /// Waits for the copies.
    fn finish(&self) -> Result<()> {
        Ok(self.place.gpu()?.map_or(Ok(()), |gpu| gpu.synchronize())?)
    }
}

/// Measures the memcpy of one thread in GB/s.
fn memcpy() -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        to.copy_from_slice(&from);
        best = best.min(started.elapsed().as_secs_f64());
        std::hint::black_box(&mut to);
    }
    COPY_BYTES as f64 / best * 1e-9
}

/// Measures plain row copies of one thread in GB/s, in the order of an epoch, into buffers like those of the loader.
fn row_memcpy(rows: &dyn Dataset, config: &Config) -> Result<Option<f64>> {
    const OP: &str = "bench";
    let n_rows = rows.len();
    let order = if config.data.shuffle {
        KeyedPermutation::new(n_rows, config.train.seed, 1)
    } else {
        KeyedPermutation::identity(n_rows)
    };
    let n_features = rows.layout().n_features();
    let Some(all) = rows.in_place(0..n_rows)? else { return Ok(None) };
    let all = all.x.as_slice::<f32>(OP, "x")?;
    let mut out = vec![0.0f32; (ROW_COPIES_BYTES / 4).next_multiple_of(n_features)];
    let n_copies = out.len() / n_features;
    let mut best = f64::INFINITY;
    for pass in 0..5 {
        let places: Vec<_> = (0..n_copies).map(|n| order.index((n + pass * n_copies) % n_rows)).collect();
        let started = Instant::now();
        for (out, row) in out.chunks_exact_mut(n_features).zip(places) {
            out.copy_from_slice(&all[row * n_features..][..n_features]);
        }
        best = best.min(started.elapsed().as_secs_f64());
        std::hint::black_box(&mut out);
    }
    Ok(Some(out.len() as f64 * 4.0 / best * 1e-9))
}
