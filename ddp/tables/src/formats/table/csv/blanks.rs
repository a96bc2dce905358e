//! Tables whose cells are separated by blanks: each run of spaces and tabs outside of quotes becomes one tab.

use std::io::{self, Read};

/// Bytes per read.
const BLOCK_BYTES: usize = 1 << 16;
/// Most rows that are looked at.
const MAX_ROWS: usize = 64;

/// A text with one tab for each run of blanks; blanks at the ends of lines are left out.
pub(super) struct Blanks<R> {
    source: R,
    raw: Vec<u8>,
    /// Text that was not handed out yet, from `at` on.
    ready: Vec<u8>,
    at: usize,
    is_quoted: bool,
    is_after_blank: bool,
    is_line_start: bool,
}

impl<R: Read> Blanks<R> {
    pub(super) fn new(source: R) -> Self {
        Blanks {
            source,
            raw: vec![0; BLOCK_BYTES],
            ready: Vec::new(),
            at: 0,
            is_quoted: false,
            is_after_blank: false,
            is_line_start: true,
        }
    }

    fn add(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' if !self.is_quoted => {
                self.is_after_blank = true;
                return;
            }
            b'\n' | b'\r' if !self.is_quoted => {
                self.ready.push(byte);
                (self.is_line_start, self.is_after_blank) = (true, false);
                return;
            }
            b'"' => self.is_quoted = !self.is_quoted,
            _ => {}
        }
        if self.is_after_blank && !self.is_line_start {
            self.ready.push(b'\t');
        }
        (self.is_line_start, self.is_after_blank) = (false, false);
        self.ready.push(byte);
    }
}

impl<R: Read> Read for Blanks<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.ready.len() {
            (self.at, self.ready) = (0, std::mem::take(&mut self.ready));
            self.ready.clear();
            let n = self.source.read(&mut self.raw)?;
            if n == 0 {
                return Ok(0);
            }
            for index in 0..n {
                self.add(self.raw[index]);
            }
        }
        let n = out.len().min(self.ready.len() - self.at);
        out[..n].copy_from_slice(&self.ready[self.at..][..n]);
        self.at += n;
        Ok(n)
    }
}

/// Whether blanks separate the cells of a text without other delimiters: its rows have equally many words, most of them numbers.
pub(super) fn are_delimiters(text: &[u8], is_whole: bool) -> bool {
    let Ok(text) =
        std::str::from_utf8(text).or_else(|error| std::str::from_utf8(&text[..error.valid_up_to()]))
    else {
        return false;
    };
    let mut lines: Vec<&str> =
        text.lines().filter(|line| !line.trim().is_empty()).take(MAX_ROWS + 1).collect();
    if !is_whole || lines.len() > MAX_ROWS {
        lines.pop();
    }
    let Some((header, rows)) = lines.split_first() else { return false };
    let n_cells = header.split_whitespace().count();
    let words = || rows.iter().flat_map(|row| row.split_whitespace());
    let n_numbers = words().filter(|word| word.parse::<f64>().is_ok()).count();
    n_cells > 1
        && !rows.is_empty()
        && rows.iter().all(|row| row.split_whitespace().count() == n_cells)
        && 2 * n_numbers > words().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_blanks_become_tabs() {
        let mut text = String::new();
        let source = "  a  b \t c\r\n1 2\t3  \n\"x  y\" 5 6\n".as_bytes();
        Blanks::new(source).read_to_string(&mut text).unwrap();
        assert_eq!(text, "a\tb\tc\r\n1\t2\t3\n\"x  y\"\t5\t6\n");
    }

    #[test]
    fn columns_of_numbers_are_told_from_sentences() {
        for (text, expected) in [
            ("x y label\n1.0 2.0 0\n1  3 1\n", true),
            (" x   y\n 1.5 -2e3\n", true),
            ("1.0 2.0\n3.0 4.0\n", true),
            ("review text\nvery good\nquite bad\n", false),
            ("label\n0\n1\n", false),
            ("x y\n1 2\n1\n", false),
            ("x y\n", false),
            ("", false),
        ] {
            assert_eq!(are_delimiters(text.as_bytes(), true), expected, "{text:?}");
        }
    }
}
