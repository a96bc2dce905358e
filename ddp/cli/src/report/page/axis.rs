//! Axes of charts: where their ticks are and how numbers are written.

/// Ratio of the largest to the smallest value above which a curve of positive values is drawn on a logarithmic scale.
const LOG_RATIO: f64 = 30.0;
/// Values beyond are drawn here, far from where sums overflow; differences below its inverse are none.
const MAX: f64 = 1e300;

/// Maps values to shares of an axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    /// Values that have a tick.
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// An axis over `low..=high` with about `n_ticks` ticks at round numbers, of which its ends are the outermost unless `is_tight`;
    /// logarithmic if that is allowed and suits the range.
    pub(super) fn new(range: (f64, f64), n_ticks: usize, may_be_log: bool, is_tight: bool) -> Self {
        let (low, high) = (range.0.clamp(-MAX, MAX), range.1.clamp(-MAX, MAX));
        if may_be_log && low > 0.0 && high / low > LOG_RATIO {
            return Self::logarithmic(low, high, n_ticks);
        }
        let spread = high - low;
        if spread <= high.abs() * 1e-12 + 1.0 / MAX {
            // A constant curve is drawn in the middle.
            let around = (high.abs() * 0.1).max(1.0 / MAX);
            return Axis { low: high - around, high: high + around, is_log: false, ticks: vec![high] };
        }
        let step = round_step(spread / n_ticks as f64);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks = (0..=(last - first) as usize).map(|i| (first + i as f64) * step);
        if is_tight {
            let ticks = ticks.filter(|tick| (low..=high).contains(tick)).collect();
            return Axis { low, high, is_log: false, ticks };
        }
        let ticks: Vec<f64> = ticks.collect();
        Axis { low: ticks[0], high: ticks[ticks.len() - 1], is_log: false, ticks }
    }

    fn logarithmic(low: f64, high: f64, n_ticks: usize) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let every = ((last - first) as usize).div_ceil(n_ticks).max(1);
        let factors: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = (first..=last).step_by(every);
        let ticks = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
        let (low, high) = (low * 0.9, high * 1.1);
        Axis { low, high, is_log: true, ticks: ticks.filter(|tick| (low..=high).contains(tick)).collect() }
    }

    /// The share of the axis below `value`, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Whether the scale is logarithmic.
    pub(super) fn is_log(&self) -> bool {
        self.is_log
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Formats a number in at most four significant digits, with k, M or G for large ones.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    let (scaled, unit) = match size {
        _ if size == 0.0 => return "0".to_owned(),
        _ if !(1e-3..1e12).contains(&size) => {
            let text = format!("{value:.3e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            return format!("{}e{exponent}", trimmed(digits));
        }
        _ if size < 1e4 => (value, ""),
        _ if size < 1e6 => (value / 1e3, "k"),
        _ if size < 1e9 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    let decimals = match scaled.abs() {
        size if size >= 1e3 => 0,
        size if size >= 1e2 => 1,
        size if size >= 1e1 => 2,
        size if size >= 1.0 => 3,
        size if size >= 0.1 => 4,
        _ => 5,
    };
    format!("{}{unit}", trimmed(&format!("{scaled:.decimals$}")))
}

/// Without zeros at the end of a fraction.
fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let ticks = |low, high, may_be_log| Axis::new((low, high), 4, may_be_log, false).ticks;
        assert_eq!(ticks(0.13, 2.4, true), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            ticks(0.91, 0.985, false).iter().map(|t| figure(*t)).collect::<Vec<_>>(),
            ["0.9", "0.92", "0.94", "0.96", "0.98", "1"]
        );
        assert_eq!(ticks(0.002, 3.0, true), [0.01, 0.1, 1.0]);
        let tight = Axis::new((0.0, 437.0), 4, false, true);
        assert_eq!((tight.share(437.0), tight.ticks), (1.0, vec![0.0, 200.0, 400.0]));
    }

    #[test]
    fn any_range_has_ticks_and_shares() {
        for range in [(0.0, 0.0), (5.0, 5.0), (-1.0, -1.0), (1e-300, 1e300), (-1e308, 1e308), (0.0, 5e-324)] {
            for may_be_log in [false, true] {
                let axis = Axis::new(range, 4, may_be_log, false);
                assert!(axis.ticks.len() < 100, "{range:?}: {axis:?}");
                for value in [range.0, range.1] {
                    assert!((0.0..=1.0).contains(&axis.share(value)), "{range:?}: {axis:?}");
                }
            }
        }
    }

    #[test]
    fn figures_are_short() {
        let figures = [0.0, 1.0, 0.123456, 12.3456, 999.96, 1234.5, 12_345.0, 2.5e6, 1e-4, -0.05, 7e13];
        assert_eq!(
            figures.map(figure),
            ["0", "1", "0.1235", "12.35", "1000", "1234", "12.35k", "2.5M", "1e-4", "-0.05", "7e13"]
        );
    }
}
