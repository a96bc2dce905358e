//! Errors of data, one file per kind; their union is [`DataError`](super::error::DataError).

pub(crate) mod memory_words;
pub(crate) mod split_error;
pub(crate) mod target_error;
pub(crate) mod tensor_rows_error;
