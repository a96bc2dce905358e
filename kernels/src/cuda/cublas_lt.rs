//! cuBLASLt's functions, looked up by name in the library that [`library`] opened.
//!
//! cudarc's own bindings open the library by themselves, possibly another file, and read results as a Rust `enum`, whose values a
//! newer library may exceed. So only their handle types and constants are used.
//!
//! Source: cublasLt.h of CUDA 12 and 13.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::cublaslt::sys;

use super::library::{self, Library};

/// `cublasStatus_t`, with any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(c_int);

impl Status {
    pub(super) const SUCCESS: Self = Status(0);
    pub(super) const INVALID_VALUE: Self = Status(7);
    pub(super) const ARCH_MISMATCH: Self = Status(8);
    pub(super) const NOT_SUPPORTED: Self = Status(15);

    /// Its number in cublas_api.h.
    #[cfg(test)]
    pub(super) fn code(self) -> c_int {
        self.0
    }

    /// `Err` of any status other than success.
    pub(super) fn result(self) -> std::result::Result<(), Status> {
        if self == Status::SUCCESS { Ok(()) } else { Err(self) }
    }
}

/// Status of a call that returned none of its results.
pub(super) type Result<T> = std::result::Result<T, Status>;

type Handle = sys::cublasLtHandle_t;
type Operation = sys::cublasLtMatmulDesc_t;
type Layout = sys::cublasLtMatrixLayout_t;
type Preference = sys::cublasLtMatmulPreference_t;
type Algorithm = sys::cublasLtMatmulAlgo_t;
type Read = *const c_void;

/// Attributes of `cublasLtMatmulAlgoConfigAttributes_t`, numbered from 0.
pub(super) const N_CONFIGURED: usize = 9;
/// The first one that has two bytes instead of four.
const FIRST_OF_TWO_BYTES: usize = 7;

crate::library_functions! {
    /// cuBLASLt's functions. Arguments as in cublasLt.h.
    pub(super) struct CublasLt {
        get_version = "cublasLtGetVersion": fn() -> usize;
        status_name = "cublasLtGetStatusName": fn(Status) -> *const c_char;
        create = "cublasLtCreate": fn(*mut Handle) -> Status;
        operation_create = "cublasLtMatmulDescCreate": fn(*mut Operation, c_int, c_int) -> Status;
        operation_destroy = "cublasLtMatmulDescDestroy": fn(Operation) -> Status;
        operation_set = "cublasLtMatmulDescSetAttribute": fn(Operation, c_int, Read, usize) -> Status;
        layout_create = "cublasLtMatrixLayoutCreate": fn(*mut Layout, c_int, u64, u64, i64) -> Status;
        layout_set = "cublasLtMatrixLayoutSetAttribute": fn(Layout, c_int, Read, usize) -> Status;
        layout_destroy = "cublasLtMatrixLayoutDestroy": fn(Layout) -> Status;
        preference_create = "cublasLtMatmulPreferenceCreate": fn(*mut Preference) -> Status;
        preference_destroy = "cublasLtMatmulPreferenceDestroy": fn(Preference) -> Status;
        preference_set = "cublasLtMatmulPreferenceSetAttribute": fn(Preference, c_int, Read, usize) -> Status;
        heuristic = "cublasLtMatmulAlgoGetHeuristic":
            fn(Handle, Operation, Layout, Layout, Layout, Layout, Preference, c_int, *mut Heuristic, *mut c_int)
                -> Status;
        algorithm_get = "cublasLtMatmulAlgoConfigGetAttribute":
            fn(*const Algorithm, c_int, *mut c_void, usize, *mut usize) -> Status;
        matmul = "cublasLtMatmul":
            fn(Handle, Operation, Read, Read, Layout, Read, Layout, Read, Read, Layout, *mut c_void, Layout,
                *const Algorithm, *mut c_void, usize, *mut c_void) -> Status;
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub(super) struct Heuristic {
    pub(super) algorithm: Algorithm,
    pub(super) workspace_bytes: usize,
    pub(super) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Heuristic {
    /// A result to be filled in.
    pub(super) fn empty() -> Self {
        let algorithm = Algorithm { data: [0; 8] };
        Heuristic {
            algorithm,
            workspace_bytes: 0,
            state: Status::NOT_SUPPORTED,
            waves: 0.0,
            reserved: [0; 4],
        }
    }
}

impl CublasLt {
    /// The library's functions; `driver_version` as in [`library::open`].
    ///
    /// # Errors
    /// The reason that there is no library, or no usable one.
    pub(super) fn open(driver_version: i32) -> std::result::Result<&'static CublasLt, &'static str> {
        static FUNCTIONS: OnceLock<std::result::Result<CublasLt, String>> = OnceLock::new();
        let load = || {
            let library = library::open(Library::CublasLt, driver_version)?;
            Self::find(library).map_err(|name| format!("{} has no function {name}", library.path.display()))
        };
        FUNCTIONS.get_or_init(load).as_ref().map_err(String::as_str)
    }

    /// The version, as `13.1.0`.
    pub(super) fn version(&self) -> String {
        // SAFETY: the call has no arguments.
        let version = unsafe { (self.get_version)() };
        // 10,000 · major + 100 · minor + patch since 11.
        format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
    }

    /// The values that configure an algorithm: its number, tile, split of the sum and others; None if the library does not tell them. The
    /// bytes of an algorithm may hold more, such as addresses of this process.
    pub(super) fn configuration(&self, algorithm: &Algorithm) -> Option<[u32; N_CONFIGURED]> {
        let value = |attribute: usize| {
            let (mut value, mut written) = (0_u32, 0);
            let bytes = if attribute < FIRST_OF_TWO_BYTES { size_of::<u32>() } else { size_of::<u16>() };
            // SAFETY: the algorithm is the library's own, and the pointer is valid for the attribute's bytes, the low ones of a number.
            let status = unsafe {
                (self.algorithm_get)(
                    algorithm,
                    attribute as c_int,
                    (&raw mut value).cast(),
                    bytes,
                    &raw mut written,
                )
            };
            status.result().map(|()| value)
        };
        let mut values = [value(0).ok()?; N_CONFIGURED];
        for (attribute, to) in values.iter_mut().enumerate().skip(1) {
            // An older library does not know the last ones.
            *to = value(attribute).unwrap_or(0);
        }
        Some(values)
    }

    /// The library's name of a status.
    pub(super) fn name_of(&self, status: Status) -> String {
        // SAFETY: any value is allowed.
        let name = unsafe { (self.status_name)(status) };
        if name.is_null() {
            return format!("status {}", status.0);
        }
        // SAFETY: the library's names are constants that end in a zero byte.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_laid_out_as_in_cublas_lt_h() {
        assert_eq!(size_of::<Heuristic>(), size_of::<sys::cublasLtMatmulHeuristicResult_t>());
        assert_eq!(
            std::mem::offset_of!(Heuristic, state),
            std::mem::offset_of!(sys::cublasLtMatmulHeuristicResult_t, state)
        );
        use sys::cublasStatus_t as S;
        assert_eq!(Status::NOT_SUPPORTED, Status(S::CUBLAS_STATUS_NOT_SUPPORTED as c_int));
        assert_eq!(Status::INVALID_VALUE, Status(S::CUBLAS_STATUS_INVALID_VALUE as c_int));
        assert_eq!(Status::ARCH_MISMATCH, Status(S::CUBLAS_STATUS_ARCH_MISMATCH as c_int));
    }
}
