//! Marks: labeled points of the compute stream, which show how long the device works on what.
//!
//! A mark is an event. Within a capture it becomes a node of the graph, so that each replay records it again.
//!
//! Source: CUDA Driver API, `cuEventRecordWithFlags`, `CU_EVENT_RECORD_EXTERNAL`.

use std::sync::PoisonError;

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use super::event::Event;
use super::gpu::{Gpu, Recording};
use super::graph::Graph;
use crate::Result;

/// Most marks of one recording.
const CAPACITY: usize = 256;

/// Label of work that the compute stream does not do: it waits for another stream.
pub const WAITING: u8 = u8::MAX;

/// Marks of some work; the work after a mark has its label, up to the next one.
#[derive(Debug)]
pub struct Marks {
    events: Vec<Event>,
    recording: Recording,
}

// SAFETY: the handles of the recording are those of the events, which may be used from any thread.
unsafe impl Send for Marks {}

impl Marks {
    /// Creates the memory for marks of this device.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu) -> Result<Self> {
        let events: Vec<Event> = (0..CAPACITY).map(|_| Event::timed(gpu)).collect::<Result<_>>()?;
        let raw = events.iter().map(Event::raw).collect();
        let recording =
            Recording { events: raw, labels: Vec::with_capacity(CAPACITY), ..Recording::default() };
        Ok(Marks { events, recording })
    }

    /// Captures two marks, replays them and reads the time between them: whether marks work in graphs of this device.
    ///
    /// # Errors
    /// The error of the call that fails.
    pub fn try_in_graph(gpu: &'static Gpu) -> Result<()> {
        let mut marks = Some(Marks::new(gpu)?);
        let mark = || gpu.mark(0).and_then(|_| gpu.mark(1)).map(|_| ());
        let mut graph = Graph::capture(gpu, || gpu.marking(&mut marks, mark))?;
        graph.launch()?;
        marks.as_ref().map_or(Ok(()), |marks| marks.times_ms().map(|_| ()))
    }

    /// Forgets the marks.
    pub fn clear(&mut self) {
        self.recording.labels.clear();
        self.recording.is_full = false;
    }

    /// Labels of the marks so far.
    pub fn labels(&self) -> &[u8] {
        &self.recording.labels
    }

    /// Takes the marks as those of a graph that is replayed: their labels when it was captured.
    pub fn replayed(&mut self, labels: &[u8]) {
        self.recording.labels.clear();
        self.recording.labels.extend(labels);
    }

    /// The time after each mark but the last, up to the next one, in ms, with its label; None if there was no room for all marks. Blocks until
    /// the last one has passed.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also for failed earlier work of the device.
    pub fn times_ms(&self) -> Result<Option<Vec<(u8, f64)>>> {
        let Marks { events, recording: Recording { labels, is_full, .. } } = self;
        if *is_full || labels.is_empty() {
            return Ok(None);
        }
        events[labels.len() - 1].synchronize()?;
        let time = |(label, pair): (&u8, &[Event])| Ok((*label, pair[0].ms_until(&pair[1])?));
        labels.iter().zip(events[..labels.len()].windows(2)).map(time).collect::<Result<_>>().map(Some)
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if self.recording.is_captured {
            // A graph may outlive them; that costs a few handles.
            std::mem::forget(std::mem::take(&mut self.events));
        }
    }
}

impl Gpu {
    /// Runs `work`, which enqueues work or captures it, and records its marks in `marks`, if there are any.
    pub fn marking<R>(&self, marks: &mut Option<Marks>, work: impl FnOnce() -> R) -> R {
        let lock = || self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        *lock() = marks.as_mut().map(|marks| std::mem::take(&mut marks.recording));
        let result = work();
        let recorded = lock().take();
        if let (Some(marks), Some(recorded)) = (marks, recorded) {
            marks.recording = recorded;
        }
        result
    }

    /// Marks the work that is enqueued on the compute stream from now on, within [`Gpu::marking`]. Returns the label of the work before.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn mark(&self, label: u8) -> Result<Option<u8>> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Recording { events, labels, is_full, is_captured }) = &mut *recording else {
            return Ok(None);
        };
        let before = labels.last().copied();
        match events.get(labels.len()) {
            Some(event) => {
                *is_captured |= record_also_in_graphs(self, *event)?;
                labels.push(label);
            }
            None => *is_full = true,
        }
        Ok(before)
    }
}

/// Records an event on the compute stream; while that is captured, as a node of the graph, which records it in each replay.
/// Returns whether it is.
fn record_also_in_graphs(gpu: &Gpu, event: sys::CUevent) -> Result<bool> {
    gpu.bind()?;
    let stream = gpu.compute().raw();
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive, the pointer valid for one status.
    let known = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
    check_driver(gpu.index(), "cuStreamIsCapturing", known.result())?;
    if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        // SAFETY: both handles are alive and of one device.
        let recorded = unsafe { result::event::record(event, stream) };
        return check_driver(gpu.index(), "cuEventRecord", recorded).map(|()| false);
    }
    let external = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
    // SAFETY: both handles are alive and of one device; an event that a graph holds is never destroyed.
    let recorded = unsafe { sys::cuEventRecordWithFlags(event, stream, external) };
    check_driver(gpu.index(), "cuEventRecordWithFlags", recorded.result()).map(|()| true)
}
