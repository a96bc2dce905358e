//! The plan of a matmul: descriptors, layouts and an algorithm, made once per key.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdeviceptr;

use super::problem::{AlignedTo, Epilogue, Key};
use crate::DType;
use crate::base::matmul_mode::MatmulMode;
use crate::cuda::cublas_lt::{self, CublasLt, Heuristic, Status};

/// Scratch memory of all matmuls of a device: the size that NVIDIA recommends for Hopper, and enough for split-k on others.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Allowed reductions of split sums over k: any that cuBLASLt has, or only those out of place in a separate pass, whose order
/// is fixed (cublasLtReductionScheme_t; unsplit sums are always allowed).
const ALL_SCHEMES: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK as u32;
const OUT_OF_PLACE: u32 =
    ALL_SCHEMES & !(sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32);
/// Reduction schemes that keep partial sums in f32, whatever the dtype of the result: the others keep them in that dtype.
const IN_SINGLE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

/// Descriptors, layouts and algorithm of one matmul.
pub(in crate::cuda) struct Plan {
    lt: &'static CublasLt,
    pub(super) description: sys::cublasLtMatmulDesc_t,
    pub(super) a: sys::cublasLtMatrixLayout_t,
    pub(super) b: sys::cublasLtMatrixLayout_t,
    pub(super) c: sys::cublasLtMatrixLayout_t,
    pub(in crate::cuda) algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Makes `layout` describe a batch of `batch` matrices, `stride` elements apart.
fn set_batch(
    lt: &CublasLt,
    layout: sys::cublasLtMatrixLayout_t,
    batch: usize,
    stride: i64,
) -> cublas_lt::Result<()> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    // The library takes a 32-bit count.
    let batch = i32::try_from(batch).map_err(|_| Status::INVALID_VALUE)?;
    let count = Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as i32;
    let distance = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as i32;
    // SAFETY: the layout is alive, and the value of the attribute's size is read before the call returns.
    unsafe { (lt.layout_set)(layout, count, (&raw const batch).cast(), size_of::<i32>()) }.result()?;
    // SAFETY: as above.
    unsafe { (lt.layout_set)(layout, distance, (&raw const stride).cast(), size_of::<i64>()) }.result()
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
    pub(in crate::cuda) fn new(
        lt: &'static CublasLt,
        handle: sys::cublasLtHandle_t,
        key: &Key,
    ) -> cublas_lt::Result<Self> {
        let p = key.matmul;
        let compute = match (p.output, p.mode) {
            (DType::F64, _) => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
            (_, MatmulMode::Tf32 | MatmulMode::F32x3) if p.inputs == DType::F32 => {
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
        if let n_free @ 1.. = key.conditions.n_free {
            // Kernels that keep one block per multiprocessor until the end take no more than these.
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &(n_free as i32))?;
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
    pub(in crate::cuda) fn candidates(
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
        let schemes = match (key.matmul.output, key.conditions.is_deterministic) {
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
    pub(super) fn point_to(
        &self,
        bias: CUdeviceptr,
        aux: CUdeviceptr,
        epilogue: Epilogue,
    ) -> cublas_lt::Result<()> {
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
