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

/// Width of an embedding of `n` codes: `WIDTH_FACTOR · n^WIDTH_EXPONENT`, chosen by tests/bench/category_widths.py.
const WIDTH_FACTOR: f64 = 1.6;
const WIDTH_EXPONENT: f64 = 0.25;

impl EmbeddingSpec {
    /// Width of the embedding of `n_codes` codes, where no setting says it.
    pub fn usual_dim(n_codes: usize) -> usize {
        (WIDTH_FACTOR * (n_codes as f64).powf(WIDTH_EXPONENT)).round().max(1.0) as usize
    }

    /// Name and shape of the table: `city [12, 4]`.
    pub fn words(&self) -> String {
        format!("{} [{}, {}]", self.name, self.n_codes, self.dim)
    }
}
