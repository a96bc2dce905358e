//! Reduction of gradients over the ranks, bucket by bucket while backward computes: an all-reduce, or with ZeRO-1 a reduce-scatter.
//!
//! Between GPUs gradients can travel in bf16, in a buffer of their own that then holds the reduced ones. Layers write them there where
//! they [can](crate::model::Layer::can_round_gradients) and no step accumulates; the others are rounded when their bucket is finished.
//! The step's sums are reduced in f32.
//!
//! On GPUs the weights of a bucket can be updated while later buckets are still being reduced: the sums of the step, on which the update
//! depends, are then reduced with the first bucket instead of the last one.
//!
//! ```
//! use ddp::exchange::ExchangeError;
//! use ddp::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
//! use ddp::exchange::buckets::{ReducedGradients, Reduction};
//! use ddp::nn::{Activation, GradientSink as _, ModelSpec, ParamLayout};
//! use ddp::prelude::*;
//!
//! ddp::launch(2, |world| -> Result<(), ExchangeError> {
//!     let layout = ParamLayout::new(&ModelSpec::plain(&[3, 2], Activation::Relu));
//!     let plan = BucketPlan::new(&layout, 1 << 20);
//!     let mut gradients = Tensor::ones(&[layout.flat_len() + TAIL_ELEMENTS], DType::F32, Device::Cpu)?;
//!     world.tensor_group().scope(|scope| {
//!         let mut sink = ReducedGradients::new(scope, &plan, gradients.view_mut(), true, Reduction::ToAll)?;
//!         // Backward would write the gradients of each layer first.
//!         sink.finished(layout.flat_len())?;
//!         sink.finish()
//!     })?;
//!     assert!(gradients.to_vec::<f32>()?.iter().all(|sum| *sum == 2.0));
//!     Ok(())
//! })?;
//! # Ok::<(), ExchangeError>(())
//! ```

use std::ops::Range;

use ddp_comm::{OnLoan, ReduceOp, Scope, World};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut, TensorRef, ops};

use crate::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::shard_plan::{Shard, ShardPlan};
pub use crate::exchange::way::Reduction;
use crate::exchange::way::{BufferReduction, BufferSize, Exchange, Pass, counted, ring_bytes};
use crate::model::{AllRanks, GradientSink, GradientWrites, LocalGradients};

/// Gradients that are reduced in buckets.
#[derive(Debug)]
pub(crate) struct Buckets {
    pub(crate) plan: BucketPlan,
    pub(crate) reduction: Reduction,
    /// Ranges that backward writes in f32, if gradients travel in bf16.
    pub(crate) rounded: Option<Unrounded>,
    pub(crate) overlap: bool,
    /// Whether buckets are passed to an update once they are reduced.
    pub(crate) updates: bool,
    pub(crate) world_size: usize,
    /// Elements of the gradients.
    pub(crate) flat_len: usize,
}

impl Buckets {
    /// Whether layers write gradients in bf16, so that they can't accumulate.
    fn is_rounded_by_layers(&self) -> bool {
        self.rounded.as_ref().is_some_and(|unrounded| unrounded.len() < self.flat_len)
    }

    /// Whether the sums of a step are reduced with the last bucket.
    fn has_tail_in_bucket(&self) -> bool {
        self.reduction == Reduction::ToAll && self.rounded.is_none() && !self.updates
    }

    /// Whether the sums of a step have memory of their own: an update reads them while gradients next to them would be written.
    fn has_tail_apart(&self) -> bool {
        self.updates && self.rounded.is_none()
    }
}

impl Exchange for Buckets {
    fn describe(&self, _n_micro_batches: usize) -> String {
        let collective = match self.reduction {
            Reduction::ToAll => "all-reduce",
            Reduction::ToOwners => "reduce-scatter",
        };
        let format = if self.rounded.is_some() { " (bf16)" } else { "" };
        format!("{collective} of gradients{format} in {}", counted(self.plan.ranges().len(), "bucket"))
    }

    fn bytes_sent(&self, _n_micro_batches: usize) -> u64 {
        let once = |bytes| ring_bytes(self.world_size, bytes);
        let [flat, tail] = [self.flat_len, TAIL_ELEMENTS].map(|len| len * DType::F32.size_bytes());
        match (self.reduction, &self.rounded) {
            (Reduction::ToAll, None) if self.has_tail_in_bucket() => 2 * once(flat + tail),
            (Reduction::ToAll, None) => 2 * once(flat) + 2 * once(tail),
            // In both, each gradient is sent once in f32 or twice in bf16.
            (Reduction::ToAll, Some(_)) | (Reduction::ToOwners, None) => once(flat) + 2 * once(tail),
            (Reduction::ToOwners, Some(_)) => once(flat / 2) + 2 * once(tail),
        }
    }

    fn buffers(&self) -> Vec<BufferSize> {
        let exchanged = |len, dtype| BufferSize { len, dtype, is_exchanged: true };
        match &self.rounded {
            None if self.has_tail_apart() => vec![
                exchanged(self.flat_len, DType::F32),
                BufferSize { len: TAIL_ELEMENTS, dtype: DType::F32, is_exchanged: false },
            ],
            None => vec![exchanged(self.flat_len + TAIL_ELEMENTS, DType::F32)],
            Some(unrounded) => vec![
                exchanged(unrounded.len() + TAIL_ELEMENTS, DType::F32),
                exchanged(self.flat_len, DType::BF16),
            ],
        }
    }

    fn reductions(&self) -> Vec<BufferReduction> {
        let (buffer, reduction) = (usize::from(self.rounded.is_some()), self.reduction);
        let has_tail_in_bucket = self.has_tail_in_bucket();
        let plan = if has_tail_in_bucket { self.plan.clone() } else { self.plan.without_tail() };
        let singles = self.rounded.as_ref().map_or(self.flat_len, Unrounded::len);
        let start = if self.has_tail_apart() { 0 } else { singles };
        let tail = BufferReduction {
            buffer: usize::from(self.has_tail_apart()),
            range: start..start + TAIL_ELEMENTS,
            reduction: Reduction::ToAll,
        };
        let of_bucket = |range: &Range<usize>| BufferReduction { buffer, range: range.clone(), reduction };
        (!has_tail_in_bucket).then_some(tail).into_iter().chain(plan.ranges().iter().map(of_bucket)).collect()
    }

    fn writes(&self, index: usize) -> GradientWrites {
        match (self.is_rounded_by_layers(), index) {
            (true, _) => GradientWrites::Rounded,
            (false, 0) => GradientWrites::Singles,
            (false, _) => GradientWrites::Accumulated,
        }
    }

    fn n_rounded(&self) -> Option<usize> {
        self.rounded.as_ref().map(Unrounded::len)
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        let (writes, reduces) = (self.writes(pass.inputs.micro_step.index), pass.completes_step());
        if !reduces && !self.is_rounded_by_layers() {
            return pass.run(writes, &mut LocalGradients(memory[0].view_mut()));
        }
        let (grads, others) = memory.split_at_mut(1);
        let Buckets { plan, reduction, rounded, .. } = &*self;
        let Pass { world, model, inputs, squares, ranks, updates, is_rehearsal } = pass;
        world.tensor_group().scope(|scope| {
            if let Some(squares) = squares {
                scope.sum_squares_into(squares.view_mut());
            }
            let (tail, wire) = match rounded {
                Some(unrounded) => (None, Some((others[0].view_mut(), unrounded))),
                None => (others.first_mut().map(Tensor::view_mut), None),
            };
            let mut sink = ReducedGradients::over_wire(
                scope,
                plan,
                (grads[0].view_mut(), tail),
                wire,
                Ways {
                    overlap: self.overlap && reduces,
                    reduction: *reduction,
                    has_tail_in_bucket: self.has_tail_in_bucket(),
                    keeps: updates.is_some(),
                },
            )?;
            let pass = Pass {
                world,
                model: &mut *model,
                inputs,
                squares: None,
                ranks: ranks.map(|ranks| ranks as &mut dyn AllRanks),
                updates: None,
                is_rehearsal,
            };
            pass.run(writes, &mut sink)?;
            match updates {
                Some(updates) if reduces => {
                    sink.finish_each(|bucket, gradients, sums| updates.update(model, bucket, gradients, sums))
                }
                _ if reduces => sink.finish(),
                _ => Ok(()),
            }
        })
    }

    fn updates_buckets(&self) -> bool {
        self.updates
    }

    fn with_tail<'a>(&self, memory: &'a mut [Tensor]) -> &'a mut Tensor {
        &mut memory[usize::from(self.has_tail_apart())]
    }

    fn with_sums<'a>(&self, memory: &'a [Tensor]) -> &'a Tensor {
        &memory[usize::from(self.has_tail_apart())]
    }

    /// True on GPUs; on the CPU one pass over all gradients follows, whose order of summation does not depend on the buckets.
    fn sums_squares(&self, device: Device) -> bool {
        device != Device::Cpu
    }

    fn reduced<'a>(&self, memory: &'a [Tensor], shard: &Shard) -> Result<TensorRef<'a>> {
        let reduced = &memory[usize::from(self.rounded.is_some())];
        Ok(reduced.view().range(shard.flat.start, shard.flat.end)?)
    }

    /// To the place of those shards, where this rank's own sums are needed no longer.
    fn pass_on(&self, memory: &mut [Tensor], world: &World, shard_plan: &ShardPlan) -> Result<()> {
        let reduced = &mut memory[usize::from(self.rounded.is_some())];
        for block in shard_plan.blocks() {
            let Some(copied) = shard_plan.copied_shard(block) else { continue };
            let (own, copied) = (shard_plan.own_shard(block).flat, copied.flat);
            let (before, after) = reduced.view_mut().split_at(own.start.max(copied.start))?;
            let (own, copied) = if own.start < copied.start {
                (before.range(own.start, own.end)?, after.range(0, copied.len())?)
            } else {
                (after.range(0, own.len())?, before.range(copied.start, copied.end)?)
            };
            world.tensor_group().shift(own.as_ref(), copied)?;
        }
        Ok(())
    }
}

/// Ranges of the flat buffer whose gradients a pass writes in f32, in order; their elements are contiguous. Layers write the
/// others in bf16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unrounded(pub(crate) Vec<Range<usize>>);

impl Unrounded {
    /// Elements of all ranges.
    fn len(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// Where a range lies that is within one of these.
    fn place(&self, flat: &Range<usize>) -> Option<Range<usize>> {
        self.within(flat).next().filter(|(part, _)| part == flat).map(|(_, place)| place)
    }

    /// The parts of `flat` that are written in f32, and where they lie.
    fn within(&self, flat: &Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let (flat, mut before) = (flat.clone(), 0);
        self.0.iter().filter_map(move |range| {
            let first = before;
            before += range.len();
            let part = range.start.max(flat.start)..range.end.min(flat.end);
            let place = |at: usize| first + at - range.start;
            (!part.is_empty()).then(|| (part.clone(), place(part.start)..place(part.end)))
        })
    }
}

/// Gradients whose buckets are reduced as backward finishes them.
#[derive(Debug)]
pub struct ReducedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    /// The sums of a step, where they are reduced for themselves; started together with the first bucket.
    tail: Option<TensorMut<'env>>,
    /// Gradients in f32 that are rounded to the buckets, and their ranges; None for buckets in f32.
    singles: Option<(TensorMut<'env>, &'env Unrounded)>,
    /// Buckets whose reduction has not started, each with its start, the next one last.
    waiting: Vec<(usize, TensorMut<'env>)>,
    /// Buckets that are being reduced and are needed afterwards, in order, each with its start; before them the sums of the step.
    started: Vec<(usize, OnLoan<'env>)>,
    ways: Ways,
    /// Elements of the last bucket after its gradients.
    tail_len: usize,
}

/// Ways in which buckets are reduced.
#[derive(Debug, Clone, Copy)]
struct Ways {
    /// Whether each starts as soon as backward has finished it.
    overlap: bool,
    reduction: Reduction,
    /// Whether the sums of the step are reduced with the last bucket, or for themselves.
    has_tail_in_bucket: bool,
    /// Whether [`ReducedGradients::finish_each`] ends it.
    keeps: bool,
}

impl<'a, 'env> ReducedGradients<'a, 'env> {
    /// Splits `grads`, the whole flat buffer with its tail, into buckets. Without `overlap` they start when all are finished. The
    /// sums in the tail, which all ranks need, are reduced with the last bucket, or separately for a reduce-scatter.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the buffer is shorter than the plan's.
    pub fn new(
        scope: &'a mut Scope<'env>,
        plan: &BucketPlan,
        grads: TensorMut<'env>,
        overlap: bool,
        reduction: Reduction,
    ) -> Result<Self> {
        let has_tail_in_bucket = reduction == Reduction::ToAll;
        Self::over_wire(
            scope,
            plan,
            (grads, None),
            None,
            Ways { overlap, reduction, has_tail_in_bucket, keeps: false },
        )
    }

    /// Reduces `grads`, or in bf16 the `wire` to which they are rounded; the tail is at their end where it is not given.
    fn over_wire(
        scope: &'a mut Scope<'env>,
        plan: &BucketPlan,
        (grads, tail): (TensorMut<'env>, Option<TensorMut<'env>>),
        wire: Option<(TensorMut<'env>, &'env Unrounded)>,
        ways: Ways,
    ) -> Result<Self> {
        let started = Vec::new();
        if ways.has_tail_in_bucket {
            let (waiting, tail_len) = (split_buckets(plan, grads)?, TAIL_ELEMENTS);
            return Ok(Self { scope, tail: None, singles: None, waiting, started, ways, tail_len });
        }
        let (grads, tail) = match tail {
            Some(tail) => (grads, tail),
            None => {
                let flat_len = grads.numel().saturating_sub(TAIL_ELEMENTS);
                grads.split_at(flat_len)?
            }
        };
        let (buckets, singles) = match wire {
            Some((wire, unrounded)) => (wire, Some((grads, unrounded))),
            None => (grads, None),
        };
        let waiting = split_buckets(&plan.without_tail(), buckets)?;
        Ok(Self { scope, tail: Some(tail), singles, waiting, started, ways, tail_len: 0 })
    }

    /// Starts the remaining buckets and waits for all of them.
    ///
    /// # Errors
    /// [`ExchangeError::Comm`] if a collective fails.
    pub fn finish(mut self) -> Result<()> {
        self.start(usize::MAX)?;
        Ok(self.scope.wait_all()?)
    }

    /// Starts the remaining buckets, and passes each to `update` once it is reduced, with its range and the sums of the step; later ones
    /// may still be under way.
    fn finish_each(
        mut self,
        mut update: impl FnMut(Range<usize>, TensorRef<'_>, TensorRef<'_>) -> Result<()>,
    ) -> Result<()> {
        self.start(usize::MAX)?;
        let mut started = std::mem::take(&mut self.started).into_iter();
        let Some((_, tail)) = started.next() else { return Ok(self.scope.wait_all()?) };
        let tail = self.scope.take_back(tail)?;
        for (first, bucket) in started {
            let bucket = self.scope.take_back(bucket)?;
            update(first..first + bucket.numel(), bucket.as_ref(), tail.as_ref())?;
            self.scope.progress()?;
        }
        Ok(self.scope.wait_all()?)
    }

    /// Starts the next `n` buckets, or as many as there are, and the sums of a step before them; as one piece of work.
    fn start(&mut self, n: usize) -> Result<()> {
        let mut next = self.waiting.split_off(self.waiting.len().saturating_sub(n));
        if let Some((singles, unrounded)) = &self.singles {
            for (first, bucket) in next.iter_mut().rev() {
                round(unrounded, singles, *first, bucket)?;
            }
        }
        let (tail, Ways { reduction, keeps, .. }) = (self.tail.take(), self.ways);
        let (mut n_after, tail_len) = (next.len() + self.waiting.len(), self.tail_len);
        let started = &mut self.started;
        self.scope.together(|scope| -> Result<()> {
            match tail {
                Some(tail) if keeps => started.push((0, scope.all_reduce_on_loan(ReduceOp::Sum, tail)?)),
                Some(tail) => {
                    scope.all_reduce(ReduceOp::Sum, tail)?;
                }
                None => {}
            }
            for (first, bucket) in next.into_iter().rev() {
                n_after -= 1;
                if keeps {
                    started.push((first, scope.all_reduce_on_loan(ReduceOp::Sum, bucket)?));
                    continue;
                }
                match reduction {
                    Reduction::ToAll => {
                        // The squares of the tail count for no norm.
                        let n_gradients = bucket.numel() - if n_after == 0 { tail_len } else { 0 };
                        scope.all_reduce_squared(ReduceOp::Sum, bucket, n_gradients)?
                    }
                    Reduction::ToOwners => scope.reduce_scatter_squared(ReduceOp::Sum, bucket)?,
                };
            }
            Ok(())
        })
    }
}

impl GradientSink for ReducedGradients<'_, '_> {
    type Error = ExchangeError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        if let Some((singles, unrounded)) = &mut self.singles
            && let Some(place) = unrounded.place(&(start..end))
        {
            return Ok(singles.reborrow().range(place.start, place.end)?);
        }
        // Without overlap a later bucket can be written while earlier ones have not started.
        let holds = |(first, bucket): &&mut (usize, TensorMut<'_>)| {
            (*first..*first + bucket.numel()).contains(&start)
        };
        let out_of_range = KernelError::OutOfRange { op: "gradients", start, end, len: 0 };
        let (first, bucket) = self.waiting.iter_mut().rev().find(holds).ok_or(out_of_range)?;
        Ok(bucket.reborrow().range(start - *first, end - *first)?)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        while self.ways.overlap
            && let Some((first, bucket)) = self.waiting.last()
        {
            // The last bucket ends with the tail, which was written before backward began.
            let tail_len = if self.waiting.len() == 1 { self.tail_len } else { 0 };
            if first + bucket.numel() - tail_len > end {
                break;
            }
            self.start(1)?;
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(self.scope.progress()?)
    }
}

/// Splits the buffer into buckets with their start, the last one first.
fn split_buckets<'env>(
    plan: &BucketPlan,
    mut rest: TensorMut<'env>,
) -> Result<Vec<(usize, TensorMut<'env>)>> {
    let mut buckets = Vec::with_capacity(plan.ranges().len());
    for range in plan.ranges() {
        let (bucket, after) = rest.split_at(range.len())?;
        buckets.push((range.start, bucket));
        rest = after;
    }
    buckets.reverse();
    Ok(buckets)
}

/// Rounds the gradients of `bucket`, which begins at `first`, from `singles`, where they were not written in bf16.
fn round(
    unrounded: &Unrounded,
    singles: &TensorMut<'_>,
    first: usize,
    bucket: &mut TensorMut<'_>,
) -> Result<()> {
    for (part, place) in unrounded.within(&(first..first + bucket.numel())) {
        let to = bucket.reborrow().range(part.start - first, part.end - first)?;
        ops::cast(singles.as_ref().range(place.start, place.end)?, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrounded_gradients_lie_one_behind_the_other() {
        let unrounded = Unrounded(vec![16..48, 64..80, 80..96]);
        assert_eq!(unrounded.len(), 64);
        assert_eq!(unrounded.place(&(64..80)), Some(32..48));
        assert_eq!(unrounded.place(&(20..30)), Some(4..14));
        assert_eq!(unrounded.place(&(0..16)), None);
        assert_eq!(unrounded.place(&(48..64)), None);
        let within: Vec<_> = unrounded.within(&(32..88)).collect();
        assert_eq!(within, [(32..48, 16..32), (64..80, 32..48), (80..88, 48..56)]);
        assert_eq!(unrounded.within(&(48..64)).count(), 0);
    }
}
