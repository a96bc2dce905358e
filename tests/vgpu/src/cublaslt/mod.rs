//! libcublasLt: handles, descriptors, the search for an algorithm, and the multiplication with the epilogues of a
//! dense layer. It follows the cuBLAS documentation ("Using the cuBLASLt API") and the comments of cublasLt.h.
//!
//! Not implemented: batches with an epilogue, orders other than column-major, FP8 and its scales, scalars in device memory,
//! transforms.
mod desc;
mod heuristic;
mod matmul;
mod problem;
mod record;
mod types;

use crate::abi::{self, Void, api};
use crate::counts::Counter;
use crate::driver::{self, handle::Registry};
use desc::Kind;
use heuristic::{Algo, Choice, HeuristicResult};
use matmul::Matmul;
use problem::{Descriptors, Problem, misuse};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::Arc;
use types::Compute;

/// `cublasStatus_t`
type Status = i32;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// 13.0.2, in the library's encoding.
const VERSION: usize = 130_002;

/// A `cublasLtHandle_t` belongs to the device that was current when it was made.
struct Library {
    device: usize,
}

static LIBRARIES: Registry<Library> = Registry::new("cublasLt");

fn library(handle: usize) -> Result<Arc<Library>, Status> {
    LIBRARIES.get(handle).map_err(|_| NOT_INITIALIZED)
}

/// Writes the result of a call to the caller's pointer.
fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    abi::put(to, value).map_err(|_| INVALID_VALUE)
}

api! {
    fn cublasLtCreate(handle: *mut usize) {
        let device = driver::current().map_err(|_| NOT_INITIALIZED)?.device;
        put(handle, LIBRARIES.insert(Arc::new(Library { device })))?;
    }
    fn cublasLtDestroy(handle: usize) {
        library(handle)?;
        LIBRARIES.remove(handle).map_err(|_| NOT_INITIALIZED)?;
    }
    fn cublasLtGetProperty(kind: c_int, value: *mut c_int) {
        let part = match kind {
            0 => VERSION / 10_000,
            1 => VERSION / 100 % 100,
            2 => VERSION % 100,
            _ => return Err(INVALID_VALUE),
        };
        put(value, part as c_int)?;
    }

    fn cublasLtMatmulDescCreate(handle: *mut usize, compute: c_uint, scale: c_uint) {
        let given = [(desc::operation::COMPUTE_TYPE, compute.into()), (desc::operation::SCALE_TYPE, scale.into())];
        put(handle, desc::create(Kind::Operation, &given))?;
    }
    fn cublasLtMatmulDescDestroy(handle: usize) { desc::destroy(Kind::Operation, handle)? }
    fn cublasLtMatmulDescSetAttribute(handle: usize, attribute: c_uint, from: *const u8, size: usize) {
        desc::set(Kind::Operation, handle, attribute, from, size)?;
    }
    fn cublasLtMatmulDescGetAttribute(
        handle: usize, attribute: c_uint, to: *mut u8, size: usize, written: *mut usize,
    ) {
        desc::get(Kind::Operation, handle, attribute, to, size, written)?;
    }

    fn cublasLtMatrixLayoutCreate(handle: *mut usize, dtype: c_uint, rows: u64, cols: u64, ld: i64) {
        let given = [
            (desc::layout::TYPE, dtype.into()),
            (desc::layout::ROWS, rows),
            (desc::layout::COLS, cols),
            (desc::layout::LD, ld as u64),
        ];
        put(handle, desc::create(Kind::Layout, &given))?;
    }
    fn cublasLtMatrixLayoutDestroy(handle: usize) { desc::destroy(Kind::Layout, handle)? }
    fn cublasLtMatrixLayoutSetAttribute(handle: usize, attribute: c_uint, from: *const u8, size: usize) {
        desc::set(Kind::Layout, handle, attribute, from, size)?;
    }
    fn cublasLtMatrixLayoutGetAttribute(
        handle: usize, attribute: c_uint, to: *mut u8, size: usize, written: *mut usize,
    ) {
        desc::get(Kind::Layout, handle, attribute, to, size, written)?;
    }

    fn cublasLtMatmulPreferenceCreate(handle: *mut usize) {
        put(handle, desc::create(Kind::Preference, &[]))?;
    }
    fn cublasLtMatmulPreferenceDestroy(handle: usize) { desc::destroy(Kind::Preference, handle)? }
    fn cublasLtMatmulPreferenceSetAttribute(handle: usize, attribute: c_uint, from: *const u8, size: usize) {
        desc::set(Kind::Preference, handle, attribute, from, size)?;
    }
    fn cublasLtMatmulPreferenceGetAttribute(
        handle: usize, attribute: c_uint, to: *mut u8, size: usize, written: *mut usize,
    ) {
        desc::get(Kind::Preference, handle, attribute, to, size, written)?;
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: usize, operation: usize, a: usize, b: usize, c: usize, d: usize, preference: usize,
        requested: c_int, results: *mut HeuristicResult, found: *mut c_int,
    ) {
        library(handle)?;
        if requested <= 0 || results.is_null() {
            return Err(INVALID_VALUE);
        }
        put(found, 0)?;
        let mut n_found = 0;
        let all = heuristic::search(Descriptors { operation, a, b, c, d }, preference)?;
        for (i, result) in all.into_iter().take(requested as usize).enumerate() {
            // SAFETY: the function's contract: there is room for `requested` results.
            unsafe { results.wrapping_add(i).write(result) };
            n_found += 1;
        }
        put(found, n_found)?;
    }

    fn cublasLtMatmulAlgoConfigGetAttribute(
        algo: *const Algo, attribute: c_uint, to: *mut u8, size: usize, written: *mut usize,
    ) {
        // SAFETY: the function's contract: an algorithm.
        let algo = unsafe { algo.as_ref() }.ok_or(INVALID_VALUE)?;
        let (value, bytes) = heuristic::configuration(algo, attribute)?;
        if size != bytes {
            return Err(INVALID_VALUE);
        }
        if size == size_of::<u32>() { put(to.cast(), value)? } else { put(to.cast(), value as u16)? }
        abi::put_if_wanted(written, size);
    }

    fn cublasLtMatmul(
        handle: usize, operation: usize, alpha: *const Void, a: u64, a_layout: usize, b: u64, b_layout: usize,
        beta: *const Void, c: u64, c_layout: usize, d: u64, d_layout: usize, algo: *const Algo,
        workspace: u64, workspace_bytes: usize, stream: *mut Void,
    ) {
        let library = library(handle)?;
        let stream = driver::stream(stream).map_err(|_| EXECUTION_FAILED)?;
        let handles = Descriptors { operation, a: a_layout, b: b_layout, c: c_layout, d: d_layout };
        let problem = Problem::read(handles)?;
        if stream.device != library.device {
            let what = format!(
                "{}: the handle belongs to device {}, the stream to device {}",
                problem.describe(), library.device, stream.device
            );
            return Err(misuse(INVALID_VALUE, what));
        }
        // SAFETY: the function's contract: null, or an algorithm.
        let choice = match unsafe { algo.as_ref() } {
            Some(algo) => Choice::decode(algo, &problem)?,
            None => Choice::implicit(&problem)?,
        };
        if alpha.is_null() || beta.is_null() {
            return Err(misuse(INVALID_VALUE, format!("{}: alpha or beta is null", problem.describe())));
        }
        let (alpha, beta) = (scalar(alpha, problem.compute)?, scalar(beta, problem.compute)?);
        let matmul = Matmul { problem, alpha, beta, a, b, c, d, workspace, choice };
        matmul.check(workspace_bytes as u64)?;
        matmul.enqueue(&stream);
    }
}

/// alpha or beta, which have the scale type: f64 with `COMPUTE_64F`, else f32.
fn scalar(from: *const Void, compute: Compute) -> Result<f64, Status> {
    match compute {
        Compute::F64 => abi::get(from.cast::<f64>()),
        Compute::F32 | Compute::Tf32 => abi::get(from.cast::<f32>()).map(f64::from),
    }
    .map_err(|_| INVALID_VALUE)
}

/// The version of the library: 10000 * major + 100 * minor + patch.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn cublasLtGetVersion() -> usize {
    static CALLS: Counter = Counter::new("cublasLtGetVersion");
    CALLS.hit();
    VERSION
}

/// The version of the runtime with which the library was built.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn cublasLtGetCudartVersion() -> usize {
    static CALLS: Counter = Counter::new("cublasLtGetCudartVersion");
    CALLS.hit();
    13_000
}

/// The name of a status in the header.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn cublasLtGetStatusName(status: c_int) -> *const c_char {
    status_texts(status).0.as_ptr()
}

/// Meaning of a status.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn cublasLtGetStatusString(status: c_int) -> *const c_char {
    status_texts(status).1.as_ptr()
}

fn status_texts(status: Status) -> (&'static CStr, &'static CStr) {
    match status {
        0 => (c"CUBLAS_STATUS_SUCCESS", c"success"),
        NOT_INITIALIZED => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
        3 => (c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
        INVALID_VALUE => {
            (c"CUBLAS_STATUS_INVALID_VALUE", c"an unsupported value or parameter was passed to the function")
        }
        8 => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"a feature is missing from the device architecture"),
        11 => (c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
        EXECUTION_FAILED => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"the GPU program failed to execute"),
        14 => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
        NOT_SUPPORTED => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality requested is not supported"),
        16 => (c"CUBLAS_STATUS_LICENSE_ERROR", c"the functionality requested requires some license"),
        _ => (c"unknown cublasStatus_t", c"unknown cublasStatus_t"),
    }
}
