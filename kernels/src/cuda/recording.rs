//! Points of a stream that are being marked: events, and the labels of those that were recorded.

use cudarc::driver::sys;

/// Events, which others own, and labels of the first of them.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) events: Vec<sys::CUevent>,
    pub(super) labels: Vec<u8>,
    /// Whether there were more marks than events.
    pub(super) is_full: bool,
    /// Whether a graph holds some of the events.
    pub(super) is_captured: bool,
}
