//! Check of a GPU against the CPU: a model takes a few steps on made-up rows on both, and everything that a step computes is compared.
//!
//! The steps are those of training: rows by the [`DataLoader`](crate::data::loader::DataLoader), the trainer with its fused forms, chosen
//! matmuls and captured graphs. So there is no second list of operations, and what a run computes is checked.
//!
//! ```
//! use ddp::config::Config;
//! use ddp::prelude::*;
//! use ddp::train::GraphMode;
//! use ddp::train::self_check::compare_with_cpu;
//!
//! let config = Config::load(None, &["model.hidden=[16]".to_owned()])?;
//! // `Device::Cuda(0)` checks the first GPU; the CPU computes the same bits as itself.
//! let results = compare_with_cpu(&config, Device::Cpu, GraphMode::Auto)?;
//! assert!(results.iter().any(|of| of.result == "gradient of layers.0.weight"));
//! assert!(results.iter().all(|of| of.agrees() && of.relative_difference == 0.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod difference;
mod limits;
mod twin;

pub use self::difference::Comparison;
pub use self::limits::limited;
pub use self::twin::{compare_with_cpu, operations};
