//! `ddp-train train`: a training run, from command-line arguments to the model file.
//!
//! (checkpoint ->) config -> world -> device -> data -> model -> buckets, then the loop: batch -> forward -> loss -> backward
//! (buckets start) -> wait -> clip -> step -> metrics -> checkpoint; at the end the model file.

pub(crate) mod banner;
mod outputs;
mod rank_logs;

use std::num::NonZero;

use ddp::checkpoint::RunState;
use ddp::config::{CommDtype, Config, Determinism, EvalSource, Length, Overrides};
use ddp::data::{self, EmbeddingSpec, Fitted, Loaded};
use ddp::model::ModelSpec;
use ddp::model::file::{ModelFile, ModelInfo};
use ddp::optim::run_schedule::RunSchedule;
use ddp::predict::{self, SavedModel};
use ddp::report::notes::warn_of_all_ranks;
use ddp::report::{EventStream, ReportError};
use ddp::run_folder::done::Done;
use ddp::run_folder::error::FolderError;
use ddp::run_folder::folder;
use ddp::run_folder::folder::RunDir;
use ddp::run_folder::run_id;
use ddp::train::TrainError;
use ddp::train::autosave::Autosave;
use ddp::train::evaluations::{EvalPlan, Evaluations};
use ddp::train::resume::{Resumed, shared_folder};
use ddp::train::setup;
use ddp::train::setup::BatchPartition;
use ddp::train::stop_signals::{StopSignals, unsaved};
use ddp::train::trainer::{GraphMode, Trainer};
use ddp::train::training_loop::{Ending, LoopPlan, TrainingLoop};
use ddp_comm::{DeviceChoice, DeviceOptions, Phase, RegisterBuffers, World, cores};
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, DeviceRequest, MemoryUse};
use tracing::{Level, Span, debug, enabled, field, info, info_span, warn};

use crate::cli::{Bind, TrainArgs};
use crate::commands::quick_build::warn_if_quick_build;
use crate::commands::train::banner::Banner;
use crate::commands::train::outputs::{check_out, open_folder, open_metrics, resume_command, save};
use crate::commands::watchdog::{self, Watched};
use crate::error::command::{CommandError, MAX_THREADS_PER_CORE};
use crate::error::{Error, ModelCommand, Result};
use crate::exit::Stop;
use crate::report::FailedRun;
use crate::report::log::Log;
use crate::report::progress::Progress;
use crate::report::stdout::print_result;

/// Trains as `args` say; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn train(world: &World, log: &Log, signals: &StopSignals, args: &TrainArgs) -> Result<(), Stop> {
    let (rank, world_size) = (world.rank().0, world.world_size());
    let _span = info_span!("run", rank, world_size, run_name = field::Empty).entered();
    let stdout = args.json.then(EventStream::stdout).transpose();
    let stdout = stdout.map_err(|source| ReportError::Stdout { source })?;
    let mut failed = FailedRun::new(stdout);
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
    let run = Run::prepare(world, log, args, failed)?;
    if args.dry_run {
        info!("dry run: config, data and model are in order; nothing was trained");
        return Ok(());
    }
    if let Some(reason) = signals.begin_run(world)? {
        info!("{}", unsaved(&reason));
        return Err(Stop::Requested(reason));
    }
    run.train(signals, failed)
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

/// A run that is checked on all ranks and ready to train; nothing is written yet.
struct Run<'w> {
    world: &'w World,
    log: &'w Log,
    args: &'w TrainArgs,
    config: Config,
    data: Loaded,
    device: Device,
    partition: BatchPartition,
    schedule: RunSchedule,
    trainer: Trainer<'w>,
    /// The checkpoint that the trainer was restored from.
    resumed: Option<Resumed>,
}

impl<'w> Run<'w> {
    /// Loads config and data, agrees on them with the other ranks, builds the model, and announces the run.
    fn prepare(
        world: &'w World,
        log: &'w Log,
        args: &'w TrainArgs,
        failed: &FailedRun,
    ) -> Result<Self, Stop> {
        let resumed = Resumed::find(world, args.resume.as_ref(), args.out.as_deref())?;
        let config = world.collective_result(load_config(world, args, resumed.as_ref(), None))?;
        agree_on_config(world, args, &config)?;
        watchdog::start(world, log, &config.watchdog, Watched::Run(failed.clone()))?;
        Span::current().record("run_name", &config.name);
        let choice = pin_device(world, &args.device, pinning(args, &config))?;
        world.watchdog().set_device(&choice.device.to_string());
        world.collective_result(check_graph(args.cuda_graph, choice.device))?;
        let init_from = initial_model(world, args)?;
        let fitted = fitted(args, init_from.as_ref(), resumed.as_ref());
        agree_on_start(world, args, init_from.as_ref(), fitted.as_ref())?;
        let config_of_data = resumed.as_ref().map(|resumed| resumed.config_of_data(&config));
        let loading = || log.terminal().show_busy(format!("loading {}", config.data.train));
        let loading = args.progress.may_have_bar().then(loading);
        let data = data::load_with(
            config_of_data.as_ref().unwrap_or(&config),
            world,
            fitted.as_ref().map(|info| match &resumed {
                Some(_) => Fitted::Resumed(&info.preprocessor),
                None if args.new_head => Fitted::InitialFeatures(&info.preprocessor),
                None => Fitted::Initial(&info.preprocessor),
            }),
        );
        drop(loading);
        let keeps_labels = fitted.is_some() && resumed.is_none() && !args.new_head;
        let data = data.map_err(|stop| {
            stop.map(|error| {
                if keeps_labels { Error::of_model_data(error, ModelCommand::InitFrom) } else { error.into() }
            })
        })?;
        if let Some(resumed) = &resumed {
            world.collective_result(resumed.check_data(&data))?;
        }
        if let Some(resumed) = resumed.as_ref().filter(|_| !args.allow_batchnorm_change) {
            world.collective_result(resumed.check_batch_norm(&config, world.world_size()))?;
        }
        let was_balanced = config.loss.is_balanced();
        let decided = |task| load_config(world, args, resumed.as_ref(), Some(task));
        let config = world.collective_result(data.resolve(config, decided))?;
        if let Some(resumed) = resumed.as_ref().filter(|_| was_balanced) {
            world.collective_result(resumed.check_config(&config, world.world_size()))?;
        }
        let spec = setup::model_spec(&config, &data);
        agree_on_model(world, &spec)?;

        let global_rows = resumed.as_ref().map(|resumed| resumed.state().global_rows as usize);
        let partition = BatchPartition::new(&config, world, &data, global_rows);
        let partition = world.collective_result(partition)?;
        let schedule = setup::schedule(&config, data.train.len(), partition.global_rows);
        let schedule = world.collective_result(schedule)?;
        let trainer = setup::trainer(world, args.cuda_graph, &config, &data, &partition, choice.device);
        let mut trainer = world.collective_result(trainer)?;
        if let Some(file) = &init_from {
            world.collective_result(setup::init_from(&mut trainer, file, args.new_head))?;
        }
        let resumed = match resumed {
            Some(resumed) => Some(resumed.restore(world, &config, &data, &mut trainer)?),
            None => None,
        };
        if args.dry_run {
            world.collective_result(check_out(world, args))?;
        }
        let banner = Banner {
            world,
            config: &config,
            data: &data,
            spec: &spec,
            partition: &partition,
            trainer: &trainer,
        };
        data.notes().iter().for_each(|note| info!("{note}"));
        world.collective_result(announce(&banner, args, &choice))?;
        data.warnings.iter().for_each(|warning| warn!("{warning}"));
        if !data.train.source().starts_with("builtin:") {
            warn_if_quick_build(world);
        }
        banner::target_scale(&data).iter().for_each(|line| info!("{line}"));
        if let Some(file) = init_from.as_ref().filter(|file| Some(file.path()) != args.init_from.as_deref()) {
            info!("initial weights: {}", file.path().display());
        }
        if let (Some(file), Some(_), None) = (&args.init_from, &fitted, &resumed) {
            info!(
                "preprocessing of the rows is that of {}; --refit-preprocessing fits it to the training rows",
                file.display()
            );
        }
        let device = choice.device;
        if device == Device::Cpu && config.comm.dtype != CommDtype::F32 {
            let message = format!(
                "comm.dtype = \"{}\" applies to gradients between GPUs; on the CPU they travel as f32",
                config.comm.dtype
            );
            warn_of_all_ranks(world.rank().0, &message);
        }
        if config.data.eval == EvalSource::Unset && resumed.is_none() {
            info!("no rows are held out for evaluation: --eval-fraction 0.2 evaluates on a fifth of them");
        }
        Ok(Run { world, log, args, config, data, device, partition, schedule, trainer, resumed })
    }

    /// Trains to the end or to a request to stop, and writes the model file.
    fn train(self, signals: &StopSignals, failed: &mut FailedRun) -> Result<(), Stop> {
        let Run { world, log, args, config, data, device, partition, schedule, mut trainer, mut resumed } =
            self;
        if let Some(mode) = config.run.file_mode {
            // Of the whole process: libraries and threads create files of the run too.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mode.umask()));
        }
        let folder = world.collective_result(open_folder(world, args, &config, resumed.as_ref()))?;
        let path = shared_folder(world, folder.as_ref().map(RunDir::path))?;
        rank_logs::open(world, log, &path)?;
        if schedule.ends_in_warmup() {
            let warning = "training ends during the warm-up\nhint: lower schedule.warmup_steps, or set schedule.warmup_fraction";
            warn_of_all_ranks(world.rank().0, warning);
        }
        banner::same_rows(&config.data).iter().for_each(|warning| warn_of_all_ranks(world.rank().0, warning));
        banner::determinism(&config, &partition, &trainer).iter().for_each(|line| info!("{line}"));
        let mut state = match &resumed {
            Some(resumed) => {
                resumed.announce(world.world_size());
                resumed.state().clone()
            }
            None => setup::first_state(&config, &data, &partition),
        };
        // Once, and again from each checkpoint to which the run returns.
        let training = loop {
            let (loader, loading) = world.collective_result(setup::loader(
                &config,
                &data,
                &partition,
                world,
                device,
                Some(&state),
            ))?;
            banner::loading(&loader).iter().for_each(|line| info!("{line}"));
            let saver = Autosave::new(world, &config, &data, &trainer, &path)?;
            let metrics = open_metrics(world, folder.as_ref(), failed.stdout.clone(), resumed.as_ref())?;
            let _ = failed.metrics.set(path.join(folder::METRICS_FILE));
            let evaluation = EvalPlan {
                world,
                config: &config,
                data: &data,
                partition: partition.eval,
                loading,
                output_names: config.output_names().or_else(|| data.label_names()),
                signals,
            };
            let best_weights = resumed.as_ref().and_then(Resumed::best_weights).map(<[f32]>::to_vec);
            let evaluations = Evaluations::new(evaluation, &state, best_weights);
            let plan = LoopPlan {
                world,
                config: &config,
                data: &data,
                partition: &partition,
                schedule: schedule.clone(),
                signals,
                folder: path.clone(),
                run_dir: folder.as_ref(),
                resume_command: folder
                    .as_ref()
                    .map_or_else(String::new, |folder| resume_command(world, args, folder)),
            };
            let progress = progress(world, log, args, &config, &partition, &state);
            let mut training = TrainingLoop::new(plan, evaluations, loader, saver, metrics, progress, state);
            let ended = training.train(&mut trainer);
            // On a GPU the next step may be enqueued when one fails.
            let failed_step = ended.as_ref().err().and_then(|stop| stop.error()).and_then(TrainError::step);
            failed.step = Some(failed_step.unwrap_or(trainer.n_steps()));
            match ended {
                Ok(Ending::RolledBack { to, left_out }) => {
                    drop(training);
                    let to = to.restore(world, &config, &data, &mut trainer)?;
                    to.announce(world.world_size());
                    state = RunState { left_out, ..to.state().clone() };
                    resumed = Some(to);
                }
                Ok(Ending::Complete) => break training,
                Ok(Ending::Stopped(reason)) => {
                    world.watchdog().enter(Phase::End);
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
        debug_memory(device);
        let is_gone = folder.as_ref().is_some_and(RunDir::is_gone);
        if let Some(folder) = folder.as_ref().filter(|_| is_gone) {
            // The model is worth saving all the same.
            let unwritable = |source| FolderError::Unwritable { path: folder.path().to_owned(), source };
            std::fs::create_dir_all(folder.path()).map_err(unwritable)?;
        }
        save(folder.as_ref(), &mut trainer, training.best_weights(), &config, &data)?;
        let deleted = folder.as_ref().filter(|_| is_gone).map(|folder| folder.path().to_owned());
        world.collective_result(
            deleted.map_or(Ok(()), |path| Err(Error::from(FolderError::Deleted { path }))),
        )?;
        training.finish(folder.as_ref().map(RunDir::path))?;
        // Last of all: it says that nothing of the run is missing.
        if let Some(folder) = &folder {
            let path = folder.path();
            let done =
                Done { run_id: run_id::read(path), job_id: args.job_id.clone(), step: trainer.n_steps() };
            failed.complete(|| done.write(path))?;
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

/// Loads the config of the file, or of the resumed run, and applies the flags to it, and the setting `decided`.
fn load_config(
    world: &World,
    args: &TrainArgs,
    resumed: Option<&Resumed>,
    decided: Option<String>,
) -> Result<Config> {
    let mut overrides = args.run.overrides();
    overrides.sets.extend(args.comm_dtype.map(|dtype| format!("comm.dtype={}", dtype.name())));
    if let Some(task) = decided {
        overrides.decide_task(task);
    }
    let mut config = match (resumed, args.run.file()) {
        (None, file) => Config::load_with(file, &overrides)?,
        (Some(resumed), Some(file)) => match resumed.config_of_file(file, &overrides)? {
            // The targets have decided when the run began.
            config if config.data.auto_task => {
                let task = resumed.config(&Overrides::default())?.data.task;
                overrides.decide_task(format!("data.task={task}"));
                resumed.config_of_file(file, &overrides)?
            }
            config => config,
        },
        (Some(resumed), None) => resumed.config(&overrides)?,
    };
    data::resolve_eval(&mut config.data)?;
    if config.data.eval == EvalSource::Unset && config.needs_eval() {
        // Names the setting that needs rows, and its place.
        overrides.sets.push("data.eval=\"none\"".to_owned());
        Config::load_with(args.run.file(), &overrides)?;
    }
    let Some(resumed) = resumed else { return Ok(config) };
    resumed.check_config(&config, world.world_size())?;
    Ok(config)
}

/// The model of `--init-from`: a file, or the one of a run or checkpoint folder. Collective.
fn initial_model(world: &World, args: &TrainArgs) -> Result<Option<ModelFile>, Stop> {
    let Some(path) = args.init_from.as_deref() else { return Ok(None) };
    let is_active = predict::is_active(world, path).map_err(Error::from)?;
    Ok(Some(world.collective_result(SavedModel::initial(path, is_active))?))
}

/// Settings under which a rank uses its device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pinning {
    /// Whether several ranks may use one GPU.
    pub(crate) share_gpu: bool,
    /// Whether matmuls and reductions on GPUs use only deterministic algorithms.
    pub(crate) deterministic: bool,
    /// Compute threads per rank; `None` for its share of the cores that it may run on.
    pub(crate) n_threads: Option<usize>,
    /// Whether the rank is bound to the CPUs near its GPU.
    pub(crate) bind: Bind,
    /// Whether NCCL reads and writes the buffers of collectives in place.
    pub(crate) register_buffers: RegisterBuffers,
}

fn pinning(args: &TrainArgs, config: &Config) -> Pinning {
    let deterministic = config.train.deterministic != Determinism::Off;
    Pinning {
        share_gpu: args.share_gpu,
        deterministic,
        n_threads: args.threads,
        bind: args.bind,
        register_buffers: config.comm.register_buffers,
    }
}

/// Chooses the rank's device, connects it to the other ranks' devices, and starts the rank's compute threads.
pub(crate) fn pin_device(world: &World, device: &str, pinning: Pinning) -> Result<DeviceChoice, Stop> {
    let Pinning { share_gpu, deterministic, n_threads, bind, register_buffers } = pinning;
    let choose = || -> Result<DeviceChoice> {
        let request: DeviceRequest = device.parse()?;
        let choice = world.choose_device(request, share_gpu)?;
        if let (true, Device::Cuda(index)) = (deterministic, choice.device) {
            Gpu::get(index)?.set_deterministic(true);
        }
        check_threads(n_threads)?;
        Ok(choice)
    };
    let choice = world.collective_result(choose())?;
    banner::unused_gpu(&choice).iter().for_each(|line| warn_of_all_ranks(world.rank().0, line));
    let near = if bind == Bind::Auto { cores::bind_near(choice.device) } else { None };
    let share = world.cores_per_rank().map_err(Error::from)?;
    let n_threads = n_threads.unwrap_or(share);
    world.collective_result(threads::join_pool(n_threads).map_err(Error::from))?;
    debug!("{}", cpu_words(n_threads, near, choice.device));
    let options = DeviceOptions { share_gpu, deterministic, register_buffers, ..DeviceOptions::default() };
    world.connect_device(choice.device, options).map_err(Error::from)?;
    Ok(choice)
}

/// The rank's threads and CPUs, and why it runs on these.
fn cpu_words(n_threads: usize, near: Option<CpuSet>, device: Device) -> String {
    let why =
        near.map_or_else(String::new, |_| format!(", those near {device}; --bind none leaves them all"));
    format!("{} on CPUs {}{why}", banner::count(n_threads, "thread"), CpuSet::of_thread())
}

/// The preprocessor that comes with the weights: of the checkpoint to resume from, or of `--init-from`. A file of another program
/// has none.
fn fitted(args: &TrainArgs, init_from: Option<&ModelFile>, resumed: Option<&Resumed>) -> Option<ModelInfo> {
    match (resumed, init_from) {
        // Damage is found when the checkpoint is restored.
        (Some(resumed), _) => resumed.model_info().ok(),
        (None, Some(file)) if !args.refit_preprocessing => file.info().ok(),
        (None, _) => None,
    }
}

/// Checks that a CUDA graph that was requested can be captured.
pub(crate) fn check_graph(mode: GraphMode, device: Device) -> Result<()> {
    match (mode, device) {
        (GraphMode::On, Device::Cpu) => Err(CommandError::NoGraphOnCpu.into()),
        _ => Ok(()),
    }
}

fn check_threads(n_threads: Option<usize>) -> Result<()> {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let max = MAX_THREADS_PER_CORE * n_cores;
    match n_threads {
        Some(n_threads) if n_threads > max => Err(CommandError::TooManyThreads { n_threads, max }.into()),
        _ => Ok(()),
    }
}

/// Checks that all ranks run the same config.
fn agree_on_config(world: &World, args: &TrainArgs, config: &Config) -> Result<()> {
    let mut entries = config.agreement_entries();
    entries.push(("--dry-run".to_owned(), args.dry_run.to_string()));
    Ok(world.agree(&entries)?)
}

/// Checks that all ranks start from the same weights and preprocessing, which decide how rows are read.
fn agree_on_start(
    world: &World,
    args: &TrainArgs,
    init_from: Option<&ModelFile>,
    fitted: Option<&ModelInfo>,
) -> Result<()> {
    let init_from = init_from.map_or("none".to_owned(), |file| format!("{:016x}", file.fingerprint()));
    let fitted = fitted.map_or("none".to_owned(), |info| format!("{:016x}", info.preprocessor.fingerprint()));
    let entries = [
        ("--init-from (fingerprint)", init_from),
        ("--new-head", args.new_head.to_string()),
        ("preprocessing that is kept (fingerprint)", fitted),
    ];
    Ok(world.agree(&entries.map(|(key, value)| (key.to_owned(), value)))?)
}

/// Checks that all ranks build the same model. The layers come from the config, on which the ranks agree already.
fn agree_on_model(world: &World, spec: &ModelSpec) -> Result<()> {
    let entries = [
        (
            "widths of the model's layers",
            spec.dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
        ),
        (
            "embeddings of the model",
            spec.embeddings.iter().map(EmbeddingSpec::words).collect::<Vec<_>>().join(", "),
        ),
    ];
    Ok(world.agree(&entries.map(|(key, value)| (key.to_owned(), value)))?)
}

fn progress(
    world: &World,
    log: &Log,
    args: &TrainArgs,
    config: &Config,
    partition: &BatchPartition,
    state: &RunState,
) -> Box<dyn ddp::report::progress::Progress> {
    if world.rank().0 > 0 {
        return Box::new(());
    }
    let n_rows = state.n_rows;
    let (total_rows, n_epochs) = match config.train.length {
        Length::Epochs(n) => ((n as u64).saturating_mul(n_rows), Some(n as u64)),
        Length::Steps(n) => ((n as u64).saturating_mul(n_rows.min(partition.global_rows as u64)), None),
    };
    Box::new(Progress::new(log.terminal(), args.progress, args.quiet, state.cursor..total_rows, n_epochs))
}

/// Reports the run: one line, or all of it at level debug. A dry run prints its config to stdout, and the rest on stderr.
fn announce(banner: &Banner<'_>, args: &TrainArgs, device: &DeviceChoice) -> Result<()> {
    info!("{}", banner.line(device));
    let rows = &banner.data.train;
    rows.layout().left_out.iter().for_each(|note| info!("{}: {note}", rows.source()));
    if let Some(why) = &device.reason {
        debug!("--device auto chose the CPU: {}", why.reason);
    }
    if args.dry_run {
        let toml = banner.config.to_toml();
        if args.json {
            info!("{toml}");
        } else if banner.world.rank().0 == 0 && !args.quiet {
            print_result(&toml)?;
        }
        info!("{}", banner.details());
    } else if enabled!(Level::DEBUG) {
        debug!("config of the run:\n{}", banner.config.to_toml().trim_end());
        debug!("data, model and exchange of the run:\n{}", banner.details());
    }
    Ok(())
}
