//! The trace of one rank, on its way to rank 0.

use std::borrow::Cow;

use ddp_comm::Slice;
use serde::{Deserialize, Serialize};

use super::clocks::Readings;

/// The trace of one rank, as it travels to rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RankTrace {
    pub(super) host: String,
    pub(super) device: String,
    /// Readings of the clock at the begin of the trace and at its end.
    pub(super) clocks: [Readings; 2],
    /// Largest error of times of the device against the host's clock, in s.
    pub(super) device_error_s: Option<f64>,
    pub(super) slices: Vec<SentSlice>,
}

/// A [`Slice`]: the number of its track, name, step, begin and end in ns, bytes.
pub(super) type SentSlice = (u8, Cow<'static, str>, u64, u64, u64, Option<u64>);

/// A slice as it is sent.
pub(super) fn sent(slice: Slice) -> SentSlice {
    let Slice { track, name, step, begin_ns, end_ns, n_bytes } = slice;
    (track as u8, name, step, begin_ns, end_ns, n_bytes)
}
