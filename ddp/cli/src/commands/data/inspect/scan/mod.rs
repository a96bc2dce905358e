//! Reads files of all formats once and in order, in chunks of rows: arrays here, tables in `cells`.

mod cells;

use std::ops::Range;
use std::path::PathBuf;

use ddp::data::{DataError, Label, numbered_columns};
use ddp_tables::error::TableError;
use ddp_tables::error::target_error::TargetError;
use ddp_tables::formats::Reader;
use ddp_tables::formats::arrays::RawArray;
use ddp_tables::formats::arrays::reader::ArrayReader;
use ddp_tables::formats::error::RowsError;
use ddp_tables::formats::table::types::Place;
use ddp_tables::open::files::files_and_format;
use ddp_tables::open::list_arrays;
use ddp_tables::open::list_arrays::Listing;
use ddp_tables::open::open_arrays::check_rows;
use ddp_tables::row_values::RowValues;
use ddp_tables::source::SourceSpec;
use ddp_tables::values::element::RawType;

use super::profile::Profile;
use crate::commands::data::inspect::collector::{Cells, Collector, Column};
use crate::commands::data::inspect::column_profile::{ArrayShape, Kind, Origin};
use crate::commands::data::inspect::section::quoted;
use crate::commands::data::inspect::values::key_of_text;
use crate::error::Result;

/// Integers up to this one are exact in f64.
const MAX_EXACT: u64 = 1 << 53;

/// The profile of the files that `spec` names, with the target columns `targets`: of all rows, or of the first ones of a table that hold about
/// `max_cells`.
///
/// # Errors
/// Faults of the files, or of the names in `targets`.
pub(super) fn scan(spec: &SourceSpec<'_>, targets: &[String], max_cells: Option<usize>) -> Result<Profile> {
    let (origin, collected) = if spec.source.starts_with("builtin:") {
        scan_builtin(spec)?
    } else {
        let (files, format) = files_and_format(spec)?;
        match &format.reader {
            Reader::Arrays(reader) => scan_arrays(&files, format.title, reader, spec)?,
            Reader::Table(table) => cells::scan(&files, format.title, table, targets, spec, max_cells)?,
        }
    };
    Ok(Profile::new(origin, &collected, spec))
}

/// Reads all rows of features and labels in files of the format `title`; other arrays are only listed.
fn scan_arrays(
    files: &[PathBuf],
    title: &str,
    reader: &ArrayReader,
    spec: &SourceSpec<'_>,
) -> Result<(Origin, Collector)> {
    let Listing { arrays, features, labels, feature_names, target_names } =
        list_arrays::list(files, reader, spec)?;
    let shapes = arrays.iter().map(|(name, array)| shape(name, array)).collect();
    let names: Vec<String> = arrays.iter().map(|(name, _)| name.clone()).collect();
    let mut arrays: Vec<Option<Result<RawArray, DataError>>> =
        arrays.into_iter().map(|(_, array)| Some(array)).collect();
    let mut take = |index: Option<usize>| index.and_then(|index| arrays[index].take()).transpose();
    // An array of single numbers is a table of one column.
    let features_index = features.or_else(|| (0..names.len()).find(|index| Some(*index) != labels));
    let (features, labels_array) = (take(features_index)?, take(labels)?);
    let Some(features) = features else {
        return Err(DataError::from(TableError::NoArray {
            path: files[0].clone(),
            key: spec.data.features_key.clone(),
            found: "none".to_owned(),
            hint: "save the features as an array [rows, features]".to_owned(),
        })
        .into());
    };
    if features.n_rows() == 0 {
        return Err(RowsError::NoRows { path: features.path().to_owned() }.into());
    }
    check_rows(&features, labels_array.as_ref().unwrap_or(&features), "labels", spec)?;
    if let Some(labels) =
        labels_array.as_ref().filter(|labels| labels.raw.is_text() && labels.n_values() != 1)
    {
        return Err(DataError::from(TargetError::TargetText {
            place: format!("data file `{}`", labels.path().display()),
            hint: "labels may be one text per row",
        })
        .into());
    }
    let labels_array = labels_array.map(RawArray::beyond_i64_as_text).transpose()?;
    let n_rows = features.n_rows();
    let (width, n_targets) = (features.row_len(), labels_array.as_ref().map_or(0, RawArray::n_values));
    let named = |names: Option<Vec<String>>, n: usize| names.filter(|names| names.len() == n);
    let mut columns = named(feature_names, width).unwrap_or_else(|| numbered_columns(width));
    let mut kinds = vec![Some(Kind::Element(features.raw.name())); width];
    if let Some(labels) = &labels_array {
        let own = match n_targets {
            1 => vec!["label".to_owned()],
            n => (0..n).map(|i| format!("t{i}")).collect(),
        };
        columns.extend(named(target_names, n_targets).unwrap_or(own));
        let kind = if labels.raw.is_text() { Kind::Text } else { Kind::Element(labels.raw.name()) };
        kinds.resize(width + n_targets, Some(kind));
    }
    let mut keys = Vec::new();
    for (index, key, given) in [
        (features_index, "features_key", &spec.data.features_key),
        (labels, "labels_key", &spec.data.labels_key),
    ] {
        let name = index.map(|index| &names[index]).filter(|name| *name != given);
        if let Some(name) = name.filter(|_| matches!(reader, ArrayReader::Named { .. })) {
            keys.push(format!("{key} = {}", quoted(name)));
        }
    }
    let origin = Origin {
        arrays: shapes,
        names: columns,
        targets: (width..width + n_targets).collect(),
        kinds,
        keys,
        ..Origin::from_files(title, files)
    };
    let total = features.size_bytes() + labels_array.as_ref().map_or(0, RawArray::size_bytes);
    let place = |array: RawArray| if total > spec.mapped_bytes { array.unmapped() } else { Ok(array) };
    let features = place(features)?;
    let labels = labels_array.map(place).transpose()?;
    Ok((origin, collect(&features, labels.as_ref(), n_rows)?))
}

/// Reads all rows of a built-in set, whose labels are numbers.
fn scan_builtin(spec: &SourceSpec<'_>) -> Result<(Origin, Collector)> {
    let dataset = spec.open()?;
    let width = dataset.layout().n_features();
    let mut names = dataset.layout().features.clone();
    names.push(spec.data.target[0].clone());
    let mut kinds = vec![Some(Kind::Element("f32")); width];
    kinds.push(None);
    let mut collector = Collector::new(width + 1, Some(width));
    for row in 0..dataset.len() {
        let RowValues { x, targets, .. } = RowValues::read(&*dataset, &[row])?;
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        add_rows(&mut collector, &x, &Target { values: &targets, texts: &[], integers: &[] }, row..row + 1);
    }
    let format = "built in".to_owned();
    Ok((Origin { format, names, targets: vec![width], kinds, ..Origin::default() }, collector))
}

/// Collects all rows in order.
fn collect(features: &RawArray, labels: Option<&RawArray>, n_rows: usize) -> Result<Collector> {
    let (width, n_targets) = (features.row_len(), labels.map_or(0, RawArray::n_values));
    let n_columns = width + n_targets;
    let mut collector = Collector::new(n_columns, (n_targets > 0).then_some(width));
    let chunk_rows = collector.chunk_rows();
    let (mut x, mut y) = (Vec::new(), Vec::new());
    let (mut texts, mut integers) = (Vec::<String>::new(), Vec::new());
    for start in (0..n_rows).step_by(chunk_rows) {
        let rows: Vec<usize> = (start..(start + chunk_rows).min(n_rows)).collect();
        x.resize(rows.len() * width, 0.0);
        features.rows_to_f64(&rows, &mut x)?;
        texts.clear();
        if let Some(labels) = labels.filter(|labels| labels.raw.is_text()) {
            y.clear();
            y.resize(rows.len(), f64::NAN);
            labels.rows_to_text(&rows, |row, text| match Label::parse(text) {
                Label::Integer(number) => {
                    y[row] = number as f64;
                    texts.push(String::new());
                }
                Label::Text(text) => {
                    // A text is there, whatever its number.
                    y[row] = if text.is_empty() { f64::NAN } else { 0.0 };
                    texts.push(text);
                }
            })?;
        } else if let Some(labels) = labels {
            y.resize(rows.len() * n_targets, 0.0);
            labels.rows_to_f64(&rows, &mut y)?;
            if labels.raw == RawType::I64 && n_targets == 1 {
                integers.resize(rows.len(), 0);
                labels.rows_to_i64(&rows, &mut integers)?;
            }
        }
        let target = Target { values: &y, texts: &texts, integers: &integers };
        add_rows(&mut collector, &x, &target, start..start + rows.len());
    }
    Ok(collector)
}

fn shape(name: &str, array: &Result<RawArray, DataError>) -> ArrayShape {
    let name = name.to_owned();
    match array {
        Ok(array) => {
            let shape = std::iter::once(array.n_rows()).chain(array.row_dims.iter().copied()).collect();
            ArrayShape { name, kind: array.raw.name().to_owned(), shape }
        }
        Err(_) => ArrayShape { name, kind: "not numbers".to_owned(), shape: Vec::new() },
    }
}

/// Targets of consecutive rows.
struct Target<'a> {
    /// `[n, targets]`; NaN is a missing value.
    values: &'a [f64],
    /// `[n]` for one target of texts; an empty text leaves the number.
    texts: &'a [String],
    /// `[n]` for one target of integers, all digits of which f64 may not hold.
    integers: &'a [i64],
}

/// Adds the rows with the numbers `rows`: features `[n, columns]`, NaN for a missing value, and targets.
fn add_rows(collector: &mut Collector, features: &[f64], target: &Target<'_>, rows: Range<usize>) {
    let (n_columns, n_rows) = (collector.columns.len(), rows.len());
    let width = features.len() / n_rows;
    let places: Vec<Place> = rows.map(|row| Place { file: 0, number: row as u64 }).collect();
    let numbers = |column: usize| match column.checked_sub(width) {
        None => features.iter().skip(column).step_by(width),
        Some(of_target) => target.values.iter().skip(of_target).step_by(n_columns - width),
    };
    let text_of = |row: usize, column: usize| {
        target.texts.get(row).filter(|text| column + 1 == n_columns && !text.is_empty())
    };
    let rounded = |row: usize, column: usize| {
        let integer = *target.integers.get(row).filter(|_| column + 1 == n_columns)?;
        (integer.unsigned_abs() > MAX_EXACT).then(|| integer.to_string())
    };
    let cells = |index: usize, column: &mut Column| {
        let mut cells = Cells::from_numbers(numbers(index).copied(), &places, column);
        for (row, &place) in places.iter().enumerate() {
            if let Some(text) = text_of(row, index) {
                column.types.texts.add(place, text);
                (cells.numbers[row], cells.keys[row]) = (f64::NAN, key_of_text(text));
            } else if let Some(digits) = rounded(row, index) {
                cells.keys[row] = key_of_text(&digits);
            }
        }
        cells
    };
    let text = |row: usize, column: usize| match (text_of(row, column), numbers(column).nth(row)) {
        (Some(text), _) => text.clone(),
        (None, value) => {
            rounded(row, column).unwrap_or_else(|| value.map_or(String::new(), ToString::to_string))
        }
    };
    collector.add(&places, &cells, &text);
}
