//! Lengths of lists, from their repetition levels: before their values are decoded, since a kilobyte can hold lists of any length.
//!
//! Source: Apache Parquet format, "Data Pages" and "Run Length Encoding / Bit-Packing Hybrid".

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader as _};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::formats::error::{ColumnError, Result, RowsError};
use crate::formats::table::batch_source::ListColumn;
use crate::formats::table::parquet::file::{PageFile, ParquetFile, guarded};
use crate::formats::table::source::MAX_COLUMNS;

/// Rows that are searched for a list.
const PROBED_ROWS: usize = 1024;
/// Elements of lists that are decoded to find one.
const PROBED_LEVELS: usize = 2 * MAX_COLUMNS;

/// Pages that can be decoded to find the length of a column's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// Number of rows, at least 1.
    Rows(usize),
    /// Nothing: a list has this many elements.
    TooLong(usize),
}

/// Finds how many rows of the column `root` can be decoded at a time to find its first list. Rows before it that have no list, or one
/// of a single element, count only if `is_first`: the first of them shall show it.
pub(super) fn probe(file: &ParquetFile, root: usize, is_first: bool) -> Result<Probe> {
    guarded(&file.path, || {
        let (mut n_rows, mut n_levels) = (0, 0);
        for group in (0..file.group_rows.len()).filter(|&group| file.group_rows[group] > 0) {
            let Some(mut lists) = Lists::open(file, group, root)? else { break };
            while n_rows < PROBED_ROWS {
                match lists.next()? {
                    None => break,
                    Some(len) if len > MAX_COLUMNS => return Ok(Probe::TooLong(len)),
                    Some(len) if n_rows > 0 && n_levels + len > PROBED_LEVELS => break,
                    Some(1) if n_rows == 0 && !is_first => {}
                    Some(len) => (n_rows, n_levels) = (n_rows + 1, n_levels + len),
                }
            }
            if n_rows > 0 {
                return Ok(Probe::Rows(n_rows));
            }
        }
        Ok::<_, ParquetError>(Probe::Rows(PROBED_ROWS))
    })
}

/// Fails if a list in the row groups `groups` is longer than its column's lists, and than `allowed`. Reads the headers of the
/// columns' pages, and their levels only where a group has too many.
///
/// # Errors
/// [`ColumnError::ListLength`] with the row.
pub(super) fn check(
    file: &ParquetFile,
    columns: &[ListColumn],
    groups: Range<usize>,
    allowed: usize,
) -> Result<()> {
    for ListColumn { name, root, len } in columns {
        let limit = allowed.max(*len);
        for group in groups.clone() {
            let n_rows = file.group_rows[group];
            let longer = guarded(&file.path, || {
                let n_levels = n_levels(file, group, *root)?;
                // If all other lists are empty.
                let longest = n_levels.saturating_sub(n_rows.saturating_sub(1));
                let may_be_longer = n_levels > n_rows.saturating_mul(*len) && longest > limit;
                if may_be_longer { first_longer(file, group, *root, limit) } else { Ok(None) }
            })?;
            if let Some((row, got)) = longer {
                let row = row + file.first_row(group);
                let place = format!("data file `{}`, row {row}", file.path.display());
                let column = format!("column \"{name}\"");
                return Err(RowsError::from(ColumnError::ListLength { place, column, expected: *len, got }));
            }
        }
    }
    Ok(())
}

/// Elements of all lists of a row group, as its pages count them; a missing or empty list counts as one.
fn n_levels(file: &ParquetFile, group: usize, root: usize) -> ParquetResult<usize> {
    let mut n_levels = 0usize;
    let Some(mut pages) = pages(file, group, root)? else { return Ok(0) };
    while let Some(page) = pages.peek_next_page()? {
        n_levels = n_levels.saturating_add(page.num_levels.filter(|_| !page.is_dict).unwrap_or(0));
        pages.skip_next_page()?;
    }
    Ok(n_levels)
}

/// Row within the group and length of the first list with more than `limit` elements.
fn first_longer(
    file: &ParquetFile,
    group: usize,
    root: usize,
    limit: usize,
) -> ParquetResult<Option<(usize, usize)>> {
    let Some(mut lists) = Lists::open(file, group, root)? else { return Ok(None) };
    let mut row = 0;
    while let Some(len) = lists.next()? {
        if len > limit {
            return Ok(Some((row, len)));
        }
        row += 1;
    }
    Ok(None)
}

/// The pages of the only leaf of the column `root`; `None` for other columns.
fn pages(
    file: &ParquetFile,
    group: usize,
    root: usize,
) -> ParquetResult<Option<SerializedPageReader<PageFile>>> {
    let schema = file.metadata.parquet_schema();
    let mut leaves = (0..schema.num_columns()).filter(|&leaf| schema.get_column_root_idx(leaf) == root);
    let leaf = match (leaves.next(), leaves.next()) {
        (Some(leaf), None) if schema.column(leaf).max_rep_level() == 1 => leaf,
        _ => return Ok(None),
    };
    let (index, group) = (group, file.metadata.metadata().row_group(group));
    let open = file.pages().map_err(|error| ParquetError::General(error.to_string()))?;
    let n_rows = usize::try_from(group.num_rows())?;
    file.check_pages(&open, index, leaf, 1).map_err(|error| ParquetError::General(error.to_string()))?;
    SerializedPageReader::new(Arc::new(open), group.column(leaf), n_rows, None).map(Some)
}

/// Lengths of the lists of one column in one row group, in order.
struct Lists {
    pages: SerializedPageReader<PageFile>,
    /// Repetition levels of the page that are not decoded yet, and their number.
    bytes: Vec<u8>,
    at: usize,
    n_left: usize,
    /// Levels of the bit-packed run under way, and whether its first levels are the highest bits.
    n_packed: usize,
    is_highest_first: bool,
    /// Equal levels that were decoded: whether they continue a list, and their number.
    run: (bool, usize),
    /// Elements so far of the list under way.
    len: Option<usize>,
}

impl Lists {
    fn open(file: &ParquetFile, group: usize, root: usize) -> ParquetResult<Option<Self>> {
        let pages = pages(file, group, root)?;
        Ok(pages.map(|pages| Lists {
            pages,
            bytes: Vec::new(),
            at: 0,
            n_left: 0,
            n_packed: 0,
            is_highest_first: false,
            run: (false, 0),
            len: None,
        }))
    }

    /// Elements of the next list, 1 for a missing or empty one.
    fn next(&mut self) -> ParquetResult<Option<usize>> {
        loop {
            match self.run {
                (_, 0) => match self.next_run()? {
                    Some(run) => self.run = run,
                    None => return Ok(self.len.take()),
                },
                (true, n) => {
                    self.len = Some(self.len.unwrap_or(0) + n);
                    self.run.1 = 0;
                }
                (false, n) => {
                    self.run.1 = n - 1;
                    if let Some(len) = self.len.replace(1) {
                        return Ok(Some(len));
                    }
                }
            }
        }
    }

    /// Decodes equal levels: whether they continue a list, and their number. `None` at the end of the row group.
    fn next_run(&mut self) -> ParquetResult<Option<(bool, usize)>> {
        while self.n_left == 0 {
            if !self.next_page()? {
                return Ok(None);
            }
        }
        if self.n_packed == 0 {
            let header = self.varint()?;
            let n = usize::try_from(header >> 1)?;
            if header & 1 == 0 {
                let level = self.byte()?;
                let n = n.min(self.n_left);
                self.n_left -= n;
                return Ok(Some((level & 1 == 1, n)));
            }
            self.n_packed = n.saturating_mul(8);
            if n == 0 {
                return Ok(Some((true, 0)));
            }
        }
        let byte = *self.bytes.get(self.at).ok_or_else(ended)?;
        let place = self.n_packed.wrapping_neg() % 8;
        let bit = if self.is_highest_first { 7 - place } else { place };
        self.at += usize::from(place == 7);
        self.n_packed -= 1;
        self.n_left -= 1;
        Ok(Some((byte >> bit & 1 == 1, 1)))
    }

    /// Takes the levels of the next page of data; `false` if there is none.
    fn next_page(&mut self) -> ParquetResult<bool> {
        while let Some(page) = self.pages.get_next_page()? {
            let n_levels = page.num_values() as usize;
            let mut is_packed = false;
            let levels = match &page {
                Page::DictionaryPage { .. } => continue,
                Page::DataPage { rep_level_encoding: Encoding::RLE, buf, .. } => {
                    let (len, levels) = buf.split_first_chunk::<4>().ok_or_else(ended)?;
                    levels.get(..u32::from_le_bytes(*len) as usize)
                }
                // That of old files: packed as a whole.
                Page::DataPage { buf, .. } => {
                    is_packed = true;
                    buf.get(..n_levels.div_ceil(8))
                }
                Page::DataPageV2 { buf, rep_levels_byte_len, .. } => buf.get(..*rep_levels_byte_len as usize),
            };
            self.bytes = levels.ok_or_else(ended)?.to_vec();
            self.is_highest_first = is_packed;
            self.n_packed = if is_packed { n_levels.next_multiple_of(8) } else { 0 };
            (self.at, self.n_left) = (0, n_levels);
            return Ok(true);
        }
        Ok(false)
    }

    fn byte(&mut self) -> ParquetResult<u8> {
        let byte = self.bytes.get(self.at).ok_or_else(ended)?;
        self.at += 1;
        Ok(*byte)
    }

    fn varint(&mut self) -> ParquetResult<u64> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ended())
    }
}

fn ended() -> ParquetError {
    ParquetError::General("its repetition levels are cut off".to_owned())
}
