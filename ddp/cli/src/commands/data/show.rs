//! `ddp-train data show`: prints rows by index, with the content of their files.
//!
//! Rows are counted from 0 over all files in order, as in reports of training: with `data.filter` those that it keeps. Tables are read cell by cell up to the last
//! requested row; rows of arrays and built-in sets are read by index.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use ddp::config::{Config, DataConfig, DataFormat};
use ddp::data::{DataError, Dataset, TargetLayout};
use ddp::report::metrics::json_line;
use ddp_tables::error::TableError;
use ddp_tables::formats::Reader;
use ddp_tables::formats::table::source::TableFormat;
use ddp_tables::open::files::files_and_format;
use ddp_tables::row_values::RowValues;
use ddp_tables::source::SourceSpec;
use ddp_tables::table::{CellReader, Shards, filter_of, partition_columns, same_names, shards};
use serde_json::{Map, Value};

use crate::cli::ShowArgs;
use crate::error::Result;
use crate::report::stdout::{print_result, table};

/// Number of columns above which the text has one line per column instead of one per row.
const MAX_COLUMNS_ACROSS: usize = 12;
/// Maximum number of rows that are shown at a time.
const MAX_ROWS: usize = 10_000;

/// Rows with the names of their columns.
struct Shown {
    names: Vec<String>,
    /// Index and cells of each row, in ascending order.
    rows: BTreeMap<usize, Vec<String>>,
}

/// Source of a column's cells in a file.
enum Place<'a> {
    /// The column of the file with this index.
    Cell(usize),
    /// The value of the file's folder.
    Folder(&'a str),
}

/// Prints the rows selected by `args`.
pub(super) fn show(args: &ShowArgs) -> Result<()> {
    let data = config(args)?;
    let filter = filter_of(&SourceSpec::train(&data))?;
    let spec = SourceSpec { filter: filter.as_ref(), ..SourceSpec::train(&data) };
    let shown = if spec.source.starts_with("builtin:") {
        show_dataset(&*spec.open()?, &data, &args.rows)?
    } else {
        let (files, format) = files_and_format(&spec)?;
        match &format.reader {
            Reader::Table(table) => show_table(&files, table, &spec, &args.rows)?,
            Reader::Arrays(_) => show_dataset(&*spec.open()?, &data, &args.rows)?,
        }
    };
    Ok(print_result(&if args.json { shown.json() } else { shown.text() })?)
}

/// The config that opens the files, with defaults for everything that is not set.
fn config(args: &ShowArgs) -> Result<DataConfig> {
    let mut data = Config::load(None, &args.set)?.data;
    data.train.clone_from(&args.path);
    if args.labels.is_some() {
        data.labels.clone_from(&args.labels);
    }
    if let Some(format) = args.format {
        data.format = format;
    } else if !args.set.iter().any(|set| set.trim_start().starts_with("data.format")) {
        data.format = DataFormat::Auto;
    }
    Ok(data)
}

/// Checks that the last of `rows` is below `n_rows` and that there are not too many; open ranges end at the first or last row.
fn check(rows: &[Range<usize>], source: &str, n_rows: usize) -> Result<Vec<Range<usize>>> {
    let closed = |range: &Range<usize>| {
        let end = if range.end == usize::MAX { n_rows } else { range.end };
        let last = end.saturating_sub(1).max(range.start);
        if last >= n_rows {
            let source_name = source.to_owned();
            return Err(DataError::from(TableError::NoSuchRow { source_name, row: last, n_rows }));
        }
        Ok(range.start..end)
    };
    let rows = rows.iter().map(closed).collect::<Result<Vec<_>, _>>()?;
    let n: usize = rows.iter().map(ExactSizeIterator::len).sum();
    if n > MAX_ROWS {
        return Err(DataError::from(TableError::TooManyRowsToShow { n_rows: n, max: MAX_ROWS }).into());
    }
    Ok(rows)
}

/// The source in messages on its number of rows, with the keys that select among them.
fn named(source: &str, data: &DataConfig) -> String {
    match (&data.filter, data.max_rows) {
        (Some(_), _) => format!("{source} with `data.filter`"),
        (None, Some(_)) => format!("{source} with `data.max_rows`"),
        (None, None) => source.to_owned(),
    }
}

/// Refuses a filter that keeps none of the rows of a table.
fn check_kept(spec: &SourceSpec<'_>, n_kept: usize) -> Result<()> {
    match spec.filter {
        Some(filter) if n_kept == 0 && spec.data.filter.is_some() => {
            let (source_name, n_rows) = (spec.source.to_owned(), filter.take_counts().1);
            Err(DataError::from(TableError::FilterKeepsNone { source_name, n_rows }).into())
        }
        _ => Ok(()),
    }
}

/// Reads the rows of a table.
fn show_table(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
    rows: &[Range<usize>],
) -> Result<Shown> {
    let end = rows.iter().map(|range| range.end).max().unwrap_or(0);
    let mut shown = Shown { names: Vec::new(), rows: BTreeMap::new() };
    let (mut of_first, mut number) = (Vec::new(), 0);
    let Shards { files, .. } = shards(files.to_vec(), format, spec);
    'files: for path in &files {
        let mut reader = CellReader::open(path, format, spec)?;
        let own_names = reader.columns().names.clone();
        let of_folders = partition_columns(path, spec);
        let of_file: Vec<String> =
            own_names.iter().chain(of_folders.iter().map(|(name, _)| name)).cloned().collect();
        if shown.names.is_empty() {
            shown.names.clone_from(&own_names);
            let is_new = |(name, _): &&(String, String)| !own_names.contains(name);
            shown.names.extend(of_folders.iter().filter(is_new).map(|(name, _)| name.clone()));
            of_first.clone_from(&of_file);
        }
        same_names(&files[0], &of_first, path, &of_file)?;
        // The value of a folder applies to a column of its files.
        let place = |(at, name): (usize, &String)| {
            if let Some((_, value)) = of_folders.iter().rfind(|(of_folder, _)| of_folder == name) {
                return Place::Folder(value);
            }
            let found = own_names.iter().position(|own| own == name).expect("files of the same columns");
            Place::Cell(if own_names.get(at) == Some(name) { at } else { found })
        };
        let places: Vec<Place<'_>> = shown.names.iter().enumerate().map(place).collect();
        while number < end {
            let Some(record) = reader.record()? else { continue 'files };
            if rows.iter().any(|range| range.contains(&number)) {
                if shown.rows.len() == MAX_ROWS {
                    return Err(DataError::from(TableError::TooManyRowsToShow {
                        n_rows: MAX_ROWS + 1,
                        max: MAX_ROWS,
                    })
                    .into());
                }
                let cells = places.iter().map(|place| match place {
                    Place::Cell(column) => String::from_utf8_lossy(record.cell(*column)).into_owned(),
                    Place::Folder(value) => (*value).to_owned(),
                });
                shown.rows.insert(number, cells.collect());
            }
            number += 1;
        }
        break;
    }
    if number < end {
        check_kept(spec, number)?;
        check(rows, &named(spec.source, spec.data), number)?;
    }
    Ok(shown)
}

/// Reads the rows of arrays or of a built-in set; numbers are exactly as stored.
fn show_dataset(dataset: &dyn Dataset, data: &DataConfig, rows: &[Range<usize>]) -> Result<Shown> {
    let layout = dataset.layout();
    let width = layout.n_features();
    let mut names = layout.features.clone();
    match &layout.targets {
        TargetLayout::Classes { .. } => names.push(data.target[0].clone()),
        targets => names.extend(targets.column_names()),
    }
    if layout.has_weights {
        names.push("weight".to_owned());
    }
    let mut shown = Shown { names, rows: BTreeMap::new() };
    for number in check(rows, &named(dataset.source(), data), dataset.len())?.into_iter().flatten() {
        let values = RowValues::read(dataset, &[number])?;
        let mut doubles = vec![0.0; width];
        let mut cells: Vec<String> = if dataset.gather_doubles(&[number], &vec![0.0; width], &mut doubles)? {
            doubles.iter().map(ToString::to_string).collect()
        } else {
            values.x.iter().map(ToString::to_string).collect()
        };
        let is_of_classes = matches!(layout.targets, TargetLayout::Classes { .. });
        cells.extend(values.targets.iter().map(|&target| match &layout.labels {
            Some(labels) if is_of_classes => labels.name(target as usize),
            _ => (target as f32).to_string(),
        }));
        cells.extend(values.weights.iter().flatten().map(ToString::to_string));
        shown.rows.insert(number, cells);
    }
    Ok(shown)
}

impl Shown {
    /// A table with one line per row, or one per column if there are many columns.
    fn text(&self) -> String {
        let headed =
            |head: String, cells: Vec<String>| std::iter::once(head).chain(cells).collect::<Vec<_>>();
        if self.names.len() <= MAX_COLUMNS_ACROSS {
            let names: Vec<String> = self.names.iter().map(|name| format!(">{name}")).collect();
            let titles: Vec<&str> = std::iter::once("row").chain(names.iter().map(String::as_str)).collect();
            let lines = self.rows.iter().map(|(number, cells)| headed(number.to_string(), cells.clone()));
            return table(&titles, &lines.collect::<Vec<_>>());
        }
        let titles: Vec<String> = self.rows.keys().map(|number| format!("row {number}")).collect();
        let titles: Vec<&str> = std::iter::once("<column").chain(titles.iter().map(String::as_str)).collect();
        let line = |(column, name): (usize, &String)| {
            headed(name.clone(), self.rows.values().map(|cells| cells[column].clone()).collect())
        };
        table(&titles, &self.names.iter().enumerate().map(line).collect::<Vec<_>>())
    }

    /// One object per row and line: the row's index, and its cells as strings by column.
    fn json(&self) -> String {
        let object = |(number, cells): (&usize, &Vec<String>)| {
            let cells = self.names.iter().cloned().zip(cells.iter().cloned().map(Value::String));
            let mut object = Map::new();
            object.insert("row".to_owned(), Value::from(*number));
            object.insert("cells".to_owned(), Value::Object(cells.collect()));
            json_line(&object)
        };
        self.rows.iter().map(object).collect()
    }
}
