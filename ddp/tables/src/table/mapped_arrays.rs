//! Arrays of rows in memory that ranks share: where each of them is, and how it is written there and read.

use std::io;
use std::ops::Range;

use bytemuck::{NoUninit, cast_slice};
use ddp::data::datasets::resident::TargetSlice;
use serde::{Deserialize, Serialize};

use crate::table::exact_columns::{ExactColumns, ExactValues};

/// Bytes that are copied before their source is freed.
const CHUNK_BYTES: usize = 16 << 20;
/// Arrays begin at multiples of it: a cache line.
pub(super) const ALIGNMENT: usize = 64;

/// Places of arrays in memory.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Places {
    pub(super) features: Range<usize>,
    pub(super) targets: Range<usize>,
    are_labels: bool,
    pub(super) weights: Option<Range<usize>>,
    exact: Vec<Option<ExactPlace>>,
    exact_targets: Vec<Option<ExactPlace>>,
    /// Byte after the last array.
    end: usize,
}

/// Exact values of a column.
#[derive(Debug, Serialize, Deserialize)]
struct ExactPlace {
    per_unit: Option<i64>,
    words: Range<usize>,
}

/// Arrays of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrays<'a> {
    pub(super) features: &'a [f32],
    pub(super) targets: TargetSlice<'a>,
    pub(super) weights: Option<&'a [f32]>,
    pub(super) exact: &'a ExactColumns,
    pub(super) exact_targets: &'a ExactColumns,
}

impl Places {
    /// Places for these arrays, one after another.
    pub(super) fn new(arrays: &Arrays<'_>) -> Self {
        let mut places = Places::default();
        places.features = places.add(size_of_val(arrays.features));
        (places.targets, places.are_labels) = match arrays.targets {
            TargetSlice::Labels(labels) => (places.add(size_of_val(labels)), true),
            TargetSlice::Values(values) => (places.add(size_of_val(values)), false),
        };
        places.weights = arrays.weights.map(|weights| places.add(size_of_val(weights)));
        let mut of_columns = |exact: &ExactColumns| -> Vec<Option<ExactPlace>> {
            let mut of_column = |exact: ExactValues<'_>| ExactPlace {
                per_unit: exact.per_unit,
                words: places.add(size_of_val(exact.words)),
            };
            exact.values().map(|column| column.map(&mut of_column)).collect()
        };
        (places.exact, places.exact_targets) = (of_columns(arrays.exact), of_columns(arrays.exact_targets));
        places
    }

    /// A place for `n_bytes` after the others.
    pub(super) fn add(&mut self, n_bytes: usize) -> Range<usize> {
        let start = self.end;
        self.end = (start + n_bytes).next_multiple_of(ALIGNMENT);
        start..start + n_bytes
    }

    /// Byte after the last array.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Most bytes of the arrays of `n_rows` rows, each of `row_bytes` with its exact values, and of their places in text.
    #[cfg(feature = "parquet")]
    pub(super) fn max_bytes(n_rows: usize, row_bytes: usize, n_columns: usize) -> usize {
        /// Two numbers of 20 digits and their names.
        const TEXT_BYTES: usize = 128;
        n_rows * row_bytes + (4 + n_columns) * (ALIGNMENT + TEXT_BYTES)
    }

    /// Writes the arrays by `write`, which takes a place's first byte.
    pub(super) fn write(
        &self,
        arrays: &Arrays<'_>,
        mut write: impl FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        write(self.features.start, cast_slice(arrays.features))?;
        match arrays.targets {
            TargetSlice::Labels(labels) => write(self.targets.start, cast_slice(labels))?,
            TargetSlice::Values(values) => write(self.targets.start, cast_slice(values))?,
        }
        if let (Some(weights), Some(place)) = (arrays.weights, &self.weights) {
            write(place.start, cast_slice(weights))?;
        }
        for (exact, places) in [(arrays.exact, &self.exact), (arrays.exact_targets, &self.exact_targets)] {
            for (exact, place) in exact.values().zip(places) {
                if let (Some(exact), Some(place)) = (exact, place) {
                    write(place.words.start, cast_slice(exact.words))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn features<'a>(&self, bytes: &'a [u8]) -> &'a [f32] {
        cast_slice(&bytes[self.features.clone()])
    }

    pub(super) fn targets<'a>(&self, bytes: &'a [u8]) -> TargetSlice<'a> {
        let targets = &bytes[self.targets.clone()];
        if self.are_labels {
            TargetSlice::Labels(cast_slice(targets))
        } else {
            TargetSlice::Values(cast_slice(targets))
        }
    }

    pub(super) fn weights<'a>(&self, bytes: &'a [u8]) -> Option<&'a [f32]> {
        self.weights.as_ref().map(|place| cast_slice(&bytes[place.clone()]))
    }

    /// Exact values of a feature, if it has some.
    pub(super) fn exact<'a>(&self, bytes: &'a [u8], feature: usize) -> Option<ExactValues<'a>> {
        exact_at(&self.exact, bytes, feature)
    }

    /// Exact values of a target, if it has some.
    pub(super) fn exact_target<'a>(&self, bytes: &'a [u8], target: usize) -> Option<ExactValues<'a>> {
        exact_at(&self.exact_targets, bytes, target)
    }

    /// Whether f32 holds all values.
    pub(super) fn is_single(&self) -> bool {
        let mut all = self.exact.iter().chain(&self.exact_targets).flatten();
        all.all(|place| place.words.is_empty())
    }
}

fn exact_at<'a>(places: &[Option<ExactPlace>], bytes: &'a [u8], column: usize) -> Option<ExactValues<'a>> {
    let place = places[column].as_ref()?;
    Some(ExactValues { per_unit: place.per_unit, words: cast_slice(&bytes[place.words.clone()]) })
}

/// Writes elements by `write`, which takes the first byte of a piece, from the last piece to the first, and frees them on the way.
pub(super) fn move_array<T: NoUninit>(
    start: usize,
    mut elements: Vec<T>,
    mut write: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let n_chunk = CHUNK_BYTES / size_of::<T>();
    while !elements.is_empty() {
        let first = (elements.len() - 1) / n_chunk * n_chunk;
        write(start + first * size_of::<T>(), cast_slice(&elements[first..]))?;
        elements.truncate(first);
        elements.shrink_to_fit();
    }
    Ok(())
}
