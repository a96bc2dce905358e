//! Arguments of `ddp-train find-lr` and `find-batch-size`: those of `train`, without the ones about a run's folder.

use clap::builder::Resettable;
use clap::{Arg, Args, ValueEnum as _};

use super::run_config::graph_mode_name;
use super::{Bind, TrainArgs, count};

/// `ddp-train find-lr`
#[derive(Debug, Clone, Args)]
#[command(
    mut_args = without_folder,
    after_help = "Trains from the initial weights with a learning rate that grows from step to step, and writes no run: `steepest` is the rate \
                  where the loss falls fastest, `minimum / 10` a tenth of the one where it is lowest.\n\
                  For example: `ddp-train find-lr run.toml`, `mpirun -n 4 ddp-train find-lr run.toml`."
)]
pub struct FindLrArgs {
    /// The run.
    #[command(flatten)]
    pub train: TrainArgs,

    /// Learning rate of the first step
    #[arg(long, value_name = "RATE", default_value = "1e-7", value_parser = rate)]
    pub from: f64,

    /// Learning rate of the last step
    #[arg(long, value_name = "RATE", default_value = "10", value_parser = rate)]
    pub to: f64,

    /// Steps from one to the other, at least 5; fewer if the loss exceeds 4 times its minimum
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_five)]
    pub steps: usize,
}

/// `ddp-train find-batch-size`
#[derive(Debug, Clone, Args)]
#[command(
    mut_args = without_folder,
    after_help = "Computes the largest batch whose memory fits on every rank, tries it, and measures batches up to it; writes no run. \
                  The proposed batch is the smallest with 90% of the best rate.\n\
                  For example: `ddp-train find-batch-size run.toml`, `mpirun -n 4 ddp-train find-batch-size run.toml`."
)]
pub struct FindBatchSizeArgs {
    /// The run.
    #[command(flatten)]
    pub train: TrainArgs,

    /// Largest batch to try, in rows per rank and micro-batch [default: as many as fit]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max: Option<usize>,
}

/// Flags of `train` about a run's folder, which these commands do not make.
const OF_FOLDER: [&str; 9] = [
    "out",
    "resume",
    "allow_batchnorm_change",
    "keep_schedule",
    "job_id",
    "dry_run",
    "overwrite",
    "trace",
    "metrics_addr",
];

fn without_folder(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        // They are refused, so that nothing else needs to be there.
        id if OF_FOLDER.contains(&id) => arg.hide(true).requires(Resettable::Reset),
        "json" => arg.help("Print the result as one JSON object"),
        _ => arg,
    }
}

impl TrainArgs {
    /// Flags about the ranks and their devices, as words of a command.
    pub(crate) fn start_words(&self) -> Vec<String> {
        let graph = graph_mode_name(self.cuda_graph);
        let check = self.check.check.and_then(|mode| mode.to_possible_value());
        let flags = [
            (self.device != "auto").then(|| format!("--device {}", self.device)),
            self.share_gpu.then(|| "--share-gpu".to_owned()),
            self.safe.then(|| "--safe".to_owned()),
            (self.bind == Bind::None).then(|| "--bind none".to_owned()),
            (graph != "auto").then(|| format!("--cuda-graph {graph}")),
            check.map(|mode| format!("--check {}", mode.get_name())),
            self.comm_dtype.map(|dtype| format!("--comm-dtype {dtype}")),
            self.threads.map(|n| format!("--threads {n}")),
        ];
        flags.into_iter().flatten().collect()
    }

    /// A flag that only one run with a folder can have, if one was given.
    pub(crate) fn flag_of_folder(&self) -> Option<&'static str> {
        let given = [
            (self.out.is_some(), "--out"),
            (self.resume.is_some(), "--resume"),
            (self.allow_batchnorm_change, "--allow-batchnorm-change"),
            (self.keep_schedule, "--keep-schedule"),
            (self.job_id.is_some(), "--job-id"),
            (self.dry_run, "--dry-run"),
            (self.overwrite, "--overwrite"),
            (self.trace.is_some(), "--trace"),
            (self.metrics_addr.is_some(), "--metrics-addr"),
        ];
        given.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("expected a number above 0\nhint: for example 1e-6".to_owned()),
    }
}

/// Parses steps of a test: its points are means of three losses, and a slope needs three points.
fn at_least_five(text: &str) -> Result<usize, String> {
    match count(text)? {
        0..5 => Err("expected a whole number of 5 or above\nhint: for example 100".to_owned()),
        steps => Ok(steps),
    }
}
