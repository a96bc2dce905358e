//! Arguments of `ddp-train trace` and `stacks`, which ask a running job, and of the trace of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::few_flags::seconds;

/// Most steps of a trace: rank 0 holds the slices of all ranks.
const MAX_STEPS: u64 = 10_000;

/// `ddp-train trace`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The run takes the request within a second and traces its next steps on all ranks; https://ui.perfetto.dev and chrome://tracing open the file.
For example: `ddp-train trace runs/a --steps 50`. `ddp-train train --trace 10..20` traces steps from the start of a run.")]
pub struct TraceArgs {
    /// Folder of a running job
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// Steps to trace
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=MAX_STEPS))]
    pub steps: u64,

    /// Output file [default: steps-FIRST-LAST.json in the folder traces of RUN]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Seconds to wait for the trace
    #[arg(long, value_name = "S", default_value_t = 300.0, value_parser = seconds)]
    pub timeout: f64,
}

/// `ddp-train stacks`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Rank 0 answers from its watchdog's thread, also while the ranks hang. For example: `ddp-train stacks runs/a --json`.")]
pub struct StacksArgs {
    /// Folder of a running job
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// Seconds to wait for the answer
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub timeout: f64,

    /// Print the places as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The limit in seconds as a duration.
pub(crate) fn limit(timeout: f64) -> Duration {
    Duration::from_secs_f64(timeout)
}

/// The first and the last step of `FIRST..LAST`, or of `steps=FIRST..LAST`.
pub(super) fn step_range(text: &str) -> Result<(u64, u64), String> {
    let range = text.strip_prefix("steps=").unwrap_or(text).split_once("..");
    let number = |text: &str| text.parse::<u64>().ok();
    match range.and_then(|(first, last)| Some((number(first)?, number(last)?))) {
        Some((first, last)) if first >= 1 && first <= last && last - first < MAX_STEPS => Ok((first, last)),
        _ => Err(format!(
            "expected the first and the last step, at most {MAX_STEPS} of them\nhint: for example --trace 10..20"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_steps_holds_both_ends() {
        assert_eq!(step_range("10..20"), Ok((10, 20)));
        assert_eq!(step_range("steps=7..7"), Ok((7, 7)));
        for bad in ["", "10", "0..3", "5..4", "a..b", "1..20000", "..9", "1...3"] {
            assert!(step_range(bad).is_err(), "{bad}");
        }
    }
}
