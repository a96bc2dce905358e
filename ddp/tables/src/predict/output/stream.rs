//! A rank's blocks as one file of bytes, and how the files are joined.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use ddp::storage::write_error::WriteError;

use crate::predict::output::block::Block;
use crate::predict::output::encoder::Encoder;
use crate::predict::output::index::Located;
use crate::predict::output::temporary::Temporary;

/// The blocks of one rank. A single rank writes them to the output itself, after space for its head.
pub(super) struct RankStream {
    encoder: Box<dyn Encoder>,
    path: PathBuf,
    file: BufWriter<File>,
    is_single: bool,
    /// Bytes of a block.
    encoded: Vec<u8>,
}

impl RankStream {
    pub(super) fn create(
        encoder: Box<dyn Encoder>,
        names: &Temporary,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, WriteError> {
        let is_single = world_size == 1;
        let path = if is_single { names.whole() } else { names.shard(rank) };
        let create = || {
            let mut file = BufWriter::with_capacity(1 << 20, names.create(&path)?);
            if is_single {
                // The head is overwritten once the number of rows is known.
                file.write_all(&encoder.head(u64::MAX))?;
            }
            Ok(file)
        };
        let file = create().map_err(|source| WriteError { path: path.clone(), source })?;
        Ok(RankStream { encoder, path, file, is_single, encoded: Vec::new() })
    }

    /// Writes a block and returns its number of bytes.
    pub(super) fn write(&mut self, block: &Block) -> Result<u64, WriteError> {
        self.encoded.clear();
        self.encoder.encode(block, &mut self.encoded);
        let written = self.file.write_all(&self.encoded);
        written.map_err(|source| WriteError { path: self.path.clone(), source })?;
        Ok(self.encoded.len() as u64)
    }

    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.file.flush().map_err(|source| WriteError { path: self.path.clone(), source })
    }

    /// Completes the output on rank 0 after all ranks have flushed their shards; returns its size in bytes.
    pub(super) fn join(
        self,
        names: &Temporary,
        blocks: &[Located],
        tick: &dyn Fn(),
    ) -> Result<u64, WriteError> {
        let head = self.encoder.head(blocks.iter().map(|located| located.entry.n_rows).sum());
        let whole = names.whole();
        let join = || {
            let out = if self.is_single {
                let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&head)?;
                file
            } else {
                let mut file = names.create(&whole)?;
                file.write_all(&head)?;
                append(&mut file, names, blocks, tick)?;
                file
            };
            out.sync_all()?;
            Ok(out.metadata()?.len())
        };
        join().map_err(|source| WriteError { path: whole.clone(), source })
    }
}

/// Appends the blocks of all ranks in order. The operating system copies the bytes.
fn append(out: &mut File, names: &Temporary, blocks: &[Located], tick: &dyn Fn()) -> io::Result<()> {
    let n_ranks = blocks.iter().map(|located| located.rank + 1).max().unwrap_or(0);
    let shards = (0..n_ranks).map(|rank| {
        if blocks.iter().any(|located| located.rank == rank) {
            names.open(&names.shard(rank)).map(Some)
        } else {
            Ok(None)
        }
    });
    let shards = shards.collect::<io::Result<Vec<_>>>()?;
    for Located { rank, entry } in blocks {
        let shard = shards[*rank].as_ref().expect("opened above");
        tick();
        if io::copy(&mut shard.take(entry.n_bytes), out)? != entry.n_bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a rank's shard is cut off"));
        }
    }
    Ok(())
}
