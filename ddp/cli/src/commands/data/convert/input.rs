//! Rows to convert, as selected by the arguments.

use ddp::config::DataConfig;
use ddp::data::{ClassLabels, SourceSpec, SplitSide};
use ddp_rows::table::types::Destination;

/// Rows to convert.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) data: &'a DataConfig,
    /// File of labels.
    pub(super) labels: Option<&'a str>,
    pub(super) side: SplitSide,
    pub(super) keeps_missing: bool,
    /// Whether the user named the targets.
    pub(super) has_target: bool,
    pub(super) to: Destination,
}

impl<'a> Input<'a> {
    pub(super) fn spec(&self) -> SourceSpec<'a> {
        let classes = ClassLabels::AsStored;
        SourceSpec { labels: self.labels, side: self.side, classes, ..SourceSpec::train(self.data) }
    }
}
