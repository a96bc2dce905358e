//! Errors in the use of the command line.

use std::io;
use std::path::PathBuf;

use ddp::config::UnknownMetric;
use ddp::exit_code;
use ddp::host_memory::size;
use ddp_comm::Launcher;

/// Maximum number of threads of a rank per core of its host.
pub(crate) const MAX_THREADS_PER_CORE: usize = 4;

/// A command cannot work with a flag, or with the way in which the process was started.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum CommandError {
    /// Ranks are requested as threads, but a launcher started this process as one of several.
    #[error(
        "--rank-threads {n_threads} makes ranks of threads, and the launcher has started {world_size} processes"
    )]
    #[diagnostic(help("start one process, or remove --rank-threads"))]
    RankThreadsUnderLauncher {
        /// The flag's value.
        n_threads: usize,
        /// Number of processes.
        world_size: usize,
    },
    /// There are far more threads than cores, so that threads would only wait for each other.
    #[error(
        "--threads {n_threads}: expected at most {max}, which is {} per core of this host",
        MAX_THREADS_PER_CORE
    )]
    #[diagnostic(help("remove --threads, and each rank takes its share of the cores"))]
    TooManyThreads {
        /// The flag's value.
        n_threads: usize,
        max: usize,
    },
    /// The model to begin with has outputs for other targets.
    #[error("--init-from `{}`: {reason}", path.display())]
    #[diagnostic(help(
        "give the targets in the order of the model, or add --new-head, which begins with a new output layer"
    ))]
    OtherOutputs {
        /// The model.
        path: PathBuf,
        reason: String,
    },
    /// A CUDA graph is requested, but there is no GPU.
    #[error("--cuda-graph on: this rank computes on the CPU, which has no CUDA graphs")]
    #[diagnostic(help("add --device cuda to see why there is no GPU, or remove --cuda-graph"))]
    NoGraphOnCpu,
    /// A GPU computes something else than the CPU, or its check failed.
    #[error("the check of a GPU against the CPU failed: {what} ({gpu})")]
    #[diagnostic(help(
        "`ddp-train devices --check --json` checks everything and prints what to report; `--check off` computes without a check"
    ))]
    SelfCheck {
        /// GPU, driver and libraries.
        gpu: String,
        /// The first difference, or the error.
        what: String,
    },
    /// `doctor` has found faults, which it has printed.
    #[error("failed: {failed}")]
    #[diagnostic(help(
        "follow the hints of the lines that begin with `fail`, then start `ddp-train doctor` again; docs/troubleshooting.md"
    ))]
    Doctor {
        /// The names of the checks.
        failed: String,
    },
    /// There is no GPU to check.
    #[error("no GPU can be checked: {reason}")]
    #[diagnostic(help("{hint}"))]
    NoGpuToCheck {
        reason: String,
        /// The way to one.
        hint: String,
    },
    /// The environment names an unknown mode of the check.
    #[error("DDP_TRAIN_CHECK={value}: expected auto, always or off")]
    #[diagnostic(help("unset it, or set it to one of these"))]
    CheckVariable {
        /// The value.
        value: String,
    },
    /// Kernels could not be compiled into the cache.
    #[error("the kernels cannot be compiled into the cache: {reason}")]
    #[diagnostic(help("pip install nvidia-cuda-nvrtc; DDP_TRAIN_CACHE names the folder of the cache"))]
    KernelCache {
        /// The missing component, or the compiler's log.
        reason: String,
    },
    /// The number of ranks differs from `--expect-world`.
    #[error(
        "--expect-world {expected}: this world has {world_size} {}", if *world_size == 1 { "rank" } else { "ranks" }
    )]
    #[diagnostic(help(
        "under Slurm use srun --mpi=pmix; `ddp-train doctor`, started in the same way, names the mismatch"
    ))]
    OtherWorldSize {
        /// The flag's value.
        expected: usize,
        world_size: usize,
    },
    /// The number of hosts differs from `--expect-hosts`.
    #[error(
        "--expect-hosts {expected}: {} on {} ({hosts})",
        if *world_size == 1 { "1 rank runs".to_owned() } else { format!("{world_size} ranks run") },
        if *n_hosts == 1 { "1 host".to_owned() } else { format!("{n_hosts} hosts") }
    )]
    #[diagnostic(help(
        "where an operator starts the ranks, use an image with Open MPI 4: version 5 does not read the host file that the \
         operator names by OMPI_MCA_orte_default_hostfile, and starts all ranks on one host; elsewhere give mpirun --hostfile \
         and --map-by slot"
    ))]
    OtherHostCount {
        /// The flag's value.
        expected: usize,
        n_hosts: usize,
        world_size: usize,
        /// Their names.
        hosts: String,
    },
    /// The run needs more memory than its container allows.
    #[error(
        "the run needs {} per rank, this container allows {}: {} for rows, {} for the model and its checkpoints",
        size(*needed), size(*allowed), size(*rows), size(needed - rows)
    )]
    #[diagnostic(help("{hint}"))]
    ContainerTooSmall {
        /// Bytes that the rank needs.
        needed: u64,
        /// Bytes that the container allows each rank.
        allowed: u64,
        /// Bytes for rows.
        rows: u64,
        hint: String,
    },
    /// The data of a plan is not on this machine.
    #[error("the training data `{source_name}` is not here")]
    #[diagnostic(help("check the spelling, or plan without it: --rows N --features N"))]
    NoDataToPlan {
        /// `data.train`.
        source_name: String,
    },
    /// The data of a plan is not read, and the config does not have the number of classes.
    #[error("the number of classes is not known without the data")]
    #[diagnostic(help(
        "--set data.classes=N, or --set data.task=regression; several heads are planned with their data"
    ))]
    UnknownClasses,
    /// The cost model has no constants of this GPU.
    #[error("no constants of `{device}` are known, only of {known}")]
    #[diagnostic(help(
        "name the most similar one: --gpu NAME; --calibrate FILE replaces its constants by measured ones"
    ))]
    UnknownGpu {
        /// Name that the driver reports.
        device: String,
        /// Names of the table.
        known: String,
    },
    /// A line of a file of measurements is of something else.
    #[error("`{}`, line {line}: expected a result of `ddp-train bench ... --json`: {reason}", path.display())]
    #[diagnostic(help(
        "write it by `ddp-train bench addmm --json > FILE`; results of several benchmarks may follow one another"
    ))]
    BadMeasurement {
        path: PathBuf,
        /// From 1.
        line: usize,
        reason: String,
    },
    /// A file of measurements has none of the device.
    #[error("--calibrate: no measurement of matmuls, copies, all-reduces or steps on {kind}")]
    #[diagnostic(help("measure on the machine that the run is for, or name its device: --gpu NAME"))]
    NothingMeasured {
        /// Kind of device.
        kind: &'static str,
    },
    /// The man pages could not be written.
    #[error("can't write the man page `{}`: {source}", path.display())]
    #[diagnostic(help("check the folder and its permissions"))]
    ManPage {
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A folder of which a page is wanted holds no run.
    #[error("`{}` holds no run: can't read its metrics.jsonl: {source}", path.display())]
    #[diagnostic(help("name the folder of a run, such as runs/NAME-TIME"))]
    NoRun {
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A folder of runs that can't be listed.
    #[error("can't list the runs in `{}`: {source}", path.display())]
    #[diagnostic(help("name their folder: `ddp-train runs ls DIR`"))]
    NoRuns { path: PathBuf, source: io::Error },
    /// A folder that holds no run.
    #[error("`{}` holds no run: it has no config.toml", path.display())]
    #[diagnostic(help("name the folder of a running job, such as runs/NAME-TIME"))]
    NotARun { path: PathBuf },
    /// The run in a folder is not active.
    #[error(
        "no run is active in `{}`{}", path.display(),
        step.map_or_else(|| "; it has stopped or failed".to_owned(), |step| format!(": it is complete after {step} steps"))
    )]
    #[diagnostic(help(
        "`ddp-train report` shows how it ended; `ddp-train train --trace 10..20` traces steps from the start of a run"
    ))]
    NotRunning {
        path: PathBuf,
        /// Steps of a complete run.
        step: Option<u64>,
    },
    /// A request to a run can't be written.
    #[error("can't write a request into `{}`: {source}", run.display())]
    #[diagnostic(help("ask as the user who started the run"))]
    NoRequest {
        run: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A run does not answer.
    #[error(
        "the run in `{}` did not answer within {timeout_s} s{}", run.display(),
        if *is_taken { ": it has taken the request, and writes a trace into its folder traces once it has taken the steps" } else { "" }
    )]
    #[diagnostic(help("`ddp-train stacks` shows where its ranks stand; --timeout waits longer"))]
    NoAnswer {
        run: PathBuf,
        timeout_s: f64,
        /// Whether the run has taken the request.
        is_taken: bool,
    },
    /// The trace of a run could not be written or read.
    #[error("no trace of the run in `{}`: {reason}", run.display())]
    #[diagnostic(help("check the disk of the folder, and that the run is of the same version"))]
    NoTrace { run: PathBuf, reason: String },
    /// The run has no watchdog.
    #[error("the run in `{}` knows no places of ranks: its watchdog is off or does not answer", run.display())]
    #[diagnostic(help("start runs with `watchdog.enabled = true`, the default"))]
    NoWatchdog { run: PathBuf },
    /// A page of too many runs.
    #[error("a page shows at most {max} runs, got {got}")]
    #[diagnostic(help("name fewer runs, or make several pages"))]
    TooManyRuns { got: usize, max: usize },
    /// The output file of a page is another file.
    #[error("`{}` exists and is not a page of `ddp-train report`", path.display())]
    #[diagnostic(help("name another file with --out, or delete it"))]
    NoPage { path: PathBuf },
    /// `--metrics` names a metric that evaluations do not measure.
    #[error("--metrics: `{}` is not a metric here, expected names of: {}", .0.name, .0.expected)]
    #[diagnostic(help("{}", .0.hint))]
    UnknownMetric(Box<UnknownMetric>),
    /// The model has no probabilities to calibrate, or no file to save them in.
    #[error("{reason}")]
    #[diagnostic(help("name the folder or model.safetensors of a complete run of a classifier"))]
    Calibrate {
        /// Reason of the refusal.
        reason: &'static str,
    },
    /// `--importance` is used with more than one metric, with none, or with a table.
    #[error("--importance measures one metric, got --metrics {names}")]
    #[diagnostic(help("name one that is a number, such as --metrics {example}"))]
    ImportanceMetrics {
        /// The names, as given.
        names: String,
        /// A metric of the model's task.
        example: String,
    },
    /// A flag about the folder of a run, for a command that makes none.
    #[error("{flag}: this command makes no run, so it has no folder")]
    #[diagnostic(help("remove {flag}"))]
    NoFolder { flag: &'static str },
    /// The range of learning rates is empty.
    #[error("--from {from:e} --to {to:e}: expected a rate above that of --from")]
    #[diagnostic(help("for example --from 1e-7 --to 10"))]
    EmptyRange { from: f64, to: f64 },
    /// The loss falls at no learning rate of the test.
    #[error("the loss fell at no learning rate from {from:e} to {to:e}: it was lowest at the first one")]
    #[diagnostic(help("try a lower --from, or more --steps; `ddp-train data inspect` checks the data"))]
    NoRate { from: f64, to: f64 },
    /// Even the smallest batch needs more memory than there is.
    #[error(
        "no batch fits: one of {rows} rows per rank needs {}, and {} may be used",
        size(*needed), size(*allowed)
    )]
    #[diagnostic(help(
        "use a smaller model, more ranks with `comm.zero = 1`, or a machine with more memory; `ddp-train describe` lists what takes it"
    ))]
    NoBatchFits {
        rows: usize,
        /// Bytes that it needs on the rank's device.
        needed: u64,
        /// Bytes that the command takes.
        allowed: u64,
    },
    /// A sweep is one of several ranks.
    #[error("`ddp-train sweep` starts its runs itself, but {launcher} has started it")]
    #[diagnostic(help("run it without mpirun and srun; `--ranks N` gives each run N ranks"))]
    SweepUnderLauncher { launcher: Launcher },
    /// A sweep sets a key twice.
    #[error("{key} is set by more than one of --grid, --range and --seeds")]
    #[diagnostic(help("name each key once; --seeds sets train.seed"))]
    KeyTwice { key: String },
    /// The points of a sweep are judged by different metrics.
    #[error("the points are judged by {first} and by {other}, which say nothing about each other")]
    #[diagnostic(help(
        "judge all by one metric: take `checkpoint.keep_best` and `train.early_stop_metric` out of --grid, and set it with --set"
    ))]
    JudgedByTwo { first: String, other: String },
    /// The points of a sweep have losses of several kinds or units, and are judged by them.
    #[error(
        "the points are judged by {metric}, which is another quantity for each: they differ in `loss` or in `data.normalize_target`"
    )]
    #[diagnostic(help(
        "judge them by a metric of the task, such as `--set checkpoint.keep_best=eval_log_loss` of classes, or `eval_mae` of quantities"
    ))]
    JudgedByLosses { metric: String },
    /// A flag or key that runs of a sweep cannot have.
    #[error("{key} in a sweep: {why}")]
    #[diagnostic(help("remove it"))]
    NotInSweep { key: &'static str, why: &'static str },
    /// There are not enough GPUs for the runs side by side.
    #[error("--jobs {jobs}: the GPUs here are enough for {max} runs at a time, of {ranks} {} each", if *ranks == 1 { "GPU" } else { "GPUs" })]
    #[diagnostic(help("lower --jobs or --ranks, or compute on the CPU with `-- --device cpu`"))]
    TooManyJobs { jobs: usize, max: usize, ranks: usize },
    /// The folder holds a sweep of another config.
    #[error("`{}` holds a sweep of another config: {what}", path.display())]
    #[diagnostic(help(
        "name another folder with --out, or restore the config; values of --grid, --range and --seeds may be added"
    ))]
    OtherSweep { path: PathBuf, what: String },
    /// A sweep that names no runs to predict with.
    #[error("`{}` is the folder of a sweep, and {reason}", path.display())]
    #[diagnostic(help(
        "give the command of the sweep again, which completes it, or name the folder of a run"
    ))]
    NoBest { path: PathBuf, reason: String },
    /// Runs that `--prune` cannot stop at an epoch.
    #[error("--prune needs runs of several epochs, to stop them early")]
    #[diagnostic(help("set `train.epochs` to 9 or more, in place of `train.steps`"))]
    PruneNeedsEpochs,
    /// Runs that `--prune` cannot judge.
    #[error("--prune has nothing to judge the runs by: it needs the best evaluation of each")]
    #[diagnostic(help(
        "give rows to evaluate on with --eval-fraction 0.2, --folds or `data.eval`, and leave `checkpoint.keep_best` on"
    ))]
    PruneNeedsEval,
    /// The model was trained without evaluation data, and the command names no data.
    #[error("the run had no evaluation data")]
    #[diagnostic(help("name the rows to evaluate with --data"))]
    NoEvalData,
    /// Metrics cannot be served.
    #[error("--metrics-addr {}: {source}", address.as_deref().unwrap_or_default())]
    #[diagnostic(help(
        "another process may have this port, such as another run: choose another one, or 0 for a free one, which is printed"
    ))]
    MetricsAddress {
        /// The flag's value.
        address: Option<String>,
        source: io::Error,
    },
    /// Another process writes the run at this address.
    #[error("{address} is in use by {holder}")]
    #[diagnostic(help("wait until it has ended, or choose another folder with --out"))]
    BucketBusy { address: String, holder: String },
    /// The address holds a run.
    #[error("{address} holds a run")]
    #[diagnostic(help(
        "--resume auto continues it, --overwrite deletes it; or choose another folder with --out"
    ))]
    BucketHoldsRun { address: String },
    /// The address to resume from holds no run.
    #[error("{address} holds no run")]
    #[diagnostic(help(
        "check the address: `ddp-train runs ls` lists the runs of a folder; `--out {address} --resume auto` starts a new one"
    ))]
    BucketWithoutRun { address: String },
    /// The address is one of checkpoints, and a run would write into them.
    #[error("{address} is a checkpoint or holds checkpoints, and is no run")]
    #[diagnostic(help(
        "--resume with the address of the run, without /checkpoints and what follows, continues it; \
         `--resume {address} --out FOLDER` trains from this checkpoint in another folder"
    ))]
    BucketCheckpoint { address: String },
    /// Checkpoints in a bucket are not pruned by hand.
    #[error("{}: `checkpoint prune` works in a folder of this host", path.display())]
    #[diagnostic(help("a run in a bucket keeps as many as `checkpoint.keep` says, when it goes on"))]
    BucketPrune { path: PathBuf },
    /// Another process has become the writer of the run.
    #[error("another process has taken over {address}: nothing more of this run goes there")]
    #[diagnostic(help(
        "one of them was cut off from the store for longer than half a minute; end one of the two"
    ))]
    BucketTaken { address: String },
    /// The store does not take a sign of life, so that another process may become the writer.
    #[error("{address} has not answered for {seconds} s")]
    #[diagnostic(help("check the network and the store"))]
    BucketAway { address: String, seconds: u64 },
    /// The supervisor may run on another host than rank 0.
    #[error(
        "--hosts and --out {address}: the home of the run is on rank 0's host, which may not be this one"
    )]
    #[diagnostic(help(
        "start `mpirun ... ddp-train train --out {address}`, or `launch` on each host by the variables of torchrun; or use a folder that all hosts see"
    ))]
    BucketHosts { address: String },
    /// The run has ended, and its bucket does not have all of it.
    #[error("{address} does not have all of the run: {reason}")]
    #[diagnostic(help(
        "the run's files are in {}; the same command with --resume auto on this host brings them there",
        home.display()
    ))]
    NotInBucket { address: String, home: PathBuf, reason: String },
    /// Shards of the optimizer state would lie in homes of several hosts.
    #[error("comm.zero saves shards on each of several hosts, and {address} gets the files of one")]
    #[diagnostic(help("use comm.zero = 0, or a folder that all hosts see"))]
    BucketShards { address: String },
    /// The store writes whatever the condition.
    #[error("{address} writes objects although they have changed")]
    #[diagnostic(help(
        "runs there would not notice each other: use a store with conditional writes (If-None-Match, If-Match)"
    ))]
    BucketConditions { address: String },
    /// No thread for the bucket.
    #[error("can't bring results to the bucket: {source}")]
    #[diagnostic(help("allow this process more threads"))]
    BucketThread { source: io::Error },
}

impl CommandError {
    /// Exit status of a process that ends with this error; see [`exit_code`].
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::ManPage { .. } | Self::NoRequest { .. } | Self::NotInBucket { .. } => exit_code::IO,
            Self::SelfCheck { .. }
            | Self::Doctor { .. }
            | Self::NoRate { .. }
            | Self::NoAnswer { .. }
            | Self::NoTrace { .. }
            | Self::BucketTaken { .. }
            | Self::BucketThread { .. }
            | Self::NoWatchdog { .. } => exit_code::FAILED,
            Self::BucketBusy { .. } => exit_code::RESTARTABLE,
            Self::NoGpuToCheck { .. }
            | Self::KernelCache { .. }
            | Self::OtherWorldSize { .. }
            | Self::OtherHostCount { .. }
            | Self::ContainerTooSmall { .. }
            | Self::MetricsAddress { .. }
            | Self::NoBatchFits { .. }
            | Self::SweepUnderLauncher { .. } => exit_code::ENVIRONMENT,
            _ => exit_code::USAGE,
        }
    }

    /// Whether every rank fails with this same error at the same point.
    pub(crate) fn is_same_on_all_ranks(&self) -> bool {
        matches!(
            self,
            Self::OtherWorldSize { .. }
                | Self::OtherHostCount { .. }
                | Self::Doctor { .. }
                | Self::NoFolder { .. }
                | Self::EmptyRange { .. }
                | Self::NoRate { .. }
                | Self::NoBatchFits { .. }
        )
    }
}
