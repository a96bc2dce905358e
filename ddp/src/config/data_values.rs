//! Values of `[data]`'s keys that are names.

use super::value::config_enum;

config_enum! {
    /// Encoding of a category for the model.
    pub enum Encode {
        /// One column per value: 1 where the row has it, else 0.
        OneHot = "one_hot",
        /// A row of a learned table.
        Embedding = "embedding",
    }
}

config_enum! {
    /// Treatment of evaluation rows whose label does not occur in training.
    pub enum UnknownLabel {
        /// An error that names the first one.
        Error = "error",
        /// They are left out, and their number is reported.
        Skip = "skip",
    }
}

config_enum! {
    /// Treatment of rows of tables without a target.
    pub enum MissingTarget {
        /// An error that names the first one.
        Error = "error",
        /// They are left out, and their number is reported.
        Skip = "skip",
    }
}

config_enum! {
    /// Replacement of a missing value.
    pub enum Missing {
        /// None: an error that names the value's place.
        Error = "error",
        /// The column's mean over the training rows, and a 1 in a column of its own.
        Mean = "mean",
        /// 0, and a 1 in a column of its own.
        Zero = "zero",
    }
}

config_enum! {
    /// Range over which rows move in a new order.
    pub enum ShuffleMode {
        /// Any row to any place.
        Full = "full",
        /// Blocks of neighbouring rows to any place, rows within a window of such blocks: for disks, and for Parquet.
        Blocks = "blocks",
    }
}

config_enum! {
    /// Place where rows wait for their step.
    pub enum Placement {
        /// On the GPU if there is room, else on the host.
        Auto = "auto",
        /// On the host: batches are copied to the GPU.
        Host = "host",
        /// On the GPU, where batches are gathered; an error if there is no room.
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
    /// Normalisation of features, fitted on the training rows.
    pub enum Normalize {
        /// [`Normalize::Standard`] for tables, [`Normalize::None`] for arrays and built-in sets.
        Auto = "auto",
        /// Features as they are.
        None = "none",
        /// Mean 0, standard deviation 1 (population).
        Standard = "standard",
        /// Smallest value 0, largest 1.
        MinMax = "minmax",
        /// Median 0, distance of the quartiles 1.
        Robust = "robust",
    }
}

config_enum! {
    /// Normalisation of the targets in regression, fitted on the training rows and undone in predictions.
    pub enum NormalizeTarget {
        /// Mean 0, standard deviation 1 (population).
        Standard = "standard",
        /// Targets as they are.
        None = "none",
    }
}

config_enum! {
    /// Values that the fingerprint of the rows covers.
    pub enum FingerprintKind {
        /// All values where statistics of the training rows read them anyway, else a sample.
        Auto = "auto",
        /// All values of all rows.
        Full = "full",
        /// All rows in memory; of arrays on disk 1,024 rows.
        Sampled = "sampled",
    }
}
