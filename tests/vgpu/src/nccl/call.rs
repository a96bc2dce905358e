//! One call of an operation: it is checked, grouped, enqueued on its stream, and executed there through the hub.
use super::comm::{Comm, Reply, misuse};
use super::fault::{Fault, InBuffers, is_due};
use super::reduce::{Reduction, dtype_name, element_bytes};
use super::register;
use super::wire::{Words, kind};
use super::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SYSTEM_ERROR, UNHANDLED_CUDA_ERROR};
use crate::abi::lock;
use crate::code::{ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::counts;
use crate::mem::MEMORY;
use crate::order::Stamp;
use crate::report::note;
use crate::stream::{Outcome, Stream};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Value that an aborted operation leaves behind: a NaN in each floating-point type.
const POISON: u8 = 0xFF;

/// The operations of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Send,
    Receive,
}

const OPERATIONS: [(Operation, &str); 7] = [
    (Operation::AllReduce, "ncclAllReduce"),
    (Operation::Reduce, "ncclReduce"),
    (Operation::Broadcast, "ncclBroadcast"),
    (Operation::AllGather, "ncclAllGather"),
    (Operation::ReduceScatter, "ncclReduceScatter"),
    (Operation::Send, "ncclSend"),
    (Operation::Receive, "ncclRecv"),
];

impl Operation {
    /// The name of the function.
    pub(crate) fn name(self) -> &'static str {
        OPERATIONS[self as usize].1
    }

    fn is_collective(self) -> bool {
        !matches!(self, Operation::Send | Operation::Receive)
    }

    fn has_root(self) -> bool {
        matches!(self, Operation::Reduce | Operation::Broadcast)
    }

    fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter)
    }
}

/// Properties that all ranks must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) operation: Operation,
    /// Number of elements, as passed to the call.
    pub(crate) count: u64,
    /// `ncclDataType_t`
    pub(crate) dtype: u64,
    /// `ncclRedOp_t`, zero if nothing is reduced.
    pub(crate) op: u64,
    /// The root, or the peer of a send or receive; zero for other operations.
    pub(crate) root: u64,
    /// Index among the collectives of the communicator, from one; zero for a send or receive.
    pub(crate) number: u64,
    /// Whether the sum begins with the last rank.
    pub(crate) is_reversed: bool,
    /// Offset of its long buffer in a registered one, if all its buffers are registered.
    pub(crate) registered_at: Option<u64>,
}

/// Flag for [`Header::registered_at`] in the word of the reduction, with that offset above it.
const REGISTERED: u64 = 1 << 33;
const OFFSET_SHIFT: u32 = 34;
/// Offsets that differ by less count as equal; in practice all are multiples of it.
const OFFSET_UNIT: u64 = 4;

/// Flag for [`Header::is_reversed`] in the word of the reduction.
const REVERSED: u64 = 1 << 32;

impl Header {
    /// Encodes the header as words for the hub.
    pub(crate) fn to_words(self) -> Words {
        let mut op = if self.is_reversed { self.op | REVERSED } else { self.op };
        if let Some(offset) = self.registered_at {
            op |= REGISTERED | ((offset / OFFSET_UNIT) << OFFSET_SHIFT);
        }
        [self.operation as u64, self.count, self.dtype, op, self.root, self.number]
    }

    /// The inverse of [`Header::to_words`].
    pub(crate) fn from_words([operation, count, dtype, op, root, number]: Words) -> Header {
        let operation =
            OPERATIONS.get(operation as usize).map_or(Operation::AllReduce, |(operation, _)| *operation);
        let is_reversed = op & REVERSED != 0;
        let registered_at = (op & REGISTERED != 0).then_some((op >> OFFSET_SHIFT) * OFFSET_UNIT);
        let op = op & (REVERSED - 1);
        Header { operation, count, dtype, op, root, number, is_reversed, registered_at }
    }

    /// Describes the call.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} of {} {}", self.operation.name(), self.count, dtype_name(self.dtype));
        if self.operation.reduces() {
            let op = Reduction::from_code(self.op).map_or("?".into(), |op| format!("{op:?}"));
            text += &format!(", {op}");
        }
        if self.operation.has_root() {
            text += &format!(", root {}", self.root);
        }
        match self.operation {
            Operation::Send => text += &format!(" to rank {}", self.root),
            Operation::Receive => text += &format!(" from rank {}", self.root),
            _ => text += &format!(" (collective {})", self.number),
        }
        if let Some(offset) = self.registered_at {
            text += &format!(" in registered buffers at offset {offset}");
        }
        text
    }
}

/// The arguments of a function of NCCL.
pub(crate) struct Arguments {
    pub(crate) operation: Operation,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) count: usize,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    pub(crate) root: i32,
}

/// A checked call.
pub(crate) struct Call {
    comm: Arc<Comm>,
    stream: Arc<Stream>,
    header: Header,
    send: u64,
    send_bytes: u64,
    recv: u64,
    recv_bytes: u64,
    /// Whether a requested fault keeps sums from reaching its registered buffer.
    loses_its_sums: bool,
    /// Whether a requested fault keeps the rank from entering it.
    hangs: bool,
    /// Whether its stream was captured at the call, which is when NCCL looks.
    was_captured: bool,
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static GROUP: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static GROUP_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// Whether this thread is between ncclGroupStart and ncclGroupEnd.
pub(crate) fn in_group() -> bool {
    DEPTH.get() > 0
}

/// ncclGroupStart: opens a group.
pub(crate) fn group_start() {
    DEPTH.set(DEPTH.get() + 1);
}

/// ncclGroupEnd: the outermost call starts all calls of the group, or none if one of them was invalid. Returns `true` for the
/// outermost.
pub(crate) fn group_end() -> Result<bool, i32> {
    match DEPTH.get() {
        0 => return Err(misuse(INVALID_USAGE, "ncclGroupEnd: not in a group call.")),
        depth => DEPTH.set(depth - 1),
    }
    if in_group() {
        return Ok(false);
    }
    let calls = GROUP.take();
    match GROUP_ERROR.take() {
        0 => launch(calls).map(|()| true),
        error => Err(error),
    }
}

/// Checks a call and enqueues it on its stream, immediately or at the end of the group.
pub(crate) fn post(comm: Arc<Comm>, stream: Arc<Stream>, arguments: &Arguments) -> Result<(), i32> {
    let checked = Call::new(comm, stream, arguments);
    if !in_group() {
        // NCCL skips an operation without elements.
        return checked.and_then(|call| if arguments.count == 0 { Ok(()) } else { launch(vec![call]) });
    }
    match checked {
        Ok(call) if arguments.count > 0 => GROUP.with_borrow_mut(|group| group.push(call)),
        Ok(_) => (),
        Err(code) => {
            GROUP_ERROR.set(code);
            return Err(code);
        }
    }
    Ok(())
}

impl Call {
    fn new(comm: Arc<Comm>, stream: Arc<Stream>, arguments: &Arguments) -> Result<Call, i32> {
        let &Arguments { operation, send, recv, count, dtype, op, root } = arguments;
        let name = operation.name();
        comm.ensure_ready(name)?;
        let at = format!("{name} on rank {}", comm.rank);
        let size = element_bytes(dtype as u64)
            .ok_or_else(|| misuse(INVALID_ARGUMENT, &format!("{at}: unknown data type {dtype}")))?;
        if operation.reduces() && Reduction::from_code(op as u64).is_none() {
            return Err(misuse(INVALID_ARGUMENT, &format!("{at}: unknown reduction {op}")));
        }
        if !(0..comm.n_ranks as i32).contains(&root) {
            return Err(misuse(
                INVALID_ARGUMENT,
                &format!("{at}: root or peer {root} of {} ranks", comm.n_ranks),
            ));
        }
        if stream.device != comm.device {
            let what =
                format!("{at}: a stream of device {}, the communicator is on {}", stream.device, comm.device);
            return Err(misuse(INVALID_USAGE, &what));
        }
        let (own, all) = (count as u64 * size, count as u64 * size * comm.n_ranks);
        let is_root = comm.rank == root as u64;
        let (send_bytes, recv_bytes) = match operation {
            Operation::AllReduce => (own, own),
            Operation::Reduce => (own, if is_root { own } else { 0 }),
            Operation::Broadcast => (if is_root { own } else { 0 }, own),
            Operation::AllGather => (own, all),
            Operation::ReduceScatter => (all, own),
            Operation::Send => (own, 0),
            Operation::Receive => (0, own),
        };
        let header = Header {
            operation,
            count: count as u64,
            dtype: dtype as u64,
            op: if operation.reduces() { op as u64 } else { 0 },
            root: root as u64,
            number: 0,
            is_reversed: false,
            registered_at: None,
        };
        let was_captured = is_captured(&stream);
        let mut call = Call {
            comm,
            was_captured,
            stream,
            header,
            send,
            send_bytes,
            recv,
            recv_bytes,
            loses_its_sums: false,
            hangs: false,
        };
        call.check_buffers(size).map_err(|what| misuse(INVALID_ARGUMENT, &format!("{at}: {what}")))?;
        call.header.registered_at = call.registered_at();
        if call.header.registered_at.is_some() {
            counts::add("nccl_registered", 1);
        }
        Ok(call)
    }

    /// Offset for [`Header::registered_at`]; `None` for a send or receive, and for a call without elements.
    fn registered_at(&self) -> Option<u64> {
        if !self.header.operation.is_collective() || self.header.count == 0 {
            return None;
        }
        let at = |address, bytes| register::offset_of(&self.comm, address, bytes);
        // A broadcast reads only the root's input; on other ranks the output is the same buffer.
        let (send, recv) = (at(self.send, self.send_bytes)?, at(self.recv, self.recv_bytes)?);
        Some(if self.header.operation == Operation::ReduceScatter { send } else { recv })
    }

    /// Checks for null pointers, and the rules for in-place operations: the same buffer for operations that keep the length, the
    /// rank's own part of the long buffer for all-gather and reduce-scatter; no other overlap is allowed.
    fn check_buffers(&self, size: u64) -> Result<(), String> {
        for (name, address, bytes) in
            [("sendbuff", self.send, self.send_bytes), ("recvbuff", self.recv, self.recv_bytes)]
        {
            if bytes > 0 && address == 0 {
                return Err(format!("{name} argument is NULL"));
            }
            if bytes > 0 && !address.is_multiple_of(size) {
                return Err(format!("{name} is not aligned to its elements of {size} bytes"));
            }
        }
        let rank = self.comm.rank;
        let in_place = match self.header.operation {
            Operation::AllGather => self.send == self.recv + rank * self.send_bytes,
            Operation::ReduceScatter => self.recv == self.send + rank * self.recv_bytes,
            _ => self.send == self.recv,
        };
        let overlap = self.send < self.recv + self.recv_bytes && self.recv < self.send + self.send_bytes;
        if overlap && !in_place {
            return Err("sendbuff and recvbuff overlap, but not as an operation in place".into());
        }
        Ok(())
    }
}

fn is_captured(stream: &Stream) -> bool {
    lock(&stream.branch).is_some()
}

/// Enqueues calls on their streams: the calls of one communicator on one stream become one piece of work, so that sends and
/// receives of a group progress together. For a non-blocking communicator a thread does so later, as in NCCL: work that the
/// program enqueues on the stream in the meantime comes first.
fn launch(calls: Vec<Call>) -> Result<(), i32> {
    let mut batches: Vec<Vec<Call>> = Vec::new();
    if let Some(call) = calls.iter().find(|call| call.was_captured != is_captured(&call.stream)) {
        let name = call.header.operation.name();
        note(&format!(
            "nccl: a capture of the stream of {name} began or ended between the call and ncclGroupEnd"
        ));
        return Err(UNHANDLED_CUDA_ERROR);
    }
    for mut call in calls {
        let (is_in_graph, header) = (is_captured(&call.stream), call.header);
        let in_buffers = InBuffers {
            rank: call.comm.rank,
            bytes: call.send_bytes.max(call.recv_bytes),
            is_registered: header.registered_at.is_some(),
            is_captured: is_in_graph,
        };
        call.loses_its_sums = header.operation.reduces() && in_buffers.loses_sums();
        call.hangs = in_buffers.hangs();
        call.header.is_reversed = call.comm.n_ranks >= 4
            && is_in_graph
            && is_due(Fault::Order, call.comm.rank)
            && !std::env::var("NCCL_ALGO").is_ok_and(|of| ["ring", "tree"].contains(&&*of.to_lowercase()));
        let together = |batch: &&mut Vec<Call>| {
            Arc::ptr_eq(&batch[0].comm, &call.comm) && Arc::ptr_eq(&batch[0].stream, &call.stream)
        };
        match batches.iter_mut().find(together) {
            Some(batch) => batch.push(call),
            None => batches.push(vec![call]),
        }
    }
    if batches.iter().any(|calls| is_captured(&calls[0].stream) && is_due(Fault::Capture, calls[0].comm.rank))
    {
        note("nccl: a collective in a capture fails on request (VGPU_FAIL)");
        return Err(UNHANDLED_CUDA_ERROR);
    }
    // Each of them needs a thread if the communicator is non-blocking.
    counts::add("nccl_launches", batches.len() as u64);
    let (blocking, late): (Vec<_>, Vec<_>) =
        batches.into_iter().map(Batch::new).partition(|batch| batch.comm.is_blocking);
    blocking.into_iter().for_each(Batch::enqueue);
    if late.is_empty() { Ok(()) } else { enqueue_later(late) }
}

/// Starts the thread that enqueues work of non-blocking communicators on its streams, in the order of the calls.
fn enqueue_later(batches: Vec<Batch>) -> Result<(), i32> {
    batches.iter().for_each(|batch| batch.comm.begin_late());
    let work = move || {
        for batch in batches {
            let comm = batch.comm.clone();
            comm.wait_until_asked();
            batch.enqueue();
            comm.end_late();
        }
    };
    let thread = std::thread::Builder::new().name("nccl call".into()).spawn(work);
    Err(if thread.is_ok() { IN_PROGRESS } else { SYSTEM_ERROR })
}

/// The calls of one communicator on one stream. It owns everything it needs and may run many times from a graph.
struct Batch {
    comm: Arc<Comm>,
    calls: Vec<Call>,
    #[expect(dead_code, reason = "held so that the communicator can count what is queued")]
    queued: Arc<()>,
}

impl Batch {
    fn new(calls: Vec<Call>) -> Batch {
        let comm = calls[0].comm.clone();
        Batch { queued: comm.queued.clone(), comm, calls }
    }

    /// Enqueues the work on its stream.
    fn enqueue(self) {
        let stream = self.calls[0].stream.clone();
        if let Some(before) = self.comm.swap_stream(&stream)
            && !Arc::ptr_eq(&before, &stream)
            && lock(&stream.branch).is_none()
            && lock(&before.branch).is_none()
        {
            // NCCL runs the operations of a communicator in the order of the calls, on any streams. In a capture, that is the
            // order of the graph.
            stream.wait_for(&before.mark());
        }
        stream.run(self.calls[0].header.operation.name(), move |stamp: &Stamp| self.run(stamp));
    }

    fn run(&self, stamp: &Stamp) -> Outcome {
        for call in &self.calls {
            for (address, bytes, writes) in
                [(call.send, call.send_bytes, false), (call.recv, call.recv_bytes, true)]
            {
                stamp.access(address, bytes, writes)?;
                call.real(address, bytes)?;
            }
        }
        let Some(_running) = self.comm.enter() else { return self.give_up() };
        let mut requests = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let mut header = call.header;
            if header.operation.is_collective() {
                header.number = self.comm.next_collective();
                if call.hangs || self.is_stuck(&header) {
                    self.comm.wait_for_abort();
                    return self.give_up();
                }
            }
            let request = match header.operation {
                Operation::Send => kind::SEND,
                Operation::Receive => kind::RECEIVE,
                _ => kind::COLLECTIVE,
            };
            let data = match call.real(call.send, call.send_bytes)? {
                Some(from) => {
                    // SAFETY: real() found `send_bytes` bytes of memory of this device there; only kernels that race
                    // with this operation could change them, as on a device.
                    unsafe { std::slice::from_raw_parts(from, call.send_bytes as usize) }
                }
                None => &[],
            };
            requests.push(self.comm.request(request, &header.to_words(), data));
        }
        for (call, request) in self.calls.iter().zip(requests) {
            match self.comm.wait(request) {
                Reply::Done(_) if call.loses_its_sums => {}
                Reply::Done(data) => call.store(&data)?,
                Reply::Mistake(what) => {
                    self.comm.fail(INVALID_USAGE, what.clone());
                    return Err((LAUNCH_FAILED, format!("nccl: {what}")));
                }
                Reply::Aborted => return self.give_up(),
            }
        }
        Ok(())
    }

    /// Whether a fault was requested for this collective.
    fn is_stuck(&self, header: &Header) -> bool {
        let rank = self.comm.rank;
        let is_registered = header.registered_at.is_some() && is_due(Fault::Registered, rank);
        if is_registered || is_due(Fault::Step(header.number), rank) {
            let what = format!("rank {rank}: {} fails on request (VGPU_FAIL)", header.describe());
            self.comm.fail(SYSTEM_ERROR, what);
            return true;
        }
        is_due(Fault::Hang(header.number), rank)
    }

    /// Handles an aborted communicator: the work is over, and the contents of its output are undefined.
    fn give_up(&self) -> Outcome {
        for call in &self.calls {
            if let Some(to) = call.real(call.recv, call.recv_bytes)? {
                // SAFETY: real() found `recv_bytes` bytes of memory of this device there.
                unsafe { std::ptr::write_bytes(to, POISON, call.recv_bytes as usize) };
            }
        }
        Ok(())
    }
}

impl Call {
    /// Real address of a buffer; `None` for an empty one.
    fn real(&self, address: u64, bytes: u64) -> Result<Option<*mut u8>, (i32, String)> {
        if bytes == 0 {
            return Ok(None);
        }
        let memory = lock(&MEMORY);
        let found = memory.real(self.stream.device, address, bytes);
        let name = self.header.operation.name();
        found
            .map(Some)
            .map_err(|fault| (ILLEGAL_ADDRESS, format!("{name} on rank {}: {fault}", self.comm.rank)))
    }

    fn store(&self, data: &[u8]) -> Outcome {
        if let Some(to) = self.real(self.recv, self.recv_bytes)? {
            let n = data.len().min(self.recv_bytes as usize);
            // SAFETY: real() found `recv_bytes` bytes of memory of this device there, and `data` is our own.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, n) };
        }
        Ok(())
    }
}
