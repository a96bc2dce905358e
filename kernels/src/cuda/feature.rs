//! Features of a device that can be turned off, each of which has a plain way in its place.

use std::sync::atomic::{AtomicU8, Ordering};

crate::named_enum! {
    /// A feature of a GPU that a run can do without.
    pub enum GpuFeature {
        /// Bias, activation and their gradients are part of a matmul; else kernels of their own.
        FusedEpilogues = "fused-epilogues",
        /// Algorithms and forms of matmuls are chosen by time; else the first ones.
        TimedMatmuls = "timed-matmuls",
        /// Collectives have a higher priority than other work; else the same.
        StreamPriorities = "stream-priorities",
        /// Memory comes from a pool of the driver; else each allocation and each release waits for the device.
        MemoryPool = "memory-pool",
        /// The update writes the outcome of a step to host memory; else the host copies it.
        MappedOutcome = "mapped-outcome",
        /// Host memory of copies is page-locked; else the driver copies through memory of its own, and the host may wait.
        PinnedMemory = "pinned-memory",
        /// Some steps record events between their parts ([`Marks`](super::Marks)); else their time is not known by part.
        StepTimes = "step-times",
        /// A kernel that follows another one is launched while that one ends, and waits for it, from Hopper on; else it is launched after it.
        DependentLaunches = "dependent-launches",
    }
}

/// The features of a device that are turned off; initially none.
#[derive(Debug, Default)]
pub(super) struct FeaturesOff(AtomicU8);

impl FeaturesOff {
    pub(super) fn insert(&self, feature: GpuFeature) {
        self.0.fetch_or(1 << feature as u8, Ordering::Relaxed);
    }

    pub(super) fn contains(&self, feature: GpuFeature) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << feature as u8 != 0
    }
}
