//! ZeRO-2: sharded gradients. No rank ever holds more than its shards and two buckets.
//!
//! Backward writes into two buffers in turn, each as long as the longest bucket. A finished bucket is reduced over the ranks
//! in place, while backward fills the other buffer; before the buffer is needed again, this rank's shard of the sum is
//! added to that of earlier micro-batches.
//!
//! Source: ZeRO, arXiv:1910.02054, section 5.2.
//!
//! ```
//! use ddp::config::Activation;
//! use ddp::exchange::ExchangeError;
//! use ddp::exchange::buckets::BucketPlan;
//! use ddp::exchange::zero2::{BucketBuffers, ShardedGradients};
//! use ddp::model::{GradientSink as _, ModelSpec, ParamLayout};
//! use ddp::ops;
//! use ddp::prelude::*;
//!
//! ddp::launch(2, |world| -> Result<(), ExchangeError> {
//!     let layout = ParamLayout::shared_by(&ModelSpec::plain(&[3, 2], Activation::Relu), 2);
//!     let plan = BucketPlan::new(&layout, 1 << 20);
//!     let mut buffers = BucketBuffers::new(world, &layout, &plan, Device::Cpu)?;
//!     let ones = Tensor::ones(&[layout.flat_len()], DType::F32, Device::Cpu)?;
//!     let mut shard = Tensor::zeros(&[layout.flat_len() / 2], DType::F32, Device::Cpu)?;
//!     let lent = buffers.lend(shard.view_mut());
//!     world.tensor_group().scope(|scope| {
//!         let mut sink = ShardedGradients::new(scope, lent, None, false, true);
//!         ops::copy(ones.view(), sink.gradients(0, layout.flat_len())?)?;
//!         sink.finished(layout.flat_len())?;
//!         sink.finish()
//!     })?;
//!     assert!(shard.to_vec::<f32>()?.iter().all(|sum| *sum == 2.0));
//!     Ok(())
//! })?;
//! # Ok::<(), ExchangeError>(())
//! ```

use std::ops::Range;

use ddp_comm::{OnLoan, ReduceOp, Scope, World};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorMut, ops};

use crate::exchange::buckets::BucketPlan;
use crate::exchange::error::{ExchangeError, Result};
use crate::model::{GradientSink, ParamLayout};

/// The two buffers and the layout of the buckets.
#[derive(Debug)]
pub struct BucketBuffers {
    buffers: [Tensor; 2],
    buckets: Vec<Bucket>,
    /// Zeros, as many as the longest gap between parameters.
    zeros: Tensor,
    rank: usize,
    world_size: usize,
}

/// One bucket.
#[derive(Debug)]
struct Bucket {
    flat: Range<usize>,
    /// Gaps between parameters, relative to its start.
    gaps: Vec<Range<usize>>,
}

impl BucketBuffers {
    /// Allocates buffers for the buckets of `layout`, which was made for this world.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`] if the device is out of memory.
    pub fn new(world: &World, layout: &ParamLayout, plan: &BucketPlan, device: Device) -> Result<Self> {
        let plan = plan.without_tail();
        let gaps: Vec<_> = layout.gaps().collect();
        let bucket = |flat: &Range<usize>| {
            let inside = gaps.iter().filter(|gap| flat.contains(&gap.start));
            let gaps = inside.map(|gap| gap.start - flat.start..gap.end - flat.start).collect();
            Bucket { flat: flat.clone(), gaps }
        };
        let (longest, longest_gap) = Self::lens(layout, &plan);
        let buffer = || world.exchange_zeros(MemoryUse::Gradients, &[longest], DType::F32, device);
        let zeros = Tensor::zeros_for(MemoryUse::Gradients, &[longest_gap], DType::F32, device)?;
        Ok(BucketBuffers {
            buffers: [buffer()?, buffer()?],
            buckets: plan.ranges().iter().map(bucket).collect(),
            zeros,
            rank: world.rank().0,
            world_size: world.world_size(),
        })
    }

    /// Elements of each of the two buffers, and of the zeros; `plan` is without the tail.
    pub fn lens(layout: &ParamLayout, plan: &BucketPlan) -> (usize, usize) {
        let longest_gap = layout.gaps().map(|gap| gap.len()).max().unwrap_or(0);
        (plan.lens().into_iter().max().unwrap_or(0), longest_gap)
    }

    /// Lends the buffers to one backward pass, with `shards`, this rank's shards of all buckets, one after the other.
    pub fn lend<'env>(&'env mut self, shards: TensorMut<'env>) -> LentBuffers<'env> {
        let BucketBuffers { buffers: [a, b], buckets, zeros, rank, world_size } = self;
        let slots = [BufferState::Free(a.view_mut()), BufferState::Free(b.view_mut())];
        LentBuffers { slots, buckets, zeros, rank: *rank, world_size: *world_size, shards }
    }
}

/// Buffers for one backward pass.
#[derive(Debug)]
pub struct LentBuffers<'env> {
    slots: [BufferState<'env>; 2],
    buckets: &'env [Bucket],
    zeros: &'env Tensor,
    rank: usize,
    world_size: usize,
    shards: TensorMut<'env>,
}

/// Gradients whose buckets are reduce-scattered as backward finishes them, and then discarded.
#[derive(Debug)]
pub struct ShardedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    /// The sums of a step, until they start together with the first bucket.
    tail: Option<TensorMut<'env>>,
    lent: LentBuffers<'env>,
    /// Index of the bucket that backward fills.
    next: usize,
    /// Buckets whose buffers were prepared.
    begun: usize,
    accumulate: bool,
    overlap: bool,
}

/// Owner of one buffer.
#[derive(Debug)]
enum BufferState<'env> {
    Free(TensorMut<'env>),
    /// In the reduction of this bucket.
    Lent(OnLoan<'env>, usize),
    /// Lost to a failed collective.
    Lost,
}

impl<'a, 'env> ShardedGradients<'a, 'env> {
    /// Creates a sink that adds its sums to the lent shards, or overwrites them. Without `overlap` it waits for each bucket.
    ///
    /// - `tail`: the sums of a step, all-reduced with the first bucket of its last micro-batch
    pub fn new(
        scope: &'a mut Scope<'env>,
        lent: LentBuffers<'env>,
        tail: Option<TensorMut<'env>>,
        accumulate: bool,
        overlap: bool,
    ) -> Self {
        ShardedGradients { scope, tail, lent, next: 0, begun: 0, accumulate, overlap }
    }

    /// Waits for the bucket in a buffer and collects this rank's shard of its sum.
    fn collect(&mut self, slot: usize) -> Result<()> {
        let (loan, bucket) = match std::mem::replace(&mut self.lent.slots[slot], BufferState::Lost) {
            BufferState::Lent(loan, bucket) => (loan, bucket),
            other => {
                self.lent.slots[slot] = other;
                return Ok(());
            }
        };
        let buffer = self.scope.take_back(loan)?;
        let LentBuffers { rank, world_size, .. } = self.lent;
        let Bucket { flat, .. } = &self.lent.buckets[bucket];
        let (len, start) = (flat.len() / world_size, flat.start / world_size);
        let sum = buffer.as_ref().range(rank * len, (rank + 1) * len)?;
        let shard = self.lent.shards.reborrow().range(start, start + len)?;
        if self.accumulate {
            ops::add_assign(shard, sum)?;
        } else {
            ops::copy(sum, shard)?;
        }
        self.lent.slots[slot] = BufferState::Free(buffer);
        Ok(())
    }

    /// The buffer of the bucket that backward fills, with zeros between the parameters.
    fn buffer(&mut self) -> Result<&mut TensorMut<'env>> {
        let slot = self.next % 2;
        self.collect(slot)?;
        let nothing = KernelError::OutOfRange { op: "gradients", start: 0, end: 0, len: 0 };
        let BufferState::Free(buffer) = &mut self.lent.slots[slot] else { return Err(nothing.into()) };
        if self.begun == self.next {
            self.begun += 1;
            for gap in &self.lent.buckets[self.next].gaps {
                let zeros = self.lent.zeros.view().range(0, gap.len())?;
                ops::copy(zeros, buffer.reborrow().range(gap.start, gap.end)?)?;
            }
        }
        Ok(buffer)
    }

    /// Waits for all buckets.
    pub fn finish(mut self) -> Result<()> {
        self.collect(self.next % 2)?;
        self.collect((self.next + 1) % 2)?;
        if let Some(tail) = self.tail.take() {
            // No bucket took it along.
            self.scope.all_reduce(ReduceOp::Sum, tail)?;
        }
        Ok(self.scope.wait_all()?)
    }
}

impl GradientSink for ShardedGradients<'_, '_> {
    type Error = ExchangeError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        let len = self.lent.buckets.last().map_or(0, |last| last.flat.end);
        let out_of_range = KernelError::OutOfRange { op: "gradients", start, end, len };
        let bucket = self.lent.buckets.get(self.next).filter(|bucket| bucket.flat.contains(&start));
        let first = bucket.ok_or(out_of_range)?.flat.start;
        Ok(self.buffer()?.reborrow().range(start - first, end - first)?)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        while self.lent.buckets.get(self.next).is_some_and(|bucket| bucket.flat.end <= end) {
            self.buffer()?;
            let (bucket, slot) = (self.next, self.next % 2);
            let len = self.lent.buckets[bucket].flat.len();
            if let BufferState::Free(buffer) =
                std::mem::replace(&mut self.lent.slots[slot], BufferState::Lost)
            {
                let tail = self.tail.take();
                let loan = self.scope.together(|scope| -> Result<_> {
                    if let Some(tail) = tail {
                        scope.all_reduce(ReduceOp::Sum, tail)?;
                    }
                    Ok(scope.reduce_scatter_on_loan(ReduceOp::Sum, buffer, len)?)
                })?;
                self.lent.slots[slot] = BufferState::Lent(loan, bucket);
            }
            if !self.overlap {
                self.collect(slot)?;
            }
            self.next += 1;
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(self.scope.progress()?)
    }
}
