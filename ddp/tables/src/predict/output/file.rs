//! The output of `predict`: every rank writes blocks to its shard; rank 0 joins the shards and renames the file.

use std::path::{Path, PathBuf};

use ddp::storage::unfinished::Unfinished;
use ddp::storage::user_file::open_regular;
use ddp::storage::write_error::WriteError;
use ddp_comm::World;

use crate::predict::error::{PredictError, Result};
use crate::predict::output::block::{Block, OutputColumn};
use crate::predict::output::encoder::Encoder;
use crate::predict::output::format::OutputFormat;
use crate::predict::output::index;
use crate::predict::output::index::{IndexEntry, Located};
use crate::predict::output::parquet::RankRowGroups;
use crate::predict::output::stream::RankStream;
use crate::predict::output::temporary::Temporary;

/// An error of a function that every rank calls.
pub(crate) type Stop = ddp_comm::Stop<PredictError>;

/// Predictions that are being written to a file. Dropping it before [`OutputFile::finish`] removes the temporary files.
pub(crate) struct OutputFile {
    path: PathBuf,
    names: Temporary,
    shard: RankOutput,
    entries: Vec<IndexEntry>,
    rank: usize,
    world_size: usize,
}

enum RankOutput {
    Stream(RankStream),
    Parquet(Box<RankRowGroups>),
    /// The shards were joined.
    Joined,
}

impl OutputFile {
    /// Starts the output `path`; every rank calls it.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub(crate) fn create(
        world: &World,
        path: &Path,
        format: OutputFormat,
        columns: &[OutputColumn],
        unfinished: &Unfinished,
    ) -> Result<Self, Stop> {
        // Agree on a name for the temporary files.
        let processes = gather(world, &std::process::id().to_le_bytes())?;
        let process = processes[0].as_slice().try_into().map_or(0, u32::from_le_bytes);
        let names = Temporary::new(path, process, unfinished);
        let (rank, world_size) = (world.rank().0, world.world_size());
        let create = || -> Result<Self> {
            if rank == 0 {
                names.remove_left_over();
            }
            let shard = match format.encoder(columns) {
                Some(encoder) => RankOutput::Stream(RankStream::create(encoder, &names, rank, world_size)?),
                None => {
                    RankOutput::Parquet(Box::new(RankRowGroups::create(columns, &names, rank, world_size)?))
                }
            };
            let (path, entries) = (path.to_owned(), Vec::new());
            Ok(OutputFile { path, names: names.clone(), shard, entries, rank, world_size })
        };
        Ok(world.collective_result(create())?)
    }

    /// Writes the block with the index `number`, counted over all ranks.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub(crate) fn write(&mut self, number: u64, block: &Block) -> Result<()> {
        let n_bytes = match &mut self.shard {
            RankOutput::Stream(shard) => shard.write(block)?,
            RankOutput::Parquet(shard) => {
                shard.write(block)?;
                0
            }
            RankOutput::Joined => unreachable!("blocks are written before the join"),
        };
        self.entries.push(IndexEntry { block: number, n_rows: block.n_rows as u64, n_bytes });
        Ok(())
    }

    /// Joins the shards under the output's name; every rank calls it. Returns the number of rows and, on rank 0, the number of
    /// bytes.
    ///
    /// # Errors
    /// [`PredictError::Write`], [`PredictError::NotShared`].
    pub(crate) fn finish(mut self, world: &World) -> Result<(u64, u64), Stop> {
        world.collective_result(self.flush())?;
        let indices = gather(world, &index::to_bytes(&self.entries))?;
        let blocks = index::in_order(indices.iter().map(|bytes| index::from_bytes(bytes)).collect());
        let joined = if self.rank == 0 { self.join(&blocks, &|| world.watchdog().tick()) } else { Ok(0) };
        let n_bytes = world.collective_result(joined)?;
        Ok((blocks.iter().map(|located| located.entry.n_rows).sum(), n_bytes))
    }

    fn flush(&mut self) -> Result<()> {
        match &mut self.shard {
            RankOutput::Stream(shard) => shard.flush()?,
            RankOutput::Parquet(shard) => shard.finish()?,
            RankOutput::Joined => {}
        }
        Ok(())
    }

    fn join(&mut self, blocks: &[Located], tick: &dyn Fn()) -> Result<u64> {
        for rank in 1..self.world_size {
            let path = self.names.shard(rank);
            if !path.exists() {
                return Err(PredictError::NotShared { rank, path });
            }
        }
        let n_bytes = match std::mem::replace(&mut self.shard, RankOutput::Joined) {
            RankOutput::Stream(shard) => shard.join(&self.names, blocks, tick)?,
            RankOutput::Parquet(shard) => shard.join(&self.names, blocks, tick)?,
            RankOutput::Joined => 0,
        };
        let failed = |source| WriteError { path: self.path.clone(), source };
        self.names.complete().map_err(failed)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        open_regular(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(n_bytes)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        self.names.remove_all(self.rank, self.world_size);
    }
}

fn gather(world: &World, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    Ok(world.group().all_gather_bytes(bytes)?)
}

/// Predictions on stdout, from a single rank.
pub(crate) struct OutputStream {
    encoder: Box<dyn Encoder>,
    encoded: Vec<u8>,
    n_rows: u64,
}

impl OutputStream {
    pub(crate) fn new(encoder: Box<dyn Encoder>) -> Self {
        OutputStream { encoded: encoder.head(0), encoder, n_rows: 0 }
    }

    /// Encodes a block and returns the bytes to print; the first ones start with the head.
    pub(crate) fn encode(&mut self, block: &Block) -> &[u8] {
        if self.n_rows > 0 {
            self.encoded.clear();
        }
        self.n_rows += block.n_rows as u64;
        self.encoder.encode(block, &mut self.encoded);
        &self.encoded
    }
}
