//! Files on disk: tensors, atomic writes, checksums.
//!
//! The lowest room: it does not know configs, models or checkpoints.
//!
//! ```
//! use std::collections::HashMap;
//!
//! use ddp::storage::disk::OsDisk;
//! use ddp::storage::tensor_file::{self, TensorFile, TensorToWrite, Values};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("weights.safetensors");
//! let values = Values::F32(&[1.0, 2.0, 3.0, 4.0]);
//! let weight = TensorToWrite { name: "weight".into(), dims: vec![2, 2], values };
//! tensor_file::write(&OsDisk, &path, &[weight], &HashMap::new())?;
//!
//! let file = TensorFile::open(&path)?;
//! assert_eq!(file.dims("weight"), Some(&[2, 2][..]));
//! assert_eq!(file.tensor("weight")?, [1.0, 2.0, 3.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod fingerprint;
pub mod named_tensors;
pub mod user_file;
pub mod write_error;
pub(crate) mod checksum;
pub mod fault;
pub mod unfinished;
pub mod stream;
pub mod disk;
pub(crate) mod probe;
#[doc(hidden)]
pub mod atomic_write;
pub(crate) mod tensor_header;
pub mod tensor_file;
