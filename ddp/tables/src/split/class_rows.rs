//! Rows by class: their numbers, rows of unknown classes, and a split that takes the same fraction of each class.

use std::ops::Range;
use std::sync::Arc;

use ddp::config::Fold;
use ddp::data::datasets::dataset::{Dataset, TargetLayout};
use ddp::data::datasets::subset::{Bits, Subset, check_folds, check_sizes};
use ddp::data::error::{DataError, Result};
use ddp::data::order::partition::rank_range;
use ddp_comm::{HostShare, ReduceOp, Stop, World};
use ddp_kernels::{KeyedPermutation, TensorMut};
use tracing::warn;

use crate::error::target_error::TargetError;
use crate::formats::Reader;
use crate::host_once::once;
use crate::open::files::files_and_format;
use crate::row_values::RowValues;
use crate::source::SourceSpec;
use crate::table::for_each_text;
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Rows whose classes are read at a time.
const CHUNK_ROWS: usize = 1 << 16;
/// Rows whose targets of heads are read at a time.
const HEAD_ROWS: usize = 1 << 12;

/// Calls `take` with the first row of each chunk of `rows` and the chunk's class indices.
fn for_each_chunk(
    dataset: &dyn Dataset,
    rows: Range<usize>,
    mut take: impl FnMut(usize, &[i64]),
) -> Result<()> {
    let mut classes = vec![0; CHUNK_ROWS.min(rows.len())];
    for start in rows.clone().step_by(CHUNK_ROWS) {
        let end = (start + CHUNK_ROWS).min(rows.end);
        let classes = &mut classes[..end - start];
        dataset.class_indices(start..end, classes)?;
        take(start, classes);
    }
    Ok(())
}

/// Number of classes of a dataset; 0 if its targets are values.
fn n_classes(dataset: &dyn Dataset) -> usize {
    match dataset.layout().targets {
        TargetLayout::Classes { n_classes } => n_classes,
        TargetLayout::Values { .. } | TargetLayout::Heads { .. } => 0,
    }
}

/// Rows of each class. Every rank of the world calls it and reads a shard.
///
/// # Errors
/// [`DataError`] if rows cannot be read on some rank; [`DataError::Comm`] if the exchange fails.
pub(crate) fn class_counts(dataset: &dyn Dataset, world: &World) -> Result<Vec<u64>, Stop<DataError>> {
    let own = rank_range(dataset.len(), world.rank().0, world.world_size());
    let mut counts = world.collective_result(counts_of(dataset, own))?;
    let len = counts.len();
    let view = TensorMut::from_slice(&mut counts, &[len]).map_err(DataError::from)?;
    world.group().all_reduce(ReduceOp::Sum, view).map_err(DataError::from)?;
    Ok(counts.into_iter().map(|count| count as u64).collect())
}

/// Rows of each class among `rows`.
fn counts_of(dataset: &dyn Dataset, rows: Range<usize>) -> Result<Vec<i64>> {
    let mut counts = vec![0i64; n_classes(dataset)];
    for_each_chunk(dataset, rows, |_, classes| {
        for &class in classes {
            // Rows of unknown classes are not counted.
            if let Some(count) = usize::try_from(class).ok().and_then(|class| counts.get_mut(class)) {
                *count += 1;
            }
        }
    })?;
    Ok(counts)
}

/// The rows without those whose label is not a class, and the number of those.
///
/// # Errors
/// [`TargetError::NoKnownLabels`] if no row is left.
pub(crate) fn without_unknown(
    dataset: Arc<dyn Dataset>,
    host: Option<&HostShare>,
) -> Result<(Arc<dyn Dataset>, usize)> {
    let known = once(host, || {
        let mut known = Bits::new(dataset.len());
        for_each_chunk(&*dataset, 0..dataset.len(), |start, classes| {
            (0..classes.len()).filter(|&row| classes[row] >= 0).for_each(|row| known.set(start + row));
        })?;
        Ok(known.to_bytes())
    })?;
    let known = Bits::from_bytes(dataset.len(), &known);
    let n_known = known.count();
    match dataset.len() - n_known {
        0 => Ok((dataset, 0)),
        _ if n_known == 0 => {
            Err(DataError::from(TargetError::NoKnownLabels { source_name: dataset.source().to_owned() }))
        }
        n_unknown => Ok((Arc::new(Subset::new(&dataset, known)), n_unknown)),
    }
}

/// Warns of labels of heads that the training rows lack, where rows may lack targets: the rows are left out of the head as if they did.
///
/// # Errors
/// Errors of reading the rows.
pub(crate) fn with_noted_labels(
    spec: &SourceSpec<'_>,
    rows: Arc<dyn Dataset>,
    host: Option<&HostShare>,
) -> Result<Arc<dyn Dataset>> {
    if spec.skips_missing_targets() && !rows.layout().targets.heads().is_empty() {
        once(host, || note_labels(spec, &*rows).map(|()| Vec::new()))?;
    }
    Ok(rows)
}

fn note_labels(spec: &SourceSpec<'_>, rows: &dyn Dataset) -> Result<()> {
    let names = rows.layout().targets.column_names();
    let mut has_gaps = vec![false; names.len()];
    for start in (0..rows.len()).step_by(HEAD_ROWS) {
        let numbers: Vec<usize> = (start..(start + HEAD_ROWS).min(rows.len())).collect();
        let targets = RowValues::read(rows, &numbers)?.targets;
        for of_row in targets.chunks_exact(names.len()) {
            has_gaps.iter_mut().zip(of_row).for_each(|(has, target)| *has |= target.is_nan());
        }
    }
    let (files, format) = files_and_format(spec)?;
    let Reader::Table(format) = &format.reader else { return Ok(()) };
    // A pipe can be read only once.
    if !files.iter().all(|file| file.is_file()) {
        return Ok(());
    }
    for head in rows.layout().targets.heads() {
        let [column] = &head.columns[..] else { continue };
        let has_gap = || names.iter().zip(&has_gaps).any(|(name, has)| name == column && *has);
        let Some(labels) = head.labels.as_ref().filter(|_| has_gap()) else { continue };
        let mut notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
        let (mut n_unknown, mut first) = (0u64, None);
        for_each_text(&files, format, spec, column, |text, decimal| {
            notation.decimal = decimal;
            if !notation.is_missing_label(text) && labels.class_of_text(text).is_none() {
                n_unknown += 1;
                first.get_or_insert_with(|| text.to_owned());
            }
            Ok(())
        })?;
        if let Some(first) = first {
            warn!(
                "{}: {n_unknown} labels of head \"{}\" do not occur in training, such as \"{first}\": these rows are left out of its loss \
                 and metrics",
                spec.source, head.name
            );
        }
    }
    Ok(())
}

/// Splits into (training rows, evaluation rows) with the same fraction of each class: of a class of `n` rows about `n * fraction`,
/// drawn by (seed, class), so that the evaluation rows are `fraction` of all rows. A class of one row trains. Both keep the rows'
/// order, and nothing depends on the number of ranks.
///
/// # Errors
/// [`DataError::EmptySplit`] if one side would have no rows, [`TargetError::LoneLabels`] if each row has a class of its own; errors of
/// reading the labels.
///
/// # Panics
/// If the targets are not classes.
pub(crate) fn split_by_class(
    dataset: &Arc<dyn Dataset>,
    fraction: f64,
    seed: u64,
) -> Result<(Subset, Subset)> {
    let n_rows = dataset.len();
    let counts = counts_of(&**dataset, 0..n_rows)?;
    let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
    let n_eval = shares(&counts, fraction);
    if counts.iter().all(|&count| count < 2) && (n_rows as f64 * fraction).round() >= 1.0 {
        let label =
            dataset.layout().labels.as_ref().map_or("0".to_owned(), |labels| labels.name(labels.len() - 1));
        return Err(DataError::from(TargetError::LoneLabels {
            source_name: dataset.source().to_owned(),
            n_rows,
            label,
        }));
    }
    check_sizes(&**dataset, fraction, n_eval.iter().sum())?;
    // The rows of a class follow those of the class before it.
    let mut starts = Vec::with_capacity(counts.len());
    let mut drawn = Bits::new(n_rows);
    let mut start = 0;
    for (class, (&count, &n_eval)) in counts.iter().zip(&n_eval).enumerate() {
        // No epoch has this number, and no other class.
        let permutation = KeyedPermutation::new(count, seed, u64::MAX - 1 - class as u64);
        (0..n_eval).for_each(|i| drawn.set(start + permutation.index(i)));
        starts.push(start);
        start += count;
    }
    sides(dataset, starts, &drawn)
}

/// The rows that were not drawn, and those that were. The rows of a class are numbered from its place in `places` on.
fn sides(dataset: &Arc<dyn Dataset>, mut places: Vec<usize>, drawn: &Bits) -> Result<(Subset, Subset)> {
    let n_rows = dataset.len();
    let mut is_eval = Bits::new(n_rows);
    for_each_chunk(&**dataset, 0..n_rows, |first, classes| {
        for (row, &class) in classes.iter().enumerate() {
            let place = &mut places[class as usize];
            if drawn.has(*place) {
                is_eval.set(first + row);
            }
            *place += 1;
        }
    })?;
    Ok((Subset::new(dataset, is_eval.inverted()), Subset::new(dataset, is_eval)))
}

/// Splits into (the rows of all other folds, the rows of `fold`): each fold has the same fraction of each class, up to a row, and as many rows
/// as the others, up to a row; drawn by (seed, class). Both sides keep the rows' order.
///
/// # Errors
/// [`DataError::EmptySplit`] if there are fewer rows than folds; errors of reading the labels.
///
/// # Panics
/// If the targets are not classes.
pub(crate) fn fold_by_class(dataset: &Arc<dyn Dataset>, fold: Fold, seed: u64) -> Result<(Subset, Subset)> {
    let n_rows = dataset.len();
    check_folds(&**dataset, fold)?;
    let counts = counts_of(&**dataset, 0..n_rows)?;
    // The rows of a class follow those of the class before it, in the order of the draw, and go to the folds in turn.
    let (mut starts, mut start) = (Vec::with_capacity(counts.len()), 0);
    let mut drawn = Bits::new(n_rows);
    for (class, count) in counts.into_iter().enumerate() {
        let permutation = KeyedPermutation::new(count as usize, seed, u64::MAX - 1 - class as u64);
        let own = (0..count as usize).filter(|i| (start + i) % fold.of == fold.number - 1);
        own.for_each(|i| drawn.set(start + permutation.index(i)));
        starts.push(start);
        start += count as usize;
    }
    sides(dataset, starts, &drawn)
}

/// Rows to take of classes with these numbers of rows: `fraction` of each, by the method of the largest remainder. Each class
/// keeps a row unless the total can't be reached otherwise, and a class of one row always does.
fn shares(counts: &[usize], fraction: f64) -> Vec<usize> {
    let total = (counts.iter().sum::<usize>() as f64 * fraction).round() as usize;
    let quota = |class: usize| counts[class] as f64 * fraction;
    let mut shares: Vec<usize> = counts
        .iter()
        .enumerate()
        .map(|(class, &count)| if count < 2 { 0 } else { (quota(class).floor() as usize).min(count - 1) })
        .collect();
    let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
    // A stable sort: the lower class comes first.
    by_remainder.sort_by(|&a, &b| quota(b).fract().total_cmp(&quota(a).fract()));
    let mut left = total.saturating_sub(shares.iter().sum());
    for n_kept in [1, 0] {
        let mut has_room = true;
        while left > 0 && has_room {
            has_room = false;
            for &class in &by_remainder {
                if left > 0 && counts[class] > 1 && shares[class] + n_kept < counts[class] {
                    shares[class] += 1;
                    left -= 1;
                    has_room = true;
                }
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use ddp::data::{RowLayout, TensorDataset, numbered_columns};
    use proptest::prelude::*;

    use crate::split::class_rows::*;
    use crate::testing::gathered;

    /// Rows of these classes; the feature is the row's number.
    fn rows_of(classes: &[i64], n_classes: usize) -> Arc<dyn Dataset> {
        let layout = RowLayout::new(numbered_columns(1), TargetLayout::Classes { n_classes });
        let features = (0..classes.len()).map(|row| row as f32).collect();
        Arc::new(TensorDataset::classes(features, classes.to_vec(), layout))
    }

    /// Numbers and classes of the rows.
    fn content(subset: &Subset) -> Vec<(usize, i64)> {
        let (features, targets, _) = gathered(subset, &(0..subset.len()).collect::<Vec<_>>());
        let mut classes = vec![0; subset.len()];
        subset.class_indices(0..subset.len(), &mut classes).unwrap();
        assert!(targets.iter().zip(&classes).all(|(target, class)| *target == *class as f32));
        features.iter().map(|row| *row as usize).zip(classes).collect()
    }

    proptest! {
        #[test]
        fn each_class_gives_its_share(
            classes in proptest::collection::vec(prop_oneof![4 => Just(0i64), 2 => 0i64..4, 1 => 0i64..40], 2..400),
            fraction in 0.01..0.99f64,
            seed: u64,
        ) {
            let classes: Vec<i64> = classes;
            let whole = rows_of(&classes, 40);
            let counts = |rows: &[(usize, i64)]| {
                let mut counts = [0usize; 40];
                rows.iter().for_each(|(_, class)| counts[*class as usize] += 1);
                counts
            };
            let all: Vec<_> = classes.iter().copied().enumerate().collect();
            let n_single = counts(&all).iter().filter(|n| **n == 1).count();
            let want = ((classes.len() as f64 * fraction).round() as usize).min(classes.len() - n_single);
            let Ok((train, eval)) = split_by_class(&whole, fraction, seed) else {
                prop_assert!(want == 0 || want == classes.len());
                return Ok(());
            };
            prop_assert_eq!(eval.len(), want);
            let (train, eval) = (content(&train), content(&eval));
            prop_assert!(train.is_sorted() && eval.is_sorted(), "in the order of the file");
            let mut both = [train.clone(), eval.clone()].concat();
            both.sort();
            prop_assert_eq!(&both, &all, "each row once");
            let room = counts(&all).iter().map(|n| n.saturating_sub(1)).sum::<usize>();
            for (n, (n_train, n_eval)) in counts(&all).iter().zip(counts(&train).iter().zip(counts(&eval))) {
                prop_assert!(*n != 1 || *n_train == 1, "a class of one row trains");
                prop_assert!(*n == 0 || want > room || *n_train > 0, "each class trains");
                // Single rows leave their share to the other classes.
                let exact = *n as f64 * fraction;
                prop_assert!(n_single > 0 || want > room || (n_eval as f64 - exact).abs() < 1.0 + 40.0 * (1.0 - fraction).min(0.5));
            }
        }
    }

    #[test]
    fn a_tenth_of_each_class() {
        // 100 of class 0, 50 of class 1, 10 of class 2, 1 of class 3, mixed.
        let classes: Vec<i64> = (0..161)
            .map(|row| match (row * 67) % 161 {
                0..100 => 0,
                100..150 => 1,
                150..160 => 2,
                _ => 3,
            })
            .collect();
        let (train, eval) = split_by_class(&rows_of(&classes, 4), 0.1, 7).unwrap();
        let count = |subset: &Subset, class| content(subset).iter().filter(|(_, c)| *c == class).count();
        assert_eq!([0, 1, 2, 3].map(|class| count(&eval, class)), [10, 5, 1, 0]);
        assert_eq!(train.len(), 145);
        let of_seed = |seed| content(&split_by_class(&rows_of(&classes, 4), 0.1, seed).unwrap().1);
        assert_eq!(of_seed(7), content(&eval));
        assert_ne!(of_seed(8), of_seed(7));
    }

    #[test]
    fn remainders_are_given_to_the_largest() {
        assert_eq!(shares(&[7, 5, 3], 0.5), [4, 3, 1]);
        assert_eq!(shares(&[10, 10], 0.25), [3, 2]);
        assert_eq!(shares(&[1, 1, 1], 0.5), [0, 0, 0]);
        assert_eq!(shares(&[2, 2], 0.9), [2, 2]);
        assert_eq!(shares(&[100, 2], 0.9), [91, 1]);
        assert_eq!(shares(&[0, 4], 0.5), [0, 2]);
    }

    #[test]
    fn rows_of_unknown_classes_are_left_out() {
        let (rows, n) = without_unknown(rows_of(&[0, -1, 1, -1], 2), None).unwrap();
        assert_eq!((rows.len(), n), (2, 2));
        assert_eq!(without_unknown(rows_of(&[0, 1], 2), None).unwrap().1, 0);
        let error = ddp_kernels::hint::with_hint(&without_unknown(rows_of(&[-1], 2), None).unwrap_err());
        assert!(error.contains("no row") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn ranks_count_together() {
        let classes: Vec<i64> = (0..1000).map(|row| row * row % 7).collect();
        let mut want = vec![0; 7];
        classes.iter().for_each(|class| want[*class as usize] += 1);
        for n_ranks in 1..=3 {
            for counts in ddp_comm::threads::run(n_ranks, |world| {
                class_counts(&*rows_of(&classes, 7), &world)
                    .map_err(|stop| {
                        stop.error()
                            .map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
                    })
                    .unwrap()
            }) {
                assert_eq!(counts, want);
            }
        }
    }
}
