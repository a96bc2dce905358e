//! Errors of worlds and collectives: which rank, in which collective, expected against got, and a hint.

use std::fmt;

use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, KernelError, Operand};

use crate::environment::BadVariable;
use crate::rank::ranks_text;
use crate::{Call, Launcher, Reporter};

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, CommError>;

/// The way in which a rank left the others in the middle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// It closed its group, or dropped it in an early return.
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

/// Errors of worlds and collectives. `{:?}` shows message and hint, as `main` prints them.
#[derive(Clone, PartialEq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum CommError {
    /// A tensor or device cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),

    /// A collective that only ranks joined by MPI have.
    #[error("{op}: the ranks are not processes joined by MPI")]
    NotJoinedByMpi { op: &'static str },

    /// Ranks entered different collectives, or one with different lengths (elements, not bytes).
    #[error("rank {rank} entered {got}, rank 0 entered {expected}")]
    #[diagnostic(help("the ranks run different programs or configs, or one of them skipped a collective"))]
    CallMismatch {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The collective that it entered.
        got: Call,
        /// The collective that rank 0 entered.
        expected: Call,
    },

    /// Ranks would reduce buckets of different lengths (elements, not bytes).
    #[error("bucket {bucket} has {got} elements on rank {rank}, {expected} on rank 0")]
    #[diagnostic(help("start every rank with the same program and config"))]
    CountMismatch {
        /// Index of the bucket in the step.
        bucket: usize,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Elements there.
        got: usize,
        /// Elements on rank 0.
        expected: usize,
    },

    /// Ranks would reduce different numbers of buckets.
    #[error("rank {rank} has {got} buckets, rank 0 has {expected}")]
    #[diagnostic(help("start every rank with the same program and config"))]
    BucketCountMismatch {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Buckets there.
        got: usize,
        /// Buckets on rank 0.
        expected: usize,
    },

    /// Ranks hold different values of something that must be the same everywhere.
    #[error("rank {rank} ({host}) disagrees with rank 0 on '{key}': {got} there, {expected} on rank 0")]
    #[diagnostic(help("start every rank with the same program, config and data"))]
    Disagreement {
        /// The name of the value.
        key: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        host: String,
        /// The value there.
        got: String,
        /// The value on rank 0.
        expected: String,
    },

    /// The lengths of a collective's input and output do not match, on one rank.
    #[error("{op}: {got} elements of output, expected {expected} for {world_size} ranks")]
    OutputLength {
        op: &'static str,
        /// Elements of the output.
        got: usize,
        /// Elements that the input requires.
        expected: usize,
        world_size: usize,
    },

    /// The tensor is in memory that this group does not exchange.
    #[error("{op}: {operand} cannot be exchanged by {transport}, expected a tensor on {takes}")]
    #[diagnostic(help(
        "`World::tensor_group` exchanges tensors of the device that `World::connect_device` joined, `World::group` those in host memory"
    ))]
    WrongMemory {
        op: &'static str,
        operand: Box<Operand>,
        /// The transport of the group.
        transport: &'static str,
        /// The device whose tensors it exchanges.
        takes: Device,
    },

    /// A fixed order of sums was requested, but the user's environment allows NCCL any order.
    #[error(
        "{variable}={value} allows sums whose order differs from run to run, but a fixed order was requested"
    )]
    #[diagnostic(help("unset {variable}, or set it to Ring or Tree"))]
    UnorderedSums { variable: &'static str, value: String },

    /// MPI has no sums, maxima or minima of this type.
    #[error("{call}: MPI does not reduce {}", call.dtype)]
    #[diagnostic(help("ranks that share memory reduce it, and so does NCCL"))]
    NotReducible { call: Call },

    /// This group has no send and receive, or no shift; see [`Group::send`](crate::Group::send) and [`Group::shift`](crate::Group::shift).
    #[error("{op}: {transport} between hosts has collectives only")]
    #[diagnostic(help(
        "ranks of several hosts send through MPI: start them by mpirun; `peer::copy` copies between two ranks of any start"
    ))]
    NoSends {
        /// `"send"`, `"receive"` or `"shift"`.
        op: &'static str,
        /// The transport of the group.
        transport: &'static str,
    },

    /// There is no usable NCCL library.
    #[error("several GPUs need NCCL: {reason}")]
    #[diagnostic(help("{hint}"))]
    NcclUnavailable {
        /// The names that were looked for, or the fault of the library that was found.
        reason: String,
        /// The command that installs it.
        hint: &'static str,
    },

    /// NCCL cannot register buffers, which was requested.
    #[error("NCCL cannot register the buffers of collectives: {reason}")]
    NoRegistration {
        /// The reason of the first rank that cannot.
        reason: String,
    },

    /// NCCL failed, in a call or in the work that a call enqueued.
    #[error("rank {rank} on {device}: {call} failed: {text} ({code}){}", abort_note(*.aborted))]
    #[diagnostic(help("NCCL_DEBUG=INFO makes NCCL print more{}", nccl_hint(code)))]
    Nccl {
        /// The function, or the work under way.
        call: &'static str,
        /// The rank on which it failed.
        rank: usize,
        device: Device,
        /// NCCL's name of the error.
        code: &'static str,
        /// The text that NCCL gave.
        text: String,
        /// Whether the communicator could be aborted.
        aborted: bool,
    },

    /// NCCL does not come to an end of a communicator whose work is done, and a thread is left in it: the process must end by
    /// [`crate::failure::end_job`].
    #[error("rank {rank} on {device}: {call} has not returned after {waited_s} s; all work was done before")]
    #[diagnostic(help("NCCL_DEBUG=INFO makes NCCL print what it waits for, such as a plugin for a network"))]
    SlowClose { call: &'static str, rank: usize, device: Device, waited_s: f64 },

    /// Work of a device that depends on other ranks was not done within the time limit.
    #[error(
        "rank {rank} on {device}: {what}: waited {timeout_s} s and gave up; {}{}",
        last_enqueued(*.n_enqueued, last.as_ref()),
        abort_note(*.aborted)
    )]
    #[diagnostic(help(
        "another rank is late, stopped or gone; NCCL_DEBUG=INFO makes NCCL print more{}",
        peer_hint(*n_enqueued)
    ))]
    DeviceTimeout {
        /// The work that it waited for.
        what: &'static str,
        /// The rank that waited.
        rank: usize,
        device: Device,
        /// Time that it waited.
        timeout_s: f64,
        /// Collectives that it had enqueued; replays of a captured step are not counted.
        n_enqueued: u64,
        /// The last of them.
        last: Option<Call>,
        /// Whether the communicator could be aborted.
        aborted: bool,
    },

    /// A host has more ranks than GPUs.
    #[error("this host has {n_gpus} GPUs and {n_ranks} ranks")]
    #[diagnostic(help("start at most {n_gpus} ranks on it"))]
    TooFewGpus {
        /// GPUs of the host.
        n_gpus: usize,
        /// Ranks on the host.
        n_ranks: usize,
    },

    /// Two ranks use the same GPU.
    #[error("ranks {} and {} both use the GPU {gpu} of {host}", ranks[0], ranks[1])]
    #[diagnostic(help(
        "start no more ranks on a host than it has GPUs, and leave out the index of the device; MIG instances of one GPU cannot \
         be joined: give one rank the whole GPU (nvidia-smi -mig 0), or train on one instance"
    ))]
    GpuTaken {
        host: String,
        /// The device's name and UUID.
        gpu: String,
        /// The first two ranks that use it.
        ranks: [usize; 2],
    },

    /// Another rank failed in an operation of all ranks.
    #[error("{operation}: rank {rank} failed: {text}")]
    FailedElsewhere {
        /// The lowest rank that failed.
        rank: usize,
        operation: &'static str,
        text: String,
    },

    /// Source and target of a copy between ranks are missing or differ in length or type.
    #[error("peer::copy from rank {from} to rank {to}: the source is {source_is}, the target is {target_is}")]
    PeerMismatch {
        /// The rank that has the source.
        from: usize,
        /// The rank that has the target.
        to: usize,
        /// Length and type of the source, or `none`.
        source_is: String,
        /// Length and type of the target, or `none`.
        target_is: String,
    },

    /// The two ranks of a message have tensors of another shape or type.
    #[error("send from rank {from} to rank {to}: the sender has {sent}, the receiver {received}")]
    #[diagnostic(help("receive into a tensor of the sender's shape and type"))]
    MessageMismatch {
        /// The rank that sends.
        from: usize,
        /// The rank that receives.
        to: usize,
        /// Shape and type of the sender's tensor.
        sent: String,
        /// Shape and type of the receiver's tensor.
        received: String,
    },

    /// Ranks that wait for each other, since none does the other half of a message.
    #[error("{op}: {} all {op}, and none of them does the other half", ranks_text(ranks))]
    #[diagnostic(help("let one of them do the other half first, such as those with an odd rank"))]
    NoReceiver {
        /// `"send"` or `"receive"`.
        op: &'static str,
        /// The ranks, in ascending order.
        ranks: Vec<usize>,
    },

    /// The world's devices are already joined.
    #[error("the devices of this world are already joined")]
    #[diagnostic(help("call `World::connect_device` once"))]
    AlreadyConnected,

    /// A rank that does not exist.
    #[error("{op}: there is no rank {rank} in a world of {world_size}")]
    NoSuchRank {
        op: &'static str,
        /// The rank that was requested.
        rank: usize,
        world_size: usize,
    },

    /// A message from a rank to itself.
    #[error("{op}: rank {rank} is this rank itself")]
    #[diagnostic(help("a copy within a rank is a clone"))]
    OwnRank { op: &'static str, rank: usize },

    /// A rank left that this collective needs.
    #[error("{call}: rank {rank} {how} and cannot take part")]
    #[diagnostic(help("see the message of that rank"))]
    PeerLeft {
        /// The collective that this rank is in.
        call: Call,
        /// The rank that left.
        rank: usize,
        how: Departure,
    },

    /// The watchdog has noticed that a rank is lost. It reports that rank and ends the job.
    #[error("another rank is lost")]
    #[diagnostic(help("see the report of the lost rank"))]
    RankLost,

    /// Ranks did not enter a collective within the time limit.
    #[error("{call}: waited {timeout_s} s for rank {missing:?} and gave up")]
    Timeout {
        /// The collective that this rank is in.
        call: Call,
        /// The ranks that did not enter it.
        missing: Vec<usize>,
        /// Time that this rank waited.
        timeout_s: f64,
    },

    /// The environment does not describe a rank.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Environment(#[from] BadVariable),

    /// Rank 0 can't listen for the other ranks.
    #[error("rank 0 can't listen for the other ranks at {ports} (MASTER_PORT) of {host}: {text}")]
    #[diagnostic(help("{hint}"))]
    CannotListen { host: String, ports: String, text: String, hint: &'static str },

    /// Ranks did not come to rank 0.
    #[error("{} at {host} (MASTER_ADDR), {ports}; gave up after {waited_s} s", waiting_for(missing, *world_size))]
    #[diagnostic(help(
        "start WORLD_SIZE={world_size} processes, each with its own RANK and all with the same MASTER_ADDR and MASTER_PORT; let other \
         hosts connect to that port"
    ))]
    MissingRanks {
        missing: Vec<usize>,
        world_size: usize,
        host: String,
        ports: String,
        /// Time that rank 0 waited.
        waited_s: f64,
    },

    /// A rank can't reach rank 0.
    #[error(
        "rank {rank} can't reach rank 0 at {host} (MASTER_ADDR), {ports}: {last}; gave up after {waited_s} s"
    )]
    #[diagnostic(help(
        "check that rank 0 runs there, that MASTER_ADDR and MASTER_PORT are the same for all ranks, and that its host accepts \
         connections to that port"
    ))]
    NoRankZero {
        rank: usize,
        host: String,
        ports: String,
        waited_s: f64,
        /// The error of the last attempt.
        last: String,
    },

    /// Rank 0 did not join this rank.
    #[error("rank {rank} was not joined by rank 0: {text}")]
    NotJoined {
        rank: usize,
        /// The reason that rank 0 has, or the error of a thread.
        text: String,
        /// Whether other ranks had not come.
        misses_others: bool,
    },

    /// Ranks on CPUs of several hosts, without MPI.
    #[error(
        "the {world_size} ranks compute on CPUs of several hosts, and exchange gradients only by MPI there"
    )]
    #[diagnostic(help("{}", match launcher {
        Launcher::Slurm => launcher.mismatch_hint(),
        _ => "start them by mpirun -n N --hostfile HOSTS, without RANK and WORLD_SIZE; or use GPUs, or one host",
    }))]
    HostsWithoutMpi { world_size: usize, launcher: Launcher },

    /// Ranks of one host that cannot map the memory by which they exchange gradients, without MPI.
    #[error(
        "the ranks of this host cannot share memory, by which they exchange gradients on its CPUs: {reason}"
    )]
    #[diagnostic(help(
        "start them in one container and as one user, or by mpirun, without RANK and WORLD_SIZE"
    ))]
    NoSharedMemory { reason: String },

    /// A launcher started several ranks, but its MPI library, which this build opens when it is needed, cannot be opened.
    #[error(
        "{launcher} started {} of this program, but its MPI library cannot be opened ({reason}): each would run alone",
        copies(*.n_ranks)
    )]
    #[diagnostic(help(
        "add the folder of its libmpi.so.40 (Open MPI) or libmpi.so.12 (MPICH, Intel MPI) to LD_LIBRARY_PATH"
    ))]
    NoMpiLibrary {
        launcher: Launcher,
        /// Number of ranks, if the environment says.
        n_ranks: Option<usize>,
        /// The loader's message.
        reason: String,
    },

    /// MPI found another number of ranks than the launcher started: the two do not belong together.
    #[error("{launcher} started {expected} ranks, but MPI found {got}: each would run alone")]
    #[diagnostic(help("{}", launcher.mismatch_hint()))]
    LauncherMismatch {
        launcher: Launcher,
        /// Ranks that it started.
        expected: usize,
        /// Ranks that MPI found.
        got: usize,
    },

    /// The ranks run different builds of the program.
    #[error("the ranks run different builds of this program:{programs}")]
    #[diagnostic(help(
        "start every rank from the same build; on several hosts compare `which` and `--version`"
    ))]
    DifferentPrograms {
        rank: usize,
        /// A line per program, with its ranks and their hosts.
        programs: String,
    },

    /// This process already has a world on MPI; there can be only one.
    #[error("MPI is already initialized in this process")]
    #[diagnostic(help("create one World and pass it by reference"))]
    MpiInUse,

    /// A call to MPI failed.
    #[error("{call} failed: {text}")]
    Mpi {
        call: &'static str,
        /// The text that MPI gave.
        text: String,
    },

    /// More elements than one call to MPI can count.
    #[error("{op}: {len} elements, expected at most {max} in one call to MPI")]
    #[diagnostic(help("split the buffer"))]
    TooManyElements {
        op: &'static str,
        /// Elements of the buffer.
        len: usize,
        max: usize,
    },
}

impl fmt::Debug for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_hint(self))
    }
}

/// The work of a call that has succeeded.
pub(crate) const WORK: &str = "work of a collective";

impl CommError {
    /// Whether the communicator of this error could not be aborted, so that its work never ends.
    pub(crate) fn is_beyond_abort(&self) -> bool {
        matches!(
            self,
            CommError::Nccl { aborted: false, .. } | CommError::DeviceTimeout { aborted: false, .. }
        )
    }

    /// Whether only the end of a communicator failed, after all of its work was done: no result is affected.
    pub fn is_after_work(&self) -> bool {
        matches!(self, CommError::SlowClose { .. })
    }

    /// Whether the network failed, or a process at its other end, after the communicator had worked: another start may help.
    pub fn is_broken_link(&self) -> bool {
        matches!(self, CommError::Nccl { call: WORK, code: "ncclRemoteError" | "ncclSystemError", .. })
    }

    /// Whether the loss of another rank may be the reason.
    pub fn may_follow_loss(&self) -> bool {
        match self {
            CommError::PeerLeft { .. } | CommError::RankLost | CommError::Mpi { .. } => true,
            CommError::Nccl { aborted, .. } | CommError::DeviceTimeout { aborted, .. } => *aborted,
            _ => false,
        }
    }

    /// The rank that reports this error.
    pub fn reporter(&self) -> Reporter {
        match self {
            CommError::CallMismatch { .. }
            | CommError::CountMismatch { .. }
            | CommError::BucketCountMismatch { .. }
            | CommError::Disagreement { .. }
            | CommError::DifferentPrograms { .. }
            | CommError::HostsWithoutMpi { .. }
            | CommError::NoSharedMemory { .. }
            | CommError::GpuTaken { .. }
            | CommError::NoRegistration { .. }
            | CommError::PeerMismatch { .. } => Reporter::RankZero,
            CommError::PeerLeft { .. } | CommError::RankLost | CommError::FailedElsewhere { .. } => {
                Reporter::OtherRank
            }
            // Another process is gone: it, the watchdog or the launcher reports first.
            CommError::Nccl { code: "ncclRemoteError", .. } | CommError::Mpi { .. } => Reporter::OtherRank,
            _ => Reporter::ThisRank,
        }
    }
}

/// `waiting for 1 of 4 ranks (rank 3)`
pub(crate) fn waiting_for(missing: &[usize], world_size: usize) -> String {
    /// Ranks that are named.
    const MAX_NAMED: usize = 16;
    let named: Vec<_> = missing.iter().take(MAX_NAMED).map(usize::to_string).collect();
    let more = missing.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let noun = if missing.len() == 1 { "rank" } else { "ranks" };
    format!("waiting for {} of {world_size} ranks ({noun} {}{more})", missing.len(), named.join(", "))
}

fn abort_note(aborted: bool) -> &'static str {
    if aborted { "" } else { "; aborting the communicator failed too, so the job ends" }
}

fn nccl_hint(code: &str) -> &'static str {
    match code {
        // cudaErrorInsufficientDriver, for example of a wheel for CUDA 13 on a driver for CUDA 12.
        "ncclUnhandledCudaError" => {
            "; where the memory of the GPU is full, NCCL fails like this at the first collective of a kind: take a smaller batch; an NCCL for a \
             newer CUDA than the driver's does, too: NCCL_DEBUG=VERSION shows its CUDA; in a virtual machine with a part of an NVSwitch's \
             GPUs, try NCCL_NVLS_ENABLE=0"
        }
        "ncclSystemError" => {
            "; between hosts, NCCL_SOCKET_IFNAME names the network interface to use; within one, /dev/shm may be too small: in a \
             container, start it with --ipc=host or --shm-size=1g"
        }
        "ncclRemoteError" => "; see the message of the other rank",
        _ => "",
    }
}

/// Collectives that a communicator enqueues before it is known that its GPUs reach each other.
const FIRST_COLLECTIVES: u64 = 8;

fn peer_hint(n_enqueued: u64) -> &'static str {
    if n_enqueued > FIRST_COLLECTIVES {
        return "";
    }
    "; if it hangs at each start, the GPUs may not reach each other (IOMMU, ACS): try NCCL_P2P_DISABLE=1"
}

fn last_enqueued(n_enqueued: u64, last: Option<&Call>) -> String {
    match last {
        Some(last) => format!("its last collective, number {n_enqueued}, is {last}"),
        None => "it had enqueued no collective yet".to_owned(),
    }
}

fn copies(n_ranks: Option<usize>) -> String {
    n_ranks.map_or_else(|| "several copies".to_owned(), |n| format!("{n} copies"))
}

#[cfg(test)]
mod tests {
    use ddp_kernels::hint::with_hint;

    use super::*;

    #[test]
    fn errors_of_nccl_name_a_way_out() {
        let nccl = |code| {
            let (call, device, text) = ("ncclAllReduce", Device::Cuda(0), String::new());
            with_hint(&CommError::Nccl { call, rank: 0, device, code, text, aborted: true })
        };
        let cases = [
            ("ncclUnhandledCudaError", "NCCL_NVLS_ENABLE=0"),
            ("ncclSystemError", "--shm-size=1g"),
            ("ncclSystemError", "NCCL_SOCKET_IFNAME"),
        ];
        for (code, way_out) in cases {
            assert!(nccl(code).contains(way_out), "{}", nccl(code));
        }
        let late = |n_enqueued| {
            let (what, device, last) = ("the barrier", Device::Cuda(0), None);
            let (rank, timeout_s, aborted) = (0, 5.0, true);
            with_hint(&CommError::DeviceTimeout { what, rank, device, timeout_s, n_enqueued, last, aborted })
        };
        assert_eq!([0, 1000].map(|n| late(n).contains("NCCL_P2P_DISABLE=1")), [true, false]);
    }
}
