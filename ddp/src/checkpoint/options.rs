//! Options of saving: everything about a rank's checkpoints that stays the same over a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ddp_kernels::Tensor;

use super::manifest::Parameter;
use super::shard_range::ShardRange;
use crate::model::file::{self, ModelInfo};
use crate::model::layout::{ParamLayout, Statistic};
use crate::storage::tensor_file::{TensorToWrite, Values};

/// Name of the file of the best evaluation's weights, where they are not those of the checkpoint.
pub(super) const BEST_FILE: &str = "best.safetensors";
/// Name of the state tensor that is the moving average of the weights.
pub const EMA_STATE: &str = "ema";
/// Metadata key of a state file's shard ranges, as JSON.
pub(super) const SHARD_RANGES_KEY: &str = "ddp_train.pieces";

/// Options of a saver, constant over a run.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Id of the run, on rank 0.
    pub run_id: Option<String>,
    /// Config and columns, as in the run's model file.
    pub info: ModelInfo,
    /// The model's parameters in the flat buffer of weights.
    pub layout: ParamLayout,
    /// Hash of the training data, hexadecimal.
    pub data_fingerprint: String,
    /// Ranks of the run.
    pub world_size: usize,
    /// This rank.
    pub rank: usize,
    /// Number of ranks that save, from rank 0 on, each with shards of the state; 1 where rank 0 holds all of it.
    pub n_savers: usize,
    /// Names of the state tensors, the same on all ranks; without any there are no state files.
    pub state_names: Vec<String>,
    /// Ranges of parameters in this rank's state.
    pub shard_ranges: Vec<ShardRange>,
    /// Number of newest checkpoints to keep; 0 keeps all.
    pub keep: usize,
    /// Whether to keep the best one too: that of the step that [`RunState::best`](super::RunState::best) names.
    pub keep_best: bool,
    /// Time without progress of the other ranks after which rank 0 gives up.
    pub rank_timeout: Duration,
    /// Set once a rank is lost, which rank 0 then does not wait for.
    pub is_rank_lost: Arc<AtomicBool>,
}

impl SaveOptions {
    /// Default of [`rank_timeout`](Self::rank_timeout).
    pub const RANK_TIMEOUT: Duration = Duration::from_secs(300);

    /// The parameters in the order of PyTorch's `state_dict`.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let entries = self.layout.forward_order().into_iter();
        entries.map(|entry| Parameter { name: entry.name.clone(), shape: entry.dims.clone() }).collect()
    }

    /// Tensors and metadata of the model file. Statistics that do not follow the weights are taken from the registered buffers.
    pub(super) fn model<'a>(
        &'a self,
        weights: &'a [f32],
        registered: &'a [(String, Tensor)],
    ) -> (Vec<TensorToWrite<'a>>, HashMap<String, String>) {
        let mut tensors = file::tensors(&self.layout, weights, &self.info);
        let missing = if weights.len() > self.layout.flat_len() { &[] } else { self.layout.statistics() };
        for Statistic { name, len } in missing {
            let Some((_, values)) = registered.iter().find(|(registered, _)| registered == name) else {
                continue;
            };
            let values =
                values.view().as_slice::<f32>("checkpoint", "statistic").expect("f32 in host memory");
            tensors.push(TensorToWrite { name: name.clone(), dims: vec![*len], values: Values::F32(values) });
        }
        (tensors, file::metadata(&self.layout, &self.info))
    }

    /// Tensors and metadata of this rank's state file.
    pub(super) fn state<'a>(
        &self,
        state: &'a [Vec<&'a [f32]>],
    ) -> (Vec<TensorToWrite<'a>>, HashMap<String, String>) {
        let tensor = |(name, parts): (&String, &'a Vec<&'a [f32]>)| TensorToWrite {
            name: name.clone(),
            dims: vec![parts.iter().map(|part| part.len()).sum()],
            values: Values::F32Parts(parts),
        };
        let shard_ranges =
            serde_json::to_string(&self.shard_ranges).expect("names and numbers are plain text");
        let metadata = HashMap::from([(SHARD_RANGES_KEY.to_owned(), shard_ranges)]);
        (self.state_names.iter().zip(state).map(tensor).collect(), metadata)
    }
}
