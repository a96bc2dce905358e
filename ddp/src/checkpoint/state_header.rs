//! Headers of state files: the ranges that a file holds, and where its tensors begin.
//!
//! Each rank reads the headers of its share of the files, which it also verifies, and the ranks exchange them. So a rank knows where all
//! state is and opens only the files that it reads.

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::opened::Checkpoint;
use super::options::SHARD_RANGES_KEY;
use super::shard_range::ShardRange;
use crate::storage::fault::FileFault;
use crate::storage::tensor_file::TensorFile;

/// Header of a state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StateHeader {
    /// Name of the file.
    pub(super) file: String,
    /// The ranges that each of its tensors holds.
    pub(super) ranges: Vec<ShardRange>,
    /// Its state tensors.
    pub(super) tensors: Vec<StateTensor>,
}

/// A tensor of a state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StateTensor {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    /// Offset of the first value in the file.
    pub(super) at: u64,
}

/// The state files that one rank verifies, open, with their headers.
#[derive(Debug)]
pub struct StateShare {
    pub(super) files: Vec<TensorFile>,
    pub(super) headers: Vec<StateHeader>,
}

impl StateShare {
    /// Opens the state files that rank `rank` of `world_size` verifies in [`Checkpoint::load`].
    ///
    /// # Errors
    /// The [`Fault`] of a file.
    pub fn open(checkpoint: &Checkpoint, rank: usize, world_size: usize) -> Result<Self, Fault> {
        let (mut files, mut headers) = (Vec::new(), Vec::new());
        for entry in checkpoint.state_files_of(rank, world_size) {
            let file = TensorFile::open(&checkpoint.path().join(&entry.name))?;
            headers.push(StateHeader::of(&file, &checkpoint.manifest().state)?);
            files.push(file);
        }
        Ok(StateShare { files, headers })
    }

    /// The headers, for the other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.headers).expect("names and numbers are plain text")
    }
}

impl StateHeader {
    /// Takes the ranges and the tensors `names` from the header of an open file.
    fn of(file: &TensorFile, names: &[String]) -> Result<Self, Fault> {
        let malformed = |reason: String| FileFault::Malformed { name: file.name().to_owned(), reason };
        let ranges = file.metadata().remove(SHARD_RANGES_KEY).unwrap_or_default();
        let ranges: Vec<ShardRange> = serde_json::from_str(&ranges)
            .map_err(|error| malformed(format!("`{SHARD_RANGES_KEY}`: {error}")))?;
        for ShardRange { param, start, end, offset } in &ranges {
            if start > end {
                return Err(malformed(format!("a range of {param} ends before it starts")).into());
            }
            if offset.checked_add(end - start).is_none() {
                return Err(malformed(format!("a range of {param} starts at element {offset}")).into());
            }
        }
        let mut tensors = Vec::new();
        for name in names {
            if let Some(dims) = file.dims(name) {
                let at = file.place(name, 0..0)?;
                tensors.push(StateTensor { name: name.clone(), dims: dims.to_vec(), at });
            }
        }
        Ok(StateHeader { file: file.name().to_owned(), ranges, tensors })
    }

    /// Shape of a state tensor, if the file has it.
    pub(super) fn dims(&self, name: &str) -> Option<&[usize]> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        tensor.map(|tensor| tensor.dims.as_slice())
    }

    /// Offset in the file of the elements from `start` to `end` of the state tensor `name`.
    ///
    /// # Errors
    /// [`FileFault::Malformed`] if there is no such tensor or it has fewer elements.
    pub(super) fn place(&self, name: &str, start: usize, end: usize) -> Result<u64, FileFault> {
        let malformed = |reason: String| FileFault::Malformed { name: self.file.clone(), reason };
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.ok_or_else(|| malformed(format!("it holds no tensor {name}")))?;
        let numel: usize = tensor.dims.iter().product();
        if end > numel {
            return Err(malformed(format!("{name} has {numel} elements, expected at least {end}")));
        }
        Ok(tensor.at + (start * size_of::<f32>()) as u64)
    }
}
