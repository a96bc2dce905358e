//! Order in which an epoch visits the rows: a pure function of (seed, epoch, the data's size and row groups).
//!
//! ```
//! use ddp::data::order::epoch_order::RowOrder;
//! use ddp::kernels::KeyedPermutation;
//!
//! let (seed, epoch) = (7, 0);
//! let order = RowOrder::Rows(KeyedPermutation::new(100, seed, epoch));
//! let mut rows: Vec<usize> = (0..order.len()).map(|place| order.index(place)).collect();
//! assert!(!rows.is_sorted());
//! rows.sort_unstable();
//! assert!(rows.into_iter().eq(0..100));
//! ```

use std::ops::Range;
use std::sync::Arc;

use ddp_kernels::KeyedPermutation;

/// Bytes of neighboring rows that move together where the data have no row groups.
const BLOCK_BYTES: usize = 1 << 20;
/// Keeps the order of blocks apart from that of rows under the same seed.
const BLOCKS_KEY: u64 = 0x626c_6f63_6b73;
/// Windows of an epoch whose keys don't meet those of another one.
const MAX_WINDOWS: u64 = 1 << 32;

/// The order of an epoch's rows.
#[derive(Debug, Clone)]
pub enum RowOrder {
    /// File order, or any row at any place.
    Rows(KeyedPermutation),
    /// Blocks at any place, rows mixed within a window of blocks.
    Blocks(BlockOrder),
    /// Order of a [`Sampler`](crate::data::Sampler); its rows may be none of the data's.
    Sampled(Arc<[usize]>),
}

impl RowOrder {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            RowOrder::Rows(order) => order.len(),
            RowOrder::Blocks(order) => order.n_rows(),
            RowOrder::Sampled(rows) => rows.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the rows keep their own order.
    pub fn is_identity(&self) -> bool {
        matches!(self, RowOrder::Rows(order) if order.is_identity())
    }

    /// The row at position `i`.
    ///
    /// # Panics
    /// If `i` is not below [`len`](Self::len).
    #[inline]
    pub fn index(&self, i: usize) -> usize {
        match self {
            RowOrder::Rows(order) => order.index(i),
            RowOrder::Blocks(order) => order.index(i),
            RowOrder::Sampled(rows) => rows[i],
        }
    }

    /// Appends the rows at `positions` to `rows`.
    ///
    /// # Panics
    /// If a position is not below [`len`](Self::len).
    pub fn extend(&self, positions: Range<usize>, rows: &mut Vec<usize>) {
        match self {
            RowOrder::Rows(order) => order.extend(positions, rows),
            RowOrder::Blocks(order) => rows.extend(positions.map(|i| order.index(i))),
            RowOrder::Sampled(sampled) => rows.extend_from_slice(&sampled[positions]),
        }
    }
}

/// Division of rows into blocks, and of blocks into windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    /// Row at which each block begins, and the number of all rows.
    starts: Vec<usize>,
    /// Rows from which a window is full.
    window_rows: usize,
}

impl BlockLayout {
    /// Blocks of `n_rows` rows of `row_bytes`, in windows of `window_bytes`; `ends` has the row after each of the data's row
    /// groups, if there are any.
    pub fn new(n_rows: usize, row_bytes: usize, ends: Option<&[usize]>, window_bytes: usize) -> Self {
        let row_bytes = row_bytes.max(1);
        let starts = match ends {
            Some(ends) => std::iter::once(0).chain(ends.iter().copied()).collect(),
            None => {
                let block_rows = (BLOCK_BYTES / row_bytes).max(1);
                (0..n_rows).step_by(block_rows).chain([n_rows]).collect()
            }
        };
        BlockLayout { starts, window_rows: (window_bytes / row_bytes).max(1) }
    }

    /// Number of blocks.
    pub(crate) fn n_blocks(&self) -> usize {
        self.starts.len() - 1
    }
}

/// Blocks of rows in a new order; windows of consecutive blocks of that order, whose rows are mixed.
#[derive(Debug, Clone)]
pub struct BlockOrder {
    layout: Arc<BlockLayout>,
    blocks: KeyedPermutation,
    /// Position at which each block begins in the new order, and the number of all rows.
    block_starts: Vec<usize>,
    /// Position at which each window begins, and the number of all rows.
    window_starts: Vec<usize>,
    /// Block of the new order with which each window begins, and the number of blocks.
    window_blocks: Vec<usize>,
    rows: Vec<KeyedPermutation>,
}

/// Positions within one window.
#[derive(Debug)]
pub(crate) struct WindowSlice<'a> {
    /// The order within the window.
    pub(crate) order: &'a KeyedPermutation,
    /// Position at which the window begins.
    pub(crate) start: usize,
    /// The positions, from there.
    pub(crate) within: Range<usize>,
    /// Blocks of the new order that the window holds.
    pub(crate) blocks: Range<usize>,
}

impl BlockOrder {
    /// The order of epoch `epoch`.
    pub fn new(layout: &Arc<BlockLayout>, seed: u64, epoch: u64) -> Self {
        let n_blocks = layout.n_blocks();
        let blocks = KeyedPermutation::new(n_blocks, seed ^ BLOCKS_KEY, epoch);
        let (mut block_starts, mut window_starts, mut window_blocks) = (vec![0], vec![0], vec![0]);
        let mut position = 0;
        for place in 0..n_blocks {
            let block = blocks.index(place);
            position += layout.starts[block + 1] - layout.starts[block];
            block_starts.push(position);
            let is_full = position - window_starts[window_starts.len() - 1] >= layout.window_rows;
            if is_full || place + 1 == n_blocks {
                window_starts.push(position);
                window_blocks.push(place + 1);
            }
        }
        let rows = window_starts.windows(2).enumerate().map(|(window, ends)| {
            let key = epoch.wrapping_mul(MAX_WINDOWS).wrapping_add(window as u64);
            KeyedPermutation::new(ends[1] - ends[0], seed.rotate_left(17) ^ BLOCKS_KEY, key)
        });
        let rows = rows.collect();
        BlockOrder { layout: layout.clone(), blocks, block_starts, window_starts, window_blocks, rows }
    }

    fn n_rows(&self) -> usize {
        self.block_starts[self.block_starts.len() - 1]
    }

    /// Where each block begins in the new order, and its first row.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let n_blocks = self.layout.n_blocks();
        (0..n_blocks).map(|place| (self.block_starts[place], self.layout.starts[self.blocks.index(place)]))
    }

    /// `positions` window by window, in order.
    pub(crate) fn windows(&self, positions: Range<usize>) -> impl Iterator<Item = WindowSlice<'_>> {
        let first = if positions.is_empty() { self.rows.len() } else { self.window_of(positions.start) };
        (first..self.rows.len()).map_while(move |window| {
            let (start, end) = (self.window_starts[window], self.window_starts[window + 1]);
            let slice = positions.start.max(start)..positions.end.min(end);
            (slice.start < slice.end).then(|| WindowSlice {
                order: &self.rows[window],
                start,
                within: slice.start - start..slice.end - start,
                blocks: self.window_blocks[window]..self.window_blocks[window + 1],
            })
        })
    }

    /// The window that holds position `i`.
    pub fn window_of(&self, i: usize) -> usize {
        self.window_starts.partition_point(|&start| start <= i) - 1
    }

    fn index(&self, i: usize) -> usize {
        assert!(i < self.n_rows(), "position {i} of an order of {} rows", self.n_rows());
        let window = self.window_of(i);
        let start = self.window_starts[window];
        let position = start + self.rows[window].index(i - start);
        let of_window = self.window_blocks[window]..self.window_blocks[window + 1] + 1;
        let place =
            of_window.start + self.block_starts[of_window].partition_point(|&start| start <= position) - 1;
        self.layout.starts[self.blocks.index(place)] + position - self.block_starts[place]
    }

    /// The rows of window `window`, block by block; none beyond the last window.
    pub fn window_rows(&self, window: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let blocks = match self.window_blocks.get(window..window + 2) {
            Some(ends) => ends[0]..ends[1],
            None => 0..0,
        };
        blocks.map(|place| {
            let block = self.blocks.index(place);
            self.layout.starts[block]..self.layout.starts[block + 1]
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn indices(order: &RowOrder) -> Vec<usize> {
        (0..order.len()).map(|i| order.index(i)).collect()
    }

    proptest! {
        #[test]
        fn every_row_once_and_only_within_its_window(
            ends in prop::collection::btree_set(1usize..2000, 0..40),
            has_row_groups: bool,
            n_rows in 1usize..2000,
            window_rows in 1usize..700,
            seed: u64,
            epoch in 0u64..100,
        ) {
            let mut ends: Vec<usize> = ends.into_iter().filter(|&end| end < n_rows).collect();
            ends.push(n_rows);
            // Rows of 10 kB: about a hundred of them are a block of its own.
            let row_bytes = 10_000;
            let layout = BlockLayout::new(n_rows, row_bytes, has_row_groups.then_some(&ends[..]), window_rows * row_bytes);
            let order = BlockOrder::new(&Arc::new(layout), seed, epoch);
            let mut seen = vec![false; n_rows];
            for i in 0..n_rows {
                let row = order.index(i);
                prop_assert!(!std::mem::replace(&mut seen[row], true), "row {} twice", row);
                let window = order.window_of(i);
                prop_assert!(order.window_rows(window).any(|rows| rows.contains(&row)), "row {} of window {}", row, window);
            }
            let n_windows = order.window_starts.len() - 1;
            let in_windows: usize = (0..n_windows).flat_map(|window| order.window_rows(window)).map(|rows| rows.len()).sum();
            prop_assert_eq!(in_windows, n_rows);
            prop_assert_eq!(order.window_rows(n_windows).count(), 0);
        }
    }

    #[test]
    fn seeds_and_epochs_differ_and_blocks_move() {
        let layout = Arc::new(BlockLayout::new(10_000, 10_000, None, 500 * 10_000));
        let order = |seed, epoch| indices(&RowOrder::Blocks(BlockOrder::new(&layout, seed, epoch)));
        let base = order(1, 1);
        assert_eq!(base, order(1, 1));
        for other in [order(1, 2), order(2, 1), order(1, 0)] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < 20, "{same} rows at their old place");
        }
        let moved: usize = base.iter().enumerate().map(|(i, &row)| i.abs_diff(row)).sum();
        let mean = moved as f64 / 1e8;
        // 1/3 for a random order of rows; of about a hundred blocks the deviation is larger.
        assert!((mean - 1.0 / 3.0).abs() < 0.08, "{mean}");
        // Neighbors don't stay neighbors.
        let neighbors = base.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(neighbors < 100, "{neighbors}");
    }

    #[test]
    fn no_rows_are_no_order() {
        let order = RowOrder::Blocks(BlockOrder::new(&Arc::new(BlockLayout::new(0, 8, None, 64)), 1, 1));
        assert!(order.is_empty() && !order.is_identity());
    }
}
