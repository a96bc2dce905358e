//! `ddp-train checkpoint show`: the manifest as text.

use super::{one_at, print_result};
use crate::checkpoint::{Checkpoint, Parameter, RunState};
use crate::cli::CheckpointShowArgs;
use crate::data::LabelVocabulary;
use crate::error::Result;
use crate::model::file::labels_of;
use crate::report::EvalMetrics;
use crate::report::metrics::json_line;
use crate::report::table::table;
use crate::report::units::mib;
use crate::storage::tensor_file::TensorFile;

/// Shows the manifest.
pub(super) fn show(args: &CheckpointShowArgs) -> Result<()> {
    let checkpoint = one_at(&args.path)?;
    Ok(print_result(&if args.config {
        checkpoint.manifest().config.clone()
    } else if args.json {
        json_line(checkpoint.manifest())
    } else {
        to_text(&checkpoint)
    })?)
}

fn to_text(checkpoint: &Checkpoint) -> String {
    let manifest = checkpoint.manifest();
    let run = &manifest.run;
    let mut text = String::new();
    let mut line = |what: &str, value: String| text += &format!("{what:<12}{value}\n");
    line("checkpoint", checkpoint.path().display().to_string());
    line("written", format!("{} on {}, by {}", manifest.time, manifest.host, manifest.program));
    line("run", format!("step {}, {} rows used by {} ranks", run.step, run.cursor, manifest.world_size));
    line("", format!("{} rows per step, seed {}", run.global_rows, run.seed));
    line("epochs", epochs(checkpoint));
    line("evaluation", evaluation(&run.eval));
    if let Some(best) = &run.best {
        line("best", format!("{} {} after step {}", best.metric, best.value, best.step));
    }
    line("patience", patience(run));
    if let Some(scaler) = &run.loss_scaler {
        line("loss scale", format!("{}, {} steps skipped", scaler.scale, scaler.n_skipped));
    }
    let numel: usize = manifest.parameters.iter().map(Parameter::numel).sum();
    line("model", format!("{numel} elements in {} parameters", manifest.parameters.len()));
    if let Some(labels) = labels(checkpoint) {
        line("classes", format!("{}: {}", labels.len(), labels.summary()));
    }
    let state = if manifest.state.is_empty() { "none".to_owned() } else { manifest.state.join(", ") };
    line("state", state);
    line("data", format!("{} rows, fingerprint {}", run.n_rows, manifest.data_fingerprint));
    text.push('\n');
    let parameter = |p: &Parameter| vec![p.name.clone(), format!("{:?}", p.shape), p.numel().to_string()];
    text += &table(
        &["<parameter", "<shape", "elements"],
        &manifest.parameters.iter().map(parameter).collect::<Vec<_>>(),
    );
    text.push('\n');
    let files = manifest.files.iter().map(|f| vec![f.name.clone(), mib(f.bytes), f.xxh3_128.to_string()]);
    text += &table(&["<file", "size", "<xxh3-128"], &files.collect::<Vec<_>>());
    text
}

/// The labels of the model's classes, if its file can be read; `checkpoint verify` reports damage.
fn labels(checkpoint: &Checkpoint) -> Option<LabelVocabulary> {
    let file = TensorFile::open(&checkpoint.model_path()).ok()?;
    labels_of(&file.metadata()).ok()?
}

fn epochs(checkpoint: &Checkpoint) -> String {
    match checkpoint.verify_epochs() {
        Ok(proved) => proved.to_string(),
        Err(wrong) => format!("WRONG: {}", wrong.replace('\n', "; ")),
    }
}

fn evaluation(eval: &EvalMetrics) -> String {
    let values: Vec<_> = eval.iter().map(|(metric, value)| format!("{} {value}", metric.title())).collect();
    if values.is_empty() { "none yet".to_owned() } else { values.join(", ") }
}

fn patience(run: &RunState) -> String {
    match run.early_stopping.best {
        Some(best) => format!("{} evaluations since the best of {best}", run.early_stopping.n_worse),
        None => "early stopping is off or has not started".to_owned(),
    }
}
