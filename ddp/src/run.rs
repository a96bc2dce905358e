//! A training run, from the command line's arguments to the model's file.
//!
//! config -> world -> device -> data -> model -> buckets, then the loop: batch -> forward -> loss -> backward (buckets
//! start) -> wait -> clip -> step -> metrics; at the end the model's file.

use std::io::Write as _;

use ddp_comm::{DeviceOptions, World};
use ddp_kernels::cpu::threads;
use ddp_kernels::{Device, DeviceChoice, DeviceRequest};

use crate::cli::TrainArgs;
use crate::config::{Config, Length};
use crate::data::{self, Loaded};
use crate::describe;
use crate::error::{Error, Result};
use crate::loader::{BatchPlan, Loader, LoaderOptions, Shuffle};
use crate::metrics::MetricsSink;
use crate::model::file::{self, ModelFile, ModelInfo};
use crate::model::{LossHead, Mlp, ModelSpec, Optimizer};
use crate::outcome::Stop;
use crate::progress::Progress;
use crate::rundir::{self, Existing, RunDir};
use crate::trainer::{GraphMode, Trainer, TrainerOptions};
use crate::training_loop::TrainingLoop;

/// Rows of a pass in evaluation, where training's micro-batches are smaller.
const EVAL_ROWS: usize = 256;

/// Trains as `args` say; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn train(world: &World, args: &TrainArgs) -> Result<(), Stop> {
    let config = world.collective_result(load_config(args))?;
    agree_on_config(world, args, &config)?;
    let choice = pin_device(world, &args.device, args.share_gpu, args.threads)?;
    let device = choice.device;
    let data = data::load(&config, world)?;
    let init_from = args.init_from.as_deref().map(ModelFile::read).transpose();
    let init_from = world.collective_result(init_from)?;
    let layout = data.train.layout();
    let spec = ModelSpec::new(&config.model, layout.n_features(), layout.targets.n_outputs())
        .with_embeddings(data.preprocessor.plan.embeddings());
    agree_on_model(world, &spec, init_from.as_ref())?;

    let global_rows = config.train.global_rows(world.world_size()).ok_or(Error::BatchOverflows)?;
    let model = world.collective_result(build_model(
        world,
        init_from.as_ref(),
        &config,
        &data,
        spec,
        global_rows,
        device,
    ))?;
    if args.dry_run {
        world.collective_result(check_out(world, args))?;
    }
    let progress = progress(world, args, &config, data.train.len());
    announce(world, args, &config, &data, &model, &choice, &progress);
    if args.dry_run {
        progress.note("dry run: config, data and model are in order; nothing was trained");
        return Ok(());
    }

    let folder = world.collective_result(open_folder(world, args, &config))?;
    let optimizer = world.collective_result(Optimizer::for_model(&config.optimizer, &model))?;
    let loss = LossHead::new(&config.loss, device).map_err(Error::from)?;
    let mut trainer = Trainer::new(world, model, loss, optimizer, trainer_options(&config, args.cuda_graph))?;

    let (loader, loading) =
        world.collective_result(make_loader(world, &config, &data, global_rows, device))?;
    describe::loading(&loader).iter().for_each(|line| progress.note(line));

    let metrics = open_metrics(folder.as_ref(), args.json)?;
    let mut training = TrainingLoop::new(world, &config, &data, (loader, loading), metrics, progress);
    let outcome = training.train(&mut trainer)?;
    if let Some(folder) = &folder {
        save(folder, &trainer, &config, &data)?;
    }
    training.finish(&trainer, outcome, folder.as_ref().map(RunDir::path))?;
    Ok(())
}

/// The config, with what flags say of it.
fn load_config(args: &TrainArgs) -> Result<Config> {
    let mut set = args.set.clone();
    set.extend(args.comm_dtype.map(|dtype| format!("comm.dtype={}", dtype.name())));
    Config::load(args.config.as_deref(), &set)
}

/// The rank's device, through which its tensors are exchanged from now on; its thread joins a pool of compute threads.
pub(crate) fn pin_device(
    world: &World,
    wish: &str,
    share_gpu: bool,
    n_threads: Option<usize>,
) -> Result<DeviceChoice, Stop> {
    let choose = || -> Result<DeviceChoice> {
        let request: DeviceRequest = wish.parse()?;
        let choice = request.resolve(world.local_rank().0, world.local_size(), share_gpu)?;
        threads::join_pool(n_threads.unwrap_or_else(|| threads::default_per_rank(world.local_size())))?;
        Ok(choice)
    };
    let choice = world.collective_result(choose())?;
    let options = DeviceOptions { share_gpu, ..DeviceOptions::default() };
    world.connect_device(choice.device, options).map_err(Error::from)?;
    Ok(choice)
}

/// All ranks run the same program on the same config.
fn agree_on_config(world: &World, args: &TrainArgs, config: &Config) -> Result<()> {
    let mut entries = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    entries.extend(config.agreement_entries());
    entries.push(("--dry-run".to_owned(), args.dry_run.to_string()));
    Ok(world.agree(&entries)?)
}

/// All ranks make the same model.
fn agree_on_model(world: &World, spec: &ModelSpec, init_from: Option<&ModelFile>) -> Result<()> {
    let init_from = init_from.map_or("none".to_owned(), |file| format!("{:016x}", file.fingerprint()));
    let entries = [
        ("--init-from (fingerprint)", init_from),
        ("widths of the model's layers", format!("{:?}", spec.dims)),
        ("embeddings of the model", format!("{:?}", spec.embeddings)),
    ];
    Ok(world.agree(&entries.map(|(key, value)| (key.to_owned(), value)))?)
}

fn build_model(
    world: &World,
    init_from: Option<&ModelFile>,
    config: &Config,
    data: &Loaded,
    spec: ModelSpec,
    global_rows: usize,
    device: Device,
) -> Result<Mlp> {
    let rows_a_rank = global_rows.min(data.train.len()).div_ceil(world.world_size());
    let n_eval = data.eval.as_ref().map_or(0, |eval| eval.len()).div_ceil(world.world_size());
    let max_rows = rows_a_rank.div_ceil(config.train.grad_accum_steps).max(n_eval.min(EVAL_ROWS)).max(1);
    let mut model = Mlp::new(spec, max_rows, device, config.train.precision)?;
    match init_from {
        Some(file) => model.set_weights(file.weights(model.layout())?.view())?,
        None => model.initialize(config.train.seed)?,
    }
    Ok(model)
}

/// The training rows in the order of the run, and how rows are loaded.
fn make_loader(
    world: &World,
    config: &Config,
    data: &Loaded,
    global_rows: usize,
    device: Device,
) -> Result<(Loader, LoaderOptions)> {
    let cores = threads::current();
    let normalizer = data.preprocessor.normalizer.clone();
    let loading = LoaderOptions::from_config(&config.data, device, cores, normalizer);
    let shuffle = Shuffle::new(&config.data, &*data.train);
    let train = &config.train;
    let plan =
        BatchPlan::new(world, data.train.len(), global_rows, train.grad_accum_steps, train.seed, shuffle);
    Ok((Loader::new(data.train.clone(), plan, loading.clone())?, loading))
}

fn trainer_options(config: &Config, graph: GraphMode) -> TrainerOptions {
    TrainerOptions {
        seed: config.train.seed,
        clip_grad_norm: config.train.clip_grad_norm,
        bucket_bytes: config.comm.bucket_bytes(),
        overlap: config.comm.overlap,
        comm_dtype: config.comm.dtype,
        graph,
        ..TrainerOptions::default()
    }
}

/// Writes the model's file.
fn save(folder: &RunDir, trainer: &Trainer<'_>, config: &Config, data: &Loaded) -> Result<()> {
    let info = ModelInfo { config: config.to_toml(), preprocessor: data.preprocessor.clone() };
    let model = trainer.model();
    let bytes = file::to_bytes(model.layout(), model.weights(), &info)?;
    rundir::write_atomic(&folder.file(rundir::MODEL_FILE), &bytes)
}

fn progress(world: &World, args: &TrainArgs, config: &Config, n_rows: usize) -> Progress {
    if world.rank().0 > 0 {
        return Progress::none();
    }
    let (total_rows, n_epochs) = match config.train.length {
        Length::Epochs(n) => (n as u64 * n_rows as u64, Some(n as u64)),
        Length::Steps(n) => {
            let rows = config.train.global_rows(world.world_size()).unwrap_or(0).min(n_rows);
            (n as u64 * rows as u64, None)
        }
    };
    Progress::new(args.progress, args.quiet, total_rows, n_epochs)
}

/// Tells what is about to run; all of it with `--verbose`. A dry run comes to nothing but that: its config goes to stdout.
fn announce(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    data: &Loaded,
    model: &Mlp,
    device: &DeviceChoice,
    progress: &Progress,
) {
    progress.note(&describe::line(world, config, data, model, device));
    if !args.verbose && !args.dry_run {
        return;
    }
    let toml = config.to_toml();
    if !args.dry_run || args.json {
        progress.note(&toml);
    } else if world.rank().0 == 0 && !args.quiet {
        // Its reader may have seen enough.
        let _ = std::io::stdout().write_all(toml.as_bytes());
    }
    progress.note(&describe::details(world, config, data, model));
}

fn check_out(world: &World, args: &TrainArgs) -> Result<()> {
    match &args.out {
        Some(out) if world.rank().0 == 0 => rundir::check(out, existing(args)),
        _ => Ok(()),
    }
}

fn existing(args: &TrainArgs) -> Existing {
    if args.overwrite { Existing::Overwrite } else { Existing::Refuse }
}

/// The run's folder, claimed by rank 0 with the resolved config inside; the other ranks write no files.
fn open_folder(world: &World, args: &TrainArgs, config: &Config) -> Result<Option<RunDir>> {
    if world.rank().0 > 0 {
        return Ok(None);
    }
    let folder = RunDir::open(args.out.as_deref(), &config.name, existing(args))?;
    rundir::write_atomic(&folder.file(rundir::CONFIG_FILE), config.to_toml().as_bytes())?;
    Ok(Some(folder))
}

fn open_metrics(folder: Option<&RunDir>, json: bool) -> Result<MetricsSink> {
    match folder {
        Some(folder) => MetricsSink::create(&folder.file(rundir::METRICS_FILE), json),
        None => Ok(MetricsSink::none()),
    }
}
