//! The program on virtual GPUs.

mod failures;
mod generations;
mod matmul_choices;
mod program;
mod registered_buffers;
#[cfg(feature = "mpi")]
mod traffic;
