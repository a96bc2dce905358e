//! Fused forms that are never asked for, and sums that are not split.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys;

use crate::cuda::Gpu;
use crate::cuda::blas::problem::Conditions;
use crate::cuda::blas::{Epilogue, Key, Matmul, Operands, Plan};
use crate::cuda::cublas_lt::Status;
use crate::cuda::library::{self, Library};
use crate::ops::testing::{devices, random, tensor};
use crate::ops::{MatmulMode, addmm};
use crate::{DType, Device, Tensor, TensorRef};

/// Held by a test while it sets [`Gpu::set_deterministic`], which all tests of the process see.
pub(super) fn lock_determinism() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reduction scheme of the plan's algorithm.
pub(super) fn reduction_scheme(plan: &Plan) -> u32 {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
    let (mut scheme, mut written) = (u32::MAX, 0);
    let library = library::open(Library::CublasLt, i32::MAX).unwrap();
    type Get =
        unsafe extern "C" fn(*const sys::cublasLtMatmulAlgo_t, i32, *mut c_void, usize, *mut usize) -> Status;
    // SAFETY: the type is that of cublasLt.h.
    let get = unsafe { library.symbol::<Get>("cublasLtMatmulAlgoConfigGetAttribute") }.unwrap();
    let attribute = Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME as i32;
    let algorithm = &raw const plan.algorithm;
    // SAFETY: the algorithm is the library's own, and the attribute a 32-bit number.
    let status =
        unsafe { get(algorithm, attribute, (&raw mut scheme).cast(), size_of::<u32>(), &raw mut written) };
    assert_eq!((status, written), (Status::SUCCESS, size_of::<u32>()));
    scheme
}

#[test]
fn products_of_vectors_are_not_fused_with_gradients() {
    let asked = |epilogue, [m, n, k]: [usize; 3]| {
        let (transpose_a, transpose_b, inputs, output) = (false, false, DType::F32, DType::F32);
        let mode = MatmulMode::Tf32;
        let matmul = Matmul { batch: 1, m, n, k, transpose_a, transpose_b, inputs, output, mode, epilogue };
        matmul.may_be_fused()
    };
    for epilogue in [Epilogue::DRelu, Epilogue::DGelu] {
        assert!(!asked(epilogue, [32, 8, 1]), "one output after the layer");
        assert!(asked(epilogue, [32, 8, 2]) && asked(epilogue, [1, 8, 2]));
    }
    for dims in [[8, 16, 1], [1, 16, 32], [8, 1, 32]] {
        assert!(!asked(Epilogue::BiasGradient, dims));
    }
    assert!(asked(Epilogue::BiasGradient, [2, 2, 2]) && asked(Epilogue::ReluAuxBias, [1, 1, 1]));
    assert!(!asked(Epilogue::GeluAuxBias, [32, 7, 16]), "rows of 7 values");
}

#[test]
fn what_cublaslt_does_badly_is_not_asked_of_it() {
    let matmul = |epilogue, inputs, mode| {
        let (transpose_a, transpose_b, output) = (true, false, DType::F32);
        Matmul { batch: 1, m: 16, n: 16, k: 16, transpose_a, transpose_b, inputs, output, mode, epilogue }
    };
    for epilogue in [Epilogue::GeluBias, Epilogue::GeluAuxBias, Epilogue::DGelu] {
        assert!(!matmul(epilogue, DType::F32, MatmulMode::Strict).may_be_fused(), "its tanh is coarse");
        assert!(matmul(epilogue, DType::F32, MatmulMode::Tf32).may_be_fused());
        assert!(matmul(epilogue, DType::BF16, MatmulMode::Strict).may_be_fused());
    }
    let asked = |epilogue, a: u64, bias: u64| {
        let operands = Operands { a, b: 256, c: 256, bias, aux: 0 };
        let matmul = matmul(epilogue, DType::BF16, MatmulMode::Strict);
        Key::new(matmul, operands, Conditions::default()).may_be_fused()
    };
    assert!(asked(Epilogue::BiasGradient, 256, 16));
    assert!(!asked(Epilogue::BiasGradient, 256, 8) && !asked(Epilogue::BiasGradient, 8, 256), "misaligned");
    assert!(asked(Epilogue::Bias, 8, 8));
}

/// A matmul that is one long sum, which every heuristic tends to split.
#[test]
fn deterministic_matmuls_split_no_sum_in_place() {
    const IN_PLACE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32;
    let (m, n, k) = (16, 16, 1 << 16);
    let (a, b) = (random::<f32>(m * k, 1), random::<f32>(k * n, 2));
    let _alone = lock_determinism();
    for device in devices() {
        let Device::Cuda(index) = device else { continue };
        let gpu = Gpu::get(index).unwrap();
        let (a, b) = (tensor(&a, &[m, k], device), tensor(&b, &[k, n], device));
        let mut c = Tensor::zeros(&[m, n], DType::F32, device).unwrap();
        let mut schemes = Vec::new();
        for is_deterministic in [true, false] {
            gpu.set_deterministic(is_deterministic);
            assert_eq!(gpu.is_deterministic(), is_deterministic);
            let mut run = || {
                addmm(1.0, a.view(), false, b.view(), false, 0.0, c.view_mut()).unwrap();
                c.to_vec::<f32>().unwrap()
            };
            let first = run();
            assert!(!is_deterministic || (0..5).all(|_| run() == first));
            let plans = gpu.blas().unwrap().plans();
            let own = |key: &&Key| {
                (key.matmul.m, key.matmul.k) == (m, k) && key.conditions.is_deterministic == is_deterministic
            };
            let mut found = plans.iter().filter(|(key, _)| own(key)).flat_map(|(_, plan)| plan);
            schemes.push(reduction_scheme(found.next().unwrap()));
            assert!(found.next().is_none());
        }
        gpu.set_deterministic(false);
        assert_ne!(schemes[0], IN_PLACE, "{schemes:?}");
        if gpu.info().name.contains("irtual") {
            // The virtual GPU uses that scheme whenever it is allowed.
            assert_eq!(schemes[1], IN_PLACE);
        }
    }
}

/// A bf16 result whose parts were added up in its own format would lose what f32 sums keep.
#[test]
fn short_results_are_split_into_f32_parts() {
    const IN_SINGLE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    let (m, n, k) = (16, 32, 1 << 14);
    let (a, b) = (random::<half::bf16>(m * k, 1), random::<half::bf16>(k * n, 2));
    let _alone = lock_determinism();
    for device in devices() {
        let Device::Cuda(index) = device else { continue };
        let gpu = Gpu::get(index).unwrap();
        let (a, b) = (tensor(&a, &[m, k], device), tensor(&b, &[k, n], device));
        for is_deterministic in [true, false] {
            gpu.set_deterministic(is_deterministic);
            let mut c = Tensor::zeros(&[m, n], DType::BF16, device).unwrap();
            addmm(1.0, a.view(), false, b.view(), false, 0.0, c.view_mut()).unwrap();
            let plans = gpu.blas().unwrap().plans();
            let own = |key: &&Key| {
                (key.matmul.n, key.matmul.k) == (n, k) && key.conditions.is_deterministic == is_deterministic
            };
            for plan in plans.iter().filter(|(key, _)| own(key)).filter_map(|(_, plan)| plan.as_ref()) {
                assert!([0, IN_SINGLE].contains(&reduction_scheme(plan)), "{}", reduction_scheme(plan));
            }
            assert!(plans.keys().any(|key| own(&key)));
        }
        gpu.set_deterministic(false);
    }
}

/// Rows of 13 features: a shard of 5 of them begins at any multiple of 4 bytes, by the shards before it.
#[test]
fn deterministic_matmuls_do_not_depend_on_where_their_rows_begin() {
    let (n_shards, rows, features, outputs) = (4, 5, 13, 8);
    let x = random::<f32>(n_shards * rows * features, 1);
    let (w, d) = (random::<f32>(features * outputs, 2), random::<f32>(rows * outputs, 3));
    let _alone = lock_determinism();
    for device in devices() {
        let Device::Cuda(index) = device else { continue };
        let gpu = Gpu::get(index).unwrap();
        let whole = tensor(&x, &[n_shards * rows, features], device);
        let (w, d) = (tensor(&w, &[features, outputs], device), tensor(&d, &[rows, outputs], device));
        let bits = |x: TensorRef<'_>| {
            let mut y = Tensor::zeros(&[rows, outputs], DType::F32, device).unwrap();
            addmm(1.0, x, false, w.view(), false, 0.0, y.view_mut()).unwrap();
            let mut d_w = Tensor::zeros(&[features, outputs], DType::F32, device).unwrap();
            addmm(1.0, x, true, d.view(), false, 0.0, d_w.view_mut()).unwrap();
            [y.to_vec::<f32>().unwrap(), d_w.to_vec::<f32>().unwrap()].concat()
        };
        let differing = || {
            let differs = |shard: &usize| {
                let (start, end) = (shard * rows, (shard + 1) * rows);
                let alone = tensor(&x[start * features..end * features], &[rows, features], device);
                bits(whole.view().rows(start, end).unwrap()) != bits(alone.view())
            };
            (0..n_shards).filter(differs).count()
        };
        let is_virtual = gpu.info().is_virtual();
        if is_virtual {
            assert!(differing() > 0, "the virtual cuBLASLt has other sums for what is aligned to less");
        }
        gpu.set_deterministic(true);
        let n = differing();
        gpu.set_deterministic(false);
        assert_eq!(n, 0, "shards whose bits depend on the shards before them");
    }
}

/// Algorithms that the heuristic offers for less than 16 bytes can break the device.
#[test]
fn algorithms_for_operands_at_odd_addresses_are_not_compared() {
    let matmul = Matmul {
        batch: 1,
        m: 5,
        n: 8,
        k: 13,
        transpose_a: false,
        transpose_b: false,
        inputs: DType::F32,
        output: DType::F32,
        mode: MatmulMode::Strict,
        epilogue: Epilogue::None,
    };
    let least = |a: u64, is_deterministic| {
        let operands = Operands { a, b: 256, c: 512, bias: 0, aux: 0 };
        Key::new(matmul, operands, Conditions { is_deterministic, n_free: 0 }).least_alignment()
    };
    assert_eq!([256, 512 + 16, 512 + 8].map(|a| least(a, false)), [256, 16, 8]);
    assert_eq!([256, 512 + 16, 512 + 8].map(|a| least(a, true)), [4, 4, 4], "rows of 52 bytes");
}
