//! `predict --serve`: predicts for a program that asks often, by one process that keeps the model.

use std::io::{self, BufRead, Read as _, Write as _};
use std::path::{Path, PathBuf};

use ddp::data::loader::LoaderOptions;
use ddp::report::ReportError;
use ddp::storage::unfinished::Unfinished;
use ddp_comm::World;
use ddp_tables::predict::input::InputSpec;
use ddp_tables::predict::run::{OutputPlace, OutputSpec, Summary, run};
use ddp_tables::predict::{Model, PredictError, Predictor, SavedModel};
use miette::Diagnostic as _;
use serde::Deserialize;
use serde_json::json;

use crate::cli::{BadRows, PredictArgs};
use crate::error::{Error, Result};
use crate::exit::Stop;

/// Most bytes of a request.
const MAX_REQUEST: u64 = 1 << 20;

/// A line of stdin.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// Value of `--data`.
    data: String,
    /// Value of `--out`; an existing file is replaced.
    out: PathBuf,
    /// Value of `--proba`.
    #[serde(default)]
    proba: bool,
    /// Value of `--keep`.
    #[serde(default)]
    keep: Vec<String>,
}

/// Answers requests until stdin ends. A request that can't be met is answered by its error; it ends nothing.
///
/// # Errors
/// [`Stop`] if stdin can't be read, or stdout written.
pub(super) fn serve(
    world: &World,
    args: &PredictArgs,
    saved: &SavedModel,
    predictor: &mut Predictor,
    loading: &LoaderOptions,
    unfinished: &Unfinished,
) -> Result<(), Stop> {
    let mut stdin = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        let n_read = read_line(&mut stdin, &mut line);
        let n_read = n_read.map_err(|source| PredictError::Usage {
            reason: format!("--serve can't read stdin: {source}"),
            hint: "give requests by a pipe".to_owned(),
        });
        if n_read.map_err(Error::from)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_slice::<Request>(&line) {
            Err(error) => {
                let hint = r#"a request is a line such as {"data": "new.csv", "out": "predictions.npy"}"#;
                json!({ "error": format!("request: {error}"), "hint": hint })
            }
            Ok(request) => match predict(world, args, saved, predictor, loading.clone(), request, unfinished)
            {
                Ok(Summary { n_rows, n_bad_rows, .. }) => {
                    json!({ "rows": n_rows, "without_prediction": n_bad_rows })
                }
                Err(stop) => match stop.error() {
                    Some(error) => {
                        json!({ "error": error.to_string(), "hint": error.help().map(|help| help.to_string()) })
                    }
                    None => json!({ "error": stop.to_string() }),
                },
            },
        };
        let mut stdout = io::stdout().lock();
        let written = writeln!(stdout, "{answer}").and_then(|()| stdout.flush());
        written.map_err(|source| Error::from(ReportError::Stdout { source }))?;
    }
}

/// Reads a line, of which at most [`MAX_REQUEST`] bytes are kept; returns its length, 0 only at the end.
fn read_line(stdin: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    let mut n_read = stdin.by_ref().take(MAX_REQUEST).read_until(b'\n', line)?;
    while n_read >= MAX_REQUEST as usize && line.last() != Some(&b'\n') {
        // The rest of a line that is too long is no request of its own.
        line.clear();
        n_read += stdin.by_ref().take(MAX_REQUEST).read_until(b'\n', line)?;
        if line.is_empty() {
            break;
        }
        if line.last() == Some(&b'\n') {
            *line = b"{ \"too long\"".to_vec();
            break;
        }
    }
    Ok(n_read)
}

/// Fails if the predictions have no file.
fn check(request: &Request) -> Result<(), PredictError> {
    if request.out != Path::new("-") {
        return Ok(());
    }
    Err(PredictError::Usage {
        reason: "--serve writes predictions to files".to_owned(),
        hint: "name a file in `out`, such as predictions.npy".to_owned(),
    })
}

fn predict(
    world: &World,
    args: &PredictArgs,
    saved: &SavedModel,
    predictor: &mut Predictor,
    loading: LoaderOptions,
    request: Request,
    unfinished: &Unfinished,
) -> Result<Summary, ddp_comm::Stop<PredictError>> {
    check(&request)?;
    let input = InputSpec {
        source: request.data,
        keep: request.keep,
        rows: 0..usize::MAX,
        skips_bad_rows: args.bad_rows == BadRows::Null,
        keeps_types: false,
        filters: false,
    };
    let output = OutputSpec {
        place: OutputPlace::File(request.out),
        with_probabilities: request.proba,
        threshold: args.threshold,
        overwrite: true,
        unfinished: unfinished.clone(),
    };
    let model = Model { saved, predictor, loading };
    let summary = run(world, model, None, &input, &output, &mut |_| Ok(()))?;
    super::report(&summary);
    Ok(summary)
}
