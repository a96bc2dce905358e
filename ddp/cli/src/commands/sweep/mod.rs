//! `ddp-train sweep`: runs over values of config keys and seeds, side by side, and their comparison.
//!
//! Values -> points -> a run of each point and seed, a child process of this program -> their folders -> table and page. Folders are
//! all that it keeps: the same command again skips complete runs and resumes the others.

mod points;
mod record;
mod jobs;
mod result;
mod halving;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ddp::config::{Config, ConfigError, EvalSource, Length};
use ddp::exit_code;
use ddp::report::visible::shell_word;
use ddp::run_folder::FolderError;
use ddp::run_folder::folder::REPORT_FILE;
use ddp::train::stop_signals::StopSignals;
use ddp_comm::World;
use tracing::{info, warn};

use self::halving::Judges;
use self::jobs::Jobs;
use self::points::Points;
use self::result::Outcome;
use crate::cli::SweepArgs;
use crate::commands::bare_table;
use crate::commands::launch::TrainCommand;
use crate::commands::report::write_page;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::page::MAX_RUNS;
use crate::report::stdout::{count, print_result};

/// Folders of the complete runs of a sweep's best point; `None` if `folder` is not that of a sweep.
///
/// # Errors
/// [`CommandError::NoBest`].
pub(super) fn best_runs(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    record::best_runs(folder)
}

/// Trains all points and prints the table.
///
/// # Errors
/// The error of a key or value of any point, before a run starts; [`Stop::Reported`] if a run failed; [`Stop::Requested`].
pub fn sweep(world: &World, log: &Log, signals: &StopSignals, args: &SweepArgs) -> Result<(), Stop> {
    if let Some(launcher) = world.launcher() {
        return Err(CommandError::SweepUnderLauncher { launcher }.into());
    }
    let own = Config::load_with(args.run.file(), &args.run.overrides());
    if matches!(own, Err(ConfigError::GivenTwice { .. })) {
        // The runs would get the key by --set twice, and use the last value.
        own.map_err(Error::from)?;
    }
    let words = args.run.words_with(&[]).into_iter().map(OsString::from);
    let base = TrainCommand::parse(&words.chain(args.train.iter().cloned()).collect::<Vec<_>>())?;
    if let Some(flag) = base.args.flag_of_folder() {
        let why = "its runs have folders in --out, and are resumed there";
        return Err(CommandError::NotInSweep { key: flag, why }.into());
    }
    let mut overrides = base.args.run.overrides();
    overrides.sets.extend(args.folds.map(|of| points::fold(1, of)));
    let config = Config::load_with(base.args.run.file(), &overrides).map_err(Error::from)?;
    let points = Points::new(args, config.train.seed)?;
    points.notes.iter().for_each(|note| warn!("{note}"));
    let is_bare = base.args.run.names_rows() && config.data.eval == EvalSource::Unset;
    let bare = match args.prune {
        Some(_) if is_bare => Some(bare_table::load_config(world, &base.args.run, &overrides, None)?),
        None if is_bare && !base.args.run.plain => {
            info!(
                "each run chooses settings for these rows, which its config.toml lists (--plain: none of it)"
            );
            None
        }
        _ => None,
    };
    let mut judges = args.prune.map(|_| Judges::new(config.train.length, bare.as_ref()));
    points.check(&base.args.run, |config| judges.as_mut().map_or(Ok(()), |judges| judges.check(config)))?;
    let rungs =
        args.prune.map_or(Ok(Vec::new()), |factor| halving::rungs(&config, points.n, factor as usize))?;
    let holds_out = is_bare || config.data.holds_out();
    let jobs = Jobs::new(world, args, &base, points.share_rows(holds_out))?;
    let unwritable = |source| FolderError::Unwritable { path: args.out.clone(), source };
    std::fs::create_dir_all(&args.out).map_err(unwritable)?;
    // Runs of epochs alone are pruned.
    let (Length::Epochs(n_epochs) | Length::Steps(n_epochs)) = config.train.length;
    let decided = record::check_and_write(&args.out, &config, &points, &rungs)?;

    let (runs, of) = (count(points.runs.len(), "run"), count(points.n, "point"));
    let at_a_time = match jobs.n() {
        1 => "one".to_owned(),
        n => n.to_string(),
    };
    info!("{runs} of {of} in {}, {at_a_time} at a time", args.out.display());
    let terminal = log.terminal();
    let bar = terminal.takes_bar().then(|| terminal.show_bar(points.runs.len() as u64, 0, false, "runs"));
    let mut active: Vec<usize> = (0..points.runs.len()).collect();
    let mut pruned: Vec<(usize, u64)> = Vec::new();
    let mut failures = BTreeMap::new();
    let (mut stopped_by, mut is_unfinished) = (None, false);
    for rung in rungs.into_iter().map(Some).chain([None]) {
        let kept = match rung.and_then(|rung| decided.get(&rung)) {
            Some(names) => {
                active.iter().copied().filter(|run| names.contains(&points.runs[*run].name)).collect()
            }
            None => {
                let ended = jobs.train(signals, &points, &active, rung, bar.as_ref())?;
                // A run that failed before an earlier rung may have succeeded now.
                failures.retain(|run, _| !active.contains(run));
                failures.extend(ended.failures);
                stopped_by = ended.stopped_by;
                is_unfinished = active
                    .iter()
                    .any(|run| !failures.contains_key(run) && !jobs.is_done(&points.runs[*run], rung));
                let (Some(rung), Some(factor), false) = (rung, args.prune, is_unfinished) else { break };
                if active.iter().all(|run| failures.contains_key(run)) {
                    // The table names their errors.
                    break;
                }
                let kept = halving::best(&points, &args.out, &active, factor as usize)?;
                let names: Vec<String> = kept.iter().map(|run| points.runs[*run].name.clone()).collect();
                record::add_rung(&args.out, rung, &names)?;
                kept
            }
        };
        let rung = rung.expect("the last one ends the loop");
        info!("epoch {rung}: {} of {} continue", kept.len(), count(active.len(), "run"));
        pruned.extend(active.into_iter().filter(|run| !kept.contains(run)).map(|run| (run, rung)));
        active = kept;
    }
    drop(bar);
    let outcome = Outcome::new(&points, &args.out, failures, &pruned, n_epochs as u64);
    if let Some((best, grows)) = outcome.best_point() {
        // The table matters more.
        let _ = record::set_best(&args.out, &points, best, grows)
            .inspect_err(|error| warn!("the best point is not recorded for `predict`: {error}"));
    }
    let page = args.out.join(REPORT_FILE);
    let folders = outcome.folders(MAX_RUNS);
    let has_page = !folders.is_empty()
        && write_page(&folders, &page).inspect_err(|error| warn!("no page of the runs: {error}")).is_ok();
    let page = has_page.then_some(&*page);
    let next = args.folds.filter(|_| outcome.best_point().is_some()).map(|_| {
        let out = shell_word(&args.out);
        format!(
            "next: ddp-train predict {out} NEW_ROWS --out predictions.csv\nnext: ddp-train predict {out} --out-of-fold --out out_of_fold.csv\n"
        )
    });
    print_result(&if args.json { outcome.to_json(page) } else { outcome.to_text(&points, next, page) })?;
    match stopped_by.or(is_unfinished.then_some("a signal to a run")) {
        Some(signal) => {
            info!("stopped by {signal}\nhint: the same command continues the sweep");
            Err(Stop::Requested(signal.to_owned()))
        }
        None if outcome.has_failed() => Err(Stop::Reported(exit_code::FAILED)),
        None => Ok(()),
    }
}
