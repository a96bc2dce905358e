//! A model's file: safetensors that PyTorch reads, with the run's config and the embeddings in its metadata.
//!
//! ```
//! use std::path::Path;
//!
//! use ddp::config::Config;
//! use ddp::model::file::ModelFile;
//!
//! let path = Path::new("tests/fixtures/saved_runs/regression/finished/model.safetensors");
//! let file = ModelFile::read(path)?;
//! let config = Config::from_saved(&file.info()?.config, path)?;
//! assert_eq!(config.model.hidden, [6]);
//! assert_eq!(file.n_outputs(&config.model)?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ddp_kernels::cpu::mapped_file::MappedFile;
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef, ops};

use super::error::{ModelError, Result};
use super::layout::{ParamLayout, Statistic};
use crate::config::ModelConfig;
use crate::data::labels::{LabelVocabulary, MAX_CLASSES};
use crate::data::{
    EmbeddingSpec, Normalizer, SavedPreprocessor, TargetScale, heads_from_json, heads_to_json,
};
use crate::storage::atomic_write::{WriteError, write_atomic_with};
use crate::storage::fault::FileFault;
use crate::storage::fingerprint::fingerprint;
use crate::storage::tensor_file::{TensorFile, TensorToWrite, Values};
use crate::storage::tensor_header::{Header, TensorInfo};
use crate::storage::{tensor_file, user_file};

/// Metadata key of the resolved config, as TOML.
const CONFIG_KEY: &str = "ddp_train.config";
/// Metadata key of the preprocessing of the data's columns, as JSON.
#[doc(hidden)]
pub const COLUMNS_KEY: &str = "ddp_train.columns";
/// Metadata key of the names of the model's inputs, as JSON.
const FEATURES_KEY: &str = "ddp_train.features";
/// Metadata key of the embeddings in the order of the last columns, as JSON: name, key ([`EmbeddingSpec::key`]), n_codes, dim.
/// Missing if there are none.
const EMBEDDINGS_KEY: &str = "ddp_train.embeddings";
/// Metadata key of the labels of the classes in the order of the outputs, as JSON. Missing if there are no classes, in files of
/// earlier versions, and if there are more than [`MAX_CLASSES`] classes, which are then numbered.
const LABELS_KEY: &str = "ddp_train.labels";
/// Metadata key of the targets of several heads in the order of the outputs, as JSON: name, task, columns, labels. Missing if the
/// model has one head.
const HEADS_KEY: &str = "ddp_train.heads";
/// Metadata keys of what a model takes in and gives out, without fitted numbers.
#[doc(hidden)]
pub const COLUMN_KEYS: [&str; 5] = [COLUMNS_KEY, FEATURES_KEY, EMBEDDINGS_KEY, LABELS_KEY, HEADS_KEY];
/// Metadata key of the version that wrote the file.
const VERSION_KEY: &str = "ddp_train.version";
/// Metadata key of the steps of a run that has ended.
const STEPS_KEY: &str = "ddp_train.steps";
/// Metadata key of the hash of the targets of rows that were held out.
const HELD_OUT_KEY: &str = "ddp_train.held_out";
/// Normalization of the features: `x' = ((x - offset) - shift) · scale`; the offset is omitted if it is 0 in all columns.
const OFFSET: &str = "normalize.offset";
const SHIFT: &str = "normalize.shift";
const SCALE: &str = "normalize.scale";
/// Scale of the targets: a prediction is `output · scale + shift`.
const TARGET_SHIFT: &str = "target.shift";
const TARGET_SCALE: &str = "target.scale";
/// Tensors next to the weights. They are f64, in files of earlier versions f32.
const EXTRAS: [&str; 5] = [OFFSET, SHIFT, SCALE, TARGET_SHIFT, TARGET_SCALE];

/// Contents of the file besides the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// The resolved config, as TOML.
    pub config: String,
    /// Preprocessing of the rows.
    pub preprocessor: SavedPreprocessor,
    /// Steps of the run when it wrote its model; `None` in files of checkpoints, which say it elsewhere.
    pub n_steps: Option<u64>,
    /// Hash of the targets of the rows that were held out from training, if there are any.
    pub held_out: Option<u64>,
}

impl ModelInfo {
    /// Reads config and preprocessor from the model file of a checkpoint, without the weights.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if this program did not write the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |fault: FileFault| bad_file(path, fault.to_string());
        let file = TensorFile::open(path).map_err(bad)?;
        info(path, &file.metadata(), |name| match file.dims(name) {
            None => Ok(None),
            Some(_) if file.is_f64(name) => file.tensor_f64(name).map(Some).map_err(bad),
            Some(_) => Ok(Some(file.tensor(name).map_err(bad)?.into_iter().map(f64::from).collect())),
        })
    }
}

/// Reads config and preprocessor from the metadata and the tensors of the file at `path`.
fn info(
    path: &Path,
    metadata: &HashMap<String, String>,
    vector: impl Fn(&str) -> Result<Option<Vec<f64>>>,
) -> Result<ModelInfo> {
    let foreign =
        || bad_file(path, "it holds no config of a run: not written by `ddp-train train`".to_owned());
    let config = metadata.get(CONFIG_KEY).ok_or_else(foreign)?.clone();
    let columns = metadata.get(COLUMNS_KEY).ok_or_else(foreign)?.clone();
    let features = metadata.get(FEATURES_KEY).ok_or_else(foreign)?;
    let features: Vec<String> = serde_json::from_str(features)
        .map_err(|error| bad_file(path, format!("its {FEATURES_KEY} can't be read: {error}")))?;
    let embeddings = embeddings_of(path, metadata)?;
    let normalizer = match (vector(SHIFT)?, vector(SCALE)?) {
        (Some(shift), Some(scale)) => Some(Normalizer { offset: vector(OFFSET)?, shift, scale }),
        _ => None,
    };
    let target_scale = match (vector(TARGET_SHIFT)?, vector(TARGET_SCALE)?) {
        (Some(shift), Some(scale)) => Some(TargetScale { shift, scale }),
        _ => None,
    };
    let labels = labels_of(metadata).map_err(|reason| bad_file(path, reason))?.map(Arc::new);
    let heads = metadata.get(HEADS_KEY).map(|text| heads_from_json(text)).transpose();
    let heads =
        heads.map_err(|reason| bad_file(path, format!("its {HEADS_KEY}: {reason}")))?.unwrap_or_default();
    let preprocessor =
        SavedPreprocessor { features, embeddings, columns, normalizer, target_scale, labels, heads };
    match preprocessor.contradiction() {
        Some(contradiction) => Err(bad_file(path, format!("it contradicts itself: {contradiction}"))),
        None => {
            let n_steps = metadata.get(STEPS_KEY).and_then(|text| text.parse().ok());
            let held_out = metadata.get(HELD_OUT_KEY);
            let held_out = held_out.and_then(|text| u64::from_str_radix(text, 16).ok());
            Ok(ModelInfo { config, preprocessor, n_steps, held_out })
        }
    }
}

/// See [`ModelFile::embeddings`].
fn embeddings_of(path: &Path, metadata: &HashMap<String, String>) -> Result<Vec<EmbeddingSpec>> {
    let Some(text) = metadata.get(EMBEDDINGS_KEY) else { return Ok(Vec::new()) };
    let bad = |reason: String| bad_file(path, format!("its {EMBEDDINGS_KEY}: {reason}"));
    let embeddings: Vec<EmbeddingSpec> = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let n_features = match metadata.get(FEATURES_KEY).map(|text| serde_json::from_str::<Vec<String>>(text)) {
        Some(Ok(features)) => features.len(),
        _ => return Err(bad("it names no features".to_owned())),
    };
    EmbeddingSpec::check(&embeddings, n_features).map_err(bad)?;
    Ok(embeddings)
}

/// Writes a model's file of the flat weights in the layout's order, which the statistics may follow, without a second copy of them in
/// memory. An older file is replaced once the new one is complete.
///
/// # Errors
/// [`WriteError`]; an older file is unchanged.
pub fn write(path: &Path, layout: &ParamLayout, flat: &[f32], info: &ModelInfo) -> Result<(), WriteError> {
    write_atomic_with(path, |file| write_to(file, layout, flat, info))
}

/// The bytes of a model's file.
fn to_bytes(layout: &ParamLayout, flat: &[f32], info: &ModelInfo) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(flat));
    write_to(&mut bytes, layout, flat, info).expect("memory can be written");
    bytes
}

fn write_to(to: &mut impl Write, layout: &ParamLayout, flat: &[f32], info: &ModelInfo) -> io::Result<()> {
    tensor_file::write_to(to, &tensors(layout, flat, info), &metadata(layout, info))
}

/// The tensors of a model's file: the weights as views of the flat buffer, and the statistics that follow them, if any.
pub(crate) fn tensors<'a>(
    layout: &ParamLayout,
    flat: &'a [f32],
    info: &'a ModelInfo,
) -> Vec<TensorToWrite<'a>> {
    let mut tensors = Vec::new();
    let mut vector = |name: &str, values: &'a [f64]| {
        let (name, dims) = (name.to_owned(), vec![values.len()]);
        tensors.push(TensorToWrite { name, dims, values: Values::F64(values) });
    };
    if let Some(Normalizer { offset, shift, scale }) = &info.preprocessor.normalizer {
        offset.iter().for_each(|offset| vector(OFFSET, offset));
        vector(SHIFT, shift);
        vector(SCALE, scale);
    }
    if let Some(TargetScale { shift, scale }) = &info.preprocessor.target_scale {
        vector(TARGET_SHIFT, shift);
        vector(TARGET_SCALE, scale);
    }
    tensors.extend(layout.forward_order().into_iter().map(|entry| TensorToWrite {
        name: entry.name.clone(),
        dims: entry.dims.clone(),
        values: Values::F32(&flat[entry.range()]),
    }));
    let mut rest = &flat[layout.flat_len()..];
    for Statistic { name, len } in
        layout.statistics().iter().filter(|_| !flat[layout.flat_len()..].is_empty())
    {
        let (values, after) = rest.split_at(*len);
        rest = after;
        tensors.push(TensorToWrite { name: name.clone(), dims: vec![*len], values: Values::F32(values) });
    }
    tensors
}

/// The metadata of a model's file.
pub(crate) fn metadata(layout: &ParamLayout, info: &ModelInfo) -> HashMap<String, String> {
    let features = serde_json::to_string(&info.preprocessor.features).expect("names are plain text");
    let mut metadata = HashMap::from([
        ("format".to_owned(), "pt".to_owned()),
        (CONFIG_KEY.to_owned(), info.config.clone()),
        (COLUMNS_KEY.to_owned(), info.preprocessor.columns.clone()),
        (FEATURES_KEY.to_owned(), features),
        (VERSION_KEY.to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    if let Some(labels) = info.preprocessor.labels.as_ref().filter(|labels| labels.len() <= MAX_CLASSES) {
        metadata.insert(LABELS_KEY.to_owned(), labels.to_json());
    }
    if !info.preprocessor.heads.is_empty() {
        metadata.insert(HEADS_KEY.to_owned(), heads_to_json(&info.preprocessor.heads));
    }
    metadata.extend(info.n_steps.map(|n_steps| (STEPS_KEY.to_owned(), n_steps.to_string())));
    metadata.extend(info.held_out.map(|hash| (HELD_OUT_KEY.to_owned(), format!("{hash:016x}"))));
    if !layout.embeddings().is_empty() {
        let entry = |e: &EmbeddingSpec| serde_json::json!({ "name": e.name, "key": e.key(), "n_codes": e.n_codes, "dim": e.dim });
        let entries = serde_json::Value::Array(layout.embeddings().iter().map(entry).collect());
        metadata.insert(EMBEDDINGS_KEY.to_owned(), entries.to_string());
    }
    metadata
}

/// A safetensors file in memory.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    bytes: Bytes,
}

/// The bytes of a model file.
#[derive(Debug)]
enum Bytes {
    /// Mapped, so that the ranks of a host share them, with the file and its length and time of change when it was mapped.
    Mapped {
        map: MappedFile,
        file: File,
        was: Stamp,
    },
    Owned(Vec<u8>),
}

/// The tensors of a file in memory.
struct Tensors<'a> {
    header: Header,
    values: &'a [u8],
}

/// One of them.
#[derive(Clone, Copy)]
struct View<'a> {
    info: &'a TensorInfo,
    data: &'a [u8],
}

impl Tensors<'_> {
    fn find(&self, name: &str) -> Option<View<'_>> {
        let info = self.header.find(name)?;
        Some(View { info, data: &self.values[info.bytes.clone()] })
    }
}

/// Length and time of change of a file.
type Stamp = (u64, SystemTime);

fn stamp(file: &File) -> io::Result<Stamp> {
    let of = file.metadata()?;
    Ok((of.len(), of.modified()?))
}

impl Bytes {
    /// Whether they are those that were read first: a file may be overwritten in place.
    fn is_intact(&self) -> bool {
        match self {
            Bytes::Mapped { map, file, was } => map.is_intact() && stamp(file).is_ok_and(|now| now == *was),
            Bytes::Owned(_) => true,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped { map, .. } => map.bytes(),
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl ModelFile {
    /// Reads the file and checks its header against its length.
    ///
    /// # Errors
    /// [`ModelError::File`] for a missing or unreadable file, [`ModelError::ModelFile`] if it is not a complete safetensors file.
    pub fn read(path: &Path) -> Result<Self> {
        let file = user_file::open("model file", path)?;
        let was = stamp(&file);
        let mapped = was.and_then(|was| Ok((MappedFile::map(&file, path, 0, was.0)?, was)));
        let bytes = match mapped {
            Ok((map, was)) => Bytes::Mapped { map, file, was },
            Err(_) => Bytes::Owned(user_file::read("model file", path)?),
        };
        Header::from_file(&bytes).map_err(|error| {
            let is_pointer = bytes.starts_with(user_file::LFS_POINTER);
            let lfs = || format!("it is {}: {}", user_file::LFS_NAME, user_file::LFS_HINT);
            bad_file(path, if is_pointer { lfs() } else { error.to_string() })
        })?;
        Ok(ModelFile { path: path.to_owned(), bytes })
    }

    /// Replaces the weights by `weights`, in the order of `layout`.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if this program did not write the file.
    pub fn with_weights(self, layout: &ParamLayout, weights: &[f32]) -> Result<Self> {
        let info = self.info()?;
        Ok(ModelFile { path: self.path, bytes: Bytes::Owned(to_bytes(layout, weights, &info)) })
    }

    /// The path that it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hash of the file, which ranks compare at start.
    pub fn fingerprint(&self) -> u64 {
        let hash = fingerprint(&self.bytes);
        self.release();
        hash
    }

    /// Takes the content out of the memory of this process; it is read from the file again when it is used.
    pub fn release(&self) {
        if let Bytes::Mapped { map, .. } = &self.bytes {
            map.release();
        }
    }

    /// Refuses a file that was changed in place since it was read first.
    fn check_intact(&self) -> Result<()> {
        if self.bytes.is_intact() {
            return Ok(());
        }
        Err(bad_file(&self.path, "it was changed while it was in use".to_owned()))
    }

    fn tensors(&self) -> Result<Tensors<'_>> {
        self.check_intact()?;
        let read = Header::from_file(&self.bytes);
        let (header, values) = read.map_err(|error| bad_file(&self.path, error.to_string()))?;
        Ok(Tensors { header, values })
    }

    fn metadata(&self) -> Result<HashMap<String, String>> {
        Ok(self.tensors()?.header.texts().clone())
    }

    /// The embeddings in the order of the columns of codes, which are the last columns of the features; empty if the file lists
    /// none.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if the embeddings do not fit the features of the file.
    pub fn embeddings(&self) -> Result<Vec<EmbeddingSpec>> {
        embeddings_of(&self.path, &self.metadata()?)
    }

    /// The config and the preprocessor next to the weights.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if this program did not write the file.
    pub fn info(&self) -> Result<ModelInfo> {
        let tensors = self.tensors()?;
        info(&self.path, &self.metadata()?, |name| {
            tensors.find(name).map(|view| self.doubles(name, view)).transpose()
        })
    }

    /// The labels of the classes; `None` if the file lists none.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if the labels are damaged.
    pub fn labels(&self) -> Result<Option<LabelVocabulary>> {
        labels_of(&self.metadata()?).map_err(|reason| bad_file(&self.path, reason))
    }

    /// Width of the last layer of a model with this `config`.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] if the file has no such layer.
    pub fn n_outputs(&self, config: &ModelConfig) -> Result<usize> {
        let name = format!("layers.{}.weight", config.n_hidden_linear());
        match self.tensors()?.find(&name).map(|view| view.info.dims.as_slice()) {
            Some(&[n_outputs, _]) => Ok(n_outputs),
            _ => Err(bad_file(&self.path, format!("it has no matrix {name}"))),
        }
    }

    /// Checks that a model of `n_classes` classes lists as many labels.
    ///
    /// # Errors
    /// [`ModelError::ModelFile`] for another number.
    pub fn check_labels(&self, labels: &LabelVocabulary, n_classes: usize) -> Result<()> {
        if labels.len() == n_classes {
            return Ok(());
        }
        let text = format!("it contradicts itself: it lists {} labels for {n_classes} classes", labels.len());
        Err(bad_file(&self.path, text))
    }

    /// Reads the tensors with the layout's names into a flat buffer of weights, on the CPU.
    ///
    /// # Errors
    /// [`ModelError::ModelMismatch`], with every difference, if names or shapes differ from those of the layout.
    pub fn weights(&self, layout: &ParamLayout) -> Result<Tensor> {
        self.weights_below(usize::MAX, layout, Tensor::zeros(&[layout.flat_len()], DType::F32, Device::Cpu)?)
    }

    /// Copies the tensors with the layout's names to `flat`, on any device, without a copy of all of them in host memory.
    ///
    /// # Errors
    /// See [`ModelFile::weights`].
    pub(super) fn copy_to(&self, layout: &ParamLayout, flat: TensorMut<'_>) -> Result<()> {
        self.check_shapes(usize::MAX, layout)?;
        self.copy_weights(usize::MAX, layout, flat)
    }

    /// Same as [`ModelFile::weights`], but takes the output layer from `flat` and ignores its names and shapes in the file.
    ///
    /// # Errors
    /// [`ModelError::ModelMismatch`] for differences in other layers.
    pub fn weights_without_head(&self, layout: &ParamLayout, flat: Vec<f32>) -> Result<Tensor> {
        let head = layout.entries().iter().map(|entry| entry.layer).max().unwrap_or_default();
        self.weights_below(head, layout, Tensor::from_slice(&flat, &[flat.len()], Device::Cpu)?)
    }

    /// Overwrites `flat` with the file's weights of the layers before `end`.
    fn weights_below(&self, end: usize, layout: &ParamLayout, mut flat: Tensor) -> Result<Tensor> {
        self.check_shapes(end, layout)?;
        self.copy_weights(end, layout, flat.view_mut())?;
        Ok(flat)
    }

    /// Copies the weights of the layers before `end`, whose shapes were checked, a part of them at a time.
    fn copy_weights(&self, end: usize, layout: &ParamLayout, mut flat: TensorMut<'_>) -> Result<()> {
        const PART: usize = 1 << 20;
        let tensors = self.tensors()?;
        for entry in layout.entries().iter().filter(|entry| entry.layer < end) {
            let view = tensors.find(&entry.name).expect("its shape was checked");
            let mut begin = entry.range().start;
            for part in view.data.as_chunks::<4>().0.chunks(PART) {
                let values: Vec<f32> = part.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
                let to = flat.reborrow().range(begin, begin + values.len())?;
                ops::copy(TensorRef::from_slice(&values, &[values.len()])?, to)?;
                begin += values.len();
            }
        }
        self.check_intact()
    }

    /// Compares names and shapes of the layers before `end` with those of the layout.
    ///
    /// # Errors
    /// [`ModelError::ModelMismatch`], with every difference.
    pub fn check_shapes(&self, end: usize, layout: &ParamLayout) -> Result<()> {
        let tensors = self.tensors()?;
        let mut differences = Vec::new();
        let head = layout.entries().iter().map(|entry| entry.layer).max();
        let mut is_only_head = true;
        for entry in layout.forward_order().into_iter().filter(|entry| entry.layer < end) {
            match tensors.find(&entry.name) {
                None => {
                    is_only_head = false;
                    differences.push(format!("{} {:?} is not in the file", entry.name, entry.dims));
                }
                Some(View { info, .. }) if info.dims != entry.dims => {
                    // A row per output; the rest is the width of the layer before it.
                    is_only_head &= Some(entry.layer) == head && info.dims.get(1..) == entry.dims.get(1..);
                    differences.push(format!(
                        "{} is {:?} in the file, {:?} in the model",
                        entry.name, info.dims, entry.dims
                    ));
                }
                Some(View { info, .. }) if info.dtype != "F32" => {
                    is_only_head = false;
                    differences
                        .push(format!("{} is {} in the file, F32 in the model", entry.name, info.dtype));
                }
                Some(_) => {}
            }
        }
        let is_known = |name: &str| {
            layout.entries().iter().any(|entry| entry.name == name)
                || layout.statistics().iter().any(|statistic| statistic.name == name)
                || EXTRAS.contains(&name)
        };
        let names = tensors.header.tensors().iter().map(|(name, _)| name);
        let mut strangers: Vec<_> = names.filter(|name| !is_known(name)).collect();
        strangers.sort_unstable();
        is_only_head &= strangers.is_empty();
        differences.extend(strangers.into_iter().map(|name| format!("{name} is not in the model")));
        if !differences.is_empty() {
            return Err(ModelError::ModelMismatch {
                path: self.path.clone(),
                differences: differences.join("\n  "),
                is_only_head,
            });
        }
        Ok(())
    }

    /// The model's statistics ([`super::Layer::statistics`]) by name.
    ///
    /// # Errors
    /// [`ModelError::ModelMismatch`] for a missing one, or one of another shape.
    pub fn statistics(&self, layout: &ParamLayout) -> Result<Vec<(String, Tensor)>> {
        let (tensors, mut found, mut differences) = (self.tensors()?, Vec::new(), Vec::new());
        for Statistic { name, len } in layout.statistics() {
            match tensors.find(name) {
                None => differences.push(format!("{name} [{len}] is not in the file")),
                Some(View { info, .. }) if info.dims != [*len] => {
                    differences.push(format!("{name} is {:?} in the file, [{len}] in the model", info.dims));
                }
                Some(view) => {
                    let values = self.floats(name, view)?;
                    found.push((name.clone(), Tensor::from_slice(&values, &[*len], Device::Cpu)?));
                }
            }
        }
        if differences.is_empty() {
            self.check_intact()?;
            return Ok(found);
        }
        let (path, differences) = (self.path.clone(), differences.join("\n  "));
        Err(ModelError::ModelMismatch { path, differences, is_only_head: false })
    }

    /// Reads a vector of f64, or of f32 as earlier versions wrote it.
    fn doubles(&self, name: &str, view: View<'_>) -> Result<Vec<f64>> {
        if view.info.dtype == "F64" {
            return Ok(view.data.as_chunks::<8>().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect());
        }
        Ok(self.floats(name, view)?.into_iter().map(f64::from).collect())
    }

    fn floats(&self, name: &str, view: View<'_>) -> Result<Vec<f32>> {
        if view.info.dtype != "F32" {
            return Err(bad_file(&self.path, format!("{name} is {}, expected F32", view.info.dtype)));
        }
        Ok(view.data.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }
}

/// The labels in the metadata of a model's file; `None` if there are none.
///
/// # Errors
/// A description of the damage if the labels are damaged.
pub fn labels_of(metadata: &HashMap<String, String>) -> Result<Option<LabelVocabulary>, String> {
    let Some(text) = metadata.get(LABELS_KEY) else { return Ok(None) };
    LabelVocabulary::from_json(text).map(Some).map_err(|reason| format!("its {LABELS_KEY}: {reason}"))
}

fn bad_file(path: &Path, reason: String) -> ModelError {
    ModelError::ModelFile { path: path.to_owned(), reason }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
