//! Buckets: ranges of the flat gradient buffer that are reduced over the ranks while backward still computes.
//!
//! The gradients lie in the order in which backward finishes them, so a bucket is a range, and it is ready when backward
//! has passed its end. The step's sums of loss and weight ([`STEP_SUMS_LEN`]) follow the last parameter; they are reduced
//! with the last bucket, so they cost no extra message.
//!
//! ```
//! use ddp::exchange::bucket_plan::{BucketPlan, TAIL_ELEMENTS};
//! use ddp::nn::{Activation, ModelSpec, ParamLayout};
//!
//! let layout = ParamLayout::new(&ModelSpec::plain(&[64, 128, 10], Activation::Relu));
//! let plan = BucketPlan::new(&layout, 4096);
//! // The last layer, which backward finishes first; then the first layer, and the sums of the step.
//! assert_eq!(plan.ranges().len(), 2);
//! assert_eq!(plan.lens().iter().sum::<usize>(), layout.flat_len() + TAIL_ELEMENTS);
//! ```

use std::ops::Range;

use ddp_kernels::ops::{STEP_SUMS_EXTRA, STEP_SUMS_LEN};

use crate::model::ParamLayout;

/// Elements after the gradients for the sums of a step.
pub const TAIL_ELEMENTS: usize = STEP_SUMS_LEN;
/// Index in the tail of the sum of the ranks' votes: small whole numbers, which f32 adds exactly.
pub const STEP_VOTE: usize = STEP_SUMS_EXTRA;
/// Largest first bucket: small, so that its reduction starts early in backward.
const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// Division of the flat gradient buffer into buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    /// Ranges of the buffer, in the order of reduction; they cover it, the tail included.
    ranges: Vec<Range<usize>>,
}

impl BucketPlan {
    /// Joins whole layers up to `cap_bytes` of f32 per bucket, in the first bucket up to 1 MiB; a larger layer is a bucket of its own.
    pub fn new(layout: &ParamLayout, cap_bytes: usize) -> Self {
        let cap = cap_bytes / size_of::<f32>();
        let first_cap = cap.min(FIRST_BUCKET_BYTES / size_of::<f32>());
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        for &end in layout.layer_ends() {
            let cap = if ranges.len() <= 1 { first_cap } else { cap };
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

    /// Ranges of the buckets.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The same buckets for a buffer without the tail.
    pub fn without_tail(&self) -> Self {
        let mut plan = self.clone();
        if let Some(last) = plan.ranges.last_mut() {
            last.end -= TAIL_ELEMENTS;
        }
        plan
    }

    /// Lengths of the buckets, compared between ranks at start.
    pub fn lens(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;
    use proptest::prelude::*;

    use super::*;
    use crate::model::{EmbeddingSpec, ModelSpec};

    proptest! {
        #[test]
        fn buckets_cover_each_element_once_and_keep_the_cap(
            dims in prop::collection::vec(1usize..60, 2..7), cap_bytes in 1usize..20_000, embeds: bool,
        ) {
            let embedding = |&dim: &usize| EmbeddingSpec { name: dim.to_string(), n_codes: 30, dim };
            let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&dims, Activation::Relu) };
            let spec = spec.with_embeddings(dims.first().filter(|_| embeds).iter().copied().map(embedding).collect());
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
    }
}
