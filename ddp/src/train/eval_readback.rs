//! Brings the outputs of evaluation batches to the host: directly on the CPU, and from a GPU two batches late, so that no batch
//! waits for the copies of the one before it.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, Download, Tensor, TensorRef, ops};

use crate::train::error::{Result, TrainError};
use crate::train::metrics::rows::{EvalRows, RowTargets};
use crate::train::metrics::totals::Needs;

/// Batches on their way to the host.
pub(crate) struct Readback {
    needs: Needs,
    n_outputs: usize,
    /// Place of each row's largest output, on the model's device; allocated by the first batch, which is the largest.
    predicted: Option<Tensor>,
    way: Way,
}

enum Way {
    /// The outputs are on the host already; holds the last batch's.
    Host {
        outputs: Vec<f32>,
        predicted: Vec<i64>,
    },
    Gpu {
        gpu: &'static Gpu,
        slots: Vec<Slot>,
        next: usize,
    },
}

/// A batch whose copy is enqueued.
struct Slot {
    download: Download,
    /// None before the slot's first batch, and after its batch was added.
    batch: Option<HostBatch>,
}

/// Number of a slot whose copy is enqueued, until [`Readback::batch`] adds the targets.
#[derive(Debug)]
pub(crate) struct Enqueued(usize);

/// The host's side of a batch: the loader reuses its memory.
struct HostBatch {
    part: usize,
    n_rows: usize,
    targets: OwnedTargets,
    weights: Option<Vec<f32>>,
}

enum OwnedTargets {
    Labels(Vec<i64>),
    Values(Vec<f32>),
}

impl Readback {
    pub(crate) fn new(device: Device, needs: Needs, n_outputs: usize) -> Result<Self> {
        let way = match device {
            Device::Cpu => Way::Host { outputs: Vec::new(), predicted: Vec::new() },
            Device::Cuda(index) => Way::Gpu { gpu: Gpu::get(index)?, slots: Vec::new(), next: 0 },
        };
        Ok(Readback { needs, n_outputs, predicted: None, way })
    }

    /// Enqueues the copies of a batch's outputs, `[rows, outputs]`; `add` gets an earlier batch that has arrived.
    ///
    /// # Errors
    /// [`TrainError::Kernel`](crate::train::TrainError::Kernel).
    pub(crate) fn enqueue(
        &mut self,
        outputs: TensorRef<'_>,
        add: impl FnMut(usize, &EvalRows<'_>),
    ) -> Result<Enqueued> {
        let n_rows = outputs.numel() / self.n_outputs;
        if self.needs.predicted {
            if self.predicted.is_none() {
                self.predicted = Some(Tensor::zeros(&[n_rows], DType::I64, outputs.device())?);
            }
            let predicted = self.predicted.as_mut().expect("allocated above");
            ops::argmax(outputs, predicted.view_mut().range(0, n_rows)?)?;
        }
        let predicted = self.predicted.as_ref().map(|tensor| tensor.view().range(0, n_rows)).transpose()?;
        let outputs = self.needs.outputs.then_some(outputs);
        match &mut self.way {
            Way::Host { outputs: all, predicted: places } => {
                all.clear();
                places.clear();
                if let Some(outputs) = outputs {
                    all.extend_from_slice(outputs.as_slice::<f32>("evaluate", "outputs")?);
                }
                if let Some(predicted) = predicted {
                    places.extend_from_slice(predicted.as_slice::<i64>("evaluate", "predicted")?);
                }
                Ok(Enqueued(0))
            }
            Way::Gpu { gpu, slots, next } => {
                let row_bytes = self.n_outputs * DType::F32.size_bytes() + DType::I64.size_bytes();
                while slots.len() < 2 {
                    slots.push(Slot { download: Download::new(gpu, n_rows * row_bytes)?, batch: None });
                }
                let place = *next;
                *next = (place + 1) % slots.len();
                slots[place].finish(self.needs, add)?;
                // Places first: they need the larger alignment.
                let parts: Vec<TensorRef<'_>> = predicted.into_iter().chain(outputs).collect();
                slots[place].download.start_all(&parts)?;
                Ok(Enqueued(place))
            }
        }
    }

    /// Gives an enqueued batch its targets and weights, in host memory; `add` gets the batch if it has arrived.
    ///
    /// # Errors
    /// [`TrainError::Kernel`], and [`TrainError::NegativeLabel`].
    pub(crate) fn batch(
        &mut self,
        Enqueued(place): Enqueued,
        part: usize,
        targets: TensorRef<'_>,
        weights: Option<TensorRef<'_>>,
        mut add: impl FnMut(usize, &EvalRows<'_>),
    ) -> Result<()> {
        let weights = weights.map(|weights| weights.as_slice::<f32>("evaluate", "weights")).transpose()?;
        let n_rows = targets.shape().dims()[0];
        let targets = match targets.dtype() {
            DType::I64 => {
                let labels: &[i64] = targets.as_slice("evaluate", "targets")?;
                let has_metrics = self.needs.predicted || self.needs.outputs;
                if let Some(&label) = labels.iter().find(|label| has_metrics && **label < 0) {
                    return Err(TrainError::NegativeLabel { label });
                }
                RowTargets::Labels(labels)
            }
            _ => RowTargets::Values(targets.as_slice("evaluate", "targets")?),
        };
        match &mut self.way {
            Way::Host { outputs, predicted } => {
                add(part, &EvalRows { n_rows, outputs, predicted, targets, weights });
            }
            Way::Gpu { slots, .. } => {
                let targets = match targets {
                    RowTargets::Labels(labels) => OwnedTargets::Labels(labels.to_vec()),
                    RowTargets::Values(values) => OwnedTargets::Values(values.to_vec()),
                };
                slots[place].batch =
                    Some(HostBatch { part, n_rows, targets, weights: weights.map(<[f32]>::to_vec) });
            }
        }
        Ok(())
    }

    /// Waits for the batches that are under way; `add` gets them in order.
    ///
    /// # Errors
    /// [`TrainError::Kernel`](crate::train::TrainError::Kernel).
    pub(crate) fn finish(&mut self, mut add: impl FnMut(usize, &EvalRows<'_>)) -> Result<()> {
        let Way::Gpu { slots, next, .. } = &mut self.way else { return Ok(()) };
        for i in 0..slots.len() {
            let place = (*next + i) % slots.len();
            slots[place].finish(self.needs, &mut add)?;
        }
        Ok(())
    }
}

impl Slot {
    /// Waits for the slot's batch, if it has one, and adds it.
    fn finish(&mut self, needs: Needs, mut add: impl FnMut(usize, &EvalRows<'_>)) -> Result<()> {
        let Some(HostBatch { part, n_rows, targets, weights }) = self.batch.take() else { return Ok(()) };
        let bytes = self.download.wait::<u8>()?;
        let n_places = if needs.predicted { n_rows * size_of::<i64>() } else { 0 };
        let (predicted, outputs) = bytes.split_at(n_places);
        let targets = match &targets {
            OwnedTargets::Labels(labels) => RowTargets::Labels(labels),
            OwnedTargets::Values(values) => RowTargets::Values(values),
        };
        add(
            part,
            &EvalRows {
                n_rows,
                outputs: bytemuck::cast_slice(outputs),
                predicted: bytemuck::cast_slice(predicted),
                targets,
                weights: weights.as_deref(),
            },
        );
        Ok(())
    }
}
