//! Warns of targets and classes that can't be learned.

use ddp::config::Task;
use ddp::data::labels::{MAX_AUTO_CLASSES, MAX_CLASSES, similar};
use ddp::data::{ONE_HOT, has_one_label};
use ddp_rows::error::PLAIN_NOTATION;

use super::inspected::{Inspected, MIN_ROWS};
use super::kind::Kind;
use super::warning::{WarningKind, count, cut};

/// Most rows of the largest class per row of the smallest.
const MAX_IMBALANCE: u64 = 100;

/// Adds the warnings about the targets.
pub(super) fn target_warnings(inspected: &mut Inspected<'_>) {
    for &target in &inspected.origin.targets {
        of_values(inspected, target);
    }
    of_labels(inspected);
    let &[target] = &inspected.origin.targets[..] else { return };
    let is_classification = inspected.task == Some(Task::Classification);
    if let [only] = &inspected.columns[target].values[..] {
        let needs = if is_classification { "; training needs two classes or more" } else { "" };
        inspected.about(WarningKind::OneClass, &[target], |name| {
            format!("{name} is {} in all rows: there is nothing to learn{needs}", cut(&only.value, 40))
        });
    } else if is_classification {
        of_classes(inspected, target);
    }
}

/// Warns of values that are missing or are texts among numbers.
fn of_values(inspected: &mut Inspected<'_>, target: usize) {
    let (column, profile) = (&inspected.collected.columns[target], &inspected.columns[target]);
    if profile.kind == Kind::Empty {
        inspected.about(WarningKind::TargetEmpty, &[target], |name| {
            format!("{name} has no value in any row: --target names another column")
        });
        return;
    }
    let (n_texts, n, odd) =
        (column.types.texts.n, inspected.n_values(target), inspected.odd(&column.types.texts));
    let is_wide = profile.n_distinct.is_none_or(|n| n > MAX_AUTO_CLASSES);
    let are_mostly_numbers = n_texts > 0 && 2 * n_texts < n && (column.has_fractions() || is_wide);
    let is_one_of_several = inspected.origin.targets.len() > 1;
    let problem = if is_wide && inspected.is_formatted(target) {
        let like = if odd.is_empty() { odd } else { format!(", like {odd}") };
        Some(format!(
            "seems to hold numbers or dates as text{like}, so that each value is a class of its own: {PLAIN_NOTATION}"
        ))
    } else if profile.kind == Kind::Text && is_one_of_several {
        Some(format!("contains text, for example {odd}: one of several targets must be a number"))
    } else if are_mostly_numbers {
        Some(format!(
            "is text in {n_texts} of {n} rows, the first is {odd}, so that all values are class labels: correct or remove them"
        ))
    } else {
        None
    };
    if let Some(problem) = problem {
        inspected.about(WarningKind::TargetText, &[target], |name| format!("{name} {problem}"));
    }
    if column.types.missing.n > 0 {
        let first = inspected.first(&column.types.missing);
        let na = if column.has_na_code() {
            "; \"NA\" seems to be a code like the others: `data.missing_values` = [\"\"] says that only empty cells are missing"
        } else {
            ""
        };
        inspected.about(WarningKind::TargetMissing, &[target], |name| {
            format!(
                "{name} is missing in {}{first}: remove those rows, or leave them out of a table with \
                 `data.missing_target` = \"skip\"{na}",
                count(column.types.missing.n, "row")
            )
        });
    }
}

/// Warns of several labels of which each row has one.
fn of_labels(inspected: &mut Inspected<'_>) {
    let targets = &inspected.origin.targets;
    let samples: Vec<&[f64]> =
        targets.iter().map(|&target| &inspected.collected.columns[target].sample.values[..]).collect();
    if inspected.task == Some(Task::Multilabel)
        && (0..samples[0].len()).all(|row| has_one_label(samples.iter().map(|sample| sample[row])))
    {
        inspected.about(WarningKind::OneHot, targets, |_| ONE_HOT.to_owned());
    }
}

/// Warns of classes that can't be learned.
fn of_classes(inspected: &mut Inspected<'_>, target: usize) {
    let profile = &inspected.columns[target];
    let counts = &profile.values;
    let alike = similar(counts.iter().map(|count| &*count.value));
    if profile.kind == Kind::Text && !alike.is_empty() {
        let groups: Vec<String> = alike.iter().take(4).map(|group| group.join(" / ")).collect();
        inspected.about(WarningKind::Spelling, &[target], |name| {
            let groups = groups.join(", ");
            format!("labels of {name} differ only in case, spaces or invisible characters: {groups}")
        });
    }
    let n_rows = inspected.n_values(target) as usize;
    let limit = MAX_CLASSES.min(if n_rows < MIN_ROWS { usize::MAX } else { n_rows / 2 });
    if profile.n_distinct.is_none_or(|n| n > limit) {
        let n = profile.n_distinct.map_or("too many".to_owned(), |n| n.to_string());
        inspected.about(WarningKind::ManyClasses, &[target], |name| {
            format!("{name} has {n} distinct labels in {n_rows} rows: is it an identifier, or a quantity with text?")
        });
    }
    if let (Some(most), Some(least)) = (counts.first(), counts.last())
        && most.n_rows > MAX_IMBALANCE * least.n_rows
    {
        inspected.about(WarningKind::Imbalance, &[target], |_| {
            format!(
                "class {} has {} for each row of class {}: accuracy will be misleading; see `loss.class_weights` = \"balanced\"",
                most.value,
                count(most.n_rows / least.n_rows, "row"),
                least.value,
            )
        });
    }
}
