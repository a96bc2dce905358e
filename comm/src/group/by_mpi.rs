//! All-reduces by MPI also where ranks share memory, so that benchmarks can compare the two.

use ddp_kernels::{TensorMut, TensorRef};

use super::Group;
use crate::{Call, CallKind, CommError, ReduceOp, Result};

impl Group {
    /// Reduces `buf` as [`Group::all_reduce`] does between hosts: in chunks, each a message of MPI.
    ///
    /// # Errors
    /// [`CommError::NotJoinedByMpi`]; the errors of [`Group::all_reduce`].
    pub fn all_reduce_by_messages(&self, op: ReduceOp, buf: TensorMut<'_>) -> Result<()> {
        const OP: &str = "all_reduce_by_messages";
        if let Group::Mpi(group) = self {
            let raw = self.writable(OP, buf)?;
            let call = Call { kind: CallKind::AllReduce(op), dtype: raw.dtype, len: raw.len };
            // SAFETY: one buffer, in place, borrowed until this function returns.
            return unsafe { group.run_by_messages(call, raw.as_ref(), raw) };
        }
        Err(CommError::NotJoinedByMpi { op: OP })
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
        if let Group::Mpi(group) = self {
            if input.numel() != output.numel() {
                let (got, expected, world_size) = (output.numel(), input.numel(), self.world_size());
                return Err(CommError::OutputLength { op: OP, got, expected, world_size });
            }
            let (input, output) = self.pair(OP, input, output)?;
            let call = Call { kind: CallKind::AllReduce(op), dtype: output.dtype, len: output.len };
            // SAFETY: `pair` checked types and memory, and above the lengths; both are borrowed until this function returns.
            return unsafe { group.all_reduce_whole(call, input, output) };
        }
        Err(CommError::NotJoinedByMpi { op: OP })
    }
}
