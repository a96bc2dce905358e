//! `ddp-train train`: a training run, from command-line arguments to the model file.
//!
//! (checkpoint ->) config -> world -> device -> data -> model -> buckets, then the loop: batch -> forward -> loss -> backward
//! (buckets start) -> wait -> clip -> step -> metrics -> checkpoint; at the end the model file.

pub(crate) mod banner;
mod container;
mod outputs;
mod pin_device;
mod prepare;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use ddp::checkpoint::{LeftOut, RunState};
use ddp::config::Length;
use ddp::data::loader::LoaderOptions;
use ddp::report::notes::warn_of_all_ranks;
use ddp::report::{EventStream, ReportError};
use ddp::run_folder::done::Done;
use ddp::run_folder::error::FolderError;
use ddp::run_folder::folder::RunDir;
use ddp::run_folder::{folder, run_id};
use ddp::train::autosave::Autosave;
use ddp::train::evaluations::{EvalPlan, Evaluations};
use ddp::train::resume::rates::RateChange;
use ddp::train::resume::{Resumed, shared_folder};
use ddp::train::statistics::StatisticsRows;
use ddp::train::stop_signals::{StopSignals, unsaved};
use ddp::train::trace::{Inbox, TracePlan};
use ddp::train::trainer::Trainer;
use ddp::train::training_loop::{Ending, LoopPlan, TrainingLoop};
use ddp::train::{TrainError, setup};
use ddp_comm::{Phase, World};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, MemoryUse};
use tracing::{debug, field, info, info_span};

pub(crate) use self::prepare::{Plan, Ready, Run};
use crate::bucket::{self, BucketRun, Mirror};
use crate::cli::TrainArgs;
use crate::commands::train::outputs::{open_folder, open_metrics, resume_command, save};
pub(crate) use crate::commands::train::outputs::{sees, train_command};
pub(crate) use crate::commands::train::pin_device::{
    Pinning, check_graph, join_share, pin_device, try_launches, turn_off, turn_off_named,
};
use crate::commands::watchdog::Watched;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::progress::Progress;
use crate::report::prometheus::RunInfo;
use crate::report::{FailedRun, page};

/// Trains as `args` say; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn train(world: &World, log: &Log, signals: &StopSignals, args: &TrainArgs) -> Result<(), Stop> {
    let (rank, world_size) = (world.rank().0, world.world_size());
    let _span = info_span!("run", rank, world_size, run_name = field::Empty).entered();
    let stdout = args.json.then(EventStream::stdout).transpose();
    let stdout = stdout.map_err(|source| ReportError::Stdout { source })?;
    // Where `launch` has passed an id, it may have named the folder too.
    let mut failed = FailedRun::new(stdout, args.out.is_some() && args.job_id.is_none());
    match run(world, log, signals, args, &mut failed) {
        Err(Stop::Failed(stop)) => Err(Stop::FailedRun(stop, Box::new(failed))),
        ended => ended,
    }
}

/// Runs the training and keeps in `failed` what the report of a failure needs.
fn run(
    world: &World,
    log: &Log,
    signals: &StopSignals,
    args: &TrainArgs,
    failed: &mut FailedRun,
) -> Result<(), Stop> {
    signals.prepare(world);
    expect_world(world, args.expect_world)?;
    expect_hosts(world, args.expect_hosts)?;
    let mut args = args.clone();
    let mut bucket = BucketRun::find(world, &mut args)?;
    world.collective_result(bucket::fetch_source(&mut args))?;
    let mut mirror = match &mut bucket {
        Some(run) if !args.dry_run => run.begin(world, &mut args)?,
        _ => None,
    };
    let ended = train_at_home(world, log, signals, &args, failed, bucket.as_ref(), &mut mirror);
    // A failure is reported at once; the bucket has all but perhaps the newest checkpoint.
    if matches!(ended, Err(Stop::Failed(_))) {
        mirror.into_iter().for_each(Mirror::give_up);
    } else if bucket.is_some() {
        let finish = |mirror: Mirror| mirror.finish(None, world.watchdog());
        world.collective_result(mirror.map_or(Ok(()), finish))?;
    }
    ended
}

/// Trains in a folder of this host.
fn train_at_home(
    world: &World,
    log: &Log,
    signals: &StopSignals,
    args: &TrainArgs,
    failed: &mut FailedRun,
    bucket: Option<&BucketRun>,
    mirror: &mut Option<Mirror>,
) -> Result<(), Stop> {
    let (run, trainer, resumed) = Run::prepare(world, log, args, Watched::Run(failed.clone()))?;
    if args.dry_run {
        info!("dry run: config, data and model are in order; nothing was trained");
        return Ok(());
    }
    bucket.map_or(Ok(()), |bucket| bucket.check_shards(world, run.plan.config.comm.zero))?;
    if let Some(reason) = signals.begin_run(world)? {
        info!("{}", unsaved(&reason));
        return Err(Stop::Requested(reason));
    }
    run.train(trainer, resumed, signals, failed, bucket.is_some(), mirror)
}

/// Refuses a world of another size than `expected`: such as a world of one in each process, of a launcher that does not fit.
fn expect_world(world: &World, expected: Option<usize>) -> Result<()> {
    match (expected, world.world_size()) {
        (Some(expected), world_size) if expected != world_size => {
            Err(CommandError::OtherWorldSize { expected, world_size }.into())
        }
        _ => Ok(()),
    }
}

/// Refuses ranks on another number of hosts than `expected`, such as all on one where a launcher found no list of hosts. Collective.
fn expect_hosts(world: &World, expected: Option<usize>) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let hosts: BTreeSet<_> =
        world.group().all_gather_bytes(world.hostname().as_bytes())?.into_iter().collect();
    if hosts.len() == expected {
        return Ok(());
    }
    let names: Vec<_> = hosts.iter().take(8).map(|name| String::from_utf8_lossy(name)).collect();
    let hosts_named =
        if hosts.len() > names.len() { format!("{}, ...", names.join(", ")) } else { names.join(", ") };
    let (n_hosts, world_size) = (hosts.len(), world.world_size());
    Err(CommandError::OtherHostCount { expected, n_hosts, world_size, hosts: hosts_named }.into())
}

/// The folder of a run.
struct Folder {
    /// Its path, the same on all ranks.
    path: PathBuf,
    /// The folder itself on the rank that owns it, and requests to the run.
    owned: Option<RunDir>,
    inbox: Option<Arc<Inbox>>,
}

impl<'w> Run<'w> {
    /// Trains to the end or to a request to stop, and writes the model file.
    fn train(
        &self,
        mut trainer: Trainer<'w>,
        mut resumed: Option<Resumed>,
        signals: &StopSignals,
        failed: &mut FailedRun,
        is_mirrored: bool,
        mirror: &mut Option<Mirror>,
    ) -> Result<(), Stop> {
        let Run { world, device, data, plan: Plan { config, .. }, .. } = self;
        let folder = self.open_folder(resumed.as_ref())?;
        if is_mirrored {
            let start = |mirror: &mut Mirror| mirror.start(config.checkpoint.keep);
            world.collective_result(mirror.as_mut().map_or(Ok(()), start))?;
        }
        self.warn(&trainer);
        let mut left_out = None;
        // Once, and again from each checkpoint to which the run returns.
        let training = loop {
            let resumed_from = resumed.as_ref();
            let mut training =
                self.training_loop(&folder, &trainer, resumed_from, left_out, signals, failed)?;
            let ended = training.train(&mut trainer);
            // On a GPU the next step may be enqueued when one fails.
            let failed_step = ended.as_ref().err().and_then(|stop| stop.error()).and_then(TrainError::step);
            failed.step = Some(failed_step.unwrap_or(trainer.n_steps()));
            match ended {
                Ok(Ending::RolledBack { to, left_out: steps }) => {
                    drop(training);
                    resumed = Some(to.restore(world, config, data, &mut trainer)?);
                    left_out = Some(steps);
                }
                Ok(Ending::Complete) => break training,
                Ok(Ending::Stopped(reason)) => {
                    world.watchdog().enter(Phase::End);
                    folder.owned.iter().for_each(|folder| page::write_early(folder.path()));
                    return Err(Stop::Requested(reason));
                }
                Err(stop) => {
                    world.watchdog().enter(Phase::End);
                    // The failure is reported before anything waits for the device: the graphs and copies of the trainer would,
                    // and their work may never end if another rank is stuck. The process ends with the report.
                    training.abandon();
                    std::mem::forget(trainer);
                    return Err(stop.into());
                }
            }
        };
        world.watchdog().enter(Phase::End);
        debug_memory(*device);
        self.finish(training, &mut trainer, folder.owned.as_ref(), failed, is_mirrored, mirror)
    }

    /// Opens the folder of the run and its logs. Collective.
    fn open_folder(&self, resumed: Option<&Resumed>) -> Result<Folder, Stop> {
        let Run { world, log, args, plan: Plan { config, .. }, .. } = self;
        if let Some(mode) = config.run.file_mode {
            // Of the whole process: libraries and threads create files of the run too.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mode.umask()));
        }
        let owned = world.collective_result(open_folder(world, args, config, resumed))?;
        let path = shared_folder(world, owned.as_ref().map(RunDir::path))?;
        outputs::open(world, log, &path)?;
        let inbox = owned.as_ref().map(|folder| {
            let inbox = Arc::new(Inbox::new(path.clone(), world.watchdog().clone()));
            let served = inbox.clone();
            folder.attend(move |asked| served.serve(asked));
            inbox
        });
        Ok(Folder { path, owned, inbox })
    }

    /// Reports what its log should hold.
    fn warn(&self, trainer: &Trainer<'_>) {
        let Run { world, device, plan: Plan { config, partition, schedule, spec, .. }, .. } = self;
        if schedule.ends_in_warmup() {
            let warning = "training ends during the warm-up\nhint: lower schedule.warmup_steps, or set schedule.warmup_fraction";
            warn_of_all_ranks(world.rank().0, warning);
        }
        banner::same_rows(&config.data).iter().for_each(|warning| warn_of_all_ranks(world.rank().0, warning));
        banner::determinism(config, partition, trainer).iter().for_each(|line| info!("{line}"));
        banner::launch_bound(world, spec, partition, *device).iter().for_each(|line| info!("{line}"));
    }

    /// The loop from the start of the run or from a checkpoint, without the updates of the steps `left_out` where the run returned
    /// to that checkpoint. Collective.
    fn training_loop<'r>(
        &'r self,
        folder: &'r Folder,
        trainer: &Trainer<'_>,
        resumed: Option<&Resumed>,
        left_out: Option<Vec<LeftOut>>,
        signals: &'r StopSignals,
        failed: &FailedRun,
    ) -> Result<TrainingLoop<'r>, Stop> {
        let Run { world, args, device, data, plan: Plan { config, partition, schedule, spec, .. }, .. } =
            self;
        let (mut state, change) = match resumed {
            Some(resumed) => {
                resumed.announce(world.world_size());
                let change = resumed.rate_change(config)?;
                change.iter().for_each(|change| info!("{change}"));
                let warning = change.as_ref().and_then(RateChange::warning);
                warning.iter().for_each(|warning| warn_of_all_ranks(world.rank().0, warning));
                (resumed.state_under(config), change)
            }
            None => (setup::first_state(config, data, partition), None),
        };
        state.left_out = left_out.unwrap_or(state.left_out);
        let loader = setup::loader(config, data, partition, world, *device, Some(&state));
        let (loader, loading) = world.collective_result(loader)?;
        banner::loading(&loader).iter().for_each(|line| info!("{line}"));
        let saver = Autosave::new(world, config, data, trainer, &folder.path)?;
        let run_dir = folder.owned.as_ref();
        let metrics = open_metrics(world, config, run_dir, failed.stdout.clone(), resumed, change.as_ref())?;
        failed.opened(folder.path.join(folder::METRICS_FILE));
        let evaluation = EvalPlan {
            world,
            config,
            data,
            partition: partition.eval,
            statistics: self.statistics_rows(&loading),
            loading,
            output_names: config.output_names().or_else(|| data.label_names()),
            signals,
        };
        let best_weights = resumed.and_then(Resumed::best_weights).map(<[f32]>::to_vec);
        let every_before = resumed.map_or(Ok(0), Resumed::eval_every_steps);
        let every_before = world.collective_result(every_before)?;
        let evaluations = Evaluations::new(evaluation, &state, every_before, best_weights);
        let plan = LoopPlan {
            world,
            config,
            data,
            partition,
            schedule: schedule.clone(),
            flop_per_row: spec.flop_per_row(),
            signals,
            folder: folder.path.clone(),
            run_dir,
            resume_command: run_dir.map_or_else(String::new, |folder| resume_command(world, args, folder)),
            trace: TracePlan { steps: args.trace, inbox: folder.inbox.clone() },
        };
        let progress = world.collective_result(self.progress(&state))?;
        Ok(TrainingLoop::new(plan, evaluations, loader, saver, metrics, progress, state))
    }

    /// Rows for the statistics of averaged weights, loaded as `loading` says.
    fn statistics_rows(&self, loading: &LoaderOptions) -> Option<StatisticsRows> {
        let Run { data, plan: Plan { config, partition, .. }, .. } = self;
        StatisticsRows::new(config, data, partition.micro_rows(data.train.len()), loading)
    }

    fn progress(&self, state: &RunState) -> Result<Box<dyn ddp::report::progress::Progress>, CommandError> {
        let Run { world, log, args, plan: Plan { config, partition, .. }, .. } = self;
        if world.rank().0 > 0 {
            return Ok(Box::new(()));
        }
        let n_rows = state.n_rows;
        let (total_rows, n_epochs) = match config.train.length {
            Length::Epochs(n) => ((n as u64).saturating_mul(n_rows), Some(n as u64)),
            Length::Steps(n) => ((n as u64).saturating_mul(n_rows.min(partition.global_rows as u64)), None),
        };
        let (rows, address) = (state.cursor..total_rows, args.metrics_addr);
        let served = address.map(|address| (address, RunInfo::new(&config.name, world.world_size())));
        let progress = Progress::new(log.terminal(), args.progress, args.quiet, served, rows, n_epochs);
        let unserved =
            |source| CommandError::MetricsAddress { address: address.map(|of| of.to_string()), source };
        Ok(Box::new(progress.map_err(unserved)?))
    }

    /// Writes the model file of a complete run, which marks it as complete. Collective.
    fn finish(
        &self,
        training: TrainingLoop<'_>,
        trainer: &mut Trainer<'_>,
        folder: Option<&RunDir>,
        failed: &FailedRun,
        is_mirrored: bool,
        mirror: &mut Option<Mirror>,
    ) -> Result<(), Stop> {
        let Run { world, args, data, plan: Plan { config, .. }, .. } = self;
        let deleted = folder.filter(|folder| folder.is_gone()).map(|folder| folder.path().to_owned());
        if let Some(path) = &deleted {
            // The model is worth saving all the same.
            let unwritable = |source| FolderError::Unwritable { path: path.clone(), source };
            std::fs::create_dir_all(path).map_err(unwritable)?;
        }
        // A run whose folder another one has taken over writes nothing there.
        let owned = folder.filter(|_| deleted.is_none()).map_or(Ok(()), RunDir::check_owned);
        world.collective_result(owned.map_err(Error::from))?;
        save(folder, trainer, training.statistics(), training.best_weights(), config, data)?;
        world.collective_result(
            deleted.map_or(Ok(()), |path| Err(Error::from(FolderError::Deleted { path }))),
        )?;
        let shown = folder.map(|folder| bucket::shown(folder.path()));
        training.finish(shown.as_deref(), trainer)?;
        // Last of all: it says that nothing of the run is missing.
        let done = folder.map(|folder| {
            page::write_complete(folder.path(), &bucket::shown(folder.path()));
            let run_id = run_id::read(folder.path());
            Done { run_id, job_id: args.job_id.clone(), step: trainer.n_steps() }
        });
        if is_mirrored {
            let finish = |mirror: Mirror| mirror.finish(done.as_ref(), world.watchdog());
            world.collective_result(mirror.take().map_or(Ok(()), finish))?;
        }
        if let (Some(folder), Some(done)) = (folder, done) {
            folder.check_owned()?;
            failed.complete(|| done.write(folder.path()))?;
        }
        Ok(())
    }
}

/// Logs the bytes of GPU memory by use, which `describe` plans.
fn debug_memory(device: Device) {
    let Device::Cuda(index) = device else { return };
    if let Ok(in_use) = Gpu::get(index).and_then(Gpu::memory_in_use) {
        let of = MemoryUse::ALL.iter().map(|of| format!("{} {}", of.name(), in_use.bytes[*of as usize]));
        debug!("bytes of GPU memory by use: {}", of.collect::<Vec<_>>().join(", "));
    }
}
