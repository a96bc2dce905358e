//! Files and bytes on disk: reading what the user named, writing so that nothing half-written is ever seen, checksums.
//!
//! The lowest room: it knows no config, no model and no checkpoint.

pub mod atomic_write;
pub mod checksum;
pub mod disk;
pub mod fault;
pub(crate) mod fingerprint;
pub mod stream;
pub mod tensor_file;
pub mod user_file;
