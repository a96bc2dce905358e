//! Upper bounds of widths and counts: larger values are typing errors, and values within the bounds can't overflow.

/// Maximum number of features, units or classes.
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Maximum number of optimizer steps.
pub(super) const MAX_STEPS: u64 = 1_000_000_000_000;
/// Maximum number of epochs.
pub(super) const MAX_EPOCHS: u64 = 1_000_000_000;
