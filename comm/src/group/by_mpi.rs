//! All-reduces by MPI also where ranks share memory, so that benchmarks can compare the two.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use super::host_group::Transport;
use super::mpi::MpiTransport;
use crate::{Call, CallKind, CommError, ReduceOp, Result};

impl Group {
    /// Reduces `buf` as [`Group::all_reduce`] does between hosts: in chunks, each a message of MPI.
    ///
    /// # Errors
    /// [`CommError::NotJoinedByMpi`]; the errors of [`Group::all_reduce`].
    pub fn all_reduce_by_messages(&self, op: ReduceOp, buf: TensorMut<'_>) -> Result<()> {
        const OP: &str = "all_reduce_by_messages";
        let mpi = self.mpi(OP)?;
        let raw = self.writable(OP, buf)?;
        let call = Call { kind: CallKind::AllReduce(op), dtype: raw.dtype, len: raw.len };
        // SAFETY: one buffer, in place, borrowed until this function returns.
        unsafe { mpi.run(call, raw.as_ref(), raw) }
    }

    /// Reduces `input` into `output` by one `MPI_Allreduce`, without comparing the ranks' calls.
    ///
    /// - `input`, `output`: one length and dtype, the same on all ranks
    ///
    /// # Errors
    /// [`CommError::NotJoinedByMpi`]; [`CommError::OutputLength`]; the errors of
    /// [`Group::all_reduce`].
    ///
    /// Source: MPI 4.0, section 6.9.6.
    pub fn mpi_all_reduce(&self, op: ReduceOp, input: TensorRef<'_>, output: TensorMut<'_>) -> Result<()> {
        const OP: &str = "mpi_all_reduce";
        let mpi = self.mpi(OP)?;
        if input.numel() != output.numel() {
            let (got, expected, world_size) = (output.numel(), input.numel(), self.world_size());
            return Err(CommError::OutputLength { op: OP, got, expected, world_size });
        }
        let (input, output) = self.pair(OP, input, output)?;
        let call = Call { kind: CallKind::AllReduce(op), dtype: output.dtype, len: output.len };
        // SAFETY: `pair` checked types and memory, and above the lengths; both are borrowed until this function returns.
        unsafe { mpi.messages.borrow_mut().all_reduce_whole(call, input, output) }
    }

    fn mpi(&self, op: &'static str) -> Result<&MpiTransport> {
        let Group::Host(group) = self else { return Err(CommError::NotJoinedByMpi { op }) };
        let Transport::Mpi(mpi) = &group.transport else { return Err(CommError::NotJoinedByMpi { op }) };
        Ok(mpi)
    }
}
