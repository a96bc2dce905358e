//! Verification of a checkpoint: every byte of its files, and whether they hold what the manifest says.

use std::io;

use ddp_kernels::cpu::threads;
use rayon::prelude::*;

use super::fault::Fault;
use super::names::MODEL_FILE;
use super::opened::Checkpoint;
use super::state_reader::StateReader;
use crate::storage::checksum::Checksum;
use crate::storage::fault::{FileEntry, FileFault};
use crate::storage::stream::Caching;
use crate::storage::tensor_file::{self, TensorFile};

impl Checkpoint {
    /// Reads all files, bypassing the page cache, and compares their checksums; then checks that they hold what the manifest
    /// lists: each parameter with its shape, and each element of the optimizer state exactly once.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn verify(&self) -> Result<(), Fault> {
        self.verify_with(Caching::Bypass)
    }

    /// Reads one file, and compares its checksum.
    ///
    /// # Errors
    /// The [`Fault`] found.
    pub(super) fn verify_file(&self, entry: &FileEntry, caching: Caching) -> Result<(), Fault> {
        check_checksum(entry, tensor_file::checksum(&self.path().join(&entry.name), caching))
    }

    /// Reads the model file, which decides how rows are read, and compares its checksum.
    ///
    /// # Errors
    /// The [`Fault`] found.
    pub(crate) fn verify_model(&self) -> Result<(), Fault> {
        let mut models = self.manifest().files.iter().filter(|entry| entry.name == MODEL_FILE);
        models.try_for_each(|entry| self.verify_file(entry, Caching::Keep))
    }

    pub(super) fn verify_with(&self, caching: Caching) -> Result<(), Fault> {
        threads::join_any_pool();
        let check = |entry: &FileEntry| self.verify_file(entry, caching);
        self.manifest().files.par_iter().map(check).collect::<Result<(), Fault>>()?;
        self.check_content(&TensorFile::open(&self.model_path())?, &StateReader::open(self)?)
    }

    /// Checks the files' headers against the manifest.
    pub(super) fn check_content(&self, model: &TensorFile, state: &StateReader) -> Result<(), Fault> {
        if let Some(difference) = self.differences(model).first() {
            return Err(
                FileFault::Malformed { name: MODEL_FILE.to_owned(), reason: difference.clone() }.into()
            );
        }
        state.check()
    }

    /// Differences between the model file and the manifest.
    fn differences(&self, model: &TensorFile) -> Vec<String> {
        let parameters = self.manifest().parameters.iter();
        let difference = parameters.filter_map(|parameter| match model.dims(&parameter.name) {
            None => Some(format!("{} {:?} is missing", parameter.name, parameter.shape)),
            Some(dims) if dims != parameter.shape => {
                Some(format!("{} is {dims:?}, expected {:?}", parameter.name, parameter.shape))
            }
            Some(_) => None,
        });
        difference.collect()
    }
}

/// Compares a file's length and checksum with its entry.
pub(super) fn check_checksum(entry: &FileEntry, read: io::Result<(u64, Checksum)>) -> Result<(), Fault> {
    let FileEntry { name, bytes, xxh3_128 } = entry;
    let (got, sum) =
        read.map_err(|error| FileFault::Unreadable { name: name.clone(), reason: error.to_string() })?;
    if got != *bytes {
        return Err(FileFault::Length { name: name.clone(), got, expected: *bytes }.into());
    }
    if sum != *xxh3_128 {
        let (got, expected) = (sum.to_string(), xxh3_128.to_string());
        return Err(FileFault::Changed { name: name.clone(), got, expected }.into());
    }
    Ok(())
}
