//! `ddp-train eval`: a trained model on rows of its kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;

use crate::cli::EvalArgs;
use crate::config::{Config, EvalSource, Task};
use crate::data::{self, Dataset, KnownFeatures, Normalizer, SourceSpec, open_eval};
use crate::error::{Error, Result};
use crate::evaluate::evaluate;
use crate::loader::LoaderOptions;
use crate::metrics::{EvalMetrics, json_line};
use crate::model::file::ModelFile;
use crate::model::{LossHead, Mlp, ModelSpec};
use crate::outcome::Stop;
use crate::run::pin_device;
use crate::shard::EvalCut;

/// Rows of a pass.
const MAX_ROWS: usize = 1024;

/// Evaluates as `args` say and prints the metrics on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn eval(world: &World, args: &EvalArgs) -> Result<(), Stop> {
    let device = pin_device(world, &args.device, false, None)?.device;
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
    let cut = EvalCut::of_ranks(world.world_size());
    let metrics = evaluate(world, &mut model, &loss, config.data.task, &rows, cut, &loading)?;
    if world.rank().0 == 0 {
        print(args, &*rows, &metrics);
    }
    Ok(())
}

/// Everything that an evaluation needs.
struct Ready {
    config: Config,
    model: Mlp,
    /// With their columns in the model's order.
    rows: Arc<dyn Dataset>,
    normalizer: Option<Normalizer>,
    /// Of the model's file.
    fingerprint: u64,
}

fn load(args: &EvalArgs, device: Device) -> Result<Ready> {
    let file = ModelFile::read(&model_path(&args.checkpoint))?;
    let info = file.info()?;
    let config = Config::from_toml(&info.config, &args.checkpoint)?;
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
        (None, EvalSource::None) => return Err(Error::NoEvalData),
    };
    let rows = info.preprocessor.apply(rows);
    let spec = ModelSpec::new(&config.model, plan.n_features(), n_outputs);
    let spec = spec.with_embeddings(file.embeddings()?);
    // Evaluated in the precision that it was trained in.
    let precision = config.train.precision;
    let mut model = Mlp::new(spec, MAX_ROWS.min(rows.len()), device, precision)?;
    model.set_weights(file.weights(model.layout())?.view())?;
    let (normalizer, fingerprint) = (info.preprocessor.normalizer, file.fingerprint());
    Ok(Ready { config, model, rows, normalizer, fingerprint })
}

/// A run's folder stands for the model inside.
fn model_path(checkpoint: &Path) -> PathBuf {
    if checkpoint.is_dir() { checkpoint.join("model.safetensors") } else { checkpoint.to_owned() }
}

/// The result on stdout: it is what the command is for.
#[allow(clippy::print_stdout)]
fn print(args: &EvalArgs, rows: &dyn Dataset, metrics: &EvalMetrics) {
    if args.json {
        return print!("{}", json_line(metrics));
    }
    let value = |name: &str, value: Option<f64>| value.map_or(String::new(), |v| format!(", {name} {v:.4}"));
    println!(
        "{} rows of {}: loss {:.6}{}{}",
        rows.len(),
        rows.source(),
        metrics.loss.unwrap_or(f64::NAN),
        value("accuracy", metrics.accuracy),
        value("R2", metrics.r2),
    );
}
