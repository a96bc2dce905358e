//! A training run, from the command line's arguments to the model's file.
//!
//! config -> world -> device -> data -> model -> buckets, then the loop: batch -> forward -> loss -> backward (buckets
//! start) -> wait -> clip -> step -> metrics; at the end the model's file.

use std::io::Write as _;
use std::time::Instant;

use ddp_comm::World;
use ddp_kernels::cpu::threads;
use ddp_kernels::{Device, DeviceRequest, KernelError};

use crate::batches::Table;
use crate::cli::TrainArgs;
use crate::config::{Config, Length, Normalize};
use crate::data::{self, Loaded};
use crate::describe;
use crate::epoch::{StepBatches, TrainLoss};
use crate::error::{Error, Result};
use crate::evaluate::evaluate;
use crate::metrics::{EndEvent, EpochEvent, EvalMetrics, Event, MetricsSink, StepEvent};
use crate::model::file::{self, ModelFile, ModelInfo};
use crate::model::{LossHead, Mlp, ModelSpec, Optimizer};
use crate::outcome::Stop;
use crate::process;
use crate::progress::Progress;
use crate::rundir::{self, RunDir};
use crate::sampler::KeyedPermutation;
use crate::shard::GlobalBatches;
use crate::trainer::{Trainer, TrainerOptions};

/// Rows of a pass in evaluation, where training's micro-batches are smaller.
const EVAL_ROWS: usize = 256;

/// Trains as `args` say; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn train(world: &World, args: &TrainArgs) -> Result<(), Stop> {
    let config = world.collective_result(Config::load(args.config.as_deref(), &args.set))?;
    let device = world.collective_result(pin_device(world, &args.device, args.threads))?;
    let data = world.collective_result(data::load(&config, world.world_size()))?;
    let init_from = args.init_from.as_deref().map(ModelFile::read).transpose();
    let init_from = world.collective_result(init_from)?;
    let spec = ModelSpec::new(
        &config.model,
        data.train.n_features,
        data.train.targets.n_outputs(),
    );
    agree(world, args, &config, &data, &spec, init_from.as_ref())?;

    let global_rows = config
        .train
        .global_rows(world.world_size())
        .ok_or(Error::BatchOverflows)?;
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
    let progress = progress(world, args, &config, data.train.n_rows);
    announce(world, args, &config, &data, &model, device, &progress);
    if args.dry_run {
        progress.note("dry run: config, data and model are in order; nothing was trained");
        return Ok(());
    }

    let folder = world.collective_result(open_folder(world, args, &config))?;
    let optimizer = Optimizer::new(&config.optimizer, model.weights()).map_err(Error::from)?;
    let loss = LossHead::new(&config.loss, device).map_err(Error::from)?;
    let mut trainer = Trainer::new(world, model, loss, optimizer, trainer_options(&config))?;
    let tables = Tables::new(&data, device).map_err(Error::from)?;
    let mut run = Run {
        world,
        config: &config,
        global_rows,
        tables: &tables,
        metrics: open_metrics(folder.as_ref(), args.json)?,
        progress,
        clock: Clock::default(),
    };
    let end = run.train(&mut trainer)?;
    if let Some(folder) = &folder {
        let info = model_info(&config, &data);
        let bytes = file::to_bytes(trainer.model().layout(), trainer.model().weights(), &info)?;
        rundir::write_atomic(&folder.file("model.safetensors"), &bytes)?;
    }
    run.finish(end, folder.as_ref())?;
    Ok(())
}

/// The loop and what it writes to.
struct Run<'a> {
    world: &'a World,
    config: &'a Config,
    /// Rows of a full global batch.
    global_rows: usize,
    tables: &'a Tables,
    metrics: MetricsSink,
    progress: Progress,
    clock: Clock,
}

/// The rows on the device.
struct Tables {
    train: Table,
    eval: Option<Table>,
}

impl Tables {
    fn new(data: &Loaded, device: Device) -> Result<Self, KernelError> {
        let eval = data
            .eval
            .as_ref()
            .map(|eval| Table::new(eval, device))
            .transpose()?;
        Ok(Tables {
            train: Table::new(&data.train, device)?,
            eval,
        })
    }
}

/// Times of the run.
#[derive(Default)]
struct Clock {
    /// From the start to the end of the first step.
    startup_s: f64,
    /// In steps.
    train_s: f64,
    /// Rows of all ranks in those steps.
    samples: u64,
    /// `(train_s, samples)` at the last step event.
    last_event: (f64, u64),
}

/// What the loop came to.
struct Ended {
    steps: u64,
    train_loss: f64,
    eval: EvalMetrics,
}

impl Run<'_> {
    fn train(&mut self, trainer: &mut Trainer<'_>) -> Result<Ended> {
        let train = &self.config.train;
        let table = &self.tables.train;
        let n_rows = table.n_rows();
        let max_rows = trainer.model().max_rows();
        let mut buffers = table.buffers(max_rows).map_err(Error::from)?;
        let (n_epochs, n_steps) = match train.length {
            Length::Epochs(n) => (n as u64, u64::MAX),
            Length::Steps(n) => (u64::MAX, n as u64),
        };
        let mut ended = Ended {
            steps: 0,
            train_loss: f64::NAN,
            eval: EvalMetrics::default(),
        };
        for epoch in 0..n_epochs {
            let order = match self.config.data.shuffle {
                true => KeyedPermutation::new(n_rows, train.seed, epoch),
                false => KeyedPermutation::identity(n_rows),
            };
            let mut train_loss = TrainLoss::default();
            let mut whole = true;
            for global in GlobalBatches::new(n_rows, self.global_rows) {
                if trainer.n_steps() == n_steps {
                    whole = false;
                    break;
                }
                let mut batches = StepBatches::new(
                    self.world,
                    table,
                    &order,
                    &mut buffers,
                    &global,
                    train.grad_accum_steps,
                );
                let loss = self.step(trainer, &mut batches, epoch + 1)?;
                train_loss.add(loss, global.n_rows());
            }
            if train_loss.n_rows() > 0 {
                ended = Ended {
                    steps: trainer.n_steps(),
                    train_loss: train_loss.mean(),
                    eval: self.evaluate(trainer)?,
                };
            }
            if whole {
                let event = EpochEvent {
                    epoch: epoch + 1,
                    train_loss: ended.train_loss,
                    eval: ended.eval,
                };
                self.progress.epoch_end(&event);
                self.metrics.write(&Event::Epoch(event))?;
            }
            if trainer.n_steps() == n_steps {
                break;
            }
        }
        Ok(ended)
    }

    /// One step and its event; the mean loss of the global batch.
    fn step(
        &mut self,
        trainer: &mut Trainer<'_>,
        batches: &mut StepBatches<'_>,
        epoch: u64,
    ) -> Result<f64> {
        let started = Instant::now();
        let number = trainer.n_steps() + 1;
        let is_logged = number.is_multiple_of(self.config.log.every_steps as u64);
        let lr = trainer.lr();
        let outcome = trainer.step(batches, is_logged)?;
        let clock = &mut self.clock;
        clock.train_s += started.elapsed().as_secs_f64();
        clock.samples += batches.n_rows() as u64;
        if number == 1 {
            clock.startup_s = process::seconds_since_start(self.world.launcher().is_some());
        }
        let loss = outcome.sums.mean();
        self.progress.advance(batches.n_rows() as u64);
        if is_logged {
            let (train_s, samples) = (
                clock.train_s - clock.last_event.0,
                clock.samples - clock.last_event.1,
            );
            clock.last_event = (clock.train_s, clock.samples);
            let grad_norm = outcome.grad_norm.unwrap_or(f64::NAN);
            let event = StepEvent {
                step: number,
                epoch,
                loss,
                lr,
                grad_norm,
                samples_per_s: samples as f64 / train_s,
            };
            self.progress.step(&event);
            self.metrics.write(&Event::Step(event))?;
        }
        Ok(loss)
    }

    fn evaluate(&self, trainer: &mut Trainer<'_>) -> Result<EvalMetrics> {
        let Some(eval) = &self.tables.eval else {
            return Ok(EvalMetrics::default());
        };
        let (model, loss) = trainer.model_and_loss();
        evaluate(self.world, model, loss, self.config.data.task, eval)
    }

    fn finish(mut self, ended: Ended, folder: Option<&RunDir>) -> Result<()> {
        let Clock {
            startup_s,
            train_s,
            samples,
            ..
        } = self.clock;
        let event = EndEvent {
            steps: ended.steps,
            samples,
            world_size: self.world.world_size(),
            train_loss: ended.train_loss,
            eval: ended.eval,
            elapsed_s: process::seconds_since_start(self.world.launcher().is_some()),
            train_s,
            samples_per_s: samples as f64 / train_s,
            startup_s,
        };
        self.progress.end(&event, folder.map(RunDir::path));
        self.metrics.write(&Event::End(event))
    }
}

/// The rank's device; its thread joins a pool of compute threads.
pub(crate) fn pin_device(world: &World, wish: &str, n_threads: Option<usize>) -> Result<Device> {
    let device = wish
        .parse::<DeviceRequest>()?
        .resolve(world.local_rank().0)?;
    threads::join_pool(n_threads.unwrap_or_else(|| threads::default_per_rank(world.local_size())))?;
    Ok(device)
}

/// All ranks run the same program on the same config, data and model.
fn agree(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    data: &Loaded,
    spec: &ModelSpec,
    init_from: Option<&ModelFile>,
) -> Result<()> {
    let mut entries = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    entries.extend(config.agreement_entries());
    entries.push(("--dry-run".to_owned(), args.dry_run.to_string()));
    entries.push((
        "--init-from (fingerprint)".to_owned(),
        init_from.map_or("none".to_owned(), |file| {
            format!("{:016x}", file.fingerprint())
        }),
    ));
    entries.push((
        "rows and columns of the data (fingerprint)".to_owned(),
        format!("{:016x}", data.fingerprint),
    ));
    entries.push((
        "widths of the model's layers".to_owned(),
        format!("{:?}", spec.dims),
    ));
    Ok(world.agree(&entries)?)
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
    let rows_a_rank = global_rows
        .min(data.train.n_rows)
        .div_ceil(world.world_size());
    let n_eval = data
        .eval
        .as_ref()
        .map_or(0, |eval| eval.n_rows)
        .div_ceil(world.world_size());
    let max_rows = rows_a_rank
        .div_ceil(config.train.grad_accum_steps)
        .max(n_eval.min(EVAL_ROWS))
        .max(1);
    let mut model = Mlp::new(spec, max_rows, device)?;
    match init_from {
        Some(file) => {
            let layout = model.layout().clone();
            file.load_into(&layout, model.weights_mut())?;
        }
        None => model.initialize(config.train.seed)?,
    }
    Ok(model)
}

fn trainer_options(config: &Config) -> TrainerOptions {
    TrainerOptions {
        seed: config.train.seed,
        clip_grad_norm: config.train.clip_grad_norm,
        bucket_bytes: config.comm.bucket_bytes(),
        overlap: config.comm.overlap,
    }
}

/// What stands beside the weights in the model's file.
fn model_info(config: &Config, data: &Loaded) -> ModelInfo {
    let normalizer = if config.data.normalize == Normalize::None {
        None
    } else {
        data.normalizer.clone()
    };
    ModelInfo {
        config: config.to_toml(),
        features: data.train.feature_names.clone(),
        normalizer,
    }
}

fn progress(world: &World, args: &TrainArgs, config: &Config, n_rows: usize) -> Progress {
    if world.rank().0 > 0 {
        return Progress::none();
    }
    let (total_rows, n_epochs) = match config.train.length {
        Length::Epochs(n) => (n as u64 * n_rows as u64, Some(n as u64)),
        Length::Steps(n) => {
            let rows = config
                .train
                .global_rows(world.world_size())
                .unwrap_or(0)
                .min(n_rows);
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
    device: Device,
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
        Some(out) if world.rank().0 == 0 => rundir::check(out, args.overwrite),
        _ => Ok(()),
    }
}

/// The run's folder, claimed by rank 0 with the resolved config inside; the other ranks write no files.
fn open_folder(world: &World, args: &TrainArgs, config: &Config) -> Result<Option<RunDir>> {
    if world.rank().0 > 0 {
        return Ok(None);
    }
    let folder = RunDir::open(args.out.as_deref(), &config.name, args.overwrite)?;
    rundir::write_atomic(&folder.file("config.toml"), config.to_toml().as_bytes())?;
    Ok(Some(folder))
}

fn open_metrics(folder: Option<&RunDir>, json: bool) -> Result<MetricsSink> {
    match folder {
        Some(folder) => MetricsSink::create(&folder.file("metrics.jsonl"), json),
        None => Ok(MetricsSink::none()),
    }
}
