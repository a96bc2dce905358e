//! Slices of time of this rank, recorded while a trace is on: parts of steps, collectives, and buckets in flight.
//!
//! While it is off, recording costs a load of a flag per collective.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The line on which a slice is drawn. Slices of one track nest, except buckets, which overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Track {
    /// The training thread.
    Host,
    /// Collectives of the training thread, and its waits for buckets. Over NCCL these enqueue work.
    Exchange,
    /// Collectives that run while the rank computes, from their start until they are known to be complete.
    Bucket,
    /// The GPU's compute stream.
    Compute,
    /// The GPU's communication stream.
    Communication,
}

impl Track {
    /// All tracks, in the order of their numbers.
    pub const ALL: [Track; 5] =
        [Track::Host, Track::Exchange, Track::Bucket, Track::Compute, Track::Communication];
}

/// A slice of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Its track.
    pub track: Track,
    /// Its name.
    pub name: Cow<'static, str>,
    /// The step under way, from 1; 0 before the first.
    pub step: u64,
    /// Begin on this rank's clock, in ns.
    pub begin_ns: u64,
    /// End on this rank's clock, in ns.
    pub end_ns: u64,
    /// Bytes of the buffer of a collective.
    pub n_bytes: Option<u64>,
}

/// Records slices while it is on. Its clock begins when it is created.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    is_on: AtomicBool,
    step: AtomicU64,
    slices: Mutex<Vec<Slice>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            began: Instant::now(),
            is_on: AtomicBool::new(false),
            step: AtomicU64::new(0),
            slices: Mutex::default(),
        }
    }
}

impl Recorder {
    /// Whether slices are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Records slices from now on; see [`World::begin_recording`](crate::World::begin_recording).
    pub(crate) fn begin(&self) {
        self.lock().clear();
        self.is_on.store(true, Relaxed);
    }

    /// Ends the recording and returns its slices, in the order of their ends.
    pub fn end(&self) -> Vec<Slice> {
        self.is_on.store(false, Relaxed);
        std::mem::take(&mut *self.lock())
    }

    /// The step of slices from now on.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Relaxed);
    }

    /// Adds a slice of the step under way, if slices are recorded.
    pub fn add(
        &self,
        track: Track,
        name: impl Into<Cow<'static, str>>,
        (begin, end): (Instant, Instant),
        n_bytes: Option<u64>,
    ) {
        if self.is_on() {
            let (step, begin_ns, end_ns) = (self.step.load(Relaxed), self.ns(begin), self.ns(end));
            self.push(Slice { track, name: name.into(), step, begin_ns, end_ns, n_bytes });
        }
    }

    /// Adds a slice, if slices are recorded.
    pub fn push(&self, slice: Slice) {
        if self.is_on() {
            self.lock().push(slice);
        }
    }

    /// A moment on this rank's clock, in ns.
    pub fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// This moment on this rank's clock, in ns.
    pub fn now_ns(&self) -> u64 {
        self.ns(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slice>> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_kept_only_while_a_trace_is_on() {
        let recorder = Recorder::default();
        let moments = (Instant::now(), Instant::now());
        recorder.add(Track::Host, "before", moments, None);
        recorder.begin();
        recorder.set_step(7);
        recorder.add(Track::Bucket, "all_reduce", moments, Some(64));
        let slices = recorder.end();
        recorder.add(Track::Host, "after", moments, None);
        assert_eq!(slices.len(), 1, "{slices:?}");
        assert_eq!((slices[0].step, slices[0].n_bytes), (7, Some(64)));
        assert!(slices[0].begin_ns <= slices[0].end_ns);
        assert_eq!(recorder.end(), []);
    }
}
