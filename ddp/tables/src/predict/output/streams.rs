//! A rank's blocks as one file of bytes per stream, and how the files are joined.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use ddp::storage::write_error::WriteError;

use crate::predict::output::block::Block;
use crate::predict::output::encoder::Encoder;
use crate::predict::output::index::{IndexEntry, Located};
use crate::predict::output::temporary::Temporary;

/// The streams of one rank. A single rank writes the first stream to the output itself, after space for its head.
pub(super) struct RankStreams {
    encoder: Box<dyn Encoder>,
    files: Vec<(PathBuf, BufWriter<File>)>,
    is_single: bool,
    /// Bytes of a block, one buffer per stream.
    encoded: Vec<Vec<u8>>,
}

impl RankStreams {
    pub(super) fn create(
        encoder: Box<dyn Encoder>,
        names: &Temporary,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, WriteError> {
        let is_single = world_size == 1;
        let path = |stream| if is_single && stream == 0 { names.whole() } else { names.stream(rank, stream) };
        let create = |path: PathBuf| {
            let file = names.create(&path).map_err(|source| WriteError { path: path.clone(), source })?;
            Ok((path, BufWriter::with_capacity(1 << 20, file)))
        };
        let n = encoder.n_streams();
        let mut files = (0..n).map(|stream| create(path(stream))).collect::<Result<Vec<_>, WriteError>>()?;
        if is_single {
            let (path, file) = &mut files[0];
            // The head is overwritten once the number of rows is known.
            let head = encoder.head(u64::MAX);
            file.write_all(&head).map_err(|source| WriteError { path: path.clone(), source })?;
        }
        Ok(RankStreams { encoder, files, is_single, encoded: vec![Vec::new(); n] })
    }

    /// Writes a block and returns its bytes in each stream.
    pub(super) fn write(&mut self, block: &Block) -> Result<Vec<u64>, WriteError> {
        self.encoded.iter_mut().for_each(Vec::clear);
        self.encoder.encode(block, &mut self.encoded);
        for ((path, file), bytes) in self.files.iter_mut().zip(&self.encoded) {
            file.write_all(bytes).map_err(|source| WriteError { path: path.clone(), source })?;
        }
        Ok(self.encoded.iter().map(|bytes| bytes.len() as u64).collect())
    }

    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        let flush = |(path, file): &mut (PathBuf, BufWriter<File>)| {
            file.flush().map_err(|source| WriteError { path: path.clone(), source })
        };
        self.files.iter_mut().try_for_each(flush)
    }

    /// Completes the output on rank 0 after all ranks have flushed their shards; returns its size in bytes.
    pub(super) fn join(
        mut self,
        names: &Temporary,
        blocks: &[Located],
        tick: &dyn Fn(),
    ) -> Result<u64, WriteError> {
        let n_rows = blocks.iter().map(|located| located.entry.n_rows).sum();
        let head = self.encoder.head(n_rows);
        let whole = names.whole();
        let failed = |source| WriteError { path: whole.clone(), source };
        let mut out = if self.is_single {
            let (_, file) = self.files.remove(0);
            let mut file = file.into_inner().map_err(|error| failed(error.into_error()))?;
            let rewrite = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&head));
            rewrite.and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
            file
        } else {
            let mut file = names.create(&whole).map_err(failed)?;
            file.write_all(&head).map_err(failed)?;
            file
        };
        for stream in usize::from(self.is_single)..self.encoder.n_streams() {
            append_stream(&mut out, names, stream, blocks, tick).map_err(failed)?;
        }
        out.sync_all().and_then(|()| out.metadata()).map(|data| data.len()).map_err(failed)
    }
}

/// Appends the blocks of a stream in order. The operating system copies the bytes.
fn append_stream(
    out: &mut File,
    names: &Temporary,
    stream: usize,
    blocks: &[Located],
    tick: &dyn Fn(),
) -> io::Result<()> {
    let n_ranks = blocks.iter().map(|located| located.rank + 1).max().unwrap_or(0);
    let shards = (0..n_ranks).map(|rank| {
        if blocks.iter().any(|located| located.rank == rank) {
            names.open(&names.stream(rank, stream)).map(Some)
        } else {
            Ok(None)
        }
    });
    let shards = shards.collect::<io::Result<Vec<_>>>()?;
    for Located { rank, entry: IndexEntry { stream_bytes, .. } } in blocks {
        let shard = shards[*rank].as_ref().expect("opened above");
        let n = stream_bytes[stream];
        tick();
        if io::copy(&mut shard.take(n), out)? != n {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a rank's shard is cut off"));
        }
    }
    Ok(())
}
