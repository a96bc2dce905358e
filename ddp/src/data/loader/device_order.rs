//! Rows on a GPU whose order the GPU computes: row numbers of each step, and the hash of the rows used.

use ddp_kernels::cuda::{Download, Gpu};
use ddp_kernels::ops::{self, ROW_SUMS_LEN, RowNumbersOutput, ScalarsOutput};
use ddp_kernels::{DType, KernelError, KeyedPermutation, MemoryUse, Tensor, TensorMut};

use crate::data::order::epoch_proof::RowsHash;

/// Sums of the rows that were numbered on a GPU.
#[derive(Debug)]
pub(crate) struct DeviceOrder {
    /// [`ROW_SUMS_LEN`] i64, since the start.
    sums: Tensor,
    download: Download,
    /// Those that were taken.
    taken: [u64; ROW_SUMS_LEN],
}

impl DeviceOrder {
    /// Bytes of GPU memory.
    pub(crate) const SIZE_BYTES: usize = ROW_SUMS_LEN * size_of::<i64>();

    pub(super) fn new(gpu: &'static Gpu) -> Result<Self, KernelError> {
        let sums = Tensor::zeros_for(MemoryUse::Data, &[ROW_SUMS_LEN], DType::I64, gpu.device())?;
        Ok(DeviceOrder { sums, download: Download::new(gpu, Self::SIZE_BYTES)?, taken: [0; ROW_SUMS_LEN] })
    }

    /// Enqueues the numbering of the rows at positions `first..` of `order`, and a step's scalars with it.
    pub(super) fn number(
        &mut self,
        order: &KeyedPermutation,
        first: usize,
        numbers: TensorMut<'_>,
        scalars: Option<ScalarsOutput<'_>>,
    ) -> Result<(), KernelError> {
        let rows = RowNumbersOutput { order, first, numbers, sums: self.sums.view_mut() };
        ops::begin_step(scalars, Some(rows))
    }

    /// The rows that were numbered since the last call. Waits for the work enqueued before.
    pub(super) fn take_rows_hash(&mut self) -> Result<RowsHash, KernelError> {
        self.download.start(self.sums.view())?;
        let mut new = [0; ROW_SUMS_LEN];
        for ((new, taken), &sum) in new.iter_mut().zip(&mut self.taken).zip(self.download.wait::<i64>()?) {
            *new = (sum as u64).wrapping_sub(*taken);
            *taken = sum as u64;
        }
        Ok(RowsHash::from_device_sums(new))
    }
}
