//! Ranges of parameters in a file of optimizer state.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::exchange::shard_plan::StateShard;
use crate::model::{ParamEntry, ParamLayout};

/// A range of a parameter in a file of optimizer state: elements `start..end` of the flattened parameter start at `offset` in
/// each state tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRange {
    /// Name of the parameter.
    pub param: String,
    /// First element.
    pub start: usize,
    /// End, exclusive.
    pub end: usize,
    /// Position of the first element in the state tensors.
    pub offset: usize,
}

impl ShardRange {
    /// Maps a rank's shards of the flat buffer to ranges of parameters. Gaps between parameters belong to no range, but occupy space
    /// in the state tensors.
    pub fn from_state(layout: &ParamLayout, own: &[StateShard]) -> Vec<ShardRange> {
        let of_one = |StateShard { flat, offset }: &StateShard| {
            let within = |entry: &ParamEntry| {
                let (first, last) = (flat.start.max(entry.start), flat.end.min(entry.range().end));
                (first < last).then(|| ShardRange {
                    param: entry.name.clone(),
                    start: first - entry.start,
                    end: last - entry.start,
                    offset: offset + first - flat.start,
                })
            };
            layout.entries().iter().filter_map(within).collect::<Vec<_>>()
        };
        own.iter().flat_map(of_one).collect()
    }

    /// [`ShardRange::from_state`] for flat ranges whose state is packed in order.
    pub fn from_ranges(layout: &ParamLayout, ranges: &[Range<usize>]) -> Vec<ShardRange> {
        let mut offset = 0;
        let packed = |flat: &Range<usize>| {
            let shard = StateShard { flat: flat.clone(), offset };
            offset += flat.len();
            shard
        };
        Self::from_state(layout, &ranges.iter().map(packed).collect::<Vec<_>>())
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::model::ModelSpec;

    #[test]
    fn ranges_follow_their_state_and_leave_out_gaps() {
        // The first parameter has 2 elements, the next ones begin at elements 16 and 32.
        let layout = ParamLayout::new(&ModelSpec::plain(&[3, 5, 2], Activation::Relu));
        let range = |param: &str, start: usize, end: usize, offset: usize| ShardRange {
            param: param.to_owned(),
            start,
            end,
            offset,
        };
        let own = [StateShard { flat: 1..18, offset: 1000 }, StateShard { flat: 32..33, offset: 7 }];
        let want = |offsets: [usize; 3]| {
            [
                range("layers.1.bias", 1, 2, offsets[0]),
                range("layers.1.weight", 0, 2, offsets[1]),
                range("layers.0.bias", 0, 1, offsets[2]),
            ]
        };
        assert_eq!(ShardRange::from_state(&layout, &own), want([1000, 1015, 7]));
        assert_eq!(ShardRange::from_ranges(&layout, &[1..18, 32..33]), want([0, 15, 17]));
    }
}
