//! Exit statuses of `ddp-train`: one table, the same for every command.
//!
//! They follow `sysexits.h` where it has a code for the case (74 is `EX_IOERR`, 75 `EX_TEMPFAIL`, 78 `EX_CONFIG`), and the
//! shell's 128 + signal where a signal ends the process.
//!
//! ```
//! use ddp::exit_code;
//!
//! /// Whether a script should start `ddp-train train ... --resume auto` again.
//! fn should_resume(status: u8) -> bool {
//!     matches!(status, exit_code::RESTARTABLE | exit_code::SAVED)
//! }
//!
//! assert!(should_resume(75) && should_resume(85));
//! assert!(!should_resume(exit_code::USAGE));
//! ```

use ddp_comm::CommError;
use ddp_kernels::{Device, KernelError};

/// The command did its work.
pub const DONE: u8 = 0;
/// The run failed: a loss that is not finite, out of memory, replicas that differ, a lost folder, a checkpoint that does not verify.
pub const FAILED: u8 = 1;
/// The command line, the config or the data cannot be used.
pub const USAGE: u8 = 2;
/// Output could not be written: disk full, quota used up, file too large, read-only or faulty disk.
pub const IO: u8 = 74;
/// A rank died, froze or was cut off, or its GPU or network failed, and the others ended, or the ranks did not meet in time, or their replicas differ and no majority can repair them: the same
/// command with `--resume auto` continues.
pub const RESTARTABLE: u8 = 75;
/// The world or the environment is not the one that the command needs: a device, driver or library is missing, the ranks
/// disagree, there are too many of them, or the launcher and this build do not fit together.
pub const ENVIRONMENT: u8 = 78;
/// A signal, the end of the launcher, `train.stop_after_steps` or `train.stop_after_epochs` stopped the run, which saved a checkpoint, or had not begun its first step.
pub const SAVED: u8 = 85;
/// A second SIGINT ended the run at once, without saving; or SIGQUIT to the supervisor.
pub const INTERRUPTED: u8 = 130;
/// mpirun's SIGTERM ended the run without saving: no step finished before mpirun would kill it.
pub const TERMINATED: u8 = 143;

/// Status of a process that ends with an error of a device, tensor or operation.
pub(crate) fn for_kernel(error: &KernelError) -> u8 {
    match error {
        KernelError::UnknownDevice { .. } | KernelError::UnsupportedDevice { .. } => USAGE,
        // A CPU is always there: the command asks it for something that only GPUs do.
        KernelError::DeviceUnavailable { device: Device::Cpu, .. } => USAGE,
        KernelError::DeviceUnavailable { .. } => ENVIRONMENT,
        error if error.is_device_fault() => RESTARTABLE,
        _ => FAILED,
    }
}

/// Status of a process that ends with an error of a collective.
pub(crate) fn for_comm(error: &CommError) -> u8 {
    match error {
        CommError::Kernel(error) => for_kernel(error),
        CommError::Disagreement { .. }
        | CommError::TooFewGpus { .. }
        | CommError::GpuTaken { .. }
        | CommError::NcclUnavailable { .. }
        | CommError::UnorderedSums { .. }
        | CommError::NotJoinedByMpi { .. }
        | CommError::Environment(_)
        | CommError::CannotListen { .. }
        | CommError::NotJoined { misses_others: false, .. }
        | CommError::HostsWithoutMpi { .. }
        | CommError::NoSharedMemory { .. }
        | CommError::NoMpiLibrary { .. }
        | CommError::LauncherMismatch { .. } => ENVIRONMENT,
        // A host may be late or lost: what has started the ranks can start them again.
        CommError::MissingRanks { .. }
        | CommError::NoRankZero { .. }
        | CommError::NotJoined { misses_others: true, .. } => RESTARTABLE,
        error if error.is_broken_link() => RESTARTABLE,
        _ => FAILED,
    }
}
