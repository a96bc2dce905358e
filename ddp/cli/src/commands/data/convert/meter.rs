//! Reports progress and speed of a conversion on stderr.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp::report::units::rate;
use tracing::info;

use crate::report::log::{ShownBar, Terminal};
use crate::report::progress::ProgressChoice;

/// Interval between two progress lines.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// Length of the bar.
const LEN: u64 = 1000;

/// Counts rows and time.
pub(super) struct Meter {
    view: View,
    started: Instant,
}

enum View {
    None,
    Plain { last: Instant },
    Bar(ShownBar),
}

impl Meter {
    pub(super) fn new(choice: ProgressChoice, terminal: &Arc<Terminal>) -> Self {
        let started = Instant::now();
        let view = match choice {
            ProgressChoice::None => View::None,
            _ if choice.may_have_bar() && terminal.takes_bar() => {
                View::Bar(terminal.show_bar(LEN, 0, false, "starting"))
            }
            _ => View::Plain { last: started },
        };
        Meter { view, started }
    }

    /// Reports nothing.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Meter { view: View::None, started: Instant::now() }
    }

    /// Reports that `n_rows` rows of `n_bytes` bytes were written; `fraction` is the progress, if known.
    pub(super) fn advance(&mut self, n_rows: usize, n_bytes: usize, fraction: Option<f64>) {
        match &mut self.view {
            View::None => {}
            View::Plain { last } => {
                if last.elapsed() >= BETWEEN_LINES {
                    *last = Instant::now();
                    let part = fraction.map_or(String::new(), |part| format!("{:.0} %  ", part * 100.0));
                    info!("{part}{}", speed(n_rows, n_bytes, self.started));
                }
            }
            View::Bar(bar) => {
                if let Some(part) = fraction {
                    bar.set_position((part * LEN as f64) as u64);
                }
                bar.set_message(&speed(n_rows, n_bytes, self.started));
            }
        }
    }

    /// The summary of the conversion.
    pub(super) fn end(&self, n_rows: usize, n_files: usize, n_bytes: u64) -> String {
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let mb = n_bytes as f64 / 1e6;
        let files = if n_files == 1 { "file" } else { "files" };
        format!(
            "{} rows in {n_files} {files}, {mb:.1} MB in {elapsed_s:.2} s, {:.1} MB/s",
            rate(n_rows as f64),
            mb / elapsed_s.max(1e-9)
        )
    }
}

fn speed(n_rows: usize, n_bytes: usize, started: Instant) -> String {
    let elapsed_s = started.elapsed().as_secs_f64().max(1e-9);
    let (rows_per_s, mb_per_s) = (n_rows as f64 / elapsed_s, n_bytes as f64 / 1e6 / elapsed_s);
    format!("{} rows  {} samples/s  {mb_per_s:.1} MB/s", rate(n_rows as f64), rate(rows_per_s))
}
