//! Splits the rows of a table by one of its columns: by its values, by whole groups, or by time.
//!
//! A split takes the memory of its column and a byte per row while it is made, and a bit per row and side after it. Nothing depends
//! on the number of ranks.

use std::sync::Arc;

use ddp::config::{DataConfig, Fold, Split};
use ddp::data::datasets::dataset::Dataset;
use ddp::data::datasets::subset::{Bits, Subset, check_sizes};
use ddp::data::error::{DataError, Result};
use ddp::storage::fingerprint::Fingerprint;

use crate::error::TableError;
use crate::error::split_error::SplitError;
use crate::source::SourceSpec;
use crate::split::split_values::{SplitReader, Table, Times, Values, moment, plain, rows};

/// Values that name rows for evaluation.
const EVAL_NAMES: &[&str] = &["test", "eval", "evaluation", "valid", "validation", "val", "dev", "holdout"];

/// Rows of a table, split.
pub(crate) struct SplitRows {
    pub(crate) train: Subset,
    pub(crate) eval: Subset,
    /// Both sides in one line.
    pub(crate) note: String,
}

/// Splits the training rows of `data`, which are `dataset`.
///
/// - `taken`: the column, if it was taken while the rows were read; otherwise it is read now
///
/// # Errors
/// [`TableError::NotForFormat`] for rows without named columns; [`TableError::SplitCell`] with the place of a value that can't be
/// used; [`TableError::Split`] for values that do not say where rows belong, and with [`DataError::EmptySplit`] if a side would have
/// no rows.
pub(crate) fn split_by_column(
    data: &DataConfig,
    dataset: &Arc<dyn Dataset>,
    split: &Split,
    seed: u64,
    taken: Option<SplitReader>,
) -> Result<SplitRows> {
    let spec = SourceSpec::train(data);
    let column = split.column();
    // The column is read for all rows, those without a target too.
    let n_source_rows = dataset.len() + dataset.n_without_target();
    let check_len = |n: usize| {
        if n == n_source_rows {
            Ok(())
        } else {
            Err(DataError::from(TableError::RowsChanged { source_name: dataset.source().to_owned() }))
        }
    };
    let kept = || (0..dataset.len()).map(|row| dataset.source_row(row));
    let (mut values, mut times) = (None, None);
    match split {
        Split::Time { .. } => times = taken.and_then(|taken| taken.times(n_source_rows)),
        _ => values = taken.and_then(|taken| taken.values(n_source_rows)),
    }
    let read_values = || -> Result<Values> {
        let values = match values {
            Some(values) => values,
            None => Values::read(&Table::find(&spec)?, &spec, column)?,
        };
        check_len(values.codes.len())?;
        Ok(if dataset.n_without_target() == 0 { values } else { values.select_rows(kept()) })
    };
    let (sides, what) = match split {
        Split::Column { eval, train, .. } => {
            let values = read_values()?;
            by_value(&values, column, dataset.source(), eval, train)?
        }
        Split::Group { fold: Some(fold), .. } => {
            let groups = read_values()?;
            by_fold(&groups, column, dataset.source(), *fold, seed)?
        }
        Split::Group { fraction, .. } => {
            let groups = read_values()?;
            by_group(&groups, column, dataset.source(), *fraction, seed)?
        }
        Split::Time { fraction, fold, .. } => {
            match fold {
                Some(fold) if dataset.len() <= fold.of => {
                    return Err(DataError::from(SplitError::Empty {
                        source_name: dataset.source().to_owned(),
                        column: column.to_owned(),
                        purpose: "evaluate",
                        reason: format!(
                            "{} are fewer than the {} spans of {} folds",
                            rows(dataset.len()),
                            fold.of + 1,
                            fold.of
                        ),
                        hint: "take fewer folds".to_owned(),
                    }));
                }
                Some(_) => {}
                None => {
                    check_sizes(&**dataset, *fraction, (dataset.len() as f64 * fraction).round() as usize)?;
                }
            }
            let mut times = match times {
                Some(times) => times,
                None => Times::read(&Table::find(&spec)?, &spec, column)?,
            };
            check_len(times.of_rows.len())?;
            times.of_rows = kept().map(|row| times.of_rows[row]).collect();
            match fold {
                Some(fold) => by_time_fold(&times, column, dataset.source(), *fold)?,
                None => by_time(&times, column, dataset.source(), *fraction)?,
            }
        }
    };
    let bits = |side: Side| {
        let mut bits = Bits::new(sides.len());
        (0..sides.len()).filter(|&row| sides[row] == side).for_each(|row| bits.set(row));
        bits
    };
    let (train, eval) = (Subset::new(dataset, bits(Side::Train)), Subset::new(dataset, bits(Side::Eval)));
    let note = format!("split by \"{column}\": {what}");
    Ok(SplitRows { train, eval, note })
}

/// The side of the split that a row is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Train,
    Eval,
    /// Neither.
    LeftOut,
}

/// The side of each row by the side of its value.
fn sides_of_rows(values: &Values, of_value: &[Side]) -> Vec<Side> {
    values.codes.iter().map(|&code| of_value[code as usize]).collect()
}

/// Rows and values on a side.
fn count(values: &Values, of_value: &[Side], side: Side) -> (usize, usize) {
    let of_side = (0..values.texts.len()).filter(|&value| of_value[value] == side);
    of_side.fold((0, 0), |(n_rows, n_values), value| (n_rows + values.n_rows[value], n_values + 1))
}

fn groups(n: usize) -> String {
    if n == 1 { "1 group".to_owned() } else { format!("{n} groups") }
}

/// Groups of a fold are evaluated. The largest groups are dealt out first, each to the fold with the fewest rows so far; groups of one size
/// in the order of a hash of seed and group.
fn by_fold(
    groups_of_rows: &Values,
    column: &str,
    source: &str,
    fold: Fold,
    seed: u64,
) -> Result<(Vec<Side>, String), SplitError> {
    let Values { texts, n_rows, .. } = groups_of_rows;
    if texts.len() < fold.of {
        return Err(SplitError::Empty {
            source_name: source.to_owned(),
            column: column.to_owned(),
            purpose: "evaluate",
            reason: format!("it has {} for {} folds", groups(texts.len()), fold.of),
            hint: format!("take at most {} folds, or another column", texts.len()),
        });
    }
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_cached_key(|&group| {
        (std::cmp::Reverse(n_rows[group]), group_key(groups_of_rows, seed, group))
    });
    let mut sizes = vec![0; fold.of];
    let mut sides = vec![Side::Train; texts.len()];
    for group in order {
        let smallest = (0..fold.of).min_by_key(|of| sizes[*of]).expect("there are folds");
        sizes[smallest] += n_rows[group];
        if smallest == fold.number - 1 {
            sides[group] = Side::Eval;
        }
    }
    let [(n_train, n_train_groups), (n_eval, n_eval_groups)] =
        [Side::Train, Side::Eval].map(|side| count(groups_of_rows, &sides, side));
    let note = format!(
        "fold {fold}: {} of {} train, {} of {} are evaluated",
        rows(n_train),
        groups(n_train_groups),
        rows(n_eval),
        groups(n_eval_groups)
    );
    Ok((sides_of_rows(groups_of_rows, &sides), note))
}

/// A hash of seed and group, and the group.
fn group_key(groups_of_rows: &Values, seed: u64, group: usize) -> (u64, &str) {
    let mut hash = Fingerprint::default();
    hash.number(seed);
    hash.text(&groups_of_rows.texts[group]);
    (hash.finish(), &groups_of_rows.texts[group])
}

/// Rows whose value is in `eval` are evaluated, those in `train` are trained on: all others if it is empty.
fn by_value(
    values: &Values,
    column: &str,
    source: &str,
    eval: &[String],
    train: &[String],
) -> Result<(Vec<Side>, String), SplitError> {
    let unclear = |reason: String, hint: String| SplitError::Unclear {
        source_name: source.to_owned(),
        column: column.to_owned(),
        reason,
        values: values.listed(),
        hint,
    };
    let find = |key: &'static str, wanted: &String| {
        let is_same_time = |text: &String| moment(wanted).is_some_and(|wanted| moment(text) == Some(wanted));
        let texts = || values.texts.iter();
        let place =
            texts().position(|text| *text == plain(wanted)).or_else(|| texts().position(is_same_time));
        place.ok_or_else(|| SplitError::Value {
            source_name: source.to_owned(),
            column: column.to_owned(),
            key,
            value: wanted.clone(),
            values: values.listed(),
        })
    };
    let mut sides = vec![if train.is_empty() { Side::Train } else { Side::LeftOut }; values.texts.len()];
    for value in train {
        sides[find("train", value)?] = Side::Train;
    }
    if eval.is_empty() {
        let named =
            recognized(values, column).filter(|&value| train.is_empty() || sides[value] == Side::LeftOut);
        let Some(value) = named else {
            let example = values.texts.iter().min_by_key(|text| (!is_eval_name(text), *text));
            let example = example.map_or("test", String::as_str);
            let hint = format!(
                "name the values of the rows to evaluate on, as in split = {{ column = \"{column}\", eval = \"{example}\" }}"
            );
            return Err(unclear("does not say which rows to evaluate on".to_owned(), hint));
        };
        sides[value] = Side::Eval;
    }
    for value in eval {
        sides[find("eval", value)?] = Side::Eval;
    }
    let is_open = |&value: &usize| {
        train.is_empty() && sides[value] == Side::Train && is_eval_name(&values.texts[value])
    };
    if let Some(open) = (0..values.texts.len()).find(is_open) {
        let reason = format!("would train on the rows of \"{}\"", values.texts[open]);
        let hint = "list the values to train on, `train = \"...\"`, so that the other rows are left out, or evaluate on these rows too";
        return Err(unclear(reason, hint.to_owned()));
    }
    let (n_eval, _) = count(values, &sides, Side::Eval);
    let (n_train, _) = count(values, &sides, Side::Train);
    let (n_left_out, _) = count(values, &sides, Side::LeftOut);
    if n_train == 0 {
        return Err(unclear("leaves no rows to train on".to_owned(), "evaluate on fewer values".to_owned()));
    }
    let named: Vec<String> = (0..values.texts.len())
        .filter(|&value| sides[value] == Side::Eval)
        .map(|value| format!("\"{}\"", values.texts[value]))
        .collect();
    let left_out = match n_left_out {
        0 => String::new(),
        n => format!(", {} with other values left out", rows(n)),
    };
    let what = format!(
        "{} to train on, {} ({}) to evaluate{left_out}",
        rows(n_train),
        rows(n_eval),
        named.join(", ")
    );
    Ok((sides_of_rows(values, &sides), what))
}

fn is_eval_name(text: &str) -> bool {
    EVAL_NAMES.iter().any(|name| text.eq_ignore_ascii_case(name))
}

/// The one value that names rows for evaluation: a name such as `test`, or 1 of 0 and 1 (true of false and true) in a column that
/// is not named like training rows. `None` if there is none, or several.
fn recognized(values: &Values, column: &str) -> Option<usize> {
    let named: Vec<usize> =
        (0..values.texts.len()).filter(|&value| is_eval_name(&values.texts[value])).collect();
    match named[..] {
        [value] if values.texts.len() > 1 => return Some(value),
        [] if values.texts.len() == 2 && !column.to_lowercase().contains("train") => {}
        _ => return None,
    }
    let position = |wanted: &str| values.texts.iter().position(|text| text == wanted);
    let pairs = [("0", "1"), ("false", "true")];
    pairs.into_iter().find_map(|(no, yes)| position(no).and(position(yes)))
}

/// Groups in the order of a hash of (seed, group), each of which is evaluated if that brings the number of evaluated rows nearer to
/// `fraction` of all rows.
fn by_group(
    groups_of_rows: &Values,
    column: &str,
    source: &str,
    fraction: f64,
    seed: u64,
) -> Result<(Vec<Side>, String), SplitError> {
    let Values { texts, n_rows, codes } = groups_of_rows;
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_cached_key(|&group| group_key(groups_of_rows, seed, group));
    let wanted = codes.len() as f64 * fraction;
    let mut sides = vec![Side::Train; texts.len()];
    let mut n_eval = 0;
    for group in order {
        let with_it = n_eval + n_rows[group];
        if (with_it as f64 - wanted).abs() < (n_eval as f64 - wanted).abs() {
            sides[group] = Side::Eval;
            n_eval = with_it;
        }
    }
    let (n_train, n_train_groups) = count(groups_of_rows, &sides, Side::Train);
    let empty = |purpose, reason: String, hint: String| SplitError::Empty {
        source_name: source.to_owned(),
        column: column.to_owned(),
        purpose,
        reason,
        hint,
    };
    if texts.len() == 1 {
        let reason = format!("all rows are of one group, \"{}\"", texts[0]);
        return Err(empty("evaluate", reason, "split by another column".to_owned()));
    }
    let smallest = n_rows.iter().copied().min().unwrap_or(0);
    let sizes = format!("its {} groups have at least {} each", texts.len(), rows(smallest));
    if n_eval == 0 {
        let enough = (smallest as f64 / codes.len() as f64 * 100.0).ceil() / 100.0;
        let hint = format!("set `data.eval_fraction` to {enough} or more, or split by another column");
        return Err(empty("evaluate", format!("{sizes}, and {fraction} of all rows are fewer"), hint));
    }
    if n_train == 0 {
        let hint = "set `data.eval_fraction` lower, or split by another column".to_owned();
        return Err(empty(
            "train on",
            format!("{sizes}, and {fraction} of all rows is nearest to all groups"),
            hint,
        ));
    }
    let what = format!(
        "{} ({}) to train on, {} ({}) to evaluate",
        groups(n_train_groups),
        rows(n_train),
        groups(texts.len() - n_train_groups),
        rows(n_eval),
    );
    Ok((sides_of_rows(groups_of_rows, &sides), what))
}

/// The last rows are evaluated: as many as `fraction` says, less those whose time is that of a row to train on.
fn by_time(
    times: &Times,
    column: &str,
    source: &str,
    fraction: f64,
) -> Result<(Vec<Side>, String), SplitError> {
    let n_rows = times.of_rows.len();
    let n_wanted = (n_rows as f64 * fraction).round() as usize;
    let mut sorted = times.of_rows.clone();
    let (_, last, later) = sorted.select_nth_unstable_by(n_rows - n_wanted - 1, f64::total_cmp);
    let last = *last;
    let first = later.iter().copied().filter(|&time| time > last).min_by(f64::total_cmp);
    let Some(first) = first else {
        let n_same = times.of_rows.iter().filter(|&&time| time == last).count();
        return Err(SplitError::Empty {
            source_name: source.to_owned(),
            column: column.to_owned(),
            purpose: "evaluate",
            reason: format!("the last {} are of the same time, {}", rows(n_same), times.shown(last)),
            hint: "set `data.eval_fraction` higher, so that all of them are evaluated, or split by another column"
                .to_owned(),
        });
    };
    let side = |&time: &f64| if time > last { Side::Eval } else { Side::Train };
    let sides: Vec<Side> = times.of_rows.iter().map(side).collect();
    let n_eval = sides.iter().filter(|side| **side == Side::Eval).count();
    let what = format!(
        "{} up to {} to train on, {} from {} on to evaluate",
        rows(n_rows - n_eval),
        times.shown(last),
        rows(n_eval),
        times.shown(first),
    );
    Ok((sides, what))
}

/// Of K + 1 spans of equal numbers of rows by time, the first k train in fold k, the next one is evaluated, and later rows are left out: no
/// row that is evaluated is earlier than one to train on, and none is evaluated twice. Rows of one time are of one span.
fn by_time_fold(
    times: &Times,
    column: &str,
    source: &str,
    fold: Fold,
) -> Result<(Vec<Side>, String), SplitError> {
    let mut sorted = times.of_rows.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    // As TimeSeriesSplit of scikit-learn divides rows, but each span begins with the first row of its time.
    let n_of_span = sorted.len() / (fold.of + 1);
    let begin = |span: usize| sorted.get(sorted.len() - (fold.of + 1 - span) * n_of_span).copied();
    let first = begin(fold.number).expect("there are more rows than spans");
    let end = begin(fold.number + 1).unwrap_or(f64::INFINITY);
    let side = |&time: &f64| match time {
        _ if time < first => Side::Train,
        _ if time < end => Side::Eval,
        _ => Side::LeftOut,
    };
    let sides: Vec<Side> = times.of_rows.iter().map(side).collect();
    let n_of = |wanted| sides.iter().filter(|side| **side == wanted).count();
    let (n_train, n_eval, n_left_out) = (n_of(Side::Train), n_of(Side::Eval), n_of(Side::LeftOut));
    if n_train == 0 || n_eval == 0 {
        let n_same = times.of_rows.iter().filter(|&&time| time == first).count();
        return Err(SplitError::Empty {
            source_name: source.to_owned(),
            column: column.to_owned(),
            purpose: if n_train == 0 { "train on" } else { "evaluate" },
            reason: format!("in fold {fold}: {} are of the same time, {}", rows(n_same), times.shown(first)),
            hint: "take fewer folds, so that each has rows of more than one time, or another column"
                .to_owned(),
        });
    }
    let last = times.of_rows.iter().copied().filter(|time| *time < first).max_by(f64::total_cmp);
    let left_out = match n_left_out {
        0 => String::new(),
        n => format!(", {} left out", rows(n).replacen(' ', " later ", 1)),
    };
    let what = format!(
        "fold {fold}: {} up to {} train, {} from {} on are evaluated{left_out}",
        rows(n_train),
        times.shown(last.expect("there are rows to train on")),
        rows(n_eval),
        times.shown(first),
    );
    Ok((sides, what))
}

#[cfg(test)]
#[path = "column_split_tests.rs"]
mod tests;
