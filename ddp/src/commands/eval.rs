//! `ddp-train eval`: evaluates a trained model.

use std::sync::Arc;

use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;
use serde::Serialize;

use crate::cli::EvalArgs;
use crate::commands::train::{Pinning, pin_device};
use crate::config::{Config, EvalMetric, EvalSource};
use crate::data::loader::LoaderOptions;
use crate::data::order::partition::EvalPartition;
use crate::data::{self, ClassLabels, Dataset, Normalizer, SourceSpec, open_eval};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::model::{LossHead, Network};
use crate::predict::SavedModel;
use crate::report::EvalMetrics;
use crate::report::metrics::json_line;
use crate::report::stdout::print_result;
use crate::train::evaluate::evaluate;

/// Maximum rows per forward pass.
const MAX_ROWS: usize = 1024;

/// Evaluates the model and prints the metrics on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn eval(world: &World, args: &EvalArgs) -> Result<(), Stop> {
    let device = pin_device(world, &args.device, Pinning::default())?.device;
    let Ready { config, mut model, rows, n_skipped, normalizer, fingerprint } =
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
        0 => print_result(&text(args, &*rows, n_skipped, &metrics)),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// Model and rows of an evaluation.
struct Ready {
    config: Config,
    model: Network,
    /// Rows with their columns in the order of the model.
    rows: Arc<dyn Dataset>,
    /// Rows that were left out because the model does not know their labels.
    n_skipped: usize,
    normalizer: Option<Normalizer>,
    /// Fingerprint of the model file.
    fingerprint: u64,
}

fn load(args: &EvalArgs, device: Device) -> Result<Ready> {
    let saved = SavedModel::open(&args.checkpoint)?;
    let (config, known, labels_of_model) = (&saved.config, saved.known_features(), saved.labels());
    let classes = ClassLabels::Known(&labels_of_model);
    let data = &config.data;
    let labels = args.labels.as_deref();
    let (rows, n_skipped) = match (&args.data, &data.eval) {
        (Some(source), _) => open_eval(data, source, labels, classes, known)?,
        (None, EvalSource::Source(source)) => {
            open_eval(data, source, labels.or(data.eval_labels.as_deref()), classes, known)?
        }
        (None, EvalSource::Fraction(fraction)) => {
            let spec = SourceSpec { classes, features: Some(known), ..SourceSpec::train(data) };
            let rows: Arc<dyn Dataset> =
                Arc::new(data::split_eval(data, &spec.open()?, *fraction, config.train.seed)?.1);
            (rows, 0)
        }
        (None, EvalSource::Unset | EvalSource::None) => return Err(Error::NoEvalData),
    };
    let rows = saved.preprocessor.apply(rows);
    let model = saved.network(MAX_ROWS.min(rows.len()), device)?;
    let fingerprint = saved.fingerprint();
    let SavedModel { config, preprocessor, .. } = saved;
    Ok(Ready { config, model, rows, n_skipped, normalizer: preprocessor.normalizer, fingerprint })
}

/// The result as JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    metrics: &'a EvalMetrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_rows: Option<usize>,
}

/// Formats the result as text or JSON.
fn text(args: &EvalArgs, rows: &dyn Dataset, n_skipped: usize, metrics: &EvalMetrics) -> String {
    if args.json {
        return json_line(&Line { metrics, skipped_rows: (n_skipped > 0).then_some(n_skipped) });
    }
    let loss = metrics.get(EvalMetric::Loss).unwrap_or(f64::NAN);
    let others = metrics.iter().filter(|(metric, _)| *metric != EvalMetric::Loss);
    let others: String = others.map(|(metric, value)| format!(", {} {value:.4}", metric.title())).collect();
    let skipped = match n_skipped {
        0 => String::new(),
        n => format!(" (left out {n} whose labels the model does not know)"),
    };
    format!("{} rows of {}{skipped}: loss {loss:.6}{others}\n", rows.len(), rows.source())
}
