//! Contract between predictions and the formats in which they are written.

use crate::predict::output::block::Block;

/// Encodes blocks of rows as the bytes of one or more streams.
///
/// The file consists of [`Encoder::head`], then the first stream of all blocks in order, then the second stream of all blocks,
/// and so on. So ranks encode their blocks independently, and blocks are joined by copying bytes.
pub(crate) trait Encoder: Send {
    /// Number of streams.
    fn n_streams(&self) -> usize {
        1
    }

    /// Appends the bytes of a block to each stream.
    fn encode(&self, block: &Block, streams: &mut [Vec<u8>]);

    /// The start of a file with `n_rows` rows. Its length does not depend on `n_rows`.
    fn head(&self, n_rows: u64) -> Vec<u8>;
}
