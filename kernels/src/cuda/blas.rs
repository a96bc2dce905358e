//! Matmuls by cuBLASLt with fused epilogues: one plan per shape, created once.
//!
//! A plan holds the descriptors, the layouts and an algorithm; it is cached under a key of everything that it depends on, so each
//! matmul of a step costs one call. The algorithm is the one that cuBLASLt's heuristic ranks first, unless another was chosen by
//! time (`timing.rs`, `choice.rs`). If the heuristic has no algorithm with the requested epilogue, the plan records that and the
//! caller runs the parts one by one.
//!
//! cuBLASLt is column-major. A row-major `[R, C]` is the column-major `[C, R]` of the same bytes, so `C = A·B` is computed as
//! `Cᵀ = Bᵀ·Aᵀ`: operands swap places and nothing is transposed.
//!
//! Source: cuBLAS documentation, "Using the cuBLASLt API", cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t.

mod choice;
mod epilogue;
mod timing;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdeviceptr;

use super::cublas_lt::{self, CublasLt, Heuristic, Status};
use super::driver::driver;
use super::library::Library;
use super::memory::DeviceBuffer;
use super::{Gpu, MemoryUse};
use crate::ops::MatmulMode;
pub use choice::MatmulChoice;
use choice::{Choices, Subject};
pub(crate) use epilogue::{Epilogue, relu_mask_row_bits};

use crate::{DType, KernelError, Result};

/// Scratch memory of all matmuls of a device: the size that NVIDIA recommends for Hopper, and enough for split-k on others.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// Allowed reductions of split sums over k: any that cuBLASLt has, or only those out of place in a separate pass, whose order
/// is fixed (cublasLtReductionScheme_t; unsplit sums are always allowed).
const ALL_SCHEMES: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK as u32;
const OUT_OF_PLACE: u32 =
    ALL_SCHEMES & !(sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32);
/// Reduction schemes that keep partial sums in f32, whatever the dtype of the result: the others keep them in that dtype.
const IN_SINGLE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

/// Largest alignment in bytes that makes a difference.
pub(crate) const MAX_ALIGNMENT: usize = 256;

/// `C[M, N] = alpha · op(A)[M, K] · op(B)[K, N] + beta · C`, all row-major and contiguous: once, or for each matrix of a
/// contiguous batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    /// Number of products.
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    /// Of A and B.
    pub(crate) inputs: DType,
    pub(crate) output: DType,
    pub(crate) mode: MatmulMode,
    pub(crate) epilogue: Epilogue,
}

impl Matmul {
    /// Whether cuBLASLt may be asked for this epilogue in this shape. It supports the values before a GELU only in rows of multiples
    /// of 8. For products of vectors, such as the gradients of a single target or of a batch of one row, it has no derivatives of
    /// activations, and gradients of a bias that cannot be relied on: nvmath-python excludes both.
    fn may_be_fused(&self) -> bool {
        let has_aux_rows = self.epilogue.aux_row(self.n).is_none_or(|row| row.is_multiple_of(8));
        let is_defined = match self.epilogue {
            Epilogue::DRelu | Epilogue::DGelu => self.k > 1,
            Epilogue::BiasGradient => ![self.m, self.n, self.k].contains(&1),
            _ => true,
        };
        has_aux_rows && is_defined
    }
}

/// Factors of a matmul's result and of the previous contents of C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales {
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
}

impl Scales {
    /// `C = op(A) · op(B)`; C is not read.
    pub(crate) fn overwrite() -> Self {
        Scales { alpha: 1.0, beta: 0.0 }
    }
}

/// Addresses of a matmul's operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) a: CUdeviceptr,
    pub(crate) b: CUdeviceptr,
    pub(crate) c: CUdeviceptr,
    /// Bias of the epilogue, read or written; 0 for none.
    pub(crate) bias: CUdeviceptr,
    /// Aux of the epilogue, read or written; 0 for none.
    pub(crate) aux: CUdeviceptr,
}

/// A device's handle, scratch and plans.
pub(crate) struct Blas {
    lt: &'static CublasLt,
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    plans: Mutex<HashMap<Key, Option<Plan>>>,
    choices: Mutex<Choices>,
}

// SAFETY: a cuBLASLt handle may be used from any thread; descriptors are used under the lock of the plans.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// Everything that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    matmul: Matmul,
    aligned_to: AlignedTo,
    /// [`Gpu::is_deterministic`] when the matmul was enqueued.
    is_deterministic: bool,
}

/// Alignments of a matmul's operands in bytes: powers of two, at most 256; 256 for an operand that is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct AlignedTo {
    a: u32,
    b: u32,
    c: u32,
    bias: u32,
    aux: u32,
}

impl Key {
    fn new(matmul: Matmul, operands: Operands, is_deterministic: bool) -> Self {
        let of = |address: CUdeviceptr| match address {
            0 => MAX_ALIGNMENT as u32,
            _ => 1 << address.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros()),
        };
        let Operands { a, b, c, bias, aux } = operands;
        // All matrices of a batch have the alignment, which is that of the first one and of their distance.
        let Matmul { batch, m, n, k, inputs, output, .. } = matmul;
        let each = |address: CUdeviceptr, numel: usize, dtype: DType| match batch {
            2.. => of(address | (numel * dtype.size_bytes()) as CUdeviceptr),
            _ => of(address),
        };
        let (a, b, c) = (each(a, m * k, inputs), each(b, k * n, inputs), each(c, m * n, output));
        let aligned_to = AlignedTo { a, b, c, bias: of(bias), aux: of(aux) };
        Key { matmul, aligned_to, is_deterministic }
    }
}

struct Plan {
    lt: &'static CublasLt,
    description: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Gpu {
    fn blas(&'static self) -> Result<&'static Blas> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let made = Blas::new(self)?;
        Ok(self.blas.get_or_init(|| made))
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
        self.bind()?;
        let blas = self.blas()?;
        let mut plans = blas.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::new(matmul, operands, self.is_deterministic());
        // SAFETY: as this function's.
        let plan = unsafe { blas.plan(self, &mut plans, key, scales, operands) }?;
        let Some(plan) = plan else { return Ok(false) };
        // SAFETY: the caller guarantees the operands.
        match unsafe { blas.launch(self, plan, matmul, scales, operands) } {
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

    /// Whether there is an algorithm for this matmul with its epilogue.
    ///
    /// # Errors
    /// Same as [`Gpu::matmul`].
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`].
    unsafe fn is_supported(&'static self, matmul: Matmul, mut operands: Operands) -> Result<bool> {
        let blas = self.blas()?;
        if !matmul.epilogue.takes_bias() {
            operands.bias = 0;
        }
        if matmul.epilogue.aux_row(1).is_none() {
            operands.aux = 0;
        }
        let mut plans = blas.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::new(matmul, operands, self.is_deterministic());
        // SAFETY: as this function's.
        Ok(unsafe { blas.plan(self, &mut plans, key, Scales::overwrite(), operands) }?.is_some())
    }
}

fn cublas_error(gpu: &Gpu, lt: &CublasLt, call: &'static str, status: Status) -> KernelError {
    KernelError::Cublas { device: gpu.device(), call, code: lt.name_of(status) }
}

impl Blas {
    fn new(gpu: &'static Gpu) -> Result<Self> {
        let driver_version = driver().map_or(0, |driver| driver.version);
        let lt = CublasLt::open(driver_version).map_err(|why| KernelError::DeviceUnavailable {
            device: gpu.device(),
            reason: format!("no matmul library: {why}"),
            hint: Library::CublasLt.hint().to_owned(),
        })?;
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for one handle; the device's context is current.
        let status = unsafe { (lt.create)(&raw mut handle) };
        status.result().map_err(|status| cublas_error(gpu, lt, "cublasLtCreate", status))?;
        let workspace = DeviceBuffer::new(gpu, WORKSPACE_BYTES, MemoryUse::Workspace)?;
        Ok(Blas { lt, handle, workspace, plans: Mutex::default(), choices: Mutex::default() })
    }

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

    /// The plan with the algorithm that the heuristic ranks first, if there is one.
    fn new_plan(&self, key: &Key) -> cublas_lt::Result<Option<Plan>> {
        let matmul = key.matmul;
        if !matmul.may_be_fused() {
            return Ok(None);
        }
        match Plan::new(self.lt, self.handle, key) {
            Ok(plan) => Ok(Some(plan)),
            // A plain matmul must be possible; one with an epilogue may not be.
            Err(status) if matmul.epilogue != Epilogue::None && is_unsupported(status) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enqueues a planned matmul on the compute stream.
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`]; the plan is that of the matmul.
    unsafe fn launch(
        &self,
        gpu: &'static Gpu,
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
        // described above; scratch and stream are this device's, and all its matmuls are ordered on that stream.
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
                self.workspace.ptr() as *mut c_void,
                WORKSPACE_BYTES,
                gpu.compute().raw().cast(),
            )
        };
        launched.result()
    }
}

/// Makes a layout that of so many matrices, which are `stride` elements apart.
fn set_batch(
    lt: &CublasLt,
    layout: sys::cublasLtMatrixLayout_t,
    batch: usize,
    stride: i64,
) -> cublas_lt::Result<()> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    // The library's limit is that of its type.
    let batch = i32::try_from(batch).map_err(|_| Status::INVALID_VALUE)?;
    let count = Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as i32;
    let distance = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as i32;
    // SAFETY: the layout is alive, and the value of the attribute's size is read before the call returns.
    unsafe { (lt.layout_set)(layout, count, (&raw const batch).cast(), size_of::<i32>()) }.result()?;
    // SAFETY: as above.
    unsafe { (lt.layout_set)(layout, distance, (&raw const stride).cast(), size_of::<i64>()) }.result()
}

fn is_unsupported(status: Status) -> bool {
    matches!(status, Status::NOT_SUPPORTED | Status::INVALID_VALUE | Status::ARCH_MISMATCH)
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        // The operation has rejected other types.
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => sys::cudaDataType::CUDA_R_32F,
    }
}

impl Plan {
    fn new(lt: &'static CublasLt, handle: sys::cublasLtHandle_t, key: &Key) -> cublas_lt::Result<Self> {
        let p = key.matmul;
        let compute = match (p.output, p.mode) {
            (DType::F64, _) => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
            (_, MatmulMode::Tf32) if p.inputs == DType::F32 => {
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
            }
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let scale = if p.output == DType::F64 { DType::F64 } else { DType::F32 };
        let inputs = data_type(p.inputs);
        // Stored row-major: A [M, K] or, transposed, [K, M]; B [K, N] or [N, K]. The same bytes column-major have rows and
        // columns exchanged.
        let stored =
            |rows: usize, cols: usize, transpose: bool| if transpose { (cols, rows) } else { (rows, cols) };
        let (a_rows, a_cols) = stored(p.m, p.k, p.transpose_a);
        let (b_rows, b_cols) = stored(p.k, p.n, p.transpose_b);
        let algorithm = Heuristic::empty().algorithm;
        let (description, a, b, c) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut plan = Plan { lt, description, a, b, c, algorithm };
        // SAFETY: the pointer is valid for one descriptor.
        unsafe { (lt.operation_create)(&raw mut plan.description, compute as i32, data_type(scale) as i32) }
            .result()?;
        let layouts = [
            (&mut plan.a, inputs, b_rows, b_cols),
            (&mut plan.b, inputs, a_rows, a_cols),
            (&mut plan.c, data_type(p.output), p.m, p.n),
        ];
        for (layout, dtype, rows, cols) in layouts {
            let (rows, cols, ld) = (rows as u64, cols as u64, cols.max(1) as i64);
            // SAFETY: the pointer is valid for one descriptor.
            unsafe { (lt.layout_create)(layout, dtype as i32, cols, rows, ld) }.result()?;
            if p.batch > 1 {
                set_batch(lt, *layout, p.batch, (rows * cols) as i64)?;
            }
        }
        let operation = |transpose: bool| i32::from(transpose); // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1.
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &operation(p.transpose_b))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &operation(p.transpose_a))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(p.epilogue.raw() as i32))?;
        if let Some(row) = p.epilogue.aux_row(p.n) {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(row as i64))?;
        }
        // The heuristic reads the alignment of these addresses, not the memory there.
        let AlignedTo { bias, aux, .. } = key.aligned_to;
        plan.point_to(bias.into(), aux.into(), p.epilogue)?;
        plan.algorithm = plan.choose(handle, key)?;
        Ok(plan)
    }

    /// The algorithm that the heuristic ranks first for these alignments and this workspace.
    fn choose(
        &self,
        handle: sys::cublasLtHandle_t,
        key: &Key,
    ) -> cublas_lt::Result<sys::cublasLtMatmulAlgo_t> {
        let best = self.candidates(handle, key, 1)?.swap_remove(0);
        best.state.result().map(|()| best.algorithm)
    }

    /// At least one and at most `n` algorithms for these alignments and this workspace, the best first.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`] if there is none.
    fn candidates(
        &self,
        handle: sys::cublasLtHandle_t,
        key: &Key,
        n: usize,
    ) -> cublas_lt::Result<Vec<Heuristic>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        // As for the layouts, our operands have swapped places.
        let AlignedTo { a: b, b: a, c, .. } = key.aligned_to;
        let mut preference = null_mut();
        // SAFETY: the pointer is valid for one descriptor.
        unsafe { (self.lt.preference_create)(&raw mut preference) }.result()?;
        let schemes = match (key.matmul.output, key.is_deterministic) {
            (DType::BF16 | DType::F16, _) => IN_SINGLE,
            (_, true) => OUT_OF_PLACE,
            (_, false) => ALL_SCHEMES,
        };
        let numbers = [
            (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ];
        let workspace = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = WORKSPACE_BYTES as u64;
        let set = |attribute, value: *const c_void, size| {
            // SAFETY: the preference is alive, and the value of the attribute's size is read before the call returns.
            unsafe { (self.lt.preference_set)(preference, attribute as i32, value, size) }.result()
        };
        let mut all_set = set(workspace, (&raw const bytes).cast(), size_of::<u64>());
        for (attribute, number) in &numbers {
            let number: *const u32 = number;
            all_set = all_set.and(set(*attribute, number.cast(), size_of::<u32>()));
        }
        let mut candidates: Vec<Heuristic> = (0..n).map(|_| Heuristic::empty()).collect();
        let mut n_found = 0;
        let found = all_set.and_then(|()| {
            let (layouts, operation) = ((self.a, self.b, self.c), self.description);
            let (a, b, c) = layouts;
            // SAFETY: all descriptors are alive; there is room for `n` results and one number.
            unsafe {
                (self.lt.heuristic)(
                    handle,
                    operation,
                    a,
                    b,
                    c,
                    c,
                    preference,
                    n as i32,
                    candidates.as_mut_ptr(),
                    &raw mut n_found,
                )
            }
            .result()
        });
        // SAFETY: created above, destroyed once.
        let _ = unsafe { (self.lt.preference_destroy)(preference) };
        found?;
        candidates.truncate(usize::try_from(n_found).unwrap_or(0));
        if candidates.is_empty() { Err(Status::NOT_SUPPORTED) } else { Ok(candidates) }
    }

    /// Sets the addresses of bias and aux in the descriptor.
    fn point_to(&self, bias: CUdeviceptr, aux: CUdeviceptr, epilogue: Epilogue) -> cublas_lt::Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        if epilogue.takes_bias() {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if epilogue.aux_row(1).is_some() {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux)?;
        }
        Ok(())
    }

    /// Sets an attribute of the operation's descriptor.
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> cublas_lt::Result<()> {
        let value = std::ptr::from_ref(value);
        // SAFETY: the descriptor is alive, and the value is read before the call returns.
        unsafe { (self.lt.operation_set)(self.description, attribute as i32, value.cast(), size_of::<T>()) }
            .result()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if !self.description.is_null() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { (self.lt.operation_destroy)(self.description) };
        }
        for layout in [self.a, self.b, self.c].into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: as above.
            let _ = unsafe { (self.lt.layout_destroy)(layout) };
        }
    }
}

#[cfg(test)]
mod record;

#[cfg(test)]
mod tests;
