//! Features of a device that can be turned off, each of which has a plain way in its place.

use std::sync::atomic::{AtomicU8, Ordering};

/// A feature of a GPU that a run can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuFeature {
    /// Bias, activation and their gradients are part of a matmul; else kernels of their own.
    FusedEpilogues,
    /// Algorithms and forms of matmuls are chosen by time; else the first ones.
    TimedMatmuls,
    /// Collectives have a higher priority than other work; else the same.
    StreamPriorities,
    /// Memory comes from a pool of the driver; else each allocation and each release waits for the device.
    MemoryPool,
    /// The update writes the outcome of a step to host memory; else the host copies it.
    MappedOutcome,
    /// Host memory of copies is page-locked; else the driver copies through memory of its own, and the host may wait.
    PinnedMemory,
    /// Some steps record events between their parts ([`Marks`](super::Marks)); else their time is not known by part.
    StepTimes,
}

impl GpuFeature {
    /// All features.
    pub const ALL: &'static [GpuFeature] = &[
        GpuFeature::FusedEpilogues,
        GpuFeature::TimedMatmuls,
        GpuFeature::StreamPriorities,
        GpuFeature::MemoryPool,
        GpuFeature::MappedOutcome,
        GpuFeature::PinnedMemory,
        GpuFeature::StepTimes,
    ];

    /// Its name, in kebab case.
    pub const fn name(self) -> &'static str {
        match self {
            GpuFeature::FusedEpilogues => "fused-epilogues",
            GpuFeature::TimedMatmuls => "timed-matmuls",
            GpuFeature::StreamPriorities => "stream-priorities",
            GpuFeature::MemoryPool => "memory-pool",
            GpuFeature::MappedOutcome => "mapped-outcome",
            GpuFeature::PinnedMemory => "pinned-memory",
            GpuFeature::StepTimes => "step-times",
        }
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
