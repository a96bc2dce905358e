//! Errors of data, one file per kind; their union is [`DataError`](super::error::DataError).

#[doc(hidden)]
pub mod foreign;
#[doc(hidden)]
pub mod formatted;
pub(crate) mod cell_problem;
pub(crate) mod column_error;
pub mod csv_error;
pub(crate) mod split_error;
pub(crate) mod target_error;
pub(crate) mod tensor_rows_error;
