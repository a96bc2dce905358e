//! The keys of `[data]`.

use super::data::{TaskSetting, is_files_beside};
use super::data_format::DataFormat;
use super::data_values::{
    Encode, FingerprintKind, Missing, MissingTarget, Normalize, NormalizeTarget, Placement, ShuffleMode,
    UnknownLabel,
};
use super::key::{Before, Key, Kind, Lookup, Range, count, key, number, one_of, switch, text};
use super::limits::MAX_WIDTH;
use super::split::SPLIT_KEYS;
use super::table_text::{Datetime, Decimal, Delimiter};
use super::value::ConfigEnum as _;

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
    .help("Fraction of the training rows to evaluate on, drawn by the seed and taken out of training")
    .absent("data.eval applies")
    .example("0.2")
    .hint("0.2 evaluates on a fifth of the rows")
    .synonyms(&["val_fraction", "test_fraction", "test_size", "validation_split", "val_split"])
    .instead_of(
        "data.eval",
        "`eval` names rows to evaluate on, `eval_fraction` takes them out of the training rows",
    ),
    key("data.split", Kind::Table(SPLIT_KEYS))
        .help("Column by which rows are taken out of training to evaluate on: of the values `eval`, or with data.eval_fraction whole groups or the last rows by time; it is not a feature")
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
    key("data.class_order", Kind::Texts { may_be_empty: true })
        .help("Labels in the order of their classes, the lowest first; for loss ordinal, and for reports")
        .default_depends("numbers by value, then texts in alphabetical order")
        .example(r#"["low", "mid", "high"]"#)
        .synonyms(&["label_order", "class_names"]),
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
        .help("Whether data.eval_fraction takes the same fraction of each class")
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
        .synonyms(&["drop_columns", "exclude", "ignore", "ignore_columns"]),
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
    key("data.header", Kind::BoolOr("auto"))
        .help("Whether the first line of text files names the columns; else they are column_1, column_2 and so on; \"auto\" refuses a first line that looks like a row")
        .default(r#""auto""#)
        .example("false")
        .hint("false reads the first line as a row, true takes it for the names of the columns")
        .synonyms(&["has_header", "no_header", "names"])
        .before(Before::Value("true")),
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
        .help("Normalisation of the features, fitted on the training rows; \"robust\" is by median and quartiles, \"auto\" is robust for model.kind \"realmlp\", else standard for tables, none for arrays and built-in sets")
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
        .hint("1024 is 1 GiB per rank")
        .may_change(),
];

fn names_weight_files(value: Lookup<'_>) -> bool {
    let text = |key: &str| Some(value(key)?.as_str()?.to_owned());
    let Some(weight) = text("data.weight") else { return false };
    is_files_beside(&weight, &text("data.format").unwrap_or_default())
}

/// Whether the window is not used.
fn shuffles_anywhere(value: Lookup<'_>) -> bool {
    value("data.shuffle_mode").is_some_and(|mode| mode.as_str() == Some(ShuffleMode::Full.name()))
}
