//! Stream capture: work is recorded into a graph instead of being run.
//!
//! A capture begins on one stream. Another stream joins it by waiting for an event that was recorded in it (a fork),
//! and must be joined back, through an event, before the capture ends on the first stream. The *frontier* of a stream
//! is the set of nodes that its next piece of work will depend on.
//!
//! A call that CUDA forbids during a capture breaks it: the call fails, every later call on its streams returns
//! `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`, and no graph is made. Each such call is a finding.
//!
//! Source: CUDA Driver API, `cuStreamBeginCapture_v2`, `cuThreadExchangeStreamCaptureMode`; CUDA C++ Programming
//! Guide, "Creating a Graph Using Stream Capture".

use crate::abi::lock;
use crate::code::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, INVALID_VALUE,
};
use crate::fault;
use crate::graph::{Graph, Node, Work};
use crate::report::report;
use crate::stream::{Kind, Stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

/// Threads that may make potentially unsafe calls during a capture (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn new(value: u32) -> Result<Mode, i32> {
        match value {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn value(self) -> u32 {
        self as u32
    }
}

/// One capture, from its beginning to its end.
pub(crate) struct Capture {
    pub(crate) id: u64,
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Node>,
    members: Vec<Weak<Stream>>,
    broken: bool,
}

/// State of a stream that takes part in a capture.
pub(crate) struct Branch {
    pub(crate) capture: Arc<Capture>,
    frontier: Vec<usize>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets how unsafe calls of this thread are treated; returns the previous mode.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

impl Branch {
    /// Records a piece of work of a stream of `device` with this priority.
    pub(crate) fn record(&mut self, device: usize, priority: i32, work: Work) {
        let mut state = lock(&self.capture.state);
        let after = std::mem::take(&mut self.frontier);
        state.nodes.push(Node { work, device, priority, after });
        self.frontier = vec![state.nodes.len() - 1];
    }

    /// Nodes that an event recorded now would represent.
    pub(crate) fn frontier(&self) -> Vec<usize> {
        self.frontier.clone()
    }

    pub(crate) fn is_broken(&self) -> bool {
        lock(&self.capture.state).broken
    }
}

impl Capture {
    /// Breaks the capture and reports the reason.
    pub(crate) fn fail(&self, why: &str) {
        lock(&self.state).broken = true;
        report(&format!("while a graph is being captured: {why}"));
    }
}

/// Begins a capture on `stream`.
pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode) -> Result<(), i32> {
    static IDS: AtomicU64 = AtomicU64::new(1);
    if stream.kind == Kind::Legacy {
        report("cuStreamBeginCapture: the legacy default stream can't capture");
        return Err(CAPTURE_UNSUPPORTED);
    }
    let mut branch = lock(&stream.branch);
    if branch.is_some() {
        report(&format!("cuStreamBeginCapture: stream {} is capturing already", stream.id));
        return Err(INVALID_VALUE);
    }
    let capture = Arc::new(Capture {
        id: IDS.fetch_add(1, Relaxed),
        origin: stream.id,
        mode,
        thread: std::thread::current().id(),
        state: Mutex::new(State { members: vec![Arc::downgrade(stream)], ..State::default() }),
    });
    lock(&ACTIVE).push(capture.clone());
    *branch = Some(Branch { capture, frontier: Vec::new() });
    Ok(())
}

/// Ends the capture that began on `stream`.
///
/// # Errors
/// `..._INVALIDATED` if it was broken, `..._UNJOINED` if work of a forked stream was not joined back, `..._UNMATCHED`
/// if it began on another stream, `..._WRONG_THREAD` if it began on another thread.
pub(crate) fn end(stream: &Arc<Stream>) -> Result<Graph, i32> {
    let (capture, frontier) = match &*lock(&stream.branch) {
        Some(branch) => (branch.capture.clone(), branch.frontier()),
        None => return Err(INVALID_VALUE),
    };
    if capture.origin != stream.id {
        capture.fail("cuStreamEndCapture on a stream on which the capture did not begin");
        return Err(CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
        report("cuStreamEndCapture: the capture began on another thread");
        return Err(CAPTURE_WRONG_THREAD);
    }
    lock(&ACTIVE).retain(|active| active.id != capture.id);
    let mut state = std::mem::take(&mut *lock(&capture.state));
    let mut unjoined = None;
    let joined = Graph::ancestors(&state.nodes, &frontier);
    for member in state.members.drain(..).filter_map(|member| member.upgrade()) {
        if let Some(branch) = lock(&member.branch).take_if(|branch| branch.capture.id == capture.id)
            && branch.frontier.iter().any(|&node| !joined[node])
        {
            unjoined = Some(member.id);
        }
    }
    if state.broken || fault::due("capture") {
        return Err(CAPTURE_INVALIDATED);
    }
    if let Some(id) = unjoined {
        report(&format!(
            "cuStreamEndCapture: work captured on stream {id} was not joined back to stream {} by an event",
            stream.id
        ));
        return Err(CAPTURE_UNJOINED);
    }
    Ok(Graph { nodes: std::mem::take(&mut state.nodes) })
}

/// Makes `stream` wait for an event that was recorded in `capture`: it joins the capture, or depends on more of it.
pub(crate) fn wait_for_captured(
    stream: &Arc<Stream>,
    capture: &Arc<Capture>,
    nodes: &[usize],
) -> Result<(), i32> {
    if !lock(&ACTIVE).iter().any(|active| active.id == capture.id) {
        report("cuStreamWaitEvent: the event was last recorded in a capture that has ended");
        return Err(crate::code::CAPTURED_EVENT);
    }
    let mut branch = lock(&stream.branch);
    match &mut *branch {
        Some(own) if own.capture.id == capture.id => {
            let new = nodes.iter().filter(|node| !own.frontier.contains(node)).collect::<Vec<_>>();
            own.frontier.extend(new);
        }
        Some(own) => {
            own.capture.fail("cuStreamWaitEvent would merge it with another capture");
            capture.fail("cuStreamWaitEvent would merge it with another capture");
            return Err(CAPTURE_MERGE);
        }
        None if stream.kind == Kind::Legacy => {
            capture.fail("the legacy default stream waits for an event of the capture");
            return Err(crate::code::CAPTURE_IMPLICIT);
        }
        None => {
            lock(&capture.state).members.push(Arc::downgrade(stream));
            *branch = Some(Branch { capture: capture.clone(), frontier: nodes.to_vec() });
        }
    }
    Ok(())
}

/// Refuses that a capturing stream waits for an event that was recorded outside of the capture.
pub(crate) fn wait_for_uncaptured(stream: &Stream) -> Result<(), i32> {
    match &*lock(&stream.branch) {
        Some(branch) => {
            branch.capture.fail(&format!(
                "stream {} waits for an event that was recorded outside of the capture",
                stream.id
            ));
            Err(CAPTURE_ISOLATION)
        }
        None => Ok(()),
    }
}

/// Refuses `call` while `stream` captures: it synchronizes with the stream, queries its state, or can't be recorded.
pub(crate) fn refuse_on(stream: &Stream, call: &str) -> Result<(), i32> {
    match &*lock(&stream.branch) {
        Some(branch) if branch.is_broken() => Err(CAPTURE_INVALIDATED),
        Some(branch) => {
            branch.capture.fail(&format!("{call} on stream {}", stream.id));
            Err(CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Refuses `call`, which is potentially unsafe because it allocates, synchronizes or copies immediately: on a thread that
/// captures, and on all threads while another one captures in global mode.
pub(crate) fn refuse_unsafe(call: &str) -> Result<(), i32> {
    let mode = THREAD_MODE.get();
    if mode == Mode::Relaxed {
        return Ok(());
    }
    let me = std::thread::current().id();
    let hit: Vec<_> = lock(&ACTIVE)
        .iter()
        .filter(|c| match c.mode {
            Mode::Relaxed => false,
            Mode::ThreadLocal => c.thread == me,
            Mode::Global => c.thread == me || mode == Mode::Global,
        })
        .cloned()
        .collect();
    for capture in &hit {
        capture.fail(call);
    }
    if hit.is_empty() { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}

/// Refuses work on the legacy stream of `device` while a stream that is ordered with it captures.
pub(crate) fn refuse_legacy(device: usize) -> Result<(), i32> {
    let active = lock(&ACTIVE).clone();
    let mut result = Ok(());
    for capture in active {
        let members = lock(&capture.state).members.clone();
        let mut members = members.iter().filter_map(Weak::upgrade);
        if members.any(|member| member.device == device && member.kind == Kind::Blocking) {
            capture.fail("work on the legacy default stream, which the capturing stream is ordered with");
            result = Err(crate::code::CAPTURE_IMPLICIT);
        }
    }
    result
}
