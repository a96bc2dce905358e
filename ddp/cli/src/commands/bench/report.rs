//! Benchmark results on stdout: a table, or one JSON object per line.

use ddp::report::metrics::json_line;
use ddp_comm::World;
use serde::Serialize;

use super::place::Place;
use crate::error::Result;
use crate::report::stdout::print_result;
use crate::report::table::table;

/// One result.
pub(super) trait Row: Serialize {
    /// Column titles of the table, in the form of [`table`].
    const TITLES: &'static [&'static str];
    /// Cells of the row.
    fn cells(&self) -> Vec<String>;
}

/// Content of a JSON line.
#[derive(Debug, Serialize)]
struct Line<'a, R> {
    bench: &'static str,
    #[serde(flatten)]
    place: &'a Place,
    #[serde(flatten)]
    row: &'a R,
}

/// Prints the results on rank 0.
///
/// # Errors
/// Same as [`print_result`].
pub(super) fn print<R: Row>(
    world: &World,
    bench: &'static str,
    place: &Place,
    json: bool,
    rows: &[R],
) -> Result<()> {
    if world.rank().0 > 0 {
        return Ok(());
    }
    if json {
        return Ok(print_result(
            &rows.iter().map(|row| json_line(&Line { bench, place, row })).collect::<String>(),
        )?);
    }
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    Ok(print_result(&format!("{}\n{}", heading(place), table(R::TITLES, &cells)))?)
}

/// Describes device and world in one line.
pub(super) fn heading(place: &Place) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let Place { device, device_name, is_virtual, world_size, threads } = place;
    let warning = if *is_virtual { "; a virtual GPU: timings are meaningless" } else { "" };
    format!(
        "{device} ({device_name}{warning}), {}, {} each",
        count(*world_size, "rank"),
        count(*threads, "thread")
    )
}

/// Formats a number with three significant digits, or all digits before the point; at most six decimals.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs().log10().floor().clamp(-4.0, 2.0);
    let decimals = if value == 0.0 || !value.is_finite() { 0 } else { (2.0 - magnitude) as usize };
    format!("{value:.decimals$}")
}

/// Formats the median, with minimum and maximum in parentheses.
pub(super) fn spread(times: &super::timing::Times) -> String {
    format!("{} ({} to {})", number(times.median), number(times.min), number(times.max))
}

/// Formats a fraction as a percentage.
pub(super) fn percent(fraction: f64) -> String {
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
