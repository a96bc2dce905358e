//! Turns a JSON array of objects into lines, one object per line, while the text is read.
//!
//! An object keeps the line on which it begins in the file, so that messages name it: line ends within an object are written after
//! it, as empty lines. Where several objects share a line, each counts as one.

use std::io::{self, Read};

/// Bytes per read.
const BLOCK_BYTES: usize = 1 << 16;

/// Text that is not an array of objects.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(super) struct ArrayFault {
    /// Line of the file, from 1.
    line: u64,
    reason: String,
}

/// The text as it is, or the lines of the array that it holds.
///
/// # Errors
/// Errors of reading the first bytes.
pub(super) fn lines(mut text: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut begin = Vec::new();
    // An array that begins after more blanks than this is not recognized.
    text.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut begin)?;
    let n_marked = if begin.starts_with(MARK) { MARK.len() } else { 0 };
    let is_array = begin[n_marked..].trim_ascii_start().starts_with(b"[");
    if is_array {
        begin.drain(..n_marked);
    }
    let text = io::Cursor::new(begin).chain(text);
    Ok(if is_array { Box::new(ArrayLines::new(text)) } else { Box::new(text) })
}

/// Position in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    /// After the bracket that opens the array.
    First,
    Object,
    AfterObject,
    AfterComma,
    End,
}

struct ArrayLines<R> {
    source: R,
    raw: Vec<u8>,
    /// Text that was not handed out yet, from `next` on.
    ready: Vec<u8>,
    next: usize,
    at: At,
    /// Brackets and braces that are open.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
    /// Line of the file, from 1.
    line: u64,
    /// Line ends within the current object.
    n_within: u64,
    /// Line ends written between objects that share a line; as many of the next line ends of the file are left out.
    n_ahead: u64,
    /// Whether the current line of the output has an object.
    has_object: bool,
}

impl<R: Read> ArrayLines<R> {
    fn new(source: R) -> Self {
        ArrayLines {
            source,
            raw: vec![0; BLOCK_BYTES],
            ready: Vec::new(),
            next: 0,
            at: At::Start,
            depth: 0,
            is_text: false,
            is_escaped: false,
            line: 1,
            n_within: 0,
            n_ahead: 0,
            has_object: false,
        }
    }

    fn fault(&self, reason: impl Into<String>) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, ArrayFault { line: self.line, reason: reason.into() })
    }

    fn add(&mut self, byte: u8) -> io::Result<()> {
        self.line += u64::from(byte == b'\n');
        if self.at == At::Object {
            self.add_to_object(byte);
            return Ok(());
        }
        match (self.at, byte) {
            (_, b'\n') => self.end_line(),
            (_, byte) if byte.is_ascii_whitespace() => {}
            (At::Start, b'[') => self.at = At::First,
            (At::First | At::AfterComma, b'{') => self.begin_object(),
            (At::First | At::AfterObject, b']') => self.at = At::End,
            (At::AfterObject, b',') => self.at = At::AfterComma,
            (at, byte) => {
                let expected = match at {
                    At::Start => "an array",
                    At::First | At::Object | At::AfterComma => "an object",
                    At::AfterObject => "a comma or the end of the array",
                    At::End => "nothing after the array",
                };
                return Err(self.fault(format!("expected {expected}, got `{}`", byte.escape_ascii())));
            }
        }
        Ok(())
    }

    fn begin_object(&mut self) {
        if self.has_object {
            self.ready.push(b'\n');
            self.n_ahead += 1;
        }
        self.ready.push(b'{');
        (self.at, self.depth, self.has_object) = (At::Object, 1, true);
    }

    fn add_to_object(&mut self, byte: u8) {
        match byte {
            // Not within a text, where JSON has none.
            b'\n' | b'\r' => {
                self.n_within += u64::from(byte == b'\n');
                self.ready.push(b' ');
                return;
            }
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_text => self.is_escaped = true,
            b'"' => self.is_text = !self.is_text,
            b'{' | b'[' if !self.is_text => self.depth += 1,
            b'}' | b']' if !self.is_text => self.depth -= 1,
            _ => {}
        }
        self.ready.push(byte);
        if self.depth == 0 {
            self.at = At::AfterObject;
            (0..std::mem::take(&mut self.n_within)).for_each(|_| self.end_line());
        }
    }

    fn end_line(&mut self) {
        if self.n_ahead > 0 {
            self.n_ahead -= 1;
            return;
        }
        self.ready.push(b'\n');
        self.has_object = false;
    }
}

impl<R: Read> Read for ArrayLines<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.next == self.ready.len() {
            self.ready.clear();
            self.next = 0;
            let n = self.source.read(&mut self.raw)?;
            if n == 0 && self.at != At::End {
                return Err(self.fault("the array has no end"));
            }
            if n == 0 {
                return Ok(0);
            }
            (0..n).try_for_each(|index| self.add(self.raw[index]))?;
        }
        let n = out.len().min(self.ready.len() - self.next);
        out[..n].copy_from_slice(&self.ready[self.next..self.next + n]);
        self.next += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out `bytes` at most `size` at a time.
    struct Slowly(&'static [u8], usize);

    impl Read for Slowly {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(out.len());
            self.0.read(&mut out[..n])
        }
    }

    fn of(text: &'static str, size: usize) -> io::Result<String> {
        let mut all = String::new();
        lines(Box::new(Slowly(text.as_bytes(), size)))?.read_to_string(&mut all).map(|_| all)
    }

    #[test]
    fn an_object_lies_on_its_line_of_the_file() {
        for (text, want) in [
            (r#"[{"a":1},{"a":[2,{"b":3}]}]"#, "{\"a\":1}\n{\"a\":[2,{\"b\":3}]}"),
            ("[\n{\"a\":1},\n\n{\"a\":2}\n]\n", "\n{\"a\":1}\n\n{\"a\":2}\n\n"),
            ("\u{feff} [\n  {\n    \"a\":1\n  },\n  {\"a\":2}\n]", "\n{     \"a\":1   }\n\n\n{\"a\":2}\n"),
            // The second object of a line takes the next line, and the third is on its own again.
            ("[{\"a\":1}, {\"a\":2}\n,{\"a\":3}]", "{\"a\":1}\n{\"a\":2}\n{\"a\":3}"),
            (r#"[{"a":"]},{\"[\\"},{"a":"}"}]"#, "{\"a\":\"]},{\\\"[\\\\\"}\n{\"a\":\"}\"}"),
            ("[]", ""),
            ("{\"a\":1}\n{\"a\":2}\n", "{\"a\":1}\n{\"a\":2}\n"),
            ("", ""),
        ] {
            for size in [1, 2, 7, 1000] {
                assert_eq!(of(text, size).unwrap(), want, "{text}");
            }
        }
    }

    #[test]
    fn text_that_is_no_array_of_objects_is_refused() {
        for (text, want) in [
            ("[\n{\"a\":1},\n{\"a\":2}", "line 3: the array has no end"),
            ("[{\"a\":1},\n{\"a\"", "line 2: the array has no end"),
            ("[{\"a\":1}\n{\"a\":2}]", "line 2: expected a comma or the end of the array, got `{`"),
            ("[{\"a\":1},]", "line 1: expected an object, got `]`"),
            ("[1, 2]", "line 1: expected an object, got `1`"),
            ("[{\"a\":1}]\n\n[{\"a\":1}]", "line 3: expected nothing after the array, got `[`"),
        ] {
            let error = of(text, 3).unwrap_err();
            assert!(error.to_string().starts_with(want), "{text}: {error}");
        }
    }
}
