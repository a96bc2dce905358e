//! Return codes of MPI as errors, and MPI's names of our types.

use std::ffi::c_int;

use ddp_kernels::DType;
use mpi::ffi;

use crate::{Call, CallKind, CommError, ReduceOp, Result};

/// Bytes for an error's text, enough for every MPI library (`MPI_MAX_ERROR_STRING` is 256 to 1024).
const MAX_ERROR_TEXT: usize = 4096;

/// Turns a return code into a result.
pub(super) fn check(call: &'static str, status: c_int) -> Result<()> {
    // MPI_SUCCESS is 0 in the standard.
    if status == 0 {
        return Ok(());
    }
    let mut text = [0u8; MAX_ERROR_TEXT];
    let mut len: c_int = 0;
    // SAFETY: the buffer is larger than any MPI's longest text, and `len` is writable.
    let found = unsafe { ffi::MPI_Error_string(status, text.as_mut_ptr().cast(), &raw mut len) };
    let text = match usize::try_from(len) {
        Ok(len) if found == 0 && len > 0 => String::from_utf8_lossy(&text[..len]).into_owned(),
        _ => format!("MPI error {status}"),
    };
    Err(CommError::Mpi { call, text })
}

/// MPI's name of an element type.
pub(super) fn datatype(dtype: DType) -> ffi::MPI_Datatype {
    match dtype {
        // SAFETY: for each: a constant of the MPI library.
        DType::F32 => unsafe { ffi::RSMPI_FLOAT },
        // SAFETY: as above.
        DType::F64 => unsafe { ffi::RSMPI_DOUBLE },
        // SAFETY: as above.
        DType::I64 => unsafe { ffi::RSMPI_INT64_T },
        // SAFETY: as above.
        DType::U8 | DType::Bool => unsafe { ffi::RSMPI_UINT8_T },
        // SAFETY: as above.
        DType::I32 => unsafe { ffi::RSMPI_INT32_T },
        // MPI has no such types: it moves them as 16-bit words, and `can_reduce` refuses to reduce them.
        // SAFETY: as above.
        DType::BF16 | DType::F16 => unsafe { ffi::RSMPI_UINT16_T },
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

/// MPI's name of a reduction.
pub(super) fn operation(op: ReduceOp) -> ffi::MPI_Op {
    match op {
        // SAFETY: for each: a constant of the MPI library.
        ReduceOp::Sum => unsafe { ffi::RSMPI_SUM },
        // SAFETY: as above.
        ReduceOp::Max => unsafe { ffi::RSMPI_MAX },
        // SAFETY: as above.
        ReduceOp::Min => unsafe { ffi::RSMPI_MIN },
    }
}

/// A count in the type that MPI takes.
pub(super) fn count(op: &'static str, len: usize) -> Result<c_int> {
    let max = c_int::MAX as usize;
    c_int::try_from(len).map_err(|_| CommError::TooManyElements { op, len, max })
}
