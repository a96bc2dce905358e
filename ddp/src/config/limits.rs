//! Bounds of widths and counts: values beyond them are typing errors, and below them nothing overflows.

/// Most features, units or classes.
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Most optimiser steps.
pub(super) const MAX_STEPS: u64 = 1_000_000_000_000;
/// Most epochs.
pub(super) const MAX_EPOCHS: u64 = 1_000_000_000;
