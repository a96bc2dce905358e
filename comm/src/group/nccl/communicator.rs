//! One NCCL communicator: created, polled, closed or aborted, each within a time limit.
//!
//! The communicator is non-blocking (`blocking = 0`): a call that cannot finish at once says so, and its state is polled until it
//! has finished or the time limit has passed. Functions that cannot be bounded this way run on a thread of their own, which is
//! left behind if they do not return: `ncclCommAbort` itself can hang.
//!
//! Source: NCCL user guide, "Fault Tolerance" and "Asynchronous errors and error handling".

use std::cell::{Cell, OnceCell};
use std::ffi::c_int;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use cudarc::nccl::sys;
use ddp_kernels::cuda::{Event, Gpu, StreamKind};

use super::super::pause::Pause;
use super::api::{Api, Config, Status};
use super::memory::NcclMemory;
use crate::error::WORK;
use crate::stderr::write_stderr;
use crate::{Call, CommError, Reporter, Result};

/// Time limit of `ncclCommAbort`.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time in `ncclCommAbort` the reason for it is printed: sooner than other ranks report that this one failed them.
const SLOW_ABORT: Duration = Duration::from_secs(1);
/// Time limit of `ncclCommFinalize`, and of `ncclCommDestroy`, in a small world.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time that each rank adds to that limit: its connections are freed one by one.
const CLOSE_TIMEOUT_PER_RANK: Duration = Duration::from_millis(100);

/// The id by which the ranks of a communicator find each other.
pub(crate) type UniqueId = [u8; 128];

/// Creates the id of a new communicator.
///
/// # Errors
/// [`CommError::NcclUnavailable`]; [`CommError::Nccl`], for example if there is no usable network interface.
pub(crate) fn new_unique_id(gpu: &'static Gpu, rank: usize) -> Result<UniqueId> {
    let api = Api::get()?;
    gpu.bind()?;
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // SAFETY: the pointer is valid for one id.
    let status = unsafe { (api.get_unique_id)(&raw mut id) };
    if status != Status::SUCCESS {
        return Err(error(api, std::ptr::null_mut(), "ncclGetUniqueId", status, gpu, rank));
    }
    Ok(id.internal.map(|byte| byte as u8))
}

fn error(
    api: &Api,
    raw: sys::ncclComm_t,
    call: &'static str,
    status: Status,
    gpu: &'static Gpu,
    rank: usize,
) -> CommError {
    let (code, text) = (status.name(), api.describe(raw, status));
    CommError::Nccl { call, rank, device: gpu.device(), code, text, aborted: true }
}

/// Thread blocks of a collective if ranks share a GPU: the blocks of all ranks must fit on it at once.
pub(super) const SHARED_GPU_MAX_CTAS: i32 = 4;

/// Most thread blocks of a collective on GPUs whose matmuls make use of the number: as many as NCCL takes by itself for sums inside a
/// switch (NVLS). Rings would take up to 24.
///
/// Source: NCCL 2.28, `NVLS_NCHANNELS_SM90` and `ncclNvlsRegResourcesQuery`, which says how many buffers need that are registered.
pub(super) fn most_ctas(gpu: &Gpu) -> Option<i32> {
    match gpu.info().compute_capability.0 {
        9 => Some(16),
        10 => Some(24),
        _ => None,
    }
}

/// The number that a user gives NCCL in place of ours.
pub(super) fn most_ctas_of_user() -> Option<u32> {
    std::env::var("NCCL_MAX_CTAS").ok()?.trim().parse().ok()
}

/// Options of [`Communicator::join`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// Maximum number of thread blocks of one collective.
    pub(super) max_ctas: Option<i32>,
    pub(super) timeout: Option<Duration>,
}

/// One rank's end of a communicator.
pub(super) struct Communicator {
    api: &'static Api,
    /// Null once it was destroyed or aborted.
    raw: Cell<sys::ncclComm_t>,
    gpu: &'static Gpu,
    rank: usize,
    world_size: usize,
    timeout: Option<Duration>,
    /// Memory of tensors that is registered with it; empty where buffers are not registered.
    memory: OnceCell<NcclMemory>,
}

/// The reason for a failed call.
pub(super) enum Failed {
    /// An error of NCCL or the device.
    With(CommError),
    /// The time limit passed.
    TimedOut {
        /// The work that was not done.
        what: &'static str,
    },
}

impl Failed {
    /// Whether NCCL says that CUDA failed, and not how.
    pub(super) fn is_of_cuda(&self) -> bool {
        matches!(self, Failed::With(CommError::Nccl { code: "ncclUnhandledCudaError", .. }))
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::With(error) => error.fmt(f),
            Failed::TimedOut { what } => write!(f, "{what} was not done in time"),
        }
    }
}

impl Communicator {
    /// Joins the other ranks.
    ///
    /// # Errors
    /// [`CommError::NcclUnavailable`]; [`CommError::Nccl`]; [`CommError::DeviceTimeout`] if a rank does not arrive.
    pub(super) fn join(gpu: &'static Gpu, id: &UniqueId, options: Options) -> Result<Self> {
        let Options { rank, world_size, max_ctas, timeout } = options;
        let api = Api::get()?;
        gpu.bind()?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
        let mut config = Config::non_blocking(max_ctas);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointers are valid for one handle and one config, which is laid out as its size and version say; the
        // device's context is current.
        let status = unsafe {
            (api.init_rank_config)(&raw mut raw, world_size as c_int, id, rank as c_int, &raw mut config)
        };
        let raw = Cell::new(raw);
        let comm = Communicator { api, raw, gpu, rank, world_size, timeout, memory: OnceCell::new() };
        match comm.settle("ncclCommInitRankConfig", status) {
            Ok(()) => Ok(comm),
            Err(failed) => Err(comm.failed(failed, 0, None)),
        }
    }

    /// Aborts the communicator and returns the error of the failure.
    pub(super) fn failed(&self, failed: Failed, n_enqueued: u64, last: Option<Call>) -> CommError {
        let mut error = match failed {
            Failed::With(error) => error,
            Failed::TimedOut { what } => CommError::DeviceTimeout {
                what,
                rank: self.rank,
                device: self.gpu.device(),
                timeout_s: self.timeout.unwrap_or_default().as_secs_f64(),
                n_enqueued,
                last,
                aborted: true,
            },
        };
        let is_aborted = self.abort(Some(&error));
        if let CommError::Nccl { aborted, .. } | CommError::DeviceTimeout { aborted, .. } = &mut error {
            *aborted = is_aborted;
        }
        error
    }

    /// Allocates and registers a buffer on trial; returns the memory for [`Communicator::use_memory`], or why it cannot be registered.
    ///
    /// # Errors
    /// [`CommError::Kernel`] if the device fails.
    pub(super) fn try_memory(&self) -> Result<std::result::Result<NcclMemory, String>> {
        NcclMemory::new(self.api, self.raw.get(), self.gpu, self.rank)
    }

    /// Registers buffers from now on; called once, on all ranks.
    pub(super) fn use_memory(&self, memory: NcclMemory) {
        let is_first = self.memory.set(memory).is_ok();
        debug_assert!(is_first, "buffers are registered already");
    }

    /// Whether it was neither destroyed nor aborted.
    pub(super) fn is_open(&self) -> bool {
        !self.raw.get().is_null()
    }

    /// Memory that is registered, if there is any.
    pub(super) fn memory(&self) -> Option<&NcclMemory> {
        self.memory.get()
    }

    /// The time limit of every wait for other ranks.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Runs one call between `ncclGroupStart` and `ncclGroupEnd`, which enqueues its work.
    pub(super) fn call_in_group(
        &self,
        name: &'static str,
        run: impl FnOnce(&Api, sys::ncclComm_t) -> Status,
    ) -> std::result::Result<(), Failed> {
        match run(self.api, self.raw.get()) {
            Status::SUCCESS | Status::IN_PROGRESS => Ok(()),
            status => Err(Failed::With(self.error(name, status))),
        }
    }

    /// Runs one call and waits until NCCL has enqueued its work.
    pub(super) fn call(
        &self,
        name: &'static str,
        run: impl FnOnce(&Api, sys::ncclComm_t) -> Status,
    ) -> std::result::Result<(), Failed> {
        debug_assert!(!self.raw.get().is_null(), "a group whose communicator was aborted calls nothing");
        self.settle(name, run(self.api, self.raw.get()))
    }

    /// Waits until a call has finished.
    fn settle(&self, name: &'static str, mut status: Status) -> std::result::Result<(), Failed> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        let mut pause = Pause::new();
        while status == Status::IN_PROGRESS {
            if self.timeout.is_some_and(|timeout| pause.elapsed() > timeout) {
                return Err(Failed::TimedOut { what: name });
            }
            pause.once();
            status = self.state();
        }
        match status {
            Status::SUCCESS => Ok(()),
            status => Err(Failed::With(self.error(name, status))),
        }
    }

    /// The state of the communicator: calls in progress, or an asynchronous error.
    fn state(&self) -> Status {
        let mut status = Status::SUCCESS;
        // SAFETY: the communicator is alive, and the pointer is valid for one result.
        let asked = unsafe { (self.api.get_async_error)(self.raw.get(), &raw mut status) };
        if asked == Status::SUCCESS { status } else { asked }
    }

    /// The asynchronous error of the communicator, if any.
    pub(super) fn async_error(&self) -> Option<CommError> {
        if self.raw.get().is_null() {
            return None;
        }
        match self.state() {
            Status::SUCCESS | Status::IN_PROGRESS => None,
            status => Some(self.error(WORK, status)),
        }
    }

    /// Waits for the work of this device that may use registered buffers, for the function `call`.
    fn wait_for_work(
        &self,
        call: &'static str,
        start: Instant,
        limit: Duration,
    ) -> std::result::Result<(), Failed> {
        let mut pause = Pause::new();
        for kind in [StreamKind::Communication, StreamKind::Compute] {
            let done = Event::untimed(self.gpu)?;
            done.record(self.gpu.stream(kind))?;
            while !done.is_done()? {
                if let Some(error) = self.async_error() {
                    return Err(Failed::With(error));
                }
                if start.elapsed() > limit {
                    return Err(Failed::With(self.error(call, Status::IN_PROGRESS)));
                }
                pause.once();
            }
        }
        Ok(())
    }

    fn error(&self, call: &'static str, status: Status) -> CommError {
        error(self.api, self.raw.get(), call, status, self.gpu, self.rank)
    }

    /// Destroys the graphs of the device and aborts the communicator; its work in the stream ends with undefined results, up to
    /// NCCL 2.25 before this returns, later soon after. Returns whether NCCL came to an end of it.
    ///
    /// - `reason`: printed if that takes long, where this rank is the one to report it
    pub(super) fn abort(&self, reason: Option<&CommError>) -> bool {
        let raw = self.raw.replace(std::ptr::null_mut());
        if raw.is_null() {
            return true;
        }
        if let Some(memory) = self.memory.get() {
            memory.abandon();
        }
        let gpu = self.gpu;
        let abort = self.api.abort;
        let end = move |raw| {
            // Up to 2.21 NCCL waits for graphs that hold its collectives, which must not wait for the abort in turn.
            gpu.destroy_graphs();
            // SAFETY: nothing else has the handle any more, and no thread is in another call.
            unsafe { abort(raw) }
        };
        let print = || {
            if let Some(reason) = reason.filter(|reason| reason.reporter() == Reporter::ThisRank) {
                write_stderr(&format!("[rank {}] {reason}\n", self.rank));
            }
        };
        bounded(self.gpu, raw, end, ABORT_TIMEOUT, print).is_some()
    }

    /// The time limit of each of the two calls that close the communicator.
    fn close_timeout(&self) -> Duration {
        let limit = CLOSE_TIMEOUT + CLOSE_TIMEOUT_PER_RANK * self.world_size as u32;
        self.timeout.map_or(limit, |timeout| timeout.min(limit))
    }

    fn slow_close(&self, call: &'static str, limit: Duration) -> CommError {
        CommError::SlowClose {
            call,
            rank: self.rank,
            device: self.gpu.device(),
            waited_s: limit.as_secs_f64(),
        }
    }

    /// Finalizes and destroys the communicator, or aborts it if that fails. Collective.
    ///
    /// # Errors
    /// [`CommError::SlowClose`] if NCCL does not come to an end of it, although all work is done; [`CommError::Nccl`].
    pub(super) fn close(&self) -> Result<()> {
        const CALL: &str = "ncclCommFinalize";
        if self.raw.get().is_null() {
            return Ok(());
        }
        self.gpu.bind()?;
        let limit = self.close_timeout();
        let start = Instant::now();
        if let Some(memory) = self.memory.get() {
            if let Err(failed) = self.wait_for_work(CALL, start, limit) {
                return Err(self.failed(failed, 0, None));
            }
            memory.deregister_all();
        }
        // SAFETY: the communicator is alive.
        let mut status = unsafe { (self.api.finalize)(self.raw.get()) };
        let mut pause = Pause::new();
        while status == Status::IN_PROGRESS && start.elapsed() < limit {
            pause.once();
            status = self.state();
        }
        if status == Status::SUCCESS {
            // Destroying a communicator with an error may hang.
            status = self.state();
        }
        if status == Status::IN_PROGRESS {
            self.abort(None);
            return Err(self.slow_close(CALL, limit));
        }
        if status != Status::SUCCESS {
            return Err(self.failed(Failed::With(self.error(CALL, status)), 0, None));
        }
        let raw = self.raw.replace(std::ptr::null_mut());
        let destroy = self.api.destroy;
        // SAFETY: the communicator is finalized, and nothing else has the handle any more.
        let end = move |raw| unsafe { destroy(raw) };
        const DESTROY: &str = "ncclCommDestroy";
        let ended = bounded(self.gpu, raw, end, limit, || {});
        if let (Some(Status::SUCCESS), Some(memory)) = (ended, self.memory.get()) {
            memory.close();
        } else if let Some(memory) = self.memory.get() {
            memory.abandon();
        }
        match ended {
            Some(Status::SUCCESS) => Ok(()),
            Some(status) => Err(error(self.api, std::ptr::null_mut(), DESTROY, status, self.gpu, self.rank)),
            None => Err(self.slow_close(DESTROY, limit)),
        }
    }
}

/// Runs `end` on a thread of its own; `None` if it does not return within `limit`. Calls `on_slow` if it takes longer than
/// [`SLOW_ABORT`].
fn bounded(
    gpu: &'static Gpu,
    raw: sys::ncclComm_t,
    end: impl FnOnce(sys::ncclComm_t) -> Status + Send + 'static,
    limit: Duration,
    on_slow: impl FnOnce(),
) -> Option<Status> {
    /// A handle that moves to another thread.
    struct Handle(sys::ncclComm_t);
    // SAFETY: NCCL's functions may be called from any thread, one at a time, and the sending thread no longer uses the handle.
    unsafe impl Send for Handle {}
    let handle = Handle(raw);
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        let Handle(raw) = { handle };
        // If the context cannot be made current, the handle is leaked.
        if gpu.bind().is_ok() {
            let _ = sender.send(end(raw));
        }
    };
    let thread = std::thread::Builder::new().name("nccl-end".into()).spawn(work).ok()?;
    let status = receiver.recv_timeout(SLOW_ABORT).or_else(|why| match why {
        RecvTimeoutError::Disconnected => Err(why),
        RecvTimeoutError::Timeout => {
            on_slow();
            receiver.recv_timeout(limit.saturating_sub(SLOW_ABORT))
        }
    });
    if status.is_ok() {
        // What the thread frees at its end is freed before `main` returns.
        let _ = thread.join();
    }
    status.ok()
}

/// Whether a value of `NCCL_ALGO` leaves only algorithms whose sums have a fixed order: switches and SHARP have none.
///
/// Names are compared whole, so that `^NVLS` leaves `NVLSTree`; a list of one function (`allreduce:tree`) says nothing of the others.
///
/// Source: NCCL user guide, "NCCL_ALGO"; `parseList` of NCCL's tuning.cc.
pub(crate) fn has_fixed_order(algorithms: &str) -> bool {
    const UNORDERED: [&str; 4] = ["nvls", "nvlstree", "collnetdirect", "collnetchain"];
    let value = algorithms.to_lowercase();
    fn names(list: &str) -> impl Iterator<Item = &str> {
        list.split(',').map(str::trim)
    }
    match value.strip_prefix('^') {
        Some(list) => UNORDERED.iter().all(|of| names(list).any(|name| name == *of)),
        None => {
            let mut lists = value.split(';');
            let is_ordered = |list: &str| names(list).all(|name| ["ring", "tree", "pat"].contains(&name));
            let of_others = |list: &str| is_ordered(list.rsplit(':').next().unwrap_or_default());
            lists.next().is_some_and(is_ordered) && lists.all(of_others)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_order_leaves_no_algorithm_of_a_switch() {
        for fixed in
            ["Ring", "Tree, Ring", "ring;allreduce:tree", "^NVLS,NVLSTree,CollNetDirect,CollNetChain"]
        {
            assert!(has_fixed_order(fixed), "{fixed}");
        }
        let open = [
            "",
            "NVLS",
            "Ring,NVLSTree",
            "^Tree",
            "^NVLS",
            "^NVLS,NVLSTree",
            "CollNetChain",
            "broadcast:ring",
        ];
        for open in open.into_iter().chain(["allreduce:tree;broadcast:ring", "ring;allreduce:nvls"]) {
            assert!(!has_fixed_order(open), "{open}");
        }
    }
}
