//! Takes the rows for evaluation out of the training rows, by the seed.

use super::dataset::Dataset;
use crate::error::{Error, Result};
use crate::sampler::KeyedPermutation;

/// No epoch has this number, so the split is independent of every epoch's order.
const SPLIT_EPOCH: u64 = u64::MAX;

/// Splits into (training rows, evaluation rows); `fraction` in (0, 1), rounded to whole rows. Both
/// parts keep the order of the file.
///
/// # Errors
/// [`Error::EmptySplit`] if one part would have no rows.
pub fn split(dataset: &Dataset, fraction: f64, seed: u64) -> Result<(Dataset, Dataset)> {
    let n_rows = dataset.n_rows;
    let n_eval_rows = (n_rows as f64 * fraction).round() as usize;
    if n_eval_rows == 0 || n_eval_rows >= n_rows {
        return Err(Error::EmptySplit {
            source_name: dataset.source.clone(),
            n_rows,
            fraction,
            empty: if n_eval_rows == 0 { "no test rows" } else { "no training rows" },
        });
    }
    let permutation = KeyedPermutation::new(n_rows, seed, SPLIT_EPOCH);
    let mut is_eval = vec![false; n_rows];
    (0..n_eval_rows).for_each(|i| is_eval[permutation.index(i)] = true);
    let part = |wanted: bool| -> Vec<usize> { (0..n_rows).filter(|&row| is_eval[row] == wanted).collect() };
    Ok((dataset.select(&part(false)), dataset.select(&part(true))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Targets;

    fn numbered(n_rows: usize) -> Dataset {
        Dataset {
            features: (0..n_rows).map(|row| row as f32).collect(),
            n_rows,
            n_features: 1,
            feature_names: vec!["x".to_owned()],
            targets: Targets::Classes { labels: (0..n_rows as i64).collect(), n_classes: n_rows.max(2) },
            source: "rows.csv".to_owned(),
        }
    }

    #[test]
    fn parts_hold_each_row_once() {
        let (train, eval) = split(&numbered(101), 0.2, 7).unwrap();
        assert_eq!((train.n_rows, eval.n_rows), (81, 20));
        let mut all: Vec<_> = train.features.iter().chain(&eval.features).map(|x| *x as i64).collect();
        let Targets::Classes { labels, .. } = &eval.targets else { panic!() };
        assert!(labels.iter().zip(&eval.features).all(|(label, x)| *label == *x as i64));
        assert!(eval.features.is_sorted() && train.features.is_sorted());
        all.sort();
        assert_eq!(all, (0..101).collect::<Vec<_>>());
    }

    #[test]
    fn the_seed_decides() {
        let rows = numbered(1000);
        let eval = |seed| split(&rows, 0.1, seed).unwrap().1.features;
        assert_eq!(eval(1), eval(1));
        assert_ne!(eval(1), eval(2));
    }

    #[test]
    fn empty_parts_are_refused() {
        for (n_rows, fraction, empty) in
            [(2, 0.2, "no test rows"), (1, 0.9, "no training rows"), (10, 0.99, "no training rows")]
        {
            let error = split(&numbered(n_rows), fraction, 0).unwrap_err().to_string();
            assert!(
                error.contains("rows.csv") && error.contains(empty) && error.contains("hint: "),
                "{error}"
            );
            assert!(error.contains("data.eval_fraction"), "{error}");
        }
    }
}
