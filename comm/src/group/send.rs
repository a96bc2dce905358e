//! Send and receive between two ranks with GPUs.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use super::buffer::{RawMut, RawRef};
use crate::{Call, CallKind, CommError, Rank, Result};

impl Group {
    /// Sends a tensor to another rank, which calls [`Group::receive`]. NCCL groups only; [`peer::copy`](crate::peer::copy) copies
    /// between any two ranks.
    ///
    /// Asynchronous: runs in the communication stream, ordered with the compute stream like the collectives. Two ranks that both
    /// send a large tensor before they receive deadlock.
    ///
    /// - `tensor`: any shape, on this rank's GPU
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`], also for this rank itself; [`CommError::NoSends`] for groups other than NCCL's;
    /// [`CommError::WrongMemory`]; [`CommError::Nccl`].
    ///
    /// Source: NCCL user guide, "Point To Point Communication Functions", `ncclSend`.
    pub fn send(&self, to: Rank, tensor: TensorRef<'_>) -> Result<()> {
        self.check_peer("send", to)?;
        self.check_memory("send", tensor.operand("tensor"))?;
        let raw = RawRef::of(tensor, "send", "tensor")?;
        let call = Call { kind: CallKind::Send { to: to.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: the tensor is borrowed until this function returns, and there is no output.
        unsafe { self.run(call, raw, RawMut::NOTHING) }
    }

    /// Receives a tensor that another rank sends. Asynchronous, with the errors of [`Group::send`].
    ///
    /// - `tensor`: the same length and dtype as on the sending rank, on this rank's GPU
    ///
    /// Source: NCCL user guide, "Point To Point Communication Functions", `ncclRecv`.
    pub fn receive(&self, from: Rank, tensor: TensorMut<'_>) -> Result<()> {
        self.check_peer("receive", from)?;
        let raw = self.writable("receive", tensor)?;
        let call = Call { kind: CallKind::Receive { from: from.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: the tensor is borrowed until this function returns, and there is no input.
        unsafe { self.run(call, RawMut::NOTHING.as_ref(), raw) }
    }

    fn check_peer(&self, op: &'static str, rank: Rank) -> Result<()> {
        if rank.0 >= self.world_size() || rank == self.rank() {
            return Err(CommError::NoSuchRank { op, rank: rank.0, world_size: self.world_size() });
        }
        match self {
            Group::Nccl(_) => Ok(()),
            _ => Err(CommError::NoSends { op, transport: self.transport() }),
        }
    }
}
