//! Writes `.parquet`: one column per feature and target, and one for the weight; categories as text.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float16Array, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray,
    UInt8Array,
};
use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use ddp_kernels::DType;
use half::f16;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::data::error::{DataError, Result};
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging, Targets};
use crate::storage::atomic_write::WriteError;

/// Bytes of rows in a row group, which readers decode as a unit.
const GROUP_BYTES: usize = 16 << 20;
/// Memory of the writer for a row group; texts and their dictionaries come on top of the rows.
const WRITER_BYTES: usize = 3 * GROUP_BYTES;

/// Opens the file of a writer.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(ParquetWriter::new(schema, &files.rows, staging)?))
}

/// Writes columns.
struct ParquetWriter {
    path: PathBuf,
    batches: Batches,
    writer: ArrowWriter<File>,
}

/// Converts rows to record batches.
pub(in crate::data::table) struct Batches {
    schema: Schema,
    columns: Arc<ArrowSchema>,
    /// The values of each categorical column.
    texts: Vec<Option<ArrayRef>>,
}

impl Batches {
    /// Batches with the columns of `schema`.
    pub(in crate::data::table) fn new(schema: Schema) -> Self {
        let mut texts: Vec<Option<ArrayRef>> = vec![None; schema.features.len()];
        for category in &schema.categories {
            texts[category.column] =
                Some(Arc::new(StringArray::from_iter_values(category.vocabulary.values())) as ArrayRef);
        }
        let of_feature = |texts: &Option<ArrayRef>| match (texts, schema.dtype) {
            (Some(_), _) => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            (None, DType::U8) => DataType::UInt8,
            (None, DType::F16) => DataType::Float16,
            (None, _) => DataType::Float32,
        };
        let mut fields: Vec<Field> = Vec::new();
        for (name, texts) in schema.features.iter().zip(&texts) {
            fields.push(Field::new(name, of_feature(texts), texts.is_some()));
        }
        let target = if schema.are_labels { DataType::Int64 } else { DataType::Float32 };
        fields.extend(schema.targets.iter().map(|name| Field::new(name, target.clone(), false)));
        fields.extend(schema.weight.iter().map(|name| Field::new(name, DataType::Float32, false)));
        Batches { columns: Arc::new(ArrowSchema::new(fields)), schema, texts }
    }

    /// Columns of the batches.
    pub(in crate::data::table) fn columns(&self) -> &ArrowSchema {
        &self.columns
    }

    /// Rows as a batch; the first one has the number `first`.
    pub(in crate::data::table) fn batch(&self, rows: &Chunk<'_>, first: usize) -> Result<RecordBatch> {
        let features = (0..self.schema.features.len()).map(|column| self.feature(rows, column, first));
        let mut arrays = features.collect::<Result<Vec<_>>>()?;
        match rows.targets {
            Targets::Labels(labels) => arrays.push(Arc::new(Int64Array::from(labels.to_vec()))),
            Targets::Values(values) => {
                let n = self.schema.targets.len();
                for target in 0..n {
                    let values = values.iter().skip(target).step_by(n).copied();
                    arrays.push(Arc::new(Float32Array::from_iter_values(values)));
                }
            }
        }
        arrays.extend(rows.weights.map(|weights| Arc::new(Float32Array::from(weights.to_vec())) as ArrayRef));
        Ok(RecordBatch::try_new(self.columns.clone(), arrays).expect("columns follow the schema"))
    }

    /// The features of one column.
    fn feature(&self, rows: &Chunk<'_>, column: usize, first: usize) -> Result<ArrayRef> {
        let width = self.schema.features.len();
        let values = rows.features.iter().skip(column).step_by(width).copied();
        if let Some(texts) = &self.texts[column] {
            // 0 and numbers without a value are unknown values.
            let n_codes = texts.len() as f32;
            let key = |code: f32| (1.0..=n_codes).contains(&code).then(|| code as i32 - 1);
            let keys: Int32Array = values.map(key).collect();
            return Ok(Arc::new(DictionaryArray::<Int32Type>::new(keys, texts.clone())));
        }
        let misfit = |row: usize| self.schema.does_not_fit(rows, first, row * width + column);
        Ok(match self.schema.dtype {
            DType::U8 => {
                let fits = |value: f32| value.fract() == 0.0 && (0.0..=255.0).contains(&value);
                if let Some(row) = values.clone().position(|value| !fits(value)) {
                    return Err(misfit(row));
                }
                Arc::new(UInt8Array::from_iter_values(values.map(|value| value as u8)))
            }
            DType::F16 => {
                if let Some(row) = values.clone().position(|value| f16::from_f32(value).is_infinite()) {
                    return Err(misfit(row));
                }
                Arc::new(Float16Array::from_iter_values(values.map(f16::from_f32)))
            }
            _ => Arc::new(Float32Array::from_iter_values(values)),
        })
    }
}

impl ParquetWriter {
    fn new(schema: Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        // Readers hold features as f32.
        let wider = size_of::<f32>() - schema.dtype.size_bytes();
        let row_bytes = schema.row_bytes() + wider * schema.features.len();
        // Fast to decompress: rows that exceed the memory are decoded in every epoch.
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some((GROUP_BYTES / row_bytes).clamp(1, 1 << 20)))
            // A dictionary of numbers takes far more memory than the numbers, and there may be thousands of columns.
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN);
        for category in &schema.categories {
            let name = schema.features[category.column].clone();
            properties = properties.set_column_dictionary_enabled(ColumnPath::from(name), true);
        }
        let properties = properties.build();
        let file = staging.create(path)?;
        let batches = Batches::new(schema);
        let writer = ArrowWriter::try_new(file, batches.columns.clone(), Some(properties));
        let writer = writer.map_err(|error| failed(path, error))?;
        Ok(ParquetWriter { path: path.to_owned(), batches, writer })
    }
}

impl RowWriter for ParquetWriter {
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()> {
        let batch = self.batches.batch(rows, first)?;
        let written =
            self.writer.write(&batch).and_then(|()| match self.writer.memory_size() > WRITER_BYTES {
                true => self.writer.flush(),
                false => Ok(()),
            });
        written.map_err(|error| failed(&self.path, error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { path, mut writer, .. } = *self;
        writer.finish().map_err(|error| failed(&path, error))?;
        Ok(writer.inner().sync_all().map_err(|source| WriteError { path, source })?)
    }
}

fn failed(path: &Path, error: ParquetError) -> DataError {
    let source = match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(error) => std::io::Error::other(error),
        },
        error => std::io::Error::other(error),
    };
    WriteError { path: path.to_owned(), source }.into()
}
