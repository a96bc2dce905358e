//! Contract between predictions and the formats in which they are written.

use crate::predict::output::block::Block;

/// Encodes blocks of rows as bytes.
///
/// The file consists of [`Encoder::head`] and the bytes of all blocks in order. So ranks encode their blocks independently, and
/// blocks are joined by copying bytes.
pub(crate) trait Encoder: Send {
    /// Appends the bytes of a block.
    fn encode(&self, block: &Block, bytes: &mut Vec<u8>);

    /// The start of a file with `n_rows` rows. Its length does not depend on `n_rows`.
    fn head(&self, n_rows: u64) -> Vec<u8>;
}
