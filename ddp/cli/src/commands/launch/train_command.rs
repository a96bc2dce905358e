//! The `train` command of a job: its arguments as typed, the folder of its run, and the arguments of a restart.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use ddp::checkpoint::{CheckpointError, Located};
use ddp::config::Config;
use ddp::run_folder::folder;
use ddp::run_folder::{Existing, FolderError, RunDir};
use ddp::train::resume::ResumeFrom;

use crate::cli::{Cli, Command, TrainArgs};
use crate::error::Result;
use crate::error::launch::LaunchError;
use crate::exit::Stop;

/// Flags that decide where a run starts; a restart starts from the newest checkpoint. Whether they take a value.
const START_FLAGS: [(&str, bool); 6] = [
    ("--out", true),
    ("--resume", true),
    ("--init-from", true),
    ("--overwrite", false),
    ("--refit-preprocessing", false),
    ("--new-head", false),
];

/// Arguments of `ddp-train train`.
#[derive(Debug, Clone)]
pub(super) struct TrainCommand {
    args: TrainArgs,
    /// Arguments as typed, without the word `train`.
    words: Vec<OsString>,
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
        let args = match Cli::parse_arguments(line.collect(), None) {
            Ok(Cli { command: Command::Train(args), .. }) => args,
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
            return no_run("--job-id", "leave it out: each job gets an id of its own");
        }
        Ok(TrainCommand { args, words: words.to_vec() })
    }

    /// The arguments.
    pub(super) fn args(&self) -> &TrainArgs {
        &self.args
    }

    /// The folder of the run: `--out`, that of the checkpoint to resume, or a new one, which is created.
    ///
    /// # Errors
    /// [`FolderError`] if the folder can't be used, errors of the config, from which a new folder gets its name.
    pub(super) fn run_folder(&self) -> Result<PathBuf> {
        match (&self.args.out, &self.args.resume) {
            (Some(out), Some(_)) => Ok(out.clone()),
            (Some(out), None) => {
                // So that any run which is there later is this one.
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

    /// Arguments of the program for the first start of the run `id` in `out` on `n_ranks` ranks.
    pub(super) fn first(&self, out: &Path, id: &str, n_ranks: usize) -> Vec<OsString> {
        let mut line = self.head(id, n_ranks);
        if self.args.out.is_none() {
            line.extend(["--out".into(), out.into()]);
        }
        line.extend(self.words.iter().cloned());
        line
    }

    /// The same for the run's continuation from its newest valid checkpoint, with `n_micro` micro-batches per rank if that is not as
    /// configured.
    pub(super) fn resumed(
        &self,
        out: &Path,
        id: &str,
        n_ranks: usize,
        n_micro: Option<usize>,
    ) -> Vec<OsString> {
        let mut line = self.head(id, n_ranks);
        line.extend(["--out".into(), out.into(), "--resume".into(), "auto".into()]);
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let (name, has_value) = text.split_once('=').map_or((&*text, false), |(name, _)| (name, true));
            match START_FLAGS.iter().find(|(flag, _)| *flag == name) {
                None => line.push(word.clone()),
                Some((_, takes_value)) if *takes_value && !has_value => drop(words.next()),
                Some(_) => {}
            }
        }
        // The last one counts.
        let set = n_micro.map(|n_micro| format!("train.grad_accum_steps={n_micro}"));
        line.extend(set.into_iter().flat_map(|set| ["--set".into(), set.into()]));
        line
    }

    fn head(&self, id: &str, n_ranks: usize) -> Vec<OsString> {
        let mut line: Vec<OsString> = ["train", "--job-id", id].map(OsString::from).into();
        if self.args.expect_world.is_none() {
            line.extend(["--expect-world".into(), n_ranks.to_string().into()]);
        }
        line
    }
}

/// The folder of the run whose checkpoint or folder `path` is.
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

    fn command(line: &str) -> TrainCommand {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        TrainCommand::parse(&words).unwrap()
    }

    fn text(words: &[OsString]) -> String {
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_start_is_what_was_typed() {
        let head = "train --job-id a --expect-world 2";
        let out = Path::new("o");
        let first = |line: &str| text(&command(line).first(out, "a", 2));
        assert_eq!(first("train run.toml --overwrite"), format!("{head} --out o run.toml --overwrite"));
        assert_eq!(first("run.toml --out x"), format!("{head} run.toml --out x"));
        assert_eq!(first("--expect-world 4"), "train --job-id a --out o --expect-world 4");
    }

    #[test]
    fn a_restart_continues_from_the_newest_checkpoint() {
        let typed = "run.toml --out x --init-from=w --refit-preprocessing --set a=1 -v";
        let resumed = text(&command(typed).resumed(Path::new("x"), "a", 2, None));
        assert_eq!(resumed, "train --job-id a --expect-world 2 --out x --resume auto run.toml --set a=1 -v");
        let fewer =
            text(&command("-q --set train.grad_accum_steps=2").resumed(Path::new("x"), "a", 1, Some(4)));
        assert!(
            fewer.ends_with(" -q --set train.grad_accum_steps=2 --set train.grad_accum_steps=4"),
            "{fewer}"
        );
        for typed in ["--resume p --json", "--resume=p --json", "--json --overwrite --out=x"] {
            let resumed = text(&command(typed).resumed(Path::new("x"), "a", 1, None));
            assert!(resumed.ends_with(" --out x --resume auto --json"), "{typed}: {resumed}");
        }
    }

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
