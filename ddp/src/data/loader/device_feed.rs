//! Batches on the model's device, for passes over rows without training.

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, KernelError};

use super::LoadedStep;
use crate::data::datasets::batch::Batch;
use crate::data::device_rows::DeviceRows;
use crate::data::error::Result;
use crate::data::step_rows::{self, StepRows as _};

/// Batches as loaded, or copied to the GPU while the previous batch computes.
#[derive(Debug)]
pub enum DeviceFeed {
    /// The model computes on the CPU.
    Host,
    /// The model computes on a GPU.
    Gpu(GpuFeed),
}

/// Memory of batches on a GPU.
#[derive(Debug)]
pub struct GpuFeed {
    gpu: &'static Gpu,
    slots: Vec<DeviceRows>,
    next: usize,
}

impl DeviceFeed {
    /// For a model on `device`.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`].
    pub fn new(device: Device) -> Result<Self, KernelError> {
        let Device::Cuda(index) = device else { return Ok(DeviceFeed::Host) };
        Ok(DeviceFeed::Gpu(GpuFeed { gpu: Gpu::get(index)?, slots: Vec::new(), next: 0 }))
    }

    /// The rows on the device, in memory of its size if no earlier batch was as large.
    ///
    /// # Errors
    /// [`DataError::RowsElsewhere`](crate::data::DataError::RowsElsewhere) for rows that were loaded for another device;
    /// [`DataError`](crate::data::DataError) if rows cannot be read or copied.
    pub fn next<'a>(&'a mut self, rows: &'a mut LoadedStep<'_>) -> Result<Batch<'a>> {
        step_rows::check_device(rows, self.device())?;
        let DeviceFeed::Gpu(GpuFeed { gpu, slots, next }) = self else { return rows.batch() };
        let (n_rows, shape) = (rows.n_own_rows(), rows.device_shape());
        if slots.iter().any(|slot| !slot.holds(n_rows, shape)) {
            // Copies to them are waited for, and their memory is free after the enqueued work.
            slots.clear();
        }
        while slots.len() < 2 {
            slots.push(DeviceRows::new(gpu, n_rows, shape)?);
        }
        let slot = &mut slots[*next];
        rows.send(slot, None)?;
        Ok(slot.batch(0..n_rows)?)
    }

    /// The model's device.
    fn device(&self) -> Device {
        match self {
            DeviceFeed::Host => Device::Cpu,
            DeviceFeed::Gpu(GpuFeed { gpu, .. }) => gpu.device(),
        }
    }

    /// Marks the last batch as consumed by enqueued work.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] of earlier work.
    pub fn consumed(&mut self) -> Result<(), KernelError> {
        if let DeviceFeed::Gpu(GpuFeed { slots, next, .. }) = self {
            slots[*next].consumed()?;
            *next = (*next + 1) % slots.len();
        }
        Ok(())
    }
}
