//! The rows of a data set, resident in memory.

use std::fmt;

/// Rows of features with their targets, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// `[n_rows, n_features]`, all finite.
    pub features: Vec<f32>,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of feature columns, at least 1.
    pub n_features: usize,
    /// One name a feature column.
    pub feature_names: Vec<String>,
    /// What each row should give.
    pub targets: Targets,
    /// Where the rows came from, for messages: path of the file or `builtin:NAME`.
    pub source: String,
}

/// What each row should give.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Classification.
    Classes {
        /// `[n_rows]`, each in `0..n_classes`.
        labels: Vec<i64>,
        /// Number of classes, at least 2.
        n_classes: usize,
    },
    /// Regression (finite numbers) and multilabel (0 or 1).
    Values {
        /// `[n_rows, n_targets]`
        values: Vec<f32>,
        /// Number of target columns, at least 1.
        n_targets: usize,
        /// One name a target column.
        names: Vec<String>,
    },
}

impl Targets {
    /// Outputs that a model for these targets has: classes, or target columns.
    pub fn n_outputs(&self) -> usize {
        match self {
            Self::Classes { n_classes, .. } => *n_classes,
            Self::Values { n_targets, .. } => *n_targets,
        }
    }

    fn select(&self, rows: &[usize]) -> Self {
        match self {
            Self::Classes { labels, n_classes } => {
                Self::Classes { labels: rows.iter().map(|&row| labels[row]).collect(), n_classes: *n_classes }
            }
            Self::Values { values, n_targets, names } => Self::Values {
                values: select(values, *n_targets, rows),
                n_targets: *n_targets,
                names: names.clone(),
            },
        }
    }
}

impl Dataset {
    /// The features of one row, `[n_features]`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.features[row * self.n_features..(row + 1) * self.n_features]
    }

    /// These rows, in this order, as a data set of their own.
    pub fn select(&self, rows: &[usize]) -> Self {
        Self {
            features: select(&self.features, self.n_features, rows),
            n_rows: rows.len(),
            n_features: self.n_features,
            feature_names: self.feature_names.clone(),
            targets: self.targets.select(rows),
            source: self.source.clone(),
        }
    }

    /// A hash of all content but the source's name, for the comparison between ranks at start. It
    /// guards against different files, not against an adversary.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        hash.number(self.n_rows as u64);
        hash.number(self.n_features as u64);
        self.feature_names.iter().for_each(|name| hash.text(name));
        hash.floats(&self.features);
        match &self.targets {
            Targets::Classes { labels, n_classes } => {
                hash.number(*n_classes as u64);
                labels.iter().for_each(|label| hash.number(*label as u64));
            }
            Targets::Values { values, n_targets, names } => {
                hash.number(!(*n_targets as u64));
                names.iter().for_each(|name| hash.text(name));
                hash.floats(values);
            }
        }
        hash.finish()
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} rows x {} features, ", self.source, self.n_rows, self.n_features)?;
        match &self.targets {
            Targets::Classes { n_classes, .. } => write!(f, "{n_classes} classes"),
            Targets::Values { n_targets: 1, .. } => f.write_str("1 target"),
            Targets::Values { n_targets, .. } => write!(f, "{n_targets} targets"),
        }
    }
}

fn select(values: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let mut selected = Vec::with_capacity(rows.len() * width);
    for &row in rows {
        selected.extend_from_slice(&values[row * width..(row + 1) * width]);
    }
    selected
}

/// A hash of any bytes, of the same kind as [`Dataset::fingerprint`].
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hash = Fingerprint::default();
    hash.number(bytes.len() as u64);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| hash.number(u64::from_le_bytes(*word)));
    rest.iter().for_each(|&byte| hash.number(u64::from(byte)));
    hash.finish()
}

/// FNV-1a's scheme on 64-bit words, with a rotation so that high bits reach low ones.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn number(&mut self, word: u64) {
        self.0 = (self.0 ^ word).rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        text.bytes().for_each(|byte| self.number(u64::from(byte)));
    }

    fn floats(&mut self, values: &[f32]) {
        let pairs = values.chunks_exact(2);
        for rest in pairs.remainder() {
            self.number(u64::from(rest.to_bits()));
        }
        for pair in pairs {
            self.number(u64::from(pair[0].to_bits()) << 32 | u64::from(pair[1].to_bits()));
        }
    }

    fn finish(mut self) -> u64 {
        self.number(0);
        self.0 ^ self.0 >> 32
    }
}
