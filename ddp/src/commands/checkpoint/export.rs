//! `ddp-train checkpoint export`: a model for other programs, as safetensors or ONNX.

use std::path::{Path, PathBuf};

use super::weights::{Named, Weights, check_out};
use super::{one_at, print_result};
use crate::checkpoint::{Checkpoint, MANIFEST_FILE};
use crate::cli::{CheckpointExportArgs, ExportFormat, WeightsChoice};
use crate::config::Config;
use crate::error::Result;
use crate::export::{ExportError, OnnxModel, Trained, TrainedParam, WeightsPlace};
use crate::model::file::{ModelFile, ModelInfo};
use crate::model::{ModelSpec, ParamLayout, layers};
use crate::run_folder::folder::MODEL_FILE;

/// Exports the model.
pub(super) fn export(args: &CheckpointExportArgs) -> Result<()> {
    let format = format(args);
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
            let (config, info, spec) = architecture(&file)?;
            let Weights { parameters, origin, .. } = weights(&file, checkpoint.as_ref(), args.weights)?;
            let layers = layers::of_spec(&spec);
            let model = OnnxModel::new(Trained {
                preprocessor: &info.preprocessor,
                layers: &layers.iter().map(|layer| &**layer).collect::<Vec<_>>(),
                parameters: parameters.into_iter().map(TrainedParam::from).collect(),
                task: config.data.task,
                targets: &config.data.target,
                config: &info.config,
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

/// The format that was asked for, or that of the output file's name.
fn format(args: &CheckpointExportArgs) -> ExportFormat {
    let is_onnx = args.out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"));
    args.format.unwrap_or(if is_onnx { ExportFormat::Onnx } else { ExportFormat::Safetensors })
}

/// A model file and, if it is in a checkpoint, that verified checkpoint.
struct Source {
    file: PathBuf,
    checkpoint: Option<Checkpoint>,
}

impl Source {
    /// Resolves `path`. A run folder resolves to its model file if it exists, as in `eval`, unless a choice of weights asks for a
    /// checkpoint.
    fn find(path: &Path, choice: WeightsChoice) -> Result<Self> {
        let of_run = path.join(MODEL_FILE);
        let is_run = of_run.exists() && !path.join(MANIFEST_FILE).exists();
        let is_marker = path.file_name().is_some_and(|name| name == "latest" || name == "best");
        if is_run && choice == WeightsChoice::Auto {
            return Ok(Source { file: of_run, checkpoint: None });
        }
        if path.is_file() && !is_marker {
            return Ok(Source { file: path.to_owned(), checkpoint: None });
        }
        let checkpoint = one_at(path)?;
        Ok(Source { file: checkpoint.model_path(), checkpoint: Some(checkpoint) })
    }
}

fn weights(file: &Path, checkpoint: Option<&Checkpoint>, choice: WeightsChoice) -> Result<Weights> {
    match checkpoint {
        Some(checkpoint) => Weights::load(checkpoint, choice),
        None => Weights::of_file(file, &ParamLayout::new(&architecture(file)?.2), choice),
    }
}

/// The layers of the model in a file, and what is known of its data.
fn architecture(path: &Path) -> Result<(Config, ModelInfo, ModelSpec)> {
    let file = ModelFile::read(path)?;
    let info = file.info()?;
    let config = Config::from_saved(&info.config, path)?;
    let n_outputs = file.n_outputs(&config.model)?;
    let spec = ModelSpec::new(&config.model, info.preprocessor.plan.n_features(), n_outputs);
    let spec = spec.with_embeddings(file.embeddings()?);
    Ok((config, info, spec))
}

impl From<Named> for TrainedParam {
    fn from(Named { name, dims, values }: Named) -> Self {
        TrainedParam { name, dims, values }
    }
}
