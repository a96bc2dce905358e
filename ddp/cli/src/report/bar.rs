//! A progress bar: one line of text that fits the terminal, whatever its width.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ddp::report::units::rate;

/// Columns of the bar itself, if there is room.
const MAX_BAR: usize = 30;
/// The bar is left out rather than drawn shorter than this.
const MIN_BAR: usize = 6;
/// Time over which the speed is averaged, in s.
const SPEED_AVERAGE_S: f64 = 5.0;

/// State of a progress bar.
#[derive(Debug)]
pub(crate) struct Bar {
    total: u64,
    position: Arc<AtomicU64>,
    /// Text after the bar.
    pub(crate) message: String,
    /// None for a bar whose message has the speed.
    speed: Option<Speed>,
}

/// Rows per second, averaged over the last seconds.
#[derive(Debug)]
struct Speed {
    /// Position and time of the last measurement; None before the first step.
    last: Option<(u64, Instant)>,
    /// Position at which the bar begins, in a resumed run.
    first: u64,
    per_s: Option<f64>,
}

/// The texts of a bar, before they are fitted to a width.
struct Texts<'a> {
    fraction: f64,
    speed: Option<String>,
    left: Option<String>,
    message: &'a str,
}

impl Bar {
    /// A bar over `total` rows, whose `position` is counted elsewhere.
    pub(crate) fn new(total: u64, position: Arc<AtomicU64>, has_speed: bool) -> Self {
        let first = position.load(Ordering::Relaxed);
        let speed = has_speed.then_some(Speed { last: None, first, per_s: None });
        Bar { total, position, message: String::new(), speed }
    }

    /// The bar at time `now`, in fewer than `width` columns.
    pub(crate) fn line(&mut self, width: usize, colours: bool, now: Instant) -> String {
        let position = self.position.load(Ordering::Relaxed);
        let per_s = self.speed.as_mut().and_then(|speed| speed.at(position, now));
        let left = per_s
            .filter(|per_s| *per_s > 0.0)
            .map(|per_s| format!("{} left", clock(self.total.saturating_sub(position) as f64 / per_s)));
        let texts = Texts {
            fraction: (position as f64 / self.total.max(1) as f64).min(1.0),
            speed: per_s.map(|per_s| format!("{} rows/s", rate(per_s))),
            left,
            message: &self.message,
        };
        texts.fit(width.saturating_sub(1), colours)
    }
}

impl Speed {
    fn at(&mut self, position: u64, now: Instant) -> Option<f64> {
        let Some((last, since)) = self.last else {
            if position > self.first {
                self.last = Some((position, now));
            }
            return None;
        };
        let elapsed_s = now.saturating_duration_since(since).as_secs_f64();
        if elapsed_s > 0.0 && position > last {
            let recent = (position - last) as f64 / elapsed_s;
            let weight = 1.0 - (-elapsed_s / SPEED_AVERAGE_S).exp();
            self.per_s = Some(self.per_s.map_or(recent, |per_s| per_s + weight * (recent - per_s)));
            self.last = Some((position, now));
        }
        self.per_s
    }
}

impl Texts<'_> {
    /// Fits the texts into `n_columns`: first the bar shrinks, then speed, time and bar are left out, then the message is cut.
    fn fit(mut self, n_columns: usize, colours: bool) -> String {
        let percent = format!("{:>3.0}%", (self.fraction * 100.0).floor());
        loop {
            let parts = [Some(percent.as_str()), self.speed.as_deref(), self.left.as_deref()];
            let parts = parts.into_iter().flatten().chain((!self.message.is_empty()).then_some(self.message));
            let text = parts.collect::<Vec<_>>().join("  ");
            let room = n_columns.saturating_sub(text.chars().count() + 1);
            if room >= MIN_BAR {
                return format!("{} {text}", self.bar(room.min(MAX_BAR), colours));
            }
            if self.speed.take().is_none() && self.left.take().is_none() {
                return cut(&text, n_columns);
            }
        }
    }

    fn bar(&self, n_columns: usize, colours: bool) -> String {
        let n_full = (self.fraction * n_columns as f64) as usize;
        let (full, rest) = ("█".repeat(n_full), "░".repeat(n_columns - n_full));
        if colours { format!("\x1b[36m{full}\x1b[34m{rest}\x1b[0m") } else { full + &rest }
    }
}

/// Cuts a text to `n_columns`.
fn cut(text: &str, n_columns: usize) -> String {
    if text.chars().count() <= n_columns {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(n_columns.saturating_sub(1)).collect();
    if n_columns > 0 {
        short.push('…');
    }
    short
}

/// Formats a time as `MM:SS`, `HH:MM:SS` or days.
fn clock(seconds: f64) -> String {
    // A billion seconds stand for "not to be foreseen".
    let seconds = Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{rest:02}"),
        1..48 => format!("{hours:02}:{minutes:02}:{rest:02}"),
        _ => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_done(message: &str) -> (Bar, Instant) {
        let position = Arc::new(AtomicU64::new(0));
        let mut bar = Bar::new(1_000_000, position.clone(), true);
        bar.message = message.to_owned();
        let start = Instant::now();
        for (rows, after_s) in [(100_000, 1), (500_000, 2)] {
            position.store(rows, Ordering::Relaxed);
            bar.line(80, false, start + Duration::from_secs(after_s));
        }
        (bar, start + Duration::from_secs(2))
    }

    #[test]
    fn fits_every_width() {
        for message in ["starting", "epoch 12/100, loss 0.5123", "epoch 1234567/2000000, loss 1.234e-12"] {
            let (mut bar, now) = half_done(message);
            for width in 1..200 {
                let line = bar.line(width, false, now);
                assert!(line.chars().count() < width, "{width}: {line}");
                if width >= 40 && message.len() < 30 {
                    assert!(
                        line.contains("50%") && line.contains('█') && line.contains(message),
                        "{width}: {line}"
                    );
                }
            }
            let colours = bar.line(120, true, now);
            assert!(colours.contains("\x1b[36m█") && colours.contains("\x1b[0m"), "{colours}");
        }
    }

    #[test]
    fn shows_speed_and_time_left() {
        let (mut bar, now) = half_done("epoch 1/2, loss 0.5000");
        assert_eq!(
            bar.line(100, false, now),
            "███████████████░░░░░░░░░░░░░░░  50%  400 000 rows/s  00:01 left  epoch 1/2, loss 0.5000"
        );
        assert_eq!(bar.line(40, false, now), "█████░░░░░  50%  epoch 1/2, loss 0.5000");
    }

    #[test]
    fn a_resumed_run_counts_its_own_rows_for_the_speed() {
        let position = Arc::new(AtomicU64::new(900));
        let mut bar = Bar::new(1000, position.clone(), true);
        let start = Instant::now();
        assert_eq!(bar.line(60, false, start), format!("{}{}  90%", "█".repeat(27), "░".repeat(3)));
        position.store(910, Ordering::Relaxed);
        bar.line(60, false, start + Duration::from_secs(1));
        position.store(930, Ordering::Relaxed);
        let line = bar.line(70, false, start + Duration::from_secs(2));
        assert!(line.ends_with(" 93%  20 rows/s  00:03 left"), "{line}");
    }

    #[test]
    fn times_are_readable() {
        assert_eq!([clock(0.4), clock(61.0), clock(3661.0)], ["00:00", "01:01", "01:01:01"]);
        assert_eq!([clock(864_000.0), clock(f64::INFINITY)], ["10 days", "11574 days"]);
    }
}
