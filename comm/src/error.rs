//! What can go wrong between ranks: which rank, in which collective, and a way out.

use std::fmt;

use ddp_kernels::{Device, KernelError, Operand};

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

    /// The tensor lies where this group's transport does not reach.
    #[error(
        "{op}: {operand} cannot be exchanged by {transport}, which takes tensors on {takes}\n\
         hint: `World::tensor_group` exchanges tensors of the rank's device, `World::group` those of the host"
    )]
    WrongMemory {
        /// The collective.
        op: &'static str,
        /// The tensor.
        operand: Box<Operand>,
        /// How the group's ranks exchange data.
        transport: &'static str,
        /// Where it takes tensors.
        takes: Device,
    },

    /// The user lets NCCL add up in an order that differs from run to run.
    #[error(
        "{variable}={value} allows sums whose order differs from run to run, and `train.deterministic` asks for one order\n\
         hint: unset {variable}, or take Ring or Tree"
    )]
    UnorderedSums {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },

    /// MPI has no sums, maxima or minima of this type.
    #[error("{call}: MPI does not reduce {}\nhint: ranks that share memory do, and so does NCCL", call.dtype)]
    NotReducible {
        /// The collective.
        call: Call,
    },

    /// Only GPUs' ranks send to one another; see [`Group::send`](crate::Group::send).
    #[error(
        "{op}: ranks joined by {transport} only take part in collectives\nhint: `peer::copy` copies between two ranks"
    )]
    NoSends {
        /// What was asked for.
        op: &'static str,
        /// How the group's ranks exchange data.
        transport: &'static str,
    },

    /// There is no NCCL that would do.
    #[error("several GPUs need NCCL: {reason}\nhint: {hint}")]
    NcclUnavailable {
        /// What was looked for, or what is wrong with what was found.
        reason: String,
        /// What installs it.
        hint: &'static str,
    },

    /// NCCL failed, in a call or in the work behind one.
    #[error(
        "rank {rank} on {device}: {call} failed: {text} ({code}){}\n\
         hint: NCCL_DEBUG=INFO has NCCL say more{}", abort_note(*.aborted), nccl_hint(code)
    )]
    Nccl {
        /// The function, or what was under way.
        call: &'static str,
        /// The rank that met it.
        rank: usize,
        /// Its device.
        device: Device,
        /// NCCL's name of the error.
        code: &'static str,
        /// NCCL's words.
        text: String,
        /// Whether the communicator could be aborted.
        aborted: bool,
    },

    /// Work of a device that waits for other ranks was not done within the time limit.
    #[error(
        "rank {rank} on {device}: {what}: waited {timeout_s} s and gave up; {}{}\n\
         hint: another rank is late, stopped or gone; NCCL_DEBUG=INFO has NCCL say more",
        last_put(*.n_put, last.as_ref()), abort_note(*.aborted)
    )]
    DeviceTimeout {
        /// What it waited for.
        what: &'static str,
        /// The rank that waited.
        rank: usize,
        /// Its device.
        device: Device,
        /// How long it waited.
        timeout_s: f64,
        /// Collectives that it had put into the stream; replays of a captured step are not counted.
        n_put: u64,
        /// The last of them.
        last: Option<Call>,
        /// Whether the communicator could be aborted.
        aborted: bool,
    },

    /// A host has more ranks than GPUs.
    #[error("this host has {n_gpus} GPUs and {n_ranks} ranks\nhint: start at most {n_gpus} ranks on it")]
    TooFewGpus {
        /// GPUs of the host.
        n_gpus: usize,
        /// Ranks on the host.
        n_ranks: usize,
    },

    /// Two ranks use one GPU.
    #[error(
        "ranks {} and {} both use the GPU {gpu} of {host}\n\
         hint: start no more ranks on a host than it has GPUs, and leave out the index of the device", ranks[0], ranks[1]
    )]
    GpuTaken {
        /// The host.
        host: String,
        /// The device's name and UUID.
        gpu: String,
        /// The first two ranks that use it.
        ranks: [usize; 2],
    },

    /// Another rank could not do its part of what all ranks did together.
    #[error("{doing}: rank {rank} failed: {text}")]
    FailedElsewhere {
        /// The lowest rank that failed.
        rank: usize,
        /// What they did.
        doing: &'static str,
        /// Its error.
        text: String,
    },

    /// The two ends of a copy between ranks don't fit.
    #[error("peer::copy from rank {from} to rank {to}: the source is {source_is}, the target is {target_is}")]
    PeerMismatch {
        /// The rank that has the source.
        from: usize,
        /// The rank that has the target.
        to: usize,
        /// Its length and type.
        source_is: String,
        /// Its length and type.
        target_is: String,
    },

    /// The world's devices were joined before.
    #[error("the devices of this world are joined already\nhint: call `World::connect_device` once")]
    AlreadyConnected,

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
    /// Whether the communicator of this error is still there, and with it work that nothing ends.
    pub(crate) fn is_beyond_abort(&self) -> bool {
        matches!(
            self,
            CommError::Nccl { aborted: false, .. } | CommError::DeviceTimeout { aborted: false, .. }
        )
    }

    /// Whose part it is to report this error.
    pub fn voice(&self) -> Voice {
        match self {
            CommError::CallMismatch { .. }
            | CommError::CountMismatch { .. }
            | CommError::BucketCountMismatch { .. }
            | CommError::Disagreement { .. }
            | CommError::GpuTaken { .. }
            | CommError::PeerMismatch { .. } => Voice::Shared,
            CommError::PeerLeft { .. } | CommError::FailedElsewhere { .. } => Voice::Consequence,
            // Another process is gone: it, or the launcher, speaks first.
            CommError::Nccl { code: "ncclRemoteError", .. } => Voice::Consequence,
            _ => Voice::Own,
        }
    }
}

fn abort_note(aborted: bool) -> &'static str {
    if aborted { "" } else { "; the communicator did not let itself be aborted either, so the job ends" }
}

fn nccl_hint(code: &str) -> &'static str {
    match code {
        "ncclSystemError" => "; is there a network interface for it? NCCL_SOCKET_IFNAME names one",
        "ncclRemoteError" => "; what happened on the other rank is in its own message",
        _ => "",
    }
}

fn last_put(n_put: u64, last: Option<&Call>) -> String {
    match last {
        Some(last) => format!("its last collective, number {n_put}, is {last}"),
        None => "it had asked for no collective yet".to_owned(),
    }
}

fn copies(n_ranks: Option<usize>) -> String {
    n_ranks.map_or_else(|| "several copies".to_owned(), |n| format!("{n} copies"))
}
