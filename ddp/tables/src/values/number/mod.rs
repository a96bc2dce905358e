//! Numbers in text, for all formats: cells of CSV and JSON, texts of Parquet, labels, and names of folders.
//!
//! | | |
//! |---|---|
//! | signs | `-`, `+` |
//! | digits, exponent | as in Rust: `12`, `.5`, `5.`, `1e3`, `1E+3` |
//! | fraction | after a point, or a comma where the file has such ([`DecimalMark`]) |
//! | thousands | groups of three digits between commas or points, by [`DecimalMark`] |
//! | not finite | `inf`, `infinity`, `nan` in any case: numbers, which most columns refuse |
//! | truth values | `true`, `false`, `yes`, `no` in any case: 1 and 0 ([`ddp::data::spelling::truth_word`]) |
//!
//! `marks` finds the marks of a file and turns a number into the notation of Rust, whose parser decides; `digits` is the fast path with
//! the same result. Marks of missing values, dates and times are in [`super::notation`].

pub mod digits;
pub mod marks;

pub use digits::Exact;
pub use marks::{DecimalMark, NumberText, Unclear, is_grouped};
