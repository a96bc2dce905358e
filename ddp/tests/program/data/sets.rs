//! Synthetic rows, each with different values, written to a folder in some format.

use std::path::Path;
use std::sync::Arc;

use ddp::config::Config;
use ddp::data::Dataset;
use ddp_tables::source::SourceSpec;

use super::files::{self, Element};

/// Rows whose values all formats hold exactly: integers below 256.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) n: usize,
    pub(crate) n_features: usize,
}

impl Rows {
    pub(crate) fn feature(row: usize, column: usize) -> f64 {
        ((row * 7 + column * 13 + row * column) % 251) as f64
    }

    pub(crate) fn weight(row: usize) -> f64 {
        (row % 97) as f64 * 0.5
    }

    /// The label identifies the row.
    fn label(row: usize) -> f64 {
        row as f64
    }

    fn features(self, rows: std::ops::Range<usize>) -> Vec<f64> {
        rows.flat_map(|row| (0..self.n_features).map(move |column| Self::feature(row, column))).collect()
    }
}

/// A format and its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Npy { features: Element, labels: Element, is_big_endian: bool },
    Npz { is_deflated: bool, features: Element },
    Safetensors { features: Element, labels: Element },
    Idx { features: Element, labels: Element },
    Csv { compression: &'static str },
}

/// All variants of each format that are read in different ways.
pub(crate) fn formats() -> Vec<Format> {
    use Element::*;
    let mut all = Vec::new();
    for is_big_endian in [false, true] {
        for (features, labels) in
            [(F32, I64), (F64, I32), (F16, U8), (U8, U8), (I32, F32), (I16, F64), (F32, I16), (I64, F16)]
        {
            all.push(Format::Npy { features, labels, is_big_endian });
        }
    }
    for features in [F32, F64, U8, F16] {
        all.push(Format::Npz { is_deflated: false, features });
        all.push(Format::Npz { is_deflated: true, features });
        all.push(Format::Safetensors { features, labels: I64 });
    }
    all.push(Format::Safetensors { features: Bf16, labels: I32 });
    all.push(Format::Safetensors { features: F32, labels: U8 });
    all.push(Format::Safetensors { features: F32, labels: Bf16 });
    for (features, labels) in [(U8, U8), (F32, I32), (I16, F32), (F64, U8)] {
        all.push(Format::Idx { features, labels });
    }
    all.extend(["", ".gz", ".zst"].map(|compression| Format::Csv { compression }));
    all
}

/// Rows in files.
pub(crate) struct Set {
    sets: Vec<String>,
    /// Whether the rows stay in the file and can be read in pieces.
    pub(crate) stays_in_file: bool,
}

impl Set {
    /// Writes `rows` to `folder`, with features split into shards at `cuts`, and labels at `label_cuts` if they are in separate
    /// files.
    pub(crate) fn write(
        folder: &Path,
        format: Format,
        rows: Rows,
        cuts: &[usize],
        label_cuts: &[usize],
        is_weighted: bool,
    ) -> Set {
        let shards = |cuts: &[usize]| {
            let ends: Vec<usize> = [0].into_iter().chain(cuts.iter().copied()).chain([rows.n]).collect();
            ends.windows(2).map(|ends| ends[0]..ends[1]).filter(|rows| !rows.is_empty()).collect::<Vec<_>>()
        };
        let put = |name: String, bytes: Vec<u8>| std::fs::write(folder.join(name), bytes).unwrap();
        let pattern = |name: &str| folder.join(name).display().to_string();
        let labels = |rows: &std::ops::Range<usize>| rows.clone().map(Rows::label).collect::<Vec<_>>();
        let weights = |rows: &std::ops::Range<usize>| rows.clone().map(Rows::weight).collect::<Vec<_>>();
        // More distinct labels than are taken for classes by default.
        let mut sets = vec!["data.task=classification".to_owned()];
        let mut set = |key: &str, value: String| sets.push(format!("{key}={value}"));
        match format {
            Format::Npy { features, labels: label, is_big_endian } => {
                for (n, part) in shards(cuts).iter().enumerate() {
                    let shape = [part.len(), rows.n_features];
                    let x = files::npy(features, is_big_endian, &shape, &rows.features(part.clone()));
                    put(format!("x-{n:03}.npy"), x);
                }
                for (n, part) in shards(label_cuts).iter().enumerate() {
                    put(
                        format!("y-{n:03}.npy"),
                        files::npy(label, is_big_endian, &[part.len()], &labels(part)),
                    );
                }
                put(
                    "w.npy".to_owned(),
                    files::npy(Element::F64, false, &[rows.n, 1], &weights(&(0..rows.n))),
                );
                set("data.train", pattern("x-*.npy"));
                set("data.labels", pattern("y-*.npy"));
                if is_weighted {
                    set("data.weight", pattern("w.npy"));
                }
            }
            Format::Idx { features, labels: label } => {
                for (n, part) in shards(cuts).iter().enumerate() {
                    let shape = [part.len(), 1, rows.n_features];
                    let x = files::idx(features, &shape, &rows.features(part.clone()));
                    put(format!("part{n:03}-images-idx3-ubyte"), x);
                    put(
                        format!("part{n:03}-labels-idx1-ubyte"),
                        files::idx(label, &[part.len()], &labels(part)),
                    );
                }
                put("w.npy".to_owned(), files::npy(Element::F32, true, &[rows.n], &weights(&(0..rows.n))));
                set("data.train", pattern("part*-images-idx3-ubyte"));
                if is_weighted {
                    set("data.weight", pattern("w.npy"));
                }
            }
            Format::Npz { is_deflated, features } => {
                for (n, part) in shards(cuts).iter().enumerate() {
                    let shape = [part.len(), rows.n_features];
                    let x = files::npy(features, false, &shape, &rows.features(part.clone()));
                    let y = files::npy(Element::I64, false, &[part.len()], &labels(part));
                    let w = files::npy(Element::F32, false, &[part.len()], &weights(part));
                    put(
                        format!("{n:03}.npz"),
                        files::npz(&[("weights", &w), ("x", &x), ("y", &y)], is_deflated),
                    );
                }
                set("data.train", folder.display().to_string());
                if is_weighted {
                    set("data.weight", "weights".to_owned());
                }
            }
            Format::Safetensors { features, labels: label } => {
                for (n, part) in shards(cuts).iter().enumerate() {
                    let (x, y, w) = (rows.features(part.clone()), labels(part), weights(part));
                    let n_rows = part.len();
                    // Labels come first, so that features begin at any address.
                    let file = files::safetensors(&[
                        ("labels", label, &[n_rows], &y),
                        ("features", features, &[n_rows, rows.n_features], &x),
                        ("weights", Element::F64, &[n_rows], &w),
                    ]);
                    put(format!("{n:03}.safetensors"), file);
                }
                set("data.train", folder.display().to_string());
                if is_weighted {
                    set("data.weight", "weights".to_owned());
                }
            }
            Format::Csv { compression } => {
                for (n, part) in shards(cuts).iter().enumerate() {
                    let text = csv(rows, part.clone()).into_bytes();
                    let bytes = match compression {
                        ".gz" => files::gzip(&text),
                        ".zst" => files::zstd(&text),
                        _ => text,
                    };
                    put(format!("{n:03}.csv{compression}"), bytes);
                }
                set("data.train", folder.display().to_string());
                let use_of_weight = if is_weighted { "data.weight" } else { "data.drop" };
                set(use_of_weight, "w".to_owned());
            }
        }
        let stays_in_file = !matches!(format, Format::Csv { .. } | Format::Npz { is_deflated: true, .. });
        Set { sets, stays_in_file }
    }

    /// Opens the rows, with `memory_bytes` for them.
    pub(crate) fn open(
        &self,
        memory_bytes: u64,
        more: &[String],
    ) -> Result<Arc<dyn Dataset>, ddp::data::DataError> {
        let sets: Vec<String> = self.sets.iter().chain(more).cloned().collect();
        let config = Config::load(None, &sets).unwrap();
        SourceSpec { memory_bytes, ..SourceSpec::train(&config.data) }.open()
    }
}

fn csv(rows: Rows, part: std::ops::Range<usize>) -> String {
    let mut text = "w,label".to_owned();
    (0..rows.n_features).for_each(|column| text.push_str(&format!(",f{column}")));
    for row in part {
        text.push_str(&format!("\n{},{}", Rows::weight(row), Rows::label(row)));
        (0..rows.n_features).for_each(|column| text.push_str(&format!(",{}", Rows::feature(row, column))));
    }
    text.push('\n');
    text
}
