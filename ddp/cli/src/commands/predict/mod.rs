//! `ddp-train predict`: reads rows and writes their predictions in the same order.

mod serve;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ddp::config::{DataFormat, ExtraColumns};
use ddp::data::loader::LoaderOptions;
use ddp::report::ReportError;
use ddp::storage::unfinished::Unfinished;
use ddp_comm::World;
use ddp_kernels::cpu::threads;
use ddp_tables::predict::input::InputSpec;
use ddp_tables::predict::observed_rows::ColumnCounts;
use ddp_tables::predict::run::{OutputPlace, OutputSpec, Summary, check, run};
use ddp_tables::predict::{Ensemble, Model, PredictError, Predictor, SavedModel, is_active};
use tracing::{info, warn};

use crate::cli::column_names::column_names;
use crate::cli::{BadRows, PredictArgs};
use crate::commands::train::{Pinning, pin_device};
use crate::commands::watchdog::{self, Watched};
use crate::commands::{model_device, model_rows, sweep};
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::count;

/// Name of stdin and stdout.
const STREAM: &str = "-";
/// Maximum number of columns that a warning names.
const SHOWN_COLUMNS: usize = 8;

/// Predicts rows and writes the predictions; every rank of the world calls it.
///
/// - `unfinished`: the list of temporary files, which are removed if a signal ends the process
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn predict(world: &World, log: &Log, args: &PredictArgs, unfinished: Unfinished) -> Result<(), Stop> {
    world.collective_result(check_streams(world, args))?;
    let pinning =
        Pinning { share_gpu: args.share_gpu, n_threads: args.threads, bind: args.bind, ..Pinning::default() };
    let pinning = if args.safe { pinning.without_features() } else { pinning };
    let device = pin_device(world, &args.device, pinning)?.device;
    let paths = world.collective_result(models(args))?;
    let mut all = Vec::new();
    for path in &paths {
        let is_active = is_active(world, path).map_err(Error::from)?;
        let mut saved = world.collective_result(open(args, path, is_active))?;
        if args.strict_columns {
            saved.config.data.extra_columns = ExtraColumns::Error;
        }
        all.push(saved);
    }
    watchdog::start(world, log, &all[0].config.watchdog, Watched::Other(unfinished.clone()))?;
    world.watchdog().set_device(&device.to_string());
    // Of the GPU's features, none that the run of any model did without.
    let without = all.iter().flat_map(|saved| saved.config.train.gpu_without.clone()).collect();
    all[0].config.train.gpu_without = without;
    model_device::ready(world, device, &mut all[0].config, &args.check, args.safe)?;
    let fingerprints = all.iter().map(|saved| format!("{:016x}", saved.fingerprint())).collect::<Vec<_>>();
    let entry = ("--checkpoint (fingerprint)".to_owned(), fingerprints.join(", "));
    world.agree(&[entry]).map_err(Error::from)?;
    let ensemble = world.collective_result(Ensemble::new(all).map_err(Error::from))?;
    let loading =
        |saved: &SavedModel| LoaderOptions::from_config(&saved.config.data, device, threads::current(), None);
    let saved = ensemble.last();
    let of_model = || Predictor::for_ranks(world, saved, device);
    let (data, out) = match (&args.data, &args.out) {
        (Some(data), Some(out)) => (data, out),
        (None, Some(out)) => (&saved.config.data.train, out),
        _ => {
            let mut predictor = of_model()?;
            return serve::serve(world, args, saved, &mut predictor, &loading(saved), &unfinished);
        }
    };
    let is_stdin = data == STREAM;
    let input = InputSpec {
        source: if is_stdin { "/dev/stdin".to_owned() } else { data.clone() },
        keep: column_names(&args.keep),
        rows: args.rows.clone().unwrap_or(0..usize::MAX),
        skips_bad_rows: args.bad_rows == BadRows::Null,
        keeps_types: false,
        filters: args.out_of_fold,
    };
    let place = if out == Path::new(STREAM) { OutputPlace::Stdout } else { OutputPlace::File(out.clone()) };
    let output = OutputSpec {
        place: place.clone(),
        with_probabilities: args.proba,
        threshold: args.threshold,
        overwrite: args.overwrite,
        unfinished,
    };
    if paths.len() > 1 || args.out_of_fold {
        check(world, saved, &input, &output)?;
    }
    let held_out = if args.out_of_fold {
        let host = world.share_host(|| None).map_err(Error::from)?;
        Some(ensemble.held_out(world, host.as_ref())?)
    } else {
        None
    };
    let predicting = || log.terminal().show_busy(format!("predicting the rows of {data}"));
    let predicting = matches!(place, OutputPlace::File(_)).then(predicting);
    let votes = ensemble.vote(world, held_out, device, loading, &input)?;
    let model = Model { saved, predictor: &mut of_model()?, loading: loading(saved) };
    let summary = run(world, model, votes, &input, &output, &mut print)?;
    drop(predicting);
    if world.rank().0 == 0 {
        summary.left_out.iter().for_each(|note| info!("{data}: {note}"));
        report(&summary);
        let bad = match summary.n_bad_rows {
            0 => String::new(),
            n => format!(", {n} without a prediction"),
        };
        match place {
            OutputPlace::Stdout => info!("{} rows{bad}", summary.n_rows),
            OutputPlace::File(path) => {
                let using = match &paths[..] {
                    [_] => saved.path.display().to_string(),
                    _ => count(paths.len() as u64, "model"),
                };
                info!("{}{bad} -> {}, using {using}", count(summary.n_rows, "row"), path.display())
            }
        }
    }
    Ok(())
}

/// Reports values that differ from those of training, and outputs that are none.
fn report(summary: &Summary) {
    if summary.n_nan > 0 {
        warn!("{}: NaN or infinite outputs", count(summary.n_nan, "row"));
    }
    let columns = |count: fn(&ColumnCounts) -> u64| -> Vec<(String, u64)> {
        let counts = summary.counts.iter().map(|(name, counts)| (name.clone(), count(counts)));
        counts.filter(|(_, n)| *n > 0).collect()
    };
    let (unseen, filled, outside) = (
        columns(|counts| counts.n_unseen),
        columns(|counts| counts.n_filled),
        columns(|counts| counts.n_outside),
    );
    if !unseen.is_empty() {
        warn!("{}", unseen_categories(&unseen));
    }
    if !filled.is_empty() {
        info!("missing values filled in: {}", listed(&filled));
    }
    if !outside.is_empty() {
        warn!("values outside the range of training: {}", listed(&outside));
    }
}

/// The warning about categories that are empty, or of which training saw no or too few rows, which have the same code, with the
/// number of rows per column.
pub(super) fn unseen_categories(columns: &[(String, u64)]) -> String {
    format!("categories that are empty or that training saw too rarely or never: {}", listed(columns))
}

/// Columns with their counts, at most [`SHOWN_COLUMNS`] of them.
fn listed(columns: &[(String, u64)]) -> String {
    let shown = columns.iter().take(SHOWN_COLUMNS).map(|(name, n)| format!("\"{name}\" {n}"));
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if columns.len() > SHOWN_COLUMNS {
        shown += &format!(", and {} more columns", columns.len() - SHOWN_COLUMNS);
    }
    shown
}

/// The models to predict with: those that are named, where a folder of a sweep stands for the runs of its best point.
fn models(args: &PredictArgs) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in &args.checkpoint {
        match sweep::best_runs(path)? {
            Some(runs) => all.extend(runs),
            None => all.push(path.clone()),
        }
    }
    let usage =
        |reason: String, hint: &str| Err(PredictError::Usage { reason, hint: hint.to_owned() }.into());
    match &all[..] {
        [_] => {}
        _ if args.serve => return usage("--serve keeps a single model".to_owned(), "name one run"),
        _ if args.data.as_deref().is_some_and(is_stream) => {
            return usage(
                format!("{} models read the rows in turn", all.len()),
                "name a file instead of a pipe",
            );
        }
        _ => {}
    }
    Ok(all)
}

/// Whether rows can be read once only.
fn is_stream(data: &str) -> bool {
    data == STREAM || std::fs::metadata(data).is_ok_and(|of| !of.is_file() && !of.is_dir())
}

fn check_streams(world: &World, args: &PredictArgs) -> Result<()> {
    let is_stdin = args.data.as_deref() == Some(STREAM);
    let is_stream = args.serve || is_stdin || args.out.as_deref() == Some(Path::new(STREAM));
    if is_stream && world.world_size() > 1 {
        let what = if args.serve { "--serve" } else { "`-`" };
        Err(PredictError::Usage {
            reason: format!("{what} needs a single rank, and there are {}", world.world_size()),
            hint: "name files, or run without mpirun".to_owned(),
        }
        .into())
    } else {
        Ok(())
    }
}

fn open(args: &PredictArgs, path: &Path, is_active: bool) -> Result<SavedModel> {
    let mut saved = SavedModel::open_of(path, is_active)?;
    if args.out_of_fold {
        // It reads the rows of training, whose format the config names.
        return Ok(saved);
    }
    let data = &mut saved.config.data;
    model_rows::apply(data, &args.set)?;
    // The rows may have a different format than the training rows.
    data.format = match args.format {
        Some(format) => format,
        None if args.data.as_deref() == Some(STREAM) => DataFormat::Csv,
        None => DataFormat::Auto,
    };
    Ok(saved)
}

fn print(bytes: &[u8]) -> ddp_tables::predict::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(PredictError::Report(ReportError::Stdout { source }))
        }
        _ => Ok(()),
    }
}
