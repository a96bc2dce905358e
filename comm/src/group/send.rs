//! From one rank to another, between GPUs.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use super::buffer::{RawMut, RawRef};
use crate::{Call, CallKind, CommError, Rank, Result};

impl Group {
    /// Sends a tensor to another rank, which receives it. Between GPUs alone ([`peer::copy`](crate::peer::copy) copies
    /// between any two ranks).
    ///
    /// In the order of the compute stream, as the collectives; two ranks that send each other large tensors first and
    /// receive then wait for each other for ever.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`], also for this rank itself; [`CommError::NoSends`] for other groups than NCCL's; else as
    /// [`Group::all_reduce`].
    pub fn send(&self, to: Rank, tensor: TensorRef<'_>) -> Result<()> {
        self.check_peer("send", to)?;
        self.check_memory("send", tensor.operand("tensor"))?;
        let raw = RawRef::of(tensor, "send", "tensor")?;
        let call = Call { kind: CallKind::Send { to: to.0 }, dtype: raw.dtype, len: raw.len };
        // SAFETY: the tensor is borrowed until this function returns, and there is no output.
        unsafe { self.run(call, raw, RawMut::NOTHING) }
    }

    /// Receives a tensor that another rank sends, of the same length and type; see [`Group::send`].
    ///
    /// # Errors
    /// As [`Group::send`].
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
