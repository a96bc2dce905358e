//! Rows of files that are read in pieces, as mapped memory for as long as an epoch's order draws single rows from them.
//!
//! A system call per row costs several times as much as its copy. Mapping the whole file would be faster still, but then the
//! process would hold all of it; so only the blocks of rows are mapped that were announced last.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use ddp_kernels::cpu::mapped_file::MappedFile;

/// Windows whose blocks stay mapped: the one from which rows are drawn, and the next one, whose pages belong to the process only from
/// then on. What another thread still draws from the one before is read.
const N_WINDOWS: u64 = 2;
/// Blocks of a window, beyond which none are mapped: a process can have a limited number of mappings.
pub(super) const MAX_BLOCKS: usize = 1024;

/// The blocks of the last windows that were announced.
#[derive(Debug, Default)]
pub(super) struct Windows(RwLock<Announced>);

#[derive(Debug, Default)]
struct Announced {
    /// Number of windows so far.
    n_windows: u64,
    blocks: Arc<Blocks>,
}

/// Blocks in the order of their rows.
#[derive(Debug, Default)]
pub(super) struct Blocks(Vec<Arc<Block>>);

/// Neighboring rows of a file.
#[derive(Debug)]
struct Block {
    rows: Range<usize>,
    bytes: MappedFile,
    /// Number of the window.
    window: u64,
}

impl Windows {
    /// Adds the next window, and forgets the oldest one.
    pub(super) fn announce(&self, blocks: impl IntoIterator<Item = (Range<usize>, MappedFile)>) {
        let mut announced = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let window = announced.n_windows;
        let is_kept = |block: &&Arc<Block>| block.window + N_WINDOWS > window;
        let mut all: Vec<_> = announced.blocks.0.iter().filter(is_kept).cloned().collect();
        all.extend(blocks.into_iter().map(|(rows, bytes)| Arc::new(Block { rows, bytes, window })));
        all.sort_by_key(|block| block.rows.start);
        *announced = Announced { n_windows: window + 1, blocks: Arc::new(Blocks(all)) };
    }

    /// The blocks as they are now, mapped until the value is dropped.
    pub(super) fn blocks(&self) -> Arc<Blocks> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).blocks.clone()
    }
}

impl Blocks {
    /// The bytes of each of `rows`, of `row_bytes`; `None` if some are in no block.
    pub(super) fn rows(&self, rows: &[usize], row_bytes: usize) -> Option<Vec<&[u8]>> {
        rows.iter().map(|&row| self.row(row, row_bytes)).collect()
    }

    fn row(&self, row: usize, row_bytes: usize) -> Option<&[u8]> {
        let after = self.0.partition_point(|block| block.rows.start <= row);
        let block = self.0[..after].last().filter(|block| row < block.rows.end)?;
        block.bytes.bytes().get((row - block.rows.start) * row_bytes..)?.get(..row_bytes)
    }

    /// The first row of a block with bytes that were not in its file when they were read.
    pub(super) fn first_missing(&self) -> Option<usize> {
        self.0.iter().find(|block| !block.bytes.is_intact()).map(|block| block.rows.start)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use ddp_kernels::cpu::row_copy::{FloatBits, RowCheck};

    use crate::formats::arrays::array::RawArray;
    use crate::formats::arrays::bytes::Bytes;
    use crate::formats::error::RowsError;
    use crate::values::element::RawType;

    const ROW_LEN: usize = 300;
    /// Bytes before the first row of a file.
    const OFFSET: usize = 76;

    /// Rows of the files in `folder`, read in pieces: element `i` of row `n` is `n + i / 512`.
    fn rows(folder: &tempfile::TempDir, n_rows: &[usize]) -> RawArray {
        let mut first = 0;
        let arrays = n_rows.iter().enumerate().map(|(file, &n)| {
            let mut bytes = vec![0xffu8; OFFSET];
            for row in first..first + n {
                bytes.extend((0..ROW_LEN).flat_map(|i| (row as f32 + i as f32 / 512.0).to_le_bytes()));
            }
            first += n;
            let path = folder.path().join(format!("rows{file}"));
            std::fs::write(&path, bytes).unwrap();
            // Out of the system's cache, so that the first reads have to wait for the disk.
            let file = std::fs::File::open(&path).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let bytes = Bytes::map(&path).unwrap();
            let array = RawArray::new(bytes, OFFSET as u64, RawType::F32, false, &[n, ROW_LEN]);
            array.unmapped().unwrap()
        });
        RawArray::concat(arrays.collect()).unwrap()
    }

    fn copied(array: &RawArray, rows: &[usize]) -> Result<Vec<f32>, RowsError> {
        let mut out = vec![0f32; rows.len() * ROW_LEN];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        assert_eq!(array.copy_rows(rows, bytes, RowCheck::Finite(FloatBits::F32))?, None);
        let mut doubles = vec![0f64; out.len()];
        array.rows_to_f64(rows, &mut doubles)?;
        assert!(out.iter().zip(&doubles).all(|(&a, &b)| f64::from(a) == b));
        Ok(out)
    }

    #[test]
    fn rows_in_and_out_of_windows_and_beside_files_are_those_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let array = rows(&folder, &[500, 300, 700]);
        let check = |rows: &[usize]| {
            let out = copied(&array, rows).unwrap();
            for (row, out) in rows.iter().zip(out.chunks(ROW_LEN)) {
                assert!(out.iter().enumerate().all(|(i, &value)| value == *row as f32 + i as f32 / 512.0));
            }
        };
        let all = 1500;
        let shuffled: Vec<usize> = (0..all).map(|i| i * 611 % all).collect();
        check(&shuffled);
        // The second window reaches over two files.
        for window in [[0..100, 1400..1500], [450..820, 1000..1001], [120..130, 900..950]] {
            array.announce(&window);
            check(&shuffled);
            let inside: Vec<usize> = shuffled
                .iter()
                .copied()
                .filter(|row| window.iter().any(|block| block.contains(row)))
                .collect();
            assert!(array.is_in_windows(&inside));
            check(&inside);
        }
        assert!(array.is_in_windows(&[819, 1000, 949]) && !array.is_in_windows(&[0]), "the last two windows");
        array.announce(&[200..300, 700..720]);
        assert!(!array.is_in_windows(&[1000]) && array.is_in_windows(&[129, 299]));
        assert!(!array.is_in_windows(&[299, 300]));
    }

    #[test]
    fn a_file_that_shrinks_under_a_window_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let array = rows(&folder, &[40, 400]);
        array.announce(std::slice::from_ref(&(0..440)));
        let path = folder.path().join("rows1");
        let len = std::fs::metadata(&path).unwrap().len();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        // Less than a page is missing: its rest reads as zeros, and only the length shows it.
        file.set_len(len - 8).unwrap();
        assert!(array.check_length().is_err_and(|error| error.to_string().contains("rows1")));
        file.set_len(len / 2).unwrap();
        assert!(copied(&array, &[439, 3]).is_err_and(|error| error.to_string().contains("rows1")));
        file.write_all_at(&[0], len - 1).unwrap();
        assert!(array.check_length().is_ok());
    }

    #[test]
    fn windows_of_very_many_blocks_are_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let array = rows(&folder, &[super::MAX_BLOCKS + 1]);
        array.announce(&(0..super::MAX_BLOCKS).map(|row| row..row + 1).collect::<Vec<_>>());
        assert!(array.is_in_windows(&[5, 0]));
        let array = rows(&folder, &[super::MAX_BLOCKS + 1]);
        array.announce(&(0..=super::MAX_BLOCKS).map(|row| row..row + 1).collect::<Vec<_>>());
        assert!(!array.is_in_windows(&[5]) && copied(&array, &[5, 0]).is_ok());
    }
}
