//! Ranks on GPUs, joined by NCCL.
//!
//! Nothing here blocks the host except setting up NCCL's connections. A collective is enqueued in the communication stream,
//! after all work of the compute stream so far, and the compute stream waits for it: at once in the blocking calls, later in
//! the calls of a [`Scope`](crate::Scope). So later work on the device sees the results. The host learns of results, and of
//! failures, when it reads some: [`Group::wait_until`](crate::Group::wait_until).
//!
//! A collective uses streams, events and NCCL's calls only, all created beforehand. So it can be captured in a CUDA graph and
//! replayed, if all ranks capture and replay alike. Run each collective once before a capture: NCCL sets up its connections then.
//!
//! One error ends the communicator: it is aborted, so that the other ranks learn of it, and each later call returns that error.
//! Two worlds must not use the same GPU's streams at the same time: ranks that enqueue their collectives in different orders
//! deadlock.
//!
//! Source: NCCL user guide, "Using NCCL with CUDA Graphs" and "CUDA Stream Semantics".

mod api;
mod memory;
mod communicator;

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::time::Duration;

pub(crate) use api::version_name;
use api::{Api, datatype, operation};
use communicator::{Communicator, Failed, Options, SHARED_GPU_MAX_CTAS, most_ctas, most_ctas_of_user};
pub(crate) use communicator::{UniqueId, has_fixed_order, new_unique_id};
use ddp_kernels::cuda::{Event, Gpu, Stream, StreamKind, WAITING};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor};
pub(crate) use memory::NcclMemory;
pub use memory::{NCCL_MEMORY_STEP_BYTES, registered_step_bytes};

use super::buffer::{RawMut, RawRef};
use super::pause::Pause;
use super::traffic::Counter;
use crate::progress::Progress;
use crate::register_buffers::RegisterBuffers;
use crate::{Call, CallKind, CommError, Departure, Rank, Result};

/// Number of collectives in flight that can be waited for one by one; a wait for an older one waits for a later one instead.
const MARKS: usize = 128;
/// The version of the NCCL library that this process would use, as `10,000 * major + 100 * minor + patch`.
///
/// # Errors
/// [`CommError::NcclUnavailable`].
pub(crate) fn version() -> Result<i32> {
    Api::get().map(Api::version)
}

/// Time after the loss of a rank for which the device may still complete what needs that rank no more: updates, and collectives that it had
/// entered. About the same on all ranks.
const AFTER_LOSS: Duration = Duration::from_millis(300);
/// Longest time until all ranks have stopped their updates.
const CLOSED_WAIT: Duration = Duration::from_secs(4);

/// State of [`NcclGroup::begin_together`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Together {
    /// Each call is enqueued at once.
    No,
    /// Between `ncclGroupStart` and `ncclGroupEnd`.
    Yes {
        /// Whether the compute stream waits for them at the end.
        is_waited_for: bool,
    },
}

/// Options of [`NcclGroup::join`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct NcclOptions {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Whether another rank uses the same GPU.
    pub(crate) shares_gpu: bool,
    /// Whether collectives leave multiprocessors to the matmuls next to them.
    pub(crate) limits_blocks: bool,
    /// Time for which a rank waits for the others.
    pub(crate) timeout: Option<Duration>,
    /// Whether [`NcclGroup::zeros`] should register its tensors.
    pub(crate) register_buffers: RegisterBuffers,
    /// Time for which a rank waits for the collectives of a trial.
    pub(crate) trial_timeout: Duration,
}

/// The group of a rank with a GPU.
pub struct NcclGroup {
    comm: Communicator,
    gpu: &'static Gpu,
    options: NcclOptions,
    rank: usize,
    world_size: usize,
    /// Marks the work in the compute stream when the last collective was enqueued.
    ready: Event,
    /// The ends of collectives: the `n`-th event belongs to number `n`, `n + MARKS`, ...
    done: Vec<Event>,
    /// The operand of a barrier.
    barrier_operand: RefCell<Tensor>,
    /// Number of collectives enqueued.
    n_enqueued: Cell<u64>,
    /// Number of those that the compute stream waits for.
    n_joined: Cell<u64>,
    /// Whether the communication stream waits for the compute stream since the last mark.
    is_ahead: Cell<bool>,
    last: Cell<Option<Call>>,
    /// Calls that NCCL enqueues together when the last of them was made, and the bytes of their buffers.
    together: Cell<Together>,
    bytes_together: Cell<u64>,
    /// Why no further collective can succeed.
    broken: RefCell<Option<CommError>>,
    pub(super) traffic: Counter,
}

/// Parts of a group that need the device alone.
#[derive(Debug)]
pub(crate) struct Prepared {
    gpu: &'static Gpu,
    ready: Event,
    done: Vec<Event>,
    barrier_operand: Tensor,
}

impl Prepared {
    /// Allocates it.
    ///
    /// # Errors
    /// [`CommError::Kernel`] if the device is out of memory.
    pub(crate) fn new(gpu: &'static Gpu) -> Result<Self> {
        let done: std::result::Result<_, KernelError> = (0..MARKS).map(|_| Event::untimed(gpu)).collect();
        let barrier_operand = Tensor::zeros_for(MemoryUse::Workspace, &[1], DType::I64, gpu.device())?;
        Ok(Prepared { gpu, ready: Event::untimed(gpu)?, done: done?, barrier_operand })
    }
}

impl NcclGroup {
    /// Joins the ranks that hold the same id. Collective.
    ///
    /// # Errors
    /// [`CommError::NcclUnavailable`]; [`CommError::Nccl`]; [`CommError::DeviceTimeout`] if a rank does not arrive.
    pub(crate) fn join(prepared: Prepared, id: &UniqueId, options: NcclOptions) -> Result<Self> {
        let Prepared { gpu, ready, done, barrier_operand } = prepared;
        let NcclOptions { rank, world_size, shares_gpu, limits_blocks, timeout, .. } = options;
        let max_ctas =
            if shares_gpu { Some(SHARED_GPU_MAX_CTAS) } else { most_ctas(gpu).filter(|_| limits_blocks) };
        Ok(NcclGroup {
            ready,
            done,
            barrier_operand: RefCell::new(barrier_operand),
            comm: Communicator::join(gpu, id, Options { rank, world_size, max_ctas, timeout })?,
            gpu,
            options,
            rank,
            world_size,
            n_enqueued: Cell::new(0),
            n_joined: Cell::new(0),
            is_ahead: Cell::new(false),
            last: Cell::new(None),
            together: Cell::new(Together::No),
            bytes_together: Cell::new(0),
            broken: RefCell::new(None),
            traffic: Counter::default(),
        })
    }

    pub(super) fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// The options with which it was joined.
    pub(crate) fn options(&self) -> NcclOptions {
        self.options
    }

    /// Tries whether NCCL can register buffers; [`NcclGroup::register_buffers`] takes the result, if all ranks succeeded.
    pub(crate) fn try_memory(&self) -> Result<std::result::Result<NcclMemory, String>> {
        self.comm.try_memory()
    }

    /// Makes [`NcclGroup::zeros`] register its tensors from now on. On all ranks.
    pub(crate) fn register_buffers(&self, memory: NcclMemory) {
        self.comm.use_memory(memory);
    }

    /// Whether [`NcclGroup::zeros`] registers its tensors.
    pub(crate) fn registers_buffers(&self) -> bool {
        self.comm.memory().is_some()
    }

    /// Zeros in memory that NCCL reads and writes in place, or else in memory of the pool. Collective.
    pub(crate) fn zeros(&self, kind: MemoryUse, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let n_bytes = dims.iter().product::<usize>().saturating_mul(dtype.size_bytes());
        let memory = self.comm.memory().filter(|_| n_bytes > 0 && !self.is_broken());
        Ok(match memory {
            Some(memory) => Tensor::zeros_in(memory.allocate(n_bytes)?, kind, dims, dtype)?,
            None => Tensor::zeros_for(kind, dims, dtype, self.gpu.device())?,
        })
    }

    /// Most thread blocks that a collective holds while it runs; 0 where matmuls need not know, or NCCL takes as many as it wants.
    pub(crate) fn most_blocks(&self) -> u32 {
        let NcclOptions { shares_gpu, limits_blocks, .. } = self.options;
        let Some(most) = most_ctas(self.gpu).filter(|_| limits_blocks && !shares_gpu) else { return 0 };
        let most = most_ctas_of_user().unwrap_or(most as u32);
        let info = self.gpu.info();
        // A switch reduces for more than two GPUs.
        if self.registers_buffers() && info.has_multicast && self.world_size > 2 {
            let of_all: usize = if info.compute_capability.0 > 9 { 64 } else { 40 };
            return most.min(of_all.div_ceil(self.world_size) as u32);
        }
        most
    }

    /// Whether no further collective can succeed.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Enqueues one collective and makes the compute stream wait for it.
    ///
    /// # Safety
    /// Same as `Group::run`, in the order of the compute stream.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        // SAFETY: as this function's.
        let number = unsafe { self.start(call, input, output) }?;
        if let Together::Yes { .. } = self.together.get() {
            self.together.set(Together::Yes { is_waited_for: true });
            return Ok(());
        }
        self.wait(Some(number))
    }

    /// From here to [`NcclGroup::end_together`] calls are collected: NCCL enqueues all of them in one kernel, and a non-blocking
    /// communicator starts one thread for them.
    pub(super) fn begin_together(&self) -> Result<()> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        assert!(self.together.get() == Together::No, "calls are collected already");
        // NCCL looks at each call whether its stream is being captured, and enqueues all of them in what it found then.
        self.follow_compute().map_err(|error| self.break_with(error.into()))?;
        // SAFETY: it is ended before this thread does anything else with NCCL.
        let begun = self.comm.call_in_group("ncclGroupStart", |api, _| unsafe { (api.group_start)() });
        begun.map_err(|failed| self.break_with(failed))?;
        self.together.set(Together::Yes { is_waited_for: false });
        Ok(())
    }

    /// Enqueues the collected calls in the communication stream, after the compute stream, and marks their end. Does nothing after a
    /// failure.
    pub(super) fn end_together(&self) -> Result<()> {
        let Together::Yes { is_waited_for } = self.together.get() else { return Ok(()) };
        self.enqueue_together().map_err(|failed| self.break_with(failed))?;
        if is_waited_for { self.wait(None) } else { Ok(()) }
    }

    fn enqueue_together(&self) -> std::result::Result<(), Failed> {
        // The operands may have been computed since the group began.
        let communication = self.follow_compute()?;
        self.gpu.begin_collectives(communication)?;
        self.gpu.bind()?;
        self.together.set(Together::No);
        // SAFETY: this thread began the group.
        self.comm.call("ncclGroupEnd", |api, _| unsafe { (api.group_end)() })?;
        self.gpu.end_collectives(communication, self.bytes_together.take())?;
        self.mark_end(communication)?;
        Ok(())
    }

    /// Orders the communication stream after all work of the compute stream so far, and into its capture if there is one.
    fn follow_compute(&self) -> std::result::Result<&'static Stream, KernelError> {
        let (compute, communication) = self.streams();
        self.ready.record(compute)?;
        communication.wait(&self.ready)?;
        self.is_ahead.set(true);
        Ok(communication)
    }

    /// Marks the end of what was enqueued in the communication stream, and returns its number.
    fn mark_end(&self, communication: &Stream) -> std::result::Result<u64, KernelError> {
        let number = self.n_enqueued.get();
        self.done[number as usize % MARKS].record(communication)?;
        self.n_enqueued.set(number + 1);
        self.is_ahead.set(false);
        Ok(number)
    }

    /// Enqueues one collective and returns its number.
    ///
    /// # Safety
    /// `input` is readable and `output` writable on this group's GPU for the elements of `call`. They are the same if the call
    /// works in place, or one is a shard of the other as NCCL defines it, or they are disjoint. Nothing else accesses them
    /// before the collective was waited for.
    pub(super) unsafe fn start(&self, call: Call, input: RawRef, output: RawMut) -> Result<u64> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        // SAFETY: as this function's.
        match unsafe { self.enqueue(call, input, output) } {
            Ok(number) => Ok(number),
            Err(failed) => Err(self.break_with(failed)),
        }
    }

    /// Enqueues one collective in the communication stream, after the compute stream, and marks its end.
    ///
    /// # Safety
    /// Same as `start`.
    unsafe fn enqueue(&self, call: Call, input: RawRef, output: RawMut) -> std::result::Result<u64, Failed> {
        let is_together = self.together.get() != Together::No;
        let (_, communication) = self.streams();
        if !is_together {
            self.follow_compute()?;
            self.gpu.begin_collectives(communication)?;
        }
        if call.len > 0 {
            // SAFETY: as this function's; the stream is ordered after the compute stream before the work is enqueued.
            unsafe { self.launch(call, input, output, communication) }?;
        }
        if is_together {
            self.bytes_together.set(self.bytes_together.get() + call.n_bytes(self.world_size));
        } else {
            self.gpu.end_collectives(communication, call.n_bytes(self.world_size))?;
        }
        self.last.set(Some(call));
        // All calls of a group end with it.
        if is_together { Ok(self.n_enqueued.get()) } else { Ok(self.mark_end(communication)?) }
    }

    /// Enqueues work in the communication stream, after all collectives so far, and returns its number, as if it were one.
    pub(super) fn after_collectives(
        &self,
        enqueue: impl FnOnce() -> std::result::Result<(), KernelError>,
    ) -> Result<u64> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        let (_, communication) = self.streams();
        let done = enqueue().and_then(|()| self.mark_end(communication));
        done.map_err(|error| self.break_with(error.into()))
    }

    /// Calls NCCL's function of one collective.
    ///
    /// # Safety
    /// Same as `start`; `stream` is ordered after all else that accesses the buffers.
    unsafe fn launch(
        &self,
        call: Call,
        input: RawRef,
        output: RawMut,
        stream: &Stream,
    ) -> std::result::Result<(), Failed> {
        let (n, dtype, stream) = (call.len, datatype(call.dtype), stream.raw());
        let (from, to) = (input.ptr.cast::<c_void>(), output.ptr.cast::<c_void>());
        self.gpu.bind()?;
        // For each: the communicator is alive; buffers and stream satisfy this function's contract.
        match call.kind {
            CallKind::AllReduce(op) => self.call("ncclAllReduce", |api, comm| {
                // SAFETY: both hold `n` elements.
                unsafe { (api.all_reduce)(from, to, n, dtype, operation(op), comm, stream) }
            }),
            CallKind::Broadcast { root } => self.call("ncclBroadcast", |api, comm| {
                // SAFETY: both hold `n` elements, and the root exists.
                unsafe { (api.broadcast)(from, to, n, dtype, root as c_int, comm, stream) }
            }),
            CallKind::ReduceScatter(op) => self.call("ncclReduceScatter", |api, comm| {
                // SAFETY: `from` holds `world_size * n` elements and `to` holds `n`.
                unsafe { (api.reduce_scatter)(from, to, n, dtype, operation(op), comm, stream) }
            }),
            CallKind::AllGather => self.call("ncclAllGather", |api, comm| {
                // SAFETY: `from` holds `n` elements and `to` holds `world_size * n`.
                unsafe { (api.all_gather)(from, to, n, dtype, comm, stream) }
            }),
            CallKind::Barrier => Ok(()),
            CallKind::Shift => unreachable!("`Group::shift` sends and receives"),
            CallKind::Send { to } => self.call("ncclSend", |api, comm| {
                // SAFETY: `from` holds `n` elements, and the rank exists.
                unsafe { (api.send)(from, n, dtype, to as c_int, comm, stream) }
            }),
            CallKind::Receive { from } => self.call("ncclRecv", |api, comm| {
                // SAFETY: `to` holds `n` elements, and the rank exists.
                unsafe { (api.receive)(to, n, dtype, from as c_int, comm, stream) }
            }),
        }
    }

    fn call(
        &self,
        name: &'static str,
        run: impl FnOnce(&Api, cudarc::nccl::sys::ncclComm_t) -> api::Status,
    ) -> std::result::Result<(), Failed> {
        match self.together.get() {
            Together::No => self.comm.call(name, run),
            Together::Yes { .. } => self.comm.call_in_group(name, run),
        }
    }

    /// Makes the compute stream wait until all ranks' compute streams have arrived here.
    pub(super) fn barrier(&self) -> Result<()> {
        let mut barrier_operand = self.barrier_operand.borrow_mut();
        let buf = RawMut::of(barrier_operand.view_mut(), "barrier")?;
        let call = Call { kind: CallKind::AllReduce(crate::ReduceOp::Sum), dtype: buf.dtype, len: buf.len };
        // SAFETY: the tensor belongs to the group and is used for barriers alone, one after the other.
        unsafe { self.run(call, buf.as_ref(), buf) }
    }

    /// Makes the compute stream wait for the collective of this number and all before it; without a number, for all.
    pub(super) fn wait(&self, number: Option<u64>) -> Result<()> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        self.join_streams(number).map_err(|error| self.break_with(error.into()))
    }

    fn join_streams(&self, number: Option<u64>) -> std::result::Result<(), KernelError> {
        let n_enqueued = self.n_enqueued.get();
        // A number of another group may never have been returned by this one.
        let end = number.map_or(n_enqueued, |number| (number + 1).min(n_enqueued));
        if end > self.n_joined.get() {
            let (compute, _) = self.streams();
            let before = self.gpu.mark(WAITING)?;
            compute.wait(&self.done[(end - 1) as usize % MARKS])?;
            if let Some(label) = before {
                self.gpu.mark(label)?;
            }
            self.n_joined.set(end);
        }
        Ok(())
    }

    fn streams(&self) -> (&'static Stream, &'static Stream) {
        (self.gpu.compute(), self.gpu.stream(StreamKind::Communication))
    }

    /// Polls until `is_done` returns true; see [`Group::wait_until`](crate::Group::wait_until).
    pub(super) fn wait_until(
        &self,
        mut is_done: impl FnMut() -> std::result::Result<bool, KernelError>,
    ) -> Result<()> {
        let mut pause = Pause::new();
        loop {
            if let Some(error) = &*self.broken.borrow() {
                return Err(error.clone());
            }
            let done = is_done();
            // NCCL's error is closer to the cause than the device's, unless it follows from the loss of a rank: what is complete counts.
            if let Some(error) = self.comm.async_error()
                && !(matches!(done, Ok(true)) && self.saving().is_some_and(Progress::awaits_loss))
            {
                return Err(self.break_with(Failed::With(error)));
            }
            let hangs = |progress: &Progress| progress.is_to_save() && progress.lost_for() > Some(AFTER_LOSS);
            if !matches!(done, Ok(true)) && self.saving().is_some_and(hangs) {
                return Err(self.break_with(Failed::With(CommError::RankLost)));
            }
            match done {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(self.break_with(error.into())),
            }
            if self.comm.timeout().is_some_and(|timeout| pause.elapsed() > timeout) {
                return Err(self.break_with(Failed::TimedOut { what: "work of the device" }));
            }
            pause.once();
        }
    }

    /// Ends the communicator of a rank that holds complete steps after the loss of another one; does nothing if it has ended.
    pub(super) fn leave_after_loss(&self) {
        if self.broken.borrow().is_none() {
            self.break_with(Failed::With(CommError::RankLost));
        }
    }

    /// The progress of a rank whose job saves after the loss of another one.
    fn saving(&self) -> Option<&Progress> {
        self.traffic.progress().filter(|progress| progress.survivor().limit().is_some())
    }

    /// Stops the updates of this rank before its communicator is aborted, which lets collectives run on with undefined sums: its own, and
    /// the others', which after the loss of a rank stop theirs, too, and where this one withdraws because of `failed`. Returns whether that
    /// follows from the loss of a rank.
    fn stop_updates(&self, failed: &Failed) -> bool {
        let Some(progress) = self.saving() else {
            let _ = self.gpu.close_gate();
            return false;
        };
        let mut is_lost = progress.awaits_loss();
        // The device works, and what it holds after the last complete step is whole.
        let holds_state = !matches!(failed, Failed::With(CommError::Kernel(_)));
        if !is_lost && holds_state {
            progress.withdraw(&failed.to_string(), true);
            is_lost = progress.awaits_loss();
        }
        if is_lost {
            std::thread::sleep(AFTER_LOSS.saturating_sub(progress.lost_for().unwrap_or_default()));
        }
        let is_closed = self.gpu.close_gate().is_ok();
        if is_lost {
            progress.survivor().close(is_closed, CLOSED_WAIT);
        } else {
            let withdraws = progress.withdraw(&failed.to_string(), false);
            if !withdraws || !progress.survivor().may_abort_within(CLOSED_WAIT) {
                progress.abort_alone();
            }
        }
        is_lost && progress.withdrawal().is_none()
    }

    /// Releases the buffers in flight: aborts the communicator, which ends work that waits for other ranks.
    pub(super) fn give_up(&self, call_failed: CommError) {
        if self.broken.borrow().is_none() {
            self.break_with(Failed::With(call_failed));
        }
    }

    fn break_with(&self, failed: Failed) -> CommError {
        if self.together.replace(Together::No) != Together::No {
            // Otherwise the abort would be collected, too. What the group's end returns is the failure that is known.
            // SAFETY: this thread began the group.
            let _ = self.comm.call_in_group("ncclGroupEnd", |api, _| unsafe { (api.group_end)() });
        }
        let failed = self.fault_of_device().filter(|_| failed.is_of_cuda()).map_or(failed, Failed::from);
        // An abort that takes long must not end the job while another rank saves.
        let is_lost = self.comm.is_open() && self.stop_updates(&failed);
        let failed = if is_lost { Failed::With(CommError::RankLost) } else { failed };
        let error = self.comm.failed(failed, self.n_enqueued.get(), self.last.get());
        if error.is_beyond_abort() {
            // The collective still uses its buffers, and every wait for the stream would hang.
            self.end_job(&error);
        }
        if self.is_ahead.get() {
            // A capture must not end before the streams are joined.
            let (_, communication) = self.streams();
            let _ = self.mark_end(communication);
        }
        // Memory is freed in the order of the compute stream: the collective must release it first. If even this fails, the
        // device does no further work.
        let _ = self.join_streams(None);
        *self.broken.borrow_mut() = Some(error.clone());
        error
    }

    /// The error of a device that is broken, for which NCCL has none of its own.
    fn fault_of_device(&self) -> Option<KernelError> {
        let marked = Event::untimed(self.gpu).and_then(|event| event.record(self.gpu.compute()));
        marked.err().filter(KernelError::is_device_fault)
    }

    /// Ends the job because NCCL does not return from the end of the communicator.
    fn end_job(&self, error: &CommError) -> ! {
        let progress = self.traffic.progress().inspect(|progress| progress.wait_for_release());
        // Another start may help.
        let exit_code = progress.and_then(|progress| progress.exit_code()).filter(|_| error.is_broken_link());
        crate::end_job::end_job_because(
            &format!("[rank {}] {}", self.rank, with_hint(error)),
            exit_code.unwrap_or(1),
        )
    }

    /// Aborts the communicator, because another rank could not join it.
    pub(crate) fn abandon(self) {
        self.comm.abort(None);
    }

    /// Ends the communicator for one that takes its place: closes it, or aborts it if a rank has. Collective.
    pub(crate) fn leave(&self, is_broken: bool) {
        if !is_broken && let Some(error) = self.comm.close().err().filter(CommError::is_beyond_abort) {
            self.end_job(&error);
        }
        // No call may reach the closed communicator.
        self.give_up(CommError::PeerLeft { call: Call::BARRIER, rank: self.rank, how: Departure::Closed });
    }

    /// Closes the communicator. Collective.
    ///
    /// # Errors
    /// [`CommError::SlowClose`]: a thread is still in NCCL, which must not continue while `main` returns; [`CommError::Nccl`].
    pub(crate) fn close(self) -> Result<()> {
        let closed = self.comm.close();
        if let Some(error) = closed.as_ref().err().filter(|error| error.is_beyond_abort()) {
            // As above.
            self.end_job(error);
        }
        closed
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.comm.abort(None);
        } else {
            // `drop` cannot return an error; `close` does.
            let _ = self.comm.close();
        }
    }
}

impl std::fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclGroup(rank {} of {} on {})", self.rank, self.world_size, self.gpu.device())
    }
}

impl From<KernelError> for Failed {
    fn from(error: KernelError) -> Self {
        Failed::With(error.into())
    }
}
