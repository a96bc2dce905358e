//! Losses, their gradients and sums, each in one pass.

// Shared by all losses.
pub(crate) mod sums;
mod kernels;

// Losses of one predicted and one true value.
mod element_loss;
mod cpu;
mod cuda;
mod elementwise;
mod bce_with_logits;
mod focal_with_logits;
mod huber;
mod log_cosh;
mod mse;
mod poisson;
mod quantile;

// Losses of classes.
mod ordinal;
mod softmax_cross_entropy;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod threads_tests;

pub use bce_with_logits::bce_with_logits;
pub use focal_with_logits::focal_with_logits;
pub use huber::huber;
pub use log_cosh::log_cosh;
pub use mse::mse;
pub use ordinal::ordinal;
pub use poisson::poisson;
pub use quantile::quantile;
pub use softmax_cross_entropy::{CrossEntropyConfig, softmax_cross_entropy};
pub use sums::{LossSums, STEP_SUMS_EXTRA, STEP_SUMS_LEN, SumsOutput};

use crate::cuda::launch::Source;

/// The kernel files of all losses.
pub(crate) static SOURCES: [&Source; 5] = [
    &kernels::SOURCE,
    &kernels::WEIGHTED_SOURCE,
    &softmax_cross_entropy::SOURCE,
    &softmax_cross_entropy::WEIGHTED_SOURCE,
    &softmax_cross_entropy::FOCAL_SOURCE,
];
