//! Marks: labeled points of the compute stream, which show how long the device works on what, and the begins and ends of collectives in
//! the communication stream.
//!
//! A mark is an event. Within a capture it becomes a node of the graph, so that each replay records it again.
//!
//! Source: CUDA Driver API, `cuEventRecordWithFlags`, `CU_EVENT_RECORD_EXTERNAL`.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::context::Stream;
use super::driver::check_driver;
use super::event::Event;
use super::gpu::{Gpu, Recording};
use super::graph::Graph;
use crate::Result;

/// Most marks of one recording.
const CAPACITY: usize = 256;
/// Most pieces of work of the communication stream in one recording; later ones are left out.
const MOST_COLLECTIVES: usize = 128;
/// Tries to find the host's time of an event.
const ORIGIN_TRIES: usize = 8;

/// Label of work that the compute stream does not do: it waits for another stream.
pub const WAITING: u8 = u8::MAX;

/// Marks of some work; the work after a mark has its label, up to the next one.
#[derive(Debug)]
pub struct Marks {
    events: Vec<Event>,
    of_collectives: Vec<Event>,
    recording: Recording,
}

/// Labels of marks, and bytes of collectives: all that replaying a graph needs to know of its marks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Labels of the marks of the compute stream.
    pub of_work: Vec<u8>,
    /// Bytes of the collectives in the communication stream.
    pub n_bytes: Vec<u64>,
}

/// Moments of marks, in ms after an [`Origin`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moments {
    /// Label, begin and end of the work after each mark but the last.
    pub work: Vec<(u8, f64, f64)>,
    /// Bytes, begin and end of collectives in the communication stream.
    pub collectives: Vec<(u64, f64, f64)>,
}

/// An event whose time on the host's clock is known.
#[derive(Debug)]
pub struct Origin {
    event: Event,
    /// Its time on the host's clock.
    pub at: Instant,
    /// Largest error of that time.
    pub error: Duration,
}

impl Origin {
    /// Records events on the compute stream, which should be idle, and keeps the one whose time is known best. Blocks until they have
    /// passed.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also for failed earlier work of the device.
    pub fn record(gpu: &'static Gpu) -> Result<Self> {
        let one = || -> Result<Origin> {
            let (event, before) = (Event::timed(gpu)?, Instant::now());
            event.record(gpu.compute())?;
            event.synchronize()?;
            let error = before.elapsed() / 2;
            Ok(Origin { event, at: before + error, error })
        };
        let mut best = one()?;
        for _ in 1..ORIGIN_TRIES {
            let next = one()?;
            if next.error < best.error {
                best = next;
            }
        }
        Ok(best)
    }
}

// SAFETY: the handles of the recording are those of the events, which may be used from any thread.
unsafe impl Send for Marks {}

impl Marks {
    /// Creates the memory for marks of this device.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu) -> Result<Self> {
        let events = |n: usize| (0..n).map(|_| Event::timed(gpu)).collect::<Result<Vec<_>>>();
        let (events, of_collectives) = (events(CAPACITY)?, events(2 * MOST_COLLECTIVES)?);
        let raw = |events: &[Event]| events.iter().map(Event::raw).collect();
        let recording = Recording {
            events: raw(&events),
            labels: Vec::with_capacity(CAPACITY),
            of_collectives: raw(&of_collectives),
            n_bytes: Vec::with_capacity(MOST_COLLECTIVES),
            ..Recording::default()
        };
        Ok(Marks { events, of_collectives, recording })
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
        self.recording.n_bytes.clear();
        self.recording.is_full = false;
    }

    /// Chooses whether collectives in the communication stream are marked too; they are not at first.
    pub fn mark_collectives(&mut self, marks: bool) {
        self.recording.marks_collectives = marks;
    }

    /// Labels of the marks so far.
    pub fn labels(&self) -> Labels {
        let Recording { labels, n_bytes, .. } = &self.recording;
        Labels { of_work: labels.clone(), n_bytes: n_bytes.clone() }
    }

    /// Takes the marks as those of a graph that is replayed: their labels when it was captured.
    pub fn replayed(&mut self, labels: &Labels) {
        self.recording.labels.clone_from(&labels.of_work);
        self.recording.n_bytes.clone_from(&labels.n_bytes);
    }

    /// The moments of the marks; none if there was no room for all of them. Blocks until the last one has passed.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also for failed earlier work of the device.
    pub fn moments(&self, origin: &Origin) -> Result<Moments> {
        let Some(times) = self.times_ms()? else { return Ok(Moments::default()) };
        let Some(first) = self.events.first() else { return Ok(Moments::default()) };
        // Times between near events keep their digits.
        let start = origin.event.ms_until(first)?;
        let mut end = start;
        let of_work = |(label, ms): (u8, f64)| {
            let begin = end;
            end += ms;
            (label, begin, end)
        };
        let work = times.into_iter().map(of_work).collect();
        let of_pair = |(n_bytes, pair): (&u64, &[Event])| -> Result<_> {
            // The compute stream waits for each of them before its last mark.
            let begin = start + first.ms_until(&pair[0])?;
            Ok((*n_bytes, begin, begin + pair[0].ms_until(&pair[1])?))
        };
        let pairs = self.of_collectives.chunks_exact(2);
        let collectives = self.recording.n_bytes.iter().zip(pairs).map(of_pair).collect::<Result<_>>()?;
        Ok(Moments { work, collectives })
    }

    /// The time after each mark but the last, up to the next one, in ms, with its label; None if there was no room for all marks. Blocks until
    /// the last one has passed.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also for failed earlier work of the device.
    pub fn times_ms(&self) -> Result<Option<Vec<(u8, f64)>>> {
        let Marks { events, recording: Recording { labels, is_full, .. }, .. } = self;
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
            std::mem::forget(std::mem::take(&mut self.of_collectives));
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
        let Some(Recording { events, labels, is_full, is_captured, .. }) = &mut *recording else {
            return Ok(None);
        };
        let before = labels.last().copied();
        match events.get(labels.len()) {
            Some(event) => {
                *is_captured |= record_also_in_graphs(self, self.compute(), *event)?;
                labels.push(label);
            }
            None => *is_full = true,
        }
        Ok(before)
    }

    /// Marks the begin of collectives in `stream`, within [`Gpu::marking`]; [`Gpu::end_collectives`] marks their end.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn begin_collectives(&self, stream: &Stream) -> Result<()> {
        self.mark_collectives(stream, None)
    }

    /// Marks the end of collectives in `stream`, within [`Gpu::marking`].
    ///
    /// - `n_bytes`: of their buffers
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn end_collectives(&self, stream: &Stream, n_bytes: u64) -> Result<()> {
        self.mark_collectives(stream, Some(n_bytes))
    }

    fn mark_collectives(&self, stream: &Stream, ended: Option<u64>) -> Result<()> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let marks = recording.as_mut().filter(|recording| recording.marks_collectives);
        let Some(Recording { of_collectives, n_bytes, is_captured, .. }) = marks else { return Ok(()) };
        if let Some(event) = of_collectives.get(2 * n_bytes.len() + usize::from(ended.is_some())) {
            *is_captured |= record_also_in_graphs(self, stream, *event)?;
            n_bytes.extend(ended);
        }
        Ok(())
    }
}

/// Records an event on `stream`; while that is captured, as a node of the graph, which records it in each replay.
/// Returns whether it is.
fn record_also_in_graphs(gpu: &Gpu, stream: &Stream, event: sys::CUevent) -> Result<bool> {
    gpu.bind()?;
    let stream = stream.raw();
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
