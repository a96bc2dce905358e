//! What all formats have in common that rows are written to.

use ddp_kernels::DType;

use super::chunk::Chunk;
use super::encode::{encode, largest_code};
use super::source::Shape;
use super::staging::Staging;
use super::target::Target;
use super::{csv, npy, npz, safetensors};
use crate::cli::{ConvertArgs, ConvertDtype};
use crate::config::DataFormat;
use crate::data::{CategoryColumn, DataError};
use crate::error::Result;

/// Writes the rows of one file.
pub(super) trait RowWriter {
    /// Appends rows, of which the first is row `first` of all.
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()>;

    /// Puts all on the disk.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// What the columns of the files are.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) source: String,
    pub(super) features: Vec<String>,
    /// Number format of the features.
    pub(super) dtype: DType,
    pub(super) targets: Vec<String>,
    pub(super) are_labels: bool,
    pub(super) weight: Option<String>,
    pub(super) categories: Vec<CategoryColumn>,
}

impl Schema {
    /// The columns of `shape` in files of the target's format.
    ///
    /// # Errors
    /// [`DataError::OutFormat`] for what the format can't hold.
    pub(super) fn new(shape: &Shape, target: &Target, args: &ConvertArgs) -> Result<Self> {
        let dtype = match args.dtype {
            Some(ConvertDtype::F32) => DType::F32,
            Some(ConvertDtype::F16) => DType::F16,
            Some(ConvertDtype::Bf16) => DType::BF16,
            Some(ConvertDtype::U8) => DType::U8,
            None if target.format == DataFormat::Csv => DType::F32,
            None => shape.dtype,
        };
        let bad = |reason: String, hint| DataError::OutFormat { out: args.out.clone(), reason, hint };
        let is_npy = matches!(target.format, DataFormat::Npy | DataFormat::Npz);
        if target.format == DataFormat::Csv && dtype != DType::F32 {
            return Err(
                bad("CSV holds texts, not numbers in a format".to_owned(), "leave --dtype out").into()
            );
        }
        if dtype == DType::BF16 && target.format != DataFormat::Safetensors {
            let reason = "of all formats only safetensors has bf16".to_owned();
            return Err(bad(reason, "write to .safetensors, or with --dtype f32").into());
        }
        if is_npy && let Some(column) = shape.categories.first() {
            let name = column.vocabulary.name();
            let reason =
                format!("arrays alone have no place for the values of the categorical column \"{name}\"");
            return Err(bad(reason, "write to .safetensors, .parquet or .csv").into());
        }
        let is_large = |column: &&CategoryColumn| column.vocabulary.n_codes() - 1 > largest_code(dtype);
        if target.format == DataFormat::Safetensors
            && let Some(column) = shape.categories.iter().find(is_large)
        {
            let name = column.vocabulary.name();
            let reason = format!("the categorical column \"{name}\" has more values than {dtype} can number");
            return Err(bad(reason, "--dtype f32 holds all values").into());
        }
        Ok(Schema {
            source: shape.source.clone(),
            features: shape.features.clone(),
            dtype,
            targets: shape.targets.clone(),
            are_labels: shape.are_labels,
            weight: shape.weight.clone(),
            categories: shape.categories.clone(),
        })
    }

    /// Bytes of a row in a file of arrays.
    pub(super) fn row_bytes(&self) -> usize {
        let targets = if self.are_labels { 8 } else { 4 * self.targets.len() };
        let weight = if self.weight.is_some() { 4 } else { 0 };
        self.features.len() * self.dtype.size_bytes() + targets + weight
    }

    /// Shape of the targets of `n_rows` rows.
    pub(super) fn target_shape(&self, n_rows: u64) -> Vec<u64> {
        match self.targets.len() {
            n if !self.are_labels && n > 1 => vec![n_rows, n as u64],
            _ => vec![n_rows],
        }
    }

    /// Shape of the features of `n_rows` rows.
    pub(super) fn feature_shape(&self, n_rows: u64) -> Vec<u64> {
        vec![n_rows, self.features.len() as u64]
    }

    /// Number format of the targets.
    pub(super) fn target_dtype(&self) -> DType {
        if self.are_labels { DType::I64 } else { DType::F32 }
    }

    /// The features of rows in their format, in `out`; the first is row `first` of all.
    pub(super) fn encode(&self, rows: &Chunk<'_>, first: usize, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        encode(self.dtype, rows.features, out).map_err(|index| self.does_not_fit(rows, first, index))
    }

    /// The error for the value at `index` of the features.
    pub(super) fn does_not_fit(&self, rows: &Chunk<'_>, first: usize, index: usize) -> crate::Error {
        let (row, column) = (first + index / self.features.len(), index % self.features.len());
        DataError::DoesNotFit {
            place: format!("`{}`, row {row}", self.source),
            column: self.features[column].clone(),
            value: rows.features[index],
            dtype: self.dtype.to_string(),
        }
        .into()
    }
}

/// The writer of file number `index`.
pub(super) fn open(
    schema: &Schema,
    target: &Target,
    index: usize,
    staging: &mut Staging,
) -> Result<Box<dyn RowWriter>> {
    let schema = schema.clone();
    let path = target.file(index);
    Ok(match target.format {
        DataFormat::Npy => Box::new(npy::NpyWriter::new(schema, target, index, staging)?),
        DataFormat::Npz => Box::new(npz::NpzWriter::new(schema, &path, staging)?),
        DataFormat::Safetensors => Box::new(safetensors::SafetensorsWriter::new(schema, &path, staging)?),
        #[cfg(feature = "parquet")]
        DataFormat::Parquet => Box::new(super::parquet::ParquetWriter::new(schema, &path, staging)?),
        #[cfg(not(feature = "parquet"))]
        DataFormat::Parquet => return Err(DataError::ParquetNotBuilt { path }.into()),
        _ => Box::new(csv::CsvWriter::new(schema, target.compression, &path, staging)?),
    })
}
