//! Columns by which rows can't be split.

/// A fault of `data.split`, or of its column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Values that do not say where rows belong.
    #[error("{source_name}: `data.split` by \"{column}\" {reason}; its values are {values}\nhint: {hint}")]
    Unclear {
        /// The data.
        source_name: String,
        /// The column.
        column: String,
        /// The end of the sentence.
        reason: String,
        /// The values with their numbers of rows.
        values: String,
        /// The remedy.
        hint: String,
    },
    /// A value in `data.split` that no row has.
    #[error(
        "{source_name}: no row has \"{value}\" in column \"{column}\", a value of `{key}` in `data.split`\n\
         hint: the values are {values}"
    )]
    Value {
        /// The data.
        source_name: String,
        /// The column.
        column: String,
        /// `eval` or `train`.
        key: &'static str,
        /// The value.
        value: String,
        /// The values with their numbers of rows.
        values: String,
    },
    /// A split by a column that leaves one part without rows.
    #[error("{source_name}: `data.split` by \"{column}\" leaves no rows to {part}: {reason}\nhint: {hint}")]
    Empty {
        /// The data.
        source_name: String,
        /// The column.
        column: String,
        /// "evaluate" or "train on".
        part: &'static str,
        /// The cause.
        reason: String,
        /// The remedy.
        hint: String,
    },
}
