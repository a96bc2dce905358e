//! Formats a profile as text, at most 100 characters wide.

use ddp::data::values::time::format_seconds as format_moment;
use ddp::report::visible::visible_lines;

use super::column_profile::{ColumnProfile, Kind, Range};
use super::profile::{MAX_SHOWN_VALUES, Profile};
use super::words::{cut, rows};
use crate::cli::InspectArgs;
use crate::report::table::table;

const WIDTH: usize = 96;
/// Most columns that are all shown.
const MAX_COLUMNS: usize = 50;
const N_FIRST: usize = 10;

/// The whole profile; `all` columns, or the first ones if there are many.
pub(super) fn text(profile: &Profile, all: bool) -> String {
    let mut text = head(profile);
    text += "\n";
    text += &columns(profile, all);
    text += &texts(profile);
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

/// The command that writes the config, as the last line of a report; `None` without a target.
pub(super) fn next_step(profile: &Profile, args: &InspectArgs) -> Option<String> {
    let is_table = profile.arrays.is_empty() && !profile.source.starts_with("builtin:");
    if is_table && !profile.columns.iter().any(|column| column.is_target) {
        return None;
    }
    let quote = |text: &String| {
        let is_plain =
            !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "/._-+=:@%,".contains(c));
        if is_plain { text.clone() } else { format!("'{}'", text.replace('\'', r"'\''")) }
    };
    let mut words = vec![format!("ddp-train data inspect {}", quote(&args.path))];
    words.extend(args.target.iter().map(|target| format!("--target {}", quote(target))));
    words.extend(args.labels.iter().map(|labels| format!("--labels {}", quote(labels))));
    words.extend(args.format.iter().map(|format| format!("--format {}", format.name())));
    words.extend(args.delimiter.iter().map(|delimiter| format!("--delimiter {}", quote(delimiter))));
    words.extend(args.decimal.iter().map(|decimal| format!("--decimal {}", quote(decimal))));
    words.extend(args.no_header.then(|| "--no-header".to_owned()));
    words.extend(args.missing_value.iter().map(|value| format!("--missing-value={}", quote(value))));
    Some(format!("\n# to save these lines: {} --write-config run.toml\n", words.join(" ")))
}

fn head(profile: &Profile) -> String {
    let n_features = profile.columns.iter().filter(|column| !column.is_target).count();
    let n_targets = profile.columns.len() - n_features;
    let targets = match n_targets {
        0 => String::new(),
        1 => " and a target".to_owned(),
        n => format!(" and {n} targets"),
    };
    let of = match (n_targets, n_features) {
        (0, 1) => "column",
        (0, _) => "columns",
        (_, 1) => "feature",
        (_, _) => "features",
    };
    let mut text = format!(
        "{}: {}, {} x {n_features} {of}{targets}",
        profile.source,
        profile.format,
        rows(profile.n_rows as u64)
    );
    let sizes: Vec<u64> = profile.files.iter().filter_map(|file| file.size_bytes).collect();
    if !sizes.is_empty() {
        let files =
            if profile.files.len() == 1 { String::new() } else { format!("{} files, ", profile.files.len()) };
        text += &format!(" ({files}{})", bytes(sizes.iter().sum()));
    }
    text.push('\n');
    if profile.files.len() > 1 {
        let rows: Vec<_> = profile
            .files
            .iter()
            .take(N_FIRST)
            .map(|file| vec![format!("  {}", file.path), file.size_bytes.map_or(String::new(), bytes)])
            .collect();
        text += table(&["<", ""], &rows).trim_start_matches('\n');
        if profile.files.len() > N_FIRST {
            text += &format!("  ... {} more\n", profile.files.len() - N_FIRST);
        }
    }
    if !profile.arrays.is_empty() {
        let rows: Vec<_> = profile
            .arrays
            .iter()
            .map(|array| vec![array.name.clone(), array.kind.clone(), shape(&array.shape)])
            .collect();
        text += "\n";
        text += &table(&["<array", "<type", "<shape"], &rows);
    }
    if n_targets == 0 && profile.arrays.is_empty() {
        text += "no target: --target COLUMN names the column to predict\n";
    } else if n_targets == 0 {
        text += "no labels: --labels PATH names the file that holds them\n";
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
        // The mean of a centered column is rounding noise.
        let mean = if range.mean.abs() < 1e-6 * range.standard_deviation { 0.0 } else { range.mean };
        match column.kind {
            Kind::Date | Kind::Time => cells.extend(moments(column.kind, &range)),
            _ => cells.extend([range.min, range.max, mean, range.standard_deviation].map(number)),
        }
    }
    cells
}

/// Smallest, largest and mean moment of a column, and the standard deviation as a time.
fn moments(kind: Kind, range: &Range) -> [String; 4] {
    const DAY_S: f64 = 86_400.0;
    let spread = range.standard_deviation;
    let spread = match spread {
        DAY_S.. => format!("{} days", number(spread / DAY_S)),
        _ => format!("{} s", number(spread)),
    };
    // Times within days would only make the table wide.
    let are_days = kind == Kind::Date && range.max - range.min >= DAY_S;
    let moment = |seconds: f64| {
        let seconds = if are_days { (seconds / DAY_S).floor() * DAY_S } else { seconds.round() };
        format_moment(seconds, kind == Kind::Date)
    };
    [moment(range.min), moment(range.max), moment(range.mean), spread]
}

/// The values of columns of texts.
fn texts(profile: &Profile) -> String {
    let mut text = String::new();
    let is_few = |column: &&ColumnProfile| column.values.first().is_some_and(|value| value.n_rows > 1);
    let is_text = |column: &&ColumnProfile| column.kind == Kind::Text && !column.is_target;
    for column in profile.columns.iter().filter(is_text).filter(is_few) {
        let values: Vec<String> = column
            .values
            .iter()
            .map(|value| format!("{} {}", cut(&value.value, 30), percent(value.share)))
            .collect();
        text += &wrapped(&format!("{}: {}", cut(&column.name, 24), values.join(", ")));
    }
    if text.is_empty() { text } else { format!("\n{text}") }
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

fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / *size as f64),
        None => format!("{n} bytes"),
    }
}

fn shape(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    dims.join(" x ")
}

/// Wraps text to the width and indents all lines but the first; lines after a line break are code, which stays whole.
fn wrapped(text: &str) -> String {
    let (text, code) = text.split_once('\n').map_or((text, None), |(text, code)| (text, Some(code)));
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &line;
            lines.push('\n');
            line = format!("  {word}");
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
    }
    lines += &line;
    lines.push('\n');
    code.into_iter().flat_map(str::lines).for_each(|code| lines += &format!("  {code}\n"));
    lines
}
