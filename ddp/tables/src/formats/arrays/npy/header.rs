//! The header of a `.npy` file: a Python dictionary of three entries.
//!
//! A parser of our own, because it must neither recurse nor overflow on any input; parsers in libraries accept all Python
//! literals.
//!
//! Source: numpy.lib.format, versions 1 to 3.

use crate::values::element::RawType;

/// Longest accepted header; NumPy itself refuses more than 10,000 bytes.
const MAX_HEADER: usize = 1 << 14;

/// Contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    /// Type of the elements.
    pub raw: RawType,
    /// Byte order.
    pub is_big_endian: bool,
    /// Whether the first index changes fastest.
    pub is_fortran: bool,
    /// Dimensions; the last one of texts is their length.
    pub shape: Vec<u64>,
    /// Bytes before the first element.
    pub len: usize,
}

/// Parses the header at the start of `bytes`; reads and allocates nothing of the length that it declares.
///
/// # Errors
/// The fault as the end of a sentence about the file.
pub fn parse(bytes: &[u8]) -> Result<NpyHeader, String> {
    let end = header_end(bytes)?;
    let start = if bytes[6] == 1 { 10 } else { 12 };
    let text = std::str::from_utf8(&bytes[start..end]).map_err(|_| "its header is not text".to_owned())?;
    let mut words = Words(text);
    words.expect("{")?;
    let (mut descr, mut is_fortran, mut shape) = (None, None, None);
    while !words.take("}") {
        let key = words.quoted()?;
        words.expect(":")?;
        match key {
            "descr" => descr = Some(words.descr()?),
            "fortran_order" => is_fortran = Some(words.truth()?),
            "shape" => shape = Some(words.tuple()?),
            other => return Err(format!("its header has an entry '{}'", shown(other))),
        }
        if !words.take(",") && !words.0.trim_start().starts_with('}') {
            return Err("its header is not a dictionary".to_owned());
        }
    }
    let missing = |name: &str| format!("its header has no '{name}'");
    let descr = descr.ok_or_else(|| missing("descr"))?;
    let (raw, is_big_endian) = element(descr)?;
    let mut shape: Vec<u64> = shape.ok_or_else(|| missing("shape"))?;
    // A text is a row of its characters.
    shape.extend(width(descr.trim_start_matches(['<', '>', '|', '='])));
    Ok(NpyHeader {
        raw,
        is_big_endian,
        is_fortran: is_fortran.ok_or_else(|| missing("fortran_order"))?,
        shape,
        len: end,
    })
}

/// Offset of the header's end.
fn header_end(bytes: &[u8]) -> Result<usize, String> {
    let Some((magic, &version)) = bytes.get(..6).zip(bytes.get(6)) else {
        return Err(format!("it has {} bytes, too few for a header", bytes.len()));
    };
    if magic != b"\x93NUMPY" {
        return Err("it does not begin like an npy file".to_owned());
    }
    let (start, len) = match (version, bytes.get(8..10), bytes.get(8..12)) {
        (1, Some(len), _) => (10, usize::from(u16::from_le_bytes([len[0], len[1]]))),
        (2 | 3, _, Some(len)) => (12, u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize),
        (1..=3, ..) => return Err("its header is cut off".to_owned()),
        _ => return Err(format!("its version is {version}, expected 1, 2 or 3")),
    };
    if len > MAX_HEADER {
        return Err(format!("its header claims {len} bytes"));
    }
    if start + len > bytes.len() { Err("its header is cut off".to_owned()) } else { Ok(start + len) }
}

/// The type of an element and whether it is big-endian.
fn element(descr: &str) -> Result<(RawType, bool), String> {
    let is_big_endian = descr.starts_with('>') || descr.starts_with('=') && cfg!(target_endian = "big");
    let raw = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "b1" | "?" => RawType::Bool,
        "u1" => RawType::U8,
        "i1" => RawType::I8,
        "u2" => RawType::U16,
        "i2" => RawType::I16,
        "u4" => RawType::U32,
        "i4" => RawType::I32,
        "u8" => RawType::U64,
        "i8" => RawType::I64,
        "f2" => RawType::F16,
        "f4" => RawType::F32,
        "f8" => RawType::F64,
        "O" => return Err("its elements are Python objects (pickle), which are never loaded".to_owned()),
        text if width(text).is_some() => {
            if text.starts_with('U') {
                RawType::Unicode
            } else {
                RawType::Ascii
            }
        }
        _ => {
            return Err(format!("its elements are of type '{}', expected numbers", shown(descr)));
        }
    };
    Ok((raw, is_big_endian))
}

/// The length of the texts of a type such as `U10` or `S3`.
fn width(descr: &str) -> Option<u64> {
    let digits = descr.strip_prefix(['U', 'S'])?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|width| is_number && *width > 0)
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The rest of the header.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) { Ok(()) } else { Err(format!("its header lacks a `{token}`")) }
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c));
        let end = quote.and_then(|quote| text[1..].find(quote));
        let end = end.ok_or("its header lacks a quoted string")?;
        self.0 = &text[end + 2..];
        Ok(&text[1..=end])
    }

    fn descr(&mut self) -> Result<&'a str, String> {
        if self.0.trim_start().starts_with('[') {
            return Err("its array has named fields".to_owned());
        }
        self.quoted()
    }

    fn truth(&mut self) -> Result<bool, String> {
        let is_true = self.take("True");
        if is_true || self.take("False") {
            Ok(is_true)
        } else {
            Err("its 'fortran_order' is neither True nor False".to_owned())
        }
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        self.expect("(")?;
        let mut dims = Vec::new();
        while !self.take(")") {
            let text = self.0.trim_start();
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let dim = text[..digits].parse().map_err(|_| "its shape is not a list of lengths".to_owned())?;
            dims.push(dim);
            // Python 2 wrote long integers with this suffix.
            self.0 = text[digits..].trim_start_matches('L');
            if !self.take(",") && !self.0.trim_start().starts_with(')') {
                return Err("its shape is not a list of lengths".to_owned());
            }
        }
        Ok(dims)
    }
}

/// A header of version 1, padded to a multiple of 64 bytes and to at least `min_len`, so that a longer one fits in its place.
pub fn write(descr: &str, shape: &[u64], min_len: usize) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if dims.len() == 1 { "," } else { "" };
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", dims.join(", "));
    let len = (10 + text.len() + 1).max(min_len).next_multiple_of(64) - 10;
    text.push_str(&" ".repeat(len - 1 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((len as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(text: &str) -> Result<NpyHeader, String> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        parse(&bytes)
    }

    #[test]
    fn headers_as_numpy_writes_them() {
        let header =
            with("{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3), }          \n").unwrap();
        assert_eq!((header.raw, header.is_big_endian, header.is_fortran), (RawType::F32, false, false));
        assert_eq!(header.shape, [10, 3]);
        let header = with("{'descr': '>i8', 'fortran_order': True, 'shape': (7L,), }\n").unwrap();
        assert_eq!((header.raw, header.is_big_endian, header.is_fortran), (RawType::I64, true, true));
        assert_eq!(header.shape, [7]);
        assert_eq!(with("{'shape': (), 'descr': '|u1', 'fortran_order': False}").unwrap().shape, [0u64; 0]);
    }

    #[test]
    fn headers_of_other_arrays_are_refused() {
        let shape = "'fortran_order': False, 'shape': (1,), }";
        for (text, part) in [
            (format!("{{'descr': '|O', {shape}"), "pickle"),
            (format!("{{'descr': '<U0', {shape}"), "'<U0'"),
            (format!("{{'descr': '<U-5', {shape}"), "'<U-5'"),
            (format!("{{'descr': '|V5', {shape}"), "'|V5'"),
            (format!("{{'descr': [('a', '<f4')], {shape}"), "fields"),
            (format!("{{'descr': '<c8', {shape}"), "'<c8'"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }".to_owned(), "shape"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }".to_owned(),
                "shape",
            ),
            ("{'descr': '<f4', 'shape': (1,), }".to_owned(), "fortran_order"),
            ("((((((".to_owned(), "`{`"),
            (String::new(), "`{`"),
        ] {
            let error = with(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{").unwrap_err().contains("claims 4294967295"));
        assert!(parse(b"\x93NUMPY\x01\x00\x40\x00{").unwrap_err().contains("cut off"));
        assert!(parse(b"PK\x03\x04 some zip").unwrap_err().contains("begin"));
    }

    proptest! {
        #[test]
        fn written_headers_are_read_back(dims in prop::collection::vec(0u64..u64::MAX, 0..4), min_len in 0usize..300) {
            let bytes = write("<f2", &dims, min_len);
            prop_assert!(bytes.len().is_multiple_of(64) && bytes.len() >= min_len);
            let header = parse(&bytes).unwrap();
            prop_assert_eq!((header.raw, header.shape, header.len), (RawType::F16, dims, bytes.len()));
        }

        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let mut framed = b"\x93NUMPY\x01\x00".to_vec();
            framed.extend((bytes.len() as u16).to_le_bytes());
            framed.extend(&bytes);
            let _ = parse(&framed);
        }
    }
}
