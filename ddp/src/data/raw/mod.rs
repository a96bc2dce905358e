//! Formats whose rows lie in files as arrays: npy, npz, safetensors, IDX. Rows are read when they are needed, not before.
//!
//! A format is a folder or file with its reader and writer, and a row in `FORMATS`.

mod array;
mod bytes;
mod element;
mod fortran;
pub mod idx;
mod known;
mod listing;
pub mod npy;
mod npz;
mod open;
mod own_parts;
mod reader;
mod rows;
mod safetensors;
mod targets;

pub(crate) use array::RawArray;
pub use element::RawType;
pub(crate) use known::same_columns;
pub(crate) use listing::{Listing, list};
pub(crate) use open::open;
pub(crate) use own_parts::{has_test_rows, of_part};
pub(crate) use reader::ArrayReader;
pub(crate) use rows::RawRows;

use ddp_kernels::DType;

use super::format::{Format, Reader};
use super::write::{CategoryStorage, Storage, WriteFormat};
use crate::config::DataFormat;

/// The formats of arrays.
pub(crate) const FORMATS: &[Format] = &[
    Format {
        id: DataFormat::Npy,
        title: "npy",
        has_signature: |begin| begin.starts_with(b"\x93NUMPY"),
        is_text: false,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Single {
            open: npy::open,
            labels_name: |_| None,
            part: |_| None,
        }),
        writer: Some(WriteFormat {
            open: npy::create,
            open_text: None,
            endings: &["npy"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::U8],
                categories: CategoryStorage::None,
            },
        }),
    },
    Format {
        id: DataFormat::Npz,
        title: "npz",
        has_signature: npz::has_signature,
        is_text: false,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Named { open: npz::open, is_archive: true }),
        writer: Some(WriteFormat {
            open: npz::create,
            open_text: None,
            endings: &["npz"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::U8],
                categories: CategoryStorage::None,
            },
        }),
    },
    Format {
        id: DataFormat::Safetensors,
        title: "safetensors",
        has_signature: safetensors::has_signature,
        is_text: false,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Named { open: safetensors::open, is_archive: false }),
        writer: Some(WriteFormat {
            open: safetensors::create,
            open_text: None,
            endings: &["safetensors"],
            storage: Storage {
                dtypes: &[DType::F32, DType::F16, DType::BF16, DType::U8],
                categories: CategoryStorage::Codes,
            },
        }),
    },
    Format {
        id: DataFormat::Idx,
        title: "IDX",
        has_signature: |begin| matches!(begin, [0, 0, 8..=14, 1..=8, ..]),
        is_text: false,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Single {
            open: idx::open,
            labels_name: idx::labels_name,
            part: idx::part,
        }),
        writer: None,
    },
];
