//! `ddp-train train`: a training run, from command-line arguments to the model file.
//!
//! (checkpoint ->) config -> world -> device -> data -> model -> buckets, then the loop: batch -> forward -> loss -> backward
//! (buckets start) -> wait -> clip -> step -> metrics -> checkpoint; at the end the model file.

pub(crate) mod banner;

use std::path::{Path, PathBuf};

use ddp_comm::{DeviceChoice, DeviceOptions, World};
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, DeviceRequest, Tensor};

use crate::checkpoint::CheckpointStore;
use crate::cli::TrainArgs;
use crate::commands::train::banner::Banner;
use crate::config::{Config, Determinism, Length};
use crate::data::{self, Loaded};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::model::file::{self, ModelFile, ModelInfo};
use crate::model::{ModelSpec, ParamLayout};
use crate::optim::schedule::Schedule;
use crate::report::metrics::{Event, MetricsSink, ResumeEvent};
use crate::report::progress::Progress;
use crate::report::stdout::print_result;
use crate::run_folder::error::FolderError;
use crate::run_folder::folder;
use crate::run_folder::folder::{Existing, RunDir};
use crate::storage::atomic_write::write_atomic;
use crate::train::TrainError;
use crate::train::autosave::Autosave;
use crate::train::resume::Resumed;
use crate::train::setup;
use crate::train::setup::BatchPartition;
use crate::train::stop_signals::StopSignals;
use crate::train::trainer::Trainer;
use crate::train::training_loop::{Ending, LoopPlan, TrainingLoop};

/// Trains as `args` say; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn train(world: &World, args: &TrainArgs) -> Result<(), Stop> {
    let run = Run::prepare(world, args)?;
    if args.dry_run {
        run.progress.note("dry run: config, data and model are in order; nothing was trained");
        return Ok(());
    }
    run.train()
}

/// A run that is checked on all ranks and ready to train; nothing is written yet.
struct Run<'w> {
    world: &'w World,
    args: &'w TrainArgs,
    signals: StopSignals,
    config: Config,
    data: Loaded,
    device: Device,
    cuts: BatchPartition,
    schedule: Schedule,
    trainer: Trainer<'w>,
    /// The checkpoint that the trainer was restored from.
    resumed: Option<Resumed>,
    progress: Progress,
}

impl<'w> Run<'w> {
    /// Loads config and data, agrees on them with the other ranks, builds the model, and announces the run.
    fn prepare(world: &'w World, args: &'w TrainArgs) -> Result<Self, Stop> {
        let signals = StopSignals::listen(world).map_err(|source| TrainError::Signals { source })?;
        let resumed = Resumed::find(world, args.resume.as_ref(), args.out.as_deref())?;
        let config = world.collective_result(load_config(world, args, resumed.as_ref()))?;
        agree_on_config(world, args, &config)?;
        let choice = pin_device(world, &args.device, pinning(args, &config))?;
        let data = data::load(&config, world)?;
        if let Some(resumed) = &resumed {
            world.collective_result(resumed.check_data(&data))?;
        }
        let init_from = args.init_from.as_deref().map(ModelFile::read).transpose().map_err(Error::from);
        let init_from = world.collective_result(init_from)?;
        let layout = data.train.layout();
        let spec = ModelSpec::new(&config.model, layout.n_features(), layout.targets.n_outputs())
            .with_embeddings(data.preprocessor.plan.embeddings());
        agree_on_model(world, &spec, init_from.as_ref())?;

        let global_rows = resumed.as_ref().map(|resumed| resumed.state().global_rows as usize);
        let cuts = BatchPartition::new(&config, world, &data, global_rows);
        let cuts = world.collective_result(cuts)?;
        let schedule = setup::schedule(&config, data.train.len(), cuts.global_rows);
        let schedule = world.collective_result(schedule)?;
        let trainer = setup::trainer(world, args.cuda_graph, &config, spec.clone(), &cuts, choice.device);
        let mut trainer = world.collective_result(trainer)?;
        if let Some(file) = &init_from {
            world.collective_result(setup::init_from(&mut trainer, file))?;
        }
        let resumed = match resumed {
            Some(resumed) => Some(resumed.restore(world, &config, &data, &mut trainer)?),
            None => None,
        };
        if args.dry_run {
            world.collective_result(check_out(world, args))?;
        }
        let progress = progress(world, args, &config, &cuts, data.train.len());
        let banner = Banner {
            world,
            config: &config,
            data: &data,
            spec: &spec,
            cuts: &cuts,
            trainer: &trainer,
            options: &setup::trainer_options(&config, &cuts, args.cuda_graph),
        };
        world.collective_result(announce(&banner, args, &choice, &progress))?;
        let device = choice.device;
        Ok(Run { world, args, signals, config, data, device, cuts, schedule, trainer, resumed, progress })
    }

    /// Trains to the end or to a request to stop, and writes the model file.
    fn train(self) -> Result<(), Stop> {
        let Run {
            world,
            args,
            signals,
            config,
            data,
            device,
            cuts,
            schedule,
            mut trainer,
            resumed,
            progress,
        } = self;
        let state = resumed.as_ref().map(Resumed::state);
        let folder = world.collective_result(open_folder(world, args, &config, resumed.as_ref()))?;
        let (loader, loading) =
            world.collective_result(setup::loader(&config, &data, &cuts, world, device, state))?;
        if schedule.ends_in_warmup() {
            progress.note("warning: training ends during the warm-up\nhint: lower schedule.warmup_steps, or set schedule.warmup_fraction");
        }
        banner::determinism(&config, &cuts, &trainer).iter().for_each(|line| progress.note(line));
        banner::loading(&loader).iter().for_each(|line| progress.note(line));
        let saver = Autosave::new(world, &config, &data, &trainer, folder.as_ref().map(RunDir::path))?;
        saver.note().iter().for_each(|note| progress.note(note));
        let metrics = open_metrics(world, folder.as_ref(), args.json, resumed.as_ref())?;
        if let Some(resumed) = &resumed {
            resumed.announce(&progress, world.world_size());
        }

        let plan = LoopPlan {
            world,
            config: &config,
            data: &data,
            schedule,
            eval_partition: cuts.eval,
            loading,
            signals: &signals,
        };
        let state = state.cloned().unwrap_or_else(|| setup::first_state(&config, &data, &cuts));
        let mut training = TrainingLoop::new(plan, loader, saver, metrics, progress, state);
        match training.train(&mut trainer)? {
            Ending::Stopped(reason) => return Err(Stop::Saved(reason)),
            Ending::Complete => {}
        }
        let layout = trainer.model().layout().clone();
        match trainer.averaged_weights()? {
            Some(average) => save(folder.as_ref(), &layout, average, &config, &data)?,
            None => save(folder.as_ref(), &layout, trainer.model().weights(), &config, &data)?,
        }
        training.finish(folder.as_ref().map(RunDir::path))?;
        Ok(())
    }
}

/// Loads the config of the file, or of the resumed run, and applies the flags to it.
fn load_config(world: &World, args: &TrainArgs, resumed: Option<&Resumed>) -> Result<Config> {
    let mut set = args.set.clone();
    set.extend(args.comm_dtype.map(|dtype| format!("comm.dtype={}", dtype.name())));
    let mut config = match (&args.config, resumed) {
        (Some(file), _) => Config::load(Some(file), &set)?,
        (None, Some(resumed)) => resumed.config(&set)?,
        (None, None) => Config::load(None, &set)?,
    };
    data::resolve_eval(&mut config.data)?;
    let Some(resumed) = resumed else { return Ok(config) };
    resumed.check_config(&config, world.world_size())?;
    Ok(config)
}

/// Settings under which a rank uses its device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pinning {
    /// Whether several ranks may use one GPU.
    pub(crate) share_gpu: bool,
    /// Whether matmuls and reductions on GPUs use only deterministic algorithms.
    pub(crate) deterministic: bool,
    /// Compute threads per rank; `None` for its share of the host's cores.
    pub(crate) n_threads: Option<usize>,
}

fn pinning(args: &TrainArgs, config: &Config) -> Pinning {
    let deterministic = config.train.deterministic != Determinism::Off;
    Pinning { share_gpu: args.share_gpu, deterministic, n_threads: args.threads }
}

/// Chooses the rank's device, connects it to the other ranks' devices, and starts the rank's compute threads.
pub(crate) fn pin_device(world: &World, device: &str, pinning: Pinning) -> Result<DeviceChoice, Stop> {
    let Pinning { share_gpu, deterministic, n_threads } = pinning;
    let choose = || -> Result<DeviceChoice> {
        let request: DeviceRequest = device.parse()?;
        let choice = world.choose_device(request, share_gpu)?;
        if let (true, Device::Cuda(index)) = (deterministic, choice.device) {
            Gpu::get(index)?.set_deterministic(true);
        }
        threads::join_pool(n_threads.unwrap_or_else(|| threads::default_per_rank(world.local_size())))?;
        Ok(choice)
    };
    let choice = world.collective_result(choose())?;
    let options = DeviceOptions { share_gpu, deterministic, ..DeviceOptions::default() };
    world.connect_device(choice.device, options).map_err(Error::from)?;
    Ok(choice)
}

/// Checks that all ranks run the same program on the same config.
fn agree_on_config(world: &World, args: &TrainArgs, config: &Config) -> Result<()> {
    let mut entries = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    entries.extend(config.agreement_entries());
    entries.push(("--dry-run".to_owned(), args.dry_run.to_string()));
    Ok(world.agree(&entries)?)
}

/// Checks that all ranks build the same model.
fn agree_on_model(world: &World, spec: &ModelSpec, init_from: Option<&ModelFile>) -> Result<()> {
    let init_from = init_from.map_or("none".to_owned(), |file| format!("{:016x}", file.fingerprint()));
    let entries = [
        ("--init-from (fingerprint)", init_from),
        ("widths of the model's layers", format!("{:?}", spec.dims)),
        ("embeddings of the model", format!("{:?}", spec.embeddings)),
    ];
    Ok(world.agree(&entries.map(|(key, value)| (key.to_owned(), value)))?)
}

/// Writes the model file, on the rank that has the folder.
fn save(
    folder: Option<&RunDir>,
    layout: &ParamLayout,
    weights: &Tensor,
    config: &Config,
    data: &Loaded,
) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let info = ModelInfo { config: config.to_saved_toml(), preprocessor: data.preprocessor.clone() };
    let bytes = file::to_bytes(layout, weights, &info)?;
    Ok(write_atomic(&folder.file(folder::MODEL_FILE), &bytes)?)
}

fn progress(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    cuts: &BatchPartition,
    n_rows: usize,
) -> Progress {
    if world.rank().0 > 0 {
        return Progress::none();
    }
    let (total_rows, n_epochs) = match config.train.length {
        Length::Epochs(n) => (n as u64 * n_rows as u64, Some(n as u64)),
        Length::Steps(n) => (n as u64 * cuts.global_rows.min(n_rows) as u64, None),
    };
    Progress::new(args.progress, args.quiet, total_rows, n_epochs)
}

/// Reports the run: one line, or all of it with `--verbose`. A dry run prints its config to stdout.
fn announce(banner: &Banner<'_>, args: &TrainArgs, device: &DeviceChoice, progress: &Progress) -> Result<()> {
    progress.note(&banner.line(device));
    let rows = &banner.data.train;
    rows.layout().left_out.iter().for_each(|note| progress.note(&format!("{}: {note}", rows.source())));
    if !args.verbose && !args.dry_run {
        return Ok(());
    }
    let toml = banner.config.to_toml();
    if !args.dry_run || args.json {
        progress.note(&toml);
    } else if banner.world.rank().0 == 0 && !args.quiet {
        print_result(&toml)?;
    }
    progress.note(&banner.details());
    Ok(())
}

fn check_out(world: &World, args: &TrainArgs) -> Result<()> {
    match &args.out {
        Some(out) if world.rank().0 == 0 && args.resume.is_none() => Ok(folder::check(out, existing(args))?),
        _ => Ok(()),
    }
}

/// Decides what happens to a run that `--out` already holds, unless it is resumed.
fn existing(args: &TrainArgs) -> Existing {
    // A run that was killed before its first checkpoint starts over.
    let is_unfinished = |out: &PathBuf| !out.join(folder::MODEL_FILE).exists();
    let restarts = args.resume.is_some() && args.out.as_ref().is_some_and(is_unfinished);
    if args.overwrite || restarts { Existing::Overwrite } else { Existing::Refuse }
}

/// Claims the run folder on rank 0 and writes the resolved config into it.
fn open_folder(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    resumed: Option<&Resumed>,
) -> Result<Option<RunDir>> {
    if world.rank().0 > 0 {
        return Ok(None);
    }
    let folder = match resumed {
        Some(resumed) => {
            let folder = resumed.folder(args.out.as_deref());
            if let Err(TrainError::Folder(error)) = &folder
                && let FolderError::Behind { run, .. } = &**error
            {
                // That another run is active in the folder matters more than how far it has come.
                folder::check_free(run)?;
            }
            let (out, existing) = folder?;
            claim_folder(Some(&out), &config.name, existing)?
        }
        None => claim_folder(args.out.as_deref(), &config.name, existing(args))?,
    };
    write_atomic(&folder.file(folder::CONFIG_FILE), config.to_saved_toml().as_bytes())?;
    Ok(Some(folder))
}

/// Claims the run folder and, unless its run continues, removes that run.
fn claim_folder(out: Option<&Path>, name: &str, existing: Existing) -> Result<RunDir> {
    let folder = RunDir::open(out, name, existing)?;
    if existing != Existing::Continue {
        // First, so that a process killed in between leaves no checkpoints that a later run would resume by mistake.
        CheckpointStore::of_run(folder.path()).delete_all()?;
        folder.clear()?;
    }
    Ok(folder)
}

fn open_metrics(
    world: &World,
    folder: Option<&RunDir>,
    json: bool,
    resumed: Option<&Resumed>,
) -> Result<MetricsSink> {
    let Some(folder) = folder else { return Ok(MetricsSink::none()) };
    let path = folder.file(folder::METRICS_FILE);
    let Some(manifest) = resumed.map(Resumed::manifest) else { return Ok(MetricsSink::create(&path, json)?) };
    let step = manifest.run.step;
    let mut metrics = MetricsSink::resume(&path, json, step)?;
    let (world_size, world_size_before) = (world.world_size(), manifest.world_size);
    metrics.write(&Event::Resume(ResumeEvent { step, world_size, world_size_before }))?;
    Ok(metrics)
}
