//! Fits a [`Normalizer`] to the statistics of the training rows.

use ddp::config::Normalize;
use ddp::data::Normalizer;

use crate::fit::offsets;
use crate::fit::stats::ColumnStats;

/// Fits to the statistics of the training rows; `None` for [`Normalize::None`].
///
/// The standard deviation is that of the population (division by n), as in scikit-learn's `StandardScaler`. A column
/// of one value, one that varies by rounding, and one whose spread has no f32 inverse keeps its scale: 1. [`Normalize::Auto`] counts as
/// [`Normalize::Standard`]. [`Normalize::Robust`] needs the quartiles: it divides by the distance of the outer ones, by half of the
/// range where that is 0, and makes a column of one value 0, as arXiv:2407.04491.
pub(crate) fn fit(kind: Normalize, stats: &ColumnStats) -> Option<Normalizer> {
    if kind == Normalize::None {
        return None;
    }
    let (mut offset, mut shift, mut scale) = (Vec::new(), Vec::new(), Vec::new());
    for column in 0..stats.mean.len() {
        let (min, max) = (stats.min[column], stats.max[column]);
        let (middle, spread) = match kind {
            Normalize::MinMax => (min, max - min),
            Normalize::Robust => {
                let [low, median, high] = stats.quartiles.as_ref().map_or([0.0; 3], |all| all[column]);
                (median, if high > low { high - low } else { (max - min) / 2.0 })
            }
            Normalize::Auto | Normalize::Standard | Normalize::None => {
                (stats.mean[column], stats.standard_deviation(column))
            }
        };
        let inverse = (1.0 / spread) as f32;
        let is_constant = min >= max || stats.is_constant_but_for_rounding(column);
        let less = offsets::column_offset(stats, column);
        // Values that f32 holds are normalized with the numbers that f32 holds, as in earlier versions.
        let rounded = |value: f64| if stats.is_single(column) { f64::from(value as f32) } else { value };
        let middle = if stats.count[column] > 0.0 { stats.origin[column] - less + middle } else { 0.0 };
        offset.push(less);
        shift.push(rounded(middle));
        scale.push(if !is_constant && inverse.is_finite() {
            rounded(1.0 / spread)
        } else if kind == Normalize::Robust {
            0.0
        } else {
            1.0
        });
    }
    let offset = Some(offset).filter(|all| all.iter().any(|&offset| offset != 0.0));
    Some(Normalizer { offset, shift, scale })
}

#[cfg(test)]
mod tests {
    use ddp::data::DeviceNormalizer;
    use ddp_kernels::{DType, Device, Tensor, ops};

    use super::*;

    /// The normalized columns.
    fn fitted(kind: Normalize, rows: &[[f32; 3]]) -> (Normalizer, Vec<f32>) {
        let mut stats = ColumnStats::new(3);
        stats.add(&rows.concat());
        let normalizer = fit(kind, &stats).unwrap();
        let x = Tensor::from_slice(&rows.concat(), &[rows.len(), 3], Device::Cpu).unwrap();
        let mut out = Tensor::zeros(&[rows.len(), 3], DType::F32, Device::Cpu).unwrap();
        let on_device = DeviceNormalizer::new(&normalizer, Device::Cpu).unwrap();
        ops::load_rows(x.view(), None, Some(on_device.view()), out.view_mut()).unwrap();
        (normalizer, out.to_vec::<f32>().unwrap())
    }

    #[test]
    fn standard_gives_mean_0_and_deviation_1() {
        // A large mean with a small spread: one pass over squares would lose it.
        let rows = [[1.0, 5.0, 100_000.0], [2.0, 5.0, 100_000.5], [6.0, 5.0, 100_001.0]];
        let (normalizer, out) = fitted(Normalize::Standard, &rows);
        assert_eq!(normalizer.shift, [3.0, 5.0, 100_000.5]);
        assert_eq!(normalizer.scale[1], 1.0, "a constant column keeps its scale");
        for column in [0, 2] {
            let x: Vec<f64> = (0..3).map(|row| f64::from(out[row * 3 + column])).collect();
            assert!(x.iter().sum::<f64>().abs() < 1e-6, "{x:?}");
            assert!((x.iter().map(|x| x * x).sum::<f64>() / 3.0 - 1.0).abs() < 1e-6, "{x:?}");
        }
        assert_eq!([out[1], out[7]], [0.0, 0.0]);
    }

    #[test]
    fn minmax_gives_0_to_1_also_over_the_whole_range_of_f32() {
        let (_, out) = fitted(Normalize::MinMax, &[[1.0, 0.1, -3e38], [3.0, 0.1, 3e38], [2.0, 0.1, 0.0]]);
        assert_eq!([out[0], out[3], out[6]], [0.0, 1.0, 0.5]);
        assert_eq!(out[4], 0.0);
        assert!(out.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn robust_divides_by_the_quartiles_distance_and_falls_back_to_the_range() {
        let mut stats = ColumnStats::new(3);
        stats.add(&[0.0, 7.0, 3.0, 8.0, 7.0, 3.0, 2.0, 7.0, 3.0, 4.0, 1.0, 3.0]);
        stats.quartiles = Some(vec![[1.0, 3.0, 5.0], [7.0, 7.0, 7.0], [3.0, 3.0, 3.0]]);
        let normalizer = fit(Normalize::Robust, &stats).unwrap();
        assert_eq!(normalizer.shift, [3.0, 7.0, 3.0]);
        assert_eq!(normalizer.scale, [0.25, f64::from(1.0f32 / 3.0), 0.0]);
    }

    #[test]
    fn rounding_is_not_blown_up() {
        let mut stats = ColumnStats::new(1);
        stats.add(&(0..200).map(|row| if row % 2 == 0 { 0.1 + 0.2 } else { 0.3f64 }).collect::<Vec<_>>());
        for kind in [Normalize::Standard, Normalize::MinMax] {
            assert_eq!(fit(kind, &stats).unwrap().scale, [1.0]);
        }
    }

    #[test]
    fn none_is_none_and_a_column_without_values_stays() {
        let mut stats = ColumnStats::new(1);
        stats.add(&[f32::NAN, f32::NAN]);
        assert_eq!(fit(Normalize::None, &stats), None);
        let normalizer = fit(Normalize::Standard, &stats).unwrap();
        assert_eq!(normalizer, Normalizer::new(vec![0.0], vec![1.0]));
    }
}
