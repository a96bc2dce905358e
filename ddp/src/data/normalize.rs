//! Normalisation of features: fitted once on the training rows, applied to all.

use super::dataset::Dataset;
use crate::config::Normalize;

/// `x' = (x - shift) * scale`, column by column.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalizer {
    /// `[n_features]`: mean or smallest value.
    pub shift: Vec<f32>,
    /// `[n_features]`: one over the standard deviation or the range.
    pub scale: Vec<f32>,
}

impl Normalizer {
    /// Statistics of the rows of `train`, in f64 by two passes; `None` for [`Normalize::None`].
    ///
    /// The standard deviation is that of the population (division by n), as in scikit-learn's
    /// `StandardScaler`. A column of one value, and one whose spread has no f32 inverse, keeps its
    /// scale: 1.
    pub fn fit(kind: Normalize, train: &Dataset) -> Option<Self> {
        let columns = Columns::of(train);
        let spread: Vec<f64> = match kind {
            Normalize::None => return None,
            Normalize::Standard => columns.standard_deviations(train),
            Normalize::MinMax => columns.max.iter().zip(&columns.min).map(|(max, min)| max - min).collect(),
        };
        let shift = if kind == Normalize::Standard { &columns.mean } else { &columns.min };
        let is_constant = columns.max.iter().zip(&columns.min).map(|(max, min)| max == min);
        let scale = spread.iter().zip(is_constant).map(|(spread, is_constant)| {
            let scale = (1.0 / spread) as f32;
            if is_constant || !scale.is_finite() { 1.0 } else { scale }
        });
        Some(Self { scale: scale.collect(), shift: shift.iter().map(|&x| x as f32).collect() })
    }

    /// Normalises the features in place. The columns are those that it was fitted on.
    pub fn apply(&self, dataset: &mut Dataset) {
        assert_eq!(self.shift.len(), dataset.n_features, "fitted on as many columns");
        for row in dataset.features.chunks_exact_mut(dataset.n_features) {
            for ((x, shift), scale) in row.iter_mut().zip(&self.shift).zip(&self.scale) {
                // In f64: the difference of two finite f32 can overflow.
                *x = ((f64::from(*x) - f64::from(*shift)) * f64::from(*scale)) as f32;
            }
        }
    }
}

struct Columns {
    mean: Vec<f64>,
    min: Vec<f64>,
    max: Vec<f64>,
}

impl Columns {
    fn of(dataset: &Dataset) -> Self {
        let n = dataset.n_features;
        let (mut mean, mut min, mut max) = (vec![0.0; n], vec![f64::INFINITY; n], vec![f64::NEG_INFINITY; n]);
        for row in dataset.features.chunks_exact(n) {
            for (column, &x) in row.iter().enumerate() {
                let x = f64::from(x);
                mean[column] += x;
                min[column] = x.min(min[column]);
                max[column] = x.max(max[column]);
            }
        }
        mean.iter_mut().for_each(|sum| *sum /= dataset.n_rows as f64);
        Self { mean, min, max }
    }

    fn standard_deviations(&self, dataset: &Dataset) -> Vec<f64> {
        let mut squares = vec![0.0; dataset.n_features];
        for row in dataset.features.chunks_exact(dataset.n_features) {
            for ((square, &x), mean) in squares.iter_mut().zip(row).zip(&self.mean) {
                *square += (f64::from(x) - mean).powi(2);
            }
        }
        squares.iter().map(|square| (square / dataset.n_rows as f64).sqrt()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Targets;

    fn columns(rows: &[[f32; 3]]) -> Dataset {
        Dataset {
            features: rows.concat(),
            n_rows: rows.len(),
            n_features: 3,
            feature_names: vec!["a".into(), "b".into(), "c".into()],
            targets: Targets::Classes { labels: vec![0; rows.len()], n_classes: 2 },
            source: String::new(),
        }
    }

    #[test]
    fn standard_gives_mean_0_and_deviation_1() {
        // A large mean with a small spread: one pass over squares would lose it.
        let mut data = columns(&[[1.0, 5.0, 100_000.0], [2.0, 5.0, 100_000.5], [6.0, 5.0, 100_001.0]]);
        let fitted = Normalizer::fit(Normalize::Standard, &data).unwrap();
        assert_eq!(fitted.shift, [3.0, 5.0, 100_000.5]);
        assert_eq!(fitted.scale[1], 1.0, "a constant column keeps its scale");
        fitted.apply(&mut data);
        for column in [0, 2] {
            let x: Vec<f64> = (0..3).map(|row| f64::from(data.row(row)[column])).collect();
            assert!(x.iter().sum::<f64>().abs() < 1e-6, "{x:?}");
            assert!((x.iter().map(|x| x * x).sum::<f64>() / 3.0 - 1.0).abs() < 1e-6, "{x:?}");
        }
        assert_eq!([data.row(0)[1], data.row(2)[1]], [0.0, 0.0]);
    }

    #[test]
    fn minmax_gives_0_to_1_also_over_the_whole_range_of_f32() {
        let mut data = columns(&[[1.0, 0.1, -3e38], [3.0, 0.1, 3e38], [2.0, 0.1, 0.0]]);
        Normalizer::fit(Normalize::MinMax, &data).unwrap().apply(&mut data);
        assert_eq!([data.row(0)[0], data.row(1)[0], data.row(2)[0]], [0.0, 1.0, 0.5]);
        assert_eq!(data.row(1)[1], 0.0);
        assert!(data.features.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn none_is_none() {
        assert_eq!(Normalizer::fit(Normalize::None, &columns(&[[1.0; 3]])), None);
    }
}
