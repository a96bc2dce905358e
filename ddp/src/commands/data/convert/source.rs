//! Reads rows of any format in order, in chunks.

use std::path::PathBuf;
use std::sync::Arc;

use ddp_kernels::{DType, Device, Tensor, ops};

use crate::config::{DataConfig, Datetime, Task};
use crate::data::batch::BatchMut;
use crate::data::format::Reader;
use crate::data::raw::ArrayReader;
use crate::data::table::{
    ColumnPlan, LabelColumn, TableReader, TableReaders, TableRows, TargetCells, huge_vocabulary, same_columns,
};
use crate::data::write::{Chunk, Schema, Targets};
use crate::data::{
    CategoryColumn, ClassLabels, Compression, CsvError, DataError, Dataset, KnownFeatures, SourceSpec,
    TargetLayout, Vocabulary, files_and_format,
};
use crate::error::Result;

/// Bytes of rows, as f32, per chunk.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
/// Size above which arrays are read in pieces rather than mapped.
const MAPPED_BYTES: u64 = 16 << 20;

/// Source of rows.
#[derive(Debug)]
pub(super) enum Source {
    Table(Box<TableSource>),
    Rows(Box<RowSource>),
}

impl Source {
    /// Opens the rows that `data.train` names.
    ///
    /// # Errors
    /// A [`DataError`] that names the file.
    pub(super) fn open(data: &DataConfig, labels: Option<&str>) -> Result<Self> {
        let spec = SourceSpec { labels, classes: as_stored(data), ..SourceSpec::train(data) };
        if spec.source.starts_with("builtin:") {
            return Ok(Source::Rows(Box::new(RowSource::new(spec.open()?, &spec)?)));
        }
        let (files, format) = files_and_format(&spec)?;
        let reader = match &format.reader {
            Reader::Table(readers) => {
                return Ok(Source::Table(Box::new(TableSource::new(files, readers, &spec)?)));
            }
            Reader::Arrays(reader) => reader,
        };
        // Decompressed rows may take the memory that the config grants.
        let is_packed = matches!(reader, ArrayReader::Named { is_archive: true, .. })
            || files.iter().any(|path| Compression::of_file(path) != Compression::None);
        let memory_bytes = if is_packed { spec.memory_bytes } else { spec.memory_bytes.min(MAPPED_BYTES) };
        let spec = SourceSpec { memory_bytes, unpack_bytes: Some(spec.memory_bytes), ..spec };
        Ok(Source::Rows(Box::new(RowSource::new(spec.open()?, &spec)?)))
    }

    pub(super) fn schema(&self) -> &Schema {
        match self {
            Source::Table(table) => &table.schema,
            Source::Rows(rows) => &rows.schema,
        }
    }

    /// The next rows; None at the end.
    pub(super) fn next(&mut self) -> Result<Option<Chunk<'_>>> {
        match self {
            Source::Table(table) => table.next(),
            Source::Rows(rows) => rows.next(),
        }
    }

    /// Share of the rows that was read, from 0 to 1, if it is known.
    pub(super) fn fraction(&self) -> Option<f64> {
        match self {
            Source::Table(table) => table.fraction(),
            Source::Rows(rows) => Some(rows.at as f64 / rows.dataset.len().max(1) as f64),
        }
    }
}

/// Rows of a dataset, gathered by number.
#[derive(Debug)]
pub(super) struct RowSource {
    dataset: Arc<dyn Dataset>,
    schema: Schema,
    at: usize,
    chunk_rows: usize,
    numbers: Vec<usize>,
    x: Tensor,
    /// `x` as f32, if it has a different type.
    floats: Option<Tensor>,
    targets: Tensor,
    weights: Option<Tensor>,
}

impl RowSource {
    fn new(dataset: Arc<dyn Dataset>, spec: &SourceSpec<'_>) -> Result<Self> {
        let layout = dataset.layout().clone();
        let (targets, are_labels) = match &layout.targets {
            TargetLayout::Classes { .. } => (spec.data.target.clone(), true),
            TargetLayout::Values { names } => (names.clone(), false),
        };
        let schema = Schema {
            source: spec.source.to_owned(),
            features: layout.features.clone(),
            dtype: layout.dtype,
            targets,
            are_labels,
            weight: layout.has_weights.then(|| "weight".to_owned()),
            categories: layout.categories.clone(),
        };
        let n = chunk_rows(&schema).min(dataset.len().max(1));
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
        let dims = [n, layout.n_features()];
        Ok(RowSource {
            x: zeros(&dims, layout.dtype)?,
            floats: if layout.dtype == DType::F32 { None } else { Some(zeros(&dims, DType::F32)?) },
            targets: zeros(&layout.targets.dims(n), layout.targets.dtype())?,
            weights: if layout.has_weights { Some(zeros(&[n], DType::F32)?) } else { None },
            numbers: Vec::with_capacity(n),
            chunk_rows: n,
            at: 0,
            schema,
            dataset,
        })
    }

    fn next(&mut self) -> Result<Option<Chunk<'_>>> {
        const OP: &str = "convert";
        let end = (self.at + self.chunk_rows).min(self.dataset.len());
        self.numbers.clear();
        self.numbers.extend(self.at..end);
        let n = self.numbers.len();
        if n == 0 {
            return Ok(None);
        }
        self.at = end;
        let weights = self.weights.as_mut().map(|weights| weights.view_mut().rows(0, n)).transpose()?;
        let x = self.x.view_mut().rows(0, n)?;
        self.dataset
            .gather(&self.numbers, BatchMut { x, targets: self.targets.view_mut().rows(0, n)?, weights })?;
        let x = match &mut self.floats {
            Some(floats) => {
                ops::load_rows(self.x.view().rows(0, n)?, None, None, floats.view_mut().rows(0, n)?)?;
                &*floats
            }
            None => &self.x,
        };
        let targets = self.targets.view().rows(0, n)?;
        Ok(Some(Chunk {
            n_rows: n,
            features: x.view().rows(0, n)?.as_slice::<f32>(OP, "x")?,
            targets: match self.schema.are_labels {
                true => Targets::Labels(targets.as_slice::<i64>(OP, "targets")?),
                false => Targets::Values(targets.as_slice::<f32>(OP, "targets")?),
            },
            weights: match &self.weights {
                Some(weights) => Some(weights.view().rows(0, n)?.as_slice::<f32>(OP, "weights")?),
                None => None,
            },
        }))
    }
}

/// Rows of tables, read from the first to the last.
pub(super) struct TableSource {
    files: Vec<PathBuf>,
    readers: &'static TableReaders,
    data: DataConfig,
    schema: Schema,
    plan: ColumnPlan,
    vocabularies: Vec<Vocabulary>,
    /// Reader of the current file.
    reader: Option<Box<dyn TableReader>>,
    n_opened: usize,
    /// Whether the current file has yielded a row.
    has_rows: bool,
    rows: TableRows,
}

impl std::fmt::Debug for TableSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableSource").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TableSource {
    fn new(files: Vec<PathBuf>, readers: &'static TableReaders, spec: &SourceSpec<'_>) -> Result<Self> {
        let reader = (readers.open)(&files[0], spec)?;
        let plan = reader.plan().clone();
        let schema = Schema {
            source: spec.source.to_owned(),
            features: plan.features.clone(),
            dtype: DType::F32,
            targets: spec.data.target.clone(),
            are_labels: spec.data.task == Task::Classification,
            weight: spec.data.weight.clone(),
            categories: Vec::new(),
        };
        let mut source = TableSource {
            rows: TableRows::new(&plan, spec),
            vocabularies: Vec::new(),
            data: spec.data.clone(),
            reader: Some(reader),
            n_opened: 1,
            has_rows: false,
            files,
            readers,
            schema,
            plan,
        };
        if !source.plan.categorical.is_empty() {
            source.collect_categories()?;
        }
        Ok(source)
    }

    /// Reads all rows once to collect the values of categorical columns, which are numbered in alphabetical order in the second
    /// pass.
    fn collect_categories(&mut self) -> Result<()> {
        while self.next()?.is_some() {
            if let Some(vocabulary) = self.rows.huge_vocabulary() {
                return Err(huge_vocabulary(&self.files[self.n_opened - 1], vocabulary.name()).into());
            }
        }
        self.vocabularies = std::mem::take(&mut self.rows.vocabularies);
        self.vocabularies.iter_mut().for_each(|vocabulary| drop(vocabulary.sort()));
        let columns = self.vocabularies.iter().map(|vocabulary| {
            let column = self.plan.features.iter().position(|name| name == vocabulary.name());
            let column = column.expect("a categorical column is a feature");
            CategoryColumn { column, vocabulary: vocabulary.clone() }
        });
        self.schema.categories = columns.collect();
        self.rows = TableRows::new(&self.plan, &self.spec());
        self.n_opened = 0;
        Ok(())
    }

    fn spec(&self) -> SourceSpec<'_> {
        let names = &self.plan.features;
        let known = KnownFeatures { names, vocabularies: &self.vocabularies, of: &self.schema.source };
        let is_known = !self.vocabularies.is_empty() || self.data.datetime == Datetime::Parts;
        let features = is_known.then_some(known);
        SourceSpec { features, classes: as_stored(&self.data), ..SourceSpec::train(&self.data) }
    }

    fn next(&mut self) -> Result<Option<Chunk<'_>>> {
        let chunk_rows = chunk_rows(&self.schema);
        self.rows.clear();
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(path) = self.files.get(self.n_opened) else { return Ok(None) };
                let reader = (self.readers.open)(path, &self.spec())?;
                same_columns(&self.files[0], &self.plan.all_names(), path, &reader.plan().all_names())?;
                self.reader = Some(reader);
                self.n_opened += 1;
                self.has_rows = false;
                continue;
            };
            if reader.read(&mut self.rows, chunk_rows)? > 0 {
                break;
            }
            if !self.has_rows && self.rows.n_rows == 0 {
                return Err(DataError::from(CsvError::NoRows {
                    path: self.files[self.n_opened - 1].clone(),
                })
                .into());
            }
            self.reader = None;
        }
        self.has_rows = true;
        let rows = &self.rows;
        Ok(Some(Chunk {
            n_rows: rows.n_rows,
            features: &rows.features,
            targets: match &rows.targets {
                TargetCells::Classes(labels) => Targets::Labels(integers(labels, &self.schema)?),
                TargetCells::Values { values, .. } => Targets::Values(values),
            },
            weights: rows.weights.as_deref(),
        }))
    }

    fn fraction(&self) -> Option<f64> {
        let of_file = match &self.reader {
            Some(reader) => reader.fraction()?,
            None => 1.0,
        };
        Some((self.n_opened.saturating_sub(1) as f64 + of_file) / self.files.len() as f64)
    }
}

/// Labels stay as they are, unless the config numbers them.
fn as_stored(data: &DataConfig) -> ClassLabels<'static> {
    data.classes.map_or(ClassLabels::AsStored, ClassLabels::Numbers)
}

/// The labels of a chunk, which must be integers.
fn integers<'a>(labels: &'a LabelColumn, schema: &Schema) -> Result<&'a [i64]> {
    labels.integers().ok_or_else(|| {
        let reason = match labels.fraction() {
            Some(fraction) => format!("label {} of \"{}\" is not whole", fraction.value, schema.targets[0]),
            None => format!("the labels in \"{}\" are text, and files hold class numbers", schema.targets[0]),
        };
        let hint = "for real-valued targets use --task regression; number text labels from 0".to_owned();
        DataError::OutFormat { out: schema.source.clone(), reason, hint }.into()
    })
}

/// Rows per chunk.
fn chunk_rows(schema: &Schema) -> usize {
    (CHUNK_BYTES / (4 * (schema.features.len() + schema.targets.len()))).clamp(1, 1 << 16)
}
