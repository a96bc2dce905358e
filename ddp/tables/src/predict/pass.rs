//! A pass over this rank's blocks of an input: rows -> observed -> forward -> outputs, block by block.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use ddp::data::loader::LoaderOptions;
use ddp_comm::{Watchdog, World};

use crate::predict::error::Result;
use crate::predict::input::{Input, InputSpec, Share, StreamedBlock};
use crate::predict::observed_rows::ObservedRows;
use crate::predict::predictor::Predictor;
use crate::predict::saved_model::SavedModel;

/// A model, and how it computes.
pub struct Model<'a> {
    /// The model on disk.
    pub saved: &'a SavedModel,
    /// The model on its device.
    pub predictor: &'a mut Predictor,
    /// Options of the loader of its rows.
    pub loading: LoaderOptions,
}

/// Blocks of rows, and what computes them.
pub(super) struct Pass<'a> {
    pub(super) rows: Input,
    /// Counts what is unusual about the rows.
    pub(super) observed: Arc<ObservedRows>,
    predictor: &'a mut Predictor,
    loading: LoaderOptions,
    watchdog: &'a Watchdog,
}

/// A block with the outputs of the model.
pub(super) struct BlockOutputs<'a> {
    /// Its number among the blocks of all ranks.
    pub(super) number: u64,
    /// Its rows.
    pub(super) rows: Range<usize>,
    /// `[n_rows, n_outputs]`.
    pub(super) outputs: &'a mut Vec<f32>,
    /// Rows without a prediction, counted from the first of the block; each may be listed twice.
    pub(super) bad_rows: Vec<usize>,
    /// The block of a table.
    pub(super) table: Option<Arc<StreamedBlock>>,
}

impl<'a> Pass<'a> {
    /// Opens the rows of `input`, of which this rank takes every `world_size`-th block of `block_rows` rows.
    ///
    /// # Errors
    /// [`PredictError::Data`](super::PredictError::Data).
    pub(super) fn open(
        world: &'a World,
        model: Model<'a>,
        input: &InputSpec,
        block_rows: usize,
    ) -> Result<Self> {
        let Model { saved, predictor, loading } = model;
        let share = Share { rank: world.rank().0, world_size: world.world_size(), block_rows };
        let rows = Input::open(saved, input, share)?;
        let plan = &saved.preprocessor.plan;
        let observed = Arc::new(ObservedRows::new(&rows, plan, input.skips_bad_rows));
        Ok(Pass { rows, observed, predictor, loading, watchdog: world.watchdog() })
    }

    /// Computes this rank's blocks, in order.
    ///
    /// # Errors
    /// Errors of reading, of the device and of `take`.
    pub(super) fn run(self, mut take: impl FnMut(BlockOutputs<'_>) -> Result<()>) -> Result<()> {
        let Pass { mut rows, observed, predictor, loading, watchdog } = self;
        let blocks = mem::replace(&mut rows.blocks, Box::new(std::iter::empty()));
        let (table, n_outputs) = (rows.table.clone(), predictor.n_outputs());
        // Outputs of the current block, and its first row.
        let mut outputs: Vec<f32> = Vec::new();
        let mut current: Option<usize> = None;
        let mut end_block = |first: usize, outputs: &mut Vec<f32>| -> Result<()> {
            let of_block = first..first + outputs.len() / n_outputs;
            let of_values = observed.take_bad_rows(&of_block).into_iter().map(|row| row - first);
            let mut bad_rows: Vec<usize> = of_values.collect();
            let table = table.as_ref().map(|table| table.take(first));
            table.iter().for_each(|read| bad_rows.extend(&read.bad_rows));
            take(BlockOutputs {
                number: rows.block_number(first),
                rows: of_block,
                outputs,
                bad_rows,
                table,
            })?;
            outputs.clear();
            Ok(())
        };
        let mut last_range = None;
        predictor.predict_ranges(observed.clone(), blocks, loading, |range, own, batch| {
            watchdog.tick();
            if last_range != Some(range) {
                if let Some(first) = current.replace(own.start) {
                    end_block(first, &mut outputs)?;
                }
                last_range = Some(range);
            }
            outputs.extend_from_slice(batch);
            Ok(())
        })?;
        if let Some(error) = rows.table.as_ref().and_then(|table| table.take_error()) {
            return Err(error.into());
        }
        current.map_or(Ok(()), |first| end_block(first, &mut outputs))
    }
}
