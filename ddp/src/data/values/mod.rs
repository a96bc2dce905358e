//! Values of columns: types of elements, strings, numbers, dates and times, and vocabularies of categories.

pub(crate) mod cumulative;
pub mod element;
pub mod texts;
pub mod time;
pub mod number;
pub mod notation;
pub(crate) mod vocabulary;
