//! Arguments of `ddp-train launch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::count;
use super::few_flags::seconds;
use crate::report::log::LogFormat;

/// `ddp-train launch`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Starts `mpirun` (Open MPI 4 and 5), `mpiexec` (MPICH) or, in a Slurm job, `srun`; without them, or with `--launcher env`, it starts the ranks \
of this host itself. One rank on this host needs none of them. \
When a rank or a host is lost, the ranks start again from the newest valid checkpoint; a run that fails by itself is not repeated.\n\
`ddp-train launch -n 2 run.toml --out runs/big` or `... train run.toml ...`: the first word that is no flag of `launch`, or `--`, begins the \
arguments of `ddp-train train`. -np, --nproc-per-node, --num-processes and --gpus are -n; --hostfile is --hosts. To continue a run that was stopped, add --resume auto there.\n\
SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and SIGPWR let the run save a checkpoint and end with 85; a second SIGINT, or SIGQUIT, ends it at once (130).\n\
Exit status: that of the run; 0 only if it wrote `done.json`.")]
pub struct LaunchArgs {
    /// Ranks of the job, or `auto`: the slots of the hosts; where they name none, one rank per GPU, or one on a host without GPUs
    #[arg(short = 'n', long = "ranks", value_name = "N|auto", default_value = "auto", value_parser = ranks)]
    pub ranks: RankCount,

    /// Hosts of the job: a file with lines such as `node1 slots=8`, or a list such as node1:8,node2:8 [default: this host, or
    /// those of the Slurm job]
    #[arg(long, value_name = "FILE|H:N,...")]
    pub hosts: Option<String>,

    /// Start several ranks by MPI's launcher (mpi), by this program itself on this host, without MPI (env), or by itself where there is no
    /// launcher of MPI (auto); -v shows the choice
    #[arg(long, value_name = "LAUNCHER", default_value = "auto")]
    pub launcher: LauncherName,

    /// Restarts after which the job is given up
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub max_restarts: usize,

    /// A file whose appearance or change asks the run to save a checkpoint and end with 85, such as what writes the notice of a spot machine
    /// makes
    #[arg(long, value_name = "FILE")]
    pub notice_file: Option<PathBuf>,

    /// Fewest hosts to start with; hosts that do not answer are left out, and the number of ranks follows [default: all]
    #[arg(long, value_name = "N", value_parser = count, requires = "hosts")]
    pub min_hosts: Option<usize>,

    /// Seconds to wait before each start while fewer hosts answer than are needed
    #[arg(long, value_name = "S", default_value = "15", value_parser = wait, requires = "hosts")]
    pub host_wait: Duration,

    /// Fewest ranks with which the job continues on this host after a GPU has failed twice, which is then left out [default: all]
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "hosts")]
    pub min_ranks: Option<usize>,

    /// Arguments of `ddp-train train`; the word `train` may be left out
    #[arg(last = true, value_name = "RUN.toml|TABLE ...")]
    pub train: Vec<OsString>,
}

impl LaunchArgs {
    /// Gives the ranks the form of lines that `launch` itself has, or takes theirs, so that all lines have one form.
    pub(super) fn share_log_format(&mut self, own: LogFormat) -> LogFormat {
        let words: Vec<_> = self.train.iter().filter_map(|word| word.to_str()).collect();
        let at = words.iter().position(|word| word.starts_with("--log-format"));
        let typed =
            at.map(|at| words[at].split_once('=').map_or(words.get(at + 1).copied(), |(_, form)| Some(form)));
        match (typed, own) {
            (Some(Some("json")), _) => LogFormat::Json,
            (None, LogFormat::Json) => {
                self.train.extend(["--log-format", "json"].map(OsString::from));
                own
            }
            _ => own,
        }
    }
}

/// The starter of several ranks, as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LauncherName {
    /// MPI's launcher if there is one.
    Auto,
    /// MPI's launcher.
    Mpi,
    /// This program.
    Env,
}

/// Number of ranks, as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankCount {
    /// One rank per slot that the hosts offer.
    Auto,
    /// So many.
    Exactly(usize),
}

fn ranks(text: &str) -> Result<RankCount, String> {
    match text {
        "auto" => Ok(RankCount::Auto),
        number => count(number).map(RankCount::Exactly),
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    seconds(text).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> Result<LaunchArgs, clap::Error> {
        let cli = Cli::try_parse_from(std::iter::once("ddp-train").chain(line.split_whitespace()))?;
        match cli.command {
            Command::Launch(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_behind_the_dashes_is_for_train() {
        let args = parse("launch -n 4 --hosts a:2,b:2 --min-hosts 1 -- train run.toml -n --out x").unwrap();
        assert_eq!((args.ranks, args.min_hosts, args.max_restarts), (RankCount::Exactly(4), Some(1), 3));
        assert_eq!(args.train, ["train", "run.toml", "-n", "--out", "x"]);
        let args = parse("launch").unwrap();
        assert_eq!((args.ranks, args.train.len(), args.launcher), (RankCount::Auto, 0, LauncherName::Auto));
        assert_eq!(parse("launch --launcher env").unwrap().launcher, LauncherName::Env);
    }

    #[test]
    fn all_lines_have_one_form() {
        let shared = |line: &str| {
            let words = std::iter::once("ddp-train").chain(line.split_whitespace()).map(OsString::from);
            let cli = Cli::parse_arguments(words.collect(), None).unwrap();
            let Command::Launch(args) = cli.command else { panic!() };
            (cli.log.log_format, args.train)
        };
        let typed = shared("launch -n 2 run.toml --log-format json");
        assert_eq!((typed.0, typed.1.len()), (LogFormat::Json, 3));
        assert_eq!(shared("launch -- run.toml --log-format=json").0, LogFormat::Json);
        let (form, train) = shared("launch --log-format json -n 2 run.toml");
        assert_eq!(
            (form, train),
            (LogFormat::Json, vec!["run.toml".into(), "--log-format".into(), "json".into()])
        );
        assert_eq!(shared("launch run.toml").0, LogFormat::Text);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "launch -n 0",
            "launch -n two",
            "launch run.toml",
            "launch --min-hosts 2",
            "launch --host-wait 2",
            "launch --hosts a:2 --host-wait 0",
            "launch --max-restarts -1",
            "launch --launcher torchrun",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
