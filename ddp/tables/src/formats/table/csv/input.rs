//! Text of a file, read in blocks and split into lines or into records of cells.

use std::io::{self, Read};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use memchr::{memchr, memchr_iter, memchr2, memrchr};

use crate::formats::table::csv::blanks::Blanks;
use crate::formats::table::source::Record;

/// Bytes per read.
const BLOCK_BYTES: usize = 1 << 18;
/// The same once the notation was found.
const LARGE_BLOCK_BYTES: usize = 1 << 20;
/// Limit of a row's size in bytes: its text, plus 8 per cell.
const MAX_RECORD_BYTES: usize = 256 << 20;
/// A row of this size is read in any memory.
const MIN_RECORD_BYTES: u64 = 1 << 20;
/// Copies of a row in memory while it is read: its text, in a buffer that doubles, and its cells.
const RECORD_COPIES: u64 = 4;
/// Bytes after the text, so that numbers can be read eight bytes at a time.
const PADDING: usize = 8;

/// Text that is read from its beginning to its end.
pub(crate) struct Input {
    source: Box<dyn Read + Send>,
    /// The text in `start..end`, then the padding.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// End of the last complete line; one past the text if a line end was added to it.
    lines_end: usize,
    is_at_end: bool,
    /// Bytes read so far.
    n_read: u64,
    /// Line of `start`, from 1, as an editor counts.
    line: u64,
    delimiter: u8,
    core: Reader,
    /// Ends of the cells of a line without quotes.
    plain_ends: Vec<usize>,
    cells: Vec<u8>,
    ends: Vec<usize>,
    max_record_bytes: usize,
    /// Cells of a row that may lack the last one; 0 if no row may.
    padded_cells: usize,
}

/// A row over the size limit: the file lacks line ends, or a quote is never closed.
#[derive(Debug, thiserror::Error)]
#[error("the row that starts on line {line} takes more than {max_bytes} bytes")]
pub(super) struct RecordTooLarge {
    /// From 1.
    pub line: u64,
    pub max_bytes: usize,
}

/// A quote that is never closed: the rest of the file would be one cell.
#[derive(Debug, thiserror::Error)]
#[error("a quote that opens on line {line} is never closed")]
pub(super) struct QuoteUnclosed {
    /// Line on which the row starts, from 1.
    pub line: u64,
}

/// A splitter of records.
fn reader(delimiter: u8) -> Reader {
    let mut core = ReaderBuilder::new().delimiter(delimiter).build();
    // The reader strips a byte order mark from its first input only, which could be any record.
    core.read_record(b"\n", &mut [0], &mut [0]);
    core
}

impl Input {
    /// Starts after the byte order mark, if there is one.
    pub(crate) fn new(source: Box<dyn Read + Send>) -> io::Result<Self> {
        Self::with_block(source, BLOCK_BYTES)
    }

    /// Refuses rows that take more than `memory_bytes` while they are read.
    pub(crate) fn within(mut self, memory_bytes: u64) -> Self {
        let max_bytes = usize::try_from((memory_bytes / RECORD_COPIES).max(MIN_RECORD_BYTES));
        self.max_record_bytes = max_bytes.unwrap_or(usize::MAX).min(MAX_RECORD_BYTES);
        self
    }

    /// Bytes read so far.
    pub(crate) fn n_read(&self) -> u64 {
        self.n_read
    }

    /// [`Input::new`] with blocks of `block_bytes`.
    pub(crate) fn with_block(source: Box<dyn Read + Send>, block_bytes: usize) -> io::Result<Self> {
        let mut input = Input {
            source,
            bytes: vec![0; block_bytes + PADDING],
            start: 0,
            end: 0,
            lines_end: 0,
            is_at_end: false,
            n_read: 0,
            line: 1,
            delimiter: b',',
            core: reader(b','),
            plain_ends: Vec::new(),
            cells: vec![0; 1024],
            ends: vec![0; 64],
            max_record_bytes: MAX_RECORD_BYTES,
            padded_cells: 0,
        };
        while input.end < 3 && input.fill()? {}
        if input.bytes[..input.end].starts_with(b"\xef\xbb\xbf") {
            input.start = 3;
        }
        Ok(input)
    }

    /// Replaces each run of blanks by a tab from the current position on.
    pub(super) fn join_blanks(&mut self) {
        let rest = io::Cursor::new(self.rest_of_text().to_vec());
        // They are read once more.
        self.n_read -= (self.end - self.start) as u64;
        let source = std::mem::replace(&mut self.source, Box::new(io::empty()));
        self.source = Box::new(Blanks::new(rest.chain(source)));
        (self.start, self.end, self.lines_end, self.is_at_end) = (0, 0, 0, false);
    }

    /// Reads rows with one cell less than `n_cells` as if they ended with an empty one.
    pub(super) fn pad_to(&mut self, n_cells: usize) {
        self.padded_cells = n_cells;
    }

    /// Splits records at `delimiter` from now on.
    pub(super) fn set_delimiter(&mut self, delimiter: u8) {
        (self.delimiter, self.core) = (delimiter, reader(delimiter));
    }

    /// Reads until the buffer is full and holds a line, or to the end, and returns whether the buffer holds the whole text.
    pub(super) fn fill_buffer(&mut self) -> io::Result<bool> {
        loop {
            while self.end + PADDING < self.bytes.len() && self.fill()? {}
            if self.is_at_end || memchr2(b'\n', b'\r', self.rest_of_text().trim_ascii_start()).is_some() {
                return Ok(self.is_at_end);
            }
            self.check_size(self.line, self.end - self.start)?;
            self.fill()?;
        }
    }

    /// Whether lines end with a line feed, as far as the first one shows.
    pub(super) fn has_line_feeds(&self) -> bool {
        let text = self.rest_of_text().trim_ascii_start();
        memchr2(b'\n', b'\r', text).is_none_or(|at| text[at] == b'\n' || text.get(at + 1) == Some(&b'\n'))
    }

    /// The buffered text from the current position.
    pub(super) fn rest_of_text(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Moves to the next line that is not empty and buffers it for [`Input::rest`]; returns false at the end.
    #[inline]
    pub(crate) fn next_line(&mut self) -> io::Result<bool> {
        loop {
            self.skip_line_ends();
            if self.start < self.lines_end.min(self.end) {
                return Ok(true);
            }
            self.check_size(self.line, self.end - self.start)?;
            if !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// The text from the current position: at least one line with its end, then more text, then padding.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Number of the line at the current position, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Length of the whole lines from the current position on, with their ends.
    pub(super) fn len_of_lines(&self) -> usize {
        self.lines_end - self.start
    }

    /// Skips a line of `len` bytes, including its end.
    #[inline]
    pub(crate) fn skip_line(&mut self, len: usize) {
        self.skip_lines(len, 1);
    }

    /// Skips lines of `len` bytes, including their ends.
    #[inline]
    pub(super) fn skip_lines(&mut self, len: usize, n_lines: usize) {
        self.start = (self.start + len).min(self.end);
        self.line += n_lines as u64;
    }

    /// Reads more text at a time from now on, for several threads.
    pub(super) fn enlarge_block(&mut self) {
        if self.bytes.len() == BLOCK_BYTES + PADDING {
            self.bytes.resize(LARGE_BLOCK_BYTES + PADDING, 0);
        }
    }

    /// Reads the next row; `None` at the end.
    pub(crate) fn record(&mut self) -> io::Result<Option<Record<'_>>> {
        if !self.skip_to_text()? {
            return Ok(None);
        }
        if let Some(len) = self.plain_line() {
            self.check_size(self.line, len + size_of::<usize>() * self.plain_ends.len())?;
            let start = self.start;
            let n_bytes = self.plain_ends.last().copied().unwrap_or(0);
            self.skip_line(len);
            let (cells, ends) = (&self.bytes[start..start + n_bytes], &self.plain_ends[..]);
            return Ok(Some(Record {
                line: self.line - 1,
                cells,
                ends,
                gap: 1,
                strings: &[],
                is_bad: false,
            }));
        }
        let line = self.line;
        let (mut n_bytes, mut n_cells, mut n_taken) = (0, 0, 0);
        let mut is_ended = false;
        loop {
            // A line end at the end of the text completes a record, unless it is inside quotes.
            let text = if is_ended { b"\n" } else { &self.bytes[self.start..self.end] };
            let out = &mut self.cells[n_bytes..];
            let (result, n_read, n_out, n_ends) = self.core.read_record(text, out, &mut self.ends[n_cells..]);
            if !is_ended {
                self.line += memchr_iter(b'\n', &text[..n_read]).count() as u64;
                self.start += n_read;
                n_taken += n_read;
            }
            n_bytes += n_out;
            n_cells += n_ends;
            self.check_size(line, n_taken + size_of::<usize>() * n_cells)?;
            match result {
                ReadRecordResult::InputEmpty if is_ended => {
                    return Err(io::Error::other(QuoteUnclosed { line }));
                }
                ReadRecordResult::InputEmpty => is_ended = !self.fill()?,
                ReadRecordResult::OutputFull => self.cells.resize(2 * self.cells.len(), 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Ok(None),
            }
        }
        if n_cells + 1 == self.padded_cells {
            self.ends.resize(self.ends.len().max(n_cells + 1), 0);
            self.ends[n_cells] = n_bytes;
            n_cells += 1;
        }
        Ok(Some(Record {
            line,
            cells: &self.cells[..n_bytes],
            ends: &self.ends[..n_cells],
            gap: 0,
            strings: &[],
            is_bad: false,
        }))
    }

    /// Finds the ends of the cells in the next line, if it is buffered and needs no more than that: no quotes, and no cell to add.
    /// Returns its length with its end.
    fn plain_line(&mut self) -> Option<usize> {
        let text = self.bytes.get(self.start..self.lines_end).filter(|_| self.padded_cells == 0)?;
        // Not beyond a carriage return, which may end all the lines.
        let end = memchr2(b'\n', b'\r', text)?;
        let line = &text[..end];
        let len = end + usize::from(text[end] == b'\r');
        if text.get(len) != Some(&b'\n') || memchr(b'"', line).is_some() {
            return None;
        }
        self.plain_ends.clear();
        self.plain_ends.extend(memchr_iter(self.delimiter, line));
        self.plain_ends.push(line.len());
        Some(len + 1)
    }

    /// Fails if a row that starts on `line` exceeds the size limit.
    #[inline]
    fn check_size(&self, line: u64, n_bytes: usize) -> io::Result<()> {
        let max_bytes = self.max_record_bytes;
        if n_bytes > max_bytes { Err(io::Error::other(RecordTooLarge { line, max_bytes })) } else { Ok(()) }
    }

    fn skip_to_text(&mut self) -> io::Result<bool> {
        loop {
            self.skip_line_ends();
            if self.start < self.end {
                return Ok(true);
            }
            if !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// Skips empty lines, which are not rows.
    #[inline]
    fn skip_line_ends(&mut self) {
        while self.start < self.end {
            match self.bytes[self.start] {
                b'\n' => self.line += 1,
                b'\r' => {}
                _ => break,
            }
            self.start += 1;
        }
    }

    /// Reads more text; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        if self.is_at_end {
            return Ok(false);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end + PADDING == self.bytes.len() {
            self.bytes.resize(2 * self.end + PADDING, 0);
        }
        let room = self.bytes.len() - PADDING;
        let n = loop {
            match self.source.read(&mut self.bytes[self.end..room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.end += n;
        self.n_read += n as u64;
        self.is_at_end = n == 0;
        self.bytes[self.end..self.end + PADDING].fill(0);
        self.lines_end = memrchr(b'\n', &self.bytes[..self.end]).map_or(0, |at| at + 1);
        if self.is_at_end && self.lines_end < self.end {
            // The last line may lack its end.
            self.bytes[self.end] = b'\n';
            self.lines_end = self.end + 1;
        }
        Ok(n > 0 || self.start < self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error's line, and how much had been read.
    fn too_large(text: impl Read + Send + 'static, by_lines: bool) -> (u64, u64) {
        let mut input = Input::with_block(Box::new(text), 64).unwrap();
        input.max_record_bytes = 1000;
        loop {
            let read = if by_lines {
                input.next_line().map(|is_there| assert!(is_there))
            } else {
                input.record().map(|record| assert!(record.is_some()))
            };
            if by_lines && read.is_ok() {
                let len = input.rest().iter().position(|byte| *byte == b'\n').unwrap() + 1;
                input.skip_line(len);
            }
            if let Err(error) = read {
                let error = error.get_ref().unwrap().downcast_ref::<RecordTooLarge>().unwrap();
                assert!(input.bytes.len() < 4000 && input.cells.len() < 4000 && input.ends.len() < 4000);
                return (error.line, input.n_read);
            }
        }
    }

    #[test]
    fn a_row_without_an_end_is_refused_in_time() {
        let begin = "a,b\n1,2\n";
        for byte in [b'x', b',', b'"'] {
            for by_lines in [true, false] {
                let (line, n_read) = too_large(begin.as_bytes().chain(io::repeat(byte)), by_lines);
                assert!(line == 3 && n_read < 4000, "{byte} {by_lines}: line {line}, {n_read} bytes");
            }
        }
        let quoted = "a,b\n1,2\n3,\"".as_bytes().chain(io::repeat(b'\n'));
        let (line, n_read) = too_large(quoted, false);
        assert!(line == 3 && n_read < 4000, "line {line}, {n_read} bytes");
        // Empty lines are not a row.
        let rows = begin.replace('\n', &"\n".repeat(3000));
        let mut input = Input::with_block(Box::new(io::Cursor::new(rows)), 64).unwrap();
        input.max_record_bytes = 1000;
        assert!(input.record().unwrap().is_some() && input.next_line().unwrap());
    }
}
