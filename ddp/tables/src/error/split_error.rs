//! Columns by which rows can't be split.

/// A fault of `data.split`, or of its column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum SplitError {
    /// Values that do not say where rows belong.
    #[error("{source_name}: `data.split` by \"{column}\" {reason}; its values are {values}")]
    #[diagnostic(help("{hint}"))]
    Unclear {
        source_name: String,
        column: String,
        /// The end of the sentence.
        reason: String,
        /// The values with their numbers of rows.
        values: String,
        hint: String,
    },
    /// A value in `data.split` that no row has.
    #[error(
        "{source_name}: no row has \"{value}\" in column \"{column}\", a value of `{key}` in `data.split`"
    )]
    #[diagnostic(help("the values are {values}"))]
    Value {
        source_name: String,
        column: String,
        /// `eval` or `train`.
        key: &'static str,
        value: String,
        /// The values with their numbers of rows.
        values: String,
    },
    /// A split by a column that leaves no rows to train on or to evaluate.
    #[error("{source_name}: `data.split` by \"{column}\" leaves no rows to {purpose}: {reason}")]
    #[diagnostic(help("{hint}"))]
    Empty {
        source_name: String,
        column: String,
        /// "evaluate" or "train on".
        purpose: &'static str,
        reason: String,
        hint: String,
    },
}
