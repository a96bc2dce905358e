//! Runs of several ranks: they train the same model as one, start together, and end or restart together.

mod environment;
#[cfg(feature = "mpi")]
mod launch;
mod launch_itself;
#[cfg(feature = "mpi")]
mod launch_start;
mod law;
#[cfg(feature = "mpi")]
mod lost_rank;
#[cfg(feature = "mpi")]
mod mpi_start;
mod replicas;
