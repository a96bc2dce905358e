//! The program on virtual GPUs.

mod failures;
mod features;
mod generations;
mod matmul_choices;
mod program;
mod registered_buffers;
#[cfg(feature = "mpi")]
mod traffic;
