//! `ddp-train eval`: evaluates a trained model; with `--calibrate` fits the probabilities of a classifier to held-out rows and saves
//! the model with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp::config::{Config, DataFormat, EvalMetric, EvalSource, ExtraColumns, MetricSet, Task};
use ddp::data;
use ddp::data::Dataset;
use ddp::data::loader::LoaderOptions;
use ddp::data::order::partition::EvalPartition;
use ddp::model::{LossHead, Network};
use ddp::report::EvalMetrics;
use ddp::report::metrics::json_line;
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::unfinished::Unfinished;
use ddp::train::calibration::{Calibration, CalibrationRows, NoFit, calibrate, with_temperature};
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp_comm::{HostShare, World};
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;
use ddp_tables::fit::preprocess::Preprocessor;
use ddp_tables::importance::measure::EvalSetup;
use ddp_tables::load::{in_turn, open_eval, take_eval};
use ddp_tables::open::remote;
use ddp_tables::predict::{SavedModel, is_active};
use ddp_tables::source::{ClassLabels, SourceSpec};
use serde::Serialize;
use tracing::{info, warn};

use crate::cli::EvalArgs;
use crate::commands::eval_report::{EvalReport, skipped};
use crate::commands::importance::{Subject, measure, metric};
use crate::commands::predict::unseen_categories;
use crate::commands::train::{Pinning, pin_device};
use crate::commands::watchdog::{self, Watched};
use crate::commands::{model_device, model_rows};
use crate::error::command::CommandError;
use crate::error::{Error, ModelCommand, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::page::calibration_note;
use crate::report::stdout::{count, print_result, table};

/// Message for a held-out split that differs from the one of training.
const OTHER_ROWS: &str = "the table has changed since training: its held-out rows differ from those of the run, and the model may have been \
                          trained on some of them";
/// Maximum rows per forward pass.
const MAX_ROWS: usize = 1024;

/// Evaluates the model and prints the metrics, or the importance of the columns, on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn eval(world: &World, log: &Log, args: &EvalArgs) -> Result<(), Stop> {
    let pinning = Pinning { share_gpu: args.share_gpu, ..Pinning::default() };
    let pinning = if args.safe { pinning.without_features() } else { pinning };
    let device = pin_device(world, &args.device, pinning)?.device;
    let is_active = is_active(world, &args.checkpoint).map_err(Error::from)?;
    let saved = SavedModel::open_of(&args.checkpoint, is_active).map_err(Error::from);
    let mut saved = world.collective_result(saved)?;
    world.collective_result(model_rows::apply(&mut saved.config.data, &args.set))?;
    if args.calibrate {
        world.collective_result(check_calibration(&args.checkpoint, &saved))?;
    }
    watchdog::start(world, log, &saved.config.watchdog, Watched::Other(Unfinished::default()))?;
    world.watchdog().set_device(&device.to_string());
    model_device::ready(world, device, &mut saved.config, &args.check, args.safe)?;
    let Ready { config, request, mut model, path, rows, n_skipped, is_held_out, preprocessor, fingerprint } =
        load(world, args, saved, device)?;
    let hex = |fingerprint: u64| format!("{fingerprint:016x}");
    let of_rows = world.collective_result(rows.fingerprint())?;
    let entries = [
        ("--checkpoint (fingerprint)", hex(fingerprint)),
        ("rows and columns of the data (fingerprint)", hex(of_rows)),
        ("--importance, --repeats, --seed", format!("{}, {}, {}", args.importance, args.repeats, args.seed)),
    ];
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    world.agree(&entries).map_err(Error::from)?;
    let loss = LossHead::for_model(&config.loss, &preprocessor.heads, &model).map_err(Error::from)?;
    let cores = threads::current();
    let loading = LoaderOptions::from_config(&config.data, device, cores, preprocessor.normalizer.clone());
    let skipped_rows = (n_skipped > 0).then_some(n_skipped);
    rows.layout().left_out.iter().for_each(|note| info!("{}: {note}", rows.source()));
    data::without_target(rows.n_without_target(), "").iter().for_each(|note| info!("{note}"));
    if args.importance {
        let metric = world.collective_result(metric(args, &config))?;
        let setup = EvalSetup {
            model: &mut model,
            loss: &loss,
            request: &request,
            rows: &rows,
            preprocessor: &preprocessor,
            loading: &loading,
        };
        let subject = Subject { skipped_rows, is_held_out, model: &path };
        return measure(world, log, args, setup, metric, &subject);
    }
    let partition = EvalPartition::for_ranks(world.world_size());
    let unseen = if world.rank().0 == 0 {
        ddp_tables::fit::train_categories::unknown_values(&*rows)
    } else {
        Ok(Vec::new())
    };
    let unseen = world.collective_result(unseen)?;
    if !unseen.is_empty() {
        warn!("{}", unseen_categories(&unseen));
    }
    let rows = preprocessor.encode(rows);
    let metrics = evaluate(world, &mut model, &loss, &request, &rows, partition, &loading);
    let metrics = metrics.map_err(|error| Error::from_model_data(error, ModelCommand::Eval))?;
    let (n_rows, data) = (rows.len(), rows.source());
    if args.calibrate {
        let of_rows = CalibrationRows { rows: &rows, partition, loading: &loading };
        let output_layer = config.model.n_hidden_linear();
        let found = calibrate(world, &mut model, &loss, &request, &of_rows, output_layer)?;
        let saved = match world.rank().0 {
            0 => {
                let rows = CalibrationSource { rows: n_rows, skipped_rows, data };
                save_calibrated(&path, output_layer, &found, rows, args.json)
            }
            _ => Ok(()),
        };
        return Ok(world.collective_result(saved)?);
    }
    let report =
        EvalReport { metrics: &metrics, rows: n_rows, skipped_rows, data, is_held_out, model: &path };
    let printed = match world.rank().0 {
        0 => {
            request
                .left_out(config.loss.n_targets(model.n_outputs()))
                .iter()
                .for_each(|warning| warn!("{warning}"));
            if let Some((metric, value)) = metrics.not_finite() {
                warn!("{metric} is {value}\nhint: look for outputs that overflow, and for damaged weights");
            }
            print_result(&if args.json { report.to_json() } else { report.to_text() })
        }
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// Checks that the model has probabilities of classes and a file of its own.
///
/// - `path`: the model as the command names it
fn check_calibration(path: &Path, saved: &SavedModel) -> Result<()> {
    let reason = match saved.config.data.task {
        Task::Regression => "--calibrate fits the probabilities of classes, and this model predicts none",
        Task::Multilabel => {
            "--calibrate fits the probabilities of classes, and the labels of this model do not exclude each other"
        }
        Task::Heads => {
            "--calibrate fits the probabilities of classes of one output layer, and this model has several heads"
        }
        Task::Classification if saved.is_checkpoint() => {
            "--calibrate changes the model file of a complete run, and this is a checkpoint"
        }
        Task::Classification if path.to_str().is_some_and(remote::is_address) => {
            "--calibrate changes the model file, and this one is in a store"
        }
        Task::Classification => return Ok(()),
    };
    Err(CommandError::Calibrate { reason }.into())
}

/// The requested metrics, or by default those of the run's last evaluation; none for importance, which uses a single metric.
fn request(args: &EvalArgs, config: &Config) -> Result<MetricRequest> {
    let task = config.data.task;
    let metrics = match &args.metrics[..] {
        [] => config.metrics()[1],
        _ if args.importance => MetricSet::default(),
        names => MetricSet::from_names(names, task)
            .map_err(|unknown| CommandError::UnknownMetric(Box::new(unknown)))?,
    };
    Ok(MetricRequest::new(task, metrics))
}

/// Model and rows of an evaluation.
struct Ready {
    config: Config,
    request: MetricRequest,
    model: Network,
    /// File of the model's weights.
    path: PathBuf,
    /// Rows whose columns are in the order of the model, to be encoded by `preprocessor`.
    rows: Arc<dyn Dataset>,
    /// Number of rows that were skipped because the model does not know their labels.
    n_skipped: usize,
    /// Whether the run held them out from training.
    is_held_out: bool,
    preprocessor: Preprocessor,
    /// Fingerprint of the model file.
    fingerprint: u64,
}

/// Opens the rows, which the ranks of a host share, and puts the model on the device. Collective.
fn load(world: &World, args: &EvalArgs, saved: SavedModel, device: Device) -> Result<Ready, Stop> {
    let request = world.collective_result(request(args, &saved.config))?;
    let host = world.share_host(|| None).map_err(Error::from)?;
    let (rows, n_skipped) = in_turn(world, host.as_ref(), || open_rows(args, &saved, host.as_ref()))?;
    let mut is_held_out = args.data.is_none() && saved.config.data.holds_out();
    let are_others = match world.rank().0 {
        0 if is_held_out => saved.holds_out_others(&*rows).map_err(Error::from),
        _ => Ok(false),
    };
    if world.collective_result(are_others)? {
        if args.calibrate {
            return Err(CommandError::Calibrate { reason: OTHER_ROWS }.into());
        }
        warn!("{OTHER_ROWS}\nhint: evaluate the original table, or pass new rows with --data FILE");
        is_held_out = false;
    }
    let rows = saved.preprocessor.scale(rows);
    let request = MetricRequest { names: Some(saved.output_names()), ..request }
        .in_units_of(&saved.config.loss, rows.layout());
    let model = saved.network_of_ranks(world, MAX_ROWS.min(rows.len()), device)?;
    let fingerprint = saved.fingerprint();
    let SavedModel { config, preprocessor, path, .. } = saved;
    Ok(Ready { config, request, model, path, rows, n_skipped, is_held_out, preprocessor, fingerprint })
}

/// The rows to evaluate, and the number of those that were skipped.
fn open_rows(
    args: &EvalArgs,
    saved: &SavedModel,
    host: Option<&HostShare>,
) -> Result<(Arc<dyn Dataset>, usize)> {
    let (config, known, labels_of_model) = (&saved.config, saved.known_features(), saved.labels());
    let classes = match &saved.preprocessor.heads[..] {
        [] => ClassLabels::Known(&labels_of_model),
        heads => ClassLabels::Heads(heads),
    };
    let mut data = config.data.clone();
    data.unknown_label = args.unknown_label.unwrap_or(data.unknown_label);
    data.missing_target = args.missing_target.unwrap_or(data.missing_target);
    if args.strict_columns {
        data.extra_columns = ExtraColumns::Error;
    }
    if args.data.is_some() {
        // It selects among the rows of the run.
        data.filter = None;
        // The rows may have a different format than the training rows.
        data.format = DataFormat::Auto;
    }
    let data = &data;
    let spec = SourceSpec { classes, host, ..SourceSpec::train(data) };
    let open = |source: &str, labels| {
        let opened = open_eval(SourceSpec { source, labels, ..spec }, known);
        opened.map_err(|error| Error::from_model_data(error, ModelCommand::Eval))
    };
    let labels = args.labels.as_deref();
    match (&args.data, &data.eval) {
        (Some(source), _) => open(source, labels),
        (None, EvalSource::Source(source)) => open(source, labels.or(data.eval_labels.as_deref())),
        (None, EvalSource::Fraction(_) | EvalSource::Fold(_) | EvalSource::Split(_)) => {
            let rows = SourceSpec { features: Some(known), ..spec }.open()?;
            let divided = take_eval(data, &rows, config.train.seed, host)?;
            Ok((divided.expect("the config takes evaluation rows out of the training rows").eval, 0))
        }
        (None, EvalSource::Unset | EvalSource::None) => Err(CommandError::NoEvalData.into()),
    }
}

/// Rows of a calibration, as its report names them.
#[derive(Debug, Clone, Copy, Serialize)]
struct CalibrationSource<'a> {
    rows: usize,
    /// Number of rows that were skipped because the model does not know their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_rows: Option<usize>,
    data: &'a str,
}

/// A calibration with its model and its rows.
#[derive(Debug, Serialize)]
struct CalibrationReport<'a> {
    temperature: f64,
    /// Why the model was left as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_fit: Option<String>,
    before: &'a EvalMetrics,
    after: &'a EvalMetrics,
    #[serde(flatten)]
    source: CalibrationSource<'a>,
    model: &'a Path,
    /// Fingerprint of the model file that was written, by which a reader of the note knows whether it is still the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
}

/// Writes the model with its temperature, and a note next to it, and prints the result; on rank 0.
fn save_calibrated(
    model: &Path,
    output_layer: usize,
    calibration: &Calibration,
    source: CalibrationSource<'_>,
    json: bool,
) -> Result<()> {
    let Calibration { temperature, before, after, no_fit } = calibration;
    let mut report = CalibrationReport {
        temperature: *temperature,
        no_fit: no_fit.as_ref().map(ToString::to_string),
        before,
        after,
        source,
        model,
        fingerprint: None,
    };
    match no_fit {
        Some(NoFit::NoneIsBetter) => info!("{}: the model is left as it was", NoFit::NoneIsBetter),
        Some(no_fit) => warn!(
            "the model is left as it was: {no_fit}\nhint: --data names more rows that the model was not trained on"
        ),
        None => {
            let saved = SavedModel::open(model)?;
            saved.write_with(model, |layout, flat| {
                with_temperature(layout, output_layer, flat, *temperature)
            })?;
            report.fingerprint = calibration_note::fingerprint(model);
            write_atomic(&calibration_note::path(model), json_line(&report).as_bytes())?;
        }
    }
    let line = json_line(&report);
    let text = || {
        let number = |metrics: &EvalMetrics, metric| {
            metrics.get(metric).map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
        };
        let row = |metric: &EvalMetric| {
            vec![metric.title().to_owned(), number(before, *metric), number(after, *metric)]
        };
        let rows_of = [EvalMetric::LogLoss, EvalMetric::Ece, EvalMetric::Accuracy].iter().map(row);
        let CalibrationSource { rows, skipped_rows, data } = source;
        format!(
            "temperature {temperature:.4}, of {} of {data}{}, in {}\n\n{}",
            count(rows, "row"),
            skipped(skipped_rows),
            model.display(),
            table(&["<metric", "before", "after"], &rows_of.collect::<Vec<_>>())
        )
    };
    print_result(&if json { line.clone() } else { text() })?;
    Ok(())
}
