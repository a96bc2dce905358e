//! Runs of several ranks: they train the same model as one, start together, and end or restart together.

mod environment;
mod launch;
mod launch_itself;
mod launch_start;
mod law;
mod lost_rank;
mod meeting;
mod mpi_start;
mod replicas;
