//! ZeRO-2: sharded gradients. No rank ever holds more than its shards and two buckets.
//!
//! Backward writes into two buffers in turn, each as long as the longest bucket. A finished bucket is reduced over the ranks
//! in place, while backward fills the other buffer; before the buffer is needed again, this rank's shard of the sum is
//! added to that of earlier micro-batches.
//!
//! Source: ZeRO, arXiv:1910.02054, section 5.2.
//!
//! ```
//! use ddp::ops;
//! use ddp::exchange::{BufferSize, Exchange as _, ExchangeError, MicroStep};
//! use ddp::exchange::bucket_plan::BucketPlan;
//! use ddp::exchange::zero2::{ShardedGradients, Zero2};
//! use ddp::nn::{Activation, GradientSink as _, ModelSpec, ParamLayout};
//! use ddp::prelude::*;
//!
//! ddp::launch(2, |world| -> Result<(), ExchangeError> {
//!     let layout = ParamLayout::shared_by(&ModelSpec::plain(&[3, 2], Activation::Relu), 2);
//!     let plan = BucketPlan::new(&layout, 1 << 20);
//!     let zero2 = Zero2::new(&layout, &plan, world.rank().0, 2, true);
//!     let ones = Tensor::ones(&[layout.flat_len()], DType::F32, Device::Cpu)?;
//!     let mut memory = BufferSize::allocate(&zero2.buffers(), world, Device::Cpu)?;
//!     world.tensor_group().scope(|scope| {
//!         let micro_step = MicroStep { index: 0, is_last: true };
//!         let mut sink = ShardedGradients::new(scope, &zero2, &mut memory, micro_step)?;
//!         ops::copy(ones.view(), sink.gradients(0, layout.flat_len())?)?;
//!         sink.finished(layout.flat_len())?;
//!         sink.finish()
//!     })?;
//!     // The tail follows this rank's shard.
//!     let shard = &memory[0].to_vec::<f32>()?[..layout.flat_len() / 2];
//!     assert!(shard.iter().all(|sum| *sum == 2.0));
//!     Ok(())
//! })?;
//! # Ok::<(), ExchangeError>(())
//! ```

use std::ops::Range;

use ddp_comm::{OnLoan, ReduceOp, Scope, World};
use ddp_kernels::{DType, KernelError, Tensor, TensorMut, TensorRef, ops};

use crate::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::way::{
    BufferReduction, BufferSize, Exchange, MicroStep, Pass, Reduction, counted, ring_bytes,
};
use crate::model::{GradientSink, GradientWrites, ParamLayout};

/// Gradients that are reduced in every micro-batch. Memory: this rank's shards of all buckets, one after the other, with the tail; two
/// buffers for buckets; zeros, as many as the longest gap between parameters; the shards of another rank, where it holds a copy of their
/// state.
#[derive(Debug)]
pub struct Zero2 {
    buckets: Vec<Bucket>,
    longest_gap: usize,
    rank: usize,
    world_size: usize,
    overlap: bool,
    has_copies: bool,
}

/// One bucket.
#[derive(Debug)]
struct Bucket {
    flat: Range<usize>,
    /// Gaps between parameters, relative to its start.
    gaps: Vec<Range<usize>>,
}

impl Zero2 {
    /// Plans the exchange of the buckets of `layout`, which was made for `world_size` ranks.
    pub fn new(
        layout: &ParamLayout,
        plan: &BucketPlan,
        rank: usize,
        world_size: usize,
        overlap: bool,
    ) -> Self {
        let gaps: Vec<_> = layout.gaps().collect();
        let bucket = |flat: &Range<usize>| {
            let inside = gaps.iter().filter(|gap| flat.contains(&gap.start));
            let gaps = inside.map(|gap| gap.start - flat.start..gap.end - flat.start).collect();
            Bucket { flat: flat.clone(), gaps }
        };
        let buckets = plan.without_tail().ranges().iter().map(bucket).collect();
        let longest_gap = gaps.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        Zero2 { buckets, longest_gap, rank, world_size, overlap, has_copies: false }
    }

    /// The same exchange, where ranks can hold copies of the state of another one's shards.
    #[must_use]
    pub fn with_copies(self, has_copies: bool) -> Self {
        Zero2 { has_copies, ..self }
    }

    fn flat_len(&self) -> usize {
        self.buckets.last().map_or(0, |last| last.flat.end)
    }
}

impl Exchange for Zero2 {
    fn describe(&self, n_micro_batches: usize) -> String {
        let buckets = counted(self.buckets.len(), "bucket");
        format!("reduce-scatter of gradients in {buckets} per micro-batch ({n_micro_batches} per step)")
    }

    fn bytes_sent(&self, n_micro_batches: usize) -> u64 {
        let once = |len| ring_bytes(self.world_size, len * DType::F32.size_bytes());
        n_micro_batches as u64 * once(self.flat_len()) + 2 * once(TAIL_ELEMENTS)
    }

    fn buffers(&self) -> Vec<BufferSize> {
        let longest = self.buckets.iter().map(|bucket| bucket.flat.len()).max().unwrap_or(0);
        let of = |len, is_exchanged| BufferSize { len, dtype: DType::F32, is_exchanged };
        let own = self.flat_len() / self.world_size;
        let shards = own + TAIL_ELEMENTS;
        let copies = self.has_copies.then(|| of(own, true));
        let buffers = [of(shards, true), of(longest, true), of(longest, true), of(self.longest_gap, false)];
        buffers.into_iter().chain(copies).collect()
    }

    fn reductions(&self) -> Vec<BufferReduction> {
        let shards = self.flat_len() / self.world_size;
        let tail = shards..shards + TAIL_ELEMENTS;
        let tail = BufferReduction { buffer: 0, range: tail, reduction: Reduction::ToAll };
        let of_bucket = |(index, bucket): (usize, &Bucket)| BufferReduction {
            buffer: 1 + index % 2,
            range: 0..bucket.flat.len(),
            reduction: Reduction::ToOwners,
        };
        std::iter::once(tail).chain(self.buckets.iter().enumerate().map(of_bucket)).collect()
    }

    /// The buffers hold other buckets, so nothing accumulates in them.
    fn writes(&self, _index: usize) -> GradientWrites {
        GradientWrites::Singles
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        pass.world.tensor_group().scope(|scope| {
            let mut sink = ShardedGradients::new(scope, self, memory, pass.inputs.micro_step)?;
            sink.is_rehearsal = pass.is_rehearsal;
            pass.run(GradientWrites::Singles, &mut sink)?;
            sink.finish()
        })
    }

    fn reduced<'a>(&self, memory: &'a [Tensor], shard: &Shard) -> Result<TensorRef<'a>> {
        let own = self.flat_len() / self.world_size;
        let (values, start) = match shard.state_start.checked_sub(own) {
            Some(start) if self.has_copies => (&memory[COPIES], start),
            _ => (&memory[0], shard.state_start),
        };
        Ok(values.view().range(start, start + shard.flat.len())?)
    }

    fn pass_on(&self, memory: &mut [Tensor], world: &World, _shard_plan: &ShardPlan) -> Result<()> {
        if !self.has_copies {
            return Ok(());
        }
        let (own, copies) = memory.split_at_mut(COPIES);
        let own = own[0].view().range(0, self.flat_len() / self.world_size)?;
        Ok(world.tensor_group().shift(own, copies[0].view_mut())?)
    }
}

/// Index of the tensor with the shards of another rank.
const COPIES: usize = 4;

/// Gradients whose buckets are reduce-scattered as backward finishes them, and then discarded.
#[derive(Debug)]
pub struct ShardedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    plan: &'env Zero2,
    /// This rank's shards of all buckets.
    shards: TensorMut<'env>,
    /// The sums of a step, until they start together with the first bucket of its last micro-batch.
    tail: Option<TensorMut<'env>>,
    slots: [BufferState<'env>; 2],
    zeros: &'env Tensor,
    /// Index of the bucket that backward fills.
    next: usize,
    /// Buckets whose buffers were prepared.
    begun: usize,
    accumulate: bool,
    /// Whether nothing is reduced.
    is_rehearsal: bool,
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
    /// Creates a sink that overwrites the shards in `memory`, the tensors of [`Zero2`], and after the first micro-batch adds its sums to
    /// them. The tail is all-reduced with the first bucket of the last micro-batch.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the memory is not that of `plan`.
    pub fn new(
        scope: &'a mut Scope<'env>,
        plan: &'env Zero2,
        memory: &'env mut [Tensor],
        micro_step: MicroStep,
    ) -> Result<Self> {
        let out_of_range = KernelError::OutOfRange { op: "gradients", start: 0, end: 4, len: memory.len() };
        let [sums, a, b, zeros, ..] = memory else { return Err(out_of_range.into()) };
        let (shards, tail) = sums.view_mut().split_at(plan.flat_len() / plan.world_size)?;
        let slots = [BufferState::Free(a.view_mut()), BufferState::Free(b.view_mut())];
        let (tail, accumulate) = (micro_step.is_last.then_some(tail), micro_step.index > 0);
        let (next, begun, is_rehearsal) = (0, 0, false);
        Ok(Self { scope, plan, shards, tail, slots, zeros, next, begun, accumulate, is_rehearsal })
    }

    /// Waits for the bucket in a buffer and collects this rank's shard of its sum.
    fn collect(&mut self, slot: usize) -> Result<()> {
        let (loan, bucket) = match std::mem::replace(&mut self.slots[slot], BufferState::Lost) {
            BufferState::Lent(loan, bucket) => (loan, bucket),
            other => {
                self.slots[slot] = other;
                return Ok(());
            }
        };
        let buffer = self.scope.take_back(loan)?;
        let Zero2 { rank, world_size, .. } = *self.plan;
        let Bucket { flat, .. } = &self.plan.buckets[bucket];
        let (len, start) = (flat.len() / world_size, flat.start / world_size);
        let sum = buffer.as_ref().range(rank * len, (rank + 1) * len)?;
        let shard = self.shards.reborrow().range(start, start + len)?;
        if self.accumulate {
            ops::add_assign(shard, sum)?;
        } else {
            ops::copy(sum, shard)?;
        }
        self.slots[slot] = BufferState::Free(buffer);
        Ok(())
    }

    /// The buffer of the bucket that backward fills, with zeros between the parameters.
    fn buffer(&mut self) -> Result<&mut TensorMut<'env>> {
        let slot = self.next % 2;
        self.collect(slot)?;
        let nothing = KernelError::OutOfRange { op: "gradients", start: 0, end: 0, len: 0 };
        let BufferState::Free(buffer) = &mut self.slots[slot] else { return Err(nothing.into()) };
        if self.begun == self.next {
            self.begun += 1;
            for gap in &self.plan.buckets[self.next].gaps {
                let zeros = self.zeros.view().range(0, gap.len())?;
                ops::copy(zeros, buffer.reborrow().range(gap.start, gap.end)?)?;
            }
        }
        Ok(buffer)
    }

    /// Waits for all buckets.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`] if a collective fails.
    pub fn finish(mut self) -> Result<()> {
        if self.is_rehearsal {
            return Ok(());
        }
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
        let len = self.plan.flat_len();
        let out_of_range = KernelError::OutOfRange { op: "gradients", start, end, len };
        let bucket = self.plan.buckets.get(self.next).filter(|bucket| bucket.flat.contains(&start));
        let first = bucket.ok_or(out_of_range)?.flat.start;
        Ok(self.buffer()?.reborrow().range(start - first, end - first)?)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        while self.plan.buckets.get(self.next).is_some_and(|bucket| bucket.flat.end <= end) {
            self.buffer()?;
            if self.is_rehearsal {
                self.next += 1;
                continue;
            }
            let (bucket, slot) = (self.next, self.next % 2);
            let len = self.plan.buckets[bucket].flat.len();
            if let BufferState::Free(buffer) = std::mem::replace(&mut self.slots[slot], BufferState::Lost) {
                let tail = self.tail.take();
                let loan = self.scope.together(|scope| -> Result<_> {
                    if let Some(tail) = tail {
                        scope.all_reduce(ReduceOp::Sum, tail)?;
                    }
                    Ok(scope.reduce_scatter_on_loan(ReduceOp::Sum, buffer, len)?)
                })?;
                self.slots[slot] = BufferState::Lent(loan, bucket);
            }
            if !self.plan.overlap {
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
