//! `ddp-train checkpoint export`: a model for other programs, as safetensors or ONNX.

use std::path::{Path, PathBuf};

use ddp::checkpoint::{Checkpoint, MANIFEST_FILE};
use ddp::model::{ParamLayout, layers};
use ddp::run_folder::folder::MODEL_FILE;
use ddp_tables::export::{ExportError, OnnxModel, Trained, TrainedParam, WeightsPlace};
use ddp_tables::predict::{SavedModel, has_gone_on};

use super::weights::{Named, Weights, check_out};
use super::{one_at, print_result};
use crate::cli::{CheckpointExportArgs, ExportFormat, WeightsChoice};
use crate::error::Result;

/// Exports the model.
pub(super) fn export(args: &CheckpointExportArgs) -> Result<()> {
    let format = format(args)?;
    if args.external_data && format != ExportFormat::Onnx {
        return Err(ExportError::ExternalDataOfSafetensors.into());
    }
    check_out(&args.out, args.overwrite)?;
    let Source { file, checkpoint } = Source::find(&args.path, args.weights)?;
    let mut written = args.out.display().to_string();
    let (weights, signature) = match format {
        ExportFormat::Safetensors => {
            let weights = weights(&file, checkpoint.as_ref(), args.weights)?;
            weights.write(&args.out)?;
            (weights.origin, None)
        }
        ExportFormat::Onnx => {
            let saved = SavedModel::open(&file)?;
            let data = &saved.config.data;
            let Weights { parameters, origin, .. } = weights(&file, checkpoint.as_ref(), args.weights)?;
            let layers = layers::from_spec(&saved.spec()?);
            let model = OnnxModel::new(Trained {
                preprocessor: &saved.preprocessor,
                missing_values: &data.missing_values,
                layers: &layers.iter().map(|layer| &**layer).collect::<Vec<_>>(),
                parameters: parameters.into_iter().map(TrainedParam::from).collect(),
                task: data.task,
                loss: &saved.config.loss,
                targets: &data.target,
                config: &saved.config.to_toml(),
                origin: &origin,
            })?;
            let place = if args.external_data { WeightsPlace::SecondFile } else { WeightsPlace::Auto };
            if let Some(second) = model.second_file(&args.out, place) {
                check_out(&second, args.overwrite)?;
                written += &format!(" and {}", second.display());
            }
            let signature = model.signature();
            model.write(&args.out, place)?;
            (origin, Some(signature))
        }
    };
    let signature = signature.map_or(String::new(), |signature| format!("{signature}\n"));
    Ok(print_result(&format!("wrote the {weights} to {written}\n{signature}"))?)
}

/// The requested format, or the format of the output file's name.
///
/// # Errors
/// [`ExportError::UnknownEnding`].
fn format(args: &CheckpointExportArgs) -> Result<ExportFormat> {
    if let Some(format) = args.format {
        return Ok(format);
    }
    let ending = args.out.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    match ending.as_deref() {
        Some("onnx") => Ok(ExportFormat::Onnx),
        Some("safetensors") | None => Ok(ExportFormat::Safetensors),
        _ => Err(ExportError::UnknownEnding { path: args.out.clone() }.into()),
    }
}

/// A model file and, if it is in a checkpoint, that verified checkpoint.
struct Source {
    file: PathBuf,
    checkpoint: Option<Checkpoint>,
}

impl Source {
    /// Resolves `path`. A run folder resolves to its model file if it exists, and `best` to the model of the best evaluation, as in `eval`, unless
    /// the choice of weights requires a checkpoint.
    fn find(path: &Path, choice: WeightsChoice) -> Result<Self> {
        let of_run = path.join(MODEL_FILE);
        let is_run = of_run.exists() && !path.join(MANIFEST_FILE).exists() && !has_gone_on(path);
        let is_marker = path.file_name().is_some_and(|name| name == "latest" || name == "best");
        if is_run && choice == WeightsChoice::Auto {
            return Ok(Source { file: of_run, checkpoint: None });
        }
        if path.is_file() && !is_marker {
            return Ok(Source { file: path.to_owned(), checkpoint: None });
        }
        let checkpoint = one_at(path)?;
        let is_best = path.is_file() && path.ends_with("best") && choice == WeightsChoice::Auto;
        Ok(match checkpoint.best_path().filter(|_| is_best) {
            Some(file) => Source { file, checkpoint: None },
            None => Source { file: checkpoint.model_path(), checkpoint: Some(checkpoint) },
        })
    }
}

fn weights(file: &Path, checkpoint: Option<&Checkpoint>, choice: WeightsChoice) -> Result<Weights> {
    match checkpoint {
        Some(checkpoint) => Weights::load(checkpoint, choice),
        None => Weights::from_file(file, &ParamLayout::new(&SavedModel::open(file)?.spec()?), choice),
    }
}

impl From<Named> for TrainedParam {
    fn from(Named { name, dims, values }: Named) -> Self {
        TrainedParam { name, dims, values }
    }
}
