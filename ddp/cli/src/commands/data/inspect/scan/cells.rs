//! Reads tables cell by cell as text; the cells determine the types of columns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ddp::config::Split;
use ddp::data::DataError;
use ddp::data::spelling::is_code;
use ddp_kernels::cpu::threads;
use ddp_tables::error::TableError;
use ddp_tables::formats::error::{CsvError, is_formatted};
use ddp_tables::formats::table::source::{ColumnType, TableFormat};
use ddp_tables::formats::table::types::{CellUse, Place};
use ddp_tables::formats::write::CellKind;
use ddp_tables::open::folder::notes_on_folders;
use ddp_tables::source::SourceSpec;
use ddp_tables::table::{
    CellReader, CellValues, Shards, column_missing, filter_of, index_note, partition_columns, repeated_note,
    same_names, shards,
};
use ddp_tables::values::notation::{Meaning, Notation};

use crate::commands::data::inspect::collector::{Cells, Collector, Column, is_finite_f32};
use crate::commands::data::inspect::column_profile::{Kind, Origin};
use crate::commands::data::inspect::values::{key_of_number, key_of_text};
use crate::error::Result;

/// Fewest rows that are looked at where not all are.
const MIN_ROWS_OF_SOME: usize = 2000;
/// Integers below are exact in f64.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// Consecutive rows of a file as they are read.
#[derive(Default)]
struct Rows {
    places: Vec<Place>,
    /// All cells of a file of text, row by row.
    text: Vec<u8>,
    /// `[n, columns]`: start and end of each cell.
    spans: Vec<[usize; 2]>,
    /// `[n, columns]`: whether the file marks the cell as a text; empty in formats that do not.
    strings: Vec<bool>,
    /// The columns of a file with types.
    typed: Vec<CellValues>,
}

/// Settings that all rows of a file share.
struct InFile<'a> {
    notation: &'a Notation,
    /// The columns in the file, by those of the first file.
    order: &'a [usize],
    /// Values of the folders, which follow the columns of the file.
    of_folders: &'a [(String, String)],
    /// Uses of a column for cells that the file does not mark as texts, and for those that it does.
    uses: &'a [[CellUse; 2]],
}

/// Reads all rows of all files of the format `title`.
pub(super) fn scan(
    files: &[PathBuf],
    title: &str,
    format: &TableFormat,
    targets: &[String],
    spec: &SourceSpec<'_>,
    max_cells: Option<usize>,
) -> Result<(Origin, Collector)> {
    let Shards { files, types: shared } = shards(files.to_vec(), format, spec);
    let filter = filter_of(spec)?;
    let (files, spec) = (&files[..], &SourceSpec { types: Some(&shared), filter: filter.as_ref(), ..*spec });
    shared.check(|column| !spec.data.drop.iter().any(|dropped| dropped == column))?;
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
    for name in &spec.data.drop {
        if !names.contains(name) {
            return Err(column_missing(&files[0], name, "--drop", &names).into());
        }
    }
    let mut first = Some(first);
    let targets = targets_among(&names, targets, &files[0])?;
    let mut collector = Collector::new(names.len(), targets.first().copied());
    let chunk_rows = collector.chunk_rows();
    let uses_of = |column: usize| match (targets.contains(&column), are_texts.get(column)) {
        (false, _) => [CellUse::Number; 2],
        (true, Some(true)) => [CellUse::TextLabel; 2],
        (true, _) => [CellUse::Label, CellUse::TextLabel],
    };
    let uses: Vec<[CellUse; 2]> = (0..names.len()).map(uses_of).collect();
    let max_rows = max_cells.map_or(usize::MAX, |cells| (cells / names.len().max(1)).max(MIN_ROWS_OF_SOME));
    for (file, path) in files.iter().enumerate() {
        if collector.is_partial || file > 0 && spec.filter.is_some_and(|filter| filter.is_full()) {
            break;
        }
        let mut reader = match first.take() {
            Some(first) => first,
            None => CellReader::open(path, format, spec)?,
        };
        let of_folders = partition_columns(path, spec);
        let all_names: Vec<String> =
            reader.columns().names.iter().chain(of_folders.iter().map(|(name, _)| name)).cloned().collect();
        same_names(&files[0], &names, path, &all_names)?;
        let own = all_names[..own_names.len()].iter().enumerate().rev();
        let places: HashMap<&String, usize> = own.map(|(place, name)| (name, place)).collect();
        let order: Vec<usize> = own_names.iter().map(|name| places[name]).collect();
        let notation = reader.notation().clone();
        for (column, &at) in collector.columns.iter_mut().zip(&order) {
            column.types.are_dates |= reader.columns().are_dates[at];
        }
        let in_file = InFile { notation: &notation, order: &order, of_folders: &of_folders, uses: &uses };
        let mut read = |rows: &mut Rows| rows.read(&mut reader, file, chunk_rows);
        let (mut rows, mut next) = (Rows::default(), Rows::default());
        read(&mut rows)?;
        if rows.places.is_empty() && spec.filter.is_none() {
            return Err(DataError::from(CsvError::NoRows { path: path.clone() }).into());
        }
        threads::join_any_pool();
        while !rows.places.is_empty() {
            if collector.n_rows >= max_rows {
                collector.is_partial = true;
                break;
            }
            // The next rows are read while these are looked at.
            let (done, ()) = rayon::join(|| read(&mut next), || rows.collect(&mut collector, &in_file));
            done?;
            std::mem::swap(&mut rows, &mut next);
        }
    }
    if let (Some(filter), 0) = (&filter, collector.n_rows) {
        let (source_name, n_rows) = (spec.source.to_owned(), filter.take_counts().1);
        return Err(DataError::from(TableError::FilterKeepsNone { source_name, n_rows }).into());
    }
    let kind = |column: usize| match &types {
        _ if spec.data.drop.contains(&names[column]) => Some(Kind::Dropped),
        _ if indices.contains(&column) || repeated.contains(&column) => Some(Kind::Index),
        Some(types) if types.get(column).is_some_and(|of| !of.is_usable) => Some(Kind::Other),
        _ => None,
    };
    let other_uses = [spec.data.weight.as_deref(), spec.data.split().map(Split::column)];
    let has_other_use = |column: &usize| other_uses.contains(&Some(names[*column].as_str()));
    let of_types = types.iter().flatten();
    let origin = Origin {
        is_table: true,
        kinds: (0..names.len()).map(kind).collect(),
        other_uses: (0..names.len()).filter(has_other_use).collect(),
        left_out: shared
            .notes
            .iter()
            .cloned()
            .chain(notes)
            .chain(indices.iter().map(|&column| index_note(column, &names[column])))
            .chain(repeated.iter().map(|&column| repeated_note(&names[column])))
            .chain(notes_on_folders(spec.source, &spec.data.eval))
            .collect(),
        has_lines: types.is_none(),
        texts: of_types.clone().zip(0..).filter(|(of, _)| of.is_text).map(|(_, column)| column).collect(),
        types: of_types.map(|of| of.name.clone()).collect(),
        names,
        targets,
        ..Origin::from_files(title, files)
    };
    Ok((origin, collector))
}

impl Rows {
    /// Reads up to `max_rows` next rows of file number `file`; none at the end.
    fn read(&mut self, reader: &mut CellReader, file: usize, max_rows: usize) -> Result<()> {
        self.places.clear();
        self.text.clear();
        self.spans.clear();
        self.strings.clear();
        if reader.types().is_some() {
            // Columns are contiguous, and their values few bytes.
            let (first, n_rows) = reader.values(4 * max_rows, &mut self.typed)?;
            self.places.extend((first..).take(n_rows).map(|number| Place { file, number }));
            return Ok(());
        }
        while self.places.len() < max_rows
            && let Some(record) = reader.record()?
        {
            let mut start = self.text.len();
            let ends = record.ends.iter().map(|end| self.text.len() + end);
            self.spans.extend(ends.map(|end| [std::mem::replace(&mut start, end + record.gap), end]));
            self.text.extend_from_slice(record.cells);
            self.strings.extend_from_slice(record.strings);
            self.places.push(Place { file, number: record.line });
        }
        Ok(())
    }

    /// The cell of a row in column `column` of the file.
    fn cell(&self, row: usize, column: usize, n_columns: usize) -> &[u8] {
        if let Some(CellValues::Texts(texts)) = self.typed.get(column) {
            return texts.get(row).as_bytes();
        }
        let [start, end] = self.spans[row * n_columns + column];
        &self.text[start..end]
    }

    /// Adds the rows to `collector`.
    fn collect(&self, collector: &mut Collector, in_file: &InFile<'_>) {
        let InFile { notation, order, of_folders, uses } = *in_file;
        let cell = |row: usize, index: usize| match order.get(index) {
            Some(&column) => self.cell(row, column, order.len()),
            None => of_folders[index - order.len()].1.as_bytes(),
        };
        let cells = |index: usize, column: &mut Column| {
            let at = order.get(index);
            if let Some(CellValues::Numbers { doubles, .. }) = at.and_then(|&at| self.typed.get(at)) {
                return Cells::from_numbers(doubles.iter().copied(), &self.places, column);
            }
            let mut cells = Cells::with_rows(self.places.len());
            for (row, place) in self.places.iter().enumerate() {
                let is_string = at.and_then(|at| self.strings.get(row * order.len() + at));
                let use_ = uses[index][usize::from(is_string == Some(&true))];
                let (number, key) = parse(cell(row, index), notation, *place, use_, column);
                cells.numbers.push(number);
                cells.keys.push(key);
            }
            cells
        };
        let text = |row: usize, index: usize| match order.get(index).and_then(|&at| self.typed.get(at)) {
            Some(CellValues::Numbers { doubles, are_singles: true }) => (doubles[row] as f32).to_string(),
            Some(CellValues::Numbers { doubles, .. }) => doubles[row].to_string(),
            _ => String::from_utf8_lossy(cell(row, index)).trim().to_owned(),
        };
        collector.add(&self.places, &cells, &text);
    }
}

/// The number of a cell, NaN for everything but finite numbers, and its key; notes in `column` what is odd about it.
fn parse(cell: &[u8], notation: &Notation, place: Place, use_: CellUse, column: &mut Column) -> (f64, u64) {
    let added = column.types.add(cell, false, use_, notation, place);
    if let Ok(Meaning::Number(value)) = added
        && use_ == CellUse::Number
        && value.abs() < MAX_EXACT
    {
        return (value, key_of_number(value));
    }
    let text = String::from_utf8_lossy(cell);
    let text = text.trim();
    let meaning = added.or_else(|_| {
        column.not_utf8.add(place, text);
        column.types.add(text.as_bytes(), false, use_, notation, place)
    });
    let key = match meaning {
        // f64 would not keep larger integers apart, and the spelling of a code counts in a label.
        Ok(Meaning::Number(value) | Meaning::Unclear(value))
            if value.abs() < MAX_EXACT && !(use_ == CellUse::Label && is_code(text)) =>
        {
            key_of_number(value)
        }
        // Words for a truth value are one value.
        Ok(Meaning::Truth(truth)) => key_of_text(if truth { "yes" } else { "no" }),
        _ => key_of_text(text),
    };
    match meaning {
        Ok(Meaning::Missing) => {
            column.n_na += u64::from(text == "NA");
            (f64::NAN, 0)
        }
        Ok(Meaning::Number(value) | Meaning::Unclear(value)) if is_finite_f32(value) => (value, key),
        Ok(Meaning::Number(_) | Meaning::Unclear(_)) => {
            column.not_finite.add(place, text);
            column.words.add(text);
            (f64::NAN, key)
        }
        Ok(Meaning::Truth(truth)) => (f64::from(u8::from(truth)), key),
        Ok(Meaning::Moment(moment)) => (moment.seconds, key),
        Ok(Meaning::Text) | Err(_) => {
            column.n_formatted += u64::from(is_formatted(text));
            column.words.add(text);
            (f64::NAN, key)
        }
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
