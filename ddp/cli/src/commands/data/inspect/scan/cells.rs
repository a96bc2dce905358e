//! Reads tables cell by cell as text; the cells determine the types of columns.

use std::path::{Path, PathBuf};

use ddp::data::table::{
    CellReader, column_missing, index_note, partition_columns, repeated_note, same_names,
};
use ddp::data::{CsvError, DataError, SourceSpec, notes_on_folders};
use ddp_rows::error::formatted::is_formatted;
use ddp_rows::table::source::{ColumnType, TableFormat};
use ddp_rows::values::notation::{Meaning, Notation};
use ddp_rows::values::number::{DecimalMark, Unclear, is_code, is_padded};
use ddp_rows::write::CellKind;

use super::is_finite_f32;
use crate::commands::data::inspect::collector::{Chunk, Collector, Place};
use crate::commands::data::inspect::kind::Kind;
use crate::commands::data::inspect::origin::Origin;
use crate::commands::data::inspect::values::{key_of_number, key_of_text};
use crate::error::Result;

/// Integers below are exact in f64.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// Cells of the rows of one chunk.
#[derive(Default)]
struct Cells {
    numbers: Vec<f64>,
    keys: Vec<u64>,
    places: Vec<Place>,
    /// All cells, trimmed and concatenated.
    text: String,
    ends: Vec<usize>,
}

/// Use of a column, as far as it decides on the meaning of its cells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Feature,
    Target,
    /// A target that the file marks as text: its labels keep their spelling.
    StringTarget,
}

/// Reads all rows of all files of the format `title`.
pub(super) fn scan(
    files: &[PathBuf],
    title: &str,
    format: &TableFormat,
    targets: &[String],
    spec: &SourceSpec<'_>,
) -> Result<(Origin, Collector)> {
    // A pipe can be opened only once.
    let first = CellReader::open(&files[0], format, spec)?;
    let own_names = first.columns().names.clone();
    let mut indices = first.columns().indices.clone();
    let notes = first.columns().notes.clone();
    for &at in &first.columns().unnamed {
        if at + 1 < own_names.len() && !spec.data.drop.contains(&own_names[at]) {
            return Err(DataError::from(CsvError::UnnamedColumn {
                path: files[0].clone(),
                position: at + 1,
            })
            .into());
        }
        indices.push(at);
    }
    let types = first.types().map(<[ColumnType]>::to_vec);
    let is_text = |of: &ColumnType| of.cells == Some(CellKind::Text);
    let are_texts: Vec<bool> = types.iter().flatten().map(is_text).collect();
    let mut names = own_names.clone();
    let of_folders: Vec<String> =
        partition_columns(&files[0], spec).into_iter().map(|(name, _)| name).collect();
    let is_repeated = |column: &usize| of_folders.contains(&own_names[*column]);
    let repeated: Vec<usize> = (0..own_names.len()).filter(is_repeated).collect();
    names.extend(of_folders);
    let mut first = Some(first);
    let targets = targets_among(&names, targets, &files[0])?;
    let mut collector = Collector::new(names.len(), targets.first().copied());
    let chunk_rows = collector.chunk_rows();
    let mut cells = Cells::default();
    for (file, path) in files.iter().enumerate() {
        let mut reader = match first.take() {
            Some(first) => first,
            None => CellReader::open(path, format, spec)?,
        };
        let of_folders = partition_columns(path, spec);
        let all_names: Vec<String> =
            reader.columns().names.iter().chain(of_folders.iter().map(|(name, _)| name)).cloned().collect();
        same_names(&files[0], &names, path, &all_names)?;
        // Columns of the first file, by those of this one.
        let places: Vec<usize> = if all_names == names {
            (0..names.len()).collect()
        } else {
            let (own, of_folders) = (&names[..own_names.len()], own_names.len()..names.len());
            let place =
                |name: &String| own.iter().position(|other| other == name).expect("it has the same columns");
            reader.columns().names.iter().map(place).chain(of_folders).collect()
        };
        let notation = reader.notation().clone();
        let mut n_rows = 0;
        while let Some(record) = reader.record()? {
            let place = Place { file, number: record.line };
            let of_folders = of_folders.iter().map(|(_, value)| value.as_bytes());
            let mut row: Vec<&[u8]> = vec![b""; names.len()];
            let mut strings = vec![false; names.len()];
            for (at, cell) in record.cells().chain(of_folders).enumerate() {
                (row[places[at]], strings[places[at]]) = (cell, record.is_string(at));
            }
            for (column, cell) in row.into_iter().enumerate() {
                let is_string = strings[column] || are_texts.get(column).is_some_and(|is| *is);
                let use_ = if !targets.contains(&column) {
                    Use::Feature
                } else if is_string {
                    Use::StringTarget
                } else {
                    Use::Target
                };
                cells.add(cell, &notation, place, column, use_, &mut collector);
            }
            cells.places.push(place);
            n_rows += 1;
            if cells.places.len() == chunk_rows {
                cells.flush(&mut collector);
            }
        }
        if n_rows == 0 {
            return Err(DataError::from(CsvError::NoRows { path: path.clone() }).into());
        }
    }
    cells.flush(&mut collector);
    for name in &spec.data.drop {
        if !names.contains(name) {
            return Err(column_missing(&files[0], name, "--drop", &names).into());
        }
    }
    let kind = |column: usize| match &types {
        _ if spec.data.drop.contains(&names[column]) => Some(Kind::Dropped),
        _ if indices.contains(&column) || repeated.contains(&column) => Some(Kind::Index),
        Some(types) if types.get(column).is_some_and(|of| !of.is_usable) => Some(Kind::Other),
        _ => None,
    };
    let of_types = types.iter().flatten();
    let origin = Origin {
        is_table: true,
        kinds: (0..names.len()).map(kind).collect(),
        left_out: notes
            .into_iter()
            .chain(indices.iter().map(|&column| index_note(column, &names[column])))
            .chain(repeated.iter().map(|&column| repeated_note(&names[column])))
            .chain(notes_on_folders(spec.source, &spec.data.eval))
            .collect(),
        has_lines: types.is_none(),
        texts: of_types.clone().zip(0..).filter(|(of, _)| of.is_text).map(|(_, column)| column).collect(),
        types: of_types.map(|of| of.name.clone()).collect(),
        names,
        targets,
        ..Origin::of_files(title, files)
    };
    Ok((origin, collector))
}

impl Cells {
    /// Adds the next cell of a row.
    fn add(
        &mut self,
        cell: &[u8],
        notation: &Notation,
        place: Place,
        column: usize,
        use_: Use,
        collector: &mut Collector,
    ) {
        let text = String::from_utf8_lossy(cell);
        let text = text.trim();
        let column = &mut collector.columns[column];
        if std::str::from_utf8(cell).is_err() {
            column.not_utf8.add(place, || text.to_owned());
        }
        let meaning = match notation.meaning(text) {
            Meaning::Missing if use_ != Use::Feature && !notation.is_missing_label(text) => Meaning::Text,
            Meaning::Number(_) | Meaning::Seconds { .. } if use_ == Use::StringTarget => Meaning::Text,
            meaning => meaning,
        };
        // A guess, which the suggested config names.
        let guessed = match notation.decimal.normalized(text) {
            Err(Unclear) if use_ != Use::StringTarget => {
                DecimalMark::PointAfterCommas.normalized(text).ok().and_then(|text| text.double())
            }
            _ => None,
        };
        let meaning = match guessed {
            Some(number) => {
                column.unclear.add(place, || text.to_owned());
                Meaning::Number(number)
            }
            None => meaning,
        };
        if matches!(meaning, Meaning::Number(_)) && is_code(text) {
            column.codes.add(place, || text.to_owned());
            column.n_padded += u64::from(is_padded(text));
        }
        let (number, key) = match meaning {
            Meaning::Missing => (f64::NAN, 0),
            // f64 would not keep larger integers apart.
            Meaning::Number(value) if use_ == Use::Target && is_code(text) && value.is_finite() => {
                (value, key_of_text(text))
            }
            Meaning::Number(value) if value.abs() < MAX_EXACT => (value, key_of_number(value)),
            Meaning::Number(value) if is_finite_f32(value) => (value, key_of_text(text)),
            Meaning::Number(_) => {
                column.not_finite.add(place, || text.to_owned());
                column.words.add(text);
                (f64::NAN, key_of_text(text))
            }
            Meaning::Truth(truth) => {
                column.n_truths += 1;
                // Words for a truth value are one value.
                (f64::from(u8::from(truth)), key_of_text(if truth { "yes" } else { "no" }))
            }
            Meaning::Seconds { seconds, has_date } => {
                column.n_times += 1;
                column.has_dates |= has_date;
                column.has_times_of_day |= !has_date;
                (seconds, key_of_text(text))
            }
            Meaning::Text => {
                column.texts.add(place, || text.to_owned());
                column.n_formatted += u64::from(is_formatted(text));
                column.words.add(text);
                (f64::NAN, key_of_text(text))
            }
        };
        if meaning != Meaning::Missing {
            self.text += text;
        }
        self.numbers.push(number);
        self.keys.push(key);
        self.ends.push(self.text.len());
    }

    /// Moves the rows to `collector`.
    fn flush(&mut self, collector: &mut Collector) {
        let n_columns = collector.columns.len();
        let text = |row: usize, column: usize| {
            let index = row * n_columns + column;
            let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
            self.text[start..self.ends[index]].to_owned()
        };
        collector.add(&Chunk { numbers: &self.numbers, keys: &self.keys, places: &self.places, text: &text });
        self.numbers.clear();
        self.keys.clear();
        self.places.clear();
        self.text.clear();
        self.ends.clear();
    }
}

/// Indices of the columns `targets`, or of `label` if none is named and the column exists.
fn targets_among(names: &[String], targets: &[String], path: &Path) -> Result<Vec<usize>> {
    if targets.is_empty() {
        return Ok(names.iter().rposition(|name| name == "label").into_iter().collect());
    }
    let find = |target: &String| {
        // The column of a folder follows one of the file that has its name.
        let at = names.iter().rposition(|name| name == target);
        at.ok_or_else(|| column_missing(path, target, "--target", names).into())
    };
    targets.iter().map(find).collect()
}
