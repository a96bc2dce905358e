//! `ddp-train report`: the page of a run, or of several over each other.

use std::io;
use std::path::{Path, PathBuf};

use ddp::run_folder::folder::REPORT_FILE;
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::user_file::read_regular;
use ddp_comm::World;

use crate::cli::ReportArgs;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::page::{self, MAX_RUNS};
use crate::report::stdout::print_result;

/// Makes the page on rank 0 and prints its path.
///
/// # Errors
/// [`CommandError::NoRun`], [`CommandError::TooManyRuns`], [`CommandError::NoPage`]; the error of the write.
pub fn report(world: &World, args: &ReportArgs) -> Result<(), Stop> {
    let is_first = world.rank().0 == 0;
    Ok(world.collective_result(if is_first { write(args) } else { Ok(()) })?)
}

fn write(args: &ReportArgs) -> Result<()> {
    if args.runs.len() > MAX_RUNS {
        return Err(CommandError::TooManyRuns { got: args.runs.len(), max: MAX_RUNS }.into());
    }
    let out = match (&args.out, &args.runs[..]) {
        (Some(out), _) => out.clone(),
        (None, [run]) => run.join(REPORT_FILE),
        (None, _) => PathBuf::from(REPORT_FILE),
    };
    write_page(&args.runs, &out)?;
    Ok(print_result(&format!("{}\n", out.display()))?)
}

/// Writes the page of `runs` to `out`, in place of an earlier page.
///
/// # Errors
/// [`CommandError::NoRun`], [`CommandError::NoPage`]; the error of the write.
pub(super) fn write_page(runs: &[PathBuf], out: &Path) -> Result<()> {
    check_out(out)?;
    let page = page::make(runs).map_err(|(path, source)| CommandError::NoRun { path, source })?;
    Ok(write_atomic(out, page.as_bytes())?)
}

/// Refuses to replace anything but a page.
fn check_out(out: &Path) -> Result<(), CommandError> {
    match read_regular(out, page::MARK.len() as u64) {
        Ok(old) if old != page::MARK.as_bytes() => Err(CommandError::NoPage { path: out.to_owned() }),
        Err(error) if error.kind() != io::ErrorKind::NotFound && out.exists() => {
            Err(CommandError::NoPage { path: out.to_owned() })
        }
        _ => Ok(()),
    }
}
