//! Predicts all rows of an input and writes the predictions to an output.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ddp::storage::atomic_write::write_atomic;
use ddp::storage::unfinished::Unfinished;
use ddp::storage::write_error::WriteError;
use ddp_comm::{Phase, World};

use crate::open::files::files_of;
use crate::open::remote::is_address;
use crate::predict::columns::PredictedColumns;
use crate::predict::ensemble::Votes;
use crate::predict::error::{PredictError, Result};
use crate::predict::input::{InputSpec, block_rows};
use crate::predict::observed_rows::ColumnCounts;
#[cfg(feature = "parquet")]
use crate::predict::output::block::ColumnKind;
use crate::predict::output::block::{Block, Labels, OutputColumn, Values};
use crate::predict::output::file::{OutputFile, OutputStream, Stop};
use crate::predict::output::format::OutputFormat;
use crate::predict::pass::{Model, Pass};
use crate::predict::saved_model::SavedModel;
use crate::table::KeptValues;

/// Destination and contents of the predictions.
#[derive(Debug, Clone)]
pub struct OutputSpec {
    /// File or stdout.
    pub place: OutputPlace,
    /// Whether to write the probability of each class.
    pub with_probabilities: bool,
    /// Probability at which the second of two classes is predicted.
    pub threshold: Option<f64>,
    /// Whether to replace an existing file.
    pub overwrite: bool,
    /// Temporary files to remove if a signal ends the process.
    pub unfinished: Unfinished,
}

/// Destination of the predictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPlace {
    /// CSV on stdout.
    Stdout,
    /// A file, whose name determines the format.
    File(PathBuf),
}

/// Summary of a prediction run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of rows.
    pub n_rows: u64,
    /// Size of the file in bytes, on rank 0.
    pub(crate) n_bytes: u64,
    /// Rows without a prediction.
    pub n_bad_rows: u64,
    /// Number of them whose outputs are NaN, or infinite values of regression.
    pub n_nan: u64,
    /// Counts of values that differ from those of training, by column.
    pub counts: Vec<(String, ColumnCounts)>,
    /// Columns that are not used, with the reason: ends of sentences.
    pub left_out: Vec<String>,
}

/// Refuses an array for columns of different types.
fn check_table(format: OutputFormat) -> Result<()> {
    if format.has_columns() {
        return Ok(());
    }
    Err(PredictError::Usage {
        reason: "the model has several heads, whose predictions do not form one array".to_owned(),
        hint: "write a table: a file that ends in .csv, .parquet or .jsonl".to_owned(),
    })
}

/// The format of the output and its predicted columns.
struct Form {
    format: OutputFormat,
    predicted: PredictedColumns,
}

impl Form {
    fn new(saved: &SavedModel, keep: &[String], output: &OutputSpec) -> Result<Self> {
        let format = match &output.place {
            OutputPlace::Stdout => OutputFormat::Csv,
            OutputPlace::File(path) => OutputFormat::of(path)?,
        };
        let (with_probabilities, threshold) = (output.with_probabilities, output.threshold);
        let predicted = match &saved.heads()[..] {
            [] => {
                let (task, names) = (saved.config.data.task, saved.output_names());
                PredictedColumns::new(task, &names, with_probabilities, threshold, saved.output_units())?
            }
            heads => {
                check_table(format)?;
                PredictedColumns::for_heads(heads, with_probabilities, threshold)?
            }
        };
        check_names(&predicted)?;
        check_kept(keep, &predicted, format, &output.place)?;
        Ok(Form { format, predicted })
    }
}

/// Refuses what [`run`] would, as far as it depends on no rows: before other models predict. Collective.
///
/// # Errors
/// [`PredictError`], on all ranks.
pub fn check(world: &World, saved: &SavedModel, input: &InputSpec, output: &OutputSpec) -> Result<(), Stop> {
    let checked = Form::new(saved, &input.keep, output).and_then(|_| check_place(world, input, output));
    Ok(world.collective_result(checked)?)
}

/// Refuses a file that exists, unless it is to be replaced, and one that holds rows of the input.
fn check_place(world: &World, input: &InputSpec, output: &OutputSpec) -> Result<()> {
    let OutputPlace::File(path) = &output.place else { return Ok(()) };
    if world.rank().0 != 0 || path.symlink_metadata().is_err() {
        return Ok(());
    }
    let own = fs::canonicalize(path).ok();
    let is_own = |file: &PathBuf| own.is_some() && fs::canonicalize(file).ok() == own;
    // The rows report what is wrong with them.
    if !is_address(&input.source) && files_of(&input.source).is_ok_and(|files| files.iter().any(is_own)) {
        return Err(PredictError::Usage {
            reason: "the predictions would replace the rows".to_owned(),
            hint: "name another file for them".to_owned(),
        });
    }
    if output.overwrite { Ok(()) } else { Err(PredictError::OutExists { path: path.clone() }) }
}

/// Predicts the rows of `input` on all ranks by `model`, or with the `votes` of others; `print` writes to stdout.
///
/// # Errors
/// [`PredictError`], on all ranks.
pub fn run(
    world: &World,
    model: Model<'_>,
    mut votes: Option<Votes>,
    input: &InputSpec,
    output: &OutputSpec,
    print: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Summary, Stop> {
    let saved = model.saved;
    let plan = &saved.preprocessor.plan;
    let block_rows = votes.as_ref().map_or_else(|| block_rows(plan.columns.len()), |votes| votes.block_rows);
    let prepare = || -> Result<_> {
        let Form { format, predicted } = Form::new(saved, &input.keep, output)?;
        let input = InputSpec { keeps_types: format == OutputFormat::Parquet, ..input.clone() };
        let pass = Pass::open(world, model, &input, block_rows)?;
        check_place(world, &input, output)?;
        let columns: Vec<_> = pass.rows.kept.iter().chain(&predicted.columns).cloned().collect();
        Ok((format, columns, predicted, pass))
    };
    let (format, columns, predicted, pass) = world.collective_result(prepare())?;
    let labels = predicted.labels_of_array();
    let left_out = pass.rows.left_out.clone();
    let observed = pass.observed.clone();
    let _phase = world.watchdog().during(Phase::Prediction);
    let counts = |world: &World| -> Result<_> {
        let counts = sum_counts(world, &observed.counts())?;
        Ok(plan.columns.iter().cloned().zip(counts).collect())
    };
    let path = match &output.place {
        OutputPlace::Stdout => {
            let encoder = format.encoder(&columns).expect("CSV has an encoder");
            let mut stream = OutputStream::new(encoder);
            let mut n_rows = 0;
            let done = write_blocks(pass, votes.as_mut(), &predicted, |_, block| {
                n_rows += block.n_rows as u64;
                print(stream.encode(block))
            });
            let [n_bad_rows, n_nan] = world.collective_result(done)?;
            let counts = counts(world).map_err(Stop::from)?;
            return Ok(Summary { n_rows, n_bytes: 0, n_bad_rows, n_nan, counts, left_out });
        }
        OutputPlace::File(path) => path,
    };
    let mut file = OutputFile::create(world, path, format, &columns, &output.unfinished)?;
    let done = write_blocks(pass, votes.as_mut(), &predicted, |number, block| file.write(number, block));
    let n_bad = sums(world, &world.collective_result(done)?).map_err(Stop::from)?;
    let counts = counts(world).map_err(Stop::from)?;
    // Before the predictions get their name, so that they never exist without their labels, nor with labels of earlier predictions.
    let labels = if format == OutputFormat::Npy && world.rank().0 == 0 {
        set_labels(path, labels.as_deref())
    } else {
        Ok(())
    };
    world.collective_result(labels)?;
    let (n_rows, n_bytes) = file.finish(world)?;
    Ok(Summary { n_rows, n_bytes, n_bad_rows: n_bad[0], n_nan: n_bad[1], counts, left_out })
}

/// Predicts this rank's blocks and passes them with their numbers to `write`; returns the number of rows without a prediction, and of
/// those whose outputs are NaN or infinite.
fn write_blocks(
    pass: Pass<'_>,
    mut votes: Option<&mut Votes>,
    predicted: &PredictedColumns,
    mut write: impl FnMut(u64, &Block) -> Result<()>,
) -> Result<[u64; 2]> {
    let kept_columns = pass.rows.kept.clone();
    let mut n_bad = [0; 2];
    pass.run(|mut of| {
        if let Some(votes) = &mut votes {
            votes.finish(&mut of)?;
        }
        let n_rows = of.rows.len();
        let mut is_valid = vec![true; n_rows];
        of.bad_rows.iter().for_each(|&row| is_valid[row] = false);
        let outputs = of.outputs.chunks_exact(predicted.n_outputs);
        let mut is_number: Vec<bool> = outputs.map(|row| !row.iter().any(|x| x.is_nan())).collect();
        let values = predicted.values(of.outputs);
        // The logarithm of a rate may be finite, and the rate too large.
        for column in &values {
            let Values::Numbers(numbers) = column else { continue };
            is_number.iter_mut().zip(numbers).for_each(|(is_number, x)| *is_number &= x.is_finite());
        }
        for (is_valid, is_number) in is_valid.iter_mut().zip(is_number) {
            n_bad[1] += u64::from(*is_valid && !is_number);
            *is_valid &= is_number;
        }
        let mut block = Block { n_rows, columns: Vec::new(), is_valid: Vec::new() };
        if let Some(read) = &of.table {
            let kept = read.kept.iter().cloned().zip(&kept_columns);
            block.columns.extend(kept.map(|(values, column)| kept_values(values, column)));
        }
        if is_valid.contains(&false) {
            n_bad[0] += is_valid.iter().filter(|is_valid| !**is_valid).count() as u64;
            block.is_valid = is_valid;
        }
        block.columns.extend(values);
        write(of.number, &block)
    })?;
    Ok(n_bad)
}

/// Refuses two predicted columns of one name: head `a` with class `b_c`, and head `a_b` with class `c`.
fn check_names(predicted: &PredictedColumns) -> Result<()> {
    let mut seen = HashSet::new();
    match predicted.columns.iter().find(|column| !seen.insert(&column.name)) {
        Some(column) => Err(PredictError::Usage {
            reason: format!("--proba: two heads of the model have a column \"{}\"", column.name),
            hint: "remove --proba; for probabilities, rename a target and train again".to_owned(),
        }),
        None => Ok(()),
    }
}

/// Returns an error for columns that can't be kept.
fn check_kept(
    keep: &[String],
    predicted: &PredictedColumns,
    format: OutputFormat,
    place: &OutputPlace,
) -> Result<()> {
    if !keep.is_empty() && !format.has_columns() {
        let OutputPlace::File(path) = place else { unreachable!("CSV has columns") };
        return Err(PredictError::Output {
            out: path.display().to_string(),
            reason: "arrays can't hold the text of kept columns".to_owned(),
            hint: "remove --keep, or write to .csv, .jsonl or .parquet".to_owned(),
        });
    }
    let clash = keep.iter().enumerate().find(|(index, name)| {
        predicted.columns.iter().any(|column| column.name == **name) || keep[..*index].contains(name)
    });
    if let Some((_, name)) = clash {
        return Err(PredictError::Usage {
            reason: format!("--keep: there would be two columns \"{name}\""),
            hint: "rename the column in the input, or do not keep it".to_owned(),
        });
    }
    Ok(())
}

/// Element-wise sums over the ranks.
fn sums(world: &World, own: &[u64]) -> Result<Vec<u64>> {
    let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let of_ranks = world.group().all_gather_bytes(&bytes)?;
    let mut sums = vec![0; own.len()];
    for bytes in &of_ranks {
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *sum += u64::from_le_bytes(*bytes);
        }
    }
    Ok(sums)
}

fn sum_counts(world: &World, own: &[ColumnCounts]) -> Result<Vec<ColumnCounts>> {
    let numbers = own.iter().flat_map(|counts| [counts.n_unseen, counts.n_filled, counts.n_outside]);
    let sums = sums(world, &numbers.collect::<Vec<_>>())?;
    let counts = |&[n_unseen, n_filled, n_outside]: &[u64; 3]| ColumnCounts { n_unseen, n_filled, n_outside };
    Ok(sums.as_chunks::<3>().0.iter().map(counts).collect())
}

/// The values of a kept column.
fn kept_values(values: KeptValues, column: &OutputColumn) -> Values {
    match column.kind {
        #[cfg(feature = "parquet")]
        ColumnKind::KeptAs(_) => Values::Arrays(values.arrays),
        _ => Values::Texts(values.texts),
    }
}

/// Writes the labels of the class indices, or of the columns of probabilities, to `OUT.labels.json`, because arrays can't hold
/// strings; removes the file if there are no `labels`.
fn set_labels(out: &Path, labels: Option<&Labels>) -> Result<()> {
    let mut name = out.as_os_str().to_owned();
    name.push(".labels.json");
    let path = PathBuf::from(name);
    if let Some(labels) = labels {
        let text = serde_json::Value::from(labels.names.clone()).to_string() + "\n";
        return Ok(write_atomic(&path, text.as_bytes())?);
    }
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(WriteError { path, source }.into()),
        _ => Ok(()),
    }
}
