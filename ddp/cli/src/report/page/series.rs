//! A curve of any length in bounded memory: neighboring points are merged, and the smallest and the largest value of each group
//! are kept, so that no spike is lost.

/// A group of neighboring points.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bucket {
    n: f64,
    step_sum: f64,
    value_sum: f64,
    /// Smallest value.
    pub(super) min: f64,
    /// Largest value.
    pub(super) max: f64,
    /// Whether values that are not finite come before it.
    pub(super) follows_gap: bool,
}

impl Bucket {
    /// Mean step of the points.
    pub(super) fn step(&self) -> f64 {
        self.step_sum / self.n
    }

    /// Mean value of the points.
    pub(super) fn mean(&self) -> f64 {
        self.value_sum / self.n
    }

    fn merge(&mut self, other: &Bucket) {
        self.n += other.n;
        self.step_sum += other.step_sum;
        self.value_sum += other.value_sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// Values by step.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    buckets: Vec<Bucket>,
    max_buckets: usize,
    /// Steps per bucket.
    width: u64,
    last_step: u64,
    last: Option<f64>,
    /// Number of values that are NaN or infinite.
    n_not_finite: u64,
    is_after_gap: bool,
}

impl Series {
    /// An empty curve that keeps at most `max_buckets` groups of points.
    pub(super) fn new(max_buckets: usize) -> Self {
        Series {
            buckets: Vec::new(),
            max_buckets: max_buckets.max(2),
            width: 1,
            last_step: 0,
            last: None,
            n_not_finite: 0,
            is_after_gap: false,
        }
    }

    /// Adds the value after `step`, or a gap for one that is not finite. Steps must not decrease; a point of an earlier step than
    /// the last one is ignored.
    pub(super) fn push(&mut self, step: u64, value: Option<f64>) {
        if step < self.last_step {
            return;
        }
        self.last_step = step;
        let Some(value) = value.filter(|value| value.is_finite()) else {
            self.n_not_finite += 1;
            self.is_after_gap = true;
            return;
        };
        self.last = Some(value);
        let follows_gap = std::mem::take(&mut self.is_after_gap);
        let point =
            Bucket { n: 1.0, step_sum: step as f64, value_sum: value, min: value, max: value, follows_gap };
        self.add(point);
        while self.buckets.len() > self.max_buckets {
            self.width = self.width.saturating_mul(2);
            std::mem::take(&mut self.buckets).into_iter().for_each(|bucket| self.add(bucket));
        }
    }

    fn add(&mut self, bucket: Bucket) {
        let width = self.width;
        let index = |bucket: &Bucket| bucket.step() as u64 / width;
        match self.buckets.last_mut() {
            Some(last) if index(last) == index(&bucket) => last.merge(&bucket),
            _ => self.buckets.push(bucket),
        }
    }

    /// Groups of points, in the order of their steps.
    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The last value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.last
    }

    /// Number of values that are NaN or infinite.
    pub(super) fn n_not_finite(&self) -> u64 {
        self.n_not_finite
    }

    /// Smallest and largest value; `None` without values.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        let both = |(low, high): (f64, f64), bucket: &Bucket| (low.min(bucket.min), high.max(bucket.max));
        (!self.buckets.is_empty()).then(|| self.buckets.iter().fold((f64::INFINITY, f64::NEG_INFINITY), both))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_points_keep_their_spikes_and_their_mean() {
        let mut series = Series::new(200);
        for step in 1..=1_000_000_u64 {
            let spike = [(400_003, 1e6), (800_001, -5.0)].iter().find(|(at, _)| *at == step);
            series.push(step, Some(spike.map_or(1.0, |(_, value)| *value)));
        }
        let buckets = series.buckets();
        assert!((100..=200).contains(&buckets.len()), "{}", buckets.len());
        assert_eq!(series.range(), Some((-5.0, 1e6)));
        let of_spike: Vec<f64> = buckets.iter().filter(|b| b.max > 1.0).map(Bucket::step).collect();
        assert!(matches!(of_spike[..], [step] if (step - 400_003.0).abs() < 10_000.0), "{of_spike:?}");
        assert!(buckets.windows(2).all(|pair| pair[0].step() < pair[1].step()));
        assert_eq!(buckets.iter().map(|bucket| bucket.n).sum::<f64>(), 1e6);
    }

    #[test]
    fn values_that_are_not_finite_leave_a_gap() {
        let mut series = Series::new(10);
        for (step, value) in [(1, Some(1.0)), (2, None), (3, Some(f64::NAN)), (4, Some(2.0)), (3, Some(9.0))]
        {
            series.push(step, value);
        }
        let gaps: Vec<_> =
            series.buckets().iter().map(|bucket| (bucket.mean(), bucket.follows_gap)).collect();
        assert_eq!(gaps, [(1.0, false), (2.0, true)]);
        assert_eq!((series.n_not_finite(), series.last()), (2, Some(2.0)));
    }
}
