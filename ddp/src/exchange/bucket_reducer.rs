//! Reduction of gradients over the ranks, bucket by bucket while backward computes, in f32 or bf16.
//!
//! ```
//! use ddp::config::Activation;
//! use ddp::exchange::ExchangeError;
//! use ddp::exchange::bucket_reducer::{ReducedGradients, Reduction};
//! use ddp::exchange::buckets::{BucketPlan, TAIL_ELEMENTS};
//! use ddp::model::{GradientSink as _, ModelSpec, ParamLayout};
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

use ddp_comm::{ReduceOp, Scope};
use ddp_kernels::{KernelError, TensorMut};

use crate::exchange::buckets::{BucketPlan, TAIL_ELEMENTS};
use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::wire::{Unrounded, Wire, round};
use crate::model::GradientSink;

/// Collective that reduces a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// All-reduce: every rank gets the whole bucket.
    ToAll,
    /// Reduce-scatter in place: each rank gets its shard of the bucket; the other shards are undefined.
    ToOwners,
}

impl Reduction {
    /// Starts to reduce a bucket that ends with `tail_len` elements that are not gradients; their squares count for no norm.
    fn start<'env>(self, scope: &mut Scope<'env>, bucket: TensorMut<'env>, tail_len: usize) -> Result<()> {
        match self {
            Reduction::ToAll => {
                let n_gradients = bucket.numel() - tail_len;
                scope.all_reduce_squared(ReduceOp::Sum, bucket, n_gradients)?
            }
            Reduction::ToOwners => scope.reduce_scatter_squared(ReduceOp::Sum, bucket)?,
        };
        Ok(())
    }
}

/// Gradients whose buckets are reduced as backward finishes them.
#[derive(Debug)]
pub struct ReducedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    /// The sums of a step, where they are reduced for themselves; started together with the first bucket.
    tail: Option<TensorMut<'env>>,
    /// Buckets whose reduction has not started, the next one last.
    waiting: Vec<(usize, TensorMut<'env>)>,
    overlap: bool,
    reduction: Reduction,
    /// Elements of the last bucket after its gradients.
    tail_len: usize,
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
        if reduction == Reduction::ToAll {
            let waiting = split_buckets(plan, grads)?;
            let tail = None;
            return Ok(ReducedGradients {
                scope,
                tail,
                waiting,
                overlap,
                reduction,
                tail_len: TAIL_ELEMENTS,
            });
        }
        let flat_len = grads.numel().saturating_sub(TAIL_ELEMENTS);
        let (grads, tail) = grads.split_at(flat_len)?;
        let waiting = split_buckets(&plan.without_tail(), grads)?;
        Ok(ReducedGradients { scope, tail: Some(tail), waiting, overlap, reduction, tail_len: 0 })
    }

    /// Starts the remaining buckets and waits for all of them.
    pub fn finish(mut self) -> Result<()> {
        self.start(usize::MAX)?;
        Ok(self.scope.wait_all()?)
    }

    /// Starts the next `n` buckets, or as many as there are, as one piece of work.
    fn start(&mut self, n: usize) -> Result<()> {
        let next = self.waiting.split_off(self.waiting.len().saturating_sub(n));
        let (mut n_after, tail_len) = (next.len() + self.waiting.len(), self.tail_len);
        let next = next.into_iter().rev().map(|(_, bucket)| {
            n_after -= 1;
            (bucket, if n_after == 0 { tail_len } else { 0 })
        });
        start_together(self.scope, self.reduction, self.tail.take(), next.collect())
    }
}

/// Starts to reduce these buckets, each with the length of its tail, and the sums of a step before them; as one piece of work.
fn start_together<'env>(
    scope: &mut Scope<'env>,
    reduction: Reduction,
    sums: Option<TensorMut<'env>>,
    buckets: Vec<(TensorMut<'env>, usize)>,
) -> Result<()> {
    let start = |scope: &mut Scope<'env>| -> Result<()> {
        if let Some(sums) = sums {
            scope.all_reduce(ReduceOp::Sum, sums)?;
        }
        buckets.into_iter().try_for_each(|(bucket, tail_len)| reduction.start(scope, bucket, tail_len))
    };
    scope.together(start)
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

/// The gradients of the flat range `start..end`. Without overlap a later bucket can be written while earlier ones have not started.
fn of_waiting<'a>(
    waiting: &'a mut [(usize, TensorMut<'_>)],
    start: usize,
    end: usize,
) -> Result<TensorMut<'a>, KernelError> {
    let holds =
        |(first, bucket): &&mut (usize, TensorMut<'_>)| (*first..*first + bucket.numel()).contains(&start);
    let out_of_range = KernelError::OutOfRange { op: "gradients", start, end, len: 0 };
    let (first, bucket) = waiting.iter_mut().rev().find(holds).ok_or(out_of_range)?;
    bucket.reborrow().range(start - *first, end - *first)
}

impl GradientSink for ReducedGradients<'_, '_> {
    type Error = ExchangeError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        Ok(of_waiting(&mut self.waiting, start, end)?)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        if !self.overlap {
            return Ok(());
        }
        // The last bucket ends with the tail, which was written before backward began.
        let tail_len = self.tail_len;
        let ready = |first: usize, bucket: &TensorMut<'_>, is_last: bool| {
            first + bucket.numel() - if is_last { tail_len } else { 0 } <= end
        };
        while let Some((first, bucket)) = self.waiting.last() {
            if !ready(*first, bucket, self.waiting.len() == 1) {
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

/// Gradients that are reduced in bf16: what layers have not written in bf16 is rounded when its bucket is finished. The step's sums
/// are reduced in f32.
#[derive(Debug)]
pub(crate) struct CompressedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    /// The sums of a step, until they start together with the first bucket.
    tail: Option<TensorMut<'env>>,
    /// Gradients in f32 before they are rounded.
    singles: TensorMut<'env>,
    unrounded: &'env Unrounded,
    /// Buckets in bf16 whose reduction has not started, the next one last.
    waiting: Vec<(usize, TensorMut<'env>)>,
    overlap: bool,
    reduction: Reduction,
}

impl<'a, 'env> CompressedGradients<'a, 'env> {
    /// Reduces the gradients in `wire`, after those in `singles` were rounded to it. The sums in `tail` start with
    /// the first bucket.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the buffer is shorter than the plan's.
    pub(crate) fn new(
        scope: &'a mut Scope<'env>,
        plan: &BucketPlan,
        singles: TensorMut<'env>,
        tail: TensorMut<'env>,
        wire: &'env mut Wire,
        overlap: bool,
        reduction: Reduction,
    ) -> Result<Self> {
        let Wire { grads, unrounded } = wire;
        let waiting = split_buckets(&plan.without_tail(), grads.view_mut())?;
        let tail = Some(tail);
        Ok(CompressedGradients { scope, tail, singles, unrounded, waiting, overlap, reduction })
    }

    /// Same as [`ReducedGradients::start`].
    fn start(&mut self, n: usize) -> Result<()> {
        let next = self.waiting.split_off(self.waiting.len().saturating_sub(n));
        let mut buckets = Vec::with_capacity(next.len());
        for (first, mut bucket) in next.into_iter().rev() {
            round(self.unrounded, &self.singles, first, &mut bucket)?;
            buckets.push((bucket, 0));
        }
        start_together(self.scope, self.reduction, self.tail.take(), buckets)
    }

    /// Starts the remaining buckets and waits for all of them; the optimiser then reads the sums in bf16.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.start(usize::MAX)?;
        Ok(self.scope.wait_all()?)
    }
}

impl GradientSink for CompressedGradients<'_, '_> {
    type Error = ExchangeError;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        match self.unrounded.place(&(start..end)) {
            Some(place) => Ok(self.singles.reborrow().range(place.start, place.end)?),
            None => Ok(of_waiting(&mut self.waiting, start, end)?),
        }
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        while self.overlap && self.waiting.last().is_some_and(|(first, bucket)| first + bucket.numel() <= end)
        {
            self.start(1)?;
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(self.scope.progress()?)
    }
}
