//! Rows made ready ahead of the steps that need them.
//!
//! Threads take the next batches of a plan, gather their rows into a ring of buffers (pinned, where a GPU copies from them),
//! and the step takes them in order. Where gathering costs nothing, there are no threads: rows in memory that the CPU
//! computes on are gathered by the step itself, and rows that lie side by side are not copied at all. Where all rows are on
//! the GPU, it computes their numbers itself, or only these travel if the rows are shuffled in blocks.

mod device_order;
mod device_table;
mod plan;
mod host_batch;
mod filler;
mod ring;
mod step;
pub mod device_feed;
mod batches;
mod rows_in_batches;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_comm::World;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, KernelError};

pub use self::batches::{Batches, TensorBatch};
pub use self::device_order::DeviceOrder;
pub use self::device_table::DeviceTable;
use self::filler::Filler;
use self::host_batch::{HostBatch, rounded_bytes};
pub use self::plan::{BatchPlan, Job, Shuffle};
use self::plan::{passes, ranges};
use self::ring::Ring;
pub use self::rows_in_batches::RowsInBatches;
pub use self::step::LoadedStep;
use crate::config::{DataConfig, Placement};
use crate::data::error::{DataError, Result};
use crate::data::order::epoch_proof::RowsHash;
use crate::data::order::partition::EvalPartition;
pub use crate::data::order::partition::PartitionKind;
use crate::data::{Dataset, DeviceNormalizer, Normalizer, RowLayout, Summary};

/// Copies to a GPU that may be under way while the next batches are made ready.
const MAX_IN_FLIGHT: usize = 3;
/// Batches are handed over together as long as they take no more than this, and at most so many.
const SMALL_BATCHES_BYTES: usize = 512 << 10;
const MAX_SMALL_BATCHES: usize = 64;
/// Threads beyond which a bus is full.
const MAX_AUTO_THREADS: usize = 4;

/// Preparation of rows.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// Where the model computes.
    pub device: Device,
    /// Where rows wait.
    pub placement: Placement,
    /// Batches made ready ahead, at least 1.
    pub prefetch: usize,
    /// Threads that make them ready; `None` chooses.
    pub threads: Option<usize>,
    /// Threads that this rank may have in all.
    pub cores: usize,
    /// Host memory that the batches may take together, in bytes; one batch there always is.
    pub memory_bytes: usize,
    /// Transformation of features on the way.
    pub normalizer: Option<Normalizer>,
    /// Format in which f32 features that nothing transforms are sent to a GPU: that of the model's input
    /// ([`crate::model::Network::input_format`]), to which the host rounds them as the model would.
    pub sent_in: DType,
}

impl LoaderOptions {
    /// Rows wait on the host; everything else as it fits `device`.
    pub fn new(device: Device) -> Self {
        LoaderOptions {
            device,
            placement: Placement::Host,
            prefetch: 4,
            memory_bytes: 1 << 30,
            threads: None,
            cores: 1,
            normalizer: None,
            sent_in: DType::F32,
        }
    }

    /// The format of the features of `layout` while they wait on the host.
    pub fn waiting_format(&self, layout: &RowLayout) -> DType {
        let is_sent_as_it_is = self.device != Device::Cpu
            && layout.dtype == DType::F32
            && self.sent_in.size_bytes() < layout.dtype.size_bytes()
            && self.normalizer.is_none();
        if is_sent_as_it_is { self.sent_in } else { layout.dtype }
    }

    /// Bytes of a row of `layout` while it waits on the host.
    fn waiting_row_bytes(&self, layout: &RowLayout) -> usize {
        let saved = layout.dtype.size_bytes() - self.waiting_format(layout).size_bytes();
        layout.row_bytes() - layout.n_features() * saved
    }

    /// Takes the settings from the config.
    pub fn from_config(
        data: &DataConfig,
        device: Device,
        cores: usize,
        normalizer: Option<Normalizer>,
    ) -> Self {
        LoaderOptions {
            device,
            placement: data.placement,
            prefetch: data.prefetch,
            memory_bytes: usize::try_from(data.rows_memory_bytes()).unwrap_or(usize::MAX),
            threads: (data.loader_threads > 0).then_some(data.loader_threads),
            cores,
            normalizer,
            sent_in: DType::F32,
        }
    }
}

/// Hands out the batches of a plan in order.
#[derive(Debug)]
pub struct DataLoader {
    rows: Rows,
    gpu: Option<&'static Gpu>,
    normalizer: Option<Arc<DeviceNormalizer>>,
    source: Source,
    current: Option<HostBatch>,
    /// Batches whose copies to the GPU may not be over.
    in_flight: std::collections::VecDeque<HostBatch>,
    /// Batches of an epoch, unless they are ranges that are drawn as they come.
    epoch_len: Option<usize>,
    /// Row numbers on the GPU, if it computes them.
    device_order: Option<DeviceOrder>,
    /// Rows that were handed out since [`DataLoader::take_rows_hash`], without those that a GPU numbered.
    rows_hash: RowsHash,
    /// Whether copies to a GPU are timed.
    times_copies: bool,
    times: LoaderTimes,
}

/// The buffers in which batches wait on the host.
struct HostBuffers {
    /// Batches that one of them holds.
    jobs_a_batch: usize,
    n_buffers: usize,
}

impl HostBuffers {
    /// - `batch_bytes`: bytes of the largest batch
    fn new(batch_bytes: usize, on_gpu: bool, n_threads: usize, options: &LoaderOptions) -> Self {
        // Handing over costs some microseconds, as long as a small step: then several batches go together.
        let jobs_a_batch = match (on_gpu, n_threads) {
            (false, 1..) => (SMALL_BATCHES_BYTES / batch_bytes.max(1)).clamp(1, MAX_SMALL_BATCHES),
            _ => 1,
        };
        // Of large batches fewer are made ready than asked for.
        let in_flight = if on_gpu { MAX_IN_FLIGHT } else { 1 };
        let affordable = options.memory_bytes / (batch_bytes * jobs_a_batch).max(1);
        let prefetch = options.prefetch.max(n_threads).min(affordable.saturating_sub(in_flight)).max(1);
        let n_buffers = match (n_threads, on_gpu) {
            (0, true) => 1 + MAX_IN_FLIGHT,
            (0, false) => 1,
            _ => prefetch + in_flight,
        };
        HostBuffers { jobs_a_batch, n_buffers }
    }
}

/// Where the rows are.
#[derive(Debug, Clone)]
enum Rows {
    Host(Arc<dyn Dataset>),
    Gpu(Arc<dyn Dataset>, Arc<DeviceTable>),
}

/// Thread or threads that fill batches.
enum Source {
    /// Threads.
    Ring(Ring),
    /// The step itself.
    Inline { filler: Filler, jobs: Box<dyn Iterator<Item = Job> + Send>, spare: Vec<HostBatch> },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Ring(_) => "Ring",
            Source::Inline { .. } => "Inline",
        })
    }
}

/// Cost of loading so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoaderTimes {
    /// Time that steps waited for rows.
    pub wait: Duration,
    /// Time of copies to the GPU of timed batches; those of the last steps may be missing.
    pub h2d_ms: f64,
    /// Batches whose copies were timed.
    pub n_timed: u64,
    /// Batches handed out.
    pub n_batches: u64,
}

impl DataLoader {
    /// Loads this rank's rows of `dataset` in the batches of `plan`.
    ///
    /// # Errors
    /// [`DataError::RowsNotOnDevice`] if the GPU has no room for rows that must be there; [`DataError::LoaderThread`];
    /// [`DataError::Kernel`] for steps of no rows, for [`BatchPlan::drop_last`] on fewer rows than a step has, and if a buffer cannot be allocated; the errors of [`Dataset::check`].
    pub fn new(
        world: &World,
        dataset: Arc<dyn Dataset>,
        plan: &BatchPlan,
        options: LoaderOptions,
    ) -> Result<Self> {
        if plan.global_rows == 0 {
            let remedy = "the number of rows of a step over all ranks, at least 1";
            return Err(KernelError::misuse("DataLoader", "batches of 0 rows", remedy).into());
        }
        dataset.check()?;
        let jobs = plan.jobs(world, dataset.len());
        if plan.drop_last && jobs.n_rows == 0 {
            let problem = format!(
                "`drop_last` leaves no step: {} rows, and {} in a step",
                dataset.len(),
                plan.global_rows
            );
            return Err(
                KernelError::misuse("DataLoader", problem, "smaller steps, or without `drop_last`").into()
            );
        }
        let max_rows = jobs.max_own_rows();
        let gpu = gpu_of(options.device)?;
        let rows = match gpu {
            Some(gpu) => place(dataset, gpu, options.placement)?,
            None => Rows::Host(dataset),
        };
        let device_order = match (gpu, &rows) {
            (Some(gpu), Rows::Gpu(..)) if plan.shuffle.is_computed_on_gpus() => {
                Some(DeviceOrder::new(gpu, plan.shuffle.n_blocks())?)
            }
            _ => None,
        };
        let epoch_len = Some(jobs.n_rows.div_ceil(plan.global_rows));
        Self::start(rows, Box::new(jobs), epoch_len, max_rows, device_order, options)
    }

    /// Passes over this rank's parts of the rows, in their own order: evaluation.
    ///
    /// # Errors
    /// [`DataError::LoaderThread`]; [`DataError::Kernel`] if a buffer cannot be allocated.
    pub fn passes(
        world: &World,
        dataset: Arc<dyn Dataset>,
        partition: EvalPartition,
        options: LoaderOptions,
    ) -> Result<Self> {
        let jobs = || passes(world, dataset.len(), partition);
        let (epoch_len, jobs) = (Some(jobs().count()), Box::new(jobs()));
        Self::start(Rows::Host(dataset), jobs, epoch_len, partition.max_rows, None, options)
    }

    /// Loads ranges of rows in the order of `ranges`, in batches of at most `max_rows`, none across two ranges.
    ///
    /// # Errors
    /// Same as [`DataLoader::passes`].
    pub fn ranges(
        dataset: Arc<dyn Dataset>,
        of_rows: impl Iterator<Item = std::ops::Range<usize>> + Send + 'static,
        max_rows: usize,
        options: LoaderOptions,
    ) -> Result<Self> {
        let jobs = ranges(dataset.len(), of_rows, max_rows);
        Self::start(Rows::Host(dataset), Box::new(jobs), None, max_rows, None, options)
    }

    /// Number of steps of an epoch, in each of which every rank gets a batch; of an evaluation, the number of this rank's batches.
    ///
    /// # Panics
    /// For a loader of [`DataLoader::ranges`], which are drawn as they come.
    #[expect(clippy::len_without_is_empty, reason = "a loader has steps, or is an error")]
    pub fn len(&self) -> usize {
        self.epoch_len.expect("ranges of rows are drawn as they come")
    }

    fn start(
        rows: Rows,
        jobs: Box<dyn Iterator<Item = Job> + Send>,
        epoch_len: Option<usize>,
        max_rows: usize,
        device_order: Option<DeviceOrder>,
        options: LoaderOptions,
    ) -> Result<Self> {
        let gpu = gpu_of(options.device)?;
        let normalizer =
            options.normalizer.as_ref().map(|normalizer| DeviceNormalizer::new(normalizer, options.device));
        let normalizer = normalizer.transpose()?.map(Arc::new);
        let n_threads = options.threads.unwrap_or_else(|| {
            let is_resident = rows.dataset().resident_bytes() > 0;
            auto_threads(matches!(rows, Rows::Gpu(..)), gpu.is_some(), options.cores, is_resident)
        });
        let row_bytes = options.waiting_row_bytes(rows.dataset().layout());
        let HostBuffers { jobs_a_batch, n_buffers } =
            HostBuffers::new(max_rows * row_bytes, gpu.is_some(), n_threads, &options);
        let dataset = rows.dataset().clone();
        let buffer = || match (&rows, gpu) {
            _ if device_order.is_some() => Ok(HostBatch::on_device()),
            (Rows::Gpu(..), Some(gpu)) => HostBatch::indices(max_rows, gpu),
            _ => {
                let layout = dataset.layout();
                HostBatch::new(layout, options.waiting_format(layout), max_rows * jobs_a_batch, gpu)
            }
        };
        // On the CPU whoever fills batches normalizes too; on a GPU the GPU does.
        let on_host = normalizer.clone().filter(|_| gpu.is_none());
        let filler = Filler::new(dataset.clone(), on_host, max_rows, jobs_a_batch, options.cores);
        let buffers = (0..n_buffers).map(|_| buffer()).collect::<Result<Vec<_>>>()?;
        let source = match n_threads {
            0 => Source::Inline { filler, jobs, spare: buffers },
            _ => Source::Ring(Ring::start(filler, jobs, buffers, n_threads)?),
        };
        Ok(DataLoader {
            rows,
            gpu,
            normalizer,
            source,
            current: None,
            in_flight: std::collections::VecDeque::new(),
            epoch_len,
            device_order,
            rows_hash: RowsHash::default(),
            times_copies: true,
            times: LoaderTimes::default(),
        })
    }

    /// The next batch of the plan, `None` after its last.
    ///
    /// # Errors
    /// [`DataError`] if rows cannot be read; [`DataError::Kernel`] if they cannot be copied to the GPU.
    pub fn next_step(&mut self) -> Result<Option<LoadedStep<'_>>> {
        self.times.n_batches += 1;
        if !self.current.as_mut().is_some_and(HostBatch::advance) {
            let started = Instant::now();
            self.recycle()?;
            self.current = self.take()?;
            self.times.wait += started.elapsed();
        }
        let Some(batch) = &mut self.current else { return Ok(None) };
        batch.rows_hash().into_iter().for_each(|rows| self.rows_hash.merge(rows));
        Ok(Some(LoadedStep {
            batch,
            rows: &self.rows,
            device: self.gpu.map_or(Device::Cpu, Gpu::device),
            normalizer: self.normalizer.as_deref(),
            device_order: self.device_order.as_mut(),
            times_copies: self.times_copies,
        }))
    }

    /// Hash of the rows that were handed out since the last call; on a GPU, of those that were sent to a step. Waits for the GPU if
    /// it computes row numbers.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] of earlier work.
    pub fn take_rows_hash(&mut self) -> Result<RowsHash> {
        let mut rows = std::mem::take(&mut self.rows_hash);
        if let Some(on_device) = &mut self.device_order {
            rows.merge(&on_device.take_rows_hash()?);
        }
        Ok(rows)
    }

    /// The next rows of the plan, `None` after its last.
    fn take(&mut self) -> Result<Option<HostBatch>> {
        match &mut self.source {
            Source::Ring(ring) => ring.take(),
            Source::Inline { filler, jobs, spare } => {
                let mut batch = spare.pop().expect("as many as are in flight, and one");
                filler.take_jobs(&mut batch, &mut **jobs);
                if batch.jobs.is_empty() {
                    spare.push(batch);
                    return Ok(None);
                }
                match filler.fill(&mut batch) {
                    Ok(()) => Ok(Some(batch)),
                    Err(error) => {
                        spare.push(batch);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Sets whether the copies of the next batches to a GPU are timed ([`LoaderTimes::h2d_ms`]); initially true.
    pub fn time_copies(&mut self, is_timed: bool) {
        self.times_copies = is_timed;
    }

    /// Cost of loading so far.
    pub fn times(&self) -> LoaderTimes {
        self.times
    }

    /// Whether all rows are on the GPU.
    pub fn is_on_gpu(&self) -> bool {
        matches!(self.rows, Rows::Gpu(..))
    }

    /// Whether the rows were copied to the GPU without page-locked memory, of which the host had none left.
    pub fn is_copied_slowly(&self) -> bool {
        matches!(&self.rows, Rows::Gpu(_, table) if table.is_from_pageable())
    }

    /// Whether batches are copied to a GPU.
    pub fn is_host_to_gpu(&self) -> bool {
        self.gpu.is_some() && !self.is_on_gpu()
    }

    /// Threads that make batches ready; 0 where the step does.
    pub fn n_threads(&self) -> usize {
        match &self.source {
            Source::Ring(ring) => ring.n_threads(),
            Source::Inline { .. } => 0,
        }
    }

    /// Gives back the memory of the last batch, once no copy reads it any more.
    fn recycle(&mut self) -> Result<()> {
        let Some(batch) = self.current.take() else { return Ok(()) };
        self.in_flight.push_back(batch);
        while let Some(oldest) = self.in_flight.front() {
            if self.in_flight.len() <= MAX_IN_FLIGHT && !oldest.is_sent()? {
                break;
            }
            oldest.wait_sent()?;
            if let Some(ms) = oldest.sent_ms()? {
                self.times.h2d_ms += ms;
                self.times.n_timed += 1;
            }
            let oldest = self.in_flight.pop_front().expect("looked at above");
            match &mut self.source {
                Source::Ring(ring) => ring.give_back(oldest),
                Source::Inline { spare, .. } => spare.push(oldest),
            }
        }
        Ok(())
    }
}

impl Rows {
    fn dataset(&self) -> &Arc<dyn Dataset> {
        match self {
            Rows::Host(dataset) | Rows::Gpu(dataset, _) => dataset,
        }
    }
}

fn gpu_of(device: Device) -> Result<Option<&'static Gpu>, KernelError> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda(index) => Gpu::get(index).map(Some),
    }
}

/// Bytes of the host's memory in which up to so many rows per batch wait for their steps, without those that a dataset keeps.
///
/// - `is_on_gpu`: whether all rows are on the GPU, so that only their numbers wait, shuffled in blocks
pub fn host_buffer_bytes(
    dataset: &dyn Dataset,
    max_rows: usize,
    options: &LoaderOptions,
    is_on_gpu: bool,
) -> usize {
    let on_gpu = options.device != Device::Cpu;
    let n_threads = options
        .threads
        .unwrap_or_else(|| auto_threads(is_on_gpu, on_gpu, options.cores, dataset.resident_bytes() > 0));
    let layout = dataset.layout();
    let batch_bytes = max_rows * options.waiting_row_bytes(layout);
    let HostBuffers { jobs_a_batch, n_buffers } = HostBuffers::new(batch_bytes, on_gpu, n_threads, options);
    let buffer_bytes = if is_on_gpu {
        max_rows * size_of::<i64>()
    } else {
        batch_bytes * jobs_a_batch + rounded_bytes(layout, options.waiting_format(layout), max_rows)
    };
    n_buffers * buffer_bytes
}

/// Puts the rows on the GPU if that is wished for and they fit.
fn place(dataset: Arc<dyn Dataset>, gpu: &'static Gpu, wish: Placement) -> Result<Rows> {
    let fits = match wish {
        Placement::Host => return Ok(Rows::Host(dataset)),
        Placement::Auto => DeviceTable::fits(&*dataset, gpu)?,
        Placement::Device => true,
    };
    if !fits {
        return Ok(Rows::Host(dataset));
    }
    let mib = DeviceTable::size_bytes(&*dataset) >> 20;
    match DeviceTable::new(&*dataset, gpu) {
        Ok(table) => Ok(Rows::Gpu(dataset, Arc::new(table))),
        Err(DataError::Kernel(KernelError::OutOfMemory { .. })) if wish == Placement::Auto => {
            Ok(Rows::Host(dataset))
        }
        Err(DataError::Kernel(error @ KernelError::OutOfMemory { .. })) => {
            Err(DataError::RowsNotOnDevice { rows: Summary(&*dataset).to_string(), mib, source: error })
        }
        Err(error) => Err(error),
    }
}

/// Threads that make batches ready, where nobody says how many.
fn auto_threads(is_on_gpu: bool, to_gpu: bool, cores: usize, is_resident: bool) -> usize {
    match (is_on_gpu, to_gpu) {
        // Numbers are made in no time.
        (true, _) => 0,
        (false, true) => (cores / 2).clamp(1, MAX_AUTO_THREADS),
        // A copy from memory to memory costs less than handing it over.
        (false, false) if is_resident => 0,
        (false, false) => 1,
    }
}
