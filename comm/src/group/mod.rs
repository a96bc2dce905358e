//! Collectives: one contract for a single process, threads, processes joined with or without MPI, and GPUs.
//!
//! Every rank of a group calls the same collectives in the same order. Results have the same bits on every rank. If ranks enter
//! different collectives, types or lengths, all of them get the same error, which names the rank that differs, and the group
//! cannot be used afterward. (On several hosts the buffers of a [`Scope`] are not compared, since that would cost a message
//! each: [`Group::agree_lengths`] compares them once.)
//!
//! On a GPU a collective is asynchronous and ordered like any operation: after all work enqueued before it, and before all work
//! enqueued once the call has returned. Between GPUs (NCCL) types and lengths are never compared: agree on them by the host's
//! group, since ranks that differ hang or get garbage. The bits are the same on all ranks, but sums are not in rank order.
//!
//! In a reduce-scatter or all-gather the large buffer consists of one *shard* per rank, in rank order.

mod buffer;
mod envelope;
pub(crate) mod host_memory;
mod number;
mod pause;
mod program;
mod traffic;
mod waiting;
mod bytes;

mod lockstep;
mod host;
pub(crate) mod mpi;
pub(crate) mod star;
pub(crate) mod host_group;
mod by_mpi;
pub(crate) mod nccl;
mod send;
mod single;
mod scope;
mod threads;

use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer::{RawMut, RawRef};
use ddp_kernels::cuda::StreamKind;
use ddp_kernels::{Device, KernelError, Operand, TensorMut, TensorRef, ops};
use host_group::HostGroup;
pub use nccl::{NCCL_MEMORY_STEP_BYTES, registered_step_bytes};
use pause::Pause;
pub use scope::{OnLoan, Scope, Ticket};
pub(crate) use single::SingleGroup;
pub(crate) use threads::ThreadsMemory;
use traffic::Counter;
pub use traffic::Traffic;
use waiting::Waiting;

use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::{Call, CallKind, CommError, Departure, Rank, ReduceOp, Result};

/// One rank's end of the collectives over all ranks. Stays on the thread that created it.
#[derive(Debug)]
pub enum Group {
    /// A single rank: every collective is at most a copy.
    Single(SingleGroup),
    /// Ranks that exchange host memory: threads, or processes joined by MPI or without.
    Host(Box<HostGroup>),
    /// Ranks that each have a GPU, joined by NCCL; see [`World::connect_device`](crate::World::connect_device).
    Nccl(Box<nccl::NcclGroup>),
}

impl Group {
    /// This rank.
    pub fn rank(&self) -> Rank {
        match self {
            Group::Single(_) => Rank(0),
            Group::Host(group) => group.rank(),
            Group::Nccl(group) => group.rank(),
        }
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        match self {
            Group::Single(_) => 1,
            Group::Host(group) => group.world_size(),
            Group::Nccl(group) => group.world_size(),
        }
    }

    /// Whether all ranks share memory: gathering then costs a copy and no message.
    pub fn shares_memory(&self) -> bool {
        match self {
            Group::Single(_) => true,
            Group::Host(group) => group.shared.is_some(),
            Group::Nccl(_) => false,
        }
    }

    /// The name of the transport, for reports: `"single"`, `"threads"`, `"shared memory"`, `"mpi"`, `"tcp"` or `"nccl"`.
    pub fn transport(&self) -> &'static str {
        match self {
            Group::Single(_) => "single",
            Group::Host(group) => group.transport(),
            Group::Nccl(_) => "nccl",
        }
    }

    /// The traffic of this rank's collectives so far.
    pub fn traffic(&self) -> Traffic {
        self.counter().get()
    }

    /// Records this group's collectives in the watchdog's progress from now on.
    pub(crate) fn record_in(&self, progress: &Arc<Progress>) {
        self.counter().record_in(progress);
        if let Group::Host(group) = self
            && let (false, Some(shared)) = (group.is_of_threads(), &group.shared)
        {
            shared.borrow_mut().watch_losses(progress);
        }
    }

    /// Records this group's collectives in the trace of `recorder` while that is on.
    pub(crate) fn trace_in(&self, recorder: &Arc<Recorder>) {
        self.counter().trace_in(recorder);
    }

    /// Time that this rank has spent in collectives on the host so far: moving and reducing their elements, and waiting for other ranks.
    /// Work of [`Scope::progress`] while the rank computes does not count, nor does anything in a world of one.
    ///
    /// Collectives of NCCL are enqueued, so that theirs is the time to enqueue them.
    pub fn time_in_collectives(&self) -> Duration {
        self.counter().time()
    }

    /// Records that this rank runs `call`, or else waits, until the value is dropped.
    fn waiting(&self, call: Option<Call>, name: &'static str) -> Option<Waiting<'_>> {
        if let Group::Single(_) = self {
            return None;
        }
        Some(Waiting::new(self.counter(), call, name, self.world_size()))
    }

    fn counter(&self) -> &Counter {
        match self {
            Group::Single(group) => &group.traffic,
            Group::Host(group) => &group.traffic,
            Group::Nccl(group) => &group.traffic,
        }
    }

    /// Replaces each element of `buf` by its reduction over all ranks.
    ///
    /// `buf[i] <- buf_0[i] op buf_1[i] op ... op buf_{N-1}[i]`
    ///
    /// - `buf`: any shape, the same length and dtype on all ranks
    ///
    /// Waits for all ranks; on a GPU the compute stream waits, not the host. [`Scope::all_reduce`] does not wait.
    ///
    /// # Errors
    /// [`CommError::CallMismatch`] if ranks enter different lengths, types or operations; [`CommError::PeerLeft`] or
    /// [`CommError::Timeout`] if a rank does not enter; [`CommError::WrongMemory`] if the tensor is not on the group's device;
    /// [`CommError::NotReducible`] for bf16 and f16 by MPI; [`CommError::Mpi`] or [`CommError::Nccl`] if the library fails.
    ///
    /// Source: MPI 4.0, section 6.9.6, `MPI_Allreduce`; NCCL user guide, "Collective Operations", AllReduce.
    pub fn all_reduce(&self, op: ReduceOp, buf: TensorMut<'_>) -> Result<()> {
        let raw = self.writable("all_reduce", buf)?;
        let call = Call { kind: CallKind::AllReduce(op), dtype: raw.dtype, len: raw.len };
        // SAFETY: one buffer, in place, borrowed until this function returns.
        unsafe { self.run(call, raw.as_ref(), raw) }
    }

    /// Replaces `buf` by the buffer of rank `root`. Waits as [`Group::all_reduce`] does.
    ///
    /// - `buf`: any shape, the same length and dtype on all ranks
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`]; the errors of [`Group::all_reduce`].
    ///
    /// Source: MPI 4.0, section 6.4, `MPI_Bcast`; NCCL user guide, "Collective Operations", Broadcast.
    pub fn broadcast(&self, root: Rank, buf: TensorMut<'_>) -> Result<()> {
        if root.0 >= self.world_size() {
            let (rank, world_size) = (root.0, self.world_size());
            return Err(CommError::NoSuchRank { op: "broadcast", rank, world_size });
        }
        let raw = self.writable("broadcast", buf)?;
        let call = Call { kind: CallKind::Broadcast { root: root.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: one buffer, in place, borrowed until this function returns.
        unsafe { self.run(call, raw.as_ref(), raw) }
    }

    /// Reduces the ranks' inputs and gives shard `r` of the result to rank `r`. Waits as [`Group::all_reduce`] does.
    ///
    /// `output[i] = input_0[r*n + i] op ... op input_{N-1}[r*n + i]`
    ///
    /// - `input`: `world_size * n` elements; `output`: `n`, of the same dtype
    ///
    /// # Errors
    /// [`CommError::OutputLength`] if the lengths do not match; [`CommError::Kernel`] if the types differ; the errors of
    /// [`Group::all_reduce`].
    ///
    /// Source: MPI 4.0, section 6.10.1, `MPI_Reduce_scatter_block`; NCCL user guide, "Collective Operations", ReduceScatter.
    pub fn reduce_scatter(&self, op: ReduceOp, input: TensorRef<'_>, output: TensorMut<'_>) -> Result<()> {
        const OP: &str = "reduce_scatter";
        let world_size = self.world_size();
        if output.numel() * world_size != input.numel() {
            let (got, expected) = (output.numel(), input.numel() / world_size);
            return Err(CommError::OutputLength { op: OP, got, expected, world_size });
        }
        let (input, output) = self.pair(OP, input, output)?;
        let call = Call { kind: CallKind::ReduceScatter(op), dtype: output.dtype, len: output.len };
        // SAFETY: the lengths were checked, and both are borrowed until this function returns.
        unsafe { self.run(call, input, output) }
    }

    /// Reduces the ranks' buffers; rank `r` gets shard `r` of the result, in place. Waits as [`Group::all_reduce`] does.
    ///
    /// Afterwards the other shards of `buf` are unspecified.
    ///
    /// - `buf`: `world_size * n` elements
    ///
    /// Returns the errors of [`Group::reduce_scatter`].
    pub fn reduce_scatter_in_place(&self, op: ReduceOp, buf: TensorMut<'_>) -> Result<()> {
        let (buf, own) = self.own_shard("reduce_scatter_in_place", buf)?;
        let call = Call { kind: CallKind::ReduceScatter(op), dtype: buf.dtype, len: own.len };
        if self.takes_shards_in_place() {
            // SAFETY: the lengths were checked, the buffer is borrowed until this function returns; groups that share memory
            // read a shard before they write it, and NCCL takes shard `rank` in place.
            return unsafe { self.run(call, buf.as_ref(), own) };
        }
        let n_bytes = own.len * own.dtype.size_bytes();
        let mut copy = words(n_bytes);
        let output = RawMut { ptr: copy.as_mut_ptr().cast(), ..own };
        // SAFETY: the lengths were checked, and both are alive until this function returns.
        unsafe { self.run(call, buf.as_ref(), output) }?;
        // SAFETY: both hold `n_bytes`, and the copy does not overlap the buffer.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr().cast(), own.ptr, n_bytes) };
        Ok(())
    }

    /// Gathers the ranks' inputs in rank order. Waits as [`Group::all_reduce`] does.
    ///
    /// `output[r*n + i] = input_r[i]`
    ///
    /// - `input`: `n` elements; `output`: `world_size * n`, of the same dtype
    ///
    /// Returns the errors of [`Group::reduce_scatter`].
    ///
    /// Source: MPI 4.0, section 6.7, `MPI_Allgather`; NCCL user guide, "Collective Operations", AllGather.
    pub fn all_gather(&self, input: TensorRef<'_>, output: TensorMut<'_>) -> Result<()> {
        const OP: &str = "all_gather";
        let world_size = self.world_size();
        if input.numel() * world_size != output.numel() {
            let (got, expected) = (output.numel(), input.numel() * world_size);
            return Err(CommError::OutputLength { op: OP, got, expected, world_size });
        }
        let (input, output) = self.pair(OP, input, output)?;
        let call = Call { kind: CallKind::AllGather, dtype: input.dtype, len: input.len };
        // SAFETY: the lengths were checked, and both are borrowed until this function returns.
        unsafe { self.run(call, input, output) }
    }

    /// Gathers the ranks' shards in place: shard `r` of `buf` becomes the shard of rank `r`. Waits as [`Group::all_reduce`] does.
    ///
    /// - `buf`: `world_size * n` elements, this rank's shard at `rank * n`
    ///
    /// Returns the errors of [`Group::all_gather`].
    pub fn all_gather_in_place(&self, buf: TensorMut<'_>) -> Result<()> {
        let (buf, own) = self.own_shard("all_gather_in_place", buf)?;
        let call = Call { kind: CallKind::AllGather, dtype: buf.dtype, len: own.len };
        if self.takes_shards_in_place() {
            // SAFETY: the lengths were checked, the buffer is borrowed until this function returns; groups that share memory
            // copy the input elsewhere before they write the output, and NCCL takes shard `rank` in place.
            return unsafe { self.run(call, own.as_ref(), buf) };
        }
        let n_bytes = own.len * own.dtype.size_bytes();
        let mut copy = words(n_bytes);
        // SAFETY: both hold `n_bytes`, and the copy does not overlap the buffer.
        unsafe { std::ptr::copy_nonoverlapping(own.ptr.cast_const(), copy.as_mut_ptr().cast(), n_bytes) };
        let input = RawRef { ptr: copy.as_ptr().cast(), ..own.as_ref() };
        // SAFETY: the lengths were checked, and both are alive until this function returns.
        unsafe { self.run(call, input, buf) }
    }

    /// Whether a rank's own shard of a buffer may be the input or output of a collective over that buffer.
    fn takes_shards_in_place(&self) -> bool {
        self.shares_memory() || matches!(self, Group::Nccl(_))
    }

    /// The addresses of a buffer of one shard per rank, and of this rank's shard.
    fn own_shard(&self, op: &'static str, buf: TensorMut<'_>) -> Result<(RawMut, RawMut)> {
        let world_size = self.world_size();
        let buf = self.writable(op, buf)?;
        if !buf.len.is_multiple_of(world_size) {
            let (got, expected) = (buf.len, buf.len.next_multiple_of(world_size));
            return Err(CommError::OutputLength { op, got, expected, world_size });
        }
        let len = buf.len / world_size;
        let offset = self.rank().0 * len * buf.dtype.size_bytes();
        Ok((buf, RawMut { ptr: buf.ptr.wrapping_add(offset), len, ..buf }))
    }

    /// Waits until all ranks have entered it. Returns the errors of [`Group::all_reduce`].
    ///
    /// Over NCCL the compute stream waits, not the host: work enqueued after the barrier begins when all ranks' devices have
    /// finished the work enqueued before it. Use the barrier of the host's group to make the host wait.
    ///
    /// Source: MPI 4.0, section 6.3, `MPI_Barrier`.
    pub fn barrier(&self) -> Result<()> {
        if let Group::Nccl(group) = self {
            let _span = Call::BARRIER.span().entered();
            group.traffic.add(Call::BARRIER, self.world_size());
            return group.barrier();
        }
        let nothing = RawMut::NOTHING;
        // SAFETY: a barrier touches no elements.
        unsafe { self.run(Call::BARRIER, nothing.as_ref(), nothing) }
    }

    /// Waits on the host until `is_done` returns true; polls it with pauses of about 50 µs.
    ///
    /// Over NCCL this detects failing ranks: it also polls for errors of collectives, and the group's time limit holds. Both
    /// abort the communicator, so that the other ranks learn of it and the work in the stream ends. If aborting hangs too, the
    /// job ends with this rank's message, because nothing would release the buffers. Other groups only wait.
    ///
    /// # Errors
    /// The error of `is_done`; [`CommError::Nccl`]; [`CommError::DeviceTimeout`].
    ///
    /// Source: NCCL user guide, "Asynchronous errors and error handling".
    pub fn wait_until(
        &self,
        mut is_done: impl FnMut() -> std::result::Result<bool, KernelError>,
    ) -> Result<()> {
        let _waiting = self.waiting(None, "wait for the device");
        if let Group::Nccl(group) = self {
            return group.wait_until(is_done);
        }
        let mut pause = Pause::new();
        while !is_done()? {
            pause.once();
        }
        Ok(())
    }

    /// Leaves the collectives of a lost rank, before the state of this rank is read: over NCCL stops the updates that are enqueued and aborts the
    /// communicator, together with the other ranks. Waits for at most some seconds; other groups do nothing.
    #[doc(hidden)]
    pub fn leave_after_loss(&self) {
        if let Group::Nccl(group) = self {
            group.leave_after_loss();
        }
    }

    /// Whether a failure has ended the group, so that no further collective can succeed; only NCCL's can report it.
    pub fn is_broken(&self) -> bool {
        matches!(self, Group::Nccl(group) if group.is_broken())
    }

    /// Closes the group: `MPI_Finalize` or `ncclCommFinalize`, which wait for all ranks. Threads do not wait.
    ///
    /// # Errors
    /// [`CommError::Mpi`] or [`CommError::Nccl`] if the library fails to shut down.
    pub fn close(self) -> Result<()> {
        match self {
            Group::Single(_) => Ok(()),
            Group::Host(group) => group.leave(true),
            Group::Nccl(group) => group.close(),
        }
    }

    /// Ends this rank's part in the group without waiting for the others or the launcher: for a process that ends at once.
    pub(crate) fn leave(self) -> Result<()> {
        match self {
            Group::Host(group) => group.leave(false),
            group => group.close(),
        }
    }

    /// The address of a buffer that this group can exchange.
    fn writable(&self, op: &'static str, view: TensorMut<'_>) -> Result<RawMut> {
        self.check_memory(op, view.operand("buf"))?;
        Ok(RawMut::of(view, op)?)
    }

    /// The addresses of input and output, checked to have one type and to be on one device that this group exchanges.
    fn pair(
        &self,
        op: &'static str,
        input: TensorRef<'_>,
        output: TensorMut<'_>,
    ) -> Result<(RawRef, RawMut)> {
        let (a, b) = (input.operand("input"), output.operand("output"));
        if a.dtype != b.dtype {
            return Err(KernelError::DTypeMismatch { op, a: a.into(), b: b.into() }.into());
        }
        if a.device != b.device {
            return Err(KernelError::DeviceMismatch { op, a: a.into(), b: b.into() }.into());
        }
        self.check_memory(op, b)?;
        Ok((RawRef::of(input, op, "input")?, RawMut::of(output, op)?))
    }

    /// Checks that this group exchanges tensors of the operand's device.
    fn check_memory(&self, op: &'static str, operand: Operand) -> Result<()> {
        let takes = match self {
            Group::Single(_) => return Ok(()),
            Group::Nccl(group) => group.gpu().device(),
            _ => Device::Cpu,
        };
        if operand.device == takes {
            return Ok(());
        }
        Err(CommError::WrongMemory { op, operand: operand.into(), transport: self.transport(), takes })
    }

    /// Runs `calls`, which enters collectives. Between GPUs those are enqueued when it returns, all of them as one piece of work: NCCL
    /// launches one kernel for them, and enqueues them in one thread instead of one each. Nothing may read their results, wait for
    /// them or exchange anything else before that. Host groups run them one by one as usual.
    ///
    /// # Errors
    /// The error of `calls`; else the errors of [`Group::all_reduce`].
    ///
    /// # Panics
    /// If it is called by `calls` itself.
    ///
    /// Source: NCCL user guide, "Group Calls", "Aggregated Operations".
    pub fn together<R, E: From<CommError>>(
        &self,
        calls: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let Group::Nccl(group) = self else { return calls() };
        group.begin_together()?;
        let result = calls();
        let ended = group.end_together();
        let result = result?;
        ended?;
        Ok(result)
    }

    /// Runs one collective to completion.
    ///
    /// # Safety
    /// `input` is readable and `output` writable for the elements of `call` (see [`Call`]), nothing else accesses them before
    /// this returns, and they are the same if the call works in place, else disjoint.
    unsafe fn run(&self, call: Call, input: RawRef, output: RawMut) -> Result<()> {
        let _span = call.span().entered();
        self.counter().add(call, self.world_size());
        let _waiting = self.waiting(Some(call), call.name());
        match self {
            // SAFETY: as this function's.
            Group::Single(group) => unsafe { group.run(input, output) },
            // SAFETY: as this function's.
            Group::Host(group) => unsafe { group.run(call, input, output) },
            // SAFETY: as this function's: later accesses of the buffers come after this in the compute stream.
            Group::Nccl(group) => unsafe { group.run(call, input, output) },
        }
    }

    /// Starts a collective in place and returns its number: an all-reduce of `buf`, a reduce-scatter to this rank's shard `own`
    /// of it, or an all-gather from that shard.
    ///
    /// # Safety
    /// Nothing else accesses `buf` before the collective was waited for or given up, and `own` lies within it.
    unsafe fn start(&self, kind: CallKind, buf: RawMut, own: RawMut) -> Result<u64> {
        let (len, input, output) = match kind {
            CallKind::ReduceScatter(_) => (own.len, buf.as_ref(), own),
            CallKind::AllGather => (own.len, own.as_ref(), buf),
            _ => (buf.len, buf.as_ref(), buf),
        };
        let call = Call { kind, dtype: buf.dtype, len };
        let _span = call.span().entered();
        self.counter().add(call, self.world_size());
        let operation = self.counter().progress().map(|progress| progress.start(call));
        // Between GPUs the device's own times show when it runs.
        let recorder = self.counter().recorder().filter(|_| !matches!(self, Group::Nccl(_)));
        let begin = recorder.map(|_| Instant::now());
        let number = match self {
            Group::Single(_) => Ok(0),
            // SAFETY: as this function's.
            Group::Host(group) => unsafe { group.start(call, buf, input, output) },
            // SAFETY: as this function's; NCCL takes shard `rank` in place.
            Group::Nccl(group) => unsafe { group.start(call, input, output) },
        }?;
        self.counter().started(number, operation, (call.name(), call.n_bytes(self.world_size())), begin);
        Ok(number)
    }

    fn progress(&self) -> Result<()> {
        let Group::Host(group) = self else { return Ok(()) };
        let n_finished = group.progress()?;
        if self.counter().has_in_flight()
            && let Some(last) = n_finished.checked_sub(1)
        {
            self.counter().finished(Some(last));
        }
        Ok(())
    }

    /// Waits for the collective of this number and all before it; without a number, for all.
    fn wait(&self, number: Option<u64>) -> Result<()> {
        let _waiting = self.waiting(None, "wait");
        match self {
            Group::Single(_) => Ok(()),
            Group::Host(group) => group.wait(number),
            Group::Nccl(group) => group.wait(number),
        }?;
        self.counter().finished(number);
        Ok(())
    }

    /// `out = Σ x²` of a buffer in flight, or `out += Σ x²`, after the collectives started so far: on a GPU in the communication
    /// stream; elsewhere after waiting for them.
    ///
    /// Returns the number of the work, which waits for it as for a collective.
    fn sum_of_squares(&self, x: TensorRef<'_>, out: TensorMut<'_>, accumulate: bool) -> Result<u64> {
        self.check_memory("sum_of_squares", x.operand("x"))?;
        match self {
            Group::Nccl(group) => group
                .after_collectives(|| ops::sum_of_squares_on(StreamKind::Communication, x, out, accumulate)),
            _ => {
                self.wait(None)?;
                ops::sum_of_squares(x, out, accumulate)?;
                Ok(0)
            }
        }
    }

    /// Releases all buffers in flight; ends the job if that is impossible.
    fn give_up(&self, how: Departure) {
        match self {
            Group::Single(_) => {}
            Group::Host(group) => group.give_up(how),
            Group::Nccl(group) => {
                let rank = self.rank().0;
                group.give_up(CommError::PeerLeft { call: Call::BARRIER, rank, how });
            }
        }
    }
}

/// Zeroed memory for `n_bytes`, aligned for every type.
fn words(n_bytes: usize) -> Vec<u64> {
    vec![0; n_bytes.div_ceil(8)]
}
