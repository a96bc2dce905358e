//! `[data]`: the rows, and the meaning of their columns.

use std::path::Path;

use super::class_order;
use super::data_format::{DataFormat, format_by_name};
use super::data_values::{
    Encode, FingerprintKind, Missing, MissingTarget, Normalize, NormalizeTarget, Placement, ShuffleMode,
    Task, UnknownLabel,
};
use super::error::Result;
use super::heads::{self, HeadConfig};
use super::loss_names::task_of_loss;
use super::origin::Origin;
use super::raw::RawConfig;
use super::split::Split;
use super::table_text::{Datetime, Decimal, Delimiter, Header};
use super::value::{ConfigEnum, ConfigValue as _};
use super::writer::Writer;

/// `[data]`
#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    /// `builtin:NAME`, a file, a folder, or a pattern of files.
    pub train: String,
    /// Labels of `train` in files of their own (npy, IDX): a file or a pattern.
    pub labels: Option<String>,
    /// Rows for evaluation.
    pub eval: EvalSource,
    /// Labels of `eval`, as `labels`.
    pub eval_labels: Option<String>,
    /// Weights of `eval` in files of their own (npy, IDX): a file or a pattern.
    pub eval_weight: Option<String>,
    /// Format of the files.
    pub format: DataFormat,
    /// Name of the features in npz and safetensors files.
    pub features_key: String,
    /// Name of the labels in npz and safetensors files.
    pub labels_key: String,
    /// Column names of the targets, over all heads; one for classification.
    pub target: Vec<String>,
    /// Groups of targets of several kinds; empty but for [`Task::Heads`].
    pub heads: Vec<HeadConfig>,
    /// Kind of the targets.
    pub task: Task,
    /// Whether the targets decide on `task`, which is provisional until [`load`](crate::data::load) has read them.
    pub auto_task: bool,
    /// Number of classes, whose labels are the numbers from 0; `None` means the labels of the training rows.
    pub classes: Option<usize>,
    /// Labels in the order of their classes; empty for numbers by value, then texts by their bytes.
    pub class_order: Vec<String>,
    /// Treatment of evaluation rows whose label is not a class.
    pub unknown_label: UnknownLabel,
    /// Treatment of rows without a target.
    pub missing_target: MissingTarget,
    /// Whether `eval_fraction` takes the same fraction of each class.
    pub stratify: bool,
    /// Weight of a row in loss and metrics: a column, an array's name, or an npy file with those of `train`.
    pub weight: Option<String>,
    /// Columns that are not features.
    pub drop: Vec<String>,
    /// Columns whose values are names rather than quantities.
    pub categorical: Vec<String>,
    /// Encoding of a category for the model.
    pub encode: Encode,
    /// Width of a category's embedding; `None` means one that grows with the number of values.
    pub embedding_dim: Option<usize>,
    /// Replacement of a missing value.
    pub missing: Missing,
    /// Texts that mark a missing value, in addition to the usual ones.
    pub missing_values: Vec<String>,
    /// Whether the first line of a text file names the columns.
    pub header: Header,
    /// Delimiter of the cells of a text file.
    pub delimiter: Delimiter,
    /// Mark before the fraction of a number in a text file.
    pub decimal: Decimal,
    /// Features that a column of dates becomes.
    pub datetime: Datetime,
    /// Normalisation of the features.
    pub normalize: Normalize,
    /// Normalisation of the targets in regression.
    pub normalize_target: NormalizeTarget,
    /// Values that the fingerprint of the rows covers.
    pub fingerprint: FingerprintKind,
    /// Whether each epoch visits the training rows in a new order.
    pub shuffle: bool,
    /// Range over which rows move in that order.
    pub shuffle_mode: ShuffleMode,
    /// Size of the window within which `shuffle_mode = "blocks"` mixes rows, in MiB.
    pub shuffle_window_mib: usize,
    /// Place where rows wait for their step.
    pub placement: Placement,
    /// Batches that are prepared ahead of the step, at least 1.
    pub prefetch: usize,
    /// Threads that prepare them; 0 means as many as fit.
    pub loader_threads: usize,
    /// Host memory for a rank's rows, in MiB.
    pub loader_memory_mib: usize,
}

/// Source of evaluation rows.
#[derive(Debug, Clone, PartialEq)]
pub enum EvalSource {
    /// Not given: test rows that lie next to the training rows, if there are any.
    Unset,
    /// No evaluation.
    None,
    /// `builtin:NAME` (its test rows), a file, a folder, or a pattern of files.
    Source(String),
    /// This fraction of the training rows, in (0, 1), drawn by the seed and taken out of training.
    Fraction(f64),
    /// The training rows that a column decides on, taken out of training.
    Split(Split),
}

/// The values of `data.task`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TaskSetting {
    Auto,
    Task(Task),
}

impl ConfigEnum for TaskSetting {
    const NAMES: &'static [&'static str] = &["auto", "classification", "regression", "multilabel"];
    const VALUES: &'static [Self] = &[
        TaskSetting::Auto,
        TaskSetting::Task(Task::Classification),
        TaskSetting::Task(Task::Regression),
        TaskSetting::Task(Task::Multilabel),
    ];
}

/// Hint of a name that is not a column for its use.
pub(super) const COLUMN_HINT: &str = "a column is a feature, a target, the weight, or left out";
/// Default of `data.features_key`.
pub(crate) const DEFAULT_FEATURES_KEY: &str = "features";
/// Default of `data.labels_key`.
pub(crate) const DEFAULT_LABELS_KEY: &str = "labels";

impl DataConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let train: String = raw.get("data.train")?;
        let eval = eval(raw, &train)?;
        let heads = heads::read(raw)?;
        let (task, auto_task) = if heads.is_empty() { task(raw, &train)? } else { (Task::Heads, false) };
        let data = DataConfig {
            target: match &heads[..] {
                [] => target(raw, task, auto_task)?,
                heads => heads.iter().flat_map(|head| head.target.clone()).collect(),
            },
            heads,
            classes: classes(raw, task)?,
            class_order: class_order::read(raw, task, &train)?,
            unknown_label: raw.get("data.unknown_label")?,
            missing_target: raw.get("data.missing_target")?,
            stratify: stratify(raw, &eval)?,
            drop: raw.get("data.drop")?,
            categorical: raw.get("data.categorical")?,
            weight: raw.optional("data.weight")?,
            eval_weight: raw.optional("data.eval_weight")?,
            loader_memory_mib: raw.get("data.loader_memory_mib")?,
            shuffle_window_mib: shuffle_window_mib(raw)?,
            labels: raw.optional("data.labels")?,
            eval_labels: raw.optional("data.eval_labels")?,
            format: raw.get("data.format")?,
            features_key: raw.get("data.features_key")?,
            labels_key: raw.get("data.labels_key")?,
            encode: raw.get("data.encode")?,
            embedding_dim: Some(raw.get("data.embedding_dim")?).filter(|dim| *dim > 0),
            missing: raw.get("data.missing")?,
            missing_values: raw.get("data.missing_values")?,
            header: raw.get("data.header")?,
            delimiter: raw.get("data.delimiter")?,
            decimal: raw.get("data.decimal")?,
            datetime: raw.get("data.datetime")?,
            normalize: raw.get("data.normalize")?,
            normalize_target: raw.get("data.normalize_target")?,
            fingerprint: raw.get("data.fingerprint")?,
            shuffle: raw.get("data.shuffle")?,
            shuffle_mode: raw.get("data.shuffle_mode")?,
            placement: raw.get("data.placement")?,
            prefetch: raw.get("data.prefetch")?,
            loader_threads: raw.get("data.loader_threads")?,
            train,
            eval,
            task,
            auto_task,
        };
        data.check_weights(raw)?;
        data.check_columns(raw)?;
        data.check_split(raw)?;
        Ok(data)
    }

    fn check_weights(&self, raw: &RawConfig) -> Result<()> {
        if let Some(setting) = raw.given("data.eval_weight")
            && !matches!(&self.eval, EvalSource::Source(source) if !source.starts_with("builtin:"))
        {
            return Err(setting.bad(
                "absent without files in `data.eval`",
                "rows that are taken out of the training rows have the weights of `data.weight`",
            ));
        }
        match raw.given("data.weight") {
            Some(setting) if self.weight.as_ref().is_some_and(|weight| self.target.contains(weight)) => {
                Err(setting.bad("a column that is not a target", COLUMN_HINT))
            }
            _ => Ok(()),
        }
    }

    /// Each column has one use.
    fn check_columns(&self, raw: &RawConfig) -> Result<()> {
        let both = [
            ("data.drop", &self.drop, &self.categorical),
            ("data.categorical", &self.categorical, &self.drop),
        ];
        for (key, columns, others) in both {
            let taken = self.target.iter().chain(&self.weight).chain(others);
            if let Some(name) = taken.into_iter().find(|name| columns.contains(name))
                && let Some(setting) = raw.given(key)
            {
                let expected = format!("columns without another use, and \"{name}\" has one");
                return Err(setting.bad(expected, COLUMN_HINT));
            }
        }
        Ok(())
    }

    /// The column of `data.split` has no other use.
    fn check_split(&self, raw: &RawConfig) -> Result<()> {
        let (Some(split), Some(setting)) = (self.split(), raw.given("data.split")) else { return Ok(()) };
        let column = split.column().to_owned();
        let uses = [
            ("data.target", self.target.contains(&column)),
            ("data.weight", self.weight.as_ref() == Some(&column)),
            ("data.categorical", self.categorical.contains(&column)),
        ];
        match uses.into_iter().find(|(_, is_used)| *is_used) {
            Some((key, _)) => {
                let expected = format!("a column without another use, and `{key}` names \"{column}\" too");
                Err(setting.bad(expected, "the column of a split is not a feature, target or weight"))
            }
            None => Ok(()),
        }
    }

    /// The split of the training rows by a column.
    pub fn split(&self) -> Option<&Split> {
        match &self.eval {
            EvalSource::Split(split) => Some(split),
            EvalSource::Unset | EvalSource::None | EvalSource::Source(_) | EvalSource::Fraction(_) => None,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let DataConfig { train, labels, eval, eval_labels, eval_weight, format, .. } = self;
        writer.put("data.train", train);
        writer.put_optional("data.labels", labels.as_ref());
        match eval {
            EvalSource::Unset | EvalSource::None => writer.put("data.eval", &"none".to_owned()),
            EvalSource::Source(source) => writer.put("data.eval", source),
            EvalSource::Fraction(fraction) => writer.put("data.eval_fraction", fraction),
            EvalSource::Split(split) => {
                writer.put_toml("data.split", split.to_toml());
                writer.put_optional("data.eval_fraction", split.fraction().as_ref());
            }
        }
        writer.put_optional("data.eval_labels", eval_labels.as_ref());
        writer.put_optional("data.eval_weight", eval_weight.as_ref());
        writer.put("data.format", format);
        writer.put("data.features_key", &self.features_key);
        writer.put("data.labels_key", &self.labels_key);
        match (self.target.as_slice(), self.task) {
            (_, Task::Heads) => {}
            ([one], _) => writer.put("data.target", one),
            _ => writer.put("data.target", &self.target),
        }
        match self.task {
            Task::Heads => {}
            _ if self.auto_task => writer.put("data.task", &TaskSetting::Auto),
            task => writer.put("data.task", &TaskSetting::Task(task)),
        }
        writer.put_optional("data.classes", self.classes.as_ref());
        if !self.class_order.is_empty() {
            writer.put("data.class_order", &self.class_order);
        }
        writer.put("data.unknown_label", &self.unknown_label);
        writer.put("data.missing_target", &self.missing_target);
        writer.put("data.stratify", &self.stratify);
        writer.put_optional("data.weight", self.weight.as_ref());
        writer.put("data.drop", &self.drop);
        writer.put("data.categorical", &self.categorical);
        writer.put("data.encode", &self.encode);
        writer.put("data.embedding_dim", &self.embedding_dim.unwrap_or(0));
        writer.put("data.missing", &self.missing);
        writer.put("data.missing_values", &self.missing_values);
        writer.put("data.header", &self.header);
        writer.put("data.delimiter", &self.delimiter);
        writer.put("data.decimal", &self.decimal);
        writer.put("data.datetime", &self.datetime);
        writer.put("data.normalize", &self.normalize);
        writer.put("data.normalize_target", &self.normalize_target);
        writer.put("data.fingerprint", &self.fingerprint);
        writer.put("data.shuffle", &self.shuffle);
        writer.put("data.shuffle_mode", &self.shuffle_mode);
        writer.put("data.shuffle_window_mib", &self.shuffle_window_mib);
        writer.put("data.placement", &self.placement);
        writer.put("data.prefetch", &self.prefetch);
        writer.put("data.loader_threads", &self.loader_threads);
        writer.put("data.loader_memory_mib", &self.loader_memory_mib);
    }

    /// Whether `weight` names files, rather than a column or array.
    pub(super) fn is_weight_files(&self) -> bool {
        self.weight.as_deref().is_some_and(|weight| is_files_beside(weight, self.format.name()))
    }
}

/// Whether `data.weight` names files, rather than a column or array: files may move, as next to npy and IDX; the name of a column or
/// array is part of the run.
/// Whether weights next to rows of the format are files.
pub(super) fn is_files_beside(weight: &str, format: &str) -> bool {
    let is_beside = |name: &str| ["npy", "idx"].contains(&name);
    is_beside(format)
        || weight.contains('/')
        || format_by_name(Path::new(weight)).is_some_and(|format| is_beside(format.name()))
}

fn eval(raw: &RawConfig, train: &str) -> Result<EvalSource> {
    if let Some(split) = raw.given("data.split") {
        return Ok(EvalSource::Split(Split::read(split, raw.given("data.eval_fraction"))?));
    }
    let fraction = raw.optional("data.eval_fraction")?;
    Ok(match (raw.optional::<String>("data.eval")?, fraction) {
        (_, Some(fraction)) => EvalSource::Fraction(fraction),
        (Some(source), _) if source == "none" => EvalSource::None,
        (Some(source), _) => EvalSource::Source(source),
        // A built-in set brings its own test rows.
        (None, None) if train.starts_with("builtin:") => EvalSource::Source(train.to_owned()),
        (None, None) => EvalSource::Unset,
    })
}

/// Whether single rows are drawn class by class; the column of a split decides alone.
fn stratify(raw: &RawConfig, eval: &EvalSource) -> Result<bool> {
    let stratify = raw.get("data.stratify")?;
    match (eval, raw.given("data.stratify")) {
        (EvalSource::Split(_), Some(setting)) if stratify => Err(setting
            .bad("false or absent next to `data.split`", "the column of the split decides, not the classes")),
        (EvalSource::Split(_), _) => Ok(false),
        _ => Ok(stratify),
    }
}

/// The task, and whether the targets decide on it.
fn task(raw: &RawConfig, train: &str) -> Result<(Task, bool)> {
    Ok(match raw.get_or("data.task", TaskSetting::Auto)? {
        TaskSetting::Task(task) => (task, false),
        // Only classes are counted, and the built-in sets hold classes.
        TaskSetting::Auto
            if raw.given("data.classes").is_some()
                || class_order::is_given(raw)
                || train.starts_with("builtin:") =>
        {
            (Task::Classification, false)
        }
        TaskSetting::Auto => task_of_loss(raw)?.map_or((Task::Classification, true), |task| (task, false)),
    })
}

fn target(raw: &RawConfig, task: Task, auto_task: bool) -> Result<Vec<String>> {
    let target: Vec<String> = raw.get("data.target")?;
    let Some(setting) = raw.given("data.target") else { return Ok(target) };
    for (i, name) in target.iter().enumerate() {
        if target[..i].contains(name) {
            return Err(setting.bad("each column once", format!("remove one `{name}`")));
        }
    }
    if task == Task::Classification && !auto_task && target.len() > 1 {
        return Err(setting.bad(
            "one column for task \"classification\"",
            "set `data.task` to \"regression\" or \"multilabel\" for several targets",
        ));
    }
    Ok(target)
}

fn classes(raw: &RawConfig, task: Task) -> Result<Option<usize>> {
    match raw.given("data.classes") {
        Some(setting) if task != Task::Classification => {
            Err(setting
                .bad(format!("absent for task \"{task}\""), "only task \"classification\" has classes"))
        }
        _ => raw.optional("data.classes"),
    }
}

fn shuffle_window_mib(raw: &RawConfig) -> Result<usize> {
    let memory: usize = raw.get("data.loader_memory_mib")?;
    let max_window = (memory / 2).max(1);
    let Some(setting) = raw.setting("data.shuffle_window_mib") else { return Ok(max_window.min(64)) };
    let window = usize::read(&setting)?;
    let is_typed = matches!(setting.origin, Origin::Set(_));
    if window > max_window && !is_typed && raw.get::<ShuffleMode>("data.shuffle_mode")? == ShuffleMode::Full {
        // Not used. A saved config holds the window that fitted the memory of that time.
        return Ok(max_window);
    }
    if window > max_window {
        // The setting of the command line is the one that the user can take back.
        if let Some(memory) = raw.given("data.loader_memory_mib")
            && matches!(memory.origin, Origin::Set(_))
            && !is_typed
        {
            let expected = format!("at least twice `data.shuffle_window_mib`, {} MiB", 2 * window);
            return Err(memory.bad(expected, "one window is read while another one is used"));
        }
        let expected = format!("at most half of `data.loader_memory_mib`, {max_window} MiB");
        return Err(setting.bad(expected, "one window is read while another one is used"));
    }
    Ok(window)
}
