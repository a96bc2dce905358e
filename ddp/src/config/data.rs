//! `[data]`: the rows, and the meaning of their columns.

use std::path::Path;

use super::data_sources::{EvalSource, Sources, TaskSetting, class_order};
use super::data_values::{
    Balance, Encode, ExtraColumns, FingerprintKind, Missing, MissingTarget, Normalize, NormalizeTarget,
    Placement, ShuffleMode, Task, UnknownLabel,
};
use super::error::Result;
use super::heads::HeadConfig;
use super::key::{Kind, Lookup, Range, count, key, number, one_of, switch, text};
use super::limits::MAX_WIDTH;
use super::raw::RawConfig;
use super::rows_memory::{host_rows_memory_bytes, mapped_bytes, rows_memory_bytes, shuffle_window_mib};
use super::section::section;
use super::split::{SPLIT_KEYS, Split};
use super::table_text::Datetime;
use super::value::ConfigEnum;
use super::writer::Writer;
use crate::config::table_options::{DataFormat, Decimal, Delimiter, Header, format_by_name};

section! {
    /// `[data]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct DataConfig in "data", read_keys(raw: &RawConfig, sources: &Sources), write_keys {
        /// `builtin:NAME`, a file, a folder, or a pattern of files.
        train: String [sources.train.clone()] = text()
            .help("Training rows: builtin:NAME, a file, a folder, or a pattern of files")
            .default(r#""builtin:digits""#)
            .may_change();

        /// Labels of `train` if they are in separate files (npy, IDX): a file or a pattern.
        labels: Option<String> [optional] = text()
            .help("Labels of data.train in files of their own (npy, IDX): a file or a pattern")
            .absent("labels are next to the features")
            .example(r#""y.npy""#)
            .may_change();

        /// Rows for evaluation.
        eval: EvalSource { sources.eval.clone(), EvalSource::write };

        key eval = text()
            .help("Rows to evaluate on: builtin:NAME, a file, a folder, a pattern of files, or none")
            .default_depends("test rows of a built-in data set or next to the training rows (x_test in npz, t10k of MNIST), else none")
            .example(r#""builtin:digits""#)
            .synonyms(&["test", "valid", "validation"])
            .may_change();

        /// Labels of `eval`, given in the same way as `labels`.
        eval_labels: Option<String> [optional] = text()
            .help("Labels of data.eval in files of their own (npy, IDX): a file or a pattern")
            .absent("labels are next to the features")
            .example(r#""y_test.npy""#)
            .may_change();

        /// Row weights of `eval` if they are in separate files (npy, IDX): a file or a pattern.
        eval_weight: Option<String> [optional] = text()
            .help("Weights of data.eval in files of their own (npy, IDX): a file or a pattern")
            .absent("not set")
            .example(r#""w_test.npy""#)
            .may_change();

        key eval_fraction = number(Range::between(0.0, 1.0, "a fraction between 0 and 1, both excluded"),
        )
        .help("Fraction of the training rows to evaluate on, drawn by the seed and taken out of training")
        .absent("data.eval applies")
        .example("0.2")
        .hint("0.2 evaluates on a fifth of the rows")
        .synonyms(&["val_fraction", "test_fraction", "test_size", "validation_split", "val_split"])
        .instead_of(
            "data.eval",
            "`eval` names rows to evaluate on, `eval_fraction` takes them out of the training rows",
        );

        key fold = text()
            .help("Fold of a cross-validation to evaluate on, as NUMBER/OF: one of equal parts of the training rows, drawn by the seed, of each class alike, or with data.split of whole groups; the others train. By time fold k of K + 1 spans trains on the first k and evaluates the next one")
            .absent("data.eval_fraction or data.eval applies")
            .example(r#""2/5""#)
            .synonyms(&["n_splits", "k_fold", "kfold", "cv"])
            .instead_of("data.eval", "`eval` names rows to evaluate on, `fold` takes them out of the training rows");

        key split = key(Kind::Table(SPLIT_KEYS))
            .help("Column by which rows are taken out of training to evaluate on: of the values `eval`, or with data.eval_fraction whole groups or the last rows by time; it is not a feature")
            .absent("data.eval_fraction draws single rows")
            .example(r#"{ column = "fold", eval = "test" }"#)
            .synonyms(&["group_by", "split_column"])
            .instead_of("data.eval", "`eval` names rows to evaluate on, `split` takes them out of the training rows");

        /// Format of the files.
        format: DataFormat = one_of(DataFormat::NAMES)
            .help("Format of the files; \"auto\" goes by their first bytes and their names")
            .default(r#""auto""#);

        /// Name of the features in npz and safetensors files.
        features_key: String = text().help("Name of the features in npz and safetensors files").default(r#""features""#);

        /// Name of the labels in npz and safetensors files.
        labels_key: String = text().help("Name of the labels in npz and safetensors files").default(r#""labels""#);

        /// Column names of the targets, over all heads; one for classification.
        target: Vec<String> { sources.target(raw)?, no_key };

        key target = key(Kind::Texts { may_be_empty: false })
            .help("Column names of the targets; one for classification")
            .default(r#""label""#)
            .synonyms(&["label", "targets"]);

        /// Groups of targets of different kinds; empty unless the task is [`Task::Heads`].
        heads: Vec<HeadConfig> { sources.heads.clone(), no_key };

        /// Kind of the targets.
        task: Task { sources.task, no_key };

        /// Whether the target values determine `task`; it is provisional until the rows are read.
        auto_task: bool { sources.auto_task, no_key };

        key task = one_of(TaskSetting::NAMES)
            .help("Kind of the targets; \"auto\" takes text, truth values and up to 20 distinct integers for classes, and more integers with gaps between them for quantities")
            .default_depends("auto; classification for built-in sets and where data.classes is set")
            .example(r#""regression""#);

        /// Number of classes if the labels are the integers from 0; `None` derives the classes from the labels of the training
        /// rows.
        classes: Option<usize> [optional] = count(2, MAX_WIDTH)
            .help("Number of classes, whose labels are the numbers from 0")
            .absent("the labels of the training rows")
            .example("10")
            .hint("leave it out to take it from the data")
            .synonyms(&["num_classes", "n_classes"]);

        /// Labels in the order of their classes; if empty, numbers are sorted by value, followed by strings sorted by their
        /// bytes.
        class_order: Vec<String> { class_order(raw, &sources.train)?, write_class_order };

        key class_order = key(Kind::Texts { may_be_empty: true })
            .help("Labels in the order of their classes, the lowest first; for loss ordinal, and for reports")
            .default_depends("numbers by value, then texts in alphabetical order")
            .example(r#"["low", "mid", "high"]"#)
            .synonyms(&["label_order", "class_names"]);

        /// Treatment of evaluation rows whose label is not a class.
        unknown_label: UnknownLabel = one_of(UnknownLabel::NAMES)
            .help("Treatment of evaluation rows whose label does not occur in training: an error, or leave them out")
            .default(r#""error""#)
            .may_change();

        /// Condition on the columns of a table for its rows to be used, in training and evaluation.
        filter: Option<String> [optional] = text()
            .help("Condition for the rows of tables that are used, in training and evaluation; the others are not looked at")
            .absent("all rows")
            .example(r#""age >= 18 and country != 'DE'""#)
            .hint("see \"A part of the rows\" in docs/data-formats.md")
            .synonyms(&["where", "query", "row_filter"]);

        /// Most rows of the training data that are used, its first ones.
        max_rows: Option<usize> [optional] = count(1, 1 << 40)
            .help("Use only the first rows of data.train, of those that data.filter keeps; rows to evaluate on are taken out of them")
            .absent("all rows")
            .example("100000")
            .hint("leave it out to use all rows")
            .synonyms(&["nrows", "n_rows", "num_rows", "n_samples", "limit_rows", "max_train_samples", "max_samples"]);

        /// Treatment of rows without a target.
        missing_target: MissingTarget = one_of(MissingTarget::NAMES)
            .help("Treatment of rows of tables without a target: an error, or leave them out")
            .default(r#""error""#)
            .example(r#""skip""#)
            .synonyms(&["missing_label", "drop_missing_target"]);

        /// Treatment of columns of evaluation rows that the training rows lack.
        extra_columns: ExtraColumns = one_of(ExtraColumns::NAMES)
            .help("Treatment of columns that the training rows lack, in tables to evaluate or predict: leave them out with a note, or an error")
            .default(r#""ignore""#)
            .example(r#""error""#)
            .may_change();

        /// Whether `eval_fraction` takes the same fraction of each class; if a column defines the split, it alone decides.
        stratify: bool [raw.get::<bool>("data.stratify")? && !matches!(sources.eval, EvalSource::Split(_))] = switch()
            .help("Whether data.eval_fraction takes the same fraction of each class")
            .default("true");

        /// Weight of a row in the loss and the metrics: a column, the name of an array, or an npy file with the weights of
        /// `train`.
        weight: Option<String> [optional] = text()
            .help("Weight of a row in loss and metrics: a column, an array's name, or an npy file next to data.train")
            .absent("all rows weigh the same")
            .example(r#""weight""#)
            .synonyms(&["sample_weight", "weights"])
            .may_change_if(|ours, theirs| names_weight_files(ours) && names_weight_files(theirs), "if it names files");

        /// Columns that are not features.
        drop: Vec<String> = key(Kind::Texts { may_be_empty: true })
            .help("Columns that are not features")
            .default("[]")
            .example(r#"["id"]"#)
            .synonyms(&["drop_columns", "exclude", "ignore", "ignore_columns"]);

        /// Columns whose values are names rather than quantities.
        categorical: Vec<String> = key(Kind::Texts { may_be_empty: true })
            .help("Columns whose values are names rather than quantities")
            .default("[]")
            .example(r#"["city"]"#)
            .synonyms(&["categories", "cat_features"]);

        /// Encoding of a category for the model.
        encode: Encode = one_of(Encode::NAMES)
            .help("Encoding of categories: a column per value, or a learned table")
            .default(r#""one_hot""#);

        /// Width of a category's embedding; `None` chooses a width that grows with the number of values.
        embedding_dim: Option<usize> { Some(raw.get("data.embedding_dim")?).filter(|dim| *dim > 0), write_embedding_dim };

        key embedding_dim = count(0, 1 << 12)
            .help("Width of a category's embedding; 0 for one that grows with the number of values")
            .default("0")
            .example("8")
            .hint("0 chooses one");

        /// Training rows that a value of a category needs to be known; 0 chooses.
        category_min_rows: u64 = count(0, 1 << 32)
            .help("Training rows that a value of a category needs to have a column or a row of its own; rarer ones share that of unknown values; 0 for 2 with embeddings, else 1")
            .default("0")
            .example("10")
            .hint("1 keeps all values")
            .synonyms(&["min_frequency", "min_count"]);

        /// Replacement of a missing value.
        missing: Missing = one_of(Missing::NAMES)
            .help("Replacement of missing values; mean and zero also add a column that marks them")
            .default(r#""error""#)
            .example(r#""mean""#)
            .synonyms(&["na"]);

        /// Strings that mark a missing value, in addition to the usual ones.
        missing_values: Vec<String> = key(Kind::AnyTexts)
            .help("Texts and numbers that mark a missing value in tables, besides null, an empty cell, NA, N/A, NaN, None, - and ?; with \"\" among them only those listed do")
            .default("[]")
            .example(r#"["-999", "unknown"]"#)
            .synonyms(&["na_values", "null_values"]);

        /// Whether the first line of a text file names the columns.
        header: Header = key(Kind::BoolOr("auto"))
            .help("Whether the first line of text files names the columns; else they are column_1, column_2 and so on; \"auto\" refuses a first line that looks like a row")
            .default(r#""auto""#)
            .example("false")
            .hint("false reads the first line as a row, true takes it for the names of the columns")
            .synonyms(&["has_header", "no_header", "names"]);

        /// Delimiter of the cells of a text file.
        delimiter: Delimiter = one_of(Delimiter::NAMES)
            .help("Delimiter of the cells in text files, \"whitespace\" for runs of blanks; \"auto\" finds it in the first rows")
            .default(r#""auto""#)
            .synonyms(&["sep", "separator"]);

        /// Decimal mark of numbers in a text file.
        decimal: Decimal = one_of(Decimal::NAMES)
            .help("Mark before the fraction of a number in text files, where the other one may separate thousands; \"auto\" finds it in the first rows")
            .default(r#""auto""#)
            .synonyms(&["thousands", "decimal_mark"]);

        /// Features that a column of dates is converted to.
        datetime: Datetime = one_of(Datetime::NAMES)
            .help("Dates as features: seconds since 1970, or year, month, day, weekday, hour, minute and second")
            .default(r#""seconds""#)
            .synonyms(&["dates", "parse_dates"]);

        /// Normalization of the features.
        normalize: Normalize = one_of(Normalize::NAMES)
            .help("Normalization of the features, fitted on the training rows; \"robust\" is by median and quartiles, \"auto\" is robust for model.kind \"periodic_mlp\", else standard for tables, none for arrays and built-in sets")
            .default(r#""auto""#)
            .example(r#""standard""#);

        /// Normalization of the targets in regression.
        normalize_target: NormalizeTarget = one_of(NormalizeTarget::NAMES)
            .help("Normalization of the targets in regression, fitted on the training rows and undone in predictions; losses are in its units")
            .default(r#""standard""#);

        /// Values that are included in the fingerprint of the rows.
        fingerprint: FingerprintKind = one_of(FingerprintKind::NAMES)
            .help("Values that a resumed run compares: all, or a sample of arrays on disk; \"auto\" is full where statistics read all rows anyway")
            .default(r#""auto""#)
            .example(r#""full""#);

        /// Whether each epoch visits the training rows in a new order.
        shuffle: bool = switch().help("Visit the training rows in a new order each epoch").default("true");

        /// Rows of an epoch by class.
        balance: Balance = one_of(Balance::NAMES)
            .help("Rows of an epoch: each training row once, or as many of each class as of the most frequent one, by repeating the others")
            .default(r#""none""#)
            .example(r#""classes""#)
            .synonyms(&["oversample", "over_sampling", "class_balance", "sampler"]);

        /// Distance over which the shuffle moves rows.
        shuffle_mode: ShuffleMode = one_of(ShuffleMode::NAMES)
            .help("Move rows anywhere (full), or in blocks of neighboring rows, for data on disk (blocks)")
            .default(r#""full""#);

        /// Size in MiB of the window within which `shuffle_mode = "blocks"` mixes rows.
        shuffle_window_mib: usize [shuffle_window_mib(raw)?] = count(1, 1 << 20)
            .help("Size of the window within which shuffle_mode = \"blocks\" mixes rows, in MiB")
            .default_depends("64, at most half of the memory for rows")
            .example("64")
            .hint("64 is a good start")
            .may_change_if(|ours, theirs| shuffles_anywhere(ours) && shuffles_anywhere(theirs), "if shuffle_mode is \"full\"");

        /// Location of rows until their step.
        placement: Placement = one_of(Placement::NAMES)
            .help("Place where rows wait for their step: host or GPU; auto takes the GPU if there is room")
            .default(r#""auto""#)
            .may_change();

        /// Number of batches that are prepared ahead of the step, at least 1.
        prefetch: usize = count(1, 1024)
            .help("Batches that are prepared ahead of the step")
            .default("4")
            .hint("4 is a good start")
            .synonyms(&["prefetch_factor"])
            .may_change();

        /// Number of threads that prepare batches; 0 uses as many as fit.
        loader_threads: usize = count(0, 256)
            .help("Threads that prepare batches; 0 for as many as fit")
            .default("0")
            .example("2")
            .hint("0 takes as many as fit")
            .synonyms(&["num_workers", "workers"])
            .may_change();

        /// Host memory for a rank's rows, in MiB; 0 chooses by the memory of the container or machine.
        loader_memory_mib: usize = count(0, 1 << 30)
            .help("Host memory for a rank's rows, in MiB; 0 for a quarter of its share of the container or machine, of all of it for a table that ranks of a host hold together")
            .default("0")
            .example("1024")
            .hint("0 chooses by the memory of the container or machine")
            .may_change();

        /// Folder that keeps tables as they were read.
        cache: Option<String> [optional] = text()
            .help("Folder that keeps tables as they were read, so that later starts map them instead of reading them")
            .absent("nothing is kept")
            .example(r#""cache""#)
            .may_change();
    }
}

/// Hint for a name that can't be used as a column.
pub(super) const COLUMN_HINT: &str = "a column is a feature, a target, the weight, or left out";
/// Default of `data.features_key`.
pub const DEFAULT_FEATURES_KEY: &str = "features";
/// Default of `data.labels_key`.
pub const DEFAULT_LABELS_KEY: &str = "labels";

/// Training rows that a value needs to have a row of an embedding of its own, where the config leaves the choice.
const EMBEDDED_MIN_ROWS: u64 = 2;

impl DataConfig {
    /// Training rows that a value of a category needs to be known.
    pub fn min_category_rows(&self) -> u64 {
        match (self.category_min_rows, self.encode) {
            (0, Encode::Embedding) => EMBEDDED_MIN_ROWS,
            (0, Encode::OneHot) => 1,
            (n, _) => n,
        }
    }

    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let data = DataConfig::read_keys(raw, &Sources::read(raw)?)?;
        data.check_weights(raw)?;
        data.check_columns(raw)?;
        data.check_split(raw)?;
        Ok(data)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        self.write_keys(writer);
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
    }

    fn has_eval_files(&self) -> bool {
        matches!(&self.eval, EvalSource::Source(source) if !source.starts_with("builtin:"))
    }

    /// Refuses labels of evaluation rows that have no files. Saved configs of earlier versions may hold them.
    pub(super) fn check_eval_labels(&self, raw: &RawConfig) -> Result<()> {
        match raw.given("data.eval_labels") {
            Some(setting) if !self.has_eval_files() => Err(setting.bad(
                "absent without files in `data.eval`",
                "name the rows of these labels in `data.eval`; rows that are taken out of the training rows have the labels of `data.labels`",
            )),
            _ => Ok(()),
        }
    }

    fn check_weights(&self, raw: &RawConfig) -> Result<()> {
        if let Some(setting) = raw.given("data.eval_weight")
            && !self.has_eval_files()
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

    /// Checks that each column has only one use.
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

    /// Checks that the column of `data.split` has no other use.
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
            EvalSource::Unset | EvalSource::None | EvalSource::Source(_) => None,
            EvalSource::Fraction(_) | EvalSource::Fold(_) => None,
        }
    }

    /// Whether the evaluation rows are taken out of the training rows.
    pub fn holds_out(&self) -> bool {
        matches!(self.eval, EvalSource::Fraction(_) | EvalSource::Fold(_) | EvalSource::Split(_))
    }

    /// Host memory for a rank's rows, in bytes; less than configured where the container allows less.
    pub fn rows_memory_bytes(&self) -> u64 {
        rows_memory_bytes(self.loader_memory_mib)
    }

    /// Host memory for rows that the ranks of a host hold together, in bytes.
    pub fn host_rows_memory_bytes(&self) -> u64 {
        host_rows_memory_bytes(self.loader_memory_mib)
    }

    /// Bytes of a source's files that are mapped rather than read in pieces.
    pub fn mapped_bytes(&self) -> u64 {
        mapped_bytes(self.loader_memory_mib)
    }

    /// Whether `weight` names files, rather than a column or array.
    pub(super) fn is_weight_files(&self) -> bool {
        self.weight.as_deref().is_some_and(|weight| is_files_beside(weight, self.format.name()))
    }
}

/// Whether `data.weight`, next to rows of this `format`, names files rather than a column or array.
pub(super) fn is_files_beside(weight: &str, format: &str) -> bool {
    let is_beside = |name: &str| ["npy", "idx"].contains(&name);
    is_beside(format)
        || weight.contains('/')
        || format_by_name(Path::new(weight)).is_some_and(|format| is_beside(format.name()))
}

/// Writer of a field whose value other fields write.
fn no_key<T>(_: &T, _: &mut Writer) {}

fn write_class_order(order: &[String], writer: &mut Writer) {
    if !order.is_empty() {
        writer.put("data.class_order", &order.to_vec());
    }
}

fn write_embedding_dim(dim: &Option<usize>, writer: &mut Writer) {
    writer.put("data.embedding_dim", &dim.unwrap_or(0));
}

fn names_weight_files(value: Lookup<'_>) -> bool {
    let text = |key: &str| Some(value(key)?.as_str()?.to_owned());
    let Some(weight) = text("data.weight") else { return false };
    is_files_beside(&weight, &text("data.format").unwrap_or_default())
}

/// Whether the shuffle moves rows over the whole data, so that the window is not used.
fn shuffles_anywhere(value: Lookup<'_>) -> bool {
    value("data.shuffle_mode").is_some_and(|mode| mode.as_str() == Some(ShuffleMode::Full.name()))
}
