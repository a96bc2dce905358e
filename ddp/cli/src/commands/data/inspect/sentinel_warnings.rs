//! Warns of numbers that seem to mark missing values, with the lines of a config that read them so.

use ddp::config::Task;

use super::collector::Collector;
use super::column_profile::{ColumnProfile, Kind};
use super::origin::Origin;
use super::section::list;
use super::sentinel::Sentinel;
use super::warning::{Warning, WarningKind};
use super::words::{cut, joined};

/// Columns of numbers with such values: an index and the values. Class labels are not quantities.
fn found(
    origin: &Origin,
    collected: &Collector,
    columns: &[ColumnProfile],
    task: Option<Task>,
) -> Vec<(usize, Vec<Sentinel>)> {
    let is_quantity = |index: &usize| {
        let is_number = matches!(columns[*index].kind, Kind::Integer | Kind::Number | Kind::Element(_));
        is_number && (!origin.targets.contains(index) || task == Some(Task::Regression))
    };
    let columns = (0..columns.len()).filter(is_quantity);
    let marked = columns.map(|index| (index, collected.columns[index].extremes.sentinels()));
    marked.filter(|(_, sentinels)| !sentinels.is_empty()).collect()
}

/// One warning for each column.
pub(super) fn sentinel_warnings(
    origin: &Origin,
    collected: &Collector,
    columns: &[ColumnProfile],
    task: Option<Task>,
) -> Vec<Warning> {
    let warning = |(index, sentinels): (usize, Vec<Sentinel>)| {
        let name = &columns[index].name;
        let share = |sentinel: &Sentinel| {
            let percent = 100.0 * sentinel.n_rows as f64 / collected.n_rows as f64;
            format!("{} ({percent:.1} % of the rows)", sentinel.value)
        };
        let values = joined(&sentinels.iter().map(share).collect::<Vec<_>>());
        let (is, marks) = if sentinels.len() == 1 { ("is", "marks a") } else { ("are", "mark") };
        let lines = if origin.arrays.is_empty() {
            let marks: Vec<String> = sentinels.iter().map(|sentinel| sentinel.value.to_string()).collect();
            let then = if origin.targets.contains(&index) {
                "`data.missing_target` = \"skip\""
            } else {
                "`data.missing` = \"mean\""
            };
            format!("`data.missing_values` = {} and {then} read it so", list(&marks))
        } else {
            let value = sentinels[0].value;
            format!("in numpy, x[x == {value}] = numpy.nan says so, and `data.missing` = \"mean\" fills it")
        };
        let message = format!(
            "{}: {values} {is} far outside the other values; if it {marks} missing value{}, {lines}",
            cut(name, 30),
            if sentinels.len() == 1 { "" } else { "s" },
        );
        Warning { kind: WarningKind::Sentinel, columns: vec![name.clone()], message }
    };
    found(origin, collected, columns, task).into_iter().map(warning).collect()
}
