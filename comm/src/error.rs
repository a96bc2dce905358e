//! What can go wrong between ranks: which rank, in which collective, and a way out.

use std::fmt;

use ddp_kernels::KernelError;

use crate::{Call, Launcher, Voice};

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, CommError>;

/// How a rank left the others in the middle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// It closed its group, or dropped it at an early return.
    Closed,
    /// It panicked.
    Panicked,
    /// A collective failed there, so it cannot take part in further ones.
    Failed,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Departure::Closed => "had left the group",
            Departure::Panicked => "panicked",
            Departure::Failed => "failed in an earlier collective",
        })
    }
}

/// Errors of worlds and collectives.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A view is not what the collective takes.
    #[error(transparent)]
    Kernel(#[from] KernelError),

    /// Ranks entered different collectives, or one with different lengths (elements, not bytes).
    #[error(
        "rank {rank} entered {got}, rank 0 entered {expected}\n\
         hint: the ranks run different programs or configs, or one of them skipped a collective"
    )]
    CallMismatch {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// What it entered.
        got: Call,
        /// What rank 0 entered.
        expected: Call,
    },

    /// Ranks would reduce different lengths (elements, not bytes).
    #[error(
        "bucket {bucket}: rank {rank} brought {got} elements, rank 0 brought {expected}\n\
         hint: the ranks built different models: compare `model` in their configs"
    )]
    CountMismatch {
        /// Index of the bucket in the step.
        bucket: usize,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Elements it brought.
        got: usize,
        /// Elements rank 0 brought.
        expected: usize,
    },

    /// Ranks would reduce different numbers of buckets.
    #[error(
        "rank {rank} has {got} buckets, rank 0 has {expected}\n\
         hint: the ranks built different models: compare `model` and `comm` in their configs"
    )]
    BucketCountMismatch {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Buckets it has.
        got: usize,
        /// Buckets rank 0 has.
        expected: usize,
    },

    /// Ranks hold different values of something that must be the same everywhere.
    #[error(
        "rank {rank} ({host}) disagrees with rank 0 on '{key}': {got} there, {expected} on rank 0\n\
         hint: start every rank with the same program, config and data"
    )]
    Disagreement {
        /// What they differ in.
        key: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Its host.
        host: String,
        /// The value there.
        got: String,
        /// The value on rank 0.
        expected: String,
    },

    /// One rank's input and output of a collective don't fit together.
    #[error("{op}: {got} elements of output, expected {expected} for {world_size} ranks")]
    OutputLength {
        /// The collective.
        op: &'static str,
        /// Elements of the output.
        got: usize,
        /// Elements that the input asks for.
        expected: usize,
        /// Number of ranks.
        world_size: usize,
    },

    /// A rank that does not exist.
    #[error("{op}: there is no rank {rank} in a world of {world_size}")]
    NoSuchRank {
        /// The collective.
        op: &'static str,
        /// The rank asked for.
        rank: usize,
        /// Number of ranks.
        world_size: usize,
    },

    /// A rank that others wait for will not come.
    #[error("{call}: rank {rank} {how} and will not come\nhint: what happened there is in its own message")]
    PeerLeft {
        /// What this rank is in.
        call: Call,
        /// Who will not come.
        rank: usize,
        /// Why not.
        how: Departure,
    },

    /// Ranks did not come within the time-out.
    #[error("{call}: waited {timeout_s} s for rank {missing:?} and gave up")]
    Timeout {
        /// What this rank is in.
        call: Call,
        /// Who did not come.
        missing: Vec<usize>,
        /// How long this rank waited.
        timeout_s: f64,
    },

    /// A launcher started several ranks, but this build has no MPI to join them.
    #[error(
        "{launcher} started {} of this program, but it was built without the feature `mpi`: each would run alone\n\
         hint: rebuild with `--features mpi`, or start a single one without {launcher}", copies(*.n_ranks)
    )]
    LauncherWithoutMpi {
        /// Who started them.
        launcher: Launcher,
        /// How many, where the environment tells.
        n_ranks: Option<usize>,
    },

    /// MPI found another number of ranks than the launcher started: the two don't know each other.
    #[error(
        "{launcher} started {expected} ranks, but MPI found {got}: each would run alone\n\
         hint: {}", launcher.mismatch_hint()
    )]
    LauncherMismatch {
        /// Who started them.
        launcher: Launcher,
        /// Ranks that it started.
        expected: usize,
        /// Ranks that MPI knows.
        got: usize,
    },

    /// This process already has a world on MPI; there can be one only.
    #[error("MPI is already initialised in this process\nhint: make one World and lend it out")]
    MpiInUse,

    /// A call to MPI failed.
    #[error("{call} failed: {text}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// MPI's words for the error.
        text: String,
    },

    /// More elements than one call to MPI can count.
    #[error("{op}: {len} elements are more than MPI counts in one call ({max})\nhint: split the buffer")]
    TooManyElements {
        /// The collective.
        op: &'static str,
        /// Elements asked for.
        len: usize,
        /// The most there can be.
        max: usize,
    },
}

impl CommError {
    /// Whose part it is to report this error.
    pub fn voice(&self) -> Voice {
        match self {
            CommError::CallMismatch { .. }
            | CommError::CountMismatch { .. }
            | CommError::BucketCountMismatch { .. }
            | CommError::Disagreement { .. } => Voice::Shared,
            CommError::PeerLeft { .. } => Voice::Consequence,
            _ => Voice::Own,
        }
    }
}

fn copies(n_ranks: Option<usize>) -> String {
    n_ranks.map_or_else(|| "several copies".to_owned(), |n| format!("{n} copies"))
}
