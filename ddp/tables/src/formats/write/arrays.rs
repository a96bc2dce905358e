//! Rows encoded as the arrays of a file: a row-major matrix of features, targets, weights.

use std::collections::HashMap;

use ddp::data::vocabulary::CategoryColumn;

use crate::formats::error::{Result, RowsError};
use crate::formats::write::chunk::{Block, Chunk, Group, Kind, Purpose, Schema};
use crate::formats::write::encode::{cast, common, largest_code};
use crate::values::element::RawType;

/// Arrays of a file, with their types.
#[derive(Debug, Clone)]
pub struct ArrayLayout {
    pub(crate) features: Vec<String>,
    pub(crate) targets: Vec<String>,
    /// Data type of the elements.
    pub dtype: RawType,
    /// The reason for `dtype`; `None` if the user chose it.
    pub reason: Option<&'static str>,
    pub(crate) target_dtype: RawType,
    /// `None` without weights.
    pub weight_dtype: Option<RawType>,
    /// Labels of the class numbers, if the labels are texts.
    pub labels: Option<Vec<String>>,
    pub(crate) categories: Vec<CategoryColumn>,
}

/// Numbers of the texts of a column.
pub type Codes = HashMap<String, i64>;

/// Types of arrays that the files of a format can hold.
#[derive(Debug)]
pub struct ArrayStorage {
    /// Whether elements may be bf16.
    pub has_bf16: bool,
    /// Whether the file holds the values of categorical columns.
    pub has_categories: bool,
}

/// Files to which arrays are written.
#[derive(Debug, Clone, Copy)]
pub struct ArrayFiles<'a> {
    /// The files in which rows wait until all are encoded.
    pub storage: &'a ArrayStorage,
    /// Title of their format, for messages.
    pub title: &'a str,
    /// Path or pattern as the user wrote it, for messages.
    pub out: &'a str,
}

impl ArrayFiles<'_> {
    /// Checks that the files can store the categories of rows of `schema`, before any row is read.
    ///
    /// # Errors
    /// [`RowsError::OutFormat`] that names the first categorical column.
    pub fn check_categories(&self, schema: &Schema) -> Result<()> {
        let of_group = |group: &Group| match group.kind {
            Kind::Text => Some(group.names[0].clone()),
            _ => group.categories.first().map(|column| column.vocabulary.name().to_owned()),
        };
        let Some(name) =
            schema.of(Purpose::Feature).find_map(of_group).filter(|_| !self.storage.has_categories)
        else {
            return Ok(());
        };
        Err(RowsError::OutFormat {
            out: self.out.to_owned(),
            reason: format!(
                "{} files can't store the values of the categorical column \"{name}\"",
                self.title
            ),
            hint: "write to .safetensors, .parquet or .csv".to_owned(),
        })
    }
}

impl ArrayLayout {
    /// The arrays for rows of `schema`. `dtype` is the type of the features; `None` for one that rounds no value.
    ///
    /// # Errors
    /// [`RowsError::OutFormat`] if the format cannot hold the columns.
    pub fn new(
        schema: &Schema,
        categories: Vec<CategoryColumn>,
        labels: Option<Vec<String>>,
        dtype: Option<RawType>,
        files: ArrayFiles<'_>,
    ) -> Result<Self> {
        let ArrayFiles { storage, title, out } = files;
        let bad = |reason: String, hint: &str| {
            Err(RowsError::OutFormat { out: out.to_owned(), reason, hint: hint.to_owned() })
        };
        let names = |purpose| schema.of(purpose).flat_map(|group| &group.names).cloned().collect::<Vec<_>>();
        let type_of = |purpose| schema.of(purpose).map(type_of).reduce(common);
        let (mut natural, reason) = feature_type(schema);
        if !categories.is_empty() {
            let most = categories.iter().map(|column| column.vocabulary.n_codes() as u64 - 1).max();
            while most.unwrap_or(0) > largest_code(natural) {
                natural = common(natural, if natural.is_integer() { RawType::I32 } else { RawType::F64 });
            }
        }
        if natural == RawType::Bf16 && !storage.has_bf16 {
            // Every value of bf16 is one of f32.
            natural = RawType::F32;
        }
        let layout = ArrayLayout {
            features: names(Purpose::Feature),
            targets: names(Purpose::Target),
            dtype: dtype.unwrap_or(natural),
            reason: dtype.is_none().then_some(reason),
            target_dtype: match type_of(Purpose::Target) {
                Some(RawType::F64) if keeps_digits(schema, Purpose::Target) => RawType::F32,
                other => other.unwrap_or(RawType::F32),
            },
            weight_dtype: type_of(Purpose::Weight),
            labels,
            categories,
        };
        if layout.dtype == RawType::Bf16 && !storage.has_bf16 {
            let reason = format!("{title} files can't hold features in bf16");
            return bad(reason, "write to .safetensors, or use --dtype f32");
        }
        let is_large =
            |column: &&CategoryColumn| column.vocabulary.n_codes() as u64 - 1 > largest_code(layout.dtype);
        if let Some(column) = layout.categories.iter().find(is_large) {
            let (name, dtype) = (column.vocabulary.name(), layout.dtype.name());
            let reason = format!("the categorical column \"{name}\" has more values than {dtype} can number");
            return bad(reason, "--dtype f64 holds all values");
        }
        Ok(layout)
    }

    /// Shape of the targets of `n_rows` rows.
    pub(crate) fn target_shape(&self, n_rows: u64) -> Vec<u64> {
        match self.targets.len() {
            0 | 1 => vec![n_rows],
            n => vec![n_rows, n as u64],
        }
    }

    /// Shape of the features of `n_rows` rows.
    pub(crate) fn feature_shape(&self, n_rows: u64) -> Vec<u64> {
        vec![n_rows, self.features.len() as u64]
    }

    /// Bytes per row in the files.
    pub fn row_bytes(&self) -> usize {
        self.features.len() * self.dtype.size_bytes()
            + self.targets.len() * self.target_dtype.size_bytes()
            + self.weight_dtype.map_or(0, RawType::size_bytes)
    }
}

/// The smallest type that keeps every digit of the features, and the reason for it.
fn feature_type(schema: &Schema) -> (RawType, &'static str) {
    let groups = || schema.of(Purpose::Feature);
    let whole = groups().map(type_of).reduce(common).unwrap_or(RawType::F32);
    let short = groups().map(|group| match type_of(group) {
        raw if raw.is_wide() && group.fits_single == Some(true) => RawType::F32,
        raw => raw,
    });
    let short = short.reduce(common).unwrap_or(RawType::F32);
    let loses_digits = groups().any(|group| group.fits_single == Some(false));
    let is_one_type = groups().all(|group| type_of(group) == whole);
    match () {
        () if short.size_bytes() < whole.size_bytes() => (short, "which keeps every digit"),
        () if loses_digits && whole.is_integer() => (whole, "because f32 would round whole numbers"),
        () if loses_digits => (whole, "because f32 would lose digits"),
        () if is_one_type => (whole, "as in the input"),
        () => (whole, "the smallest type that holds all columns"),
    }
}

/// Whether f32 keeps every digit of the columns of one use, which are texts in the file.
fn keeps_digits(schema: &Schema, purpose: Purpose) -> bool {
    schema.of(purpose).all(|group| group.fits_single == Some(true))
}

/// The type of a group in an array; texts become numbers of classes or categories.
fn type_of(group: &Group) -> RawType {
    match group.kind {
        Kind::Number(raw) => raw,
        _ if group.purpose == Purpose::Target => RawType::I64,
        _ => RawType::I32,
    }
}

/// Encodes chunks of rows as arrays.
#[derive(Debug)]
pub struct ArrayEncoder {
    schema: Schema,
    layout: ArrayLayout,
    /// Numbers of the texts of each group.
    codes: Vec<Codes>,
    /// Values that the type of their array rounds.
    pub n_rounded: u64,
    pub(crate) rows: ArrayRows,
    scratch: Vec<u8>,
}

/// Rows as bytes of arrays, in the order of the file.
#[derive(Debug, Default)]
pub struct ArrayRows {
    pub(crate) n_rows: usize,
    pub(crate) features: Vec<u8>,
    pub(crate) targets: Vec<u8>,
    pub(crate) weights: Vec<u8>,
}

impl ArrayEncoder {
    /// Creates an encoder of rows with `schema` and `layout`; `codes` has the vocabulary of each category.
    pub fn new(schema: Schema, layout: ArrayLayout, codes: Vec<Codes>) -> Self {
        ArrayEncoder { schema, layout, codes, n_rounded: 0, rows: ArrayRows::default(), scratch: Vec::new() }
    }

    /// Encodes `chunk`, whose first row has the number `first`.
    ///
    /// # Errors
    /// [`RowsError::DoesNotFit`]
    pub fn encode(&mut self, chunk: &Chunk, first: usize) -> Result<&ArrayRows> {
        let rows = &mut self.rows;
        rows.n_rows = chunk.n_rows;
        for purpose in [Purpose::Feature, Purpose::Target, Purpose::Weight] {
            let (out, dtype, width) = match purpose {
                Purpose::Feature => (&mut rows.features, self.layout.dtype, self.layout.features.len()),
                Purpose::Target => (&mut rows.targets, self.layout.target_dtype, self.layout.targets.len()),
                Purpose::Weight => match self.layout.weight_dtype {
                    Some(dtype) => (&mut rows.weights, dtype, 1),
                    None => continue,
                },
            };
            let size = dtype.size_bytes();
            // Every byte is overwritten.
            out.resize(chunk.n_rows * width * size, 0);
            // The digits of texts are kept, not the nearest f64.
            let is_short = dtype == RawType::F32
                && match purpose {
                    Purpose::Feature => self.layout.reason.is_some(),
                    _ => keeps_digits(&self.schema, purpose),
                };
            let mut at = 0;
            for (index, (group, block)) in self.schema.groups.iter().zip(&chunk.blocks).enumerate() {
                if group.purpose != purpose {
                    continue;
                }
                let n = group.names.len();
                let is_whole = n == width;
                let cells = if is_whole { &mut *out } else { &mut self.scratch };
                cells.clear();
                let put = put(block, dtype, &self.codes[index], cells);
                let n_rounded =
                    put.map_err(|misfit| does_not_fit(&self.schema, group, misfit, first, dtype))?;
                self.n_rounded += if is_short { 0 } else { n_rounded };
                if !is_whole {
                    spread(&self.scratch, n * size, out, at * size, width * size);
                }
                at += n;
            }
        }
        Ok(&self.rows)
    }
}

/// Copies rows of `row_bytes` bytes to the offset `at` of rows of `stride` bytes.
fn spread(rows: &[u8], row_bytes: usize, out: &mut [u8], at: usize, stride: usize) {
    macro_rules! numbers {
        ($n:literal) => {
            for (row, out) in rows.as_chunks::<$n>().0.iter().zip(out[at..].chunks_mut(stride)) {
                out[..$n].copy_from_slice(row);
            }
        };
    }
    match row_bytes {
        4 => numbers!(4),
        8 => numbers!(8),
        _ => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out[at..].chunks_mut(stride)) {
                out[..row_bytes].copy_from_slice(row);
            }
        }
    }
}

/// The bytes of NaN, in types that have it.
fn nan(raw: RawType) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    cast(RawType::F64, &f64::NAN.to_le_bytes(), raw, &mut bytes).ok().map(|_| bytes)
}

/// Appends the values of a block as `dtype` and returns how many were rounded; an error has the index and the value.
fn put(block: &Block, dtype: RawType, codes: &Codes, out: &mut Vec<u8>) -> Result<u64, WideValue> {
    match block {
        Block::Numbers(numbers) => {
            let start = out.len();
            let cast = cast(numbers.raw, &numbers.bytes, dtype, out);
            let n_rounded =
                cast.map_err(|misfit| WideValue { at: misfit.index, value: numbers.double(misfit.index) })?;
            // Missing floats are NaN already.
            if numbers.raw.is_integer()
                && let Some(row) = numbers.nulls.first()
            {
                let nan = nan(dtype).ok_or(WideValue { at: row, value: f64::NAN })?;
                for row in (row..numbers.nulls.0.len()).filter(|row| numbers.nulls.is_null(*row)) {
                    out[start + row * nan.len()..][..nan.len()].copy_from_slice(&nan);
                }
            }
            Ok(n_rounded)
        }
        Block::Texts { texts, nulls } => {
            let code = |row: usize| {
                if nulls.is_null(row) { 0 } else { codes.get(texts.get(row)).copied().unwrap_or(0) }
            };
            let bytes: Vec<u8> = (0..texts.n_rows()).flat_map(|row| code(row).to_le_bytes()).collect();
            cast(RawType::I64, &bytes, dtype, out)
                .map_err(|misfit| WideValue { at: misfit.index, value: code(misfit.index) as f64 })
        }
        _ => unreachable!("a source of rows for arrays yields numbers and texts"),
    }
}

/// Converts the features of `chunk` that are numbers to `dtype`, and returns how many were rounded; the first row has the number
/// `first`.
///
/// # Errors
/// [`RowsError::DoesNotFit`]
pub fn cast_features(schema: &Schema, chunk: &mut Chunk, dtype: RawType, first: usize) -> Result<u64> {
    let mut n_rounded = 0;
    for (group, block) in schema.groups.iter().zip(&mut chunk.blocks) {
        if group.purpose != Purpose::Feature || !matches!(block, Block::Numbers(_)) {
            continue;
        }
        let mut bytes = Vec::new();
        let put = put(block, dtype, &Codes::new(), &mut bytes);
        n_rounded += put.map_err(|misfit| does_not_fit(schema, group, misfit, first, dtype))?;
        if let Block::Numbers(numbers) = block {
            (numbers.raw, numbers.bytes) = (dtype, bytes);
        }
    }
    Ok(n_rounded)
}

/// A value of a block that a type cannot hold.
struct WideValue {
    /// Its element of the block.
    at: usize,
    value: f64,
}

fn does_not_fit(
    schema: &Schema,
    group: &Group,
    misfit: WideValue,
    first: usize,
    dtype: RawType,
) -> RowsError {
    let WideValue { at, value } = misfit;
    let width = group.names.len();
    RowsError::DoesNotFit {
        place: format!("`{}`, row {}", schema.source, first + at / width),
        column: group.names[at % width].clone(),
        value,
        dtype: dtype.name().to_owned(),
    }
}
