//! The text of a file, a block at a time, as lines and as records of cells.

use std::io::{self, Read};

use csv_core::{ReadRecordResult, Reader};
use memchr::{memchr_iter, memrchr};

/// Bytes that are asked for at a time.
const BLOCK_BYTES: usize = 1 << 18;
/// Bytes behind the text, so that a number can be looked at eight bytes at a time.
const PADDING: usize = 8;

/// Text that is read from its beginning to its end.
pub(crate) struct Input {
    source: Box<dyn Read + Send>,
    /// The text in `start..end`, then the padding.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// End of the last whole line; behind the text's end by one where a line end had to be added to it.
    lines_end: usize,
    is_at_end: bool,
    /// Line of `start`, from 1, as an editor counts.
    line: u64,
    core: Reader,
    cells: Vec<u8>,
    ends: Vec<usize>,
}

/// One row: cells without their quotes.
pub(crate) struct Record<'a> {
    /// Line on which it starts, from 1.
    pub(crate) line: u64,
    cells: &'a [u8],
    /// Where each cell ends.
    ends: &'a [usize],
}

impl Record<'_> {
    /// Number of cells.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(self.ends);
        starts.zip(self.ends).map(|(&start, &end)| &self.cells[start..end])
    }
}

impl Input {
    /// The text behind a byte order mark, if there is one.
    pub(crate) fn new(source: Box<dyn Read + Send>) -> io::Result<Self> {
        Self::with_block(source, BLOCK_BYTES)
    }

    /// As [`Input::new`], from blocks of another size.
    pub(crate) fn with_block(source: Box<dyn Read + Send>, block_bytes: usize) -> io::Result<Self> {
        let mut core = Reader::new();
        // It takes the mark from what it is given first, which may be any record.
        core.read_record(b"\n", &mut [0], &mut [0]);
        let mut input = Input {
            source,
            bytes: vec![0; block_bytes + PADDING],
            start: 0,
            end: 0,
            lines_end: 0,
            is_at_end: false,
            line: 1,
            core,
            cells: vec![0; 1024],
            ends: vec![0; 64],
        };
        while input.end < 3 && input.fill()? {}
        if input.bytes[..input.end].starts_with(b"\xef\xbb\xbf") {
            input.start = 3;
        }
        Ok(input)
    }

    /// Goes to the next line that is not empty, all of which is then in [`Input::rest`]; whether there is one.
    #[inline]
    pub(crate) fn next_line(&mut self) -> io::Result<bool> {
        loop {
            self.skip_line_ends();
            if self.start < self.lines_end.min(self.end) {
                return Ok(true);
            }
            if !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// The text from here on: at least a whole line with its end, then whatever has been read, then padding.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Goes behind a line of `len` bytes, its end among them.
    #[inline]
    pub(crate) fn skip_line(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
        self.line += 1;
    }

    /// Takes the next row.
    pub(crate) fn record(&mut self) -> io::Result<Option<Record<'_>>> {
        if !self.skip_to_text()? {
            return Ok(None);
        }
        let line = self.line;
        let (mut n_bytes, mut n_cells) = (0, 0);
        loop {
            let text = &self.bytes[self.start..self.end];
            let out = &mut self.cells[n_bytes..];
            let (result, n_read, n_out, n_ends) = self.core.read_record(text, out, &mut self.ends[n_cells..]);
            self.line += memchr_iter(b'\n', &text[..n_read]).count() as u64;
            self.start += n_read;
            n_bytes += n_out;
            n_cells += n_ends;
            match result {
                // At the end nothing more comes, and the empty text then ends the record.
                ReadRecordResult::InputEmpty => _ = self.fill()?,
                ReadRecordResult::OutputFull => self.cells.resize(2 * self.cells.len(), 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Ok(None),
            }
        }
        Ok(Some(Record { line, cells: &self.cells[..n_bytes], ends: &self.ends[..n_cells] }))
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

    /// Empty lines are no rows.
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

    /// Reads on; false at the end.
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
        self.is_at_end = n == 0;
        self.bytes[self.end..self.end + PADDING].fill(0);
        self.lines_end = memrchr(b'\n', &self.bytes[..self.end]).map_or(0, |at| at + 1);
        if self.is_at_end && self.lines_end < self.end {
            // The last line may do without an end.
            self.bytes[self.end] = b'\n';
            self.lines_end = self.end + 1;
        }
        Ok(n > 0 || self.start < self.end)
    }
}
