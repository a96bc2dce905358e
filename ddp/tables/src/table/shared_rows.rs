//! Rows of a table in memory that the ranks of a host share: the first one writes them, all map them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::cast_slice;
use ddp::config::Task;
use ddp::config::table_options::Decimal;
use ddp::data::column_kind::{self, ColumnKind};
use ddp::data::datasets::batch::{Batch, BatchMut};
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::datasets::resident::{RowsInMemory, TargetSlice, Targets, TensorDataset};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::{LabelVocabulary, TaskChoice};
use ddp::data::vocabulary::CategoryColumn;
use ddp_comm::HostShare;
use ddp_kernels::TensorMut;
use ddp_kernels::cpu::mapped_file::MappedFile;
use serde::{Deserialize, Serialize};

use crate::error::TableError;
use crate::formats::error::RowsError;
use crate::source::SourceSpec;
use crate::table::exact_columns::differences;
use crate::table::exact_rows::ExactRows;
use crate::table::mapped_arrays::{Arrays, Places, move_array};

/// Rows in mapped memory.
#[derive(Debug)]
pub(crate) struct SharedRows {
    map: MappedFile,
    /// Open, and with it locked, as long as the rows are in use: no other job may empty memory of a launcher that these rows are in.
    file: Arc<File>,
    /// Ranks that hold the rows together.
    n_ranks: usize,
    layout: RowLayout,
    source: String,
    places: Places,
    fingerprint: u64,
}

/// The record before that of the arrays.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    layout: StoredLayout,
    places: Places,
    without_target: Range<usize>,
    fingerprint: u64,
}

/// The layout of rows of a table: its features are f32, and its targets of one kind.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLayout {
    features: Vec<String>,
    n_classes: Option<usize>,
    values: Vec<String>,
    labels: Option<String>,
    task_choice: Option<(String, String)>,
    has_weights: bool,
    categories: Vec<CategoryColumn>,
    #[serde(serialize_with = "column_kind::to_letters", deserialize_with = "column_kind::from_letters")]
    kinds: Vec<Option<ColumnKind>>,
    dates: Vec<usize>,
    decimal: Decimal,
    has_missing: bool,
    left_out: Vec<String>,
}

/// Moves rows, and the numbers of those without a target, to memory that the other ranks of the host map.
///
/// # Errors
/// [`TableError::HostMemory`].
pub(crate) fn publish(
    host: &HostShare,
    rows: ExactRows,
    without_target: &[usize],
) -> Result<(SharedRows, Vec<usize>)> {
    let ExactRows { rows, exact, exact_targets } = rows;
    let fingerprint = rows.fingerprint()?;
    let TensorDataset { features, targets, weights, layout, source } = rows;
    let without: Vec<u64> = without_target.iter().map(|row| *row as u64).collect();
    let arrays = Arrays {
        features: &features,
        targets: match &targets {
            Targets::Labels(labels) => TargetSlice::Labels(labels),
            Targets::Values(values) => TargetSlice::Values(values),
        },
        weights: weights.as_deref(),
        exact: &exact,
        exact_targets: &exact_targets,
    };
    let mut places = Places::new(&arrays);
    let without_target_place = places.add(size_of_val(&without[..]));
    let (n_bytes, layout_text) = (places.end() as u64, StoredLayout::from_layout(&layout));
    let header = Header { layout: layout_text, places, without_target: without_target_place, fingerprint };
    let json = serde_json::to_vec(&header).expect("names and numbers are JSON");
    let Header { places, without_target: without_target_place, .. } = header;
    let write = || -> io::Result<Range<u64>> {
        host.write(&json)?;
        let record = host.begin(n_bytes)?;
        let file = &*host.file();
        let write = |at: usize, bytes: &[u8]| file.write_all_at(bytes, record.start + at as u64);
        // Most of the memory is freed on the way.
        move_array(places.features.start, features, write)?;
        let no_targets = match targets {
            Targets::Labels(labels) => {
                move_array(places.targets.start, labels, write)?;
                TargetSlice::Labels(&[])
            }
            Targets::Values(values) => {
                move_array(places.targets.start, values, write)?;
                TargetSlice::Values(&[])
            }
        };
        let (weights, exact, exact_targets) = (weights.as_deref(), &exact, &exact_targets);
        let others = Arrays { features: &[], targets: no_targets, weights, exact, exact_targets };
        places.write(&others, write)?;
        write(without_target_place.start, cast_slice(&without))?;
        Ok(record)
    };
    let record = write().map_err(|source| TableError::HostMemory { source })?;
    let (map, n_ranks) = (map(&host.file(), record)?, host.n_ranks());
    let rows = SharedRows { map, file: host.file(), n_ranks, layout, source, places, fingerprint };
    Ok((rows, without_target.to_vec()))
}

/// Records that the rows are not in memory, so that each rank opens them by itself: from a file of this process, if there is one.
pub(crate) fn publish_elsewhere(host: &HostShare, path: Option<&Path>) -> Result<()> {
    if path.is_some() {
        // The file ends with the process.
        host.do_not_keep();
    }
    let bytes = path.map_or(&[][..], |path| path.as_os_str().as_bytes());
    Ok(host.write(bytes).map_err(|source| TableError::HostMemory { source })?)
}

/// Rows as the first rank of the host has published them.
pub(crate) enum Fetched {
    /// Rows, and the numbers of those without a target.
    Rows(Box<SharedRows>, Vec<usize>),
    /// A file with the rows.
    File(PathBuf),
    /// Each rank opens the rows by itself.
    Nothing,
}

/// The rows of `spec` that the first rank of the host has published.
pub(crate) fn fetch(host: &HostShare, spec: &SourceSpec<'_>) -> Result<Fetched> {
    let failed = |source| DataError::from(TableError::HostMemory { source });
    let header = host.read().map_err(failed)?;
    if header.is_empty() {
        return Ok(Fetched::Nothing);
    }
    if header[0] == b'/' {
        return Ok(Fetched::File(PathBuf::from(OsString::from_vec(header))));
    }
    let Header { layout, places, without_target, fingerprint }: Header =
        serde_json::from_slice(&header).map_err(|e| failed(e.into()))?;
    let map = map(&host.file(), host.next().map_err(failed)?)?;
    let mut layout = layout.into_layout().ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    // Rows that were kept may have been read by a config that left the decision to them.
    layout.task_choice = layout.task_choice.filter(|_| spec.data.auto_task);
    let (file, n_ranks, source) = (host.file(), host.n_ranks(), spec.source.to_owned());
    let rows = SharedRows { map, file, n_ranks, layout, source, places, fingerprint };
    let without_target: &[u64] = cast_slice(&rows.map.bytes()[without_target]);
    let without_target = without_target.iter().map(|row| *row as usize).collect();
    rows.check()?;
    Ok(Fetched::Rows(Box::new(rows), without_target))
}

fn map(file: &File, record: Range<u64>) -> Result<MappedFile> {
    let name = Path::new("rows that the ranks of this host share");
    let map = MappedFile::map(file, name, record.start, record.end - record.start);
    Ok(map.map_err(|source| TableError::HostMemory { source })?)
}

impl SharedRows {
    fn view(&self) -> RowsInMemory<'_> {
        let (places, bytes) = (&self.places, self.map.bytes());
        RowsInMemory {
            features: places.features(bytes),
            targets: places.targets(bytes),
            weights: places.weights(bytes),
            layout: &self.layout,
        }
    }

    /// Fails if rows that were read before were not in memory: missing pages of a kept file that was truncated read as zeros.
    fn check(&self) -> Result<()> {
        if self.map.is_intact() {
            return Ok(());
        }
        let path = fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).unwrap_or_default();
        Err(DataError::from(RowsError::Changed { path }))
    }
}

impl Dataset for SharedRows {
    fn len(&self) -> usize {
        self.view().len()
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        self.view().gather(rows, out)?;
        self.check()
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        self.view().gather_targets(rows, out)?;
        self.check()
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if self.places.is_single() {
            return Ok(false);
        }
        let exact = |feature| self.places.exact(self.map.bytes(), feature);
        differences(exact, self.view().features, rows, origin, out);
        self.check().map(|()| true)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        match self.view().targets {
            TargetSlice::Values(values) if !self.places.is_single() => {
                let exact = |target| self.places.exact_target(self.map.bytes(), target);
                differences(exact, values, rows, origin, out);
                self.check().map(|()| true)
            }
            _ => Ok(false),
        }
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        self.view().class_indices(rows, out);
        self.check()
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        let batch = self.view().in_place(rows)?;
        self.check().map(|()| Some(batch))
    }

    fn fingerprint(&self) -> Result<u64> {
        Ok(self.fingerprint)
    }

    fn resident_bytes(&self) -> usize {
        self.map.len().div_ceil(self.n_ranks)
    }

    fn source(&self) -> &str {
        &self.source
    }
}

impl StoredLayout {
    fn from_layout(layout: &RowLayout) -> Self {
        let (n_classes, values) = match &layout.targets {
            TargetLayout::Classes { n_classes } => (Some(*n_classes), Vec::new()),
            TargetLayout::Values { names } => (None, names.clone()),
            TargetLayout::Heads { .. } => unreachable!("heads are made of a table's columns later"),
        };
        let choice = layout.task_choice.as_ref();
        StoredLayout {
            features: layout.features.clone(),
            n_classes,
            values,
            labels: layout.labels.as_ref().map(|labels| labels.to_json()),
            task_choice: choice.map(|choice| (choice.task.name().to_owned(), choice.reason.clone())),
            has_weights: layout.has_weights,
            categories: layout.categories.clone(),
            kinds: layout.kinds.clone(),
            dates: layout.dates.clone(),
            decimal: layout.decimal,
            has_missing: layout.has_missing,
            left_out: layout.left_out.clone(),
        }
    }

    fn into_layout(self) -> Option<RowLayout> {
        let targets = match self.n_classes {
            Some(n_classes) => TargetLayout::Classes { n_classes },
            None => TargetLayout::Values { names: self.values },
        };
        let labels = self.labels.map(|labels| LabelVocabulary::from_json(&labels)).transpose().ok()?;
        let choice = match self.task_choice {
            Some((name, reason)) => {
                let task = *Task::ALL.iter().find(|task| task.name() == name)?;
                Some(TaskChoice { task, reason })
            }
            None => None,
        };
        Some(RowLayout {
            labels: labels.map(Arc::new),
            task_choice: choice,
            has_weights: self.has_weights,
            categories: self.categories,
            kinds: self.kinds,
            dates: self.dates,
            decimal: self.decimal,
            has_missing: self.has_missing,
            left_out: self.left_out,
            ..RowLayout::new(self.features, targets)
        })
    }
}
