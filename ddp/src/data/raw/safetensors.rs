//! `.safetensors`: named tensors behind a JSON header.

use std::collections::{HashMap, HashSet};
use std::fmt;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::array::RawArray;
use super::bytes::Bytes;
use super::element::RawType;
use super::npy::checked_size;
use crate::data::DataError;
use crate::data::error::Result;

/// The header, checked against the file's length.
pub(crate) struct Header {
    metadata: Metadata,
    /// Where the tensors begin.
    start: u64,
}

impl Header {
    pub(crate) fn read(bytes: &Bytes) -> Result<Self> {
        let whole = bytes.as_slice().expect("headers are read from mapped files");
        let read = SafeTensors::read_metadata(whole);
        // The library takes the last of several tensors of one name.
        let repeated = read.as_ref().ok().and_then(|(len, _)| repeated_name(whole.get(8..8 + len)?));
        bytes.check()?;
        let (len, metadata) = read.map_err(|error| malformed(bytes, reason(&error)))?;
        if let Some(name) = repeated {
            return Err(malformed(bytes, format!("its header has `{name}` twice")));
        }
        Ok(Header { metadata, start: len as u64 + 8 })
    }

    /// Names of the tensors, in the file's order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The texts beside the tensors.
    pub(crate) fn texts(&self) -> HashMap<String, String> {
        self.metadata.metadata().clone().unwrap_or_default()
    }

    /// The tensor `name`.
    pub(crate) fn array(&self, bytes: &Bytes, name: &str) -> Result<RawArray> {
        let info = self.metadata.info(name).expect("its name was found in the header");
        let raw = match info.dtype {
            Dtype::BOOL | Dtype::U8 => RawType::U8,
            Dtype::I8 => RawType::I8,
            Dtype::U16 => RawType::U16,
            Dtype::I16 => RawType::I16,
            Dtype::U32 => RawType::U32,
            Dtype::I32 => RawType::I32,
            Dtype::U64 => RawType::U64,
            Dtype::I64 => RawType::I64,
            Dtype::F16 => RawType::F16,
            Dtype::BF16 => RawType::Bf16,
            Dtype::F32 => RawType::F32,
            Dtype::F64 => RawType::F64,
            other => {
                return Err(malformed(
                    bytes,
                    format!("`{name}` is of type {other:?}, which is no number to train on"),
                ));
            }
        };
        let shape: Vec<u64> = info.shape.iter().map(|&dim| dim as u64).collect();
        let (dims, len) = checked_size(&shape, raw).ok_or_else(|| {
            malformed(bytes, format!("`{name}` of shape {shape:?} is more than any file holds"))
        })?;
        let (start, end) = info.data_offsets;
        if (end - start) as u64 != len {
            return Err(malformed(bytes, format!("`{name}` of shape {shape:?} has {} bytes", end - start)));
        }
        Ok(RawArray::new(bytes.clone(), self.start + start as u64, raw, false, &dims))
    }
}

fn malformed(bytes: &Bytes, reason: String) -> DataError {
    let hint = "is the file cut off, or still being written?";
    DataError::Malformed { path: bytes.path().to_owned(), format: "safetensors", reason, hint }
}

/// The first name that a JSON object has twice.
fn repeated_name(json: &[u8]) -> Option<String> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut seen, mut repeated) = (HashSet::new(), None);
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                if seen.contains(&name) {
                    repeated.get_or_insert(name);
                } else {
                    seen.insert(name);
                }
            }
            Ok(repeated)
        }
    }
    serde_json::Deserializer::from_slice(json).deserialize_map(Names).ok().flatten()
}

/// The library's error in a user's words.
fn reason(error: &SafeTensorError) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall | E::HeaderTooLarge | E::InvalidHeaderLength => {
            "its header is cut off or no header at all".to_owned()
        }
        E::MetadataIncompleteBuffer => "it is shorter or longer than its header says".to_owned(),
        other => other.to_string(),
    }
}
