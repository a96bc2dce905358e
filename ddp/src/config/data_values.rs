//! Values of `[data]`'s keys that are names.

use super::value::config_enum;

config_enum! {
    /// Encoding of a category for the model.
    pub enum Encode {
        /// One column per value: 1 in the rows that have this value, else 0.
        OneHot = "one_hot",
        /// A row of a learned table.
        Embedding = "embedding",
    }
}

config_enum! {
    /// Treatment of evaluation rows whose label does not occur in training.
    pub enum UnknownLabel {
        /// Fails with an error that names the first unknown label.
        Error = "error",
        /// Skips these rows and reports their number.
        Skip = "skip",
    }
}

config_enum! {
    /// Treatment of table rows without a target.
    pub enum MissingTarget {
        /// Fails with an error that names the first such row.
        Error = "error",
        /// Skips these rows and reports their number.
        Skip = "skip",
    }
}

config_enum! {
    /// Rows of an epoch by class.
    pub enum Balance {
        /// Each training row once.
        None = "none",
        /// Equal counts: rows of all classes but the most frequent one are repeated.
        Classes = "classes",
    }
}

config_enum! {
    /// Treatment of columns that the rows to evaluate or predict have and a model does not know.
    pub enum ExtraColumns {
        /// Leaves them out and reports their names.
        Ignore = "ignore",
        /// Fails with an error that names the first such column.
        Error = "error",
    }
}

config_enum! {
    /// Replacement of a missing value.
    pub enum Missing {
        /// No replacement: fails with an error that names the place of the value.
        Error = "error",
        /// The mean of the column over the training rows, plus an indicator column that is 1 for missing values.
        Mean = "mean",
        /// The value 0, plus an indicator column that is 1 for missing values.
        Zero = "zero",
    }
}

config_enum! {
    /// Distance over which the shuffle moves rows.
    pub enum ShuffleMode {
        /// Any row can move to any position.
        Full = "full",
        /// Blocks of neighboring rows can move to any position, single rows only within a window of such blocks; for disks and
        /// Parquet.
        Blocks = "blocks",
    }
}

config_enum! {
    /// Location of rows until their step.
    pub enum Placement {
        /// On the GPU if they fit, else on the host.
        Auto = "auto",
        /// On the host; batches are copied to the GPU.
        Host = "host",
        /// On the GPU, where batches are gathered; an error if the rows do not fit.
        Device = "device",
    }
}

config_enum! {
    /// Kind of a row's targets.
    pub enum Task {
        /// One class index in `0..classes`.
        Classification = "classification",
        /// One real number for each target column.
        Regression = "regression",
        /// 0 or 1 for each target column.
        Multilabel = "multilabel",
        /// Several heads, each with a task of its own.
        Heads = "heads",
    }
}

config_enum! {
    /// Normalization of features, fitted on the training rows.
    pub enum Normalize {
        /// [`Normalize::Standard`] for tables, [`Normalize::None`] for arrays and built-in sets.
        Auto = "auto",
        /// Features as they are.
        None = "none",
        /// Mean 0, standard deviation 1 (population).
        Standard = "standard",
        /// Smallest value 0, largest 1.
        MinMax = "minmax",
        /// Median 0, interquartile range 1.
        Robust = "robust",
    }
}

config_enum! {
    /// Normalization of the targets in regression, fitted on the training rows and undone in predictions.
    pub enum NormalizeTarget {
        /// Mean 0, standard deviation 1 (population).
        Standard = "standard",
        /// Targets as they are.
        None = "none",
    }
}

config_enum! {
    /// Values that are included in the fingerprint of the rows.
    pub enum FingerprintKind {
        /// All values if computing the statistics of the training rows reads them anyway, else a sample.
        Auto = "auto",
        /// All values of all rows.
        Full = "full",
        /// All rows in memory; for arrays on disk 1,024 rows.
        Sampled = "sampled",
    }
}
