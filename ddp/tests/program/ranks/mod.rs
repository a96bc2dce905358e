//! Runs of several ranks: they train the same model as one, start together, and end or restart together.

#[cfg(feature = "mpi")]
mod launch;
#[cfg(feature = "mpi")]
mod launch_start;
mod law;
#[cfg(feature = "mpi")]
mod lost_rank;
#[cfg(feature = "mpi")]
mod mpi_start;
mod replicas;
