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
pub(crate) mod npz;
mod open;
mod reader;
mod rows;
pub(crate) mod safetensors;
mod split_side;
pub mod targets;

pub use array::RawArray;
pub(crate) use bytes::{Bytes, MemoryBudget};
pub use element::RawType;
pub use element::{to_f64 as raw_to_f64, to_i128 as raw_to_i128};
pub use known::same_columns;
pub use listing::{Listing, list};
pub use open::open;
pub use reader::{ArrayReader, NamedArrays};
pub use rows::RawRows;
pub(crate) use split_side::{has_test_rows, of_side};

use super::format::{Format, Reader};
use super::write::{ArrayStorage, WriteFormat, Writer};
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
            side: |_| None,
        }),
        writer: Some(WriteFormat {
            writer: Writer::Arrays(npy::create, ArrayStorage { has_bf16: false, has_categories: false }),
            endings: &["npy"],
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
            writer: Writer::Arrays(npz::create, ArrayStorage { has_bf16: false, has_categories: false }),
            endings: &["npz"],
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
            writer: Writer::Arrays(
                safetensors::create,
                ArrayStorage { has_bf16: true, has_categories: true },
            ),
            endings: &["safetensors"],
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
            side: idx::side,
        }),
        writer: None,
    },
];
