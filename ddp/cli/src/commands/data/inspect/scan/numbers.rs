//! Adds rows of numbers, the last of which may be texts, to a collector.

use ddp::data::{Label, LabelVocabulary};

use crate::commands::data::inspect::collector::{Chunk, Collector, Place};
use crate::commands::data::inspect::values::{key_of_number, key_of_text};

/// Adds rows of numbers, `[n, columns]`, the first with the number `first`; NaN is a missing value.
pub(super) fn add_numbers(collector: &mut Collector, numbers: &mut [f64], first: usize, keys: &mut Vec<u64>) {
    add_rows(collector, numbers, &[], first, keys);
}

/// Same as [`add_numbers`], where the last column holds classes of `labels`, which are added as labels.
pub(super) fn add_labels(
    collector: &mut Collector,
    numbers: &mut [f64],
    labels: &LabelVocabulary,
    first: usize,
    keys: &mut Vec<u64>,
) {
    let n_columns = collector.columns.len();
    let mut texts = Vec::new();
    for numbers in numbers.chunks_exact_mut(n_columns) {
        let (number, text) = match labels.label(numbers[n_columns - 1] as usize) {
            Label::Integer(number) => (number as f64, String::new()),
            Label::Text(text) => (f64::NAN, text),
        };
        numbers[n_columns - 1] = number;
        texts.push(text);
    }
    add_rows(collector, numbers, &texts, first, keys);
}

/// Same as [`add_numbers`], where the last column holds `texts`, if there are any; an empty text leaves the number.
pub(super) fn add_rows(
    collector: &mut Collector,
    numbers: &mut [f64],
    texts: &[String],
    first: usize,
    keys: &mut Vec<u64>,
) {
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
    for (row, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        collector.columns[n_columns - 1].texts.add(place(row), || text.clone());
        keys[(row + 1) * n_columns - 1] = key_of_text(text);
    }
    let places: Vec<Place> = (0..numbers.len() / n_columns).map(place).collect();
    let text = |row: usize, column: usize| match texts.get(row).filter(|text| !text.is_empty()) {
        Some(text) if column + 1 == n_columns => text.clone(),
        _ => shown(numbers[row * n_columns + column]),
    };
    collector.add(&Chunk { numbers, keys, places: &places, text: &text });
}

/// Whether a number is finite in f32, in which models compute.
pub(super) fn is_finite_f32(value: f64) -> bool {
    (value as f32).is_finite()
}
