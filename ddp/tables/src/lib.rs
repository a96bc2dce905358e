//! Tables and arrays as rows to train on, and predictions of them.
//!
//! The crate stands above the trainer: [`load()`] makes the [`Dataset`](ddp::data::Dataset)s of a config from files, and `ddp` trains on
//! them without knowing what they come from.
//!
//! Data flow: files of a pattern (`open`) -> arrays that are mapped (`arrays`) or the rows of a table (`table`) -> training and
//! evaluation rows (`split`) -> statistics and codes of the training rows (`fit`) -> [`Loaded`](ddp::data::Loaded). [`predict`] applies a
//! saved model to rows that are read in the same way.
//!
//! Global state: the copies of objects in stores that this process uses.
//!
//! Statistics are merged over a fixed number of parts of the rows, in order, so that the number of ranks changes no bit.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod values;
#[doc(hidden)]
pub mod formats;
pub mod error;
mod checks;
mod host_once;
pub mod io;
#[doc(hidden)]
pub mod shared_types;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod row_values;
#[doc(hidden)]
pub mod labels;
#[doc(hidden)]
pub mod arrays;
#[doc(hidden)]
pub mod table;
#[doc(hidden)]
pub mod open;
#[doc(hidden)]
pub mod split;
#[doc(hidden)]
pub mod fit;
#[doc(hidden)]
pub mod kept_tables;
pub mod load;
#[doc(hidden)]
pub mod importance;
#[cfg(feature = "onnx")]
pub mod export;
pub mod predict;

#[cfg(test)]
mod testing;

pub use fit::preprocess::Preprocessor;
pub use load::{Fitted, load, load_with};
pub use predict::Predictor;
pub use source::SourceSpec;
