//! Areas under curves: ROC AUC and average precision of each class against the rest.
//!
//! Up to [`EXACT_SCORES`] scores over all ranks they are exact: all scores of a class meet on one rank, which sorts them. Above
//! that each class has bins of log-odds, and equal bins count as equal scores.

use ddp_comm::{CommError, World};
use rayon::prelude::*;

/// Scores up to which areas are exact.
pub(crate) const EXACT_SCORES: usize = 1 << 24;
/// Most bins of a class above that.
const MAX_BINS: usize = 1 << 16;
/// Bins of all classes together, each with two weights: 64 MiB.
const ALL_BINS: usize = 1 << 22;
/// The bins cover log-odds from minus to plus this.
const MAX_LOG_ODDS: f64 = 32.0;

/// Areas of one class.
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Areas {
    /// NaN if it is not defined.
    roc_auc: f64,
    average_precision: f64,
}

impl Areas {
    const UNDEFINED: Areas = Areas { roc_auc: f64::NAN, average_precision: f64::NAN };

    pub(crate) fn roc_auc(&self) -> Option<f64> {
        (!self.roc_auc.is_nan()).then_some(self.roc_auc)
    }

    pub(crate) fn average_precision(&self) -> Option<f64> {
        (!self.average_precision.is_nan()).then_some(self.average_precision)
    }
}

/// One row as seen by one class.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Scored {
    probability: f64,
    /// Weight of the row; negative if it is not of the class.
    signed_weight: f64,
}

/// Scores of the outputs of a model, or of its heads.
#[derive(Debug, Default)]
pub(crate) struct AllScores {
    pub(crate) own: Option<Scores>,
    pub(crate) heads: Vec<AllScores>,
}

/// Areas of the outputs of a model, or of its heads.
#[derive(Debug, Default)]
pub(crate) struct AllAreas {
    pub(crate) own: Option<OutputAreas>,
    pub(crate) heads: Vec<AllAreas>,
}

/// Areas of some outputs of a model.
#[derive(Debug)]
pub(crate) struct OutputAreas {
    columns: Vec<usize>,
    areas: Vec<Areas>,
    pub(crate) is_approximate: bool,
}

impl AllScores {
    /// The areas over the rows of all ranks, on every rank. Collective.
    pub(crate) fn areas(self, world: &World) -> Result<AllAreas, CommError> {
        let of_own = |scores: Scores| {
            let (columns, is_approximate) = (scores.columns.clone(), scores.is_approximate());
            Ok::<_, CommError>(OutputAreas { columns, areas: scores.areas(world)?, is_approximate })
        };
        let heads = self.heads.into_iter().map(|head| head.areas(world));
        Ok(AllAreas { own: self.own.map(of_own).transpose()?, heads: heads.collect::<Result<_, _>>()? })
    }
}

impl OutputAreas {
    /// The areas of an output, if it has some.
    pub(crate) fn of(&self, output: usize) -> Option<Areas> {
        self.areas.get(output.checked_sub(*self.columns.first()?)?).copied()
    }

    /// The mean over the outputs, if it is defined of each.
    pub(crate) fn mean(&self, of: fn(&Areas) -> Option<f64>) -> Option<f64> {
        Some(self.areas.iter().map(of).sum::<Option<f64>>()? / self.areas.len() as f64)
    }
}

/// Scores of this rank's rows.
#[derive(Debug)]
pub(crate) struct Scores {
    /// Outputs that have scores.
    columns: Vec<usize>,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// By column.
    All(Vec<Vec<Scored>>),
    /// By column: the weights in `n_bins` bins of rows that are of the class, of rows that are not, and the weight of rows without a score.
    Bins { n_bins: usize, columns: Vec<Vec<f64>> },
}

impl Scores {
    /// Scores of `n_rows` rows over all ranks: of class 1 for two classes, of each class or label otherwise.
    pub(crate) fn with_limit(n_outputs: usize, is_multilabel: bool, n_rows: usize, limit: usize) -> Self {
        let columns: Vec<usize> =
            if n_outputs == 2 && !is_multilabel { vec![1] } else { (0..n_outputs).collect() };
        let kept = if n_rows.saturating_mul(columns.len()) <= limit {
            Kept::All(vec![Vec::new(); columns.len()])
        } else {
            // Allocated as scores arrive: a rank may have no rows.
            let n_bins = (ALL_BINS / columns.len().max(1)).clamp(2, MAX_BINS);
            Kept::Bins { n_bins, columns: vec![Vec::new(); columns.len()] }
        };
        Scores { columns, kept }
    }

    pub(crate) fn is_approximate(&self) -> bool {
        matches!(self.kept, Kept::Bins { .. })
    }

    /// Adds a row: the probability of an output, and whether the row is of its class.
    pub(crate) fn add(&mut self, weight: f64, of: impl Fn(usize) -> (f64, bool)) {
        if weight == 0.0 {
            return;
        }
        for (place, &column) in self.columns.iter().enumerate() {
            let (probability, is_positive) = of(column);
            match &mut self.kept {
                Kept::All(columns) => {
                    let signed_weight = if is_positive { weight } else { -weight };
                    columns[place].push(Scored { probability, signed_weight });
                }
                Kept::Bins { n_bins, columns } => {
                    let (n_bins, bins) = (*n_bins, &mut columns[place]);
                    bins.resize(2 * n_bins + 1, 0.0);
                    let place = bin(probability, n_bins);
                    bins[place.map_or(2 * n_bins, |bin| bin + if is_positive { 0 } else { n_bins })] +=
                        weight;
                }
            }
        }
    }

    /// The areas of each column over the rows of all ranks, on every rank. Collective.
    pub(crate) fn areas(self, world: &World) -> Result<Vec<Areas>, CommError> {
        let (rank, world_size) = (world.rank().0, world.world_size());
        let n_columns = self.columns.len();
        let mut own = Vec::new();
        for place in 0..n_columns {
            let bytes: &[u8] = match &self.kept {
                Kept::All(columns) => bytemuck::cast_slice(&columns[place]),
                Kept::Bins { columns, .. } => bytemuck::cast_slice(&columns[place]),
            };
            let of_ranks = world.group().all_gather_bytes(bytes)?;
            // The ranks share the columns.
            if place % world_size == rank {
                own.push(match self.kept {
                    Kept::All(_) => exact(&of_ranks),
                    Kept::Bins { n_bins, .. } => binned(&of_ranks, n_bins),
                });
            }
        }
        let of_ranks = world.group().all_gather_bytes(bytemuck::cast_slice(&own))?;
        let of_ranks: Vec<Vec<Areas>> =
            of_ranks.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect();
        Ok((0..n_columns).map(|place| of_ranks[place % world_size][place / world_size]).collect())
    }
}

/// Bin of a probability among `n_bins`, if it is a number.
fn bin(probability: f64, n_bins: usize) -> Option<usize> {
    let log_odds = (probability / (1.0 - probability)).ln();
    let place = (log_odds.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS) + MAX_LOG_ODDS) / (2.0 * MAX_LOG_ODDS);
    (!place.is_nan()).then(|| ((place * n_bins as f64) as usize).min(n_bins - 1))
}

fn exact(of_ranks: &[Vec<u8>]) -> Areas {
    let mut scored: Vec<Scored> = Vec::new();
    for bytes in of_ranks {
        scored.extend(bytemuck::pod_collect_to_vec::<u8, Scored>(bytes));
    }
    if scored.iter().any(|row| row.probability.is_nan()) {
        return Areas::UNDEFINED;
    }
    // Weights too, so that the sums do not depend on which rank has which row.
    scored.par_sort_unstable_by(|a, b| {
        b.probability.total_cmp(&a.probability).then(a.signed_weight.total_cmp(&b.signed_weight))
    });
    let groups = scored.chunk_by(|a, b| a.probability == b.probability).map(|equal| {
        let of_sign =
            |sign: f64| equal.iter().map(move |row| (sign * row.signed_weight).max(0.0)).sum::<f64>();
        [of_sign(1.0), of_sign(-1.0)]
    });
    areas(groups)
}

fn binned(of_ranks: &[Vec<u8>], n_bins: usize) -> Areas {
    let mut sums = vec![0.0; 2 * n_bins + 1];
    for bytes in of_ranks {
        let of_rank = bytemuck::pod_collect_to_vec::<u8, f64>(bytes);
        sums.iter_mut().zip(of_rank).for_each(|(sum, value)| *sum += value);
    }
    if sums[2 * n_bins] > 0.0 {
        return Areas::UNDEFINED;
    }
    areas((0..n_bins).rev().map(|bin| [sums[bin], sums[n_bins + bin]]))
}

/// The areas, from the weights of positive and negative rows in groups of equal scores, the highest score first.
///
/// Source: scikit-learn, `roc_auc_score`, `average_precision_score`.
fn areas(groups: impl Iterator<Item = [f64; 2]>) -> Areas {
    let (mut positives, mut negatives) = (0.0, 0.0);
    // Pairs of a positive and a negative row with the positive one in front, and Σ precision · new positives.
    let (mut ordered_pairs, mut precision_sum) = (0.0, 0.0);
    for [positive, negative] in groups {
        ordered_pairs += negative * (positives + 0.5 * positive);
        positives += positive;
        negatives += negative;
        if positive > 0.0 {
            precision_sum += positive * positives / (positives + negatives);
        }
    }
    if positives == 0.0 {
        return Areas::UNDEFINED;
    }
    let roc_auc = if negatives > 0.0 { ordered_pairs / (positives * negatives) } else { f64::NAN };
    Areas { roc_auc, average_precision: precision_sum / positives }
}

#[cfg(test)]
mod tests {
    use ddp_comm::threads;

    use super::*;

    /// Probability, whether positive, weight.
    type Row = (f64, bool, f64);

    /// The areas of rows that this many ranks share.
    fn run(rows: &[Row], n_ranks: usize, limit: usize) -> Areas {
        let of_rank = |world: &World| {
            let mut scores = Scores::with_limit(2, false, rows.len(), limit);
            let own = rows.iter().skip(world.rank().0).step_by(n_ranks);
            own.for_each(|&(p, is_positive, weight)| scores.add(weight, |_| (p, is_positive)));
            assert_eq!(scores.is_approximate(), rows.len() > limit);
            scores.areas(world).unwrap()
        };
        let all = threads::run(n_ranks, |world| of_rank(&world));
        // NaN, which stands for an undefined area, equals nothing.
        let bits = |areas: &[Areas]| bytemuck::cast_slice::<Areas, u64>(areas).to_vec();
        assert!(all.iter().all(|areas| bits(areas) == bits(&all[0])) && all[0].len() == 1);
        all[0][0]
    }

    fn rows(n: usize) -> Vec<Row> {
        let value = |k: usize| ((k * 7919 + 13) % 1009) as f64 / 1009.0;
        (0..n).map(|k| (value(k), value(k) + value(k + 500) > 1.1, [1.0, 0.25, 0.0, 3.0][k % 4])).collect()
    }

    /// By definition: over all pairs, and over all thresholds.
    fn by_definition(rows: &[Row]) -> [f64; 2] {
        let (mut ordered, mut pairs) = (0.0, 0.0);
        for a in rows.iter().filter(|row| row.1) {
            for b in rows.iter().filter(|row| !row.1) {
                pairs += a.2 * b.2;
                ordered += a.2
                    * b.2
                    * if a.0 > b.0 {
                        1.0
                    } else if a.0 == b.0 {
                        0.5
                    } else {
                        0.0
                    };
            }
        }
        let weight = |at: f64, is_positive: Option<bool>| -> f64 {
            let above = rows.iter().filter(|row| row.0 >= at && is_positive.is_none_or(|sign| row.1 == sign));
            above.map(|row| row.2).sum()
        };
        let positives: f64 = rows.iter().filter(|row| row.1).map(|row| row.2).sum();
        let of_row = |row: &Row| row.2 * weight(row.0, Some(true)) / weight(row.0, None);
        let precision: f64 = rows.iter().filter(|row| row.1 && row.2 > 0.0).map(of_row).sum();
        [ordered / pairs, precision / positives]
    }

    #[test]
    fn areas_are_those_of_the_definition_on_any_number_of_ranks() {
        let mut rows = rows(300);
        // Ties between classes.
        rows.extend((0..40).map(|k| (0.5, k % 3 == 0, 2.0)));
        let want = by_definition(&rows);
        let got = [1, 2, 3].map(|n_ranks| run(&rows, n_ranks, EXACT_SCORES));
        for areas in got {
            assert!((areas.roc_auc - want[0]).abs() < 1e-12, "{areas:?} {want:?}");
            assert!((areas.average_precision - want[1]).abs() < 1e-12, "{areas:?} {want:?}");
        }
        assert!(got.iter().all(|areas| *areas == got[0]));
    }

    #[test]
    fn bins_come_close() {
        let rows = rows(4000);
        let want = run(&rows, 1, EXACT_SCORES);
        let got = [1, 3].map(|n_ranks| run(&rows, n_ranks, 100));
        assert_eq!(got[0], got[1]);
        assert!((got[0].roc_auc - want.roc_auc).abs() < 1e-4, "{got:?} {want:?}");
        assert!((got[0].average_precision - want.average_precision).abs() < 1e-3, "{got:?} {want:?}");
    }

    #[test]
    fn bins_of_all_classes_are_bounded() {
        for (n_classes, limit) in [(3, 65_536), (64, 65_536), (4000, 1048), (100_000, 41)] {
            let mut scores = Scores::with_limit(n_classes, false, usize::MAX, EXACT_SCORES);
            scores.add(1.0, |class| (0.5, class == 0));
            let Kept::Bins { n_bins, columns } = &scores.kept else { panic!("there are bins") };
            assert_eq!(*n_bins, limit, "{n_classes} classes");
            let bytes: usize = columns.iter().map(|bins| 8 * bins.len()).sum();
            assert!(bytes <= (64 << 20) + 8 * n_classes, "{n_classes} classes: {bytes} bytes");
        }
    }

    #[test]
    fn what_is_not_defined_is_absent() {
        for limit in [0, EXACT_SCORES] {
            let one_class = run(&[(0.2, true, 1.0), (0.4, true, 1.0), (0.6, false, 0.0)], 2, limit);
            assert_eq!((one_class.roc_auc(), one_class.average_precision()), (None, Some(1.0)));
            let other_class = run(&[(0.2, false, 1.0)], 2, limit);
            assert_eq!((other_class.roc_auc(), other_class.average_precision()), (None, None));
            let with_nan = run(&[(0.2, true, 1.0), (f64::NAN, false, 1.0)], 1, limit);
            assert_eq!((with_nan.roc_auc(), with_nan.average_precision()), (None, None));
        }
    }
}
