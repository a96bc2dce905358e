//! Events: points in streams that the host and other streams can wait for.

use super::context::{current, pool_sync_point};
use super::handle::Registry;
use super::stream::stream;
use super::wrong;
use crate::abi::{Void, api, lock, put};
use crate::capture::{self, Capture};
use crate::code::{CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use crate::fault;
use crate::graph::Work;
use crate::report::report;
use crate::stream::{Flag, Reached, Stream, sticky_error};
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

/// An event and the point at which it was last recorded.
pub(crate) struct Event {
    device: usize,
    timed: bool,
    state: Mutex<State>,
}

#[derive(Clone)]
enum State {
    Fresh,
    Recorded(Arc<Flag>),
    Captured { capture: Arc<Capture>, nodes: Vec<usize> },
}

static EVENTS: Registry<Event> = Registry::new("an event");

const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_RECORD_EXTERNAL`.
const RECORD_EXTERNAL: c_uint = 1;

/// Makes `stream` wait for the event.
pub(crate) fn wait(stream: &Arc<Stream>, event: usize) -> Result<(), i32> {
    let state = lock(&EVENTS.get(event)?.state).clone();
    match state {
        // Waiting for an event that was never recorded does not wait.
        State::Fresh => Ok(()),
        State::Recorded(flag) => {
            capture::wait_for_uncaptured(stream)?;
            stream.wait_for(&flag);
            Ok(())
        }
        State::Captured { capture, nodes } => capture::wait_for_captured(stream, &capture, &nodes),
    }
}

api! {
    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        let device = current()?.device;
        let timed = flags & DISABLE_TIMING == 0;
        put(event, EVENTS.insert(Arc::new(Event { device, timed, state: Mutex::new(State::Fresh) })))?;
    }

    fn cuEventDestroy_v2(event: usize) {
        EVENTS.remove(event)?;
    }

    fn cuEventRecord(event: usize, handle: *mut Void) {
        record(event, handle)?;
    }

    fn cuEventRecordWithFlags(event: usize, handle: *mut Void, flags: c_uint) {
        match flags {
            0 => record(event, handle)?,
            RECORD_EXTERNAL => record_in_graph(event, handle)?,
            _ => return Err(INVALID_VALUE),
        }
    }

    fn cuEventSynchronize(event: usize) {
        let event = EVENTS.get(event)?;
        if let Some(flag) = flag(&event, "cuEventSynchronize")? {
            flag.host_wait();
            pool_sync_point(event.device);
        }
        healthy(event.device)?;
    }

    fn cuEventQuery(event: usize) {
        let event = EVENTS.get(event)?;
        let flag = flag(&event, "cuEventQuery")?;
        capture::refuse_unsafe("cuEventQuery")?;
        healthy(event.device)?;
        if flag.is_some_and(|flag| !flag.query()) {
            return Err(NOT_READY);
        }
        healthy(event.device)?;
    }

    fn cuEventElapsedTime(ms: *mut f32, from: usize, to: usize) {
        put(ms, elapsed_ms(from, to)?)?;
    }

    fn cuEventElapsedTime_v2(ms: *mut f32, from: usize, to: usize) {
        put(ms, elapsed_ms(from, to)?)?;
    }
}

fn healthy(device: usize) -> Result<(), i32> {
    match sticky_error(device) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// The event and the stream, of one device.
fn on_stream(event: usize, handle: *mut Void) -> Result<(Arc<Event>, Arc<Stream>), i32> {
    let (event, stream) = (EVENTS.get(event)?, stream(handle)?);
    if event.device != stream.device {
        wrong(
            "cuEventRecord",
            &format!("an event of device {} on a stream of device {}", event.device, stream.device),
        );
        return Err(INVALID_HANDLE);
    }
    Ok((event, stream))
}

/// Adds a node that records the event each time the graph runs; only during a capture.
fn record_in_graph(event: usize, handle: *mut Void) -> Result<(), i32> {
    let (event, stream) = on_stream(event, handle)?;
    let mut branch = lock(&stream.branch);
    let Some(branch) = &mut *branch else {
        wrong("cuEventRecordWithFlags", "CU_EVENT_RECORD_EXTERNAL outside of a capture");
        return Err(INVALID_VALUE);
    };
    if fault::refuses("event-node") {
        return Err(NOT_SUPPORTED);
    }
    let record = move |lane: &Arc<Stream>| *lock(&event.state) = State::Recorded(lane.mark());
    branch.record(stream.device, stream.priority, Work::Record(Arc::new(record)));
    Ok(())
}

fn record(event: usize, handle: *mut Void) -> Result<(), i32> {
    let (event, stream) = on_stream(event, handle)?;
    let captured = lock(&stream.branch)
        .as_ref()
        .map(|branch| State::Captured { capture: branch.capture.clone(), nodes: branch.frontier() });
    *lock(&event.state) = captured.unwrap_or_else(|| State::Recorded(stream.mark()));
    Ok(())
}

/// The flag of an event, if it was recorded; an event in a capture can't be queried.
fn flag(event: &Event, call: &str) -> Result<Option<Arc<Flag>>, i32> {
    match &*lock(&event.state) {
        State::Fresh => Ok(None),
        State::Recorded(flag) => Ok(Some(flag.clone())),
        State::Captured { capture, .. } => {
            capture.fail(&format!("{call} on an event that was recorded in it"));
            Err(CAPTURED_EVENT)
        }
    }
}

/// Elapsed time: nominal time between points of one stream; real time between two streams, because they have no common clock.
fn elapsed_ms(from: usize, to: usize) -> Result<f32, i32> {
    let time = |event: usize| -> Result<(u64, Reached), i32> {
        let event = EVENTS.get(event)?;
        if !event.timed {
            report("cuEventElapsedTime: an event was made without timing (CU_EVENT_DISABLE_TIMING)");
            return Err(INVALID_HANDLE);
        }
        let flag = flag(&event, "cuEventElapsedTime")?.ok_or(INVALID_HANDLE)?;
        Ok((flag.from.id, flag.reached().ok_or(NOT_READY)?))
    };
    let ((stream, from), (other, to)) = (time(from)?, time(to)?);
    if stream == other {
        return Ok((to.clock_us as f64 - from.clock_us as f64) as f32 * 1e-3);
    }
    let (from, to) = (from.at, to.at);
    // The second event may be the earlier one; the time is negative then.
    Ok(match to.checked_duration_since(from) {
        Some(ahead) => ahead.as_secs_f32() * 1e3,
        None => -(from.duration_since(to).as_secs_f32() * 1e3),
    })
}
