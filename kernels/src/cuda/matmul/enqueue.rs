//! Enqueues matmuls by the plan of their key.

use std::collections::HashMap;

use super::timing::cublas_error;
use crate::base::memory_use::MemoryUse;
use crate::cuda::blas::{
    Blas, Epilogue, Key, Matmul, Operands, Plan, Scales, Subject, WORKSPACE_BYTES, is_unsupported,
};
use crate::cuda::cublas_lt::CublasLt;
use crate::cuda::driver::driver;
use crate::cuda::feature::GpuFeature;
use crate::cuda::gpu::Gpu;
use crate::cuda::library::Library;
use crate::cuda::memory::DeviceBuffer;
use crate::{KernelError, Result};

impl Gpu {
    /// The handle of cuBLASLt, made on first use.
    pub(super) fn blas(&'static self) -> Result<&'static Blas> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let driver_version = driver().map_or(0, |driver| driver.library_version);
        let lt = CublasLt::open(driver_version).map_err(|why| KernelError::DeviceUnavailable {
            device: self.device(),
            reason: format!("no matmul library: {why}"),
            hint: Library::CublasLt.hint().to_owned(),
        })?;
        let workspace = DeviceBuffer::new(self, WORKSPACE_BYTES, MemoryUse::Workspace)?;
        let made = Blas::new(lt, workspace.ptr());
        let made = made.map_err(|status| cublas_error(self, lt, "cublasLtCreate", status))?;
        // The handle uses the workspace as long as the process.
        Ok(self.blas.get_or_init(|| {
            workspace.leak();
            made
        }))
    }

    /// Enqueues the matmul on the compute stream; returns false, having done nothing, if there is no algorithm with this epilogue.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if the library is missing; [`KernelError::Cublas`].
    ///
    /// # Safety
    /// The operands are on this device, of the sizes in the description, and alive until the work is complete or freed after it in
    /// the stream; C overlaps none of the others.
    pub(crate) unsafe fn matmul(
        &'static self,
        matmul: Matmul,
        scales: Scales,
        operands: Operands,
    ) -> Result<bool> {
        if self.leaves_out(matmul.epilogue) {
            return Ok(false);
        }
        self.bind()?;
        let blas = self.blas()?;
        let mut plans = blas.plans();
        let key = Key::new(matmul, operands, self.matmul_conditions());
        // SAFETY: as this function's.
        let plan = unsafe { blas.plan(self, &mut plans, key, scales, operands) }?;
        let Some(plan) = plan else { return Ok(false) };
        // SAFETY: the caller guarantees the operands.
        match unsafe { blas.launch(self.compute(), plan, matmul, scales, operands) } {
            // The heuristic saw no pointers of matrices; the call itself may still reject them.
            Err(status) if matmul.epilogue != Epilogue::None && is_unsupported(status) => {
                plans.insert(key, None);
                Ok(false)
            }
            other => {
                other.map_err(|status| cublas_error(self, blas.lt, "cublasLtMatmul", status)).map(|()| true)
            }
        }
    }

    /// Whether matmuls do without this epilogue.
    fn leaves_out(&self, epilogue: Epilogue) -> bool {
        epilogue != Epilogue::None && !self.uses(GpuFeature::FusedEpilogues)
    }

    /// Whether there is an algorithm for this matmul with its epilogue.
    ///
    /// # Errors
    /// Same as [`Gpu::matmul`].
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`].
    pub(super) unsafe fn is_supported(&'static self, matmul: Matmul, mut operands: Operands) -> Result<bool> {
        if self.leaves_out(matmul.epilogue) {
            return Ok(false);
        }
        let blas = self.blas()?;
        if !matmul.epilogue.takes_bias() {
            operands.bias = 0;
        }
        if matmul.epilogue.aux_row(1).is_none() {
            operands.aux = 0;
        }
        let mut plans = blas.plans();
        let key = Key::new(matmul, operands, self.matmul_conditions());
        // SAFETY: as this function's.
        Ok(unsafe { blas.plan(self, &mut plans, key, Scales::overwrite(), operands) }?.is_some())
    }
}

impl Blas {
    /// The plan of a key, made in its first use; None if there is no algorithm.
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`].
    unsafe fn plan<'a>(
        &self,
        gpu: &'static Gpu,
        plans: &'a mut HashMap<Key, Option<Plan>>,
        key: Key,
        scales: Scales,
        operands: Operands,
    ) -> Result<Option<&'a Plan>> {
        let is_open = self.choices().is_open(Subject::Algorithm, &key, gpu.is_choosing());
        if is_open || !plans.contains_key(&key) {
            let mut plan = self
                .new_plan(&key)
                .map_err(|status| cublas_error(gpu, self.lt, "cublasLtMatmulAlgoGetHeuristic", status))?;
            match &mut plan {
                // SAFETY: as this function's.
                Some(plan) if is_open => unsafe { self.choose_algorithm(gpu, &key, plan, scales, operands) }?,
                None => self.choices().settle(Subject::Algorithm, &key, None),
                Some(_) => {}
            }
            plans.insert(key, plan);
        }
        Ok(plans.get(&key).and_then(Option::as_ref))
    }
}
