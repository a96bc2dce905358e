//! `.safetensors`: named tensors after a JSON header.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ddp::storage::write_error::WriteError;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::formats::arrays::array::{RawArray, checked_size};
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::reader::{ColumnTexts, NamedArrays, WEIGHTS_KEY};
use crate::formats::error::{Result, RowsError};
use crate::formats::write::{ArrayLayout, ArrayRows, ArrayWriter, OutFiles, Staging};
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

/// Writes `.safetensors`: features, labels and weights, with the names of columns and the values of categories.
///
/// Source: <https://huggingface.co/docs/safetensors>: length of the header, header in JSON padded with spaces, then the
/// tensors without gaps.
///
/// Opens the file of a writer.
pub fn create(layout: &ArrayLayout, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ArrayWriter>> {
    Ok(Box::new(SafetensorsWriter::new(layout, &files.rows, staging)?))
}

/// Writes tensors of features, labels and weights.
struct SafetensorsWriter {
    layout: ArrayLayout,
    path: PathBuf,
    /// Space for the header, then the features.
    file: BufWriter<File>,
    /// Unnamed file; appended after the features.
    targets: BufWriter<File>,
    weights: BufWriter<File>,
    header_len: usize,
    n_rows: u64,
}

impl SafetensorsWriter {
    fn new(layout: &ArrayLayout, path: &Path, staging: &mut Staging) -> Result<Self> {
        let buffered = |file| BufWriter::with_capacity(1 << 18, file);
        let mut file = buffered(staging.create(path)?);
        // A header with the longest possible numbers; the tensors start at a multiple of 64.
        let longest = header(layout, u64::MAX).to_string().len();
        let header_len = (8 + longest).next_multiple_of(64);
        let reserved = file.write_all(&vec![b' '; header_len]);
        reserved.map_err(|source| WriteError { path: path.to_owned(), source })?;
        Ok(SafetensorsWriter {
            file,
            targets: buffered(staging.scratch(path, "labels")?),
            weights: buffered(staging.scratch(path, "weights")?),
            path: path.to_owned(),
            header_len,
            n_rows: 0,
            layout: layout.clone(),
        })
    }
}

impl ArrayWriter for SafetensorsWriter {
    fn write(&mut self, rows: &ArrayRows) -> Result<()> {
        let mut put = || -> std::io::Result<()> {
            self.file.write_all(&rows.features)?;
            self.targets.write_all(&rows.targets)?;
            self.weights.write_all(&rows.weights)
        };
        put().map_err(|source| WriteError { path: self.path.clone(), source })?;
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { layout, path, mut file, targets, weights, header_len, n_rows } = *self;
        let end = || -> std::io::Result<()> {
            for rest in [targets, weights] {
                let mut rest = rest.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                rest.seek(SeekFrom::Start(0))?;
                std::io::copy(&mut rest, &mut file)?;
            }
            let mut text = header(&layout, n_rows).to_string();
            text.push_str(&" ".repeat(header_len - 8 - text.len()));
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(text.as_bytes())?;
            file.flush()?;
            file.get_ref().sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}

fn header(layout: &ArrayLayout, n_rows: u64) -> Value {
    let mut texts = json!({ FEATURES_TEXT: json_text(&layout.features) });
    if !layout.targets.is_empty() {
        texts[TARGETS_TEXT] = json_text(&layout.targets);
    }
    if let Some(labels) = &layout.labels {
        texts[LABELS_TEXT] = json_text(labels);
    }
    if !layout.categories.is_empty() {
        texts[CATEGORIES_TEXT] = json_text(&layout.categories);
    }
    let mut header = json!({ "__metadata__": texts });
    let mut start = 0u64;
    let mut put = |name: &str, raw: RawType, shape: Vec<u64>| {
        let n_bytes = shape.iter().fold(raw.size_bytes() as u64, |n, dim| n.saturating_mul(*dim));
        let end = start.saturating_add(n_bytes);
        let dtype = raw.name().to_ascii_uppercase();
        header[name] = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
        start = end;
    };
    put("features", layout.dtype, layout.feature_shape(n_rows));
    if !layout.targets.is_empty() {
        put("labels", layout.target_dtype, layout.target_shape(n_rows));
    }
    if let Some(raw) = layout.weight_dtype {
        put(WEIGHTS_KEY, raw, vec![n_rows]);
    }
    header
}

/// A value as JSON in a string, because the metadata of a header holds strings only.
fn json_text(value: &impl serde::Serialize) -> Value {
    Value::String(serde_json::to_string(value).expect("names and values of categories are texts and numbers"))
}
