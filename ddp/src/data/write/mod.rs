//! Writing rows to files: shared by the writers of all formats.
//!
//! A caller fits a [`Schema`] to the format, opens a [`RowWriter`] per file and passes it chunks of rows. Files keep temporary
//! names in a [`Staging`] until all of them are complete.

mod chunk;
mod encode;
mod schema;
mod staging;
mod text_file;
mod writer;

pub(crate) use chunk::{Chunk, Targets};
pub(crate) use schema::{CategoryStorage, Schema, Storage};
pub(crate) use staging::Staging;
pub(crate) use text_file::{TextFile, put_number};
pub(crate) use writer::{OutFiles, RowWriter, TextWriter, WriteFormat};
