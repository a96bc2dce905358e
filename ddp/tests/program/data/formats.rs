//! Makes files of other formats of a CSV table, with separate code where the program writes none.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::run_line_ok;
use crate::data::files::{Element, gzip, npy, npz, safetensors, zstd};

/// The cells of a CSV file, the names first.
fn cells(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    reader.records().map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect()
}

/// Writes the table `from` of `folder` in the format of the name `to`; `more` are arguments of a conversion to Parquet.
pub(crate) fn in_format(folder: &Path, from: &str, to: &str, more: &str) {
    let (path, ending) = (folder.join(from), to.split_once('.').unwrap().1);
    let lines = || json_lines(&cells(&path)).into_bytes();
    let bytes = match ending {
        "csv.gz" => gzip(&fs::read(&path).unwrap()),
        "tsv" => {
            let mut writer = csv::WriterBuilder::new().delimiter(b'\t').from_writer(Vec::new());
            cells(&path).iter().for_each(|row| writer.write_record(row).unwrap());
            writer.into_inner().unwrap()
        }
        "jsonl" => lines(),
        "jsonl.zst" => zstd(&lines()),
        "parquet" => {
            run_line_ok(folder, &format!("data convert {from} {to} --overwrite {more}"));
            return;
        }
        #[cfg(feature = "parquet")]
        "feather" | "arrow" => {
            let parquet = folder.join("as-arrow.parquet");
            run_line_ok(folder, &format!("data convert {from} as-arrow.parquet {more}"));
            arrow_file(&parquet, &folder.join(to));
            return fs::remove_file(parquet).unwrap();
        }
        _ => panic!("no such format: {to}"),
    };
    fs::write(folder.join(to), bytes).unwrap();
}

/// An object per row. Cells of a column are numbers or truth values if all but missing ones are, which are null.
fn json_lines(cells: &[Vec<String>]) -> String {
    let names = &cells[0];
    let value = |cell: &str| serde_json::from_str::<Value>(&cell.to_ascii_lowercase()).ok();
    let is_missing = |cell: &str| ["", "NA"].contains(&cell);
    let of_column = |fits: fn(&Value) -> bool, column: usize| {
        let mut cells = cells[1..].iter().map(|row| &row[column]).filter(|cell| !is_missing(cell));
        cells.all(|cell| value(cell).is_some_and(|value| fits(&value)))
    };
    let are_bare: Vec<bool> = (0..names.len())
        .map(|column| of_column(Value::is_number, column) || of_column(Value::is_boolean, column))
        .collect();
    let mut text = String::new();
    for row in &cells[1..] {
        let pairs = names.iter().zip(row).zip(&are_bare).map(|((name, cell), is_bare)| {
            let cell = match is_bare {
                true if is_missing(cell) => "null".to_owned(),
                false if cell.is_empty() => "null".to_owned(),
                true => cell.to_ascii_lowercase(),
                false => Value::from(cell.as_str()).to_string(),
            };
            format!("{}:{cell}", Value::from(name.as_str()))
        });
        text += &format!("{{{}}}\n", pairs.collect::<Vec<_>>().join(","));
    }
    text
}

/// Copies a Parquet file to one of Arrow.
#[cfg(feature = "parquet")]
pub(crate) fn arrow_file(from: &Path, to: &Path) {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(from).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(fs::File::create(to).unwrap(), &schema).unwrap();
    reader.build().unwrap().for_each(|batch| writer.write(&batch.unwrap()).unwrap());
    writer.finish().unwrap();
}

/// Writes the columns of the table `from` as arrays of `element` with the name `to`; the column `target` becomes labels, numbered in
/// the order of their texts where they are texts. Labels of npy are next to it, in `NAME.labels.npy`.
pub(crate) fn as_arrays(folder: &Path, from: &str, to: &str, target: &str, drop: &[&str], element: Element) {
    let cells = cells(&folder.join(from));
    let (names, rows) = (&cells[0], &cells[1..]);
    let number = |cell: &String| if cell.is_empty() { f64::NAN } else { cell.parse().unwrap() };
    let is_feature = |name: &&String| *name != target && !drop.contains(&name.as_str());
    let features: Vec<f64> = rows
        .iter()
        .flat_map(|row| {
            names.iter().zip(row).filter(|(name, _)| is_feature(name)).map(|(_, cell)| number(cell))
        })
        .collect();
    let place = names.iter().position(|name| name == target).unwrap();
    let texts: Vec<&String> = rows.iter().map(|row| &row[place]).collect();
    let mut classes = texts.clone();
    classes.sort();
    classes.dedup();
    let label = |text: &String| {
        text.parse().unwrap_or_else(|_| classes.iter().position(|class| *class == text).unwrap() as f64)
    };
    let labels: Vec<f64> = texts.into_iter().map(label).collect();
    let of_labels = if labels.iter().all(|label| label.fract() == 0.0) { Element::I64 } else { Element::F64 };
    let (n, width) = (rows.len(), features.len() / rows.len());
    let arrays = [npy(element, false, &[n, width], &features), npy(of_labels, false, &[n], &labels)];
    let path = folder.join(to);
    // Integers beyond 2^53 keep their digits. The labels are the last bytes of their file.
    let wholes: Option<Vec<i64>> = rows.iter().map(|row| row[place].parse().ok()).collect();
    let exact = |mut file: Vec<u8>| {
        if let Some(wholes) = &wholes {
            file.truncate(file.len() - 8 * n);
            wholes.iter().for_each(|label| file.extend(label.to_le_bytes()));
        }
        file
    };
    let [x, y] = arrays;
    let bytes = match path.extension().unwrap().to_str().unwrap() {
        "npy" => {
            fs::write(path.with_extension("labels.npy"), exact(y)).unwrap();
            x
        }
        "npz" => npz(&[("features", &x), ("labels", &exact(y))], false),
        _ => exact(safetensors(&[
            ("features", element, &[n, width], &features),
            ("labels", of_labels, &[n], &labels),
        ])),
    };
    fs::write(path, bytes).unwrap();
}
