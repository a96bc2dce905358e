//! Several models as one: the mean of their probabilities or values, of all rows, or of each row by the models that did not train on it.
//!
//! The models predict one after the other. Their sums lie in a file without a name, so that memory does not grow with the rows, and the
//! pass of the last model writes the means.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use ddp::config::{Config, DataConfig, ElementLoss, EvalSource, Loss};
use ddp::data::datasets::subset::Bits;
use ddp::data::loader::LoaderOptions;
use ddp::data::{DataError, Dataset as _};
use ddp::storage::user_file::create_new;
use ddp::storage::write_error::WriteError;
use ddp_comm::{HostShare, Phase, Stop, World};
use ddp_kernels::Device;

use crate::error::TableError;
use crate::host_once::in_turn;
use crate::load::take_eval;
use crate::predict::error::{PredictError, Result};
use crate::predict::input::{InputSpec, block_rows};
use crate::predict::pass::{BlockOutputs, Model, Pass};
use crate::predict::predictor::Predictor;
use crate::predict::saved_model::SavedModel;
use crate::predict::scale::Scale;
use crate::source::{ClassLabels, SourceSpec};

/// Models that predict together, the last of which writes.
#[derive(Debug)]
pub struct Ensemble {
    models: Vec<SavedModel>,
}

/// Rows of the table that each model did not train on.
#[derive(Debug)]
pub struct HeldOut(Vec<Bits>);

impl Ensemble {
    /// Joins the models.
    ///
    /// # Errors
    /// [`PredictError::Usage`] for models of other targets.
    pub fn new(models: Vec<SavedModel>) -> Result<Self> {
        let (first, others) = models.split_first().expect("a model at least");
        let targets = |model: &SavedModel| {
            let Config { data, loss, .. } = &model.config;
            (data.task, data.target.clone(), element_losses(loss), model.output_names())
        };
        let scale = Scale::of(first);
        let fits = |model: &&SavedModel| targets(model) == targets(first) && scale.is_like(&Scale::of(model));
        if let Some(other) = others.iter().find(|model| !fits(model)) {
            return Err(PredictError::Usage {
                reason: format!(
                    "`{}` and `{}` predict other targets or classes, or by other losses",
                    first.path.display(),
                    other.path.display()
                ),
                hint: "models predict together if their data has the same targets and their loss is the same"
                    .to_owned(),
            });
        }
        Ok(Ensemble { models })
    }

    /// Reads the rows that the models trained on, to know which of them each did not see. Collective.
    ///
    /// # Errors
    /// [`PredictError::Usage`] for models without folds of the same rows; errors of reading.
    pub fn held_out(&self, world: &World, host: Option<&HostShare>) -> Result<HeldOut, Stop<PredictError>> {
        world.collective_result(self.check_rows())?;
        let first = &self.models[0];
        let (data, labels) = (&first.config.data, first.labels());
        let classes = match &first.preprocessor.heads[..] {
            [] => ClassLabels::Known(&labels),
            heads => ClassLabels::Heads(heads),
        };
        let held_out = in_turn(world, host, || -> Result<_> {
            let spec = SourceSpec {
                classes,
                host,
                features: Some(first.known_features()),
                ..SourceSpec::train(data)
            };
            let rows = spec.open()?;
            let n_rows = rows.len() + rows.n_without_target();
            let of_model = |model: &SavedModel| -> Result<Bits> {
                let Config { data, train, .. } = &model.config;
                let divided = take_eval(data, &rows, train.seed, host)?.expect("each model holds out rows");
                // The other ranks learn of the error.
                if world.rank().0 == 0 && model.holds_out_others(&*divided.eval)? {
                    return Err(PredictError::Usage {
                        reason: format!(
                            "--out-of-fold: {} has changed since `{}` was trained: its held-out rows differ, and the model may have been \
                             trained on some of them",
                            rows.source(),
                            model.path.display(),
                        ),
                        hint: "restore the original table, or train the folds again".to_owned(),
                    });
                }
                let mut bits = Bits::new(n_rows);
                (0..divided.eval.len()).for_each(|row| bits.set(divided.eval.source_row(row)));
                Ok(bits)
            };
            self.models.iter().map(of_model).collect::<Result<Vec<_>>>()
        })?;
        Ok(HeldOut(held_out))
    }

    fn check_rows(&self) -> Result<()> {
        // What a fold leaves of the section.
        let rows_of = |data: &DataConfig| DataConfig { eval: EvalSource::None, ..data.clone() };
        let first = rows_of(&self.models[0].config.data);
        for model in &self.models {
            let data = &model.config.data;
            let reason = if !data.holds_out() {
                "trained on all of its rows"
            } else if rows_of(data) != first {
                "trained on other rows than the first model, or reads them by other keys of [data]"
            } else {
                continue;
            };
            return Err(PredictError::Usage {
                reason: format!("--out-of-fold: `{}` {reason}", model.path.display()),
                hint: "name runs with `data.fold`, or the folder of `ddp-train sweep --folds K`".to_owned(),
            });
        }
        Ok(())
    }

    /// The model that writes.
    pub fn last(&self) -> &SavedModel {
        self.models.last().expect("a model at least")
    }

    /// Lets all models but the last predict the rows of `input`; `None` for a single model that predicts all rows. Collective.
    ///
    /// - `held_out`: the rows that each model predicts; `None` to take all models for each row
    /// - `loading`: how rows are loaded for a model
    ///
    /// # Errors
    /// [`PredictError`], on all ranks.
    pub fn vote(
        &self,
        world: &World,
        held_out: Option<HeldOut>,
        device: Device,
        loading: impl Fn(&SavedModel) -> LoaderOptions,
        input: &InputSpec,
    ) -> Result<Option<Votes>, Stop<PredictError>> {
        if self.models.len() == 1 && held_out.is_none() {
            return Ok(None);
        }
        let mut votes = world.collective_result(Votes::new(self, held_out, world.world_size()))?;
        let _phase = world.watchdog().during(Phase::Prediction);
        let (_, others) = self.models.split_last().expect("a model at least");
        for (number, saved) in others.iter().enumerate() {
            let mut predictor = Predictor::for_ranks(world, saved, device)?;
            let model = Model { saved, predictor: &mut predictor, loading: loading(saved) };
            let pass = Pass::open(world, model, input, votes.block_rows);
            let voted = pass.and_then(|pass| pass.run(|block| votes.add(number, &block)));
            world.collective_result(voted)?;
        }
        Ok(Some(votes))
    }
}

/// The losses of values and labels, one per head, by which outputs differ in what they estimate: a quantile is no mean.
fn element_losses(loss: &Loss) -> Vec<Option<ElementLoss>> {
    match loss {
        Loss::Element(of) => vec![Some(*of)],
        Loss::CrossEntropy { .. } | Loss::Ordinal => vec![None],
        Loss::Heads(heads) => heads.iter().flat_map(|head| element_losses(&head.loss)).collect(),
    }
}

/// Sums of the predictions of models, by row.
#[derive(Debug)]
pub struct Votes {
    held_out: Option<HeldOut>,
    scales: Vec<Scale>,
    /// Rows of a block, for all models.
    pub(super) block_rows: usize,
    world_size: u64,
    /// This rank's blocks, one after the other: for each row the sum of each output on the scale and the number of models, NaN if one of them
    /// could not predict the row.
    sums: File,
    path: PathBuf,
}

impl Votes {
    fn new(of: &Ensemble, held_out: Option<HeldOut>, world_size: usize) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let name = format!("ddp-train-votes-{}-{:?}-{now}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let create = || -> io::Result<File> {
            let file = create_new(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        };
        let sums = create().map_err(|source| WriteError { path: path.clone(), source })?;
        let rows = of.models.iter().map(|model| block_rows(model.preprocessor.plan.columns.len()));
        Ok(Votes {
            held_out,
            scales: of.models.iter().map(Scale::of).collect(),
            block_rows: rows.min().expect("a model at least"),
            world_size: world_size as u64,
            sums,
            path,
        })
    }

    /// Adds the predictions of a model for a block.
    fn add(&mut self, model: usize, block: &BlockOutputs<'_>) -> Result<()> {
        let sums = self.with(model, block)?;
        let bytes: Vec<u8> = sums.iter().flat_map(|value| value.to_le_bytes()).collect();
        let written = self.sums.write_all_at(&bytes, self.place(block));
        Ok(written.map_err(|source| WriteError { path: self.path.clone(), source })?)
    }

    /// Replaces the outputs of the last model by means, in its units; rows that no model predicts become bad rows.
    pub(super) fn finish(&mut self, block: &mut BlockOutputs<'_>) -> Result<()> {
        let scale = self.scales.last().expect("a model at least");
        let width = scale.n_outputs;
        let sums = self.with(self.scales.len() - 1, block)?;
        block.bad_rows.clear();
        let rows = block.outputs.chunks_exact_mut(width).zip(sums.chunks_exact(width + 1));
        for (row, (outputs, sums)) in rows.enumerate() {
            let n_models = sums[width];
            if n_models > 0.0 {
                let means: Vec<f64> = sums[..width].iter().map(|sum| sum / n_models).collect();
                scale.unscaled(&means, outputs);
            } else {
                block.bad_rows.push(row);
            }
        }
        Ok(())
    }

    /// The sums of a block so far, and the predictions of a model.
    fn with(&self, model: usize, block: &BlockOutputs<'_>) -> Result<Vec<f64>> {
        let scale = &self.scales[model];
        let width = scale.n_outputs;
        let mut sums = vec![0.0; block.rows.len() * (width + 1)];
        if model > 0 {
            let mut bytes = vec![0; 8 * sums.len()];
            let read = self.sums.read_exact_at(&mut bytes, self.place(block));
            // The last block of another length is that of a table that changed meanwhile.
            read.map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    PredictError::from(DataError::from(TableError::RowsChanged {
                        source_name: "the rows to predict".to_owned(),
                    }))
                }
                _ => WriteError { path: self.path.clone(), source }.into(),
            })?;
            let words = bytes.as_chunks::<8>().0.iter();
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = f64::from_le_bytes(*word));
        }
        let held_out = self.held_out.as_ref().map(|HeldOut(of_models)| &of_models[model]);
        let predicts = |row: usize| held_out.is_none_or(|rows| row < rows.len() && rows.has(row));
        let mut values = vec![0.0; width];
        let rows = block.outputs.chunks_exact(width).zip(sums.chunks_exact_mut(width + 1));
        for (row, (outputs, sums)) in block.rows.clone().zip(rows) {
            if predicts(row) {
                scale.scaled(outputs, &mut values);
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
                sums[width] += 1.0;
            }
        }
        for &row in &block.bad_rows {
            if predicts(block.rows.start + row) {
                sums[row * (width + 1) + width] = f64::NAN;
            }
        }
        Ok(sums)
    }

    /// Offset of a block in the file.
    fn place(&self, block: &BlockOutputs<'_>) -> u64 {
        let row_bytes = 8 * (self.scales[0].n_outputs + 1);
        block.number / self.world_size * (self.block_rows * row_bytes) as u64
    }
}
