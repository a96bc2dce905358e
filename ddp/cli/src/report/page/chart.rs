//! Line charts with their axes as SVG, colored by the classes of `style.css`, so that one page suits light and dark screens and print.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::series::{Bucket, Series};

/// Units of the drawing; a chart is about as wide on a screen.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 220.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 30.0;
const RIGHT: f64 = 14.0;
/// Width of a character of a label.
const CHAR: f64 = 6.6;
/// Number of points up to which each has a mark.
const MAX_MARKS: usize = 25;

/// A curve of a chart.
pub(super) struct Curve<'a> {
    /// Name in the legend.
    pub(super) name: &'a str,
    /// Number of the curve, from which its color and its dashes follow.
    pub(super) style: usize,
    pub(super) series: &'a Series,
}

/// A chart of curves over steps.
pub(super) struct Chart<'a> {
    pub(super) title: String,
    pub(super) curves: Vec<Curve<'a>>,
    /// Last step of the axis.
    pub(super) last_step: u64,
    /// Whether a logarithmic scale may be used.
    pub(super) may_be_log: bool,
    /// Step and value of the best evaluation.
    pub(super) best: Option<(u64, f64)>,
    /// Steps after which the run was resumed.
    pub(super) restarts: Vec<u64>,
    /// Whether the chart names its curves.
    pub(super) has_legend: bool,
}

impl Chart<'_> {
    /// The chart with its title and legend; nothing without values.
    pub(super) fn markup(&self) -> Markup {
        let ranges = self.curves.iter().filter_map(|curve| curve.series.range());
        let Some(range) = ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else { return html! {} };
        let y = Axis::new(range, 4, self.may_be_log, false);
        let x = Axis::new((0.0, self.last_step.max(1) as f64), 5, false, true);
        let labels: Vec<String> = y.ticks.iter().map(|tick| figure(*tick)).collect();
        let left = 10.0 + CHAR * labels.iter().map(String::len).max().unwrap_or(0) as f64;
        let at_x = |step: f64| left + x.share(step) * (WIDTH - left - RIGHT);
        let at_y = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - BOTTOM - TOP);
        let n_not_finite: u64 = self.curves.iter().map(|curve| curve.series.n_not_finite()).sum();
        let bottom = HEIGHT - BOTTOM;
        html! {
            figure.chart {
                figcaption {
                    b { (self.title) }
                    @if y.is_log() { span.note { "log scale" } }
                    @if self.has_legend && self.curves.len() > 1 {
                        @for curve in &self.curves { (legend_entry(curve.style, curve.name)) }
                    }
                }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(self.summary()) {
                    @for (tick, label) in y.ticks.iter().zip(&labels) {
                        line.grid x1=(tenth(left)) x2=(tenth(WIDTH - RIGHT)) y1=(tenth(at_y(*tick))) y2=(tenth(at_y(*tick))) {}
                        text.y x=(tenth(left - 6.0)) y=(tenth(at_y(*tick) + 4.0)) { (label) }
                    }
                    @for tick in x.ticks.iter().filter(|tick| tick.fract() == 0.0) {
                        line.grid x1=(tenth(at_x(*tick))) x2=(tenth(at_x(*tick))) y1=(bottom) y2=(bottom + 4.0) {}
                        text.x x=(tenth(at_x(*tick))) y=(bottom + 17.0) { (figure(*tick)) }
                    }
                    text.end x=(WIDTH - RIGHT) y=(HEIGHT - 2.0) { "steps" }
                    @for step in &self.restarts {
                        line.restart x1=(tenth(at_x(*step as f64))) x2=(tenth(at_x(*step as f64))) y1=(TOP) y2=(bottom) {
                            title { "resumed after step " (step) }
                        }
                    }
                    @for curve in &self.curves {
                        @let buckets = curve.series.buckets();
                        g class=(style(curve.style)) {
                            @if buckets.iter().any(|bucket| bucket.max > bucket.min) {
                                path.band d=(band(buckets, at_x, at_y)) {}
                            }
                            path.line d=(line(buckets, at_x, at_y)) {}
                            @if buckets.len() <= MAX_MARKS {
                                @for bucket in buckets {
                                    circle cx=(tenth(at_x(bucket.step()))) cy=(tenth(at_y(bucket.mean()))) r="2.5" {
                                        title { (curve.name) ", step " (figure(bucket.step())) ": " (figure(bucket.mean())) }
                                    }
                                }
                            }
                        }
                    }
                    @if let Some((step, value)) = self.best {
                        @let (cx, cy) = (at_x(step as f64), at_y(value));
                        @let is_right = cx > WIDTH * 0.6;
                        circle.best cx=(tenth(cx)) cy=(tenth(cy)) r="5" { title { "best: " (figure(value)) " after step " (step) } }
                        text class=(if is_right { "best end" } else { "best" })
                            x=(tenth(if is_right { cx - 9.0 } else { cx + 9.0 }))
                            y=(tenth(if cy < HEIGHT / 2.0 { cy + 18.0 } else { cy - 9.0 })) { "best " (figure(value)) }
                    }
                }
                @if n_not_finite > 0 {
                    p.note { (n_not_finite) (if n_not_finite == 1 { " value was" } else { " values were" }) " NaN or infinite; the curve has a gap there." }
                }
            }
        }
    }

    /// The chart in a sentence, for those who do not see it.
    fn summary(&self) -> String {
        let mut text = format!("{} over {} steps", self.title, self.last_step);
        for curve in &self.curves {
            if let (Some((low, high)), Some(last)) = (curve.series.range(), curve.series.last()) {
                let (low, high, last) = (figure(low), figure(high), figure(last));
                let _ = write!(text, "; {}: last {last}, from {low} to {high}", curve.name);
            }
        }
        text
    }
}

/// The sample and the name of a curve.
pub(super) fn legend_entry(number: usize, name: &str) -> Markup {
    html! {
        span.legend {
            svg class=(style(number)) viewBox="0 0 28 8" width="28" height="8" aria-hidden="true" { path.line d="M1 4H27" {} }
            (name)
        }
    }
}

/// Classes of the color and the dashes of a curve: 32 pairs.
fn style(number: usize) -> String {
    format!("s{} d{}", number % 8, (number + number / 8) % 4)
}

/// The mean of each bucket.
fn line(buckets: &[Bucket], at_x: impl Fn(f64) -> f64, at_y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (i, bucket) in buckets.iter().enumerate() {
        let command = if i == 0 || bucket.follows_gap { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {}", tenth(at_x(bucket.step())), tenth(at_y(bucket.mean())));
    }
    path
}

/// The area from the smallest to the largest value of each bucket.
fn band(buckets: &[Bucket], at_x: impl Fn(f64) -> f64, at_y: impl Fn(f64) -> f64) -> String {
    let upper = buckets.iter().map(|bucket| (bucket.step(), bucket.max));
    let lower = buckets.iter().rev().map(|bucket| (bucket.step(), bucket.min));
    let mut path = String::new();
    for (i, (step, value)) in upper.chain(lower).enumerate() {
        let command = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {}", tenth(at_x(step)), tenth(at_y(value)));
    }
    path + "Z"
}

/// A coordinate in tenths of a unit.
fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

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
pub(crate) fn figure(value: f64) -> String {
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
