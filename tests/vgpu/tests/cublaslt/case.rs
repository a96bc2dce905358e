//! One multiplication and how it goes through the library.
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use half::bf16;
use std::ffi::c_void;
use std::sync::Arc;
use sys::cublasComputeType_t as Compute;
use sys::cublasLtEpilogue_t as Epilogue;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cublasStatus_t as Status;
use sys::cudaDataType as Dtype;

pub(crate) const DEFAULT: Epilogue = Epilogue::CUBLASLT_EPILOGUE_DEFAULT;

/// Numbers between -1 and 1 without a pattern that a transposition would keep.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A device buffer of one of the element types, kept alive by its slice.
pub(crate) struct Buffer {
    pub(crate) slice: cudarc::driver::CudaSlice<u8>,
    pub(crate) dtype: Dtype,
}

pub(crate) fn size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::CUDA_R_64F => 8,
        Dtype::CUDA_R_32F => 4,
        _ => 2,
    }
}

/// Value of a number after rounding to a type.
pub(crate) fn rounded(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::CUDA_R_64F => x,
        Dtype::CUDA_R_32F => f64::from(x as f32),
        _ => bf16::from_f64(x).to_f64(),
    }
}

impl Buffer {
    pub(crate) fn new(stream: &Arc<CudaStream>, dtype: Dtype, values: &[f64]) -> Buffer {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|x| match dtype {
                Dtype::CUDA_R_64F => x.to_le_bytes().to_vec(),
                Dtype::CUDA_R_32F => (*x as f32).to_le_bytes().to_vec(),
                _ => bf16::from_f64(*x).to_le_bytes().to_vec(),
            })
            .collect();
        Buffer { slice: stream.clone_htod(&bytes).unwrap(), dtype }
    }

    pub(crate) fn read(&self, stream: &Arc<CudaStream>) -> Vec<f64> {
        let bytes = stream.clone_dtoh(&self.slice).unwrap();
        bytes
            .chunks_exact(size(self.dtype))
            .map(|x| match self.dtype {
                Dtype::CUDA_R_64F => f64::from_le_bytes(x.try_into().unwrap()),
                Dtype::CUDA_R_32F => f64::from(f32::from_le_bytes(x.try_into().unwrap())),
                _ => bf16::from_le_bytes(x.try_into().unwrap()).to_f64(),
            })
            .collect()
    }

    pub(crate) fn address(&self, stream: &Arc<CudaStream>) -> u64 {
        self.slice.device_ptr(stream).0
    }
}

/// One multiplication: sizes, types, and the ways to spoil it.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) trans_a: bool,
    pub(crate) trans_b: bool,
    /// Elements between the end of a column and the start of the next.
    pub(crate) gap: usize,
    pub(crate) inputs: Dtype,
    pub(crate) output: Dtype,
    pub(crate) compute: Compute,
    pub(crate) epilogue: Epilogue,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) aux_ld: Option<i64>,
    pub(crate) no_bias: bool,
    pub(crate) bias_offset: u64,
    /// Bytes by which the bias moves between the search and the multiplication.
    pub(crate) bias_moves: u64,
    pub(crate) a_offset: u64,
    pub(crate) max_workspace: u64,
    pub(crate) workspace_bytes: usize,
    pub(crate) workspace_offset: u64,
    pub(crate) d_is_a: bool,
    pub(crate) short_d: bool,
}

impl Case {
    pub(crate) fn new(epilogue: Epilogue) -> Case {
        Case {
            m: 37,
            n: 21,
            k: 29,
            trans_a: false,
            trans_b: false,
            gap: 0,
            inputs: Dtype::CUDA_R_32F,
            output: Dtype::CUDA_R_32F,
            compute: Compute::CUBLAS_COMPUTE_32F,
            epilogue,
            alpha: 1.0,
            beta: 0.0,
            aux_ld: None,
            no_bias: false,
            bias_offset: 0,
            bias_moves: 0,
            a_offset: 0,
            max_workspace: 1 << 20,
            workspace_bytes: 1 << 20,
            workspace_offset: 0,
            d_is_a: false,
            short_d: false,
        }
    }

    pub(crate) fn bits(&self) -> u32 {
        self.epilogue as u32
    }

    pub(crate) fn is_backward(&self) -> bool {
        self.bits() & (8 | 64) != 0
    }

    pub(crate) fn bias_len(&self) -> usize {
        if self.epilogue == Epilogue::CUBLASLT_EPILOGUE_BGRADB { self.n } else { self.m }
    }

    pub(crate) fn aux_ld(&self) -> i64 {
        let step = if self.bits() & (2 | 8) != 0 { 128 } else { 8 };
        self.aux_ld.unwrap_or((self.m.next_multiple_of(step)) as i64)
    }
}

/// Result of a multiplication.
pub(crate) struct Outcome {
    pub(crate) d: Vec<f64>,
    pub(crate) bias: Vec<f64>,
    pub(crate) mask: Vec<u8>,
    pub(crate) inputs_of_gelu: Vec<f64>,
}

pub(crate) struct Inputs {
    pub(crate) a: Vec<f64>,
    pub(crate) b: Vec<f64>,
    pub(crate) c: Vec<f64>,
    pub(crate) bias: Vec<f64>,
    pub(crate) mask: Vec<u8>,
    pub(crate) inputs_of_gelu: Vec<f64>,
}

pub(crate) fn inputs(case: &Case) -> Inputs {
    let stored = |rows: usize, cols: usize| (rows + case.gap) * cols;
    let (a, b) = (
        if case.trans_a { stored(case.k, case.m) } else { stored(case.m, case.k) },
        if case.trans_b { stored(case.n, case.k) } else { stored(case.k, case.n) },
    );
    let of = |dtype, n, seed| numbers(n, seed).into_iter().map(|x| rounded(dtype, x)).collect::<Vec<_>>();
    let aux_elements = case.aux_ld().max(case.m as i64) as usize * case.n;
    Inputs {
        a: of(case.inputs, a, 1),
        b: of(case.inputs, b, 2),
        c: of(case.output, stored(case.m, case.n), 3),
        bias: of(case.output, case.bias_len(), 4),
        mask: numbers(aux_elements / 8, 5).into_iter().map(|x| (x * 1e4) as i64 as u8).collect(),
        inputs_of_gelu: of(case.output, aux_elements, 6),
    }
}

/// Runs a case through the library.
pub(crate) fn multiply(case: &Case) -> Result<Outcome, Status> {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: no slice of this context is used on two streams.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    multiply_on(case, &stream)
}

pub(crate) fn multiply_on(case: &Case, stream: &Arc<CudaStream>) -> Result<Outcome, Status> {
    let given = inputs(case);
    let (a, b) = (Buffer::new(stream, case.inputs, &given.a), Buffer::new(stream, case.inputs, &given.b));
    let c = Buffer::new(stream, case.output, &given.c);
    let nan = vec![f64::NAN; given.c.len() - if case.short_d { case.gap + 1 } else { 0 }];
    let d = Buffer::new(stream, case.output, &nan);
    let bias_values = if case.bits() & 4 != 0 { given.bias.clone() } else { vec![f64::NAN; case.bias_len()] };
    let bias_padded = [bias_values, vec![0.0; 16]].concat();
    let bias = Buffer::new(stream, case.output, &bias_padded);
    let is_mask = case.bits() & (2 | 8) != 0;
    let mask =
        stream.clone_htod(&if case.is_backward() { given.mask.clone() } else { vec![0; given.mask.len()] });
    let mask = mask.unwrap();
    let nan = vec![f64::NAN; given.inputs_of_gelu.len()];
    let gelu =
        Buffer::new(stream, case.output, if case.is_backward() { &given.inputs_of_gelu } else { &nan });
    let workspace = stream.alloc_zeros::<u8>(1 << 20).unwrap();

    let handle = result::create_handle().map_err(|error| error.0)?;
    let scale =
        if case.compute == Compute::CUBLAS_COMPUTE_64F { Dtype::CUDA_R_64F } else { Dtype::CUDA_R_32F };
    let operation = result::create_matmul_desc(case.compute, scale).map_err(|error| error.0)?;
    let set = |attribute: Attribute, bytes: &[u8]| {
        // SAFETY: the descriptor lives, and `bytes` has as many bytes as it says.
        unsafe { result::set_matmul_desc_attribute(operation, attribute, bytes.as_ptr().cast(), bytes.len()) }
            .map_err(|error| error.0)
    };
    set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(case.trans_a).to_le_bytes())?;
    set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(case.trans_b).to_le_bytes())?;
    set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &case.bits().to_le_bytes())?;
    if !case.no_bias {
        let address = bias.address(stream) + case.bias_offset;
        set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address.to_le_bytes())?;
    }
    let aux = if is_mask { mask.device_ptr(stream).0 } else { gelu.address(stream) };
    set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux.to_le_bytes())?;
    set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &case.aux_ld().to_le_bytes())?;
    let layout = |dtype, rows: usize, cols: usize| {
        result::create_matrix_layout(dtype, rows as u64, cols as u64, (rows + case.gap) as i64).unwrap()
    };
    let flip = |transposed, rows, cols| if transposed { (cols, rows) } else { (rows, cols) };
    let (a_rows, a_cols) = flip(case.trans_a, case.m, case.k);
    let (b_rows, b_cols) = flip(case.trans_b, case.k, case.n);
    let (a_layout, b_layout) = (layout(case.inputs, a_rows, a_cols), layout(case.inputs, b_rows, b_cols));
    let d_layout = layout(case.output, case.m, case.n);
    let preference = result::create_matmul_pref().unwrap();
    let max_workspace = case.max_workspace.to_le_bytes();
    // SAFETY: the preference lives, and the attribute has eight bytes.
    unsafe {
        result::set_matmul_pref_attribute(
            preference,
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            max_workspace.as_ptr().cast(),
            8,
        )
    }
    .unwrap();
    // SAFETY: all descriptors live.
    let found = unsafe {
        result::get_matmul_algo_heuristic(
            handle, operation, a_layout, b_layout, d_layout, d_layout, preference,
        )
    }
    .map_err(|error| error.0)?;
    if case.bias_moves > 0 {
        let address = bias.address(stream) + case.bias_offset + case.bias_moves;
        set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address.to_le_bytes())?;
    }
    let scalars = [case.alpha, case.beta];
    let narrow = scalars.map(|x| x as f32);
    let scalar = |i: usize| -> *const c_void {
        if scale == Dtype::CUDA_R_64F {
            (&raw const scalars[i]).cast()
        } else {
            (&raw const narrow[i]).cast()
        }
    };
    let a_address = a.address(stream) + case.a_offset;
    let d_address = if case.d_is_a { a_address } else { d.address(stream) };
    let workspace_address = workspace.device_ptr(stream).0 + case.workspace_offset;
    // SAFETY: all descriptors live; the library checks the addresses.
    unsafe {
        result::matmul(
            handle,
            operation,
            scalar(0),
            scalar(1),
            a_address as *const c_void,
            a_layout,
            b.address(stream) as *const c_void,
            b_layout,
            c.address(stream) as *const c_void,
            d_layout,
            d_address as *mut c_void,
            d_layout,
            &found.algo,
            workspace_address as *mut c_void,
            case.workspace_bytes,
            stream.cu_stream().cast(),
        )
    }
    .map_err(|error| error.0)?;
    if stream.synchronize().is_err() {
        return Err(Status::CUBLAS_STATUS_EXECUTION_FAILED);
    }
    let bias = bias.read(stream)[..case.bias_len()].to_vec();
    let outcome = Outcome {
        d: d.read(stream),
        bias,
        mask: stream.clone_dtoh(&mask).unwrap(),
        inputs_of_gelu: gelu.read(stream),
    };
    // SAFETY: it is destroyed once.
    unsafe { result::destroy_matmul_pref(preference) }.unwrap();
    for layout in [a_layout, b_layout, d_layout] {
        // SAFETY: it is destroyed once.
        unsafe { result::destroy_matrix_layout(layout) }.unwrap();
    }
    // SAFETY: it is destroyed once.
    unsafe { result::destroy_matmul_desc(operation) }.unwrap();
    // SAFETY: it is destroyed once, and the stream has finished.
    unsafe { result::destroy_handle(handle) }.unwrap();
    Ok(outcome)
}
