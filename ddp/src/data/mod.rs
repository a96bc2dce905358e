//! Rows in memory: from CSV or the built-in sets, checked, split and normalised.
//!
//! Data flow: config -> **dataset** -> shard of the global batch. [`load`] is the way in.

mod builtin;
mod csv;
mod dataset;
mod load;
mod normalize;
mod split;

pub use self::builtin::{NAMES as BUILTIN_NAMES, digits};
pub use self::csv::read as read_csv;
pub(crate) use self::dataset::fingerprint;
pub use self::dataset::{Dataset, Targets};
pub use self::load::{Loaded, Part, TargetSpec, load, match_columns, read_source};
pub use self::normalize::Normalizer;
pub use self::split::split;
