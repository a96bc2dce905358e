//! Check of a GPU against the CPU: a model takes a few steps on made-up rows on both, and everything that a step computes is compared.
//!
//! The steps are those of training: rows by the [`Loader`](crate::data::loader::Loader), the trainer with its fused forms, chosen
//! matmuls and captured graphs. So there is no second list of operations, and what a run computes is checked.

mod difference;
mod limits;
mod twin;

pub use self::difference::Comparison;
pub use self::limits::limited;
pub use self::twin::{compare_with_cpu, operations};
