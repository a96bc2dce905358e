//! Records of text, of any format, as rows to train on.

mod plain;
mod row_error;
mod rows;

pub(super) use rows::TextRows;
