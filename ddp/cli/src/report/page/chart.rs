//! Line charts as SVG, colored by the classes of `style.css`, so that one page suits light and dark screens and print.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::axis::{Axis, figure};
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
