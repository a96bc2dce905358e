//! What a rank saves at every checkpoint of a run, and what of it changes.

use std::collections::HashMap;
use std::time::Duration;

use rayon::prelude::*;

use super::manifest::Parameter;
use super::piece::Piece;
use super::tensor_file::TensorToWrite;
use crate::model::file::{self, ModelInfo};
use crate::model::layout::ParamLayout;

/// Name of the file of weights.
pub const MODEL_FILE: &str = "model.safetensors";
/// Name of the state tensor that is the moving average of the weights.
pub const EMA_STATE: &str = "ema";
/// Metadata key of a state file's pieces, as JSON.
pub(super) const PIECES_KEY: &str = "ddp_train.pieces";

/// What stays the same over a run.
#[derive(Debug, Clone)]
pub struct SaveOptions {
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
    /// Ranks that save: ranks 0 to this, each with a part of the state. 1 where rank 0 has all of it.
    pub n_parts: usize,
    /// Names of the state's tensors, alike on all ranks; without any there are no state files.
    pub state_names: Vec<String>,
    /// Which elements this rank's state is of.
    pub pieces: Vec<Piece>,
    /// How many of the newest checkpoints stay; 0: all of them.
    pub keep: usize,
    /// Whether the best one stays, too: that of the step that [`RunState::best`](super::RunState::best) names.
    pub keep_best: bool,
    /// After this time without a sign of the ranks that are awaited, rank 0 gives up.
    pub rank_timeout: Duration,
}

impl SaveOptions {
    /// For [`rank_timeout`](Self::rank_timeout).
    pub const RANK_TIMEOUT: Duration = Duration::from_secs(300);

    /// The parameters in the order of PyTorch's `state_dict`.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let slots = self.layout.forward_order().into_iter();
        slots.map(|slot| Parameter { name: slot.name.clone(), shape: slot.dims.clone() }).collect()
    }

    /// Tensors and texts of the model's file.
    pub(super) fn model<'a>(
        &'a self,
        weights: &'a [f32],
    ) -> (Vec<TensorToWrite<'a>>, HashMap<String, String>) {
        let tensors = file::tensors(&self.layout, weights, &self.info).into_iter();
        let tensors = tensors.map(|(name, dims, values)| TensorToWrite { name, dims, values });
        (tensors.collect(), file::metadata(&self.layout, &self.info))
    }

    /// Tensors and texts of this rank's state file.
    pub(super) fn state<'a>(&self, state: &[&'a [f32]]) -> (Vec<TensorToWrite<'a>>, HashMap<String, String>) {
        let tensor = |(name, values): (&String, &&'a [f32])| TensorToWrite {
            name: name.clone(),
            dims: vec![values.len()],
            values,
        };
        let pieces = serde_json::to_string(&self.pieces).expect("names and numbers are plain text");
        let metadata = HashMap::from([(PIECES_KEY.to_owned(), pieces)]);
        (self.state_names.iter().zip(state).map(tensor).collect(), metadata)
    }

    /// Name of a rank's state file.
    pub(super) fn state_file(&self, rank: usize) -> String {
        format!("optimizer-{rank:05}-of-{:05}.safetensors", self.n_parts)
    }
}

/// Copies of a rank's weights and state, taken between two steps and written while training goes on.
#[derive(Debug, Default)]
pub struct SnapshotBuffers {
    /// All weights, in the flat buffer's order; empty on ranks other than 0.
    pub weights: Vec<f32>,
    /// One a name of [`SaveOptions::state_names`].
    pub state: Vec<Vec<f32>>,
}

impl SnapshotBuffers {
    /// Buffers of these lengths whose memory is there: copying to them takes no page fault.
    pub fn touched(n_weights: usize, n_state: &[usize]) -> Self {
        // Not zeros: the system would hand out memory of zeros only when it is first used.
        let touched = |n: usize| {
            let mut buffer = vec![0.0f32; n];
            by_thread(&mut buffer).for_each(|part| part.fill(1.0));
            buffer
        };
        SnapshotBuffers { weights: touched(n_weights), state: n_state.iter().map(|&n| touched(n)).collect() }
    }

    /// Copies these weights and states, on all threads of the caller's pool.
    pub fn fill(&mut self, weights: Option<&[f32]>, state: &[&[f32]]) {
        copy(&mut self.weights, weights.unwrap_or_default());
        self.state.resize_with(state.len(), Vec::new);
        self.state.iter_mut().zip(state).for_each(|(to, from)| copy(to, from));
    }
}

/// Makes `to` a copy of `from`.
pub fn copy(to: &mut Vec<f32>, from: &[f32]) {
    to.resize(from.len(), 0.0);
    let part = part_len(from.len());
    to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from));
}

fn by_thread(buffer: &mut [f32]) -> impl ParallelIterator<Item = &mut [f32]> {
    let part = part_len(buffer.len());
    buffer.par_chunks_mut(part)
}

/// Long parts, one a thread: the C library's copy then goes around the caches.
fn part_len(n: usize) -> usize {
    n.div_ceil(rayon::current_num_threads()).max(1 << 16)
}
