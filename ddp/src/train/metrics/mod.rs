//! Metrics of an evaluation, from the outputs of its batches to figures over all rows of all ranks.
//!
//! `totals` adds up a batch (`rows`) in one accumulator per kind of metric: `class_counts`, `class_distances`, `probabilities`, `target_sums` and
//! `scores`. Sums are f64 and merged over the ranks part by part, in the order of the parts.
//!
//! ```
//! use ddp::train::{MetricRequest, Task};
//!
//! let mut request = MetricRequest::defaults(Task::Classification);
//! assert_eq!(request.output_name(1), "1");
//! request.names = Some(vec!["cat".to_owned(), "dog".to_owned()]);
//! assert_eq!(request.output_name(1), "dog");
//! ```

pub mod request;
pub(crate) mod rows;
pub(crate) mod class_counts;
pub(crate) mod class_distances;
pub(crate) mod probabilities;
pub(crate) mod scores;
pub(crate) mod target_sums;
pub(crate) mod totals;
