//! Benchmark results on stdout: a table, or one JSON object per line.

use ddp::report::metrics::json_line;
use ddp_comm::World;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::place::Place;
use super::timing::Times;
use crate::error::Result;
use crate::report::stdout::{count, print_result, table};

/// One result: values under the keys of JSON, and cells under the titles of a table, in the form of [`table`].
#[derive(Debug, Default)]
pub(super) struct Row {
    values: Vec<(&'static str, Value)>,
    cells: Vec<(&'static str, String)>,
}

impl Row {
    /// Adds a value to the line of JSON only.
    pub(super) fn value(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.values.push((key, value.into()));
        self
    }

    /// Adds a cell to the table only.
    pub(super) fn cell(mut self, title: &'static str, cell: impl ToString) -> Self {
        self.cells.push((title, cell.to_string()));
        self
    }

    /// Adds a name or a count to both.
    pub(super) fn plain(
        self,
        title: &'static str,
        key: &'static str,
        value: impl ToString + Into<Value>,
    ) -> Self {
        self.cell(title, value.to_string()).value(key, value)
    }

    pub(super) fn bytes(self, title: &'static str, key: &'static str, n: usize) -> Self {
        self.cell(title, bytes(n)).value(key, n)
    }

    pub(super) fn number(self, title: &'static str, key: &'static str, value: f64) -> Self {
        self.cell(title, number(value)).value(key, value)
    }

    pub(super) fn percent(self, title: &'static str, key: &'static str, fraction: f64) -> Self {
        self.cell(title, percent(fraction)).value(key, fraction)
    }

    pub(super) fn times(self, Times { median, min, max }: Times) -> Self {
        let spread = format!("{} ({} to {})", number(median), number(min), number(max));
        let row = self.cell("ms median (min to max)", spread);
        row.value("ms_median", median).value("ms_min", min).value("ms_max", max)
    }

    /// The order of the first cells.
    pub(super) fn by_name(&self, other: &Self) -> std::cmp::Ordering {
        self.cells[0].1.cmp(&other.cells[0].1)
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.values.iter().map(|(key, value)| (key, value)))
    }
}

/// Content of a JSON line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    bench: &'static str,
    #[serde(flatten)]
    place: &'a Place,
    #[serde(flatten)]
    row: &'a Row,
}

/// Prints the results on rank 0.
///
/// # Errors
/// Same as [`print_result`].
pub(super) fn print(
    world: &World,
    bench: &'static str,
    place: &Place,
    json: bool,
    rows: &[Row],
) -> Result<()> {
    if world.rank().0 > 0 {
        return Ok(());
    }
    if json {
        return Ok(print_result(
            &rows.iter().map(|row| json_line(&Line { bench, place, row })).collect::<String>(),
        )?);
    }
    let titles: Vec<_> =
        rows.iter().take(1).flat_map(|row| row.cells.iter().map(|(title, _)| *title)).collect();
    let cell = |(_, cell): &(_, String)| cell.clone();
    let cells: Vec<Vec<_>> = rows.iter().map(|row| row.cells.iter().map(cell).collect()).collect();
    Ok(print_result(&format!("{}\n{}", heading(place), table(&titles, &cells)))?)
}

/// Describes device and world in one line.
pub(super) fn heading(place: &Place) -> String {
    let Place { device, device_name, is_virtual, world_size, threads } = place;
    let warning = if *is_virtual { "; a virtual GPU: timings are meaningless" } else { "" };
    format!(
        "{device} ({device_name}{warning}), {}, {} each",
        count(*world_size, "rank"),
        count(*threads, "thread")
    )
}

/// Formats a number with three significant digits, or all digits before the point; at most six decimals.
pub(in crate::commands) fn number(value: f64) -> String {
    let magnitude = value.abs().log10().floor().clamp(-4.0, 2.0);
    let decimals = if value == 0.0 || !value.is_finite() { 0 } else { (2.0 - magnitude) as usize };
    format!("{value:.decimals$}")
}

/// Formats a fraction as a percentage.
pub(in crate::commands) fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// Formats a number of bytes exactly, in the largest unit that divides it.
pub(super) fn bytes(n: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| n >= *unit && n.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", n / unit),
        None => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown = [1234.4, 12.345, 1.2345, 0.12345, 0.000123, 1e-9, 0.0, f64::NAN].map(number);
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.123", "0.000123", "0.000000", "0", "NaN"]);
        assert_eq!([1 << 20, 3 << 30, 1500].map(bytes), ["1 MiB", "3 GiB", "1500 B"]);
    }
}
