//! Launch grids of kernels that work row by row: see `row_walk` in prelude.cuh.

use crate::cuda::Gpu;
use crate::cuda::launch::{BLOCK, Launch};

/// Resident threads per multiprocessor on a fully occupied device.
const RESIDENT_THREADS: usize = 2048;
/// Maximum number of blocks per multiprocessor: several times what is resident, so that the last ones leave little idle.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

/// A grid of blocks of [`BLOCK`] threads over rows of items, laid out so that the kernel needs no division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowTiles {
    /// Logarithm of the number of threads that share a row within a block.
    log2_width: u32,
    /// Number of blocks that share the rows.
    x: usize,
    /// Number of blocks that share the items of a row.
    y: usize,
}

impl RowTiles {
    /// Grid for `rows` rows of `items` items, one item per thread at a time.
    pub(crate) fn new(gpu: &Gpu, rows: usize, items: usize) -> Self {
        Self::on(gpu.info().multiprocessors as usize, rows, items)
    }

    fn on(multiprocessors: usize, rows: usize, items: usize) -> Self {
        let block = BLOCK as usize;
        let mut width = items.clamp(1, block).next_power_of_two();
        // With enough work, a thread takes several items of its row, so that their loads overlap.
        while width > 8
            && items / width < 4
            && rows.saturating_mul(width / 2) >= multiprocessors * RESIDENT_THREADS
        {
            width /= 2;
        }
        let blocks = multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let x = rows.div_ceil(block / width).clamp(1, blocks);
        let y = items.div_ceil(width).clamp(1, blocks.div_ceil(x));
        RowTiles { log2_width: width.ilog2(), x, y }
    }

    /// Sets the grid of `launch`.
    pub(crate) fn grid(self, launch: Launch) -> Launch {
        launch.grid_2d(self.x, self.y)
    }

    /// The kernel's argument `log2_width`.
    pub(crate) fn log2_width(self) -> u32 {
        self.log2_width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shapes_get_a_grid_that_fits() {
        for rows in [0, 1, 7, 128, 65_536, 1 << 33] {
            for items in [0, 1, 3, 10, 196, 5000, 1 << 34] {
                let tiles = RowTiles::on(132, rows, items);
                assert!(
                    tiles.x * tiles.y <= 2 * 132 * 16 && tiles.y <= 65_535,
                    "{rows} x {items}: {tiles:?}"
                );
                assert!(1 << tiles.log2_width <= BLOCK);
            }
        }
        // Narrow rows share a block, wide ones are shared by blocks.
        assert_eq!(RowTiles::on(132, 128, 3), RowTiles { log2_width: 2, x: 2, y: 1 });
        assert_eq!(RowTiles::on(132, 32, 16_384), RowTiles { log2_width: 8, x: 32, y: 64 });
    }
}
