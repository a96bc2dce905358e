//! `.safetensors`: named tensors after a JSON header.

use std::collections::HashSet;
use std::fmt;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::formats::arrays::array::{RawArray, checked_size};
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::reader::{ColumnTexts, NamedArrays};
use crate::formats::error::{Result, RowsError};
use crate::values::element::RawType;

/// Opens a file and checks its header against its length.
pub fn open<'a>(bytes: &'a Bytes, _budget: &'a MemoryBudget) -> Result<Box<dyn NamedArrays + 'a>> {
    Ok(Box::new(Tensors { header: Header::read(bytes)?, bytes }))
}

/// Whether a file that begins like this starts with the length of a header and the header.
pub(crate) fn has_signature(begin: &[u8]) -> bool {
    // The library's limit; text would be a far larger number.
    const MAX_HEADER: u64 = 100_000_000;
    let len = begin.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
    (2..=MAX_HEADER).contains(&len) && begin.get(8) == Some(&b'{')
}

/// The tensors of a file.
struct Tensors<'a> {
    header: Header,
    bytes: &'a Bytes,
}

impl NamedArrays for Tensors<'_> {
    fn names(&self) -> Vec<String> {
        self.header.metadata.offset_keys()
    }

    fn array(&self, name: &str) -> Result<RawArray> {
        self.header.array(self.bytes, name)
    }

    fn texts(&self) -> ColumnTexts {
        let texts = self.header.metadata.metadata().as_ref();
        let text = |key: &str| texts.and_then(|texts| texts.get(key));
        let names = |key: &str| text(key).and_then(|text| serde_json::from_str(text).ok());
        ColumnTexts {
            features: names(FEATURES_TEXT),
            targets: names(TARGETS_TEXT),
            labels: names(LABELS_TEXT),
            categories: text(CATEGORIES_TEXT)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
        }
    }
}

struct Header {
    metadata: Metadata,
    /// Offset of the first tensor.
    start: u64,
}

impl Header {
    fn read(bytes: &Bytes) -> Result<Self> {
        let whole = bytes.as_slice().expect("headers are read from mapped files");
        let read = SafeTensors::read_metadata(whole);
        // The library accepts repeated names and keeps the last tensor.
        let repeated = read.as_ref().ok().and_then(|(len, _)| repeated_name(whole.get(8..8 + len)?));
        bytes.check()?;
        let (len, metadata) = read.map_err(|error| match unknown_type(whole) {
            Some((name, got)) => wrong_type(bytes, &name, &got),
            None => malformed(bytes, reason(&error)),
        })?;
        if let Some(name) = repeated {
            return Err(malformed(bytes, format!("its header lists `{name}` twice")));
        }
        Ok(Header { metadata, start: len as u64 + 8 })
    }

    /// The tensor `name`.
    fn array(&self, bytes: &Bytes, name: &str) -> Result<RawArray> {
        let info = self.metadata.info(name).expect("its name was found in the header");
        let raw = match info.dtype {
            Dtype::BOOL => RawType::Bool,
            Dtype::U8 => RawType::U8,
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
            other => return Err(wrong_type(bytes, name, &format!("{other:?}"))),
        };
        let shape: Vec<u64> = info.shape.iter().map(|&dim| dim as u64).collect();
        let (dims, len) = checked_size(&shape, raw).ok_or_else(|| {
            malformed(bytes, format!("`{name}` of shape {shape:?} is too large for any file"))
        })?;
        let (start, end) = info.data_offsets;
        if (end - start) as u64 != len {
            return Err(malformed(bytes, format!("`{name}` of shape {shape:?} has {} bytes", end - start)));
        }
        Ok(RawArray::new(bytes.clone(), self.start + start as u64, raw, false, &dims))
    }
}

fn malformed(bytes: &Bytes, reason: String) -> RowsError {
    let hint = "is the file cut off, or still being written?";
    RowsError::Malformed { path: bytes.path().to_owned(), format: "safetensors", reason, hint }
}

fn wrong_type(bytes: &Bytes, name: &str, got: &str) -> RowsError {
    RowsError::ArrayType { path: bytes.path().to_owned(), name: name.to_owned(), got: got.to_owned() }
}

/// The first tensor whose type the library does not know, and the type.
fn unknown_type(file: &[u8]) -> Option<(String, String)> {
    let len = usize::try_from(u64::from_le_bytes(*file.first_chunk()?)).ok()?;
    let header: Value = serde_json::from_slice(file.get(8..)?.get(..len)?).ok()?;
    let unknown = |(name, info): (&String, &Value)| {
        let got = info["dtype"].as_str().filter(|_| name != "__metadata__")?;
        serde_json::from_value::<Dtype>(got.into()).is_err().then(|| (name.clone(), got.to_owned()))
    };
    header.as_object()?.iter().find_map(unknown)
}

/// The first repeated name of a JSON object.
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

/// The library's error in words for a user.
fn reason(error: &SafeTensorError) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall | E::HeaderTooLarge | E::InvalidHeaderLength => {
            "its header is cut off or damaged".to_owned()
        }
        E::MetadataIncompleteBuffer => "its length differs from the one in its header".to_owned(),
        other => other.to_string(),
    }
}

/// Names of the feature columns.
const FEATURES_TEXT: &str = "ddp_train.features";
/// Names of the target columns.
const TARGETS_TEXT: &str = "ddp_train.targets";
/// Labels of the class numbers, in their order.
const LABELS_TEXT: &str = "ddp_train.labels";
/// Columns of category numbers, with their vocabularies.
const CATEGORIES_TEXT: &str = "ddp_train.categories";
