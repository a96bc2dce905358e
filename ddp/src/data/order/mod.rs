//! The order of samples: a pure function of seed, epoch and dataset size, and which of them each rank takes.
//!
//! [`epoch_order`] gives the row at each place of an epoch, by keyed permutations of rows or of blocks of rows,
//! [`Sampler`](crate::data::Sampler) is an order of a program's own, [`partition`] cuts a global batch over ranks and micro-batches, and [`epoch_proof`] shows that each row was used exactly once.

pub mod epoch_order;
pub mod epoch_proof;
pub mod partition;
pub(crate) mod sampler;
