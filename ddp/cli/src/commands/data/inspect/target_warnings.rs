//! Warns of targets and classes that can't be learned.

use ddp::config::Task;
use ddp::data::labels::{MAX_AUTO_CLASSES, MAX_CLASSES, similar};

use super::column_profile::Kind;
use super::inspected::{Inspected, MIN_ROWS};
use super::warning::{Warning, WarningKind};
use super::words::{cut, rows};

/// Most rows of the largest class per row of the smallest.
const MAX_IMBALANCE: u64 = 100;

/// Adds the warnings about the targets.
pub(super) fn target_warnings(inspected: &Inspected<'_>, all: &mut Vec<Warning>) {
    for &target in &inspected.origin.targets {
        let column = &inspected.collected.columns[target];
        if inspected.columns[target].kind == Kind::Empty {
            inspected.about(all, WarningKind::TargetEmpty, &[target], |name| {
                format!("{name} has no value in any row: --target names another column")
            });
            continue;
        }
        if let Some((words, remedy)) = formatted_target(inspected, target) {
            let like = inspected.like(target);
            inspected.about(all, WarningKind::TargetText, &[target], |name| {
                format!(
                    "{name} holds {words}{like}; as text, each value is a class of its own; rewrite them, with pandas:\n{remedy}"
                )
            });
        } else if inspected.columns[target].kind == Kind::Text && inspected.origin.targets.len() > 1 {
            let odd = inspected.odd(&column.texts);
            inspected.about(all, WarningKind::TargetText, &[target], |name| {
                format!("{name} contains text, for example {odd}: one of several targets must be a number")
            });
        } else if column.texts.n > 0 && are_mostly_numbers(inspected, target) {
            let odd = inspected.odd(&column.texts);
            inspected.about(all, WarningKind::TargetText, &[target], |name| {
                format!(
                    "{name}: {} of {} values are text, the first is {odd}, so that all of them are class labels: correct or remove them",
                    column.texts.n,
                    inspected.collected.n_rows as u64 - column.n_missing,
                )
            });
        }
        if column.n_missing > 0 {
            let first = inspected.first(column.first_missing);
            inspected.about(all, WarningKind::TargetMissing, &[target], |name| {
                format!(
                    "{name} is missing in {}{first}: remove those rows, or leave them out of a table with \
                     `data.missing_target` = \"skip\"",
                    rows(column.n_missing)
                )
            });
        }
    }
    let &[target] = &inspected.origin.targets[..] else { return };
    if let [only] = &inspected.columns[target].values[..] {
        let needs = match inspected.task {
            Some(Task::Classification) => "; training needs two classes or more",
            _ => "",
        };
        inspected.about(all, WarningKind::OneClass, &[target], |name| {
            format!("{name} is {} in all rows: there is nothing to learn{needs}", cut(&only.value, 40))
        });
        return;
    }
    if inspected.task != Some(Task::Classification) {
        return;
    }
    classes(inspected, target, all);
}

/// Warns of classes that can't be learned.
fn classes(inspected: &Inspected<'_>, target: usize, all: &mut Vec<Warning>) {
    let profile = &inspected.columns[target];
    let counts = &profile.values;
    if profile.kind == Kind::Text {
        let alike = similar(counts.iter().map(|count| &*count.value));
        if !alike.is_empty() {
            inspected.about(all, WarningKind::Spelling, &[target], |name| {
                format!(
                    "labels of {name} differ only in case, spaces or invisible characters: {}",
                    shown_groups(&alike)
                )
            });
        }
    }
    let n_rows = inspected.collected.n_rows - profile.n_missing as usize;
    let limit = MAX_CLASSES.min(if n_rows < MIN_ROWS { usize::MAX } else { n_rows / 2 });
    if profile.n_distinct.is_none_or(|n| n > limit) && formatted_target(inspected, target).is_none() {
        let n = profile.n_distinct.map_or("too many".to_owned(), |n| n.to_string());
        inspected.about(all, WarningKind::ManyClasses, &[target], |name| {
            format!("{name} has {n} distinct labels in {n_rows} rows: is it an identifier, or a quantity with text?")
        });
    }
    let (Some(most), Some(least)) = (counts.first(), counts.last()) else { return };
    if most.n_rows > MAX_IMBALANCE * least.n_rows {
        inspected.about(all, WarningKind::Imbalance, &[target], |_| {
            format!(
                "class {} has {} for each row of class {}: accuracy will be misleading; see `loss.class_weights` = \"balanced\"",
                most.value,
                rows(most.n_rows / least.n_rows),
                least.value,
            )
        });
    }
    if profile.range.is_some_and(|range| (range.min, range.max) == (-1.0, 1.0)) && counts.len() == 2 {
        inspected.about(all, WarningKind::Signs, &[target], |name| {
            format!("{name} holds -1 and 1: they are the classes 0 and 1 of the model's outputs")
        });
    }
}

/// Whether most values are numbers that are not classes.
fn are_mostly_numbers(inspected: &Inspected<'_>, target: usize) -> bool {
    let column = &inspected.collected.columns[target];
    let n = inspected.collected.n_rows as u64 - column.n_missing;
    2 * column.texts.n < n && (column.has_fractions || is_wide(inspected, target))
}

/// [`Inspected::formatted`] for a target; few values are names of classes.
fn formatted_target(inspected: &Inspected<'_>, target: usize) -> Option<(String, String)> {
    inspected.formatted(target).filter(|_| is_wide(inspected, target))
}

/// Whether a column has more values than classes or categories that differ in their names.
fn is_wide(inspected: &Inspected<'_>, index: usize) -> bool {
    inspected.columns[index].n_distinct.is_none_or(|n| n > MAX_AUTO_CLASSES)
}

/// Groups of similar labels: "Yes / yes, No / no".
fn shown_groups(groups: &[Vec<String>]) -> String {
    const SHOWN: usize = 4;
    let shown = groups.iter().take(SHOWN).map(|group| group.join(" / "));
    let more = if groups.len() > SHOWN { ", ..." } else { "" };
    shown.collect::<Vec<_>>().join(", ") + more
}
