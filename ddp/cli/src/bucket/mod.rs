//! Results in a bucket: a run whose `--out` is an address works in a private folder of this host, its home, which is mirrored there.
//!
//! ```text
//! <address>/.owner        who writes the run; renewed while it runs, so that no two runs share an address
//! <address>/...           the files of the run folder, under their names
//! <address>/checkpoints/step-<N>/manifest.json    written last, if there is none: a checkpoint is there whole or not at all
//! ```
//!
//! No step waits for the bucket; start and end of the run do. The run continues on any host: its files and the newest checkpoint are
//! fetched first, unless the home has a newer one of the same run.

mod owner;
mod mirror;
mod home;

use std::path::PathBuf;

use ddp::data::error::DataError;
use ddp::run_folder::folder::REPORT_FILE;
use ddp::run_folder::run_id;
use ddp::train::resume::ResumeFrom;
use ddp_comm::World;
use ddp_tables::open::remote::{self, Bucket, If, Take};

pub(crate) use self::home::{BucketRun, shown};
pub(crate) use self::mirror::Mirror;
use crate::cli::{CheckpointCommand, Command, RunsCommand, TrainArgs};
use crate::error::Error;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Fetches the runs in buckets that a command reads and that only rank 0 reads, and puts their copies in place of the addresses.
/// Collective.
///
/// # Errors
/// Errors of the stores.
pub fn fetch_runs(world: &World, command: &mut Command) -> Result<(), Stop> {
    let fetch = |(path, take): (&mut PathBuf, Take)| {
        *path = remote::local_run(path, take)?;
        Ok(())
    };
    if let Command::Checkpoint(CheckpointCommand::Prune(args)) = command
        && args.path.to_str().is_some_and(remote::is_address)
    {
        return Err(CommandError::BucketPrune { path: args.path.clone() }.into());
    }
    if let Command::Report(args) = command
        && args.out.is_none()
        && args.runs.iter().any(|run| run.to_str().is_some_and(remote::is_address))
    {
        args.out = Some(REPORT_FILE.into());
    }
    let fetched = match world.rank().0 {
        0 => runs_of(command).into_iter().try_for_each(fetch),
        _ => Ok(()),
    };
    Ok(world.collective_result::<_, DataError>(fetched)?)
}

/// Fetches the run in a bucket from which a run of another folder starts.
///
/// # Errors
/// Errors of the store.
pub(crate) fn fetch_source(args: &mut TrainArgs) -> Result<(), DataError> {
    if let Some(ResumeFrom::Path(path)) = &mut args.resume {
        *path = remote::local_run(path, Take::Start)?;
    }
    Ok(())
}

/// Tries what a run does in the bucket at `address`, with an object of its own, which it deletes.
///
/// # Errors
/// The first call that failed, in words, with what the store has said.
pub(crate) fn try_calls(address: &str) -> Result<(), (&'static str, Error)> {
    let at = |call: &'static str| move |error: DataError| (call, Error::from(error));
    let no_condition = || {
        let call = "write under a condition";
        (call, CommandError::BucketConditions { address: address.to_owned() }.into())
    };
    let bucket = Bucket::open(address).map_err(at("open it"))?;
    bucket.list("").map_err(at("list it"))?;
    let name = format!(".ddp-train-probe-{}", run_id::random().unwrap_or_default());
    let text = |text: &str| text.as_bytes().to_vec();
    let tried = || {
        let tag = bucket.put(&name, text("1"), If::Absent).map_err(at("write"))?.ok_or_else(no_condition)?;
        if bucket.put(&name, text("2"), If::Absent).map_err(at("write under a condition"))?.is_some() {
            return Err(no_condition());
        }
        let put = |of: &str, by: &str| bucket.put(&name, text(by), If::Unchanged(of));
        let second = put(&tag, "3").map_err(at("write under a condition"))?.ok_or_else(no_condition)?;
        if second != tag && put(&tag, "4").map_err(at("write under a condition"))?.is_some() {
            return Err(no_condition());
        }
        let read = bucket.get(&name).map_err(at("read"))?;
        if read.is_none_or(|read| read.bytes != text("3")) {
            return Err(no_condition());
        }
        Ok(())
    };
    let tried = tried();
    let deleted = bucket.delete(&name).map_err(at("delete"));
    tried.and(deleted)
}

/// The runs that a command reads.
fn runs_of(command: &mut Command) -> Vec<(&mut PathBuf, Take)> {
    match command {
        Command::Checkpoint(command) => match command {
            CheckpointCommand::Ls(args) => vec![(&mut args.path, Take::Lists)],
            CheckpointCommand::Verify(args) => vec![(&mut args.path, Take::Run)],
            CheckpointCommand::Show(args) => vec![(&mut args.path, Take::Run)],
            CheckpointCommand::Average(args) => args.paths.iter_mut().map(|path| (path, Take::Run)).collect(),
            CheckpointCommand::Prune(_) => Vec::new(),
            CheckpointCommand::Export(args) => vec![(&mut args.path, Take::Run)],
        },
        Command::Runs(command) => match command {
            RunsCommand::Ls(args) => vec![(&mut args.folder, Take::Lists)],
            RunsCommand::Diff(args) => args.runs.iter_mut().map(|path| (path, Take::Lists)).collect(),
            RunsCommand::Show(args) => vec![(&mut args.run, Take::Lists)],
        },
        Command::Report(args) => args.runs.iter_mut().map(|path| (path, Take::Lists)).collect(),
        _ => Vec::new(),
    }
}
