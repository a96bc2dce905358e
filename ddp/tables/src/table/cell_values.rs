//! Values of a column of a file with types, to look at them rather than to train on them.

use crate::values::texts::Texts;

/// Values of consecutive rows.
#[derive(Debug)]
pub enum CellValues {
    /// Numbers that f64 holds.
    Numbers {
        /// `[n]`; NaN for missing ones.
        doubles: Vec<f64>,
        /// Whether they are stored as f32 or less.
        are_singles: bool,
    },
    /// All other values, in the notation of CSV files.
    Texts(Texts),
}
