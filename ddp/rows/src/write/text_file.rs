//! A file of text that is written from its start to its end, plain or compressed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;

use super::Staging;
use crate::compression::Compression;
use crate::error::Result;
use crate::error::WriteError;

/// A file of text.
pub struct TextFile {
    path: PathBuf,
    out: Out,
}

/// The file or its compressor.
enum Out {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl TextFile {
    /// Creates the file `path`; its name determines the compression.
    pub fn create(path: &Path, staging: &mut Staging) -> Result<Self> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let file = BufWriter::with_capacity(1 << 18, staging.create(path)?);
        let out = match Compression::of(path) {
            // No name of a file to write means an archive.
            Compression::None | Compression::Zip => Out::Plain(file),
            Compression::Gzip => Out::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => Out::Zstd(zstd::Encoder::new(file, 0).map_err(failed)?),
        };
        Ok(TextFile { path: path.to_owned(), out })
    }

    /// Appends `text`.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let bytes = text.as_bytes();
        let written = match &mut self.out {
            Out::Plain(file) => file.write_all(bytes),
            Out::Gzip(packer) => packer.write_all(bytes),
            Out::Zstd(packer) => packer.write_all(bytes),
        };
        Ok(written.map_err(|source| WriteError { path: self.path.clone(), source })?)
    }

    /// Completes the file on the disk.
    pub fn finish(self) -> Result<()> {
        let Self { path, out } = self;
        let end = || -> std::io::Result<()> {
            let buffered = match out {
                Out::Plain(file) => file,
                Out::Gzip(packer) => packer.finish()?,
                Out::Zstd(packer) => packer.finish()?,
            };
            buffered.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}
