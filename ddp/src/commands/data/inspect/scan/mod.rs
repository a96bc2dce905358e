//! Files of all formats -> chunks of rows, read once and in order.

mod arrays;
mod csv;
mod dataset;

use std::path::PathBuf;

use super::collector::{Chunk, Collector, Place};
use super::profile::{FileSize, Profile};
use super::values::key_of_number;
use crate::config::{DataFormat, nearest};
use crate::data::Compression;
use crate::data::files::format_of_all;
use crate::data::raw::RawFormat;
use crate::data::{DataError, SourceSpec, files_of};
use crate::error::Result;

/// What is in the files that `spec` names; `targets` are the columns that were asked for.
///
/// # Errors
/// What is wrong with the files, or with the names of the targets.
pub(super) fn scan(spec: &SourceSpec<'_>, targets: &[String]) -> Result<Profile> {
    let (origin, collected) = if spec.source.starts_with("builtin:") {
        dataset::scan(spec, "built in", Vec::new())?
    } else {
        let files = files_of(spec.source)?;
        let format = format_of_all(&files, spec)?;
        let raw = match format {
            DataFormat::Npy => Some(RawFormat::Npy),
            DataFormat::Npz => Some(RawFormat::Npz),
            DataFormat::Safetensors => Some(RawFormat::Safetensors),
            DataFormat::Idx => Some(RawFormat::Idx),
            DataFormat::Csv | DataFormat::Parquet | DataFormat::Auto => None,
        };
        match raw {
            Some(raw) => arrays::scan(&files, raw, spec)?,
            None if format == DataFormat::Parquet => dataset::scan(spec, "Parquet", sizes(&files))?,
            None => csv::scan(&files, targets)?,
        }
    };
    Ok(Profile::new(origin, &collected, spec))
}

/// Files with their sizes.
fn sizes(files: &[PathBuf]) -> Vec<FileSize> {
    let size = |path: &PathBuf| FileSize {
        path: path.display().to_string(),
        // What is no file on a disk has no size.
        size_bytes: path.metadata().ok().filter(|data| data.is_file()).map(|data| data.len()),
    };
    files.iter().map(size).collect()
}

/// A format's name, with that of the compression.
fn format_name(name: &str, files: &[PathBuf]) -> String {
    match Compression::of(&files[0]) {
        Compression::None => name.to_owned(),
        compression => format!("{name}, {}", compression.name()),
    }
}

/// Indices of the targets: those asked for, or `label` where there is such a column.
fn targets_among(names: &[String], asked: &[String], path: &std::path::Path) -> Result<Vec<usize>> {
    if asked.is_empty() {
        return Ok(names.iter().position(|name| name == "label").into_iter().collect());
    }
    let find = |target: &String| {
        names.iter().position(|name| name == target).ok_or_else(|| {
            let hint = match nearest(target, names.iter().map(String::as_str)) {
                Some(name) => format!("did you mean \"{name}\"?"),
                None => "without --target all columns are shown".to_owned(),
            };
            let (path, column) = (path.to_owned(), target.clone());
            DataError::ColumnMissing { path, column, key: "--target", hint }.into()
        })
    };
    asked.iter().map(find).collect()
}

/// Adds rows of numbers, `[n, columns]`, whose first has the number `first`; NaN is a missing value.
fn add_numbers(collector: &mut Collector, numbers: &mut [f64], first: usize, keys: &mut Vec<u64>) {
    let n_columns = collector.columns.len();
    let shown = |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { value.to_string() };
    let place = |row: usize| Place { file: 0, number: (first + row) as u64 };
    keys.clear();
    for (index, number) in numbers.iter_mut().enumerate() {
        let key = if number.is_nan() { 0 } else { key_of_number(*number) };
        keys.push(key);
        if key != 0 && !is_finite_f32(*number) {
            let odd = &mut collector.columns[index % n_columns].not_finite;
            odd.add(place(index / n_columns), || number.to_string());
            *number = f64::NAN;
        }
    }
    let places: Vec<Place> = (0..numbers.len() / n_columns).map(place).collect();
    let text = |row: usize, column: usize| shown(numbers[row * n_columns + column]);
    collector.add(&Chunk { numbers, keys, places: &places, text: &text });
}

/// Whether a number is one for a model, which computes in f32.
fn is_finite_f32(value: f64) -> bool {
    (value as f32).is_finite()
}
