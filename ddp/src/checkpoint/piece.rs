//! Which elements of which parameters a file of optimiser state holds.

use serde::{Deserialize, Serialize};

/// A part of a parameter in a file of optimiser state: elements `start..end` of the flattened parameter stand from `offset` on
/// in each state tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Name of the parameter.
    pub param: String,
    /// Its first element.
    pub start: usize,
    /// The element behind its last.
    pub end: usize,
    /// Place of the first element in the state tensors.
    pub offset: usize,
}

impl Piece {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}
