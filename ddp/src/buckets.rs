//! Buckets: ranges of the flat gradient buffer that are reduced over the ranks while backward still computes.
//!
//! The gradients lie in the order in which backward finishes them, so a bucket is a range, and it is ready when backward
//! has passed its end. Behind the last parameter stand the step's sums of loss and weight ([`TAIL_ELEMENTS`]); they ride
//! with the last bucket, so a step costs no message of its own for them.

use std::ops::Range;

use ddp_comm::{ReduceOp, Scope};
use ddp_kernels::{KernelError, TensorMut};

use crate::error::{Error, Result};
use crate::model::{GradientSink, ParamLayout};

/// Elements behind the gradients for the sums of a step; a cache line.
pub const TAIL_ELEMENTS: usize = 16;

/// How the flat gradient buffer is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    /// Ranges of the buffer, in the order of reduction; they cover it, the tail included.
    ranges: Vec<Range<usize>>,
}

impl BucketPlan {
    /// Whole layers are joined while they fit `cap_bytes` of f32; a larger layer is a bucket of its own.
    pub fn new(layout: &ParamLayout, cap_bytes: usize) -> Self {
        let cap = cap_bytes / size_of::<f32>();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        for end in layout.layer_ends() {
            match ranges.last_mut() {
                Some(last) if end - last.start <= cap => last.end = end,
                _ => ranges.push(start..end),
            }
            start = end;
        }
        if let Some(last) = ranges.last_mut() {
            last.end += TAIL_ELEMENTS;
        }
        BucketPlan { ranges }
    }

    /// The buckets.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Their lengths, for the comparison between ranks at start.
    pub fn lens(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }
}

/// Gradients that stay on this rank: those of all micro-batches but the last, or of a world of one.
#[derive(Debug)]
pub struct LocalGradients<'a>(pub TensorMut<'a>);

impl GradientSink for LocalGradients<'_> {
    type Error = Error;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        Ok(self.0.reborrow().range(start, end)?)
    }

    fn finished(&mut self, _end: usize) -> Result<()> {
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Gradients whose buckets are all-reduced as they are finished.
#[derive(Debug)]
pub struct ReducedGradients<'a, 'env> {
    scope: &'a mut Scope<'env>,
    /// Buckets that are not yet on their way, the next one last.
    waiting: Vec<(usize, TensorMut<'env>)>,
    overlap: bool,
}

impl<'a, 'env> ReducedGradients<'a, 'env> {
    /// The buckets of `grads`, the whole flat buffer with its tail. Without `overlap` they start when all are finished.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if the buffer is not as long as the plan's.
    pub fn new(
        scope: &'a mut Scope<'env>,
        plan: &BucketPlan,
        grads: TensorMut<'env>,
        overlap: bool,
    ) -> Result<Self> {
        let mut waiting = Vec::with_capacity(plan.ranges.len());
        let mut rest = grads;
        for range in &plan.ranges {
            let (bucket, after) = rest.split_at(range.len())?;
            waiting.push((range.start, bucket));
            rest = after;
        }
        waiting.reverse();
        Ok(ReducedGradients { scope, waiting, overlap })
    }

    /// Starts whatever has not started and waits until every bucket holds the sum over all ranks.
    ///
    /// # Errors
    /// Those of the collectives.
    pub fn finish(mut self) -> Result<()> {
        while let Some((_, bucket)) = self.waiting.pop() {
            self.scope.all_reduce(ReduceOp::Sum, bucket)?;
        }
        Ok(self.scope.wait_all()?)
    }
}

impl GradientSink for ReducedGradients<'_, '_> {
    type Error = Error;

    fn gradients(&mut self, start: usize, end: usize) -> Result<TensorMut<'_>> {
        let out_of_range = KernelError::OutOfRange { op: "gradients", start, end, len: 0 };
        // Without overlap a later bucket can be asked for while earlier ones still wait.
        let bucket = self
            .waiting
            .iter_mut()
            .rev()
            .find(|(first, bucket)| (*first..first + bucket.numel()).contains(&start));
        let (first, bucket) = bucket.ok_or(out_of_range)?;
        Ok(bucket.reborrow().range(start - *first, end - *first)?)
    }

    fn finished(&mut self, end: usize) -> Result<()> {
        if !self.overlap {
            return Ok(());
        }
        // The last bucket's end lies behind the last parameter by the tail, which was written before backward began.
        let ready = |first: usize, bucket: &TensorMut<'_>, is_last: bool| {
            first + bucket.numel() - if is_last { TAIL_ELEMENTS } else { 0 } <= end
        };
        while let Some((first, bucket)) = self.waiting.last() {
            if !ready(*first, bucket, self.waiting.len() == 1) {
                break;
            }
            if let Some((_, bucket)) = self.waiting.pop() {
                self.scope.all_reduce(ReduceOp::Sum, bucket)?;
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(self.scope.progress()?)
    }
}

/// A step's sums in the tail of the flat gradient buffer: each f64 as two f32, so that little of it is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSums {
    /// Sum of the losses.
    pub loss: f64,
    /// Sum of the weights.
    pub weight: f64,
}

impl StepSums {
    /// Writes them to the buffer's tail, before backward begins.
    pub fn store(self, tail: &mut [f32]) {
        for (pair, value) in tail.chunks_exact_mut(2).zip([self.loss, self.weight]) {
            pair[0] = value as f32;
            let rest = value - f64::from(pair[0]);
            // Infinity less infinity is NaN; the first part alone says it all.
            pair[1] = if rest.is_finite() { rest as f32 } else { 0.0 };
        }
    }

    /// Reads the sums over all ranks.
    pub fn load(tail: &[f32]) -> Self {
        let value = |i: usize| f64::from(tail[i]) + f64::from(tail[i + 1]);
        StepSums { loss: value(0), weight: value(2) }
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;
    use proptest::prelude::*;

    use super::*;
    use crate::model::ModelSpec;

    proptest! {
        #[test]
        fn buckets_cover_each_element_once_and_keep_the_cap(
            dims in prop::collection::vec(1usize..60, 2..7), cap_bytes in 1usize..20_000,
        ) {
            let spec = ModelSpec {
                dims, activation: Activation::Relu, layer_norm: true, dropout: 0.0, residual: false, bias: true,
            };
            let layout = ParamLayout::new(&spec);
            let plan = BucketPlan::new(&layout, cap_bytes);
            let mut end = 0;
            for range in plan.ranges() {
                prop_assert_eq!(range.start, end);
                prop_assert!(!range.is_empty());
                end = range.end;
            }
            prop_assert_eq!(end, layout.flat_len() + TAIL_ELEMENTS);
            let ends = layout.layer_ends();
            for range in plan.ranges() {
                let inside = ends.iter().filter(|&&e| e > range.start && e < range.end.min(layout.flat_len())).count();
                let len = range.end.min(layout.flat_len()) - range.start;
                prop_assert!(inside == 0 || len * 4 <= cap_bytes, "several layers only within the cap");
            }
        }

        #[test]
        fn sums_survive_the_tail(loss in 0.0f64..1e9, weight in 0.0f64..1e12) {
            let mut tail = [0.0; TAIL_ELEMENTS];
            StepSums { loss, weight }.store(&mut tail);
            let back = StepSums::load(&tail);
            prop_assert!((back.loss - loss).abs() <= 1e-13 * loss);
            prop_assert!((back.weight - weight).abs() <= 1e-13 * weight);
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_stays_so() {
        for loss in [f64::INFINITY, f64::NAN, 1e300] {
            let mut tail = [0.0; TAIL_ELEMENTS];
            StepSums { loss, weight: 1.0 }.store(&mut tail);
            assert!(!StepSums::load(&tail).loss.is_finite());
        }
    }
}
