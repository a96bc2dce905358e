//! Reads tables cell by cell as text; the cells determine the types of columns.

use std::path::{Path, PathBuf};

use ddp::data::table::{
    CellReader, column_missing, index_note, partition_columns, repeated_note, same_names,
};
use ddp::data::{CsvError, DataError, SourceSpec, notes_on_folders};
use ddp_rows::error::formatted::is_formatted;
use ddp_rows::table::source::{ColumnType, Record, TableFormat};
use ddp_rows::values::notation::{Meaning, Notation};
use ddp_rows::values::number::{DecimalMark, Unclear, is_code, is_padded};
use ddp_rows::write::CellKind;

use super::is_finite_f32;
use crate::commands::data::inspect::collector::{Cells, Collector, Column, Place};
use crate::commands::data::inspect::kind::Kind;
use crate::commands::data::inspect::origin::Origin;
use crate::commands::data::inspect::values::{key_of_number, key_of_text};
use crate::error::Result;

/// Integers below are exact in f64.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// Consecutive rows as they are read.
#[derive(Default)]
struct Rows {
    places: Vec<Place>,
    /// All cells, row by row, concatenated.
    text: Vec<u8>,
    /// `[n, columns]`
    ends: Vec<usize>,
    /// `[n, columns]`: whether the file marks the cell as a text.
    strings: Vec<bool>,
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
    let use_of = |column: usize, is_string: bool| {
        if !targets.contains(&column) {
            Use::Feature
        } else if is_string || are_texts.get(column).is_some_and(|is| *is) {
            Use::StringTarget
        } else {
            Use::Target
        }
    };
    for (file, path) in files.iter().enumerate() {
        let mut reader = match first.take() {
            Some(first) => first,
            None => CellReader::open(path, format, spec)?,
        };
        let of_folders = partition_columns(path, spec);
        let all_names: Vec<String> =
            reader.columns().names.iter().chain(of_folders.iter().map(|(name, _)| name)).cloned().collect();
        same_names(&files[0], &names, path, &all_names)?;
        // Cells of this file, by the columns of the first.
        let order: Option<Vec<usize>> = (all_names != names).then(|| {
            let own = &all_names[..own_names.len()];
            let place = |name: &String| own.iter().position(|other| other == name).expect("the same columns");
            own_names.iter().map(place).chain(own_names.len()..names.len()).collect()
        });
        let notation = reader.notation().clone();
        let mut read = |rows: &mut Rows| -> Result<()> {
            rows.clear();
            while rows.places.len() < chunk_rows
                && let Some(record) = reader.record()?
            {
                let of_folders = of_folders.iter().map(|(_, value)| value.as_bytes());
                rows.add(Place { file, number: record.line }, &record, of_folders, order.as_deref());
            }
            Ok(())
        };
        let (mut rows, mut next) = (Rows::default(), Rows::default());
        read(&mut rows)?;
        if rows.places.is_empty() {
            return Err(DataError::from(CsvError::NoRows { path: path.clone() }).into());
        }
        while !rows.places.is_empty() {
            // The next rows are read while these are looked at.
            let (done, ()) =
                rayon::join(|| read(&mut next), || rows.collect(&mut collector, &notation, &use_of));
            done?;
            std::mem::swap(&mut rows, &mut next);
        }
    }
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

impl Rows {
    fn clear(&mut self) {
        self.places.clear();
        self.text.clear();
        self.ends.clear();
        self.strings.clear();
    }

    /// Adds a record and the values of its file's folders, in the `order` of the columns.
    fn add<'a>(
        &mut self,
        place: Place,
        record: &'a Record<'_>,
        of_folders: impl Iterator<Item = &'a [u8]>,
        order: Option<&[usize]>,
    ) {
        let mut put = |cell: &[u8], is_string: bool| {
            self.text.extend_from_slice(cell);
            self.ends.push(self.text.len());
            self.strings.push(is_string);
        };
        match order {
            None => record.cells().enumerate().for_each(|(at, cell)| put(cell, record.is_string(at))),
            Some(order) => {
                let own = order[..record.n_cells()].iter();
                own.for_each(|&at| put(record.cell(at), record.is_string(at)));
            }
        }
        of_folders.for_each(|value| put(value, false));
        self.places.push(place);
    }

    fn cell(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }

    /// Adds the rows to `collector`.
    fn collect(
        &self,
        collector: &mut Collector,
        notation: &Notation,
        use_of: &(impl Fn(usize, bool) -> Use + Sync),
    ) {
        let n_columns = collector.columns.len();
        let cells = |index: usize, column: &mut Column| {
            let mut cells = Cells::default();
            for (row, place) in self.places.iter().enumerate() {
                let at = row * n_columns + index;
                let use_ = use_of(index, self.strings[at]);
                let (number, key) = parse(self.cell(at), notation, *place, use_, column);
                cells.numbers.push(number);
                cells.keys.push(key);
            }
            cells
        };
        let text = |row: usize, column: usize| {
            String::from_utf8_lossy(self.cell(row * n_columns + column)).trim().to_owned()
        };
        collector.add(&self.places, &cells, &text);
    }
}

/// The number of a cell, NaN for everything but finite numbers, and its key; notes in `column` what is odd about it.
fn parse(cell: &[u8], notation: &Notation, place: Place, use_: Use, column: &mut Column) -> (f64, u64) {
    let text = String::from_utf8_lossy(cell);
    let text = text.trim();
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
        Meaning::Missing => {
            column.n_na += u64::from(text == "NA");
            (f64::NAN, 0)
        }
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
            // After the date and the minute.
            let end = text.get(16..).filter(|_| has_date);
            match end.map(|end| end.contains(['Z', 'z', '+', '-'])) {
                Some(true) => column.n_zoned += 1,
                Some(false) => column.n_naive += 1,
                None => {}
            }
            (seconds, key_of_text(text))
        }
        Meaning::Text => {
            column.texts.add(place, || text.to_owned());
            column.n_formatted += u64::from(is_formatted(text));
            column.words.add(text);
            (f64::NAN, key_of_text(text))
        }
    };
    (number, key)
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
