//! What training needs of data: rows that can be asked for by number.
//!
//! [`Dataset`] is the seam at which users bring their own rows; all formats of files come through it too.

use std::fmt;
use std::ops::Range;

use ddp_kernels::DType;
use serde::{Deserialize, Serialize};

use super::vocabulary::Vocabulary;
use crate::data::batch::{Batch, BatchMut};
use crate::data::error::Result;

/// Rows that can be taken in any order.
///
/// A loader's threads call it, several at a time.
pub trait Dataset: fmt::Debug + Send + Sync {
    /// Number of rows.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a row looks like.
    fn layout(&self) -> &RowLayout;

    /// Writes the rows with these numbers, in this order, to `out`, which has as many.
    ///
    /// Features must be finite (or NaN where [`RowLayout::has_missing`] says so), class indices in range, weights finite and
    /// not negative: a dataset that meets others fails here, and names the place.
    ///
    /// # Errors
    /// Those of reading the rows.
    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()>;

    /// Rows that lie in memory just as [`Dataset::gather`] would write them, so that nothing needs to be copied.
    ///
    /// # Errors
    /// Those of reading the rows.
    fn in_place(&self, _rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        Ok(None)
    }

    /// Ends of the parts that are cheapest read whole, ascending, the last one [`Dataset::len`]: row groups of Parquet. None
    /// where rows can be read one by one.
    fn block_ends(&self) -> Option<&[usize]> {
        None
    }

    /// Says that rows of these ranges will be asked for next, after those of the call before: a window of an epoch's order.
    /// Whoever has to decode rows may begin with it; nothing waits for it.
    fn prefetch(&self, _rows: &[Range<usize>]) {}

    /// What would make these rows faster to read, if anything: the end of a sentence that begins with "try".
    fn advice(&self) -> Option<String> {
        None
    }

    /// A hash by which ranks compare what they read. Rows in memory are hashed whole, of large files a sample is.
    ///
    /// # Errors
    /// Those of reading the rows.
    fn fingerprint(&self) -> Result<u64>;

    /// Bytes of host memory that hold rows and that only giving them up would free.
    fn resident_bytes(&self) -> usize {
        0
    }

    /// Where the rows come from, for messages: path, pattern or `builtin:NAME`.
    fn source(&self) -> &str;
}

/// What a row looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct RowLayout {
    /// One name a feature column.
    pub features: Vec<String>,
    /// Number format in which features are handed out: u8, f16, bf16 or f32.
    pub dtype: DType,
    /// What a row should give.
    pub targets: TargetLayout,
    /// Whether rows have weights.
    pub has_weights: bool,
    /// Columns that hold category numbers.
    pub categories: Vec<CategoryColumn>,
    /// Whether NaN stands for a missing value.
    pub has_missing: bool,
}

/// A column whose values are category numbers: 0 is unknown, then those of the vocabulary from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CategoryColumn {
    /// Index among the features.
    pub column: usize,
    /// Its known values.
    pub vocabulary: Vocabulary,
}

/// What a row should give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetLayout {
    /// A class index, i64.
    Classes {
        /// Number of classes, at least 2.
        n_classes: usize,
    },
    /// Values, f32: of any size in regression, 0 or 1 in multilabel tasks.
    Values {
        /// One name a target column.
        names: Vec<String>,
    },
}

impl TargetLayout {
    /// Outputs that a model for these targets has: classes, or target columns.
    pub fn n_outputs(&self) -> usize {
        match self {
            Self::Classes { n_classes } => *n_classes,
            Self::Values { names } => names.len(),
        }
    }

    /// Number format of the targets.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Classes { .. } => DType::I64,
            Self::Values { .. } => DType::F32,
        }
    }

    /// Shape of the targets of `n_rows` rows: `[N]` class indices or `[N, K]` values.
    pub fn dims(&self, n_rows: usize) -> Vec<usize> {
        match self {
            Self::Classes { .. } => vec![n_rows],
            Self::Values { names } => vec![n_rows, names.len()],
        }
    }

    /// Bytes of one row's targets.
    pub fn row_bytes(&self) -> usize {
        self.dims(1).iter().product::<usize>() * self.dtype().size_bytes()
    }
}

impl RowLayout {
    /// Features that are numbers, f32, without weights.
    pub fn new(features: Vec<String>, targets: TargetLayout) -> Self {
        RowLayout {
            features,
            dtype: DType::F32,
            targets,
            has_weights: false,
            categories: Vec::new(),
            has_missing: false,
        }
    }

    /// Number of feature columns.
    pub fn n_features(&self) -> usize {
        self.features.len()
    }

    /// Bytes of one row as it is handed out.
    pub fn row_bytes(&self) -> usize {
        let weight = if self.has_weights { size_of::<f32>() } else { 0 };
        self.n_features() * self.dtype.size_bytes() + self.targets.row_bytes() + weight
    }
}

/// Names of columns that have none of their own: f0, f1, ...
pub fn numbered_columns(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("f{i}")).collect()
}

/// A dataset in one line: where from, rows, columns.
pub struct Summary<'a>(pub &'a dyn Dataset);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dataset, layout) = (self.0, self.0.layout());
        write!(f, "{}: {} rows x {} features", dataset.source(), dataset.len(), layout.n_features())?;
        if layout.dtype != DType::F32 {
            write!(f, " ({})", layout.dtype)?;
        }
        match &layout.targets {
            TargetLayout::Classes { n_classes } => write!(f, ", {n_classes} classes")?,
            TargetLayout::Values { names } if names.len() == 1 => f.write_str(", 1 target")?,
            TargetLayout::Values { names } => write!(f, ", {} targets", names.len())?,
        }
        if layout.has_weights { f.write_str(", weighted") } else { Ok(()) }
    }
}
