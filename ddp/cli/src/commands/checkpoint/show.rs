//! `ddp-train checkpoint show`: the manifest and the model's preprocessing, as text or JSON.

use std::collections::BTreeMap;

use ddp::checkpoint::{Checkpoint, Manifest, Parameter, RunState};
use ddp::data::LabelVocabulary;
use ddp::data::vocabulary::Vocabulary;
use ddp::model::file::ModelInfo;
use ddp::report::EvalMetrics;
use ddp::report::metrics::json_line;
use ddp::report::units::mib;
use ddp_tables::fit::preprocess::Preprocessor;
use serde::Serialize;

use super::{one_at, print_result};
use crate::cli::CheckpointShowArgs;
use crate::error::Result;
use crate::report::stdout::{count, table};

/// Shows one checkpoint.
pub(super) fn show(args: &CheckpointShowArgs) -> Result<()> {
    let checkpoint = one_at(&args.path)?;
    Ok(print_result(&if args.config {
        checkpoint.manifest().config.clone()
    } else if args.json {
        to_json(&checkpoint)
    } else {
        to_text(&checkpoint)
    })?)
}

/// A checkpoint as JSON: the fields of its manifest, and the properties of the data in its model file.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// Rows used per epoch, or the faults in them.
    epochs: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    preprocessing: Option<Preprocessing<'a>>,
}

/// Conversion of the rows to the model's input and output.
#[derive(Serialize)]
struct Preprocessing<'a> {
    /// Columns of the data, in order.
    columns: &'a [String],
    /// Values of the categorical columns.
    vocabularies: &'a [Vocabulary],
    /// Whether numbers are normalized.
    is_normalized: bool,
    /// Whether missing values are filled in.
    fills_missing: bool,
    /// Labels of the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<Vec<String>>,
    /// Per target, a prediction is `output * scale + shift`.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_scale: Option<Scale<'a>>,
    /// Classes, labels or targets of each head, if the model has several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    heads: BTreeMap<&'a str, Vec<String>>,
}

#[derive(Serialize)]
struct Scale<'a> {
    shift: &'a [f64],
    scale: &'a [f64],
}

impl<'a> Preprocessing<'a> {
    fn of(preprocessor: &'a Preprocessor) -> Self {
        let Preprocessor { plan, normalizer, target_scale, labels, heads } = preprocessor;
        let names = |labels: &LabelVocabulary| (0..labels.len()).map(|class| labels.name(class)).collect();
        Preprocessing {
            columns: &plan.columns,
            vocabularies: &plan.vocabularies,
            is_normalized: normalizer.is_some(),
            fills_missing: plan.fills_missing(),
            classes: labels.as_deref().map(names),
            heads: heads.iter().map(|head| (head.name.as_str(), head.names())).collect(),
            target_scale: target_scale.as_ref().map(|of| Scale { shift: &of.shift, scale: &of.scale }),
        }
    }

    /// The columns in words.
    fn summary(&self) -> String {
        let mut text = self.columns.len().to_string();
        if !self.vocabularies.is_empty() {
            text += &format!(", {} of them with categories", self.vocabularies.len());
        }
        if self.is_normalized {
            text += ", numbers normalized";
        }
        if self.fills_missing {
            text += ", missing values filled in";
        }
        text
    }
}

fn to_json(checkpoint: &Checkpoint) -> String {
    let preprocessor = preprocessor(checkpoint);
    json_line(&Shown {
        manifest: checkpoint.manifest(),
        epochs: epochs(checkpoint),
        preprocessing: preprocessor.as_ref().map(Preprocessing::of),
    })
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
    if let Some(preprocessor) = preprocessor(checkpoint) {
        line("columns", Preprocessing::of(&preprocessor).summary());
        if let Some(labels) = &preprocessor.labels {
            line("classes", format!("{}: {}", labels.len(), labels.summary()));
        }
        if let Some(scale) = &preprocessor.target_scale {
            line("targets", format!("{}, standardized", scale.n_targets()));
        }
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

/// The preprocessing in the model's file, if it can be read; `checkpoint verify` reports damage.
fn preprocessor(checkpoint: &Checkpoint) -> Option<Preprocessor> {
    let path = checkpoint.model_path();
    Preprocessor::from_model(&ModelInfo::read(&path).ok()?.preprocessor, &path).ok()
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
        Some(best) => format!("{} since the best of {best}", count(run.early_stopping.n_worse, "evaluation")),
        None => "early stopping is off or has not started".to_owned(),
    }
}
