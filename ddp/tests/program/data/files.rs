//! Writes arrays in all formats with separate code, so that the program does not read files that it wrote itself.

// Each test program uses only part of this file.
#![allow(dead_code, unreachable_pub)]

use std::fmt::Write as _;
use std::io::{Cursor, Write as _};

use half::{bf16, f16};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Element {
    pub fn size_bytes(self) -> usize {
        match self {
            Element::U8 | Element::I8 => 1,
            Element::I16 | Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::F32 => 4,
            Element::I64 | Element::F64 => 8,
        }
    }

    /// Name of the type in NumPy.
    pub fn descr(self, is_big_endian: bool) -> String {
        let kind = match self {
            Element::U8 => "u1",
            Element::I8 => "i1",
            Element::I16 => "i2",
            Element::I32 => "i4",
            Element::I64 => "i8",
            Element::F16 => "f2",
            Element::Bf16 => panic!("NumPy has no bf16"),
            Element::F32 => "f4",
            Element::F64 => "f8",
        };
        let order = match (self.size_bytes(), is_big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        format!("{order}{kind}")
    }

    /// Name of the type in safetensors.
    pub fn dtype(self) -> &'static str {
        match self {
            Element::U8 => "U8",
            Element::I8 => "I8",
            Element::I16 => "I16",
            Element::I32 => "I32",
            Element::I64 => "I64",
            Element::F16 => "F16",
            Element::Bf16 => "BF16",
            Element::F32 => "F32",
            Element::F64 => "F64",
        }
    }

    /// Code of the type in IDX.
    pub fn code(self) -> u8 {
        match self {
            Element::U8 => 0x08,
            Element::I8 => 0x09,
            Element::I16 => 0x0b,
            Element::I32 => 0x0c,
            Element::F32 => 0x0d,
            Element::F64 => 0x0e,
            Element::I64 | Element::F16 | Element::Bf16 => panic!("IDX has no {self:?}"),
        }
    }

    /// The values as bytes.
    pub fn bytes(self, is_big_endian: bool, values: &[f64]) -> Vec<u8> {
        macro_rules! all {
            ($convert:expr) => {
                values
                    .iter()
                    .flat_map(|&value| {
                        let value = $convert(value);
                        if is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
                    })
                    .collect()
            };
        }
        match self {
            Element::U8 => all!(|v| v as u8),
            Element::I8 => all!(|v| v as i8),
            Element::I16 => all!(|v| v as i16),
            Element::I32 => all!(|v| v as i32),
            Element::I64 => all!(|v| v as i64),
            Element::F16 => all!(f16::from_f64),
            Element::Bf16 => all!(bf16::from_f64),
            Element::F32 => all!(|v| v as f32),
            Element::F64 => all!(|v: f64| v),
        }
    }
}

/// A `.npy` file.
pub fn npy(element: Element, is_big_endian: bool, shape: &[usize], values: &[f64]) -> Vec<u8> {
    let dims = shape.iter().map(|dim| format!("{dim}, ")).collect::<String>();
    let text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
        element.descr(is_big_endian),
        if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") }
    );
    let mut file = npy_with(&text);
    file.extend(element.bytes(is_big_endian, values));
    file
}

/// A `.npy` file with the header `text`.
pub fn npy_with(text: &str) -> Vec<u8> {
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((len as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.resize(10 + len - 1, b' ');
    file.push(b'\n');
    file
}

/// An IDX file.
pub fn idx(element: Element, shape: &[usize], values: &[f64]) -> Vec<u8> {
    let mut file = vec![0, 0, element.code(), shape.len() as u8];
    shape.iter().for_each(|&dim| file.extend((dim as u32).to_be_bytes()));
    file.extend(element.bytes(true, values));
    file
}

/// A `.npz` file of these arrays, each given as a complete `.npy` file.
pub fn npz(arrays: &[(&str, &[u8])], is_deflated: bool) -> Vec<u8> {
    let method = if is_deflated { CompressionMethod::Deflated } else { CompressionMethod::Stored };
    let options = SimpleFileOptions::default().compression_method(method);
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A `.safetensors` file of these tensors: name, type, shape, values.
pub fn safetensors(tensors: &[(&str, Element, &[usize], &[f64])]) -> Vec<u8> {
    let (mut header, mut data) = (String::from("{"), Vec::new());
    for (name, element, shape, values) in tensors {
        let start = data.len();
        data.extend(element.bytes(false, values));
        let comma = if start == 0 { "" } else { "," };
        let (dtype, end) = (element.dtype(), data.len());
        write!(
            header,
            "{comma}\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        )
        .unwrap();
    }
    header.push('}');
    safetensors_with(&header, &data)
}

/// A `.safetensors` file with the header `header`.
pub fn safetensors_with(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// Compresses with `gzip`.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Compresses with `zstd`.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}
