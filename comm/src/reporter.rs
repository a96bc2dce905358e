//! Choice of the rank that reports a failure.
//!
//! If one rank fails, the others soon fail too, because they wait for it. One message says why; the others would only bury it.

/// The rank that reports a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporter {
    /// The failure is this rank's own: this rank reports it.
    ThisRank,
    /// Every rank has the same failure: rank 0 reports it.
    RankZero,
    /// The failure follows from another rank's: that rank reports it.
    OtherRank,
}
