//! `ddp-train eval`: evaluates a trained model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::cpu::threads;
use ddp_kernels::{Device, TensorRef};

use crate::checkpoint::{Checkpoint, CheckpointError, EMA_STATE, MANIFEST_FILE, ShardRange, StateReader};
use crate::cli::EvalArgs;
use crate::commands::train::{Pinning, pin_device};
use crate::config::{Config, EvalMetric, EvalSource, Task};
use crate::data::loader::LoaderOptions;
use crate::data::order::partition::EvalPartition;
use crate::data::{self, Dataset, KnownFeatures, Normalizer, SourceSpec, open_eval};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::model::file::ModelFile;
use crate::model::{LossHead, Mlp, ModelSpec, ParamLayout};
use crate::report::EvalMetrics;
use crate::report::metrics::json_line;
use crate::report::stdout::print_result;
use crate::run_folder::folder::MODEL_FILE;
use crate::train::evaluate::evaluate;

/// Maximum rows per forward pass.
const MAX_ROWS: usize = 1024;

/// Evaluates the model and prints the metrics on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn eval(world: &World, args: &EvalArgs) -> Result<(), Stop> {
    let device = pin_device(world, &args.device, Pinning::default())?.device;
    let Ready { config, mut model, rows, normalizer, fingerprint } =
        world.collective_result(load(args, device))?;
    let hex = |fingerprint: u64| format!("{fingerprint:016x}");
    let of_rows = world.collective_result(rows.fingerprint())?;
    let entries = [
        ("--checkpoint (fingerprint)", hex(fingerprint)),
        ("rows and columns of the data (fingerprint)", hex(of_rows)),
    ];
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    world.agree(&entries).map_err(Error::from)?;
    let loss = LossHead::new(&config.loss, device).map_err(Error::from)?;
    let cores = threads::current();
    let loading = LoaderOptions::from_config(&config.data, device, cores, normalizer);
    let partition = EvalPartition::of_ranks(world.world_size());
    let metrics = evaluate(world, &mut model, &loss, config.data.task, &rows, partition, &loading)?;
    let printed = match world.rank().0 {
        0 => print_result(&text(args, &*rows, &metrics)),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// Model and rows of an evaluation.
struct Ready {
    config: Config,
    model: Mlp,
    /// Rows with their columns in the order of the model.
    rows: Arc<dyn Dataset>,
    normalizer: Option<Normalizer>,
    /// Fingerprint of the model file.
    fingerprint: u64,
}

fn load(args: &EvalArgs, device: Device) -> Result<Ready> {
    let (path, checkpoint) = locate(&args.checkpoint)?;
    let file = ModelFile::read(&path)?;
    let info = file.info()?;
    let config = Config::from_saved(&info.config, &args.checkpoint)?;
    let n_outputs = file.n_outputs(&config.model)?;
    let classes = (config.data.task == Task::Classification).then_some(n_outputs);
    let plan = &info.preprocessor.plan;
    let known = KnownFeatures { names: &plan.columns, vocabularies: &plan.vocabularies, of: "the model" };
    let data = &config.data;
    let labels = args.labels.as_deref();
    let rows = match (&args.data, &data.eval) {
        (Some(source), _) => open_eval(data, source, labels, classes, known)?,
        (None, EvalSource::Source(source)) => {
            open_eval(data, source, labels.or(data.eval_labels.as_deref()), classes, known)?
        }
        (None, EvalSource::Fraction(fraction)) => {
            let spec = SourceSpec { classes, features: Some(known), ..SourceSpec::train(data) };
            Arc::new(data::split(&spec.open()?, *fraction, config.train.seed)?.1)
        }
        (None, EvalSource::Unset | EvalSource::None) => return Err(Error::NoEvalData),
    };
    let rows = info.preprocessor.apply(rows);
    let spec = ModelSpec::new(&config.model, plan.n_features(), n_outputs);
    let spec = spec.with_embeddings(file.embeddings()?);
    // In the precision of training.
    let mut model = Mlp::new(spec, MAX_ROWS.min(rows.len()), device, config.train.precision)?;
    model.set_weights(file.weights(model.layout())?.view())?;
    if let Some(checkpoint) = &checkpoint
        && let Some(average) = average(checkpoint, model.layout())?
    {
        model.set_weights(TensorRef::from_slice(&average, &[average.len()])?)?;
    }
    let (normalizer, fingerprint) = (info.preprocessor.normalizer, file.fingerprint());
    Ok(Ready { config, model, rows, normalizer, fingerprint })
}

/// Resolves `path` to a model file and, if it is in a checkpoint, to that verified checkpoint. A run folder resolves to its model
/// file if it exists, else to its newest checkpoint.
fn locate(path: &Path) -> Result<(PathBuf, Option<Checkpoint>)> {
    let inside = path.join(MODEL_FILE);
    let is_model_of_run = inside.exists() && !path.join(MANIFEST_FILE).exists();
    let is_marker = path.file_name().is_some_and(|name| name == "latest" || name == "best");
    if is_model_of_run || (path.is_file() && !is_marker) {
        return Ok((if is_model_of_run { inside } else { path.to_owned() }, None));
    }
    match Checkpoint::find(path) {
        Ok(search) => {
            let found = search.found.expect("`find` fails if there is none");
            Ok((found.model_path(), Some(found)))
        }
        // For a folder without model and checkpoints, report the missing model file.
        Err(CheckpointError::NotFound { .. }) if path.is_dir() => Ok((inside, None)),
        Err(CheckpointError::NotFound { .. }) if !is_marker => Ok((path.to_owned(), None)),
        Err(error) => Err(error.into()),
    }
}

/// Reads the EMA of the weights from a checkpoint, if the run keeps one: the run evaluates the EMA too.
fn average(checkpoint: &Checkpoint, layout: &ParamLayout) -> Result<Option<Vec<f32>>> {
    let manifest = checkpoint.manifest();
    if manifest.run.step == 0 || !manifest.state.iter().any(|name| name == EMA_STATE) {
        return Ok(None);
    }
    let reader = StateReader::open(checkpoint).map_err(|fault| checkpoint.damaged(fault))?;
    let mut flat = vec![0.0; layout.flat_len()];
    let whole = 0..layout.flat_len();
    reader.read(&ShardRange::of_ranges(layout, &[whole]), EMA_STATE, &mut flat)?;
    Ok(Some(flat))
}

/// Formats the result as text or JSON.
fn text(args: &EvalArgs, rows: &dyn Dataset, metrics: &EvalMetrics) -> String {
    if args.json {
        return json_line(metrics);
    }
    let loss = metrics.get(EvalMetric::Loss).unwrap_or(f64::NAN);
    let others = metrics.iter().filter(|(metric, _)| *metric != EvalMetric::Loss);
    let others: String = others.map(|(metric, value)| format!(", {} {value:.4}", metric.title())).collect();
    format!("{} rows of {}: loss {loss:.6}{others}\n", rows.len(), rows.source())
}
