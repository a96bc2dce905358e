//! Stand-in for Parquet in builds without it.

use ddp::data::DataError;

use crate::formats::error::RowsError;
use crate::predict::error::Result;
use crate::predict::output::block::{Block, OutputColumn};
use crate::predict::output::index::Located;
use crate::predict::output::temporary::Temporary;

/// An empty type, which can't be constructed.
pub(super) enum RankRowGroups {}

impl RankRowGroups {
    pub(super) fn create(
        _columns: &[OutputColumn],
        names: &Temporary,
        _rank: usize,
        _world_size: usize,
    ) -> Result<Self> {
        Err(DataError::from(RowsError::ParquetNotBuilt { path: names.out().to_owned() }).into())
    }

    pub(super) fn write(&mut self, _block: &Block) -> Result<()> {
        match *self {}
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        match *self {}
    }

    pub(super) fn join(self, _names: &Temporary, _blocks: &[Located], _tick: &dyn Fn()) -> Result<u64> {
        match self {}
    }
}
