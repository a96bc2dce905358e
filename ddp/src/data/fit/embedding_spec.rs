//! Shape of a categorical feature's embedding table, determined by its vocabulary.

use serde::{Deserialize, Serialize};

/// A categorical feature and its embedding table, `[n_codes, dim]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EmbeddingSpec {
    /// The feature.
    pub name: String,
    /// Rows of the table: one per known value, and the first for all others.
    pub n_codes: usize,
    /// Width of a row.
    pub dim: usize,
}

impl EmbeddingSpec {
    /// Name and shape of the table: `city [12, 4]`.
    pub fn words(&self) -> String {
        format!("{} [{}, {}]", self.name, self.n_codes, self.dim)
    }
}
