//! Parquet files that exceed the memory: their row groups are decoded on demand.

mod cache;
mod group_rows;
mod blocks;
mod open;
#[cfg(test)]
pub(super) mod tests;

pub(super) use open::open;
