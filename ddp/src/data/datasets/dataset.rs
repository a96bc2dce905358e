//! [`Dataset`]: rows that can be gathered by number.
//!
//! Users implement it for their own rows; all file formats implement it too.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ddp_kernels::{DType, Device, Tensor, TensorMut};

use crate::config::table_options::Decimal;
use crate::data::column_kind::ColumnKind;
use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::datasets::target_scale::TargetScale;
use crate::data::error::Result;
use crate::data::labels::head_targets::{HeadTargets, heads_to_json};
use crate::data::labels::{LabelVocabulary, TaskChoice};
use crate::data::vocabulary::CategoryColumn;
use crate::storage::fingerprint::Fingerprint;

/// Rows that can be gathered in any order, by several threads of a loader at a time.
///
/// A program's own rows need [`Dataset::len`], [`Dataset::layout`] and [`Dataset::gather`].
pub trait Dataset: fmt::Debug + Send + Sync {
    /// Number of rows.
    fn len(&self) -> usize;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Layout of a row.
    fn layout(&self) -> &RowLayout;

    /// Checks that the parts of the dataset fit each other; a loader calls it before the first row.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) for the first part that does not fit.
    #[doc(hidden)]
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the rows with these numbers to `out`, in this order; `out` has the same number of rows.
    ///
    /// Features must be finite (or NaN with [`RowLayout::has_missing`]), class indices in range, weights finite and not
    /// negative; for other values a dataset returns an error that names their place.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if a row cannot be read or holds an invalid value.
    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()>;

    /// Writes the targets of the rows with these numbers to `out`, as [`Dataset::gather`] does.
    ///
    /// # Errors
    /// Same as [`Dataset::gather`].
    #[doc(hidden)]
    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        targets_of_gathered(self, rows, out)
    }

    /// Writes features minus `origin` in f64, `[rows, n_features]`, where they are stored in more precision than
    /// [`Dataset::gather`] gives: integers minus a whole number exactly. Returns false, and writes nothing, where they are not: for
    /// all rows alike.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if a row cannot be read.
    #[doc(hidden)]
    fn gather_doubles(&self, _rows: &[usize], _origin: &[f64], _out: &mut [f64]) -> Result<bool> {
        Ok(false)
    }

    /// Writes targets minus `origin` in f64, `[rows, n_targets]`: as [`Dataset::gather_doubles`], for targets that are values.
    ///
    /// # Errors
    /// Same as [`Dataset::gather_doubles`].
    #[doc(hidden)]
    fn gather_target_doubles(&self, _rows: &[usize], _origin: &[f64], _out: &mut [f64]) -> Result<bool> {
        Ok(false)
    }

    /// Writes the class indices of consecutive rows to `out`, one per row, without the features where that saves time. -1 marks a
    /// label that is not a class, in datasets that leave such rows out.
    ///
    /// # Errors
    /// Same as [`Dataset::gather`].
    ///
    /// # Panics
    /// If the targets are not classes.
    #[doc(hidden)]
    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        class_indices_of_gathered(self, rows, out)
    }

    /// Rows in memory in the layout of [`Dataset::gather`], without a copy; `None` if they are stored differently.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if a row cannot be read.
    #[doc(hidden)]
    fn in_place(&self, _rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        Ok(None)
    }

    /// Ends of the units that are read as a whole, such as row groups of Parquet: ascending, the last one is
    /// [`Dataset::len`]. `None` if rows can be read individually.
    #[doc(hidden)]
    fn block_ends(&self) -> Option<&[usize]> {
        None
    }

    /// Number of row `n` among all rows of [`Dataset::source`], from 0: another one where rows were taken out.
    #[doc(hidden)]
    fn source_row(&self, n: usize) -> usize {
        n
    }

    /// Rows of [`Dataset::source`] that were left out because they have no target.
    #[doc(hidden)]
    fn n_without_target(&self) -> usize {
        0
    }

    /// Announces the ranges of rows that follow those of the previous call: a window of an epoch's order. A dataset may start to
    /// decode them; the call returns at once.
    #[doc(hidden)]
    fn prefetch(&self, _rows: &[Range<usize>]) {}

    /// A setting that would make these rows faster to read, if there is one: the end of a sentence that starts with "try".
    #[doc(hidden)]
    fn advice(&self) -> Option<String> {
        None
    }

    /// A hash with which ranks compare their rows: by default of the layout and of up to 64 rows from the first to the last.
    ///
    /// # Errors
    /// [`DataError`](crate::data::DataError) if a row cannot be read.
    fn fingerprint(&self) -> Result<u64> {
        fingerprint_of_gathered(self)
    }

    /// Bytes of host memory that rows occupy until the dataset is dropped.
    #[doc(hidden)]
    fn resident_bytes(&self) -> usize {
        0
    }

    /// Source of the rows, for messages, such as a path.
    fn source(&self) -> &str {
        "the program's rows"
    }
}

/// [`Dataset::gather_targets`] for datasets that read whole rows.
pub(crate) fn targets_of_gathered<D: Dataset + ?Sized>(
    dataset: &D,
    rows: &[usize],
    out: TensorMut<'_>,
) -> Result<()> {
    let layout = dataset.layout();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut x = zeros(&[rows.len(), layout.n_features()], layout.dtype)?;
    let mut weights = zeros(&[rows.len()], DType::F32)?;
    let weights = layout.has_weights.then(|| weights.view_mut());
    dataset.gather(rows, BatchMut { x: x.view_mut(), targets: out, weights })
}

/// Features, targets and weights of these rows in host memory; zeros for weights that they lack.
pub(super) fn gathered<D: Dataset + ?Sized>(dataset: &D, rows: &[usize]) -> Result<[Tensor; 3]> {
    let (layout, n) = (dataset.layout(), rows.len());
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut x = zeros(&[n, layout.n_features()], layout.dtype)?;
    let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype())?;
    let mut weights = zeros(&[n], DType::F32)?;
    if n > 0 {
        let weights = if layout.has_weights { Some(weights.view_mut()) } else { None };
        dataset.gather(rows, BatchMut { x: x.view_mut(), targets: targets.view_mut(), weights })?;
    }
    Ok([x, targets, weights])
}

/// [`Dataset::fingerprint`] for datasets that do not state one: of the layout and of a sample of rows.
fn fingerprint_of_gathered<D: Dataset + ?Sized>(dataset: &D) -> Result<u64> {
    const MAX_ROWS: usize = 64;
    let (layout, len) = (dataset.layout(), dataset.len());
    let n = MAX_ROWS.min(len);
    let rows: Vec<usize> = (0..n).map(|i| if n < 2 { i } else { (len - 1) / (n - 1) * i }).collect();
    let parts = gathered(dataset, &rows)?;
    let mut hash = Fingerprint::default();
    hash.number(len as u64);
    layout.features.iter().for_each(|name| hash.text(name));
    layout.targets.add_to(&mut hash);
    for part in &parts {
        hash.bytes(part.view().as_bytes("fingerprint", "rows")?);
    }
    Ok(hash.finish())
}

/// [`Dataset::class_indices`] for datasets that read whole rows.
pub(crate) fn class_indices_of_gathered<D: Dataset + ?Sized>(
    dataset: &D,
    rows: Range<usize>,
    out: &mut [i64],
) -> Result<()> {
    const CHUNK_ROWS: usize = 256;
    let layout = dataset.layout();
    assert!(matches!(layout.targets, TargetLayout::Classes { .. }), "targets are classes");
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let n = CHUNK_ROWS.min(rows.len().max(1));
    let mut x = zeros(&[n, layout.n_features()], layout.dtype)?;
    let mut weights = zeros(&[n], DType::F32)?;
    let mut numbers = Vec::with_capacity(n);
    for (start, out) in rows.clone().step_by(n).zip(out.chunks_mut(n)) {
        numbers.clear();
        numbers.extend(start..start + out.len());
        let dims = [out.len()];
        let weights = if layout.has_weights { Some(weights.view_mut().rows(0, out.len())?) } else { None };
        let x = x.view_mut().rows(0, dims[0])?;
        dataset.gather(&numbers, BatchMut { x, targets: TensorMut::from_slice(out, &dims)?, weights })?;
    }
    Ok(())
}

/// Mean weight of the first rows of which one has a weight above 0, 1 where rows have no weights; `None` if no row counts.
pub fn usual_weight<D: Dataset + ?Sized>(dataset: &D) -> Result<Option<f64>> {
    const CHUNK_ROWS: usize = 256;
    let layout = dataset.layout();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let n = CHUNK_ROWS.min(dataset.len().max(1));
    let mut x = zeros(&[n, layout.n_features()], layout.dtype)?;
    let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype())?;
    let mut weights = zeros(&[n], DType::F32)?;
    for start in (0..dataset.len()).step_by(n).take_while(|_| layout.has_weights) {
        let rows: Vec<usize> = (start..(start + n).min(dataset.len())).collect();
        let (x, targets) = (x.view_mut().rows(0, rows.len())?, targets.view_mut().rows(0, rows.len())?);
        let of_rows = weights.view_mut().rows(0, rows.len())?;
        dataset.gather(&rows, BatchMut { x, targets, weights: Some(of_rows) })?;
        let of_rows = weights.view().rows(0, rows.len())?;
        let sum: f64 = of_rows.as_slice::<f32>("check", "weights")?.iter().map(|&of| f64::from(of)).sum();
        if sum > 0.0 {
            return Ok(Some(sum / rows.len() as f64));
        }
    }
    Ok((!layout.has_weights).then_some(1.0))
}

/// Layout of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowLayout {
    /// One name per feature column.
    pub features: Vec<String>,
    /// Number format of gathered features: u8, f16, bf16 or f32.
    pub dtype: DType,
    /// Targets of a row.
    pub targets: TargetLayout,
    /// Labels of the classes; `None` without classes, and where class indices are the labels.
    pub labels: Option<Arc<LabelVocabulary>>,
    /// The decision on the task and its reason, where the values of the targets decided on it.
    pub task_choice: Option<TaskChoice>,
    /// Whether rows have weights.
    pub has_weights: bool,
    /// Columns that hold category numbers.
    pub categories: Vec<CategoryColumn>,
    /// Kind of the values of each feature column, `None` for columns of several kinds; empty where no kinds are known.
    pub kinds: Vec<Option<ColumnKind>>,
    /// Places of the first features of dates that were read in parts.
    pub dates: Vec<usize>,
    /// Decimal mark by which the numbers of text files were read, where these showed it.
    pub decimal: Decimal,
    /// Whether NaN marks a missing value.
    pub has_missing: bool,
    /// Scale of the targets, if gathered targets are standardized; a prediction is in the user's units after
    /// [`TargetScale::to_user_units`].
    pub target_scale: Option<TargetScale>,
    /// Columns of the files that are not used although no setting excludes them, and guesses about the rows: notes for the user.
    pub left_out: Vec<String>,
}

/// Targets of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetLayout {
    /// A class index, i64.
    Classes {
        /// Number of classes, at least 2.
        n_classes: usize,
    },
    /// Values, f32: of any size in regression, 0 or 1 in multilabel tasks.
    Values {
        /// One name per target column.
        names: Vec<String>,
    },
    /// Targets of several heads, f32: class indices and values, a column each; NaN where a row lacks one.
    Heads {
        /// The heads in the order of their columns.
        heads: Arc<[HeadTargets]>,
    },
}

impl TargetLayout {
    /// Adds names and kinds of the targets to `hash`. Manifests hold the result, so the text of classes and values stays as it is.
    pub fn add_to(&self, hash: &mut Fingerprint) {
        match self {
            Self::Classes { n_classes } => hash.text(&format!("Classes {{ n_classes: {n_classes} }}")),
            Self::Values { names } => {
                let names: Vec<_> = names.iter().map(|name| format!("\"{}\"", name.escape_debug())).collect();
                hash.text(&format!("Values {{ names: [{}] }}", names.join(", ")));
            }
            Self::Heads { heads } => hash.text(&heads_to_json(heads)),
        }
    }

    /// Outputs of a model for these targets: classes, or target columns.
    pub fn n_outputs(&self) -> usize {
        match self {
            Self::Classes { n_classes } => *n_classes,
            Self::Values { names } => names.len(),
            Self::Heads { heads } => heads.iter().map(HeadTargets::n_targets).sum(),
        }
    }

    /// Columns of f32 per row; 0 for classes.
    pub fn n_values(&self) -> usize {
        match self {
            Self::Classes { .. } => 0,
            Self::Values { names } => names.len(),
            Self::Heads { heads } => heads.iter().map(|head| head.columns.len()).sum(),
        }
    }

    /// Names of the columns; none for classes.
    pub fn column_names(&self) -> Vec<String> {
        match self {
            Self::Classes { .. } => Vec::new(),
            Self::Values { names } => names.clone(),
            Self::Heads { heads } => heads.iter().flat_map(|head| head.columns.clone()).collect(),
        }
    }

    /// The heads; none for targets of one kind.
    pub fn heads(&self) -> &[HeadTargets] {
        match self {
            Self::Classes { .. } | Self::Values { .. } => &[],
            Self::Heads { heads } => heads,
        }
    }

    /// Number format of the targets.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Classes { .. } => DType::I64,
            Self::Values { .. } | Self::Heads { .. } => DType::F32,
        }
    }

    /// Shape of the targets of `n_rows` rows: `[N]` class indices or `[N, K]` values.
    pub fn dims(&self, n_rows: usize) -> Vec<usize> {
        match self {
            Self::Classes { .. } => vec![n_rows],
            Self::Values { .. } | Self::Heads { .. } => vec![n_rows, self.n_values()],
        }
    }

    /// Bytes of one row's targets.
    pub fn row_bytes(&self) -> usize {
        self.dims(1).iter().product::<usize>() * self.dtype().size_bytes()
    }
}

impl RowLayout {
    /// Features of numbers in f32, without weights.
    pub fn new(features: Vec<String>, targets: TargetLayout) -> Self {
        RowLayout {
            features,
            dtype: DType::F32,
            targets,
            labels: None,
            task_choice: None,
            has_weights: false,
            categories: Vec::new(),
            kinds: Vec::new(),
            dates: Vec::new(),
            decimal: Decimal::Auto,
            has_missing: false,
            target_scale: None,
            left_out: Vec::new(),
        }
    }

    /// Layout with unnamed features (`f0`, `f1`, ...) and numeric targets (`target0`, `target1`, ...).
    pub fn values(n_features: usize, n_targets: usize) -> Self {
        let names = (0..n_targets).map(|i| format!("target{i}")).collect();
        RowLayout::new(numbered_columns(n_features), TargetLayout::Values { names })
    }

    /// Layout with unnamed features (`f0`, `f1`, ...) and a class index in `0..n_classes` as target.
    pub fn classes(n_features: usize, n_classes: usize) -> Self {
        RowLayout::new(numbered_columns(n_features), TargetLayout::Classes { n_classes })
    }

    /// Number of feature columns.
    pub fn n_features(&self) -> usize {
        self.features.len()
    }

    /// Bytes of one gathered row.
    pub fn row_bytes(&self) -> usize {
        let weight = if self.has_weights { size_of::<f32>() } else { 0 };
        self.n_features() * self.dtype.size_bytes() + self.targets.row_bytes() + weight
    }
}

/// Names of unnamed columns: f0, f1, ...
pub fn numbered_columns(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("f{i}")).collect()
}

/// A dataset in one line: source, rows, columns.
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
            TargetLayout::Heads { heads } => {
                write!(f, ", {} targets of {} heads", layout.targets.n_values(), heads.len())?;
            }
        }
        if layout.has_weights { f.write_str(", weighted") } else { Ok(()) }
    }
}
