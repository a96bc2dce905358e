//! Ranks on GPUs, joined by NCCL.
//!
//! Nothing here blocks the host but the setting up of NCCL's connections. A collective is put into the communication stream,
//! behind all work of the compute stream so far, and the compute stream is made to wait for it: at once by the calls that
//! "wait", later by those of a [`Scope`](crate::Scope). So work on the device sees results, and the host learns of them, and
//! of what went wrong, where it reads some: [`Group::wait_until`](crate::Group::wait_until).
//!
//! Streams, events and NCCL's calls are all that a collective makes use of, and all are made beforehand: it can be captured
//! in a CUDA graph and replayed, if all ranks capture and replay alike. The first collectives are better run before: NCCL then
//! sets up its connections.
//!
//! One error ends the communicator: it is aborted, so that the others learn of it, and each later call returns that error.
//! Two worlds must not use the same GPU's streams at a time: ranks that put the collectives of both in different orders wait for
//! each other for ever.

mod api;
mod communicator;

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::time::Duration;

use ddp_kernels::cuda::{Event, Gpu, Stream, StreamKind};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor};

use super::buffer::{RawMut, RawRef};
use super::pause::Pause;
use super::traffic::Counter;
use crate::{Call, CallKind, CommError, Rank, Result};
use api::{Api, datatype, operation};
use communicator::{Communicator, Failed, Options};

pub(crate) use api::version_name;
pub(crate) use communicator::{UniqueId, new_unique_id};

/// Collectives in flight that can be waited for one by one; a wait for an older one waits for a later one instead.
const MARKS: usize = 128;
/// Thread blocks of a collective where ranks share a GPU: all ranks' must fit there at once.
const SHARED_GPU_MAX_CTAS: i32 = 4;

/// The version of the NCCL that this process would use, as 10,000 · major + 100 · minor + patch.
///
/// # Errors
/// [`CommError::NcclUnavailable`].
pub(crate) fn version() -> Result<i32> {
    Api::get().map(Api::version)
}

/// How a group is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NcclOptions {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Whether another rank uses the same GPU.
    pub(crate) shares_gpu: bool,
    /// How long a rank waits for the others.
    pub(crate) timeout: Option<Duration>,
}

/// One rank's group among GPUs.
pub struct NcclGroup {
    comm: Communicator,
    gpu: &'static Gpu,
    rank: usize,
    world_size: usize,
    /// Marks what the compute stream held when the last collective was put.
    ready: Event,
    /// Mark the ends of collectives, the `n`-th that of number `n`, `n + MARKS`, ...
    done: Vec<Event>,
    /// What a barrier sums.
    nothing: RefCell<Tensor>,
    /// Collectives put into the stream.
    n_put: Cell<u64>,
    /// Those of them that the compute stream waits for.
    n_joined: Cell<u64>,
    last: Cell<Option<Call>>,
    /// Why no further collective can succeed.
    broken: RefCell<Option<CommError>>,
    pub(super) traffic: Counter,
}

impl NcclGroup {
    /// Joins the ranks that have the same id. Collective.
    ///
    /// # Errors
    /// [`CommError::NcclUnavailable`], [`CommError::Nccl`], [`CommError::DeviceTimeout`], [`CommError::Kernel`].
    pub(crate) fn join(gpu: &'static Gpu, id: &UniqueId, options: NcclOptions) -> Result<Self> {
        let NcclOptions { rank, world_size, shares_gpu, timeout } = options;
        let done: std::result::Result<_, KernelError> = (0..MARKS).map(|_| Event::new(gpu)).collect();
        let nothing = Tensor::zeros_for(MemoryUse::Workspace, &[1], DType::I64, gpu.device())?;
        let max_ctas = shares_gpu.then_some(SHARED_GPU_MAX_CTAS);
        Ok(NcclGroup {
            ready: Event::new(gpu)?,
            done: done?,
            nothing: RefCell::new(nothing),
            comm: Communicator::join(gpu, id, Options { rank, world_size, max_ctas, timeout })?,
            gpu,
            rank,
            world_size,
            n_put: Cell::new(0),
            n_joined: Cell::new(0),
            last: Cell::new(None),
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

    pub(super) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Puts one collective into the stream and has the compute stream wait for it.
    ///
    /// # Safety
    /// As `Group::run`, in the order of the compute stream.
    pub(super) unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        // SAFETY: as this function's.
        let number = unsafe { self.start(call, input, output) }?;
        self.wait(Some(number))
    }

    /// Puts one collective into the stream and returns its number.
    ///
    /// # Safety
    /// `input` is readable and `output` writable on this group's GPU for the elements of `call`; they are the same where
    /// the call works in place, or part of each other as NCCL has it, or disjoint; and nobody else touches them before the
    /// collective was waited for.
    pub(super) unsafe fn start(&self, call: Call, input: RawRef, output: RawMut) -> Result<u64> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        // SAFETY: as this function's.
        match unsafe { self.put(call, input, output) } {
            Ok(number) => Ok(number),
            Err(failed) => Err(self.break_with(failed)),
        }
    }

    /// # Safety
    /// As `start`.
    unsafe fn put(&self, call: Call, input: RawRef, output: RawMut) -> std::result::Result<u64, Failed> {
        let (compute, communication) = self.streams();
        self.ready.record(compute)?;
        communication.wait(&self.ready)?;
        if call.len > 0 {
            // SAFETY: as this function's; the stream was ordered behind the compute stream.
            unsafe { self.enqueue(call, input, output, communication) }?;
        }
        let number = self.n_put.get();
        self.done[number as usize % MARKS].record(communication)?;
        self.n_put.set(number + 1);
        self.last.set(Some(call));
        Ok(number)
    }

    /// # Safety
    /// As `start`; `stream` is behind whatever else touches the buffers.
    unsafe fn enqueue(
        &self,
        call: Call,
        input: RawRef,
        output: RawMut,
        stream: &Stream,
    ) -> std::result::Result<(), Failed> {
        let (n, dtype, stream) = (call.len, datatype(call.dtype), stream.raw());
        let (from, to) = (input.ptr.cast::<c_void>(), output.ptr.cast::<c_void>());
        self.gpu.bind()?;
        // Each of these gets a live communicator, and buffers and stream as this function's contract has them.
        match call.kind {
            CallKind::AllReduce(op) => self.comm.call("ncclAllReduce", |api, comm| {
                // SAFETY: both hold `n` elements.
                unsafe { (api.all_reduce)(from, to, n, dtype, operation(op), comm, stream) }
            }),
            CallKind::Broadcast { root } => self.comm.call("ncclBroadcast", |api, comm| {
                // SAFETY: both hold `n` elements, and the root exists.
                unsafe { (api.broadcast)(from, to, n, dtype, root as c_int, comm, stream) }
            }),
            CallKind::ReduceScatter(op) => self.comm.call("ncclReduceScatter", |api, comm| {
                // SAFETY: `from` holds `world_size * n` elements and `to` holds `n`.
                unsafe { (api.reduce_scatter)(from, to, n, dtype, operation(op), comm, stream) }
            }),
            CallKind::AllGather => self.comm.call("ncclAllGather", |api, comm| {
                // SAFETY: `from` holds `n` elements and `to` holds `world_size * n`.
                unsafe { (api.all_gather)(from, to, n, dtype, comm, stream) }
            }),
            CallKind::Barrier => Ok(()),
            CallKind::Send { to } => self.comm.call("ncclSend", |api, comm| {
                // SAFETY: `from` holds `n` elements, and the rank exists.
                unsafe { (api.send)(from, n, dtype, to as c_int, comm, stream) }
            }),
            CallKind::Receive { from } => self.comm.call("ncclRecv", |api, comm| {
                // SAFETY: `to` holds `n` elements, and the rank exists.
                unsafe { (api.receive)(to, n, dtype, from as c_int, comm, stream) }
            }),
        }
    }

    /// Has the compute stream wait until all ranks' compute streams have come here.
    pub(super) fn barrier(&self) -> Result<()> {
        let mut nothing = self.nothing.borrow_mut();
        let buf = RawMut::of(nothing.view_mut(), "barrier")?;
        let call = Call { kind: CallKind::AllReduce(crate::ReduceOp::Sum), dtype: buf.dtype, len: buf.len };
        // SAFETY: the tensor is the group's own and used for this alone, one barrier after the other.
        unsafe { self.run(call, buf.as_ref(), buf) }
    }

    /// Has the compute stream wait for the collective of a number, and all before it; for all if there is none.
    pub(super) fn wait(&self, number: Option<u64>) -> Result<()> {
        if let Some(error) = &*self.broken.borrow() {
            return Err(error.clone());
        }
        self.join_streams(number).map_err(|error| self.break_with(error.into()))
    }

    fn join_streams(&self, number: Option<u64>) -> std::result::Result<(), KernelError> {
        let n_put = self.n_put.get();
        // A number of another group could be one that was never given.
        let end = number.map_or(n_put, |number| (number + 1).min(n_put));
        if end > self.n_joined.get() {
            let (compute, _) = self.streams();
            compute.wait(&self.done[(end - 1) as usize % MARKS])?;
            self.n_joined.set(end);
        }
        Ok(())
    }

    fn streams(&self) -> (&'static Stream, &'static Stream) {
        (self.gpu.compute(), self.gpu.stream(StreamKind::Communication))
    }

    /// Polls until something is done; see [`Group::wait_until`](crate::Group::wait_until).
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
            // What NCCL says of a failure is nearer to its cause than what the device says.
            if let Some(error) = self.comm.async_error() {
                return Err(self.break_with(Failed::With(error)));
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

    /// Lets go of the buffers in flight: the communicator is aborted, which ends work that waits for other ranks.
    pub(super) fn give_up(&self, call_failed: CommError) {
        if self.broken.borrow().is_none() {
            self.break_with(Failed::With(call_failed));
        }
    }

    fn break_with(&self, failed: Failed) -> CommError {
        let error = self.comm.failed(failed, self.n_put.get(), self.last.get());
        if error.is_beyond_abort() {
            // The collective still holds its buffers, and whoever waits for the stream waits for ever.
            crate::end_job::end_job_because(&format!("[rank {}] {error}", self.rank));
        }
        // Memory is given back in the order of the compute stream: not before the collective has let go of it. Where not even
        // this works, the device does no further work at all.
        let _ = self.join_streams(None);
        *self.broken.borrow_mut() = Some(error.clone());
        error
    }

    /// Ends the communicator at once: other ranks could not join it.
    pub(crate) fn abandon(self) {
        self.comm.abort();
    }

    /// Ends the communicator in good order, as all ranks must.
    pub(super) fn close(self) -> Result<()> {
        self.comm.close()
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.comm.abort();
        } else {
            // There is nobody to tell; `close` is for those who want to know.
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
