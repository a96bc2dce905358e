//! Contract between predictions and the formats they are written in.

use super::block::Block;

/// Encodes blocks of rows as bytes of one or several streams.
///
/// The file is [`Encoder::head`], then the first stream of all blocks in order, then the second stream of all blocks, and so on.
/// So the ranks encode their blocks independently, and the blocks are joined by copying bytes.
pub(crate) trait Encoder: Send {
    /// Number of streams.
    fn n_streams(&self) -> usize {
        1
    }

    /// Appends the bytes of a block to each stream.
    fn encode(&self, block: &Block, streams: &mut [Vec<u8>]);

    /// The begin of a file with `n_rows` rows. Its length does not depend on `n_rows`.
    fn head(&self, n_rows: u64) -> Vec<u8>;
}
