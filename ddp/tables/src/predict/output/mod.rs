//! Writes predictions: each rank encodes its blocks of rows, and rank 0 joins them in order. The output gets its name when it is
//! complete.
//!
//! [`file`] names the files and joins the shards. A format is an [`encoder::Encoder`], except for Parquet, whose row groups are
//! appended without decoding them.

pub(crate) mod block;
mod encoder;
mod csv;
mod index;
mod jsonl;
mod npy;
pub(crate) mod format;
mod temporary;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet_absent.rs"]
mod parquet;
mod stream;
pub(crate) mod file;
