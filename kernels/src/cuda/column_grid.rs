//! Grid of the kernels that sum columns: tiles of columns by shares of the rows.

use super::PARTIAL_SUMS;

/// Threads per block that sums columns: COLUMN_BLOCK in the kernels.
pub(crate) const COLUMN_BLOCK: usize = 512;
/// Number of blocks that fills any device: two per multiprocessor of the largest today.
const BLOCKS: usize = 256;
/// Counters in [`crate::cuda::Gpu`]'s scratch: its first 256 bytes.
pub(crate) const COUNTERS: usize = 64;
/// Rows per thread below which another block does not pay off.
const MIN_ROWS: usize = 2;

/// Split of a matrix's columns and rows, by the shape only, so that the order of sums is the same on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnGrid {
    /// Logarithm of the number of threads across the columns.
    pub(crate) log2_lanes: u32,
    /// Number of column tiles.
    pub(crate) tiles: usize,
    /// Number of row shares, one block each.
    pub(crate) shares: usize,
}

impl ColumnGrid {
    /// Split for threads that take `per_access` columns at a time, at least `least_lanes` of them next to each other unless the rows are
    /// narrower, and partial sums of `sum_bytes` per column.
    pub(crate) fn new(
        rows: usize,
        cols: usize,
        per_access: usize,
        least_lanes: usize,
        sum_bytes: usize,
    ) -> Self {
        let items = cols / per_access;
        let mut lanes = least_lanes.min(items.next_power_of_two());
        // More if there would be more tiles than counters.
        while items.div_ceil(lanes) > COUNTERS && lanes < 128 {
            lanes *= 2;
        }
        if items.div_ceil(lanes) > COUNTERS {
            return ColumnGrid {
                log2_lanes: least_lanes.ilog2(),
                tiles: items.div_ceil(least_lanes),
                shares: 1,
            };
        }
        let tiles = items.div_ceil(lanes);
        let places = PARTIAL_SUMS * 8 / sum_bytes / cols;
        let worthwhile = rows / (COLUMN_BLOCK / lanes * MIN_ROWS);
        let shares = (BLOCKS / tiles).min(places).min(worthwhile).max(1);
        ColumnGrid { log2_lanes: lanes.ilog2(), tiles, shares }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grid_covers_the_columns_and_has_its_counters_and_places() {
        for rows in [0, 1, 100, 8192, 65_536, 1 << 30] {
            for cols in [1, 3, 10, 31, 64, 1000, 1023, 2056, 4096, 8191, 20_480, 100_000, 1 << 24] {
                for (per_access, least_lanes, sum_bytes) in
                    [(1, 32, 4), (1, 32, 8), (2, 8, 8), (4, 8, 4), (8, 8, 4), (2, 16, 16), (4, 16, 16)]
                {
                    if cols % per_access != 0 {
                        continue;
                    }
                    let grid = ColumnGrid::new(rows, cols, per_access, least_lanes, sum_bytes);
                    let width = (1 << grid.log2_lanes) * per_access;
                    assert!(grid.tiles * width >= cols && (grid.tiles - 1) * width < cols);
                    assert!(width <= COLUMN_BLOCK * per_access && grid.log2_lanes <= 7);
                    if grid.shares > 1 {
                        assert!(grid.tiles <= COUNTERS && grid.shares * cols * sum_bytes <= PARTIAL_SUMS * 8);
                        assert!(grid.shares <= 65_535);
                    }
                }
            }
        }
        // Tall matrices fill the device; small ones skip the second stage.
        let grid = ColumnGrid::new(8192, 4096, 8, 8, 4);
        assert_eq!(grid, ColumnGrid { log2_lanes: 3, tiles: 64, shares: 4 });
        assert_eq!(
            ColumnGrid::new(65_536, 10, 1, 32, 4),
            ColumnGrid { log2_lanes: 4, tiles: 1, shares: 256 }
        );
        assert_eq!(ColumnGrid::new(128, 1024, 4, 8, 4).shares, 1);
    }
}
