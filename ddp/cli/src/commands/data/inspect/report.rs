//! Formats a profile as text, at most 100 characters wide.

use ddp::report::units::mib;
use ddp::report::visible::{visible, visible_lines};
use ddp_tables::values::time::format_seconds as format_moment;

use super::column_profile::{ColumnProfile, Kind, MAX_SHOWN_VALUES};
use super::profile::Profile;
use super::warning::cut;
use crate::report::stdout::{count, table};

const WIDTH: usize = 96;
/// Most columns that are all shown, and how many of more.
const MAX_COLUMNS: usize = 50;
const N_FIRST: usize = 10;

/// The whole profile; `all` columns, or the first ones if there are many.
pub(super) fn text(profile: &Profile, all: bool) -> String {
    let mut text = head(profile);
    text += "\n";
    text += &columns(profile, all);
    for target in profile.columns.iter().filter(|column| column.is_target) {
        text += &classes(target, profile);
    }
    if !profile.warnings.is_empty() || !profile.left_out.is_empty() {
        text += "\n";
    }
    for left_out in &profile.left_out {
        text += &wrapped(left_out);
    }
    for warning in &profile.warnings {
        text += &wrapped(&format!("warning: {}", warning.message));
    }
    visible_lines(&text).into_owned() + "\n" + &profile.data_section
}

fn head(profile: &Profile) -> String {
    let (source, format, n) = (&profile.source, &profile.format, profile.columns.len());
    let (rows, columns) = (count(profile.n_rows, "row"), count(n, "column"));
    let mut text = format!("{source}: {format}, {rows} x {columns}");
    let sizes: Vec<u64> = profile.files.iter().filter_map(|file| file.size_bytes).collect();
    if !sizes.is_empty() {
        let n = profile.files.len();
        let files = if n == 1 { String::new() } else { format!("{n} files, ") };
        text += &format!(" ({files}{})", mib(sizes.iter().sum()));
    }
    text.push('\n');
    if !profile.arrays.is_empty() {
        let rows: Vec<_> = profile
            .arrays
            .iter()
            .map(|array| {
                let shape: Vec<String> = array.shape.iter().map(ToString::to_string).collect();
                vec![array.name.clone(), array.kind.clone(), shape.join(" x ")]
            })
            .collect();
        text += "\n";
        text += &table(&["<array", "<type", "<shape"], &rows);
    }
    if !profile.columns.iter().any(|column| column.is_target) {
        text += if profile.arrays.is_empty() {
            "no target: --target COLUMN names the column to predict\n"
        } else {
            "no labels: --labels PATH names the file that holds them\n"
        };
    }
    text
}

fn columns(profile: &Profile, all: bool) -> String {
    let n = profile.columns.len();
    let n_shown = if all || n <= MAX_COLUMNS { n } else { N_FIRST };
    let is_shown = |index: usize, column: &ColumnProfile| index < n_shown || column.is_target;
    let shown = profile.columns.iter().enumerate().filter(|(index, column)| is_shown(*index, column));
    let shown: Vec<&ColumnProfile> = shown.map(|(_, column)| column).collect();
    let titles = ["<column", "<type", "missing", "distinct", "min", "max", "mean", "std. dev."];
    let rows: Vec<Vec<String>> = shown.iter().map(|column| row(column)).collect();
    let mut lines: Vec<String> = table(&titles, &rows).lines().map(str::to_owned).collect();
    if shown.len() < n {
        lines.insert(n_shown + 1, format!("... {} more; --all shows them", n - shown.len()));
    }
    lines.join("\n") + "\n"
}

fn row(column: &ColumnProfile) -> Vec<String> {
    let name = cut(&column.name, 24);
    let mut cells = vec![
        if column.is_target { format!("{name} (target)") } else { name },
        column.stored_as.clone().unwrap_or_else(|| column.kind.name().to_owned()),
        if column.n_missing == 0 { "-".to_owned() } else { column.n_missing.to_string() },
        column.n_distinct.map_or("many".to_owned(), |n| n.to_string()),
    ];
    if let Some(range) = column.range {
        if matches!(column.kind, Kind::Date | Kind::Time) {
            let moment = |seconds: f64| format_moment(seconds.round(), column.kind == Kind::Date);
            cells.extend([range.min, range.max].map(moment));
        } else {
            // The mean of a centered column is rounding noise.
            let mean = if range.mean.abs() < 1e-6 * range.standard_deviation { 0.0 } else { range.mean };
            cells.extend([range.min, range.max, mean, range.standard_deviation].map(number));
        }
    }
    cells
}

/// Rows per class, if the classes are few.
fn classes(target: &ColumnProfile, profile: &Profile) -> String {
    if profile.task != Some("classification") {
        return String::new();
    }
    if target.values.is_empty() {
        return target
            .n_distinct
            .filter(|n| *n > 0)
            .map_or(String::new(), |n| format!("\n{n} classes, more than {MAX_SHOWN_VALUES}\n"));
    }
    let mut values: Vec<_> = target.values.iter().collect();
    values.sort_by(|a, b| match (a.value.parse::<f64>(), b.value.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.value.cmp(&b.value),
    });
    let cells = values.iter().map(|v| vec![cut(&v.value, 40), v.n_rows.to_string(), percent(v.share)]);
    format!("\n{}", table(&["<class", "rows", "share"], &cells.collect::<Vec<_>>()))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A number with four significant digits.
fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e12 {
        return format!("{value:.0}");
    }
    if (1e4..1e9).contains(&size) {
        return format!("{value:.0}");
    }
    if !(1e-3..1e4).contains(&size) {
        return format!("{value:.2e}");
    }
    let decimals = (3 - size.log10().floor() as i32).clamp(1, 6) as usize;
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Wraps text to the width and indents all lines but the first.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    // A line feed in a name is no new line.
    for word in visible(text).split(' ') {
        let n_chars = word.chars().count();
        if width > 0 && width + 1 + n_chars > WIDTH {
            lines += "\n ";
            width = 1;
        }
        if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines += word;
        width += n_chars;
    }
    lines + "\n"
}
