//! Rows to convert, as selected by the arguments.

use ddp::config::DataConfig;
use ddp_tables::formats::arrays::reader::SplitSide;
use ddp_tables::source::{ClassLabels, SourceSpec};

/// Rows to convert.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) data: &'a DataConfig,
    /// File of labels.
    pub(super) labels: Option<&'a str>,
    pub(super) side: SplitSide,
    /// Whether the user named the targets.
    pub(super) has_target: bool,
}

impl<'a> Input<'a> {
    pub(super) fn spec(&self) -> SourceSpec<'a> {
        let classes = ClassLabels::AsStored;
        SourceSpec { labels: self.labels, side: self.side, classes, ..SourceSpec::train(self.data) }
    }
}
