//! Streams, host functions and capture.

use super::context::{self, current, pool_sync_point};
use super::handle::Registry;
use super::{event, graph, wrong};
use crate::abi::{Void, api, get, lock, put, put_if_wanted};
use crate::capture::{self, Mode};
use crate::code::{CAPTURE_INVALIDATED, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use crate::counts::Tally;
use crate::fault;
use crate::mem::trap;
use crate::report::note;
use crate::stream::{Kind, Stream, Task};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

/// The streams that the client created.
pub(crate) static STREAMS: Registry<Stream> = Registry::new("a stream");

const NON_BLOCKING: c_uint = 1;
/// The highest priority is the smallest number.
const PRIORITIES: (c_int, c_int) = (-5, 0);

/// The stream for a handle to enqueue work on: null and 1 are the legacy default stream of the current context.
///
/// # Errors
/// The sticky error of a broken device, `CUDA_ERROR_INVALID_HANDLE`, and `..._STREAM_CAPTURE_INVALIDATED` or
/// `..._IMPLICIT` if a capture forbids work on it.
pub(crate) fn stream(handle: *mut Void) -> Result<Arc<Stream>, i32> {
    let stream = any_stream(handle)?;
    match &*lock(&stream.branch) {
        Some(branch) if branch.is_broken() => return Err(CAPTURE_INVALIDATED),
        _ => (),
    }
    if stream.kind == Kind::Legacy {
        capture::refuse_legacy(stream.device)?;
    }
    Ok(stream)
}

/// Same as [`stream`], but also valid while its capture is broken.
fn any_stream(handle: *mut Void) -> Result<Arc<Stream>, i32> {
    let context = current()?;
    let stream = match handle as usize {
        0 | 1 => return Ok(context.legacy.clone()),
        2 => {
            note("the per-thread default stream is not modeled");
            return Err(NOT_SUPPORTED);
        }
        handle => STREAMS.get(handle)?,
    };
    match crate::stream::sticky_error(stream.device) {
        0 => Ok(stream),
        error => Err(error),
    }
}

/// The streams that work on `stream` is implicitly ordered with; `None` for most streams.
pub(crate) fn streams_to_order_with(stream: &Stream) -> Option<Vec<Arc<Stream>>> {
    match stream.kind {
        Kind::NonBlocking | Kind::Graph => None,
        Kind::Blocking => Some(vec![context::for_device(stream.device).legacy.clone()]),
        Kind::Legacy => {
            let blocking = |s: &Arc<Stream>| s.kind == Kind::Blocking && s.device == stream.device;
            Some(STREAMS.all().into_iter().filter(blocking).collect())
        }
    }
}

api! {
    fn cuStreamCreate(handle: *mut usize, flags: c_uint) {
        create(handle, flags, 0)?;
    }

    fn cuStreamCreateWithPriority(handle: *mut usize, flags: c_uint, priority: c_int) {
        if priority != 0 && fault::refuses("priority") {
            return Err(NOT_SUPPORTED);
        }
        create(handle, flags, priority.clamp(PRIORITIES.0, PRIORITIES.1))?;
    }

    /// Queued work still runs.
    fn cuStreamDestroy_v2(handle: *mut Void) {
        let stream = STREAMS.remove(handle as usize)?;
        if let Some(branch) = lock(&stream.branch).take() {
            branch.capture.fail(&format!("stream {} is destroyed", stream.id));
        }
        stream.close();
    }

    fn cuStreamGetCtx(handle: *mut Void, ctx: *mut *const context::Ctx) {
        put(ctx, context::for_device(any_stream(handle)?.device) as *const _)?;
    }

    fn cuStreamGetDevice(handle: *mut Void, device: *mut c_int) {
        put(device, any_stream(handle)?.device as c_int)?;
    }

    fn cuStreamGetId(handle: *mut Void, id: *mut c_ulonglong) {
        put(id, any_stream(handle)?.id)?;
    }

    fn cuStreamGetFlags(handle: *mut Void, flags: *mut c_uint) {
        put(flags, (any_stream(handle)?.kind == Kind::NonBlocking) as c_uint)?;
    }

    fn cuStreamGetPriority(handle: *mut Void, priority: *mut c_int) {
        put(priority, any_stream(handle)?.priority)?;
    }

    fn cuStreamSynchronize(handle: *mut Void) {
        let stream = any_stream(handle)?;
        capture::refuse_on(&stream, "cuStreamSynchronize")?;
        if stream.kind == Kind::Legacy {
            capture::refuse_legacy(stream.device)?;
            // The end of the legacy stream is also the end of the blocking streams.
            for other in streams_to_order_with(&stream).into_iter().flatten() {
                other.sync();
            }
        }
        stream.sync();
        pool_sync_point(stream.device);
        any_stream(handle)?;
    }

    fn cuStreamQuery(handle: *mut Void) {
        let stream = any_stream(handle)?;
        capture::refuse_on(&stream, "cuStreamQuery")?;
        if !stream.query() {
            return Err(NOT_READY);
        }
        any_stream(handle)?;
    }

    fn cuStreamWaitEvent(handle: *mut Void, event: usize, _flags: c_uint) {
        event::wait(&stream(handle)?, event)?;
    }

    /// Calls back into the client, in order with the work of the stream. The function must not call CUDA.
    fn cuLaunchHostFunc(handle: *mut Void, function: Option<extern "C" fn(*mut Void)>, data: *mut Void) {
        let (stream, function) = (stream(handle)?, function.ok_or(INVALID_VALUE)?);
        let data = data as usize;
        let work = Box::new(move |_: &_| {
            trap::in_host_function(|| function(data as *mut Void));
            Ok(())
        });
        stream.submit(Task { name: "host function", tally: Tally::Nothing, touches: Vec::new(), host_function: true, work });
    }

    fn cuStreamBeginCapture_v2(handle: *mut Void, mode: c_uint) {
        capture::begin(&any_stream(handle)?, Mode::new(mode)?)?;
    }

    fn cuStreamEndCapture(handle: *mut Void, graph: *mut usize) {
        put(graph, 0)?;
        let captured = capture::end(&any_stream(handle)?)?;
        put(graph, graph::GRAPHS.insert(Arc::new(captured)))?;
    }

    /// 0 if not capturing, 1 if capturing, 2 if its capture is broken.
    fn cuStreamIsCapturing(handle: *mut Void, status: *mut c_uint) {
        put(status, capture_status(&*any_stream(handle)?).0)?;
    }

    /// The graph under construction and its edges are not returned.
    fn cuStreamGetCaptureInfo_v2(
        handle: *mut Void, status: *mut c_uint, id: *mut u64, graph: *mut usize, _dependencies: *mut Void, n: *mut usize,
    ) {
        capture_info(handle, status, id, graph, n)?;
    }

    fn cuStreamGetCaptureInfo_v3(
        handle: *mut Void, status: *mut c_uint, id: *mut u64, graph: *mut usize, _dependencies: *mut Void,
        _edges: *mut Void, n: *mut usize,
    ) {
        capture_info(handle, status, id, graph, n)?;
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let old = capture::exchange_mode(Mode::new(get(mode)?)?);
        put(mode, old.value())?;
    }
}

fn create(handle: *mut usize, flags: c_uint, priority: c_int) -> Result<(), i32> {
    let context = current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(wrong("cuStreamCreate", &format!("flags {flags:#x} are not known")));
    }
    let kind = if flags & NON_BLOCKING != 0 { Kind::NonBlocking } else { Kind::Blocking };
    put(handle, STREAMS.insert(Stream::new(context.device, kind, priority)))
}

fn capture_status(stream: &Stream) -> (c_uint, u64) {
    match &*lock(&stream.branch) {
        None => (0, 0),
        Some(branch) => (if branch.is_broken() { 2 } else { 1 }, branch.capture.id),
    }
}

fn capture_info(
    handle: *mut Void,
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut usize,
    n: *mut usize,
) -> Result<(), i32> {
    let (now, number) = capture_status(&*any_stream(handle)?);
    put(status, now)?;
    put_if_wanted(id, number);
    put_if_wanted(graph, 0);
    put_if_wanted(n, 0);
    Ok(())
}
