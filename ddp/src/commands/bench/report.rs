//! Results on stdout: a table for people, a line of JSON each for programs.

use ddp_comm::World;
use serde::Serialize;

use super::place::Place;
use crate::error::Result;
use crate::report::metrics::json_line;
use crate::report::stdout::print_result;
use crate::report::table::table;

/// One measured thing.
pub(super) trait Row: Serialize {
    /// Titles of the table's columns, as [`table`] takes them.
    const TITLES: &'static [&'static str];
    /// The cells under them.
    fn cells(&self) -> Vec<String>;
}

/// What each line of JSON holds.
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
/// As [`put`].
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

/// The place in one line.
pub(super) fn heading(place: &Place) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let Place { device, device_name, is_virtual, world_size, threads } = place;
    let warning = if *is_virtual { "; a virtual GPU, whose times mean nothing" } else { "" };
    format!(
        "{device} ({device_name}{warning}), {}, {} each",
        count(*world_size, "rank"),
        count(*threads, "thread")
    )
}

/// A number with three digits that count, or more before the point; at most six behind it.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs().log10().floor().clamp(-4.0, 2.0);
    let decimals = if value == 0.0 || !value.is_finite() { 0 } else { (2.0 - magnitude) as usize };
    format!("{value:.decimals$}")
}

/// A median and, behind it, the least and the largest.
pub(super) fn spread(times: &super::timing::Times) -> String {
    format!("{} ({} to {})", number(times.median), number(times.min), number(times.max))
}

/// A part of a whole in percent.
pub(super) fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// Bytes as people write them, exactly.
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
