//! An array of rows over one or several files.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ddp_kernels::Element;
use ddp_kernels::cpu::row_copy::{self, RowCheck};

use crate::formats::arrays::bytes::Bytes;
use crate::formats::arrays::windows::{Blocks, MAX_BLOCKS, Windows};
use crate::formats::error::{CellProblem, Result, RowsError};
use crate::values::element::{RawType, differences, numbers_to_i64, to_f32, to_f64, to_i64, to_text};

/// Bytes of rows that are read at a time where they are converted.
const READ_BYTES: usize = 1 << 20;

/// Rows of equal size, contiguous in each of their files.
#[derive(Debug, Clone)]
pub struct RawArray {
    /// Type of an element, the same in all files.
    pub raw: RawType,
    /// Shape of a row: none for single numbers.
    pub row_dims: Vec<usize>,
    files: Vec<FileRows>,
    /// Row at which each file begins, and the number of all rows.
    starts: Vec<usize>,
    /// Announced rows of files that are read in pieces.
    windows: Arc<Windows>,
}

/// The rows in one file.
#[derive(Debug, Clone)]
struct FileRows {
    bytes: Bytes,
    /// Where the first row begins.
    offset: u64,
    is_big_endian: bool,
}

impl RawArray {
    /// The array of shape `dims` that begins at `offset` of `bytes`. The reader of the header has checked that it fits.
    pub fn new(bytes: Bytes, offset: u64, raw: RawType, is_big_endian: bool, dims: &[usize]) -> RawArray {
        let n_rows = dims.first().copied().unwrap_or(0);
        let files = vec![FileRows { bytes, offset, is_big_endian }];
        let row_dims = dims.get(1..).unwrap_or_default().to_vec();
        RawArray { raw, row_dims, files, starts: vec![0, n_rows], windows: Arc::default() }
    }

    /// Rows of no elements, next to the rows of the file `path`.
    pub fn empty_rows(n_rows: usize, path: &Path) -> RawArray {
        RawArray::new(Bytes::memory(Vec::new(), path), 0, RawType::F32, false, &[n_rows, 0])
    }

    /// Joins the rows of several arrays in this order.
    pub fn concat(arrays: Vec<RawArray>) -> Result<RawArray> {
        let mut arrays = arrays.into_iter();
        let mut all = arrays.next().expect("there is a first shard");
        for other in arrays {
            if (all.raw, &all.row_dims) != (other.raw, &other.row_dims) {
                let kind = |array: &RawArray| format!("rows of {:?} {}", array.row_dims, array.raw.name());
                return Err(RowsError::ShardsDiffer {
                    first: all.path().to_owned(),
                    other: other.path().to_owned(),
                    difference: format!("{} against {}", kind(&all), kind(&other)),
                });
            }
            let n = all.n_rows();
            // The number of empty rows is unlimited; such arrays are refused later.
            all.starts.extend(other.starts[1..].iter().map(|&end| n.saturating_add(end)));
            all.files.extend(other.files);
        }
        Ok(all)
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.row_dims.iter().product()
    }

    fn row_bytes(&self) -> usize {
        self.row_len() * self.raw.size_bytes()
    }

    /// Bytes of all rows.
    pub fn size_bytes(&self) -> u64 {
        self.n_rows() as u64 * self.row_bytes() as u64
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        self.files[0].bytes.path()
    }

    /// The same rows, read in pieces instead of mapped.
    pub fn unmapped(self) -> Result<Self> {
        let unmap = |file: FileRows| Ok(FileRows { bytes: file.bytes.unmapped()?, ..file });
        Ok(RawArray { files: self.files.into_iter().map(unmap).collect::<Result<_>>()?, ..self })
    }

    /// Whether rows are read in pieces.
    pub fn is_read(&self) -> bool {
        self.files.iter().any(|file| matches!(file.bytes, Bytes::Read { .. }))
    }

    /// Bytes of memory that are held until the array is dropped.
    pub fn resident_bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes.resident_bytes()).sum()
    }

    /// The file that holds row `row`, and the row's number in it.
    #[inline]
    fn file_of(&self, row: usize) -> (&FileRows, usize) {
        let index = match self.files.len() {
            1 => 0,
            _ => self.starts.partition_point(|&start| start <= row) - 1,
        };
        (&self.files[index], row - self.starts[index])
    }

    /// File and row, for messages.
    pub fn place(&self, row: usize) -> String {
        let (file, row) = self.file_of(row);
        format!("data file `{}`, row {row}", file.bytes.path().display())
    }

    /// Announces the rows of the window after the one that was announced before, as ranges of neighboring rows: the system
    /// starts to read them, and where files are read in pieces, single rows of the last windows are copied from mapped memory.
    pub fn announce(&self, window: &[Range<usize>]) {
        if !self.is_read() || self.row_bytes() == 0 {
            return;
        }
        let mut blocks = Vec::new();
        for of_block in window {
            let mut start = of_block.start;
            while start < of_block.end {
                let (file, offset) = self.place_of(start);
                let file_end = self.starts[self.starts.partition_point(|&begin| begin <= start)];
                let rows = start..of_block.end.min(file_end);
                let len = (rows.len() * self.row_bytes()) as u64;
                file.bytes.read_ahead(offset, len);
                start = rows.end;
                if window.len() <= MAX_BLOCKS {
                    blocks.extend(file.bytes.map_range(offset, len).map(|bytes| (rows, bytes)));
                }
            }
        }
        self.windows.announce(blocks);
    }

    /// Whether rows are copied from mapped memory of the last windows.
    #[cfg(test)]
    pub(super) fn is_in_windows(&self, rows: &[usize]) -> bool {
        self.windows.blocks().rows(rows, self.row_bytes()).is_some()
    }

    /// Starts reading mapped files into the system's cache, in order; returns at once.
    pub fn read_into_cache(&self) {
        self.files.iter().for_each(|file| file.bytes.read_into_cache());
    }

    /// Fails if a file was truncated.
    pub fn check_length(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.bytes.check_length())
    }

    /// Fails if a page of a file was missing while rows were read.
    pub fn check(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.bytes.check())
    }

    /// Calls `take` for each row with its position in `rows`, its bytes, and whether they are big-endian.
    ///
    /// # Panics
    /// If a row does not exist; callers check the numbers.
    pub fn for_each(&self, rows: &[usize], mut take: impl FnMut(usize, &[u8], bool)) -> Result<()> {
        let row_bytes = self.row_bytes();
        if !self.is_read() {
            for (n, &row) in rows.iter().enumerate() {
                let (file, row) = self.file_of(row);
                let bytes = file.bytes.as_slice().expect("mapped or in memory");
                let start = file.offset as usize + row * row_bytes;
                take(n, &bytes[start..start + row_bytes], file.is_big_endian);
            }
            return Ok(());
        }
        let is_big_endian = |row| self.file_of(row).0.is_big_endian;
        let blocks = self.windows.blocks();
        if let Some(mapped) = blocks.rows(rows, row_bytes) {
            mapped
                .iter()
                .zip(rows)
                .enumerate()
                .for_each(|(n, (bytes, &row))| take(n, bytes, is_big_endian(row)));
            return self.check_blocks(&blocks);
        }
        let chunk_rows = (READ_BYTES / row_bytes.max(1)).max(1);
        let mut scratch = Vec::new();
        for (chunk, rows) in rows.chunks(chunk_rows).enumerate() {
            scratch.resize(rows.len() * row_bytes, 0);
            self.read_rows(rows, &mut scratch)?;
            for (n, &row) in rows.iter().enumerate() {
                take(chunk * chunk_rows + n, &scratch[n * row_bytes..][..row_bytes], is_big_endian(row));
            }
        }
        Ok(())
    }

    /// Copies rows to `out` without conversion and returns the position in `rows` of the first one with a value that `check`
    /// rejects.
    pub fn copy_rows(&self, rows: &[usize], out: &mut [u8], check: RowCheck) -> Result<Option<usize>> {
        debug_assert!(!self.needs_swap());
        let row_bytes = self.row_bytes();
        let row_of = |n: usize| {
            let (file, row) = self.file_of(rows[n]);
            let start = file.offset as usize + row * row_bytes;
            file.bytes.as_slice().map(|bytes| &bytes[start..start + row_bytes])
        };
        let wrong = if let [FileRows { bytes, offset, .. }] = &self.files[..]
            && let Some(bytes) = bytes.as_slice()
        {
            let bytes = &bytes[*offset as usize..];
            row_copy::copy_rows(
                #[inline(always)]
                |n| &bytes[rows[n] * row_bytes..][..row_bytes],
                row_bytes,
                out,
                check,
            )
        } else if self.files.iter().all(|file| file.bytes.as_slice().is_some()) {
            row_copy::copy_rows(
                #[inline(always)]
                |n| row_of(n).expect("checked above"),
                row_bytes,
                out,
                check,
            )
        } else {
            let blocks = self.windows.blocks();
            if let Some(mapped) = blocks.rows(rows, row_bytes) {
                let wrong = row_copy::copy_rows(|n| mapped[n], row_bytes, out, check);
                self.check_blocks(&blocks)?;
                wrong
            } else {
                self.read_rows(rows, out)?;
                row_copy::first_wrong(out, row_bytes, check)
            }
        };
        self.check()?;
        Ok(wrong)
    }

    /// Fails if bytes of a block were not in its file.
    fn check_blocks(&self, blocks: &Blocks) -> Result<()> {
        match blocks.first_missing() {
            Some(row) => Err(RowsError::Changed { path: self.file_of(row).0.bytes.path().to_owned() }),
            None => Ok(()),
        }
    }

    /// Reads rows from files, all that a disk has to deliver at a time.
    fn read_rows(&self, rows: &[usize], out: &mut [u8]) -> Result<()> {
        let row_bytes = self.row_bytes();
        if row_bytes == 0 {
            return Ok(());
        }
        let mut not_cached = Vec::new();
        let mut n = 0;
        while n < rows.len() {
            // Contiguous rows of one file are read together.
            let mut end = n + 1;
            while end < rows.len() && rows[end] == rows[end - 1] + 1 && !self.starts.contains(&rows[end]) {
                end += 1;
            }
            let (file, offset) = self.place_of(rows[n]);
            if !file.bytes.read_cached(offset, &mut out[n * row_bytes..end * row_bytes]) {
                not_cached.push(n..end);
            }
            n = end;
        }
        for run in not_cached {
            let (file, offset) = self.place_of(rows[run.start]);
            file.bytes.read_at(offset, &mut out[run.start * row_bytes..run.end * row_bytes])?;
        }
        Ok(())
    }

    /// The file that holds row `row`, and where the row begins in it.
    fn place_of(&self, row: usize) -> (&FileRows, u64) {
        let (file, first) = self.file_of(row);
        (file, file.offset + first as u64 * self.row_bytes() as u64)
    }

    /// The numbers of rows as they are, little-endian.
    pub fn numbers(&self, rows: &[usize]) -> Result<Vec<u8>> {
        let mut out = vec![0; rows.len() * self.row_bytes()];
        if !self.needs_swap() {
            self.copy_rows(rows, &mut out, RowCheck::None)?;
            return Ok(out);
        }
        let (row_bytes, size) = (self.row_bytes(), self.raw.size_bytes());
        self.for_each(rows, |n, bytes, is_big_endian| {
            let out = &mut out[n * row_bytes..][..row_bytes];
            out.copy_from_slice(bytes);
            if is_big_endian {
                out.chunks_exact_mut(size).for_each(<[u8]>::reverse);
            }
        })?;
        self.check()?;
        Ok(out)
    }

    /// Writes rows to `out` as f32.
    pub fn rows_to_f32(&self, rows: &[usize], out: &mut [f32]) -> Result<()> {
        if self.raw == RawType::F32 && !self.needs_swap() {
            return self.copy_rows(rows, bytemuck::cast_slice_mut(out), RowCheck::None).map(|_| ());
        }
        let len = self.row_len();
        self.for_each(rows, |n, bytes, big| to_f32(self.raw, big, bytes, &mut out[n * len..][..len]))?;
        self.check()
    }

    /// Writes rows to `out` as f64.
    pub fn rows_to_f64(&self, rows: &[usize], out: &mut [f64]) -> Result<()> {
        let len = self.row_len();
        self.for_each(rows, |n, bytes, big| to_f64(self.raw, big, bytes, &mut out[n * len..][..len]))?;
        self.check()
    }

    /// Writes rows minus `origin`, one number per element of a row, to `out` as f64.
    pub fn rows_less(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<()> {
        let len = self.row_len();
        self.for_each(rows, |n, bytes, big| {
            differences(self.raw, big, bytes, origin, &mut out[n * len..][..len])
        })?;
        self.check()
    }

    /// Calls `take` with each row as text, with its position in `rows`.
    ///
    /// # Errors
    /// [`RowsError::Malformed`] for one that is no text: with replaced characters, labels that differ would be one class.
    pub fn rows_to_text(&self, rows: &[usize], mut take: impl FnMut(usize, &str)) -> Result<()> {
        let mut fault = None;
        self.for_each(rows, |n, bytes, big| match to_text(self.raw, big, bytes) {
            Some(text) => take(n, &text),
            None => drop(fault.get_or_insert(rows[n])),
        })?;
        self.check()?;
        let Some((file, row)) = fault.map(|row| self.file_of(row)) else { return Ok(()) };
        Err(RowsError::Malformed {
            path: file.bytes.path().to_owned(),
            format: "NumPy",
            reason: format!("the label of row {row} is {}", CellProblem::NotUtf8),
            hint: "decode the labels before they are saved: numpy.char.decode(labels, 'latin-1')",
        })
    }

    /// Single integers as texts, if i64 does not hold all of them; other arrays as they are. Labels that are hashes keep all digits so.
    pub fn beyond_i64_as_text(self) -> Result<Self> {
        const DIGITS: usize = 20;
        if self.raw != RawType::U64 || self.row_len() != 1 {
            return Ok(self);
        }
        let value = |bytes: &[u8], is_big_endian: bool| {
            let word = bytes.first_chunk().map_or([0; 8], |word| *word);
            if is_big_endian { u64::from_be_bytes(word) } else { u64::from_le_bytes(word) }
        };
        let mut is_beyond = false;
        let rows: Vec<usize> = (0..self.n_rows()).collect();
        self.for_each(&rows, |_, bytes, big| is_beyond |= i64::try_from(value(bytes, big)).is_err())?;
        self.check()?;
        if !is_beyond {
            return Ok(self);
        }
        let mut texts = Vec::new();
        for rows in self.starts.windows(2) {
            let mut of_file = Vec::new();
            let rows: Vec<usize> = (rows[0]..rows[1]).collect();
            self.for_each(&rows, |_, bytes, big| {
                let text = value(bytes, big).to_string();
                of_file.extend(text.bytes().chain(std::iter::repeat(0)).take(DIGITS));
            })?;
            texts.push(of_file);
        }
        self.check()?;
        let files = self.files.iter().zip(texts).map(|(file, texts)| FileRows {
            bytes: Bytes::memory(texts, file.bytes.path()),
            offset: 0,
            is_big_endian: false,
        });
        Ok(RawArray { raw: RawType::Ascii, row_dims: vec![DIGITS], files: files.collect(), ..self })
    }

    /// Numbers of a row; texts have one value.
    pub fn n_values(&self) -> usize {
        let is_text = usize::from(self.raw.is_text());
        self.row_dims[..self.row_dims.len() - is_text].iter().product()
    }

    /// Writes rows of integers to `out`.
    pub fn rows_to_i64(&self, rows: &[usize], out: &mut [i64]) -> Result<()> {
        if let [FileRows { bytes, offset, is_big_endian: false }] = &self.files[..]
            && let (Some(bytes), 1) = (bytes.as_slice(), self.row_len())
        {
            numbers_to_i64(self.raw, &bytes[*offset as usize..], rows, out);
            return self.check();
        }
        let len = self.row_len();
        self.for_each(rows, |n, bytes, big| to_i64(self.raw, big, bytes, &mut out[n * len..][..len]))?;
        self.check()
    }

    /// Whether some file's byte order differs from this machine's.
    pub fn needs_swap(&self) -> bool {
        self.raw.size_bytes() > 1
            && self.files.iter().any(|file| file.is_big_endian != cfg!(target_endian = "big"))
    }

    /// Contiguous rows in memory as elements of `T`; `None` if type, byte order or alignment differ.
    pub fn in_place<T: Element>(&self, rows: Range<usize>) -> Option<&[T]> {
        if self.raw.dtype() != Some(T::DTYPE) || self.needs_swap() || rows.is_empty() {
            return None;
        }
        if self.row_bytes() == 0 {
            return Some(&[]);
        }
        let (file, first) = self.file_of(rows.start);
        let (last_file, _) = self.file_of(rows.end - 1);
        if !std::ptr::eq(file, last_file) {
            return None;
        }
        let start = file.offset as usize + first * self.row_bytes();
        let bytes = &file.bytes.as_slice()?[start..start + rows.len() * self.row_bytes()];
        bytemuck::try_cast_slice(bytes).ok()
    }
}

/// Dimensions and size in bytes of an array; `None` if they overflow.
pub(crate) fn checked_size(shape: &[u64], raw: RawType) -> Option<(Vec<usize>, u64)> {
    let dims: Option<Vec<usize>> = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    // A dimension of 0 must not hide an overflow of the others.
    shape.iter().try_fold(8u64, |len, &dim| len.checked_mul(dim.max(1)))?;
    let len = shape.iter().product::<u64>() * raw.size_bytes() as u64;
    (len <= isize::MAX as u64).then_some((dims?, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_beyond_i64_become_texts() {
        let array = |values: &[u64]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
            RawArray::new(Bytes::memory(bytes, Path::new("y")), 0, RawType::U64, true, &[values.len()])
        };
        let small = array(&[0, i64::MAX as u64]).beyond_i64_as_text().unwrap();
        assert_eq!(small.raw, RawType::U64);
        let both = RawArray::concat(vec![array(&[5, 7]), array(&[u64::MAX])]).unwrap();
        let texts = both.beyond_i64_as_text().unwrap();
        let mut got = Vec::new();
        texts.rows_to_text(&[2, 0, 1], |_, text| got.push(text.to_owned())).unwrap();
        assert_eq!(
            (got, texts.n_values()),
            (["18446744073709551615", "5", "7"].map(str::to_owned).into(), 1)
        );
    }

    #[test]
    fn labels_that_are_no_text_are_refused() {
        let surrogate = [b'a'.into(), 0xd83d_u32].map(u32::to_le_bytes).concat();
        for (raw, width, bytes) in
            [(RawType::Ascii, 2, b"a\0\xe4\0".to_vec()), (RawType::Unicode, 1, surrogate)]
        {
            let array = RawArray::new(Bytes::memory(bytes, Path::new("y")), 0, raw, false, &[2, width]);
            let mut got = Vec::new();
            array.rows_to_text(&[0], |_, text| got.push(text.to_owned())).unwrap();
            assert_eq!(got, ["a"]);
            let error = array.rows_to_text(&[0, 1], |_, _| {}).unwrap_err().to_string();
            assert!(error.contains("the label of row 1 is not UTF-8"), "{error}");
        }
    }
}
