//! A device's handle of cuBLASLt, with its plans and choices.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdeviceptr;

use super::choice::Choices;
use super::plan::{Plan, WORKSPACE_BYTES};
use super::problem::{Conditions, Epilogue, Key, Matmul, Operands, Scales};
use crate::DType;
use crate::cuda::context::Stream;
use crate::cuda::cublas_lt::{self, CublasLt, Status};

/// A device's handle, scratch and plans.
pub(crate) struct Blas {
    pub(in crate::cuda) lt: &'static CublasLt,
    pub(in crate::cuda) handle: sys::cublasLtHandle_t,
    /// Address of [`WORKSPACE_BYTES`], kept as long as the process.
    workspace: CUdeviceptr,
    plans: Mutex<HashMap<Key, Option<Plan>>>,
    choices: Mutex<Choices>,
}

// SAFETY: a cuBLASLt handle may be used from any thread; descriptors are used under the lock of the plans.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Blas {
    /// Creates the handle; the device's context is current, and `workspace` are [`WORKSPACE_BYTES`] on it for this handle alone.
    pub(in crate::cuda) fn new(lt: &'static CublasLt, workspace: CUdeviceptr) -> cublas_lt::Result<Self> {
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for one handle.
        unsafe { (lt.create)(&raw mut handle) }.result()?;
        Ok(Blas { lt, handle, workspace, plans: Mutex::default(), choices: Mutex::default() })
    }

    /// The plans by key; None if there is no algorithm.
    pub(in crate::cuda) fn plans(&self) -> MutexGuard<'_, HashMap<Key, Option<Plan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The choices by time.
    pub(in crate::cuda) fn choices(&self) -> MutexGuard<'_, Choices> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan with the algorithm that the heuristic ranks first, if there is one.
    pub(in crate::cuda) fn new_plan(&self, key: &Key) -> cublas_lt::Result<Option<Plan>> {
        let matmul = key.matmul;
        if !key.may_be_fused() {
            return Ok(None);
        }
        match Plan::new(self.lt, self.handle, key) {
            Ok(plan) => Ok(Some(plan)),
            Err(status) if key.conditions.n_free > 0 && is_unsupported(status) => {
                let conditions = Conditions { n_free: 0, ..key.conditions };
                self.new_plan(&Key { conditions, ..*key })
            }
            // A plain matmul must be possible; one with an epilogue may not be.
            Err(status) if matmul.epilogue != Epilogue::None && is_unsupported(status) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enqueues a planned matmul on this stream, with the handle's scratch memory, or `workspace` of the same size, which no other stream
    /// uses meanwhile.
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`](crate::cuda::Gpu::matmul); `plan` belongs to `matmul`.
    pub(in crate::cuda) unsafe fn launch(
        &self,
        (compute, workspace): (&Stream, Option<CUdeviceptr>),
        plan: &Plan,
        matmul: Matmul,
        scales: Scales,
        operands: Operands,
    ) -> cublas_lt::Result<()> {
        plan.point_to(operands.bias, operands.aux, matmul.epilogue)?;
        let Scales { alpha, beta } = scales;
        let (alpha_32, beta_32) = (alpha as f32, beta as f32);
        let [alpha, beta] = if matmul.output == DType::F64 {
            [(&raw const alpha).cast::<c_void>(), (&raw const beta).cast()]
        } else {
            [(&raw const alpha_32).cast(), (&raw const beta_32).cast()]
        };
        // SAFETY: the plan's descriptors are alive and match the operands, which the caller guarantees; a and b swap places as
        // described above; scratch and stream are this device's, and all matmuls with this scratch are ordered on that stream.
        let launched = unsafe {
            (self.lt.matmul)(
                self.handle,
                plan.description,
                alpha,
                operands.b as *const c_void,
                plan.a,
                operands.a as *const c_void,
                plan.b,
                beta,
                operands.c as *const c_void,
                plan.c,
                operands.c as *mut c_void,
                plan.c,
                &raw const plan.algorithm,
                workspace.unwrap_or(self.workspace) as *mut c_void,
                WORKSPACE_BYTES,
                compute.raw().cast(),
            )
        };
        launched.result()
    }
}

/// Whether the library has no algorithm for the matmul.
pub(in crate::cuda) fn is_unsupported(status: Status) -> bool {
    matches!(status, Status::NOT_SUPPORTED | Status::INVALID_VALUE | Status::ARCH_MISMATCH)
}
