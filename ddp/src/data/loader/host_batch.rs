//! Host memory of one batch, or of several small ones, until their steps.

use std::ops::Range;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, KernelError, PinnedTensor, Tensor, TensorMut, TensorRef, ops};

use super::plan::Job;
use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::error::Result;
use crate::data::order::epoch_order::RowOrder;
use crate::data::order::epoch_proof::RowsHash;
use crate::data::tensor_rows_error::TensorRowsError;
use crate::data::{Dataset, DeviceNormalizer, RowLayout};

/// Rows of consecutive batches on the host; if the rows are on the GPU, only their numbers, or nothing if the GPU computes those.
#[derive(Debug)]
pub(super) struct HostBatch {
    memory: Memory,
    /// Numbers of the rows.
    rows: Vec<usize>,
    /// Rows in the dataset's own memory, without copies.
    in_place: Option<Range<usize>>,
    /// The batches; several only on the CPU.
    pub(super) jobs: Vec<Job>,
    /// Hashes of the rows, one per batch.
    hashes: Vec<RowsHash>,
    /// The current batch and the offset of its first row.
    current: (usize, usize),
}

#[derive(Debug)]
enum Memory {
    /// Empty: allocated with the first rows that are copied.
    None,
    Rows(Box<RowMemory>),
    Indices(PinnedTensor),
    /// None: the GPU has the rows and computes their numbers.
    OnDevice,
}

#[derive(Debug)]
pub(super) struct RowMemory {
    /// `[B, features]` in the format of the dataset, or in that in which they are sent.
    pub(super) x: HostTensor,
    /// Some rows in the format of the dataset, if they are sent in a shorter one.
    unrounded: Option<Tensor>,
    pub(super) targets: HostTensor,
    pub(super) weights: Option<HostTensor>,
    /// `x` in the model's format, if the model runs on the CPU and the format differs.
    floats: Option<Tensor>,
}

/// Host memory, page-locked if a GPU copies from it.
#[derive(Debug)]
pub(super) enum HostTensor {
    Pageable(Tensor),
    Pinned(PinnedTensor),
}

impl HostTensor {
    fn new(dims: &[usize], dtype: DType, gpu: Option<&'static Gpu>) -> Result<Self, KernelError> {
        Ok(match gpu {
            Some(gpu) => HostTensor::Pinned(PinnedTensor::new(gpu, dims, dtype)?),
            None => HostTensor::Pageable(Tensor::zeros(dims, dtype, Device::Cpu)?),
        })
    }

    fn view(&self) -> TensorRef<'_> {
        match self {
            HostTensor::Pageable(tensor) => tensor.view(),
            HostTensor::Pinned(tensor) => tensor.view(),
        }
    }

    fn view_mut(&mut self) -> Result<TensorMut<'_>, KernelError> {
        match self {
            HostTensor::Pageable(tensor) => Ok(tensor.view_mut()),
            HostTensor::Pinned(tensor) => tensor.host(),
        }
    }

    /// The page-locked memory.
    pub(super) fn pinned(&mut self) -> &mut PinnedTensor {
        match self {
            HostTensor::Pinned(tensor) => tensor,
            HostTensor::Pageable(_) => unreachable!("batches for a GPU are pinned"),
        }
    }
}

/// Bytes of features that are gathered before they are rounded: they stay in a core's cache.
const UNROUNDED_BYTES: usize = 256 << 10;

/// Rows of which the features are gathered before they are rounded to the format in which they wait; 0 if they are not.
fn unrounded_rows(layout: &RowLayout, format: DType, n_rows: usize) -> usize {
    if format == layout.dtype {
        return 0;
    }
    (UNROUNDED_BYTES / (layout.n_features() * layout.dtype.size_bytes()).max(1)).clamp(1, n_rows.max(1))
}

/// Bytes of the memory for these rows.
pub(super) fn rounded_bytes(layout: &RowLayout, format: DType, n_rows: usize) -> usize {
    unrounded_rows(layout, format, n_rows) * layout.n_features() * layout.dtype.size_bytes()
}

/// Checks that the rows of a sampler are rows of the data.
fn check_rows(rows: &[usize], n_rows: usize) -> Result<()> {
    let beyond = rows.iter().find(|&&row| row >= n_rows);
    beyond.map_or(Ok(()), |&row| Err(TensorRowsError::NoSuchRow { row, n_rows }.into()))
}

impl HostBatch {
    /// Memory for up to `n_rows` rows with features in `format`: allocated now if a GPU copies from it, because that must not happen during
    /// a capture.
    pub(super) fn new(
        layout: &RowLayout,
        format: DType,
        n_rows: usize,
        gpu: Option<&'static Gpu>,
    ) -> Result<Self> {
        let memory = match gpu {
            Some(_) => Memory::Rows(Box::new(RowMemory::new(layout, format, n_rows, gpu)?)),
            None => Memory::None,
        };
        Ok(HostBatch {
            memory,
            rows: Vec::with_capacity(n_rows),
            in_place: None,
            jobs: Vec::new(),
            hashes: Vec::new(),
            current: (0, 0),
        })
    }

    /// Memory for the numbers of up to `n_rows` rows.
    pub(super) fn indices(n_rows: usize, gpu: &'static Gpu) -> Result<Self> {
        let memory = Memory::Indices(PinnedTensor::new(gpu, &[n_rows.max(1)], DType::I64)?);
        Ok(HostBatch {
            memory,
            rows: Vec::with_capacity(n_rows),
            in_place: None,
            jobs: Vec::new(),
            hashes: Vec::new(),
            current: (0, 0),
        })
    }

    /// A batch whose row numbers the GPU computes.
    pub(super) fn on_device() -> Self {
        HostBatch {
            memory: Memory::OnDevice,
            rows: Vec::new(),
            in_place: None,
            jobs: Vec::new(),
            hashes: Vec::new(),
            current: (0, 0),
        }
    }

    /// Gathers the rows of its jobs.
    pub(super) fn fill(
        &mut self,
        dataset: &dyn Dataset,
        normalizer: Option<&DeviceNormalizer>,
        max_rows: usize,
    ) -> Result<()> {
        self.current = (0, 0);
        self.in_place = None;
        self.rows.clear();
        self.hashes.clear();
        if matches!(self.memory, Memory::OnDevice) {
            return Ok(());
        }
        for job in &self.jobs {
            let (first, order) = (self.rows.len(), &job.order);
            job.own().for_each(|positions| order.extend(positions, &mut self.rows));
            if matches!(**order, RowOrder::Sampled(_)) {
                check_rows(&self.rows[first..], dataset.len())?;
            }
            // Hash the numbers with which the rows are gathered.
            self.hashes.push(self.rows[first..].iter().map(|&row| row as u64).collect());
        }
        if let Memory::Indices(indices) = &mut self.memory {
            let places = indices.host()?.into_slice::<i64>("loader", "indices")?;
            self.rows.iter().zip(places).for_each(|(&row, place)| *place = row as i64);
            return Ok(());
        }
        let for_gpu = matches!(&self.memory, Memory::Rows(memory) if memory.is_pinned());
        if !for_gpu
            && normalizer.is_none()
            && let [job] = &self.jobs[..]
            && job.order.is_identity()
            && let (Some(own), 1) = (job.own().next(), job.own().count())
            && dataset.in_place(own.clone())?.is_some()
        {
            self.in_place = Some(own);
            return Ok(());
        }
        if matches!(self.memory, Memory::None) {
            let layout = dataset.layout();
            self.memory = Memory::Rows(Box::new(RowMemory::new(layout, layout.dtype, max_rows, None)?));
        }
        let Memory::Rows(memory) = &mut self.memory else { unreachable!("made above") };
        memory.gather(dataset, &self.rows)?;
        if !for_gpu {
            memory.convert(self.rows.len(), normalizer)?;
        }
        Ok(())
    }

    /// Hash of the current batch's rows, unless the GPU computes it.
    pub(super) fn rows_hash(&self) -> Option<&RowsHash> {
        self.hashes.get(self.current.0)
    }

    /// The current batch.
    pub(super) fn job(&self) -> &Job {
        &self.jobs[self.current.0]
    }

    /// Advances to the next batch; returns false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        self.current = (self.current.0 + 1, self.current.1 + self.job().n_own());
        self.current.0 < self.jobs.len()
    }

    /// Rows `rows` of the current batch in the model's format, on the CPU.
    pub(super) fn rows<'a>(&'a self, dataset: &'a dyn Dataset, rows: Range<usize>) -> Result<Batch<'a>> {
        if let Some(place) = &self.in_place {
            let rows = place.start + rows.start..place.start + rows.end;
            return Ok(dataset.in_place(rows)?.expect("all of them were there before"));
        }
        let start = self.current.1;
        match &self.memory {
            Memory::Rows(memory) => Ok(memory.batch(start + rows.start..start + rows.end)?),
            Memory::None | Memory::Indices(_) | Memory::OnDevice => unreachable!("rows were gathered"),
        }
    }

    /// Format in which features that are copied to a GPU wait; None if there are none.
    pub(super) fn waiting_format(&self) -> Option<DType> {
        match &self.memory {
            Memory::Rows(memory) => Some(memory.x.view().dtype()),
            Memory::None | Memory::Indices(_) | Memory::OnDevice => None,
        }
    }

    /// The copies of the rows.
    pub(super) fn memory(&mut self) -> Sending<'_> {
        match &mut self.memory {
            Memory::Rows(memory) => Sending::Rows(memory),
            Memory::Indices(indices) => Sending::Indices(indices),
            Memory::OnDevice => Sending::Nothing,
            Memory::None => unreachable!("rows were gathered"),
        }
    }

    /// Whether all copies from this memory to the GPU have finished.
    pub(super) fn is_sent(&self) -> Result<bool> {
        self.all_pinned(|tensor| Ok(tensor.is_sent()?))
    }

    /// Waits until all copies from this memory to the GPU have finished.
    pub(super) fn wait_sent(&self) -> Result<()> {
        self.all_pinned(|tensor| Ok(tensor.wait_sent().map(|()| true)?)).map(|_| ())
    }

    /// Duration of its copies in ms, if there were any, which have finished and were timed.
    pub(super) fn sent_ms(&self) -> Result<Option<f64>> {
        let mut sum = None;
        self.all_pinned(|tensor| {
            if let Some(ms) = tensor.sent_ms()? {
                *sum.get_or_insert(0.0) += ms;
            }
            Ok(true)
        })?;
        Ok(sum)
    }

    fn all_pinned(&self, mut check: impl FnMut(&PinnedTensor) -> Result<bool>) -> Result<bool> {
        let tensors: Vec<&PinnedTensor> = match &self.memory {
            Memory::Indices(indices) => vec![indices],
            Memory::Rows(memory) => memory.pinned(),
            Memory::None | Memory::OnDevice => Vec::new(),
        };
        let mut all = true;
        for tensor in tensors {
            all &= check(tensor)?;
        }
        Ok(all)
    }
}

/// Source of copies to a GPU.
pub(super) enum Sending<'a> {
    Rows(&'a mut RowMemory),
    Indices(&'a mut PinnedTensor),
    Nothing,
}

/// Rows `place` of `x`, and as many of the others from `start` on.
fn part<'a>(
    x: TensorMut<'a>,
    targets: &'a mut HostTensor,
    weights: &'a mut Option<HostTensor>,
    place: Range<usize>,
    start: usize,
) -> Result<BatchMut<'a>, KernelError> {
    let end = start + place.len();
    Ok(BatchMut {
        x: x.rows(place.start, place.end)?,
        targets: targets.view_mut()?.rows(start, end)?,
        weights: match weights {
            Some(weights) => Some(weights.view_mut()?.rows(start, end)?),
            None => None,
        },
    })
}

impl RowMemory {
    fn new(
        layout: &RowLayout,
        format: DType,
        n_rows: usize,
        gpu: Option<&'static Gpu>,
    ) -> Result<Self, KernelError> {
        let n_unrounded = unrounded_rows(layout, format, n_rows);
        let unrounded = || Tensor::zeros(&[n_unrounded, layout.n_features()], layout.dtype, Device::Cpu);
        let n_rows = n_rows.max(1);
        let weights =
            if layout.has_weights { Some(HostTensor::new(&[n_rows], DType::F32, gpu)?) } else { None };
        Ok(RowMemory {
            x: HostTensor::new(&[n_rows, layout.n_features()], format, gpu)?,
            unrounded: (n_unrounded > 0).then(unrounded).transpose()?,
            targets: HostTensor::new(&layout.targets.dims(n_rows), layout.targets.dtype(), gpu)?,
            weights,
            floats: None,
        })
    }

    fn is_pinned(&self) -> bool {
        matches!(self.x, HostTensor::Pinned(_))
    }

    fn pinned(&self) -> Vec<&PinnedTensor> {
        let tensors = [Some(&self.x), Some(&self.targets), self.weights.as_ref()];
        let pinned = tensors.into_iter().flatten().filter_map(|tensor| match tensor {
            HostTensor::Pinned(tensor) => Some(tensor),
            HostTensor::Pageable(_) => None,
        });
        pinned.collect()
    }

    fn gather(&mut self, dataset: &dyn Dataset, rows: &[usize]) -> Result<()> {
        let RowMemory { x, unrounded, targets, weights, .. } = self;
        let Some(unrounded) = unrounded else {
            return dataset.gather(rows, part(x.view_mut()?, targets, weights, 0..rows.len(), 0)?);
        };
        let most = unrounded.dims()[0];
        for (index, rows) in rows.chunks(most).enumerate() {
            let (start, n) = (index * most, rows.len());
            dataset.gather(rows, part(unrounded.view_mut(), targets, weights, 0..n, start)?)?;
            ops::cast(unrounded.view().rows(0, n)?, x.view_mut()?.rows(start, start + n)?)?;
        }
        Ok(())
    }

    /// Converts the features to the model's format, if it differs.
    fn convert(&mut self, n_rows: usize, normalizer: Option<&DeviceNormalizer>) -> Result<()> {
        let x = self.x.view();
        if x.dtype() == DType::F32 && normalizer.is_none() {
            return Ok(());
        }
        let floats = match &mut self.floats {
            Some(floats) => floats,
            None => self.floats.insert(Tensor::zeros(x.shape().dims(), DType::F32, Device::Cpu)?),
        };
        let normalizer = normalizer.map(DeviceNormalizer::view);
        Ok(ops::load_rows(x.rows(0, n_rows)?, None, normalizer, floats.view_mut().rows(0, n_rows)?)?)
    }

    fn batch(&self, rows: Range<usize>) -> Result<Batch<'_>, KernelError> {
        let x = self.floats.as_ref().map_or_else(|| self.x.view(), Tensor::view);
        let weights = self.weights.as_ref().map(HostTensor::view);
        Batch { x, targets: self.targets.view(), weights }.rows(rows.start, rows.end)
    }
}
