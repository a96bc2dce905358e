//! A trained model on disk: its file, config, preprocessing, and the weights to evaluate or predict with.

use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, EMA_STATE, MANIFEST_FILE, ShardRange, StateReader,
};
use ddp::config::{Config, Task};
use ddp::data::{DataError, Dataset, HeadOutputs, LabelVocabulary, OutputUnits};
use ddp::model::file::{ModelFile, ModelInfo};
use ddp::model::{ModelSpec, Network, ParamLayout, file};
use ddp::run_folder::done::DONE_FILE;
use ddp::run_folder::folder;
use ddp::run_folder::folder::MODEL_FILE;
use ddp_comm::{HostShare, Stop, World};
use ddp_kernels::{Device, Tensor, TensorRef};
use tracing::info;

use crate::error::TableError;
use crate::fit::preprocess::Preprocessor;
use crate::host_once::in_turn;
use crate::open::remote::{self, Take};
use crate::predict::error::{PredictError, Result};
use crate::source::KnownFeatures;
use crate::split::held_out::targets_hash;

/// A model file and the data stored next to its weights.
#[derive(Debug)]
pub struct SavedModel {
    /// Config of the run that trained the model.
    pub config: Config,
    /// Conversion of rows to the model's input.
    pub preprocessor: Preprocessor,
    /// Width of the last layer.
    pub n_outputs: usize,
    /// Path of the model file.
    pub path: PathBuf,
    file: ModelFile,
    /// The checkpoint that holds the file.
    checkpoint: Option<Checkpoint>,
}

impl SavedModel {
    /// Whether the held-out `rows` differ from those of training, because the table has changed.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn holds_out_others(&self, rows: &dyn Dataset) -> Result<bool> {
        match self.file.info()?.held_out {
            Some(held_out) => Ok(targets_hash(rows)? != held_out),
            None => Ok(false),
        }
    }

    /// Reads the model at `path`: a run folder, a checkpoint folder or a model file. A run folder resolves to its model file if
    /// it exists, else to its newest checkpoint.
    ///
    /// # Errors
    /// [`PredictError::Model`](super::PredictError::Model) if the file is not a model of this program,
    /// [`PredictError::Checkpoint`](super::PredictError::Checkpoint) if the checkpoint is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_of(path, false)
    }

    /// Same as [`SavedModel::open`], but if a run is in progress (`is_active`), its folder resolves to its newest checkpoint.
    ///
    /// # Errors
    /// See [`SavedModel::open`].
    pub fn open_of(path: &Path, is_active: bool) -> Result<Self> {
        let (model_path, checkpoint) = locate(path, is_active)?;
        let file = ModelFile::read(&model_path)?;
        let info = file.info()?;
        let preprocessor = Preprocessor::from_model(&info.preprocessor, &model_path)?;
        let config = Config::from_saved(&info.config, path)?;
        let n_outputs = file.n_outputs(&config.model)?;
        if let (Task::Classification, Some(labels)) = (config.data.task, &info.preprocessor.labels) {
            file.check_labels(labels, config.loss.n_targets(n_outputs))?;
        }
        let model = SavedModel { config, preprocessor, n_outputs, path: model_path, file, checkpoint };
        // Before a network of the config's sizes is made.
        model.file.check_shapes(usize::MAX, &ParamLayout::new(&model.spec()?))?;
        Ok(model)
    }

    /// Reads the initial weights of a new run: from a model file, which another program may have written, or from the model that
    /// [`SavedModel::open`] finds in a folder, using the average of the weights if the run kept one.
    ///
    /// # Errors
    /// See [`SavedModel::open`].
    pub fn initial(path: &Path, is_active: bool) -> Result<ModelFile> {
        let (model_path, checkpoint) = locate(path, is_active)?;
        if checkpoint.is_none() {
            return Ok(ModelFile::read(&model_path)?);
        }
        let saved = Self::open_of(path, is_active)?;
        let layout = ParamLayout::new(&saved.spec()?);
        let average = saved.checkpoint.as_ref().map(|checkpoint| average(checkpoint, &layout)).transpose()?;
        let Some(mut values) = average.flatten() else { return Ok(saved.file) };
        for (_, statistic) in saved.file.statistics(&layout)? {
            values.extend(statistic.to_vec::<f32>()?);
        }
        Ok(saved.file.with_weights(&layout, &values)?)
    }

    /// Whether the model file is one of the files of a checkpoint, also where the path named the file itself.
    pub fn is_checkpoint(&self) -> bool {
        // A link leads to the file that it names.
        let path = self.path.canonicalize();
        let folder = path.as_deref().unwrap_or(&self.path).parent();
        self.checkpoint.is_some() || folder.is_some_and(|folder| folder.join(MANIFEST_FILE).exists())
    }

    /// Writes the model to `path` with its flat weights changed by `change`.
    ///
    /// # Errors
    /// [`PredictError::Model`](super::PredictError::Model) if the file does not fit its config;
    /// [`PredictError::Write`](super::PredictError::Write).
    pub fn write_with(
        &self,
        path: &Path,
        change: impl FnOnce(&ParamLayout, Vec<f32>) -> Vec<f32>,
    ) -> Result<()> {
        let layout = ParamLayout::new(&self.spec()?);
        let mut values = change(&layout, self.file.weights(&layout)?.to_vec::<f32>()?);
        for (_, statistic) in self.file.statistics(&layout)? {
            values.extend(statistic.to_vec::<f32>()?);
        }
        Ok(file::write(path, &layout, &values, &self.file.info()?)?)
    }

    /// Hash of the model file, which ranks compare.
    pub fn fingerprint(&self) -> u64 {
        self.file.fingerprint()
    }

    /// Labels of the classes; for files of earlier versions, which list none, the indices of the outputs.
    pub fn labels(&self) -> Arc<LabelVocabulary> {
        let numbers = || Arc::new(LabelVocabulary::numbers(self.config.loss.n_targets(self.n_outputs)));
        self.preprocessor.labels.clone().unwrap_or_else(numbers)
    }

    /// Meaning of the outputs of a regression.
    pub fn output_units(&self) -> OutputUnits {
        OutputUnits::new(&self.config.loss, self.preprocessor.target_scale.as_ref())
    }

    /// The outputs of each head; none for a model of one head.
    pub fn heads(&self) -> Vec<HeadOutputs> {
        let Preprocessor { heads, target_scale, .. } = &self.preprocessor;
        HeadOutputs::from_loss(&self.config.loss, heads, target_scale.as_ref())
    }

    /// Names of the outputs: labels of the classes, or names of the targets.
    pub fn output_names(&self) -> Vec<String> {
        let targets = &self.config.data.target;
        match self.config.data.task {
            Task::Classification => {
                let labels = self.labels();
                (0..labels.len()).map(|class| labels.name(class)).collect()
            }
            Task::Heads => {
                let heads = self.preprocessor.heads.iter();
                heads
                    .flat_map(|head| head.names().into_iter().map(|name| format!("{}.{name}", head.name)))
                    .collect()
            }
            _ if targets.len() == self.n_outputs => targets.clone(),
            _ => (0..self.n_outputs).map(|target| format!("t{target}")).collect(),
        }
    }

    /// The columns that the model expects.
    pub fn known_features(&self) -> KnownFeatures<'_> {
        self.preprocessor.plan.known_features("the model")
    }

    /// Sizes and kinds of the layers.
    ///
    /// # Errors
    /// [`PredictError::Model`](super::PredictError::Model) for embeddings that don't fit the columns.
    pub fn spec(&self) -> Result<ModelSpec> {
        let spec = ModelSpec::new(&self.config.model, self.preprocessor.plan.n_features(), self.n_outputs);
        Ok(spec.with_embeddings(self.file.embeddings()?))
    }

    /// The network with its weights, or with their average if the run kept one, in the precision of training.
    ///
    /// - `max_rows`: number of rows of the largest batch
    ///
    /// # Errors
    /// [`PredictError::Model`](super::PredictError::Model) if the file does not fit its config,
    /// [`PredictError::Kernel`](super::PredictError::Kernel) if the device is unavailable or out of memory.
    pub fn network(&self, max_rows: usize, device: Device) -> Result<Network> {
        let mut network = Network::new(self.spec()?, max_rows, device, self.config.train.precision)?;
        network.set_weights_of(&self.file)?;
        network.set_saved_buffers(&self.file.statistics(network.layout())?)?;
        if let Some(checkpoint) = &self.checkpoint
            && let Some(average) = average(checkpoint, network.layout())?
        {
            network.set_weights(TensorRef::from_slice(&average, &[average.len()])?)?;
            if self.config.model.mixes_rows() && self.config.train.ema_statistics {
                info!(
                    "the averaged weights of a checkpoint have the batch norm statistics of the run's steps; the model file of a \
                     complete run has their own"
                );
            }
        }
        Ok(network)
    }
}

impl SavedModel {
    /// The network of [`SavedModel::network`]; on the CPU, the ranks of a host hold its weights once. Collective.
    ///
    /// # Errors
    /// Same as [`SavedModel::network`], on all ranks.
    pub fn network_of_ranks(
        &self,
        world: &World,
        max_rows: usize,
        device: Device,
    ) -> Result<Network, Stop<PredictError>> {
        let is_on_cpu = [u8::from(device == Device::Cpu)];
        let are_on_cpu = world.group().all_gather_bytes(&is_on_cpu).map_err(PredictError::from)?;
        let host = if are_on_cpu.iter().all(|of_rank| of_rank[..] == [1]) {
            world.share_host(|| None).map_err(PredictError::from)?
        } else {
            None
        };
        let network = in_turn(world, host.as_ref(), || match &host {
            Some(host) if host.has_readers() => self.network_of_host(host, max_rows),
            _ => self.network(max_rows, device),
        })?;
        self.file.release();
        Ok(network)
    }

    /// The network on the CPU, whose weights the first rank of the host writes to memory that all of its ranks map.
    fn network_of_host(&self, host: &HostShare, max_rows: usize) -> Result<Network> {
        let map = |weights: &Tensor, range: Range<u64>| -> Result<Tensor> {
            Ok(Tensor::from_file(&host.file(), range.start, weights.dims(), weights.dtype())?)
        };
        let failed = |source| PredictError::from(DataError::from(TableError::HostMemory { source }));
        if host.leads() {
            let mut network = self.network(max_rows, Device::Cpu)?;
            self.file.release();
            network.replace_weights(|weights| {
                let bytes = weights.view().as_bytes("predict", "weights")?;
                let range = host.begin(bytes.len() as u64).map_err(failed)?;
                host.file().write_all_at(bytes, range.start).map_err(failed)?;
                map(weights, range)
            })?;
            return Ok(network);
        }
        let mut network = Network::new(self.spec()?, max_rows, Device::Cpu, self.config.train.precision)?;
        network.replace_weights(|weights| map(weights, host.next().map_err(failed)?))?;
        network.set_saved_buffers(&self.file.statistics(network.layout())?)?;
        Ok(network)
    }
}

/// Whether a run is in progress in the folder `path`, or has gone on since it wrote its model. Collective: only rank 0 checks, because the
/// check briefly takes the folder's lock, and others may see files later.
pub fn is_active(world: &World, path: &Path) -> Result<bool> {
    let is_active =
        world.rank().0 == 0 && path.is_dir() && (folder::check_free(path).is_err() || has_gone_on(path));
    Ok(world.group().all_gather_bytes(&[u8::from(is_active)])?[0] == [1])
}

/// Resolves `path` to a model file and, if it is the one of a checkpoint, to that verified checkpoint. A run folder resolves to its model
/// file if it exists, else, and while a run is in progress there, to its newest checkpoint; `best` to the file of the best evaluation, where
/// its checkpoint has one.
fn locate(path: &Path, is_active: bool) -> Result<(PathBuf, Option<Checkpoint>)> {
    let path = &*remote::local_run(path, Take::Model)?;
    let inside = path.join(MODEL_FILE);
    let is_model_of_run = inside.exists() && !path.join(MANIFEST_FILE).exists();
    let is_marker = path.file_name().is_some_and(|name| name == "latest" || name == "best");
    if (is_model_of_run && !is_active) || (path.is_file() && !is_marker) {
        return Ok((if is_model_of_run { inside } else { path.to_owned() }, None));
    }
    match Checkpoint::find(path) {
        Ok(search) => {
            let found = search.found.expect("`find` fails if there is none");
            // A file that comes here is a marker.
            let is_best = path.is_file() && path.ends_with("best");
            Ok(match found.best_path().filter(|_| is_best) {
                Some(best) => (best, None),
                None => (found.model_path(), Some(found)),
            })
        }
        // For a folder without model and checkpoints, report the missing model file.
        Err(CheckpointError::NotFound { .. }) if path.is_dir() => Ok((inside, None)),
        Err(CheckpointError::NotFound { .. }) if !is_marker => Ok((path.to_owned(), None)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the run in this folder has saved a checkpoint of a later step than its model, and did not end again. Dates of files say nothing,
/// because copies have others.
pub fn has_gone_on(run: &Path) -> bool {
    let n_steps = || ModelInfo::read(&run.join(MODEL_FILE)).ok()?.n_steps;
    let newest = || CheckpointStore::for_run(run).steps().ok()?.last().copied();
    let has_gone_on = !run.join(DONE_FILE).exists()
        && newest().zip(n_steps()).is_some_and(|(newest, n_steps)| newest > n_steps);
    if has_gone_on {
        info!(
            "the run in `{}` has gone on since it wrote its model: its newest checkpoint is used",
            run.display()
        );
    }
    has_gone_on
}

/// Reads the EMA of the weights from a checkpoint, if the run keeps one: the run evaluates the EMA too.
fn average(checkpoint: &Checkpoint, layout: &ParamLayout) -> Result<Option<Vec<f32>>> {
    let manifest = checkpoint.manifest();
    if manifest.run.step == 0 || !manifest.state.iter().any(|name| name == EMA_STATE) {
        return Ok(None);
    }
    let reader = StateReader::open(checkpoint).map_err(|fault| checkpoint.damaged(fault))?;
    let mut flat = vec![0.0; layout.flat_len()];
    let whole = 0..layout.flat_len();
    reader.read(&ShardRange::from_ranges(layout, &[whole]), EMA_STATE, &mut flat)?;
    Ok(Some(flat))
}
