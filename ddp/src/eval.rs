//! `ddp-train eval`: a trained model on rows of its kind.

use std::path::{Path, PathBuf};

use ddp_comm::World;
use ddp_kernels::Device;

use crate::batches::Table;
use crate::cli::EvalArgs;
use crate::config::{Config, EvalSource};
use crate::data::{self, Dataset, Part, match_columns, read_source};
use crate::error::{Error, Result};
use crate::evaluate::evaluate;
use crate::metrics::{EvalMetrics, json_line};
use crate::model::file::ModelFile;
use crate::model::{LossHead, Mlp, ModelSpec, Precision};
use crate::outcome::Stop;
use crate::run::pin_device;

/// Rows of a pass.
const MAX_ROWS: usize = 1024;

/// Evaluates as `args` say and prints the metrics on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn eval(world: &World, args: &EvalArgs) -> Result<(), Stop> {
    let device = pin_device(world, &args.device, false, None)?.device;
    let (config, mut model, dataset, fingerprint) = world.collective_result(load(args, device))?;
    let hex = |fingerprint: u64| format!("{fingerprint:016x}");
    let entries = [
        ("--checkpoint (fingerprint)", hex(fingerprint)),
        ("rows and columns of the data (fingerprint)", hex(dataset.fingerprint())),
    ];
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    world.agree(&entries).map_err(Error::from)?;
    let loss = LossHead::new(&config.loss, device).map_err(Error::from)?;
    let table = Table::new(&dataset, None, Device::Cpu).map_err(Error::from)?;
    let metrics = evaluate(world, &mut model, &loss, config.data.task, &table)?;
    if world.rank().0 == 0 {
        print(args, &dataset, &metrics);
    }
    Ok(())
}

/// The model's config, the model, the rows with their columns in the model's order, normalised as in training, and the
/// fingerprint of the model's file.
fn load(args: &EvalArgs, device: Device) -> Result<(Config, Mlp, Dataset, u64)> {
    let file = ModelFile::read(&model_path(&args.checkpoint))?;
    let info = file.info()?;
    let config = Config::from_toml(&info.config, &args.checkpoint)?;
    let n_outputs_known = file.n_outputs(&config.model)?;
    let spec = config.data.targets(Some(n_outputs_known));
    let dataset = match (&args.data, &config.data.eval) {
        (Some(source), _) => read_source(source, Part::Test, &spec)?,
        (None, EvalSource::Source(source)) => read_source(source, Part::Test, &spec)?,
        (None, EvalSource::Fraction(fraction)) => {
            let train = read_source(&config.data.train, Part::Train, &spec)?;
            data::split(&train, *fraction, config.train.seed)?.1
        }
        (None, EvalSource::None) => return Err(Error::NoEvalData),
    };
    let mut dataset = match_columns(dataset, &info.features, "the model")?;
    if let Some(normalizer) = &info.normalizer {
        normalizer.apply(&mut dataset);
    }
    let spec = ModelSpec::new(&config.model, info.features.len(), n_outputs_known);
    let spec = spec.with_embeddings(file.embeddings()?);
    // Evaluated in the precision that it was trained in, where the device has it.
    let precision = if device == Device::Cpu { Precision::F32 } else { config.train.precision };
    let mut model = Mlp::new(spec, MAX_ROWS.min(dataset.n_rows), device, precision)?;
    model.set_weights(file.weights(model.layout())?.view())?;
    Ok((config, model, dataset, file.fingerprint()))
}

/// A run's folder stands for the model inside.
fn model_path(checkpoint: &Path) -> PathBuf {
    if checkpoint.is_dir() { checkpoint.join("model.safetensors") } else { checkpoint.to_owned() }
}

/// The result on stdout: it is what the command is for.
#[allow(clippy::print_stdout)]
fn print(args: &EvalArgs, dataset: &Dataset, metrics: &EvalMetrics) {
    if args.json {
        return print!("{}", json_line(metrics));
    }
    let value = |name: &str, value: Option<f64>| value.map_or(String::new(), |v| format!(", {name} {v:.4}"));
    println!(
        "{} rows of {}: loss {:.6}{}{}",
        dataset.n_rows,
        dataset.source,
        metrics.loss.unwrap_or(f64::NAN),
        value("accuracy", metrics.accuracy),
        value("R2", metrics.r2),
    );
}
