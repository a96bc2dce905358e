//! Consecutive parts of an update's range with settings of their own: one launch serves all of them.

use crate::cuda::launch::Argument;

/// The most segments of one update.
#[doc(hidden)]
pub const MAX_SEGMENTS: usize = 16;

/// A part of the range of an update, with its settings in place of those of the hyper-parameters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[doc(hidden)]
pub struct UpdateSegment {
    /// Its end in elements from the start of the range; it starts at the end of the previous one.
    pub end: usize,
    /// See [`OptimizerParams::lr_scale`](super::OptimizerParams::lr_scale).
    pub lr_scale: f64,
    /// See [`OptimizerParams::weight_decay`](super::OptimizerParams::weight_decay).
    pub weight_decay: f64,
}

/// `struct Segments` of `update.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct KernelSegments {
    /// 0: all elements have the settings of the hyper-parameters.
    n: u64,
    ends: [u64; MAX_SEGMENTS],
    lr_scale: [f64; MAX_SEGMENTS],
    weight_decay: [f64; MAX_SEGMENTS],
}

impl Argument for KernelSegments {}

impl KernelSegments {
    /// # Panics
    /// For more than [`MAX_SEGMENTS`].
    pub(super) fn new(segments: &[UpdateSegment]) -> Self {
        let of = |n: usize| segments.get(n).copied().unwrap_or_default();
        assert!(segments.len() <= MAX_SEGMENTS, "{} segments in one update", segments.len());
        KernelSegments {
            n: segments.len() as u64,
            ends: std::array::from_fn(|n| of(n).end as u64),
            lr_scale: std::array::from_fn(|n| of(n).lr_scale),
            weight_decay: std::array::from_fn(|n| of(n).weight_decay),
        }
    }
}
