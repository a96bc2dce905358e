//! Metrics of an evaluation, from the outputs of its batches to figures over all rows of all ranks.
//!
//! `totals` adds up a batch (`rows`) in one accumulator per kind of metric: `class_counts`, `class_distances`, `probabilities`, `target_sums` and
//! `scores`. Sums are f64 and merged over the ranks part by part, in the order of the parts.

pub(crate) mod class_counts;
pub(crate) mod class_distances;
pub(crate) mod probabilities;
pub mod request;
pub(crate) mod rows;
pub(crate) mod scores;
pub(crate) mod target_sums;
pub(crate) mod totals;
