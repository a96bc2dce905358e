//! Adds rows of numbers to a collector.

use crate::commands::data::inspect::collector::{Chunk, Collector, Place};
use crate::commands::data::inspect::values::key_of_number;

/// Adds rows of numbers, `[n, columns]`, the first with the number `first`; NaN is a missing value.
pub(super) fn add_numbers(collector: &mut Collector, numbers: &mut [f64], first: usize, keys: &mut Vec<u64>) {
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

/// Whether a number is finite in f32, in which models compute.
pub(super) fn is_finite_f32(value: f64) -> bool {
    (value as f32).is_finite()
}
