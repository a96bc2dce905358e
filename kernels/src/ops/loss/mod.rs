//! Losses, their gradients and sums, each in one pass.

// Shared by all losses.
pub(crate) mod sums;
mod cuda;

// Losses of one predicted and one true value.
mod formulas;
mod cpu;
mod element;

// Losses of classes.
mod ordinal;
mod softmax_cross_entropy;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod threads_tests;

pub use element::{ElementLoss, element_loss, sum_losses};
pub use ordinal::ordinal;
pub use softmax_cross_entropy::{CrossEntropyConfig, softmax_cross_entropy};
pub use sums::{LossSums, STEP_SUMS_EXTRA, STEP_SUMS_LEN, SumsOutput};

use crate::cuda::launch::Source;

/// The kernel files of all losses.
pub(crate) static SOURCES: [&Source; 5] = [
    &cuda::SOURCE,
    &cuda::WEIGHTED_SOURCE,
    &softmax_cross_entropy::SOURCE,
    &softmax_cross_entropy::WEIGHTED_SOURCE,
    &softmax_cross_entropy::FOCAL_SOURCE,
];
