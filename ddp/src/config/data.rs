//! `[data]`: the rows, and the meaning of their columns.

use std::path::Path;

use super::data_format::{DataFormat, format_by_name};
use super::data_values::{
    Encode, FingerprintKind, Missing, MissingTarget, Normalize, NormalizeTarget, Placement, ShuffleMode,
    Task, UnknownLabel,
};
use super::error::Result;
use super::key::{Before, Key, Kind, Lookup, Range, count, key, number, one_of, switch, text};
use super::limits::MAX_WIDTH;
use super::loss_kind::task_of_loss;
use super::origin::Origin;
use super::raw::RawConfig;
use super::split::{SPLIT_KEYS, Split};
use super::table_text::{Datetime, Decimal, Delimiter};
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
    /// Column names of the targets; one for classification.
    pub target: Vec<String>,
    /// Kind of the targets.
    pub task: Task,
    /// Whether the targets decide on `task`, which is provisional until [`load`](crate::data::load) has read them.
    pub auto_task: bool,
    /// Number of classes, whose labels are the numbers from 0; `None` means the labels of the training rows.
    pub classes: Option<usize>,
    /// Treatment of evaluation rows whose label is no class.
    pub unknown_label: UnknownLabel,
    /// Treatment of rows without a target.
    pub missing_target: MissingTarget,
    /// Whether `eval_fraction` takes the same part of each class.
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
    /// This part of the training rows, in (0, 1), drawn by the seed and taken out of training.
    Fraction(f64),
    /// The training rows that a column decides on, taken out of training.
    Split(Split),
}

/// The values of `data.task`.
#[derive(Clone, Copy, PartialEq)]
enum TaskSetting {
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

/// Default of `data.features_key`.
pub(crate) const DEFAULT_FEATURES_KEY: &str = "features";
/// Default of `data.labels_key`.
pub(crate) const DEFAULT_LABELS_KEY: &str = "labels";

const COLUMN_HINT: &str = "a column is a feature, a target, the weight, or left out";

pub(super) const KEYS: &[Key] = &[
    text("data.train")
        .help("Training rows: builtin:NAME, a file, a folder, or a pattern of files")
        .default(r#""builtin:digits""#)
        .may_change(),
    text("data.labels")
        .help("Labels of data.train in files of their own (npy, IDX): a file or a pattern")
        .absent("labels are next to the features")
        .example(r#""y.npy""#)
        .may_change(),
    text("data.eval")
        .help("Rows to evaluate on: builtin:NAME, a file, a folder, a pattern of files, or none")
        .default_depends("test rows of a built-in data set or next to the training rows (x_test in npz, t10k of MNIST), else none")
        .example(r#""builtin:digits""#)
        .synonyms(&["test", "valid", "validation"])
        .may_change(),
    text("data.eval_labels")
        .help("Labels of data.eval in files of their own (npy, IDX): a file or a pattern")
        .absent("labels are next to the features")
        .example(r#""y_test.npy""#)
        .may_change(),
    text("data.eval_weight")
        .help("Weights of data.eval in files of their own (npy, IDX): a file or a pattern")
        .absent("not set")
        .example(r#""w_test.npy""#)
        .may_change(),
    number(
        "data.eval_fraction",
        Range::between(0.0, 1.0, "a fraction between 0 and 1, both excluded"),
    )
    .help("Part of the training rows to evaluate on, drawn by the seed and taken out of training")
    .absent("data.eval applies")
    .example("0.2")
    .hint("0.2 evaluates on a fifth of the rows")
    .synonyms(&["val_fraction", "test_fraction", "test_size", "validation_split", "val_split"])
    .instead_of(
        "data.eval",
        "`eval` names rows to evaluate on, `eval_fraction` takes them out of the training rows",
    ),
    key("data.split", Kind::Table(SPLIT_KEYS))
        .help("Column by which rows are taken out of training to evaluate on: of the values `eval`, or with data.eval_fraction whole groups or the last rows by time; it is no feature")
        .absent("data.eval_fraction draws single rows")
        .example(r#"{ column = "fold", eval = "test" }"#)
        .synonyms(&["group_by", "split_column"])
        .instead_of("data.eval", "`eval` names rows to evaluate on, `split` takes them out of the training rows"),
    one_of("data.format", DataFormat::NAMES)
        .help("Format of the files; \"auto\" goes by their first bytes and their names")
        .default(r#""auto""#),
    text("data.features_key").help("Name of the features in npz and safetensors files").default(r#""features""#),
    text("data.labels_key").help("Name of the labels in npz and safetensors files").default(r#""labels""#),
    key("data.target", Kind::Texts { may_be_empty: false })
        .help("Column names of the targets; one for classification")
        .default(r#""label""#)
        .synonyms(&["label", "targets"]),
    one_of("data.task", TaskSetting::NAMES)
        .help("Kind of the targets; \"auto\" takes text, truth values and up to 20 distinct integers for classes")
        .default_depends("auto; classification for built-in sets and where data.classes is set")
        .example(r#""regression""#)
        .before(Before::Value(r#""classification""#)),
    count("data.classes", 2, MAX_WIDTH)
        .help("Number of classes, whose labels are the numbers from 0")
        .absent("the labels of the training rows")
        .example("10")
        .hint("leave it out to take it from the data")
        .synonyms(&["num_classes", "n_classes"]),
    one_of("data.unknown_label", UnknownLabel::NAMES)
        .help("Treatment of evaluation rows whose label does not occur in training: an error, or leave them out")
        .default(r#""error""#)
        .may_change(),
    one_of("data.missing_target", MissingTarget::NAMES)
        .help("Treatment of rows of tables without a target: an error, or leave them out")
        .default(r#""error""#)
        .example(r#""skip""#)
        .synonyms(&["missing_label", "drop_missing_target"]),
    switch("data.stratify")
        .help("Whether data.eval_fraction takes the same part of each class")
        .default("true")
        .before(Before::Value("false")),
    text("data.weight")
        .help("Weight of a row in loss and metrics: a column, an array's name, or an npy file next to data.train")
        .absent("all rows weigh the same")
        .example(r#""weight""#)
        .synonyms(&["sample_weight", "weights"])
        .may_change_if(|ours, theirs| names_weight_files(ours) && names_weight_files(theirs), "if it names files"),
    key("data.drop", Kind::Texts { may_be_empty: true })
        .help("Columns that are not features")
        .default("[]")
        .example(r#"["id"]"#)
        .synonyms(&["drop_columns", "exclude"]),
    key("data.categorical", Kind::Texts { may_be_empty: true })
        .help("Columns whose values are names rather than quantities")
        .default("[]")
        .example(r#"["city"]"#)
        .synonyms(&["categories", "cat_features"]),
    one_of("data.encode", Encode::NAMES)
        .help("Encoding of categories: a column per value, or a learned table")
        .default(r#""one_hot""#),
    count("data.embedding_dim", 0, 1 << 12)
        .help("Width of a category's embedding; 0 for one that grows with the number of values")
        .default("0")
        .example("8")
        .hint("0 chooses one"),
    one_of("data.missing", Missing::NAMES)
        .help("Replacement of missing values; mean and zero also add a column that marks them")
        .default(r#""error""#)
        .example(r#""mean""#)
        .synonyms(&["na"]),
    key("data.missing_values", Kind::AnyTexts)
        .help("Texts and numbers that mark a missing value in tables, besides null, an empty cell, NA, N/A, NaN, None, - and ?; with \"\" among them only those listed do")
        .default("[]")
        .example(r#"["-999", "unknown"]"#)
        .synonyms(&["na_values", "null_values"]),
    one_of("data.delimiter", Delimiter::NAMES)
        .help("Delimiter of the cells in text files, \"whitespace\" for runs of blanks; \"auto\" finds it in the first rows")
        .default(r#""auto""#)
        .synonyms(&["sep", "separator"]),
    one_of("data.decimal", Decimal::NAMES)
        .help("Mark before the fraction of a number in text files, where the other one may separate thousands; \"auto\" finds it in the first rows")
        .default(r#""auto""#)
        .synonyms(&["thousands", "decimal_mark"]),
    one_of("data.datetime", Datetime::NAMES)
        .help("Dates as features: seconds since 1970, or year, month, day, weekday, hour, minute and second")
        .default(r#""seconds""#)
        .synonyms(&["dates", "parse_dates"]),
    one_of("data.normalize", Normalize::NAMES)
        .help("Normalisation of the features, fitted on the training rows; \"auto\" is standard for tables, none for arrays and built-in sets")
        .default(r#""auto""#)
        .before(Before::Value(r#""none""#))
        .example(r#""standard""#),
    one_of("data.normalize_target", NormalizeTarget::NAMES)
        .help("Normalisation of the targets in regression, fitted on the training rows and undone in predictions; losses are in its units")
        .default(r#""standard""#)
        .before(Before::Value(r#""none""#)),
    one_of("data.fingerprint", FingerprintKind::NAMES)
        .help("Values that a resumed run compares: all, or a sample of arrays on disk; \"auto\" is full where statistics read all rows anyway")
        .default(r#""auto""#)
        .before(Before::Value(r#""sampled""#))
        .example(r#""full""#),
    switch("data.shuffle").help("Visit the training rows in a new order each epoch").default("true"),
    one_of("data.shuffle_mode", ShuffleMode::NAMES)
        .help("Move rows anywhere (full), or in blocks of neighbouring rows, for data on disk (blocks)")
        .default(r#""full""#),
    count("data.shuffle_window_mib", 1, 1 << 20)
        .help("Size of the window within which shuffle_mode = \"blocks\" mixes rows, in MiB")
        .default_depends("64, at most half of data.loader_memory_mib")
        .example("64")
        .hint("64 is a good start")
        .may_change_if(|ours, theirs| shuffles_anywhere(ours) && shuffles_anywhere(theirs), "if shuffle_mode is \"full\""),
    one_of("data.placement", Placement::NAMES)
        .help("Place where rows wait for their step: host or GPU; auto takes the GPU if there is room")
        .default(r#""auto""#)
        .may_change(),
    count("data.prefetch", 1, 1024)
        .help("Batches that are prepared ahead of the step")
        .default("4")
        .hint("4 is a good start")
        .synonyms(&["prefetch_factor"])
        .may_change(),
    count("data.loader_threads", 0, 256)
        .help("Threads that prepare batches; 0 for as many as fit")
        .default("0")
        .example("2")
        .hint("0 takes as many as fit")
        .synonyms(&["num_workers", "workers"])
        .may_change(),
    count("data.loader_memory_mib", 1, 1 << 30)
        .help("Host memory for a rank's rows, in MiB")
        .default("1024")
        .hint("1024 is 1 GiB a rank")
        .may_change(),
];

impl DataConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let train: String = raw.get("data.train")?;
        let eval = eval(raw, &train)?;
        let (task, auto_task) = task(raw, &train)?;
        let data = DataConfig {
            target: target(raw, task, auto_task)?,
            classes: classes(raw, task)?,
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
                Err(setting.bad("a column that is no target", COLUMN_HINT))
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
                Err(setting.bad(expected, "the column of a split is no feature, target or weight"))
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
        match self.target.as_slice() {
            [one] => writer.put("data.target", one),
            _ => writer.put("data.target", &self.target),
        }
        let task = if self.auto_task { TaskSetting::Auto } else { TaskSetting::Task(self.task) };
        writer.put("data.task", &task);
        writer.put_optional("data.classes", self.classes.as_ref());
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
fn names_weight_files(value: Lookup<'_>) -> bool {
    let text = |key: &str| Some(value(key)?.as_str()?.to_owned());
    let Some(weight) = text("data.weight") else { return false };
    is_files_beside(&weight, &text("data.format").unwrap_or_default())
}

/// Whether weights next to rows of the format are files.
fn is_files_beside(weight: &str, format: &str) -> bool {
    let is_beside = |name: &str| ["npy", "idx"].contains(&name);
    is_beside(format)
        || weight.contains('/')
        || format_by_name(Path::new(weight)).is_some_and(|format| is_beside(format.name()))
}

/// Whether the window is not used.
fn shuffles_anywhere(value: Lookup<'_>) -> bool {
    value("data.shuffle_mode").is_some_and(|mode| mode.as_str() == Some(ShuffleMode::Full.name()))
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
        TaskSetting::Auto if raw.given("data.classes").is_some() || train.starts_with("builtin:") => {
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
