//! The header of safetensors files: texts, and names, types, shapes and places of tensors.
//!
//! Source: <https://github.com/huggingface/safetensors>, "Format".

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;

/// Maximum header length of the format.
const MAX_BYTES: u64 = 100_000_000;
/// Bytes of the header's length, before it.
const LENGTH_BYTES: usize = 8;

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    /// The format's name of the type, such as `F32`.
    pub(crate) dtype: String,
    pub(crate) dims: Vec<usize>,
    /// Its bytes among those after the header.
    pub(crate) bytes: Range<usize>,
}

/// A header that is consistent in itself.
#[derive(Debug)]
pub(crate) struct Header {
    texts: HashMap<String, String>,
    /// In the order of their values, which follow each other without gaps.
    tensors: Vec<(String, TensorInfo)>,
    numbers: HashMap<String, usize>,
}

/// A header that cannot be used, or does not fit its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadHeader {
    #[error("its header is cut off or no header at all")]
    Cut,
    #[error("it is shorter or longer than its header says: cut off?")]
    Length,
    #[error("its header can't be read: {0}")]
    Malformed(String),
}

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "__metadata__", default)]
    texts: Option<HashMap<String, String>>,
    #[serde(flatten)]
    tensors: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl Header {
    /// The length of the header in bytes, from the first bytes of a file of `n_bytes`.
    pub(crate) fn length(begin: &[u8], n_bytes: u64) -> Result<usize, BadHeader> {
        let len = begin.first_chunk().map_or(u64::MAX, |len| u64::from_le_bytes(*len));
        if len > MAX_BYTES || len + LENGTH_BYTES as u64 > n_bytes {
            return Err(BadHeader::Cut);
        }
        Ok(len as usize)
    }

    /// The header of a whole file, and the bytes after it.
    pub(crate) fn from_file(file: &[u8]) -> Result<(Self, &[u8]), BadHeader> {
        let len = Self::length(file, file.len() as u64)?;
        let (header, values) = file[LENGTH_BYTES..].split_at(len);
        let header = Self::parse(header)?;
        if header.n_bytes() == values.len() { Ok((header, values)) } else { Err(BadHeader::Length) }
    }

    /// Reads the JSON after the length.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, BadHeader> {
        let malformed = BadHeader::Malformed;
        let Fields { texts, tensors } =
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let mut sorted: Vec<(String, Entry)> = tensors.into_iter().collect();
        sorted.sort_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
        let (mut start, mut tensors) = (0, Vec::with_capacity(sorted.len()));
        for (name, Entry { dtype, shape: dims, data_offsets: (begin, end) }) in sorted {
            let Some(bits) = bits(&dtype) else {
                return Err(malformed(format!("{name} is of the unknown type {dtype}")));
            };
            let numel = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            let n_bits = numel.and_then(|numel| numel.checked_mul(bits));
            let n_bytes = n_bits.filter(|n_bits| n_bits % 8 == 0).map(|n_bits| n_bits / 8);
            if begin != start || end.checked_sub(begin) != n_bytes {
                return Err(malformed(format!(
                    "{name}, {dims:?} {dtype}, can't be at the bytes {begin} to {end}, after {start}"
                )));
            }
            start = end;
            tensors.push((name, TensorInfo { dtype, dims, bytes: begin..end }));
        }
        let numbers = tensors.iter().enumerate().map(|(number, (name, _))| (name.clone(), number)).collect();
        Ok(Header { texts: texts.unwrap_or_default(), tensors, numbers })
    }

    /// The texts, by their keys.
    pub(crate) fn texts(&self) -> &HashMap<String, String> {
        &self.texts
    }

    /// The tensors in the order of their values.
    pub(crate) fn tensors(&self) -> &[(String, TensorInfo)] {
        &self.tensors
    }

    /// The tensor of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.numbers.get(name).map(|number| &self.tensors[*number].1)
    }

    /// Bytes of all values.
    pub(crate) fn n_bytes(&self) -> usize {
        self.tensors.last().map_or(0, |(_, info)| info.bytes.end)
    }
}

/// Bits of an element.
fn bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let parse = |json: &str| Header::parse(json.as_bytes()).map(|header| header.n_bytes());
        assert_eq!(parse("{}"), Ok(0));
        let good = r#"{"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
            "a":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}"#;
        assert_eq!(parse(good), Ok(12));
        let header = Header::parse(good.as_bytes()).unwrap();
        assert_eq!(header.tensors().iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((header.find("b").unwrap().bytes.clone(), &header.texts()["k"][..]), (4..12, "v"));
        let entry = |dtype: &str, shape: &str, at: &str| {
            parse(&format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}}}"#))
        };
        for (dtype, shape, at) in [
            ("F32", "[2]", "[0,4]"),
            ("F32", "[1]", "[4,8]"),
            ("F32", "[1]", "[4,0]"),
            ("F128", "[1]", "[0,16]"),
            ("F4", "[1]", "[0,1]"),
            ("F32", "[18446744073709551615,2]", "[0,4]"),
            ("F32", "[-1]", "[0,4]"),
        ] {
            let error = entry(dtype, shape, at).unwrap_err();
            assert!(matches!(error, BadHeader::Malformed(_)), "{dtype} {shape} {at}: {error}");
        }
        // Two that overlap.
        let twice = good.replace("[4,12]", "[0,8]");
        assert!(parse(&twice).is_err());
    }

    #[test]
    fn a_file_is_as_long_as_its_header_says() {
        let json = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
        let file = [&(json.len() as u64).to_le_bytes()[..], json, &[1, 2, 3]].concat();
        assert_eq!(Header::from_file(&file).unwrap().1, [1, 2, 3]);
        for len in 0..file.len() {
            let error = Header::from_file(&file[..len]).unwrap_err();
            assert_eq!(error, if len < json.len() + 8 { BadHeader::Cut } else { BadHeader::Length });
        }
        assert_eq!(Header::from_file(&[&file[..], &[0]].concat()).unwrap_err(), BadHeader::Length);
        assert_eq!(
            Header::from_file(&[u64::MAX.to_le_bytes(), [0; 8]].concat()).unwrap_err(),
            BadHeader::Cut
        );
    }
}
