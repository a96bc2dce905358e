//! Messages from one rank to another, and the shift along the ring of all ranks.

use ddp_kernels::{Shape, TensorMut, TensorRef};
use tracing::span::EnteredSpan;

use super::Group;
use super::buffer::{RawMut, RawRef};
use super::envelope::Envelope;
use super::host_group::Transport;
use super::waiting::Waiting;
use crate::{Call, CallKind, CommError, Rank, Result};

impl Group {
    /// Sends a tensor to another rank, which calls [`Group::receive`].
    ///
    /// In host memory it returns when the other rank has the tensor. Two ranks that both send before they receive are an error there, and so are
    /// shapes and types that differ, on both ranks. Over NCCL it is asynchronous: it runs in the communication stream, ordered with the
    /// compute stream like the collectives; nothing compares the tensors, and two ranks that both send a large one before they receive
    /// deadlock.
    ///
    /// - `tensor`: any shape, in the memory that the group exchanges
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`], [`CommError::OwnRank`]; [`CommError::MessageMismatch`]; [`CommError::NoReceiver`]; [`CommError::NoSends`]
    /// between hosts without MPI; [`CommError::WrongMemory`]; [`CommError::PeerLeft`], [`CommError::Timeout`]; [`CommError::Mpi`];
    /// [`CommError::Nccl`].
    ///
    /// Source: MPI 4.0, section 3.2, `MPI_Ssend`; NCCL user guide, "Point To Point Communication Functions", `ncclSend`.
    pub fn send(&self, to: Rank, tensor: TensorRef<'_>) -> Result<()> {
        self.check_peer("send", to)?;
        self.check_memory("send", tensor.operand("tensor"))?;
        let (raw, shape) = (RawRef::of(tensor, "send", "tensor")?, tensor.shape());
        let call = Call { kind: CallKind::Send { to: to.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: the tensor is borrowed until this function returns, and there is no output.
        unsafe { self.message(call, shape, raw, RawMut::NOTHING) }
    }

    /// Receives a tensor that another rank sends, with the errors of [`Group::send`].
    ///
    /// - `tensor`: the same shape and dtype as on the sending rank
    ///
    /// Source: MPI 4.0, section 3.2, `MPI_Recv`; NCCL user guide, "Point To Point Communication Functions", `ncclRecv`.
    pub fn receive(&self, from: Rank, tensor: TensorMut<'_>) -> Result<()> {
        self.check_peer("receive", from)?;
        let shape = tensor.shape();
        let raw = self.writable("receive", tensor)?;
        let call = Call { kind: CallKind::Receive { from: from.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: the tensor is borrowed until this function returns, and there is no input.
        unsafe { self.message(call, shape, RawMut::NOTHING.as_ref(), raw) }
    }

    /// Runs one end of a message.
    ///
    /// # Safety
    /// `input` is readable and `output` writable for the elements of `call`, and nothing else accesses them before this returns.
    unsafe fn message(&self, call: Call, shape: Shape, input: RawRef, output: RawMut) -> Result<()> {
        let Group::Host(group) = self else {
            // SAFETY: as this function's.
            return unsafe { self.run(call, input, output) };
        };
        let own = Envelope::new(call.kind, call.dtype, shape);
        let _observed = self.observe(call);
        let mut lockstep = match (&group.shared, &group.transport) {
            (Some(shared), _) => shared.borrow_mut(),
            // SAFETY: as this function's.
            (None, Transport::Mpi(mpi)) => return unsafe { mpi.message(own, input, output) },
            (None, _) => unreachable!("`check_peer` refuses messages by connections to rank 0"),
        };
        match call.kind {
            // SAFETY: as this function's.
            CallKind::Send { to } => unsafe { lockstep.send(to, own, input) },
            // SAFETY: as this function's.
            CallKind::Receive { from } => unsafe { lockstep.receive(from, own, output) },
            _ => unreachable!("a message is sent or received"),
        }
    }

    /// Counts and records a message until the result is dropped.
    fn observe(&self, call: Call) -> (EnteredSpan, Option<Waiting<'_>>) {
        let span = call.span().entered();
        self.counter().add(call, self.world_size());
        (span, self.waiting(Some(call), call.name()))
    }

    /// Sends `input` to the next rank, the last rank to rank 0, and receives that of the rank before into `output`. Waits as
    /// [`Group::all_reduce`] does. For ranks that share memory, and between GPUs.
    ///
    /// `output = input_{(rank + N - 1) mod N}`
    ///
    /// - `input`, `output`: the same length and dtype on all ranks
    ///
    /// # Errors
    /// [`CommError::NoSends`] for ranks joined by messages; [`CommError::OutputLength`] if the lengths do not match; the errors of
    /// [`Group::all_reduce`].
    ///
    /// Source: MPI 4.0, section 3.10, `MPI_Sendrecv`; NCCL user guide, "Point-to-point communication", Neighbor exchange.
    pub fn shift(&self, input: TensorRef<'_>, output: TensorMut<'_>) -> Result<()> {
        const OP: &str = "shift";
        let world_size = self.world_size();
        if input.numel() != output.numel() {
            let (got, expected) = (output.numel(), input.numel());
            return Err(CommError::OutputLength { op: OP, got, expected, world_size });
        }
        if let Group::Nccl(_) = self {
            let (next, before) = (self.rank().0 + 1, self.rank().0 + world_size - 1);
            return self.together(|| {
                self.send(Rank(next % world_size), input)?;
                self.receive(Rank(before % world_size), output)
            });
        }
        if !self.shares_memory() {
            return Err(CommError::NoSends { op: OP, transport: self.transport() });
        }
        let (input, output) = self.pair(OP, input, output)?;
        let call = Call { kind: CallKind::Shift, dtype: output.dtype, len: output.len };
        // SAFETY: the lengths were checked, and both are borrowed until this function returns.
        unsafe { self.run(call, input, output) }
    }

    fn check_peer(&self, op: &'static str, rank: Rank) -> Result<()> {
        if rank == self.rank() {
            return Err(CommError::OwnRank { op, rank: rank.0 });
        }
        if rank.0 >= self.world_size() {
            return Err(CommError::NoSuchRank { op, rank: rank.0, world_size: self.world_size() });
        }
        match self {
            Group::Host(group) if group.is_star() => {
                Err(CommError::NoSends { op, transport: self.transport() })
            }
            _ => Ok(()),
        }
    }
}
