//! Return codes of MPI as errors, and MPI's names of our types.

use std::ffi::c_int;

use ddp_kernels::DType;

use crate::mpi_library::{Handle, Mpi};
use crate::{Call, CallKind, CommError, Result};

/// Bytes for an error's text, enough for every MPI library (`MPI_MAX_ERROR_STRING` is 256 to 1024).
const MAX_ERROR_TEXT: usize = 4096;

/// Turns a return code into a result.
pub(super) fn check(mpi: &Mpi, call: &'static str, status: c_int) -> Result<()> {
    // MPI_SUCCESS is 0 in the standard.
    if status == 0 {
        return Ok(());
    }
    let mut text = [0u8; MAX_ERROR_TEXT];
    let mut len: c_int = 0;
    // SAFETY: the buffer is larger than any MPI's longest text, and `len` is writable.
    let found = unsafe { (mpi.calls.MPI_Error_string)(status, text.as_mut_ptr().cast(), &raw mut len) };
    let text = match usize::try_from(len) {
        Ok(len) if found == 0 && len > 0 => String::from_utf8_lossy(&text[..len]).into_owned(),
        _ => format!("MPI error {status}"),
    };
    Err(CommError::Mpi { call, text })
}

/// MPI's name of an element type.
pub(super) fn datatype(mpi: &Mpi, dtype: DType) -> Handle {
    let types = &mpi.constants;
    match dtype {
        DType::F32 => types.float,
        DType::F64 => types.double,
        DType::I64 => types.int64,
        DType::U8 | DType::Bool => types.uint8,
        DType::I32 => types.int32,
        // MPI has no such types: it moves them as 16-bit words, and `can_reduce` refuses to reduce them.
        DType::BF16 | DType::F16 => types.uint16,
    }
}

/// Checks that MPI can reduce the type of `call`.
pub(super) fn can_reduce(call: Call) -> Result<()> {
    let is_reduction = matches!(call.kind, CallKind::AllReduce(_) | CallKind::ReduceScatter(_));
    if is_reduction && matches!(call.dtype, DType::BF16 | DType::F16) {
        return Err(CommError::NotReducible { call });
    }
    Ok(())
}

/// A count in the type that MPI takes.
pub(super) fn count(op: &'static str, len: usize) -> Result<c_int> {
    let max = c_int::MAX as usize;
    c_int::try_from(len).map_err(|_| CommError::TooManyElements { op, len, max })
}
