//! `ddp-train launch`: parses the training command of a job and hands it to the supervisor of the crate `ddp-launch`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use ddp::checkpoint::{CheckpointError, Located};
use ddp::config::Config;
use ddp::exit_code;
use ddp::run_folder::{Existing, FolderError, RunDir, folder};
use ddp::train::resume::ResumeFrom;
use ddp::train::stop_signals::StopSignals;
use ddp_comm::World;
use ddp_launch::{JobOptions, LaunchError, LauncherChoice, Training, refuse_launcher, supervise};
use tracing::info;

use crate::bucket::BucketRun;
use crate::cli::{Cli, Command, LaunchArgs, LauncherName, RankCount, TrainArgs};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// Runs a job to its end.
///
/// # Errors
/// [`Stop::Reported`] with the status of the run; errors before the ranks start.
pub fn launch(world: &World, signals: &StopSignals, args: &LaunchArgs) -> Result<(), Stop> {
    refuse_launcher(world)?;
    let train = TrainCommand::parse(&args.train)?;
    if let Some(bucket) = train.bucket.as_ref().filter(|_| args.hosts.is_some()) {
        return Err(CommandError::BucketHosts { address: bucket.address.clone() }.into());
    }
    let training = Training {
        words: &train.words,
        address: train.bucket.as_ref().map(|bucket| bucket.address.as_str()),
        names_folder: train.args.out.is_some(),
        names_world: train.args.expect_world.is_some(),
        may_use_gpus: train.args.device != "cpu",
        names_gpu: train.args.device.starts_with("cuda:") || train.args.share_gpu,
        open_folder: &|| train.run_folder(),
    };
    let n_ranks = match args.ranks {
        RankCount::Auto => None,
        RankCount::Exactly(n_ranks) => Some(n_ranks),
    };
    let options = JobOptions {
        n_ranks,
        hosts: args.hosts.as_deref(),
        min_hosts: args.min_hosts,
        host_wait: args.host_wait,
        min_ranks: args.min_ranks,
        launcher: match args.launcher {
            LauncherName::Auto => LauncherChoice::Auto,
            LauncherName::Mpi => LauncherChoice::Mpi,
            LauncherName::Env => LauncherChoice::Environment,
        },
        max_restarts: args.max_restarts,
        notice_file: args.notice_file.as_deref(),
        training,
    };
    match supervise(world, signals, &options)? {
        exit_code::DONE => Ok(()),
        status => Err(Stop::Reported(status)),
    }
}

/// Arguments of `ddp-train train`.
#[derive(Debug, Clone)]
pub(super) struct TrainCommand {
    pub(super) args: TrainArgs,
    /// Arguments without the word `train`, in this program's names also where another program's were typed.
    pub(super) words: Vec<OsString>,
    /// The run in a bucket, if results go there.
    pub(super) bucket: Option<BucketRun>,
}

impl TrainCommand {
    /// Parses the arguments after `--`; the word `train` may be left out.
    ///
    /// # Errors
    /// [`LaunchError::NoRun`]; [`Stop::Reported`] if clap has printed help or an error.
    pub(super) fn parse(words: &[OsString]) -> Result<Self, Stop> {
        let is_command = |word: &&OsString| {
            Cli::command().get_subcommands().any(|command| *word == OsStr::new(command.get_name()))
        };
        let words = match words.first().filter(is_command) {
            Some(first) if first == "train" => &words[1..],
            Some(other) => {
                let got = other.to_string_lossy().into_owned();
                let hint = format!("start `ddp-train {got}` by itself or under mpirun");
                return Err(LaunchError::NoRun { got, hint }.into());
            }
            None => words,
        };
        let line = ["ddp-train", "train"].map(OsString::from).into_iter().chain(words.iter().cloned());
        let (args, taken, words) = match Cli::parse_arguments(line.collect(), None) {
            Ok(Cli { command: Command::Train(args), taken, words, .. }) => (args, taken, words),
            Ok(_) => unreachable!("the line begins with `train`"),
            Err(usage) => {
                // Stderr may be closed.
                let _ = usage.print();
                return Err(Stop::Reported(u8::try_from(usage.exit_code()).unwrap_or_default()));
            }
        };
        let no_run = |got: &str, hint: &str| {
            Err(LaunchError::NoRun { got: got.to_owned(), hint: hint.to_owned() }.into())
        };
        if args.dry_run {
            return no_run("--dry-run", "`ddp-train train --dry-run` checks a run by itself or under mpirun");
        }
        if args.job_id.is_some() {
            return no_run("--job-id", "remove it: each job gets an id of its own");
        }
        let bucket = BucketRun::named_by(&args)?;
        let mut args = args;
        if let Some(bucket) = &bucket {
            bucket.name_home(&mut args);
        }
        if !taken.is_empty() {
            // The ranks get the words of this program, and say nothing of others.
            info!("{}", taken.join(", "));
        }
        Ok(TrainCommand { args, words: words.into_iter().skip(2).collect(), bucket })
    }

    /// The run folder: `--out`, the folder of the checkpoint to resume, or a new one, which is created.
    ///
    /// # Errors
    /// [`FolderError`] if the folder can't be used, errors of the config, which provides the name of a new folder.
    fn run_folder(&self) -> ddp::Result<PathBuf> {
        match (&self.args.out, &self.args.resume) {
            // The ranks look into the bucket.
            (Some(home), _) if self.bucket.is_some() => Ok(home.clone()),
            (Some(out), Some(_)) => Ok(out.clone()),
            (Some(out), None) => {
                // This ensures that any run that is there later is this run.
                let existing = if self.args.overwrite { Existing::Overwrite } else { Existing::Refuse };
                folder::check(out, existing)?;
                Ok(out.clone())
            }
            (None, Some(ResumeFrom::Auto)) => Err(FolderError::NoneToResume.into()),
            (None, Some(ResumeFrom::Path(path))) => Ok(run_of(path)?),
            (None, None) => {
                let config = Config::load_with(self.args.run.file(), &self.args.run.overrides())?;
                Ok(RunDir::open(None, &config.name, Existing::Refuse)?.path().to_owned())
            }
        }
    }
}

/// The run folder that contains the checkpoint or folder `path`.
fn run_of(path: &Path) -> Result<PathBuf, CheckpointError> {
    // <run>/checkpoints/step-<N>
    let (folder, n_levels) = match Located::new(path)? {
        Located::One(step) => (step, 2),
        Located::Store(store) => (store.folder().to_owned(), 1),
    };
    let absolute = std::path::absolute(&folder).unwrap_or(folder);
    Ok(absolute.ancestors().nth(n_levels).unwrap_or(Path::new("/")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_training_runs_are_started() {
        for (line, part) in
            [("eval --checkpoint x", "`eval`"), ("--dry-run", "--dry-run"), ("x --job-id b", "id of its own")]
        {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let error = TrainCommand::parse(&words).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        let usage = TrainCommand::parse(&["--sets".into()]).unwrap_err();
        assert!(matches!(usage, Stop::Reported(2)), "{usage}");
    }

    /// A restart replaces words by their names.
    #[test]
    fn words_of_other_programs_are_replaced() {
        for (typed, words) in [
            ("run.toml --out a --json", "run.toml --out a --json"),
            ("train run.toml --out a --resume --json", "run.toml --out a --resume auto --json"),
            ("--output_dir a -resume auto -q", "--out=a --resume auto -q"),
            ("--model-dir=a --resume-from-checkpoint b --json", "--out=a --resume=b --json"),
            ("--out a --continue latest --seed 3", "--out a --resume auto --set train.seed=3"),
            ("--out a --init-model b --lr 0.1", "--out a --init-from=b --lr 0.1"),
        ] {
            let typed: Vec<OsString> = typed.split_whitespace().map(OsString::from).collect();
            assert_eq!(TrainCommand::parse(&typed).unwrap().words.join(OsStr::new(" ")), words, "{typed:?}");
        }
    }

    #[test]
    fn the_folder_of_a_checkpoint_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let step = folder.path().join("checkpoints/step-7");
        std::fs::create_dir_all(&step).unwrap();
        for path in [&step, &folder.path().join("checkpoints"), folder.path()] {
            assert_eq!(run_of(path).unwrap(), folder.path(), "{}", path.display());
        }
    }
}
