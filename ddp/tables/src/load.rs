//! Loads the training and evaluation rows of a config and checks them against each other.
//!
//! ```
//! use ddp::comm::World;
//! use ddp::config::Config;
//!
//! let config = Config::load(None, &["data.eval_fraction=0.25".to_owned()])?; // builtin:digits
//! let data = ddp_tables::load(&config, &World::single())?;
//! let eval = data.eval.as_ref().expect("a quarter of the rows");
//! assert_eq!((data.train.len(), eval.len()), (1078, 360));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ddp::config::{
    Balance, ClassWeights, Config, DataConfig, EvalSource, FingerprintKind, Loss, MissingTarget, Normalize,
    Task,
};
use ddp::data::datasets::balanced::BalancedRows;
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout, usual_weight};
use ddp::data::datasets::subset::{Bits, Subset, split, split_fold};
use ddp::data::error::{DataError, Result};
use ddp::data::order::partition::rank_range;
use ddp::data::vocabulary::Vocabulary;
use ddp::data::{Loaded, check_n_rows};
use ddp::report::units::grouped;
use ddp_comm::{HostShare, Stop, World};
use tracing::{info, info_span};

use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::fit::column_advice::{FittedRows, ONE_HOT, has_one_label};
use crate::fit::data_fingerprint::{DataFingerprint, fingerprint};
use crate::fit::preprocess::{Preprocessor, decimal_mark, needs_stats};
use crate::fit::quartiles::quartiles;
use crate::fit::scan::Scan;
use crate::fit::target_columns::{TargetColumn, check_counts, head_gaps, target_columns};
use crate::fit::{column_advice, lost_values, scaled_targets, scan, train_categories};
use crate::formats::arrays::reader::SplitSide;
pub use crate::host_once::in_turn;
use crate::host_once::once;
use crate::labels::survey::LabelSurvey;
use crate::open::open;
use crate::row_values::RowValues;
use crate::source::{ClassLabels, KnownFeatures, SourceSpec, TakenColumn};
use crate::split::class_rows::{self, class_counts, fold_by_class, split_by_class, without_unknown};
use crate::split::column_split::split_by_column;
use crate::split::held_out::targets_hash;
use crate::split::split_values::SplitReader;
use crate::{checks, kept_tables};

/// A preprocessor that was fitted before.
#[derive(Debug, Clone, Copy)]
pub enum Fitted<'a> {
    /// Of this run, to be resumed: it is kept if the rows have its columns.
    Resumed(&'a Preprocessor),
    /// Of the model whose weights the run starts from: rows are read with its columns and vocabularies.
    Initial(&'a Preprocessor),
    /// Like `Initial`, for a model with a new output layer: classes and target scale come from the rows.
    InitialFeatures(&'a Preprocessor),
}

/// Opens, splits and checks the rows that the config names, and compares them over the ranks. Every rank of the world calls it
/// with the same config.
///
/// # Errors
/// Faults of the data, with their place (exit status 2).
pub fn load(config: &Config, world: &World) -> Result<Loaded, Stop<DataError>> {
    load_with(config, world, None)
}

/// [`load`] with a preprocessor that was fitted before.
///
/// # Errors
/// Same as [`load`]; [`DataError::OtherPreprocessing`] for settings that contradict the preprocessor.
pub fn load_with(
    config: &Config,
    world: &World,
    fitted: Option<Fitted<'_>>,
) -> Result<Loaded, Stop<DataError>> {
    let model = match fitted {
        Some(Fitted::Initial(known)) => Some((known, true)),
        Some(Fitted::InitialFeatures(known)) => Some((known, false)),
        Some(Fitted::Resumed(_)) | None => None,
    };
    let mut kept = None;
    let open_kept = || {
        let (file, table) = kept_tables::open(config, model)?;
        kept = Some(table);
        Some(file)
    };
    let host = world.share_host(open_kept).map_err(DataError::from)?;
    let host = host.as_ref();
    let mut spec = SourceSpec { host, ..SourceSpec::train(&config.data) };
    if let Some(Fitted::Initial(preprocessor) | Fitted::InitialFeatures(preprocessor)) = fitted {
        let plan = &preprocessor.plan;
        world.collective_result(plan.check_settings(&config.data))?;
        if matches!(fitted, Some(Fitted::Initial(_))) {
            world.collective_result(check_units(config, preprocessor))?;
        }
        let (names, vocabularies, kinds) = (&plan.columns, &plan.vocabularies, &plan.kinds);
        let known = KnownFeatures::from_shards(names, "the model of --init-from");
        spec.features = Some(KnownFeatures { vocabularies, kinds, prunes: true, ..known });
        if matches!(fitted, Some(Fitted::Initial(_))) {
            spec.classes = ClassLabels::from_model(preprocessor.labels.as_ref(), &preprocessor.heads)
                .unwrap_or(spec.classes);
        }
    }
    // Decides which rows are evaluated, and is taken while the rows are read.
    let reader = config.data.split().map(|split| Arc::new(Mutex::new(SplitReader::new(split))));
    let taken = config.data.split().zip(reader.clone()).map(|(split, reader)| {
        let mut notation = SplitReader::notation(&config.data);
        TakenColumn::new(split.column(), move |text, decimal| {
            notation.decimal = decimal;
            lock(&reader).take(text, &notation);
        })
    });
    let (whole, is_table) = open_train(&SourceSpec { taken: taken.as_ref(), ..spec }, world)?;
    let taken = reader.map(|reader| std::mem::replace(&mut *lock(&reader), SplitReader::Failed));
    let config = &decided(config, whole.layout());
    let data = &config.data;
    let _span = info_span!("load", data = %data.train).entered();
    let normalize = match data.normalize {
        Normalize::Auto if is_table => Normalize::Standard,
        Normalize::Auto => Normalize::None,
        other => other,
    };
    let TrainAndEval { train, eval, n_skipped, split } =
        in_turn(world, host, || divide(config, &spec, whole, taken, world.world_size()))?;
    if let (Some(kept), Some(host)) = (kept, host) {
        kept.complete(host, config, model);
    }
    let sampled = world.collective_result(fingerprint(&train, eval.as_ref()))?;
    let held_out = eval.as_ref().filter(|_| data.holds_out() && world.rank().0 == 0);
    let held_out = world.collective_result(held_out.map(|rows| targets_hash(&**rows)).transpose())?;
    // Before the ranks read shards of rows that must be the same.
    let entry = ("rows and columns of the data (fingerprint)".to_owned(), format!("{sampled:016x}"));
    world.agree(&[entry]).map_err(DataError::from)?;

    world.collective_result(check_weights(&*train, eval.as_deref()))?;
    let counts = if config.loss.is_balanced() && data.task == Task::Classification {
        Some(class_counts(&*train, world)?)
    } else {
        None
    };
    let mut unseen = None;
    if let Some(eval) = eval.as_ref().filter(|_| data.task == Task::Classification) {
        // Before training starts, rather than at its first evaluation.
        let of_eval = class_counts(&**eval, world)?;
        if split.is_some() {
            unseen = unseen_classes(train.layout(), &class_counts(&*train, world)?, &of_eval);
        }
    }
    let task_choice = train.layout().task_choice.clone();
    let needs_stats = needs_stats(data, normalize);
    let is_full = match data.fingerprint {
        FingerprintKind::Auto => needs_stats,
        FingerprintKind::Full => true,
        FingerprintKind::Sampled => false,
    };
    let mut scan = if needs_stats || is_full { Some(Scan::of(&*train, world)?) } else { None };
    if let Some(scan) = scan.as_mut().filter(|_| normalize == Normalize::Robust) {
        scan.features.quartiles = Some(quartiles(&*train, &scan.features, world)?);
    }
    let fingerprint = match scan.as_ref().filter(|_| is_full) {
        None => DataFingerprint::Sampled(sampled),
        Some(scan) => {
            let eval = eval.as_ref().map(|eval| Scan::of(&**eval, world)).transpose()?;
            DataFingerprint::full(sampled, scan.hash, eval.map(|scan| scan.hash))
        }
    };
    let columns = target_columns(&config.loss, train.layout(), data);
    let target_scale = || -> Result<_, Stop<DataError>> {
        let has = |meaning| columns.contains(&meaning);
        if !has(TargetColumn::Standardized) && !has(TargetColumn::Count) {
            return Ok(None);
        }
        let stats = match &scan {
            Some(scan) => scan.targets.clone(),
            None => scan::targets(&*train, world)?,
        };
        world.collective_result(check_counts(&*train, &stats, &columns))?;
        let are_scaled: Vec<bool> =
            columns.iter().map(|column| *column == TargetColumn::Standardized).collect();
        Ok(has(TargetColumn::Standardized).then(|| scaled_targets::fit(&stats, &are_scaled)))
    };
    let head_gaps = match data.missing_target {
        MissingTarget::Skip if data.task == Task::Heads => {
            let stats = match &scan {
                Some(scan) => scan.targets.clone(),
                None => scan::targets(&*train, world)?,
            };
            head_gaps(train.layout(), &stats)
        }
        _ => Vec::new(),
    };
    if let Some(Fitted::Resumed(known)) = fitted
        && known.plan.is_of(train.layout())
    {
        world.collective_result(kinds_of_run(known, &*train))?;
    }
    let mut preprocessor = match fitted {
        Some(Fitted::Initial(known)) => known.clone(),
        Some(Fitted::InitialFeatures(known)) => Preprocessor {
            labels: train.layout().labels.clone(),
            heads: train.layout().targets.heads().to_vec(),
            target_scale: target_scale()?,
            ..known.clone()
        },
        Some(Fitted::Resumed(known))
            if known.plan.is_of(train.layout())
                && (known.labels.is_none() || known.labels == train.layout().labels)
                && known.heads == train.layout().targets.heads() =>
        {
            // Files of earlier versions list no labels.
            Preprocessor { labels: train.layout().labels.clone(), ..known.clone() }
        }
        Some(Fitted::Resumed(_)) | None => {
            let stats = scan.as_ref().filter(|_| needs_stats).map(|scan| &scan.features);
            let preprocessor = Preprocessor::new(data, normalize, train.layout(), stats);
            Preprocessor { target_scale: target_scale()?, ..preprocessor }
        }
    };
    let mark = decimal_mark(world, train.layout())?;
    if !matches!(fitted, Some(Fitted::Resumed(known)) if known.plan == preprocessor.plan) {
        preprocessor.plan.decimal = mark.unwrap_or(preprocessor.plan.decimal);
    }
    let is_held_out = data.holds_out();
    let rows = FittedRows {
        train: &*train,
        n_held_out: eval.as_ref().filter(|_| is_held_out).map_or(0, |eval| eval.len()),
        preprocessor: &preprocessor,
        stats: scan.as_ref().map(|scan| &scan.features),
        target_stats: scan.as_ref().map(|scan| &scan.targets).filter(|_| data.task == Task::Regression),
    };
    let warnings = match world.rank().0 {
        0 => warnings_of(rows, data, fitted.is_some()),
        _ => Ok(Vec::new()),
    };
    let mut warnings = world.collective_result(warnings)?;
    warnings.extend(unseen.filter(|_| world.rank().0 == 0));
    warnings.extend(similar_labels(train.layout()).filter(|_| world.rank().0 == 0));
    let is_multilabel = matches!(&task_choice, Some(choice) if choice.task == Task::Multilabel);
    // It reads rows from all over the files, for a note that rank 0 shows.
    let is_one_hot = is_multilabel && world.rank().0 == 0 && are_one_hot(&*train);
    let mut train = preprocessor.apply(train);
    let plain = train.clone();
    // Where the targets turned out to be no classes, the decided config refuses it.
    if data.balance == Balance::Classes && matches!(train.layout().targets, TargetLayout::Classes { .. }) {
        let rows = world.collective_result(BalancedRows::new(train))?;
        let (most, n_classes) = rows.sizes();
        info!(
            "data.balance: an epoch has {} rows of each of {n_classes} classes, {} in all",
            grouped(most as u64),
            grouped(rows.len() as u64)
        );
        train = Arc::new(rows);
    }
    Ok(Loaded {
        warnings,
        plain,
        train,
        eval: eval.map(|eval| preprocessor.apply(eval)),
        preprocessor: preprocessor.to_saved(),
        task_choice,
        class_counts: counts,
        n_skipped,
        split,
        head_gaps,
        task_advice: is_one_hot.then_some(ONE_HOT),
        data_fingerprint: fingerprint.to_string(),
        held_out,
    })
}

/// Fails for rows whose columns hold values of another kind than those of the run to be resumed, dates in place of numbers.
fn kinds_of_run(known: &Preprocessor, rows: &dyn Dataset) -> Result<()> {
    let (plan, layout, path) = (&known.plan, rows.layout(), Path::new(rows.source()));
    checks::kinds(&plan.columns, &plan.kinds, &layout.kinds, path, "the run to be resumed")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Warnings about the columns; a preprocessor of another run was warned of there.
fn warnings_of(rows: FittedRows<'_>, data: &DataConfig, is_fitted: bool) -> Result<Vec<String>> {
    let mut warnings = lost_values::warnings(rows.train, rows.preprocessor)?;
    if !is_fitted {
        warnings.extend(column_advice::warnings(rows, data)?);
    }
    Ok(warnings)
}

/// Warns of labels that look like spellings of one.
fn similar_labels(layout: &RowLayout) -> Option<String> {
    const SHOWN: usize = 4;
    let groups = layout.labels.as_ref()?.similar();
    let shown: Vec<String> = groups.iter().take(SHOWN).map(|group| group.join(" / ")).collect();
    let more = if groups.len() > SHOWN { ", ..." } else { "" };
    (!groups.is_empty()).then(|| {
        format!("labels differ only in case, spaces or invisible characters: {}{more}", shown.join(", "))
    })
}

/// Warns of classes that a split by a column left to the evaluation rows alone.
fn unseen_classes(layout: &RowLayout, of_train: &[u64], of_eval: &[u64]) -> Option<String> {
    const SHOWN: usize = 5;
    let unseen: Vec<usize> =
        (0..of_eval.len()).filter(|&class| of_eval[class] > 0 && of_train[class] == 0).collect();
    let name = |class: &usize| match &layout.labels {
        Some(labels) => format!("\"{}\"", labels.name(*class)),
        None => class.to_string(),
    };
    let n_rows: u64 = unseen.iter().map(|&class| of_eval[class]).sum();
    let names: Vec<String> = unseen.iter().take(SHOWN).map(name).collect();
    let more = if unseen.len() > SHOWN { " and others" } else { "" };
    (!unseen.is_empty()).then(|| {
        format!(
            "{n_rows} evaluation rows have labels that no training row has: {}{more}; the model can't learn them\n\
             hint: split by another column, or remove those rows",
            names.join(", ")
        )
    })
}

/// Opens the training rows; each rank reads a shard of the targets that decide on classes or task. Returns, too, whether the rows
/// come from a table.
fn open_train(spec: &SourceSpec<'_>, world: &World) -> Result<(Arc<dyn Dataset>, bool), Stop<DataError>> {
    let opened = in_turn(world, spec.host, || open(spec))?;
    let is_table = opened.is_table(spec);
    let own = |n_rows| rank_range(n_rows, world.rank().0, world.world_size());
    let survey = match world.collective_result(opened.survey(spec, own))? {
        Some(survey) => {
            let ranks = world.group().all_gather_bytes(&survey.to_bytes()).map_err(DataError::from)?;
            Some(LabelSurvey::from_ranks(&ranks))
        }
        None => None,
    };
    Ok((world.collective_result(opened.with_survey(spec, survey.as_ref()))?, is_table))
}

/// Checks that a loss that takes counts does not get the standardized targets of another model.
fn check_units(config: &Config, known: &Preprocessor) -> Result<()> {
    if !config.loss.predicts_logarithms() || known.target_scale.is_none() {
        return Ok(());
    }
    Err(DataError::OtherPreprocessing {
        key: "loss.kind",
        value: config.loss.name(),
        there: "standardized targets",
    })
}

/// The config with the task that the targets decided on.
fn decided(config: &Config, layout: &RowLayout) -> Config {
    let mut config = config.clone();
    if let Some(choice) = &layout.task_choice {
        config.data.task = choice.task;
    }
    config.data.auto_task = false;
    config
}

/// Whether each row has exactly one label, in as many rows spread over `rows` as convince.
fn are_one_hot(rows: &dyn Dataset) -> bool {
    const N_ROWS: usize = 1000;
    let (n_rows, n_labels) = (rows.len(), rows.layout().targets.n_outputs());
    let numbers: Vec<usize> = (0..n_rows).step_by(n_rows.div_ceil(N_ROWS).max(1)).collect();
    let has_one = |of_row: &[f64]| has_one_label(of_row.iter().copied());
    RowValues::read(rows, &numbers).is_ok_and(|values| values.targets.chunks_exact(n_labels).all(has_one))
}

/// Training and evaluation rows.
struct TrainAndEval {
    train: Arc<dyn Dataset>,
    eval: Option<Arc<dyn Dataset>>,
    /// Evaluation rows that were left out.
    n_skipped: usize,
    split: Option<String>,
}

fn divide(
    config: &Config,
    spec: &SourceSpec<'_>,
    whole: Arc<dyn Dataset>,
    taken: Option<SplitReader>,
    world_size: usize,
) -> Result<TrainAndEval> {
    let data = &config.data;
    let min_rows = data.min_category_rows();
    // Rows in the order of the files, of which evaluation rows may be taken.
    let common = |rows: Arc<dyn Dataset>| -> Result<Arc<dyn Dataset>> {
        if min_rows < 2 || spec.features.is_some() {
            return Ok(rows);
        }
        let mut rows = train_categories::by_train_rows(vec![rows], min_rows, spec.host)?;
        Ok(rows.remove(0))
    };
    let divided = match (&data.eval, take_rows(data, &whole, taken, config.train.seed, spec.host)?) {
        (by, Some(Divided { train, eval, note })) => {
            // Rows beyond the memory are decoded once more for it: of very many rows, few values are drawn for evaluation alone.
            let is_due = matches!(by, EvalSource::Split(_)) || min_rows > 1 || train.block_ends().is_none();
            let mut rows: Vec<Arc<dyn Dataset>> = vec![train, eval];
            if is_due && spec.features.is_none() {
                rows = train_categories::by_train_rows(rows, min_rows, spec.host)?;
            }
            let (train, eval) = (rows.remove(0), rows.remove(0));
            TrainAndEval { train, eval: Some(eval), n_skipped: 0, split: note }
        }
        (EvalSource::Source(source), None) => {
            let whole = common(whole)?;
            let layout = whole.layout();
            let vocabularies = vocabularies(&*whole);
            // Labels of the evaluation rows must be classes of the training rows.
            let classes = match (&layout.labels, &layout.targets) {
                (Some(labels), _) => ClassLabels::Known(labels),
                (None, TargetLayout::Classes { n_classes }) => ClassLabels::Numbers(*n_classes),
                (None, TargetLayout::Heads { heads }) => ClassLabels::Heads(heads),
                (None, TargetLayout::Values { .. }) => ClassLabels::Discover,
            };
            let known = KnownFeatures::from_rows(layout, &vocabularies, whole.source());
            // With the task that the training rows decided on.
            let rows = SourceSpec { data, source, labels: data.eval_labels.as_deref(), classes, ..*spec };
            let (eval, n_skipped) = open_eval(rows, known)?;
            TrainAndEval { train: whole.clone(), eval: Some(eval), n_skipped, split: None }
        }
        (_, None) => TrainAndEval { train: common(whole)?, eval: None, n_skipped: 0, split: None },
    };
    check_n_rows(&*divided.train, world_size)?;
    check_class_weights(&config.loss, &*divided.train)?;
    Ok(divided)
}

/// Rows to train on and rows to evaluate on, both in the order of the files.
#[derive(Debug)]
pub struct Divided {
    /// Rows to train on.
    pub train: Arc<Subset>,
    /// Rows to evaluate on.
    pub eval: Arc<Subset>,
    /// Both sides in one line, if a column decided.
    pub note: Option<String>,
}

/// Takes evaluation rows out of the training rows `dataset` as `data` says; `None` if it says nothing of the kind. The first rank of `host`
/// decides which, for all of its ranks.
///
/// # Errors
/// Errors of [`split`], and of a split by class or by a column.
pub fn take_eval(
    data: &DataConfig,
    dataset: &Arc<dyn Dataset>,
    seed: u64,
    host: Option<&HostShare>,
) -> Result<Option<Divided>> {
    take_rows(data, dataset, None, seed, host)
}

/// [`take_eval`] by the column `taken`, if it was taken while the rows were read.
fn take_rows(
    data: &DataConfig,
    dataset: &Arc<dyn Dataset>,
    taken: Option<SplitReader>,
    seed: u64,
    host: Option<&HostShare>,
) -> Result<Option<Divided>> {
    if !data.holds_out() {
        return Ok(None);
    }
    let mut own = None;
    let record = once(host, || {
        let divided = split_rows(data, dataset, taken, seed)?;
        let sides = [&divided.train, &divided.eval].map(|rows| rows.bits().to_bytes());
        let note = divided.note.clone().unwrap_or_default();
        own = Some(divided);
        Ok([&sides[0], &sides[1], note.as_bytes()].concat())
    })?;
    let of_record = || {
        let n_bytes = 8 * dataset.len().div_ceil(64);
        let rows = |bytes: &[u8]| Arc::new(Subset::new(dataset, Bits::from_bytes(dataset.len(), bytes)));
        let note = String::from_utf8_lossy(&record[2 * n_bytes..]).into_owned();
        Divided {
            train: rows(&record[..n_bytes]),
            eval: rows(&record[n_bytes..2 * n_bytes]),
            note: Some(note).filter(|note| !note.is_empty()),
        }
    };
    Ok(Some(own.unwrap_or_else(of_record)))
}

fn split_rows(
    data: &DataConfig,
    dataset: &Arc<dyn Dataset>,
    taken: Option<SplitReader>,
    seed: u64,
) -> Result<Divided> {
    let (train, eval, note) = match (&data.eval, &dataset.layout().targets) {
        (EvalSource::Split(by), _) => {
            let rows = split_by_column(data, dataset, by, seed, taken)?;
            (rows.train, rows.eval, Some(rows.note))
        }
        (EvalSource::Fraction(fraction), TargetLayout::Classes { .. }) if data.stratify => {
            let (train, eval) = split_by_class(dataset, *fraction, seed)?;
            (train, eval, None)
        }
        (EvalSource::Fraction(fraction), _) => {
            let (train, eval) = split(dataset, *fraction, seed)?;
            (train, eval, None)
        }
        (EvalSource::Fold(fold), TargetLayout::Classes { .. }) if data.stratify => {
            let (train, eval) = fold_by_class(dataset, *fold, seed)?;
            (train, eval, None)
        }
        (EvalSource::Fold(fold), _) => {
            let (train, eval) = split_fold(dataset, *fold, seed)?;
            (train, eval, None)
        }
        (EvalSource::Unset | EvalSource::None | EvalSource::Source(_), _) => {
            unreachable!("the config takes evaluation rows out of the training rows")
        }
    };
    Ok(Divided { train: Arc::new(train), eval: Arc::new(eval), note })
}

/// Opens evaluation rows with the columns and classes of the model, and returns the number of rows that were left out because
/// their labels are not classes.
///
/// # Errors
/// A [`DataError`] that names the file or the setting.
pub fn open_eval(spec: SourceSpec<'_>, features: KnownFeatures<'_>) -> Result<(Arc<dyn Dataset>, usize)> {
    let spec = SourceSpec { side: SplitSide::Test, features: Some(features), ..spec };
    let opened = open(&spec)?;
    // Files of arrays, and of their labels, may have changed since rows were kept.
    let host = spec.host.filter(|_| opened.is_table(&spec));
    let survey = opened.survey(&spec, |n_rows| 0..n_rows)?;
    let rows = opened.with_survey(&spec, survey.as_ref())?;
    match (&rows.layout().targets, spec.skips_unknown()) {
        (TargetLayout::Classes { .. }, true) => without_unknown(rows, host),
        _ => Ok((class_rows::with_noted_labels(&spec, rows, host)?, 0)),
    }
}

/// Checks that a row to train on and one to evaluate on have a weight.
fn check_weights(train: &dyn Dataset, eval: Option<&dyn Dataset>) -> Result<()> {
    let of = |rows: &dyn Dataset| (rows.source().to_owned(), rows.len());
    if usual_weight(train)?.is_none() {
        let (source_name, n_rows) = of(train);
        return Err(TargetError::NoWeight { source_name, n_rows }.into());
    }
    match eval {
        Some(eval) if usual_weight(eval)?.is_none() => {
            let (source_name, n_rows) = of(eval);
            Err(TargetError::NoEvalWeight { source_name, n_rows }.into())
        }
        _ => Ok(()),
    }
}

fn check_class_weights(loss: &Loss, train: &dyn Dataset) -> Result<()> {
    let check = |loss: &Loss, n_classes: usize| match loss {
        Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. }
            if weights.len() != n_classes =>
        {
            let (source_name, n_weights) = (train.source().to_owned(), weights.len());
            Err(DataError::from(TableError::ClassWeightsCount { source_name, n_classes, n_weights }))
        }
        _ => Ok(()),
    };
    match (&train.layout().targets, loss) {
        (TargetLayout::Classes { n_classes }, loss) => check(loss, *n_classes),
        (TargetLayout::Heads { heads }, Loss::Heads(losses)) => {
            heads.iter().zip(losses).try_for_each(|(head, of)| check(&of.loss, head.n_targets()))
        }
        _ => Ok(()),
    }
}

/// The vocabularies of a layout's categorical columns.
fn vocabularies(dataset: &dyn Dataset) -> Vec<Vocabulary> {
    dataset.layout().categories.iter().map(|category| category.vocabulary.clone()).collect()
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
