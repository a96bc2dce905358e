//! Whether NCCL reads and writes the buffers of collectives in place.

/// Whether tensors that GPUs exchange are in memory that NCCL reads and writes in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RegisterBuffers {
    /// Never.
    Off,
    /// Where all ranks can, each with a GPU of its own.
    #[default]
    Auto,
    /// On all ranks, or it is an error.
    On,
}
