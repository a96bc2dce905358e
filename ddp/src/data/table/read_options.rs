//! Settings of a source that concern the form of its files.

use super::source::ReadOptions;
use crate::data::source::SourceSpec;

impl<'a> SourceSpec<'a> {
    /// Settings for reading the files.
    pub(crate) fn read_options(&self) -> ReadOptions<'a> {
        ReadOptions {
            delimiter: self.data.delimiter,
            header: self.data.header,
            decimal: self.data.decimal,
            missing_values: &self.data.missing_values,
            memory_bytes: self.memory_bytes,
        }
    }
}
