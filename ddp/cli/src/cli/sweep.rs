//! Arguments of `ddp-train sweep`, and the values that its flags name.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{RunConfigArgs, count, local_path};

/// `ddp-train sweep`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Each point is a run of this program in `--out`, named after its values; points that are complete are skipped, and those that were interrupted \
continue. SIGINT or SIGTERM lets the runs save a checkpoint and end; the same command goes on. A run that fails does not stop the others.\n\
For example: `ddp-train sweep run.toml --grid optimizer.lr=1e-4,1e-3 --grid model.hidden=[64],[128,64] --seeds 3 --out sweeps/a`, \
`ddp-train sweep run.toml --random 20 --range optimizer.lr=1e-5..1e-1:log --out sweeps/b -- --device cpu`.\n\
Exit status: 0 if all points are complete, 1 if a run failed, 85 if a signal stopped the sweep or a run.")]
pub struct SweepArgs {
    /// Config or data of the runs.
    #[command(flatten)]
    pub run: RunConfigArgs,

    /// Values of a key of the config; may be repeated for all combinations of several keys
    #[arg(long, value_name = "KEY=VALUE,VALUE,...", value_parser = grid, action = ArgAction::Append)]
    pub grid: Vec<Grid>,

    /// Random points in the ranges of --range, each with all combinations of --grid
    #[arg(long, value_name = "N", value_parser = count, requires = "range")]
    pub random: Option<usize>,

    /// Range of a key for --random; `:log` draws evenly in the logarithm, and whole numbers give whole numbers
    #[arg(long, value_name = "KEY=LOW..HIGH[:log]", value_parser = range, requires = "random", action = ArgAction::Append)]
    pub range: Vec<Range>,

    /// Seed of the random points
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    pub random_seed: u64,

    /// Runs of each point, with seeds from `train.seed` on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub seeds: usize,

    /// Runs of each point and seed, one for each fold of a cross-validation: `data.fold` from 1/K to K/K
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub folds: Option<u64>,

    /// Train all points for a part of their epochs and continue with the best one in N, several times, so that one trains to the end. The same
    /// bits as without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..), num_args = 0..=1, require_equals = true, default_missing_value = "3")]
    pub prune: Option<u64>,

    /// Runs at a time; each has GPUs, or threads, of its own [default: as many as there are GPUs for, or 1]
    #[arg(long, value_name = "K", value_parser = count)]
    pub jobs: Option<usize>,

    /// Ranks of each run, started by `ddp-train launch`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub ranks: usize,

    /// Folder of the runs
    #[arg(long, value_name = "DIR", value_parser = local_path())]
    pub out: PathBuf,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Further flags of `ddp-train train` for each run
    #[arg(last = true, value_name = "FLAGS OF TRAIN")]
    pub train: Vec<OsString>,
}

/// Values of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Key with its section.
    pub key: String,
    /// Values as typed.
    pub values: Vec<String>,
}

/// Bounds of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// Key with its section.
    pub key: String,
    /// Lowest value.
    pub low: f64,
    /// Highest value.
    pub high: f64,
    /// Whether the logarithm is even.
    pub is_log: bool,
    /// Whether only whole numbers are drawn.
    pub is_whole: bool,
}

impl Range {
    /// The value at `share` from 0 to 1 between the bounds, with four digits.
    pub fn at(&self, share: f64) -> String {
        let Range { low, high, is_log, is_whole, .. } = *self;
        // Each whole number has a share of the same length.
        let (low, high) = if is_whole { (low, high + 1.0) } else { (low, high) };
        let value = if is_log { low * (high / low).powf(share) } else { low + (high - low) * share };
        let rounded =
            if is_whole { format!("{:.0}", value.floor().min(self.high)) } else { format!("{value:.3e}") };
        let is_within = rounded.parse().is_ok_and(|rounded| (self.low..=self.high).contains(&rounded));
        if is_within { rounded } else { format!("{value:e}") }
    }
}

fn grid(text: &str) -> Result<Grid, String> {
    let bad = || "expected KEY=VALUE,VALUE,...\nhint: for example optimizer.lr=1e-4,1e-3".to_owned();
    let (key, values) = text.split_once('=').ok_or_else(bad)?;
    let values = split_values(values);
    let is_empty = key.is_empty() || values.iter().any(|value| value.trim().is_empty());
    if is_empty { Err(bad()) } else { Ok(Grid { key: key.to_owned(), values }) }
}

/// Splits at the commas outside of brackets and quotes.
fn split_values(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0_usize, None);
    for c in text.chars() {
        match (c, quote) {
            (',', None) if depth == 0 => {
                values.push(String::new());
                continue;
            }
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth = depth.saturating_sub(1),
            ('"' | '\'', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            _ => {}
        }
        values.last_mut().into_iter().for_each(|value| value.push(c));
    }
    values
}

fn range(text: &str) -> Result<Range, String> {
    let bad = || {
        "expected KEY=LOW..HIGH or KEY=LOW..HIGH:log\nhint: for example optimizer.lr=1e-5..1e-2:log"
            .to_owned()
    };
    let (key, bounds) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(bad)?;
    let (bounds, is_log) = bounds.strip_suffix(":log").map_or((bounds, false), |bounds| (bounds, true));
    let (low, high) = bounds.split_once("..").ok_or_else(bad)?;
    let is_whole = low.parse::<i64>().is_ok() && high.parse::<i64>().is_ok();
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low < high && (low > 0.0 || !is_log) => {
            Ok(Range { key: key.to_owned(), low, high, is_log, is_whole })
        }
        (Some(_), Some(_)) => Err("expected LOW below HIGH, and above 0 with :log".to_owned()),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_split_outside_of_brackets_and_quotes() {
        let values = |text: &str| grid(text).unwrap().values;
        assert_eq!(values("optimizer.lr=1e-4,3e-4"), ["1e-4", "3e-4"]);
        assert_eq!(values("model.hidden=[64],[128,64]"), ["[64]", "[128,64]"]);
        assert_eq!(values("name=\"a,b\",c"), ["\"a,b\"", "c"]);
        for bad in ["lr", "=1", "lr=", "lr=1,,2"] {
            assert!(grid(bad).unwrap_err().contains("hint: "), "{bad}");
        }
    }

    #[test]
    fn ranges_hold_their_bounds() {
        let lr = range("optimizer.lr=1e-5..1e-1:log").unwrap();
        assert_eq!([0.0, 0.5, 1.0].map(|share| lr.at(share)), ["1.000e-5", "1.000e-3", "1.000e-1"]);
        let below_one = range("optimizer.beta2=0.99951..0.99996").unwrap();
        assert_eq!(
            [0.0, 0.5, 0.999].map(|share| below_one.at(share).parse::<f64>().unwrap() < 1.0),
            [true; 3]
        );
        let whole = range("train.batch_size=1..4").unwrap();
        assert_eq!([0.0, 0.3, 0.99, 1.0].map(|share| whole.at(share)), ["1", "2", "4", "4"]);
        for bad in ["lr=1..1", "lr=0..1:log", "lr=1", "lr=a..b", "=1..2"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
