//! A trained model, ready to predict.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ddp::config::Task;
use ddp::data::loader::device_feed::DeviceFeed;
use ddp::data::loader::{DataLoader, LoaderOptions};
use ddp::data::{Dataset, HeadOutputs, OutputUnits, RowLayout, TargetLayout, Targets, TensorDataset};
use ddp::model::Network;
use ddp_comm::{Stop, World};
use ddp_kernels::Device;

use crate::fit::preprocess::Preprocessor;
use crate::predict::error::{PredictError, Result};
use crate::predict::predictions::Predictions;
use crate::predict::saved_model::SavedModel;
use crate::table::ExactRows;
use crate::table::exact_columns::ExactColumns;
use crate::values::number::Exact;

/// Rows per forward pass on the CPU, so that they stay in its caches.
const CPU_ROWS: usize = 1024;
/// Rows per forward pass on a GPU.
const GPU_ROWS: usize = 8192;

/// Rows per forward pass on `device`.
fn max_rows(device: Device) -> usize {
    if device == Device::Cpu { CPU_ROWS } else { GPU_ROWS }
}

/// A trained model, ready to predict rows: `Predictor::open("runs/digits")?.predict(&rows)?`.
#[derive(Debug)]
pub struct Predictor {
    network: Network,
    preprocessor: Preprocessor,
    task: Task,
    units: OutputUnits,
    heads: Vec<HeadOutputs>,
    feed: DeviceFeed,
}

impl Predictor {
    /// Opens a run folder, a checkpoint folder or a model file, to compute on the CPU.
    ///
    /// # Errors
    /// [`PredictError::Model`] if the file is not a model of this program, [`PredictError::Checkpoint`] if the checkpoint is
    /// damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_model(&SavedModel::open(path.as_ref())?, Device::Cpu)
    }

    /// Copies the model to `device`.
    ///
    /// # Errors
    /// [`PredictError::Model`] if the file does not fit its config, [`PredictError::Kernel`] if the device is unavailable or
    /// out of memory.
    pub fn from_model(saved: &SavedModel, device: Device) -> Result<Self> {
        Self::from_network(saved, saved.network(max_rows(device), device)?, device)
    }

    /// [`Predictor::from_model`], with weights that the ranks of a host hold once on the CPU. Collective.
    ///
    /// # Errors
    /// Same as [`Predictor::from_model`], on all ranks.
    pub fn for_ranks(world: &World, saved: &SavedModel, device: Device) -> Result<Self, Stop<PredictError>> {
        let network = saved.network_of_ranks(world, max_rows(device), device)?;
        Ok(world.collective_result(Self::from_network(saved, network, device))?)
    }

    fn from_network(saved: &SavedModel, network: Network, device: Device) -> Result<Self> {
        Ok(Predictor {
            network,
            preprocessor: saved.preprocessor.clone(),
            task: saved.config.data.task,
            units: saved.output_units(),
            heads: saved.heads(),
            feed: DeviceFeed::new(device)?,
        })
    }

    /// Names of the columns of a row, in the order that [`Predictor::predict`] expects.
    pub fn columns(&self) -> &[String] {
        &self.preprocessor.plan.columns
    }

    /// Number of outputs per row.
    pub fn n_outputs(&self) -> usize {
        self.network.n_outputs()
    }

    /// Predicts rows in memory, given as f32, f64 or a smaller numeric type.
    ///
    /// - `rows`: `[n_rows, columns]`, row-major, before normalization; NaN if a value is missing; a category is its index in the
    ///   vocabulary, from 1, or 0 if it is unknown
    ///
    /// # Errors
    /// [`PredictError::RowWidth`], [`PredictError::Kernel`].
    pub fn predict<T: Copy + Into<f64>>(&mut self, rows: &[T]) -> Result<Predictions> {
        let (expected, got) = (self.columns().len(), rows.len());
        if got % expected != 0 {
            return Err(PredictError::RowWidth { expected, got });
        }
        let n_rows = got / expected;
        let rows: Arc<dyn Dataset> = Arc::new(self.exact_rows(rows));
        let mut outputs = Vec::with_capacity(n_rows * self.n_outputs());
        let whole = std::iter::once(0..n_rows).filter(|rows| !rows.is_empty());
        self.predict_ranges(rows, whole, LoaderOptions::new(self.network.device()), |_, _, batch| {
            outputs.extend_from_slice(batch);
            Ok(())
        })?;
        let predictions = Predictions::new(self.task, outputs, self.n_outputs(), self.units.clone());
        Ok(predictions.with_heads(&self.heads))
    }

    /// Rows as f32, with their f64 where the model subtracts an offset.
    fn exact_rows<T: Copy + Into<f64>>(&self, rows: &[T]) -> ExactRows {
        let n_columns = self.columns().len();
        let mut exact = ExactColumns::from_columns(&self.preprocessor.has_offsets());
        let mut features = Vec::with_capacity(rows.len());
        for (index, &value) in rows.iter().enumerate() {
            let value: f64 = value.into();
            features.push(value as f32);
            exact.set(index % n_columns, index / n_columns, Exact::Double(value), &features);
        }
        let mut layout = RowLayout::new(self.columns().to_vec(), TargetLayout::Values { names: Vec::new() });
        layout.has_missing = true;
        let source = "rows in memory".to_owned();
        let targets = Targets::Values(Vec::new());
        let rows = TensorDataset { features, targets, weights: None, layout, source };
        ExactRows { rows, exact, exact_targets: ExactColumns::new(0, false) }
    }

    /// Predicts ranges of the rows of `dataset`, whose columns are those of the model, in order. Passes the index of the range,
    /// the rows of a batch and their outputs `[rows, n_outputs]` to `take`.
    pub(crate) fn predict_ranges(
        &mut self,
        dataset: Arc<dyn Dataset>,
        ranges: impl Iterator<Item = Range<usize>> + Send + 'static,
        options: LoaderOptions,
        mut take: impl FnMut(usize, Range<usize>, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let normalizer = self.preprocessor.normalizer.clone();
        let rows = self.preprocessor.apply(dataset);
        let options = LoaderOptions { normalizer, ..options };
        let mut loader = DataLoader::ranges(rows, ranges, self.network.max_rows(), options)?;
        while let Some(mut step) = loader.next_step()? {
            let (range, own) = (step.part(), step.positions());
            let batch = self.feed.next(&mut step)?;
            let outputs = self.network.forward(batch.x)?;
            self.feed.consumed()?;
            match outputs.device() {
                Device::Cpu => take(range, own, outputs.as_slice::<f32>("predict", "outputs")?)?,
                Device::Cuda(_) => take(range, own, &outputs.to_vec::<f32>()?)?,
            }
        }
        Ok(())
    }
}
