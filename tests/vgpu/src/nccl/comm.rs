//! A communicator on one rank: its connection to the hub, its state, and its shutdown.
use super::fault::{Fault, is_due, is_due_now};
use super::wire::{self, Frame, Hello, UniqueId, Words, kind};
use super::{
    ABORT_RETURNS_EARLY, ABORT_WAITS_FOR_GRAPHS, IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT,
    INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, hub, remember,
};
use crate::abi::lock;
use crate::config::CONFIG;
use crate::report;
use crate::stream::Stream;
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A result code and its message.
pub(crate) type Failure = (i32, String);

/// Time limit for sending the last frame of a rank, because the hub may be frozen.
const FAREWELL: Duration = Duration::from_millis(200);
/// Time limit for running work to end in ncclCommAbort.
const RELEASE: Duration = Duration::from_secs(5);
/// Time that the thread of a non-blocking call waits to be polled before it enqueues the work on its streams. It is long, so that
/// work that a program enqueues there without polling reliably comes first, as may happen with NCCL.
const LATENESS: Duration = Duration::from_secs(1);
/// Time for which work continues after an ncclCommAbort that returns early.
const EARLY_RETURN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Joining,
    Ready,
    Finalizing,
    Finalized,
}

struct State {
    phase: Phase,
    /// The first asynchronous error.
    error: Option<Failure>,
    aborted: bool,
    /// Number of pieces of work that currently run on a stream's thread.
    running: usize,
    next_id: u64,
    /// Number of collectives entered so far; ranks compare the collectives with the same number.
    n_collectives: u64,
    replies: HashMap<u64, Frame>,
    /// Whether the connection has ended.
    is_cut: bool,
    /// Whether a call of a non-blocking communicator returned ncclInProgress and has not been polled since.
    unasked: bool,
    /// Number of calls whose work a thread has yet to enqueue on its streams.
    n_late: usize,
}

/// Result of a request to the hub.
pub(crate) enum Reply {
    Done(Vec<u8>),
    Mistake(String),
    Aborted,
}

/// One rank of a communicator.
pub(crate) struct Comm {
    pub(crate) rank: u64,
    pub(crate) n_ranks: u64,
    pub(crate) device: usize,
    pub(crate) is_blocking: bool,
    state: Mutex<State>,
    changed: Condvar,
    writer: Mutex<Option<UnixStream>>,
    /// The same connection, used to end it while the writer is blocked.
    control: Mutex<Option<UnixStream>>,
    /// Each piece of work that is queued, or captured in an existing graph, holds one more reference.
    pub(crate) queued: Arc<()>,
    /// The stream of the last operation.
    last_stream: Mutex<Option<Arc<Stream>>>,
}

/// `VGPU_TIMEOUT`: time without progress after which it is reported.
fn timeout() -> Duration {
    Duration::from_secs(CONFIG.timeout_s)
}

impl Comm {
    /// Creates a communicator that has not joined yet.
    pub(crate) fn new(rank: u64, n_ranks: u64, device: usize, is_blocking: bool) -> Arc<Comm> {
        let state = State {
            phase: Phase::Joining,
            error: None,
            aborted: false,
            running: 0,
            next_id: 0,
            n_collectives: 0,
            replies: HashMap::new(),
            is_cut: false,
            unasked: false,
            n_late: 0,
        };
        Arc::new(Comm {
            rank,
            n_ranks,
            device,
            is_blocking,
            state: Mutex::new(state),
            changed: Condvar::new(),
            writer: Mutex::new(None),
            control: Mutex::new(None),
            queued: Arc::new(()),
            last_stream: Mutex::new(None),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait_changed<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all ranks have joined. A failure also becomes the communicator's asynchronous error.
    pub(crate) fn join(self: &Arc<Self>, id: &UniqueId) -> Result<(), i32> {
        match self.try_join(id) {
            Ok(()) => {
                self.state().phase = Phase::Ready;
                self.changed.notify_all();
                Ok(())
            }
            Err((code, why)) => {
                self.fail(code, why);
                Err(code)
            }
        }
    }

    fn try_join(self: &Arc<Self>, id: &UniqueId) -> Result<(), Failure> {
        let rank = self.rank;
        if is_due(Fault::InitHang, rank) {
            self.wait_for_abort();
            return Err((SYSTEM_ERROR, format!("rank {rank}: aborted while it was initialized")));
        }
        let failed = is_due(Fault::Init, rank) | is_due_now(Fault::InitNumber, rank);
        let hello = Hello {
            rank,
            n_ranks: self.n_ranks,
            process: std::process::id().into(),
            device: CONFIG.physical(self.device) as u64,
            host: std::env::var("NCCL_HOSTID").unwrap_or_else(|_| host_name()),
            shares_gpu: std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1"),
            failed,
        };
        let mut socket = hub::connect(id, &hello)?;
        if failed {
            return Err((
                SYSTEM_ERROR,
                format!("rank {rank}: the initialization failed on request (VGPU_FAIL)"),
            ));
        }
        let lost = |error| (SYSTEM_ERROR, format!("rank {rank}: the hub is gone: {error}"));
        *lock(&self.control) = Some(socket.try_clone().map_err(lost)?);
        if self.is_blocking {
            // The program waits in the call; if it only polls now and then, a long wait is its own responsibility.
            socket.set_read_timeout(Some(timeout())).map_err(lost)?;
        }
        let answer = wire::read(&mut socket);
        if self.state().aborted {
            return Err((SYSTEM_ERROR, format!("rank {rank}: aborted while it was initialized")));
        }
        let answer = answer.map_err(|error| {
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) {
                let what = format!(
                    "rank {rank} of {}: no progress in ncclCommInitRank: not all ranks have called it",
                    self.n_ranks
                );
                report(&format!("nccl: {what}"));
                (SYSTEM_ERROR, what)
            } else {
                lost(error)
            }
        })?;
        if answer.kind != kind::WELCOME {
            return Err((answer.words[0] as i32, String::from_utf8_lossy(&answer.data).into_owned()));
        }
        socket.set_read_timeout(None).map_err(lost)?;
        *lock(&self.writer) = Some(socket.try_clone().map_err(lost)?);
        let comm = self.clone();
        let thread = std::thread::Builder::new().name("nccl rank".into());
        thread.spawn(move || comm.listen(socket)).map_err(lost)?;
        Ok(())
    }

    /// Processes the messages of the hub until the connection ends.
    fn listen(&self, mut socket: UnixStream) {
        loop {
            match wire::read(&mut socket) {
                Ok(frame) if frame.kind == kind::LOST => {
                    self.fail(frame.words[0] as i32, String::from_utf8_lossy(&frame.data).into_owned());
                }
                Ok(frame) => {
                    self.state().replies.insert(frame.id, frame);
                    self.changed.notify_all();
                }
                Err(_) => {
                    let over = {
                        let mut state = self.state();
                        state.is_cut = true;
                        state.aborted || state.phase == Phase::Finalized
                    };
                    self.changed.notify_all();
                    if !over {
                        self.fail(REMOTE_ERROR, "the process that made the unique id is gone".into());
                    }
                    return;
                }
            }
        }
    }

    /// Sets the asynchronous error, unless there is already one, or all work of the communicator is done: later actions of other
    /// ranks do not affect a rank that only frees its memory.
    pub(crate) fn fail(&self, code: i32, why: String) {
        remember(&why);
        let mut state = self.state();
        if !state.aborted && state.phase != Phase::Finalized {
            state.error.get_or_insert((code, why));
        }
        self.changed.notify_all();
    }

    /// ncclCommGetAsyncError: ncclInProgress while a non-blocking call isn't done, else the first error.
    ///
    /// A call on a non-blocking communicator is done when a thread has enqueued its work on the streams, after it was polled
    /// once. So a program is caught if it doesn't poll, or polls once and treats ncclInProgress as an error.
    pub(crate) fn status(&self) -> i32 {
        let mut state = self.state();
        let was_unasked = std::mem::take(&mut state.unasked);
        if was_unasked {
            self.changed.notify_all();
        }
        match (&state.error, state.phase) {
            (Some((code, _)), _) => *code,
            (None, Phase::Joining | Phase::Finalizing) => IN_PROGRESS,
            (None, _) if was_unasked || state.n_late > 0 => IN_PROGRESS,
            (None, _) => 0,
        }
    }

    /// Checks whether a call may use the communicator now (ncclCommEnsureReady of NCCL).
    ///
    /// # Errors
    /// The asynchronous error; ncclInvalidArgument and a finding while an earlier call is in progress;
    /// ncclInvalidUsage and a finding after ncclCommFinalize.
    pub(crate) fn ensure_ready(&self, call: &str) -> Result<(), i32> {
        let state = self.state();
        if let Some((code, why)) = &state.error {
            remember(why);
            return Err(*code);
        }
        if state.unasked || state.n_late > 0 || state.phase == Phase::Joining {
            let why = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(misuse(INVALID_ARGUMENT, &format!("{call} on rank {}: {why}", self.rank)));
        }
        if state.phase != Phase::Ready {
            return Err(misuse(
                INVALID_USAGE,
                &format!("{call} on rank {}: after ncclCommFinalize", self.rank),
            ));
        }
        Ok(())
    }

    /// Begins a call of a non-blocking communicator, whose work a thread will enqueue on its streams.
    pub(crate) fn begin_late(&self) {
        let mut state = self.state();
        state.unasked = true;
        state.n_late += 1;
    }

    /// Waits on that thread until the program has polled the call, or [`LATENESS`] has passed.
    pub(crate) fn wait_until_asked(&self) {
        let deadline = Instant::now() + LATENESS;
        let mut state = self.state();
        while state.unasked && Instant::now() < deadline {
            let wait = self.changed.wait_timeout(state, deadline.saturating_duration_since(Instant::now()));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records that the work of the call is on its streams.
    pub(crate) fn end_late(&self) {
        self.state().n_late -= 1;
        self.changed.notify_all();
    }

    /// Sets the stream of this operation; returns the previous one.
    pub(crate) fn swap_stream(&self, stream: &Arc<Stream>) -> Option<Arc<Stream>> {
        lock(&self.last_stream).replace(stream.clone())
    }

    /// Begins a piece of work on a stream; returns `None` if the communicator has been aborted.
    pub(crate) fn enter(&self) -> Option<Running<'_>> {
        let mut state = self.state();
        if state.aborted {
            return None;
        }
        state.running += 1;
        Some(Running(self))
    }

    /// The number of the next collective, from one.
    pub(crate) fn next_collective(&self) -> u64 {
        let mut state = self.state();
        state.n_collectives += 1;
        state.n_collectives
    }

    /// Sends a request to the hub and returns its id. If the connection is gone, there is no reply, and the listener has set
    /// the error.
    pub(crate) fn request(&self, kind: u64, words: &Words, data: &[u8]) -> u64 {
        let id = {
            let mut state = self.state();
            state.next_id += 1;
            state.next_id
        };
        if let Some(socket) = &mut *lock(&self.writer) {
            let _ = wire::write(socket, kind, id, words, data);
        }
        id
    }

    /// Waits for the reply to a request. The loss of a rank doesn't end the wait: like a kernel of NCCL, the work stays
    /// on the stream until ncclCommAbort.
    pub(crate) fn wait(&self, id: u64) -> Reply {
        let mut state = self.state();
        loop {
            if state.aborted {
                return Reply::Aborted;
            }
            if let Some(frame) = state.replies.remove(&id) {
                return if frame.kind == kind::RESULT {
                    Reply::Done(frame.data)
                } else {
                    Reply::Mistake(String::from_utf8_lossy(&frame.data).into_owned())
                };
            }
            state = self.wait_changed(state);
        }
    }

    /// Waits for ncclCommAbort.
    pub(crate) fn wait_for_abort(&self) {
        let mut state = self.state();
        while !state.aborted {
            state = self.wait_changed(state);
        }
    }

    /// Leaves the hub in an orderly way, and waits briefly until the hub has received it.
    fn leave(&self) {
        if let Some(socket) = &*lock(&self.writer) {
            let _ = socket.set_write_timeout(Some(FAREWELL));
        }
        let id = self.request(kind::BYE, &[0; 6], &[]);
        let deadline = Instant::now() + FAREWELL;
        let mut state = self.state();
        while !state.is_cut && !state.replies.contains_key(&id) && Instant::now() < deadline {
            let wait = self.changed.wait_timeout(state, FAREWELL);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.hang_up();
    }

    fn hang_up(&self) {
        if let Some(socket) = &*lock(&self.control) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Informs the hub of an abort if that is possible immediately, because another thread may be blocked in the connection.
    fn cut(&self) {
        if let Ok(mut writer) = self.writer.try_lock()
            && let Some(socket) = &mut *writer
        {
            let _ = socket.set_write_timeout(Some(FAREWELL));
            let _ = wire::write(socket, kind::ABORT, 0, &[0; 6], &[]);
        }
        self.hang_up();
    }

    /// ncclCommAbort: work on the streams ends without a result, within a time limit.
    ///
    /// Up to 2.21 it then waits, possibly for ever, until no graph holds operations; since 2.26 it returns before the work is
    /// over.
    pub(crate) fn abort(self: &Arc<Self>) {
        if is_due(Fault::AbortHang, self.rank) {
            loop {
                std::thread::park();
            }
        }
        self.finish_late();
        if CONFIG.nccl_version >= ABORT_RETURNS_EARLY {
            let comm = self.clone();
            let end = move || {
                std::thread::sleep(EARLY_RETURN);
                comm.end_work();
            };
            if std::thread::Builder::new().name("nccl abort".into()).spawn(end).is_ok() {
                return;
            }
        }
        self.end_work();
        while CONFIG.nccl_version <= ABORT_WAITS_FOR_GRAPHS && Arc::strong_count(&self.queued) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until no thread has work left to enqueue on a stream.
    fn finish_late(&self) {
        let deadline = Instant::now() + RELEASE;
        let mut state = self.state();
        state.unasked = false;
        self.changed.notify_all();
        while state.n_late > 0 && Instant::now() < deadline {
            let wait = self.changed.wait_timeout(state, deadline.saturating_duration_since(Instant::now()));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Requests the work on the streams to end, and waits for it.
    fn end_work(&self) {
        self.state().aborted = true;
        self.changed.notify_all();
        self.cut();
        let deadline = Instant::now() + RELEASE;
        let mut state = self.state();
        while state.running > 0 && Instant::now() < deadline {
            let wait = self.changed.wait_timeout(state, Duration::from_millis(20));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// ncclCommFinalize: waits until all queued work is done.
    ///
    /// Captured work counts as queued while its graph exists; NCCL too would wait for it for ever.
    pub(crate) fn finalize(&self) -> Result<(), i32> {
        self.begin_finalize();
        if is_due_now(Fault::FinalizeNumber, self.rank) {
            self.fail(
                SYSTEM_ERROR,
                format!("rank {}: ncclCommFinalize fails on request (VGPU_FAIL)", self.rank),
            );
            return Err(SYSTEM_ERROR);
        }
        let deadline = Instant::now() + timeout();
        while Arc::strong_count(&self.queued) > 1 {
            let (error, aborted) = {
                let state = self.state();
                (state.error.as_ref().map(|(code, _)| *code), state.aborted)
            };
            if let Some(code) = error {
                return Err(code);
            }
            if aborted {
                return Ok(());
            }
            if Instant::now() > deadline {
                let what = "ncclCommFinalize or ncclCommDestroy waits for operations that are not done, \
                            or for graphs with captured operations that were not destroyed";
                let what = format!("rank {}: no progress: {what}", self.rank);
                self.fail(INTERNAL_ERROR, what.clone());
                return Err(misuse(INTERNAL_ERROR, &what));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.state().phase = Phase::Finalized;
        self.changed.notify_all();
        Ok(())
    }

    /// After this call the communicator accepts no calls.
    pub(crate) fn begin_finalize(&self) {
        self.state().phase = Phase::Finalizing;
    }

    /// ncclCommDestroy: finalizes the communicator if necessary, and leaves the hub.
    pub(crate) fn destroy(self: &Arc<Self>) -> Result<(), i32> {
        let phase = {
            let mut state = self.state();
            while state.phase == Phase::Finalizing && state.error.is_none() {
                state = self.wait_changed(state);
            }
            if let Some((_, why)) = &state.error {
                let what = format!(
                    "rank {}: ncclCommDestroy after an asynchronous error ({why}) may hang: use ncclCommAbort",
                    self.rank
                );
                drop(state);
                misuse(INVALID_USAGE, &what);
                self.abort();
                return Ok(());
            }
            state.phase
        };
        if phase == Phase::Joining {
            misuse(
                INVALID_USAGE,
                &format!("rank {}: ncclCommDestroy before the initialization is done", self.rank),
            );
            self.abort();
            return Ok(());
        }
        if phase == Phase::Ready {
            self.finalize()?;
        }
        self.leave();
        Ok(())
    }
}

/// Marks work of a communicator as running on a stream's thread while it lives.
pub(crate) struct Running<'a>(&'a Comm);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
        self.0.changed.notify_all();
    }
}

/// Reports a mistake of the caller and returns the result code for it.
pub(crate) fn misuse(code: i32, what: &str) -> i32 {
    remember(what);
    report(&format!("nccl: {what}"));
    code
}

fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer has the length that is given, and the last byte stays zero.
    let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    if code == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { String::new() }
}
