//! Which elements of which parameters a file of optimiser state holds.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::model::layout::ParamLayout;

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
    /// The pieces of a rank that owns these ranges of the flat buffer, where its state tensors are the ranges one after
    /// another, with the gaps between parameters that lie in them.
    pub fn of_ranges(layout: &ParamLayout, ranges: &[Range<usize>]) -> Vec<Piece> {
        let (mut pieces, mut offset) = (Vec::new(), 0);
        for range in ranges {
            for slot in layout.slots() {
                let (start, end) = (slot.start.max(range.start), slot.range().end.min(range.end));
                if start < end {
                    pieces.push(Piece {
                        param: slot.name.clone(),
                        start: start - slot.start,
                        end: end - slot.start,
                        offset: offset + start - range.start,
                    });
                }
            }
            offset += range.len();
        }
        pieces
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}
