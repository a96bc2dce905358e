//! Values of columns: types of elements, strings, dates and times, vocabularies of categories, and compressed files.

pub(crate) mod compression;
pub(crate) mod cumulative;
pub mod element;
pub mod texts;
pub mod time;
pub(crate) mod vocabulary;
