//! The outputs of each head of a model, and what they mean.

use std::ops::Range;

use crate::config::{HeadLoss, Loss};
use crate::data::datasets::target_scale::{OutputUnits, TargetScale};
use crate::data::labels::head_targets::{HeadTargets, head_columns};

/// The outputs of one head of several.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadOutputs {
    /// Name, task and columns of its targets.
    pub targets: HeadTargets,
    /// Loss of this head alone.
    pub loss: Loss,
    /// Columns of the model's outputs.
    pub outputs: Range<usize>,
    /// Columns of the targets.
    pub columns: Range<usize>,
    /// Meaning of the outputs.
    pub units: OutputUnits,
}

impl HeadOutputs {
    /// The outputs of each head, in their order; none for a loss of targets of one kind.
    ///
    /// - `scale`: of the targets of the training rows, over all heads, if some were standardized
    pub fn from_loss(loss: &Loss, heads: &[HeadTargets], scale: Option<&TargetScale>) -> Vec<Self> {
        let Loss::Heads(losses) = loss else { return Vec::new() };
        let mut end = 0;
        let of_head =
            |((HeadLoss { loss, .. }, targets), columns): ((&HeadLoss, &HeadTargets), Range<usize>)| {
                let start = end;
                end += loss.n_outputs(targets.n_targets());
                let scale = scale.map(|TargetScale { shift, scale }| TargetScale {
                    shift: shift[columns.clone()].to_vec(),
                    scale: scale[columns.clone()].to_vec(),
                });
                let units = OutputUnits::new(loss, scale.as_ref());
                HeadOutputs {
                    targets: targets.clone(),
                    loss: loss.clone(),
                    outputs: start..end,
                    columns,
                    units,
                }
            };
        losses.iter().zip(heads).zip(head_columns(heads)).map(of_head).collect()
    }

    /// This head's columns of rows of `width` values.
    pub fn select<T: Copy>(columns: &Range<usize>, values: &[T], width: usize) -> Vec<T> {
        values.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect()
    }
}

/// Whether a label applies by its logit, in predictions, metrics and exported models alike: its probability is 0.5 or more.
pub fn label_applies(logit: f32) -> bool {
    logit >= 0.0
}
