//! NCCL's functions, looked up by name when the first world needs them.
//!
//! cudarc's own bindings of NCCL panic if the library or a function is missing, and read results as a Rust `enum`, whose values a
//! newer library may exceed. So only their handle types and constants are used.
//!
//! Source: nccl.h of NCCL 2.18 and later.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys;
use ddp_kernels::DType;
use ddp_kernels::cuda::library::{self, Library};

use crate::{CommError, ReduceOp, Result};

/// The oldest supported NCCL, as `ncclGetVersion` reports it: `10,000 * major + 100 * minor + patch`.
const OLDEST_VERSION: c_int = 21_800;

/// The first NCCL with [`MemoryFunctions`].
const MEMORY_VERSION: c_int = 21_900;

/// `ncclResult_t`, with any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(c_int);

impl Status {
    pub(super) const SUCCESS: Self = Status(0);
    /// The driver failed; of a call that allocates: no memory is left.
    pub(super) const UNHANDLED_CUDA_ERROR: Self = Status(1);
    pub(super) const IN_PROGRESS: Self = Status(7);

    /// NCCL's name of the result.
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            _ => "an unknown result",
        }
    }
}

/// `ncclConfig_t` of nccl.h 2.18. A newer library uses defaults for its later fields.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`, but with non-blocking calls; `max_ctas` limits the thread blocks of a collective.
    pub(super) fn non_blocking(max_ctas: Option<i32>) -> Self {
        // `NCCL_CONFIG_UNDEF_INT`: the library chooses.
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST_VERSION as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: max_ctas.unwrap_or(UNDEFINED),
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

type Comm = sys::ncclComm_t;
type Read = *const c_void;
type Write = *mut c_void;

ddp_kernels::library_functions! {
    /// NCCL's functions. Arguments as in nccl.h.
    pub(super) struct Functions {
        get_version = "ncclGetVersion": fn(*mut c_int) -> Status;
        get_unique_id = "ncclGetUniqueId": fn(*mut sys::ncclUniqueId) -> Status;
        init_rank_config = "ncclCommInitRankConfig":
            fn(*mut Comm, c_int, sys::ncclUniqueId, c_int, *mut Config) -> Status;
        get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut Status) -> Status;
        finalize = "ncclCommFinalize": fn(Comm) -> Status;
        destroy = "ncclCommDestroy": fn(Comm) -> Status;
        abort = "ncclCommAbort": fn(Comm) -> Status;
        get_error_string = "ncclGetErrorString": fn(Status) -> *const c_char;
        get_last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
        group_start = "ncclGroupStart": fn() -> Status;
        group_end = "ncclGroupEnd": fn() -> Status;
        all_reduce = "ncclAllReduce": fn(Read, Write, usize, c_int, c_int, Comm, CUstream) -> Status;
        broadcast = "ncclBroadcast": fn(Read, Write, usize, c_int, c_int, Comm, CUstream) -> Status;
        reduce_scatter = "ncclReduceScatter": fn(Read, Write, usize, c_int, c_int, Comm, CUstream) -> Status;
        all_gather = "ncclAllGather": fn(Read, Write, usize, c_int, Comm, CUstream) -> Status;
        send = "ncclSend": fn(Read, usize, c_int, c_int, Comm, CUstream) -> Status;
        receive = "ncclRecv": fn(Write, usize, c_int, c_int, Comm, CUstream) -> Status;
    }
}

ddp_kernels::library_functions! {
    /// Functions of NCCL 2.19 for memory that it reads and writes in place.
    pub(super) struct MemoryFunctions {
        mem_alloc = "ncclMemAlloc": fn(*mut Write, usize) -> Status;
        mem_free = "ncclMemFree": fn(Write) -> Status;
        register = "ncclCommRegister": fn(Comm, Write, usize, *mut Write) -> Status;
        deregister = "ncclCommDeregister": fn(Comm, Write) -> Status;
    }
}

/// NCCL's functions and its version.
pub(super) struct Api {
    functions: Functions,
    /// The name of the first one that is missing, otherwise.
    memory: std::result::Result<MemoryFunctions, &'static str>,
    version: c_int,
}

impl Deref for Api {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Api {
    /// The functions of NCCL, which is opened at the first call.
    ///
    /// # Errors
    /// [`CommError::NcclUnavailable`] if there is no NCCL, or one that is too old.
    pub(super) fn get() -> Result<&'static Api> {
        static API: std::sync::OnceLock<std::result::Result<Api, String>> = std::sync::OnceLock::new();
        API.get_or_init(Self::load).as_ref().map_err(|reason| CommError::NcclUnavailable {
            reason: reason.clone(),
            hint: Library::Nccl.hint(),
        })
    }

    fn load() -> std::result::Result<Self, String> {
        // The driver's version chooses among CUDA libraries; NCCL is not one of them.
        let library = library::open(Library::Nccl, i32::MAX).map_err(str::to_owned)?;
        let path = library.path.display();
        let functions = Functions::find(library).map_err(|name| format!("{path} has no function {name}"))?;
        let memory = MemoryFunctions::find(library);
        let mut api = Api { functions, memory, version: 0 };
        // SAFETY: the pointer is valid for one int.
        let status = unsafe { (api.functions.get_version)(&raw mut api.version) };
        if status != Status::SUCCESS {
            return Err(format!("{path} does not report its version: {}", status.name()));
        }
        if api.version < OLDEST_VERSION {
            let (got, oldest) = (version_name(api.version), version_name(OLDEST_VERSION));
            return Err(format!("{path} is NCCL {got}, expected at least {oldest}"));
        }
        Ok(api)
    }

    /// The version, as `ncclGetVersion` reports it.
    pub(super) fn version(&self) -> i32 {
        self.version
    }

    /// The functions for memory that NCCL reads and writes in place, or why there are none.
    pub(super) fn memory(&self) -> std::result::Result<&MemoryFunctions, String> {
        if self.version < MEMORY_VERSION {
            let (got, oldest) = (version_name(self.version), version_name(MEMORY_VERSION));
            return Err(format!("NCCL is {got}, and registers buffers from {oldest} on"));
        }
        self.memory.as_ref().map_err(|name| format!("NCCL has no function {name}"))
    }

    /// NCCL's text for a result: its meaning, and the last error message if there is one.
    pub(super) fn describe(&self, comm: Comm, status: Status) -> String {
        // SAFETY: the handle may be null; the text is NCCL's and stays until the next error.
        let last = text(unsafe { (self.get_last_error)(comm) });
        // SAFETY: any value is allowed; the text is a constant of NCCL.
        let meaning = text(unsafe { (self.get_error_string)(status) });
        if last.is_empty() { meaning } else { format!("{meaning}: {last}") }
    }
}

/// Copies a C string of NCCL; empty if it is null.
fn text(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: NCCL's strings end in a zero byte and are not written while this thread reads them.
    let text = unsafe { CStr::from_ptr(chars) };
    text.to_string_lossy().trim().to_owned()
}

/// Formats a version: `22703` as `2.27.3`.
pub(crate) fn version_name(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

/// NCCL's name of an element type.
pub(super) fn datatype(dtype: DType) -> c_int {
    let dtype = match dtype {
        DType::F32 => sys::ncclDataType_t::ncclFloat32,
        DType::F64 => sys::ncclDataType_t::ncclFloat64,
        DType::I64 => sys::ncclDataType_t::ncclInt64,
        DType::BF16 => sys::ncclDataType_t::ncclBfloat16,
        DType::U8 | DType::Bool => sys::ncclDataType_t::ncclUint8,
        DType::I32 => sys::ncclDataType_t::ncclInt32,
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
    };
    dtype as c_int
}

/// NCCL's name of a reduction.
pub(super) fn operation(op: ReduceOp) -> c_int {
    let op = match op {
        ReduceOp::Sum => sys::ncclRedOp_t::ncclSum,
        ReduceOp::Max => sys::ncclRedOp_t::ncclMax,
        ReduceOp::Min => sys::ncclRedOp_t::ncclMin,
    };
    op as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_is_laid_out_as_in_nccl_h() {
        let config = Config::non_blocking(Some(4));
        // size_t, 2 unsigned, 4 int, char*, int and padding, on a 64-bit machine.
        assert_eq!((config.size, std::mem::offset_of!(Config, net_name)), (48, 32));
        assert_eq!((config.blocking, config.max_ctas, config.min_ctas), (0, 4, c_int::MIN));
    }

    #[test]
    fn names_are_those_of_nccl_h() {
        assert_eq!(version_name(22_703), "2.27.3");
        assert_eq!((datatype(DType::BF16), datatype(DType::F32)), (9, 7));
        assert_eq!((datatype(DType::U8), datatype(DType::F16)), (1, 6));
        assert_eq!((operation(ReduceOp::Sum), operation(ReduceOp::Min)), (0, 3));
        assert_eq!(Status(sys::ncclResult_t::ncclInProgress as c_int), Status::IN_PROGRESS);
        assert_eq!(Status(99).name(), "an unknown result");
    }

    #[test]
    fn a_machine_without_nccl_is_an_error_and_no_panic() {
        match Api::get() {
            Ok(api) => assert!(api.version() >= OLDEST_VERSION),
            Err(error) => {
                assert!(ddp_kernels::hint::with_hint(&error).contains("hint: install libnccl2"), "{error}")
            }
        }
    }
}
