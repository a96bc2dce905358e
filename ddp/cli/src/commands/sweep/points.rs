//! The points of a sweep: all combinations of grids, with each random draw of ranges, and the runs of each by seed.

use std::collections::{BTreeMap, BTreeSet};

use ddp::config::Config;
use ddp_kernels::Philox;
use ddp_tables::SourceSpec;
use ddp_tables::table::filter_of;

use crate::cli::{RunConfigArgs, SweepArgs};
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::report::stdout::count;

/// Key of the seed.
const SEED: &str = "train.seed";
/// Key of the fold.
const FOLD: &str = "data.fold";
/// Most draws of a point that is there already.
const MAX_DRAWS: u32 = 10_000;
/// Longest name of a folder, in bytes.
const MAX_NAME: usize = 120;

/// The points and their runs.
#[derive(Debug)]
pub(super) struct Points {
    /// Number of points.
    pub(super) n: usize,
    /// The runs, grouped by point.
    pub(super) runs: Vec<Run>,
    /// Values that are there once although they were given more often.
    pub(super) notes: Vec<String>,
}

/// A run of a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Name of its folder.
    pub(super) name: String,
    /// Number of its point.
    pub(super) point: usize,
    /// Keys and values of the point, without seed and fold.
    pub(super) values: Vec<(String, String)>,
    pub(super) seed: u64,
    /// Its fold, and the number of folds.
    pub(super) fold: Option<(u64, u64)>,
}

/// Argument of `--set` for a fold.
pub(super) fn fold(number: u64, of: u64) -> String {
    format!("{FOLD}={number}/{of}")
}

impl Run {
    /// Arguments of `--set`.
    pub(super) fn sets(&self) -> Vec<String> {
        let sets = self.values.iter().map(|(key, value)| format!("{key}={value}"));
        let fold = self.fold.map(|(number, of)| fold(number, of));
        sets.chain([format!("{SEED}={}", self.seed)]).chain(fold).collect()
    }
}

impl Points {
    /// The points that `args` name; their seeds begin with `seed`.
    ///
    /// # Errors
    /// [`CommandError::KeyTwice`].
    pub(super) fn new(args: &SweepArgs, seed: u64) -> Result<Self, CommandError> {
        let keys: Vec<&String> =
            args.grid.iter().map(|grid| &grid.key).chain(args.range.iter().map(|range| &range.key)).collect();
        let fold = args.folds.map(|_| FOLD);
        let used: Vec<&str> = keys.iter().map(|key| key.as_str()).chain([SEED]).chain(fold).collect();
        if let Some(key) =
            (1..used.len()).find(|i| used[..*i].contains(&used[*i])).map(|i| used[i].to_owned())
        {
            return Err(CommandError::KeyTwice { key });
        }
        let mut points = draws(args);
        let mut notes = Vec::new();
        if let Some(n) = args.random.filter(|n| *n > points.len()) {
            let found = count(points.len(), "distinct point");
            notes.push(format!("--random {n}: the ranges have {found}, and each is trained once"));
        }
        for grid in &args.grid {
            let (distinct, repeated) = distinct(&grid.values);
            let repeated = repeated.iter().map(|value| {
                format!("--grid {}: {} equals a value before it, and is left out", grid.key, value.trim())
            });
            notes.extend(repeated);
            let with = |point: &Vec<(String, String)>| {
                let values = distinct.iter().map(|value| (grid.key.clone(), (*value).clone()));
                values.map(|pair| [&point[..], &[pair]].concat()).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(with).collect();
        }
        let mut runs = Vec::new();
        for (point, values) in points.iter().enumerate() {
            for seed in (0..args.seeds as u64).map(|i| seed.wrapping_add(i)) {
                let folds =
                    args.folds.map_or(vec![None], |of| (1..=of).map(|fold| Some((fold, of))).collect());
                let run = |fold| Run { name: String::new(), point, values: values.clone(), seed, fold };
                runs.extend(folds.into_iter().map(run));
            }
        }
        let mut points = Points { n: points.len(), runs, notes };
        points.set_names(&keys);
        Ok(points)
    }

    /// Whether some runs have the same rows, each divided in the same way; `holds_out` says that the seed draws evaluation rows.
    pub(super) fn share_rows(&self, holds_out: bool) -> bool {
        let of_data = |run: &Run| {
            let values = run.values.iter().filter(|(key, _)| key.starts_with("data."));
            (values.cloned().collect::<Vec<_>>(), run.fold, holds_out.then_some(run.seed))
        };
        let distinct: BTreeSet<_> = self.runs.iter().map(of_data).collect();
        distinct.len() < self.runs.len()
    }

    /// Names the folders by values, so that they stay the same when values are added. A hash tells texts apart of which a name lacks characters.
    fn set_names(&mut self, keys: &[&String]) {
        let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
        let short = |key: &str| {
            let is_single = keys.iter().filter(|of| last(of) == last(key)).count() == 1;
            if is_single { last(key) } else { key.to_owned() }
        };
        let is_plain_of = |run: &Run| run.values.iter().all(|(_, value)| is_plain(value));
        let mut n_of_name: BTreeMap<String, usize> = BTreeMap::new();
        for run in &mut self.runs {
            let parts =
                run.values.iter().map(|(key, value)| format!("{}={}", plain(&short(key)), plain(value)));
            let fold = run.fold.map(|(number, of)| format!("fold={number}-{of}"));
            let seed = format!("seed={}", run.seed);
            run.name = parts.chain([seed]).chain(fold).collect::<Vec<_>>().join(",");
            if is_plain_of(run) {
                *n_of_name.entry(run.name.clone()).or_default() += 1;
            }
        }
        for run in &mut self.runs {
            if !is_plain_of(run) || n_of_name[&run.name] > 1 || run.name.len() > MAX_NAME {
                let hash =
                    crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(run.sets().join("\n").as_bytes());
                run.name.truncate(MAX_NAME - 9);
                run.name += &format!("-{hash:08x}");
            }
        }
    }

    /// Builds the config of every run and checks it also by `judge`, so that a wrong key or value is refused before the first one starts.
    ///
    /// # Errors
    /// [`ddp::Error::Config`]; [`CommandError::NotInSweep`]; [`CommandError::JudgedByTwo`]; [`CommandError::JudgedByLosses`]; errors of `judge`.
    pub(super) fn check(
        &self,
        base: &RunConfigArgs,
        mut judge: impl FnMut(&Config) -> Result<()>,
    ) -> Result<()> {
        let mut first: Option<String> = None;
        let mut first_loss = None;
        for run in &self.runs {
            let mut overrides = base.overrides();
            overrides.sets.extend(run.sets());
            let config = Config::load_with(base.file(), &overrides)?;
            filter_of(&SourceSpec::train(&config.data)).map_err(Error::from)?;
            if config.train.stop_after_steps.or(config.train.stop_after_epochs).is_some() {
                let why = "no run would be complete";
                return Err(CommandError::NotInSweep { key: "train.stop_after_steps or _epochs", why }.into());
            }
            judge(&config)?;
            let metric = config.checkpoint.keep_best.as_ref().unwrap_or(&config.train.early_stop_metric);
            let other = metric.to_string();
            let first = first.get_or_insert_with(|| other.clone());
            if *first != other {
                return Err(CommandError::JudgedByTwo { first: first.clone(), other }.into());
            }
            let loss = (config.loss.clone(), config.data.normalize_target);
            if other.ends_with("eval_loss") && *first_loss.get_or_insert_with(|| loss.clone()) != loss {
                return Err(CommandError::JudgedByLosses { metric: other }.into());
            }
        }
        Ok(())
    }
}

/// Values of the ranges for each random point; one point without values where there are none. Points are distinct, and fewer than asked
/// where the ranges have no more.
fn draws(args: &SweepArgs) -> Vec<Vec<(String, String)>> {
    let random = Philox::new(args.random_seed);
    // By point and range, so that more points leave the first ones as they are.
    let of = |point: usize, attempt: u32| -> Vec<(String, String)> {
        let ranges = args.range.iter().zip(0_u32..);
        let draw = |range: u32| {
            let word = random.block([point as u32, range, attempt, 0])[0];
            f64::from(word) / (f64::from(u32::MAX) + 1.0)
        };
        ranges.map(|(range, number)| (range.key.clone(), range.at(draw(number)))).collect()
    };
    let mut drawn = BTreeSet::new();
    // A point that is there already is drawn again.
    let new = |point| (0..MAX_DRAWS).map(|attempt| of(point, attempt)).find(|of| drawn.insert(of.clone()));
    (0..args.random.unwrap_or(1)).map_while(new).collect()
}

/// The values that equal none before them, as numbers, lists or texts, and the others.
fn distinct(values: &[String]) -> (Vec<&String>, Vec<&String>) {
    let mut seen = Vec::new();
    values.iter().partition(|value| {
        let value = meaning(value);
        let is_new = !seen.contains(&value);
        seen.extend(is_new.then_some(value));
        is_new
    })
}

/// A typed value without the ways to write it: `1e-3` is `0.001`, and `[64, 8]` is `[64,8]`.
fn meaning(text: &str) -> toml::Value {
    let parsed = format!("value = {text}").parse::<toml::Table>().ok();
    let value = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    match value.unwrap_or_else(|| toml::Value::String(text.trim().to_owned())) {
        // Exact, or not a number that a setting has.
        toml::Value::Integer(number) if number.unsigned_abs() < 1 << 53 => toml::Value::Float(number as f64),
        value => value,
    }
}

/// Whether no other value of its key has the same [`plain`] text: a word or number, or a list of numbers.
fn is_plain(value: &str) -> bool {
    let word = value.trim().trim_matches(['"', '\'']);
    let of_numbers = |c: char| c.is_ascii_digit() || "eE+-., ".contains(c);
    let list = value.trim().strip_prefix('[').and_then(|list| list.strip_suffix(']'));
    plain(word) == word || list.is_some_and(|list| list.chars().all(of_numbers))
}

/// A key or value as part of a file name, in ASCII.
fn plain(value: &str) -> String {
    let kept: String = value.chars().filter(|c| !"[]\"' {}".contains(*c)).collect();
    kept.replace(|c: char| !(c.is_ascii_alphanumeric() || "._+-=".contains(c)), "-")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn points(line: &str) -> Result<Points, CommandError> {
        let words = format!("ddp-train sweep --out o {line}");
        match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Command::Sweep(args) => Points::new(&args, 7),
            other => panic!("{other:?}"),
        }
    }

    fn names(line: &str) -> Vec<String> {
        points(line).unwrap().runs.into_iter().map(|run| run.name).collect()
    }

    #[test]
    fn runs_share_rows_that_are_divided_alike() {
        let share = |line: &str, holds_out| points(line).unwrap().share_rows(holds_out);
        assert!(share("--grid optimizer.lr=1e-4,3e-4", true));
        assert!(share("--seeds 2", false) && !share("--seeds 2", true));
        assert!(!share("--folds 3", false));
        assert!(!share("--grid data.drop=[\"a\"],[\"b\"]", false));
        assert!(share("--grid data.drop=[\"a\"],[\"b\"] --grid optimizer.lr=1e-4,3e-4", true));
    }

    #[test]
    fn grids_are_combined_and_folders_named_after_values() {
        let line = "--grid optimizer.lr=1e-4,3e-4 --grid model.hidden=[64],[128,64] --seeds 2";
        let all = points(line).unwrap();
        assert_eq!((all.n, all.runs.len(), all.runs[3].point), (4, 8, 1));
        assert_eq!(all.runs[3].sets(), ["optimizer.lr=1e-4", "model.hidden=[128,64]", "train.seed=8"]);
        let want = ["lr=1e-4,hidden=64,seed=7", "lr=1e-4,hidden=64,seed=8", "lr=1e-4,hidden=128-64,seed=7"];
        assert_eq!(names(line)[..3], want);
        assert_eq!(names("--grid a.x=1 --grid b.x=2"), ["a.x=1,b.x=2,seed=7"]);
        assert_eq!(names("--seeds 2"), ["seed=7", "seed=8"]);
        // Whatever the other values are.
        let of_texts = ["\"a/b\"", "\"a-b\"", "[\"a\",\"b\"]", "[\"a-b\"]", "\"a>b\"", "\"a<b\""];
        let alone = of_texts.map(|text| names(&format!("--grid data.drop={text}")).remove(0));
        assert_eq!(names(&format!("--grid data.drop={}", of_texts.join(","))), alone);
        assert_eq!(alone.iter().collect::<BTreeSet<_>>().len(), of_texts.len());
        assert!(alone[1] == "drop=a-b,seed=7" && alone.iter().all(|name| name.starts_with(&alone[1])));
        assert!(names(&format!("--grid a.b={}", "x".repeat(300)))[0].len() <= MAX_NAME);
    }

    #[test]
    fn random_points_are_the_same_each_time_and_stay_when_more_are_drawn() {
        let line = "--range optimizer.lr=1e-5..1e-1:log --grid model.hidden=[8],[16] --random";
        let (three, five) = (names(&format!("{line} 3")), names(&format!("{line} 5")));
        assert_eq!((three.len(), five.len()), (6, 10));
        assert_eq!(three, five[..6]);
        assert_ne!(three[0], three[2]);
        assert_ne!(three, names(&format!("{line} 3 --random-seed 1")));
    }

    #[test]
    fn a_point_is_trained_once_however_often_it_is_drawn_or_given() {
        let all = points("--random 2 --range train.batch_size=31..32 --random-seed 3").unwrap();
        let mut values: Vec<_> = all.runs.iter().map(|run| run.values[0].1.clone()).collect();
        values.sort();
        assert_eq!((values, all.notes), (vec!["31".to_owned(), "32".to_owned()], vec![]));
        let all = points("--random 5 --range train.batch_size=31..33 --seeds 2").unwrap();
        assert_eq!((all.n, all.runs.len()), (3, 6));
        assert_eq!(all.notes, ["--random 5: the ranges have 3 distinct points, and each is trained once"]);
        let all =
            points("--grid optimizer.lr=1e-3,1e-2,0.001 --grid model.hidden=[8],[08],[8.0],[8]").unwrap();
        assert_eq!((all.n, all.runs[0].name.as_str()), (6, "lr=1e-3,hidden=8,seed=7"));
        assert_eq!(
            all.notes,
            [
                "--grid optimizer.lr: 0.001 equals a value before it, and is left out",
                "--grid model.hidden: [8] equals a value before it, and is left out"
            ]
        );
        let mut names: Vec<_> = all.runs.iter().map(|run| &run.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn folds_are_runs_of_each_point_and_seed() {
        let all = points("--grid optimizer.lr=1,2 --seeds 2 --folds 3").unwrap();
        assert_eq!((all.n, all.runs.len()), (2, 12));
        assert_eq!(all.runs[4].sets(), ["optimizer.lr=1", "train.seed=8", "data.fold=2/3"]);
        assert_eq!(all.runs[4].name, "lr=1,seed=8,fold=2-3");
    }

    #[test]
    fn a_key_is_named_once() {
        for line in [
            "--grid a.b=1 --grid a.b=2",
            "--grid data.fold=1/2 --folds 2",
            "--grid train.seed=1,2",
            "--grid a.b=1 --random 1 --range a.b=1..2",
        ] {
            assert!(matches!(points(line), Err(CommandError::KeyTwice { .. })), "{line}");
        }
    }
}
