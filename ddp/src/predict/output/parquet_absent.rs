//! Stand-in for Parquet in builds without it.

use ddp_rows::error::RowsError;

use super::block::{Block, OutputColumn};
use super::index::Located;
use super::temporary::Temporary;
use crate::data::DataError;
use crate::predict::error::Result;

/// An empty type, which can't be constructed.
pub(super) enum RankRowGroups {}

impl RankRowGroups {
    pub(super) fn create(
        _columns: &[OutputColumn],
        names: &Temporary,
        _rank: usize,
        _world_size: usize,
    ) -> Result<Self> {
        Err(DataError::Rows(RowsError::ParquetNotBuilt { path: names.out().to_owned() }).into())
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
