//! Rows on a GPU whose order the GPU computes: row numbers of each step, and the hash of the rows used. It needs all rows on the
//! GPU.

use std::ops::Range;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{self, ROW_SUMS_LEN, RowNumbersOutput, RowPlaces, ScalarsOutput};
use ddp_kernels::{DType, Download, KernelError, KeyedPermutation, MemoryUse, Tensor, TensorMut, TensorRef};

use crate::data::order::epoch_order::{BlockOrder, WindowSlice};
use crate::data::order::epoch_proof::RowsHash;

/// Sums of the rows that were numbered on a GPU.
#[derive(Debug)]
pub struct DeviceOrder {
    /// [`ROW_SUMS_LEN`] i64, since the start.
    sums: Tensor,
    download: Download,
    /// Numbers of the rows taken.
    taken: [u64; ROW_SUMS_LEN],
    /// Where rows move in blocks.
    blocks: Option<DeviceBlocks>,
}

/// Blocks of one epoch's order on the GPU.
#[derive(Debug)]
struct DeviceBlocks {
    /// `[n_blocks]` i64: position at which each begins.
    starts: Tensor,
    /// `[n_blocks]` i64: its first row.
    rows: Tensor,
    /// The epoch, from 0, once there is one.
    epoch: Option<u64>,
}

impl DeviceOrder {
    /// Bytes of GPU memory for an order of so many blocks, 0 where rows move by themselves.
    pub fn size_bytes(n_blocks: usize) -> usize {
        (ROW_SUMS_LEN + 2 * n_blocks) * size_of::<i64>()
    }

    pub(super) fn new(gpu: &'static Gpu, n_blocks: usize) -> Result<Self, KernelError> {
        let zeros = |len| Tensor::zeros_for(MemoryUse::Data, &[len], DType::I64, gpu.device());
        let blocks = || {
            Ok::<_, KernelError>(DeviceBlocks {
                starts: zeros(n_blocks)?,
                rows: zeros(n_blocks)?,
                epoch: None,
            })
        };
        Ok(DeviceOrder {
            sums: zeros(ROW_SUMS_LEN)?,
            download: Download::new(gpu, Self::size_bytes(0))?,
            taken: [0; ROW_SUMS_LEN],
            blocks: (n_blocks > 0).then(blocks).transpose()?,
        })
    }

    /// Enqueues the numbering of the rows at positions `first..` of `order`, and a step's scalars with it.
    pub(super) fn number(
        &mut self,
        order: &KeyedPermutation,
        first: usize,
        numbers: TensorMut<'_>,
        scalars: Option<ScalarsOutput<'_>>,
    ) -> Result<(), KernelError> {
        let rows = RowNumbersOutput { order, first, places: None, numbers, sums: self.sums.view_mut() };
        ops::begin_step(scalars, Some(rows))
    }

    /// Enqueues the numbering of the rows at `positions` of the order of epoch `epoch`, and a step's scalars with it: a launch per window.
    /// The first step of an epoch copies where its blocks lie.
    pub(super) fn number_in_blocks(
        &mut self,
        order: &BlockOrder,
        epoch: u64,
        positions: Range<usize>,
        mut numbers: TensorMut<'_>,
        mut scalars: Option<ScalarsOutput<'_>>,
    ) -> Result<(), KernelError> {
        let DeviceOrder { sums, blocks, .. } = self;
        for WindowSlice { order: of_window, start, within, blocks: of_blocks } in order.windows(positions) {
            let blocks = blocks.as_mut().expect("made for blocks");
            blocks.set(order, epoch)?;
            let (part, after) = numbers.split_at(within.len())?;
            numbers = after;
            let places = RowPlaces {
                starts: blocks.starts.view().range(of_blocks.start, of_blocks.end)?,
                rows: blocks.rows.view().range(of_blocks.start, of_blocks.end)?,
                origin: start,
            };
            let rows = RowNumbersOutput {
                order: of_window,
                first: within.start,
                places: Some(places),
                numbers: part,
                sums: sums.view_mut(),
            };
            ops::begin_step(scalars.take(), Some(rows))?;
        }
        if scalars.is_some() { ops::begin_step(scalars, None) } else { Ok(()) }
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

impl DeviceBlocks {
    /// Copies the blocks of this order, unless they are there; in the order of the device's work, so that earlier steps have read theirs.
    fn set(&mut self, order: &BlockOrder, epoch: u64) -> Result<(), KernelError> {
        if self.epoch == Some(epoch) {
            return Ok(());
        }
        let (starts, rows): (Vec<i64>, Vec<i64>) =
            order.blocks().map(|(start, row)| (start as i64, row as i64)).unzip();
        for (values, to) in [(starts, &mut self.starts), (rows, &mut self.rows)] {
            ops::copy(TensorRef::from_slice(&values, &[values.len()])?, to.view_mut())?;
        }
        self.epoch = Some(epoch);
        Ok(())
    }
}
