//! Index of the blocks that a rank wrote to its shard.

/// A block in a rank's shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// Index of the block in the output.
    pub(super) block: u64,
    pub(super) n_rows: u64,
    /// Number of bytes; 0 for a row group of Parquet.
    pub(super) n_bytes: u64,
}

/// Encodes the entries of a shard as u64, little-endian.
pub(super) fn to_bytes(entries: &[IndexEntry]) -> Vec<u8> {
    let numbers = entries.iter().flat_map(|entry| [entry.block, entry.n_rows, entry.n_bytes]);
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// Decodes the result of [`to_bytes`].
pub(super) fn from_bytes(bytes: &[u8]) -> Vec<IndexEntry> {
    let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let entry = |&[block, n_rows, n_bytes]: &[u64; 3]| IndexEntry { block, n_rows, n_bytes };
    numbers.as_chunks::<3>().0.iter().map(entry).collect()
}

/// A block and the rank that wrote it.
pub(super) struct Located {
    pub(super) rank: usize,
    pub(super) entry: IndexEntry,
}

/// The blocks of all ranks in the order of the output.
pub(super) fn in_order(of_ranks: Vec<Vec<IndexEntry>>) -> Vec<Located> {
    let entries = of_ranks.into_iter().enumerate();
    let mut all: Vec<Located> = entries
        .flat_map(|(rank, entries)| entries.into_iter().map(move |entry| Located { rank, entry }))
        .collect();
    all.sort_by_key(|located| located.entry.block);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_orders() {
        let entry = |block| IndexEntry { block, n_rows: 3, n_bytes: 7 + block };
        assert_eq!(from_bytes(&to_bytes(&[entry(1), entry(3)])), [entry(1), entry(3)]);
        let order = in_order(vec![vec![entry(0), entry(2)], vec![entry(1), entry(3)]]);
        assert_eq!(
            order.iter().map(|l| (l.rank, l.entry.block)).collect::<Vec<_>>(),
            [(0, 0), (1, 1), (0, 2), (1, 3)]
        );
    }
}
