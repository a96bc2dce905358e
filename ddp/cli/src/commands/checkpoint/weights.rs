//! Weights of a checkpoint under PyTorch's parameter names, and the file to export them to.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use ddp::checkpoint::{Checkpoint, CheckpointError, EMA_STATE, Manifest, ShardRange, StateReader};
use ddp::data::LabelVocabulary;
use ddp::model::file::{COLUMN_KEYS, labels_of};
use ddp::model::{ModelError, ParamLayout};
use ddp::storage::atomic_write::{WriteError, write_atomic_with};
use ddp::storage::fault::FileFault;
use ddp::storage::tensor_file;
use ddp::storage::tensor_file::{TensorFile, TensorToWrite, Values};

use crate::cli::WeightsChoice;
use crate::error::Result;

/// Metadata key of the origin of the weights.
const WEIGHTS_KEY: &str = "ddp_train.weights";

/// A tensor with its values.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// A tensor next to the parameters: normalization of the features, scale of the targets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Extra {
    /// Format of this version.
    F64(String, Vec<usize>, Vec<f64>),
    /// Format of earlier versions.
    F32(String, Vec<usize>, Vec<f32>),
}

impl Extra {
    /// Reads the tensor from a model file.
    fn read(model: &TensorFile, name: &str) -> Result<Self, FileFault> {
        let (name, dims) = (name.to_owned(), model.dims(name).unwrap_or_default().to_vec());
        Ok(if model.is_f64(&name) {
            Extra::F64(name.clone(), dims, model.tensor_f64(&name)?)
        } else {
            Extra::F32(name.clone(), dims, model.tensor(&name)?)
        })
    }

    fn to_write(&self) -> TensorToWrite<'_> {
        let (name, dims, values) = match self {
            Extra::F64(name, dims, values) => (name, dims, Values::F64(values)),
            Extra::F32(name, dims, values) => (name, dims, Values::F32(values)),
        };
        TensorToWrite { name: name.clone(), dims: dims.clone(), values }
    }
}

/// All tensors of a model file.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    pub(super) parameters: Vec<Named>,
    pub(super) others: Vec<Extra>,
    metadata: HashMap<String, String>,
    /// Origin, such as "weights of step 12".
    pub(super) origin: String,
}

impl Weights {
    /// Loads the weights of a checkpoint.
    pub(super) fn load(checkpoint: &Checkpoint, choice: WeightsChoice) -> Result<Self> {
        let manifest = checkpoint.manifest();
        let has_ema = manifest.state.iter().any(|name| name == EMA_STATE);
        let is_ema = match choice {
            WeightsChoice::Model => false,
            WeightsChoice::Auto => has_ema,
            WeightsChoice::Ema if has_ema => true,
            WeightsChoice::Ema => {
                return Err(CheckpointError::NoEma { path: checkpoint.path().to_owned() }.into());
            }
        };
        let damaged = |fault: FileFault| checkpoint.damaged(fault);
        let model = TensorFile::open(&checkpoint.model_path()).map_err(damaged)?;
        let reader = StateReader::open(checkpoint).map_err(|fault| checkpoint.damaged(fault))?;
        let registered = checkpoint.registered_buffers()?;
        let (mut parameters, mut others) = (Vec::new(), Vec::new());
        for name in model.names() {
            let dims = model.dims(&name).unwrap_or_default().to_vec();
            if registered.iter().any(|(registered, _)| *registered == name) {
                // A running statistic.
                let values = model.tensor(&name).map_err(damaged)?;
                parameters.push(Named { name, dims, values });
                continue;
            }
            if !manifest.parameters.iter().any(|parameter| parameter.name == name) {
                others.push(Extra::read(&model, &name).map_err(damaged)?);
                continue;
            }
            let values = if is_ema {
                ema(&reader, &name, dims.iter().product())?
            } else {
                model.tensor(&name).map_err(damaged)?
            };
            parameters.push(Named { name, dims, values });
        }
        let what = if is_ema { "moving average of the weights" } else { "weights" };
        let origin = format!("{what} of step {}", manifest.run.step);
        Ok(Weights { parameters, others, metadata: model.metadata(), origin })
    }

    /// The labels of the classes in the file.
    pub(super) fn labels(&self) -> Option<LabelVocabulary> {
        labels_of(&self.metadata).ok()?
    }

    /// Whether both take the same columns, with the same codes, and give the same outputs.
    pub(super) fn has_columns_of(&self, other: &Self) -> bool {
        COLUMN_KEYS.iter().all(|key| self.metadata.get(*key) == other.metadata.get(*key))
    }

    /// Loads the weights of a model file; `layout` must belong to its model.
    pub(super) fn from_file(path: &Path, layout: &ParamLayout, choice: WeightsChoice) -> Result<Self> {
        if choice == WeightsChoice::Ema {
            return Err(CheckpointError::NoEma { path: path.to_owned() }.into());
        }
        let damaged =
            |fault: FileFault| ModelError::ModelFile { path: path.to_owned(), reason: fault.to_string() };
        let file = TensorFile::open(path).map_err(damaged)?;
        let (mut parameters, mut others) = (Vec::new(), Vec::new());
        for name in file.names() {
            let is_statistic = layout.statistics().iter().any(|statistic| statistic.name == name);
            if layout.find(&name).is_none() && !is_statistic {
                others.push(Extra::read(&file, &name).map_err(damaged)?);
                continue;
            }
            let dims = file.dims(&name).unwrap_or_default().to_vec();
            let values = file.tensor(&name).map_err(damaged)?;
            parameters.push(Named { name, dims, values });
        }
        let origin = format!("weights of {}", path.display());
        Ok(Weights { parameters, others, metadata: file.metadata(), origin })
    }

    /// Writes the tensors to `path`, replacing an existing file; see [`check_out`].
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        // f64 tensors come first, so that all values are aligned.
        let doubles = self.others.iter().filter(|extra| matches!(extra, Extra::F64(..)));
        let singles = self.others.iter().filter(|extra| matches!(extra, Extra::F32(..)));
        let parameters = self.parameters.iter().map(|Named { name, dims, values }| TensorToWrite {
            name: name.clone(),
            dims: dims.clone(),
            values: Values::F32(values),
        });
        let tensors: Vec<_> =
            doubles.map(Extra::to_write).chain(parameters).chain(singles.map(Extra::to_write)).collect();
        let mut metadata = self.metadata.clone();
        metadata.insert(WEIGHTS_KEY.to_owned(), self.origin.clone());
        Ok(write_atomic_with(path, |file| tensor_file::write_to(file, &tensors, &metadata))?)
    }
}

/// Checks in advance that a file can be written at `path`; replacing an existing file requires `overwrite`.
pub(super) fn check_out(path: &Path, overwrite: bool) -> Result<()> {
    let refuse = |kind: io::ErrorKind| Err(WriteError { path: path.to_owned(), source: kind.into() });
    if path.is_dir() {
        return Ok(refuse(io::ErrorKind::IsADirectory)?);
    }
    if !overwrite && path.exists() {
        return Err(CheckpointError::OutExists { path: path.to_owned() }.into());
    }
    // A link leads to the file that it names.
    let real = path.canonicalize().unwrap_or_default();
    let manifest = real.parent().and_then(|folder| Manifest::read(folder).ok());
    if manifest.is_some_and(|of| of.files.iter().any(|file| Some(file.name.as_ref()) == real.file_name())) {
        return Err(CheckpointError::OutOfCheckpoint { path: path.to_owned() }.into());
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()).map(fs::metadata) {
        Some(Ok(folder)) if !folder.is_dir() => Ok(refuse(io::ErrorKind::NotADirectory)?),
        Some(Err(source)) => Err(WriteError { path: path.to_owned(), source }.into()),
        _ => Ok(()),
    }
}

/// Reads the moving average of a parameter from the shards of all ranks.
fn ema(reader: &StateReader, name: &str, numel: usize) -> Result<Vec<f32>> {
    let mut values = vec![0.0; numel];
    let whole = ShardRange { param: name.to_owned(), start: 0, end: numel, offset: 0 };
    reader.read(&[whole], EMA_STATE, &mut values)?;
    Ok(values)
}
