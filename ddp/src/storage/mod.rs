//! Files on disk: reading files that the user named, atomic writes, checksums.
//!
//! The lowest module: it knows no config, no model and no checkpoint.

pub(crate) mod atomic_write;
pub(crate) mod checksum;
pub mod disk;
pub mod fault;
pub(crate) mod fingerprint;
pub mod stream;
pub mod tensor_file;
pub mod unfinished;
pub(crate) mod user_file;
