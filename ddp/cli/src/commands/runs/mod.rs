//! `ddp-train runs`: lists, compares and shows runs by what their folders hold, whatever has become of them.

mod summary;
mod show;
mod diff;

use std::fs;
use std::path::{Path, PathBuf};

use ddp::report::metrics::json_line;
use ddp::run_folder::folder::{CONFIG_FILE, METRICS_FILE};
use ddp_comm::World;

pub(crate) use self::summary::{STOP_AFTER_EPOCHS, Summary};
use crate::cli::{RunsCommand, RunsLsArgs};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::page::record::Record;
use crate::report::stdout::{print_result, table};

/// Points of a curve: only its last one counts.
const MAX_POINTS: usize = 2;

/// Runs the command on rank 0.
///
/// # Errors
/// [`CommandError::NoRun`] for a folder that holds no run; [`CommandError::NoRuns`] for one that can't be listed.
pub fn runs(world: &World, command: &RunsCommand) -> Result<(), Stop> {
    let run = || match command {
        RunsCommand::Ls(args) => list(args),
        RunsCommand::Diff(args) => diff::diff(args),
        RunsCommand::Show(args) => show::show(args),
    };
    let is_first = world.rank().0 == 0;
    Ok(world.collective_result(if is_first { run() } else { Ok(()) })?)
}

/// Reads the run in a folder that the user named.
fn read(path: &Path) -> Result<Record> {
    let no_run = |source| CommandError::NoRun { path: path.to_owned(), source };
    Ok(Record::read(path, MAX_POINTS).map_err(no_run)?)
}

fn list(args: &RunsLsArgs) -> Result<()> {
    let runs: Vec<Summary> = folders(&args.folder)?.iter().map(|path| Summary::read(path)).collect();
    if args.json {
        return Ok(runs.iter().try_for_each(|run| print_result(&json_line(run)))?);
    }
    if runs.is_empty() {
        return Ok(print_result(&format!("no runs in {}\n", args.folder.display()))?);
    }
    Ok(print_result(&table(&Summary::TITLES, &runs.iter().map(Summary::cells).collect::<Vec<_>>()))?)
}

/// The folders of runs in `folder`, by name, or itself if it is one.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_run = |path: &Path| [METRICS_FILE, CONFIG_FILE].iter().any(|file| path.join(file).exists());
    if is_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let unreadable = |source| CommandError::NoRuns { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut runs: Vec<_> = entries.map_err(unreadable)?.into_iter().map(|entry| entry.path()).collect();
    runs.retain(|path| is_run(path));
    runs.sort();
    Ok(runs)
}
