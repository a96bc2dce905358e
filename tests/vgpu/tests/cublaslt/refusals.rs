//! Tests of calls that are refused, and of findings.
use crate::case::*;
use crate::libs::{Body, done};
use crate::reference::*;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaContext, DevicePtr};
use std::ffi::c_void;
use sys::cublasComputeType_t as Compute;
use sys::cublasLtEpilogue_t as Epilogue;
use sys::cublasStatus_t as Status;
use sys::cudaDataType as Dtype;

#[test]
fn unsupported_problems_are_refused_without_a_finding() {
    let body = || {
        let refused = |case: Case| {
            assert_eq!(multiply(&case).err(), Some(Status::CUBLAS_STATUS_NOT_SUPPORTED));
        };
        let f32s = Case::new(DEFAULT);
        // Types in no row of the table.
        refused(Case { inputs: Dtype::CUDA_R_64F, ..f32s.clone() });
        refused(Case { output: Dtype::CUDA_R_16BF, ..f32s.clone() });
        refused(Case { compute: Compute::CUBLAS_COMPUTE_64F, ..f32s.clone() });
        let tf32 = Compute::CUBLAS_COMPUTE_32F_FAST_TF32;
        refused(Case { inputs: Dtype::CUDA_R_16BF, compute: tf32, ..f32s });
        // The search sees the addresses of the vectors.
        refused(Case { bias_offset: 4, ..Case::new(Epilogue::CUBLASLT_EPILOGUE_BIAS) });
    };
    Body::here().run(body).is_clean();
}

#[test]
fn bf16_needs_ampere() {
    let body = || {
        let bf16 = Case { inputs: Dtype::CUDA_R_16BF, ..Case::new(DEFAULT) };
        let is_old = std::env::var("VGPU_ARCH").unwrap() == "7.5";
        let refused = is_old.then_some(Status::CUBLAS_STATUS_NOT_SUPPORTED);
        assert_eq!(multiply(&bf16).err(), refused);
        assert!(multiply(&Case::new(DEFAULT)).is_ok());
    };
    Body::here().env("VGPU_ARCH", "7.5").run(body).is_clean();
    Body::here().env("VGPU_ARCH", "8.0").run(body).is_clean();
}

#[test]
fn products_of_vectors_have_no_gradient_epilogues() {
    let body = || {
        let is_refused = |case: Case| match multiply(&case) {
            Ok(_) => false,
            Err(status) => {
                assert_eq!(status, Status::CUBLAS_STATUS_NOT_SUPPORTED);
                true
            }
        };
        for epilogue in [
            Epilogue::CUBLASLT_EPILOGUE_DRELU,
            Epilogue::CUBLASLT_EPILOGUE_DGELU,
            Epilogue::CUBLASLT_EPILOGUE_DRELU_BGRAD,
            Epilogue::CUBLASLT_EPILOGUE_DGELU_BGRAD,
        ] {
            let case = Case::new(epilogue);
            assert!(is_refused(Case { k: 1, ..case.clone() }));
            assert!(!is_refused(Case { m: 1, ..case.clone() }) && !is_refused(Case { n: 1, ..case }));
        }
        let case = Case::new(Epilogue::CUBLASLT_EPILOGUE_BGRADB);
        let one_each =
            [Case { m: 1, ..case.clone() }, Case { n: 1, ..case.clone() }, Case { k: 1, ..case.clone() }];
        assert!(one_each.into_iter().all(is_refused) && !is_refused(case));
        assert!(!is_refused(Case { k: 1, ..Case::new(Epilogue::CUBLASLT_EPILOGUE_RELU_AUX_BIAS) }));
    };
    Body::here().run(body).is_clean();
}

#[test]
fn the_search_refuses_on_request() {
    let body = || {
        let all = std::env::var("VGPU_LT_REFUSE").unwrap() == "all";
        for epilogue in epilogues() {
            let refused = epilogue == Epilogue::CUBLASLT_EPILOGUE_BGRADB
                || epilogue == Epilogue::CUBLASLT_EPILOGUE_RELU_AUX_BIAS
                || all && epilogue != DEFAULT;
            let status = multiply(&Case::new(epilogue)).err();
            assert_eq!(status, refused.then_some(Status::CUBLAS_STATUS_NOT_SUPPORTED), "{epilogue:?}");
        }
    };
    Body::here().env("VGPU_LT_REFUSE", "BGRADB, relu_aux_bias").run(body).is_clean();
    Body::here().env("VGPU_LT_REFUSE", "all").run(body).is_clean();
}

/// Mistakes: the name of the case, the status, words of the finding.
const MISTAKES: [(&str, Status, &str); 10] = [
    (
        "relu aux ld",
        Status::CUBLAS_STATUS_INVALID_VALUE,
        "RELU_AUX: EPILOGUE_AUX_LD is 37 bits; it must be a multiple of 128",
    ),
    (
        "gelu aux ld",
        Status::CUBLAS_STATUS_INVALID_VALUE,
        "GELU_AUX: EPILOGUE_AUX_LD is 37 elements; it must be a multiple of 8",
    ),
    ("short aux ld", Status::CUBLAS_STATUS_INVALID_VALUE, "GELU_AUX: EPILOGUE_AUX_LD is 32 elements"),
    ("no bias", Status::CUBLAS_STATUS_INVALID_VALUE, "the bias pointer is null"),
    (
        "unaligned A",
        Status::CUBLAS_STATUS_EXECUTION_FAILED,
        "is not aligned to the 256 bytes that the search was given",
    ),
    ("moved bias", Status::CUBLAS_STATUS_EXECUTION_FAILED, "the bias vector at "),
    ("small workspace", Status::CUBLAS_STATUS_INVALID_VALUE, "bytes of workspace, which has 16 bytes"),
    ("unaligned workspace", Status::CUBLAS_STATUS_INVALID_VALUE, "is not aligned to 16 bytes"),
    ("D is A", Status::CUBLAS_STATUS_INVALID_VALUE, "D overlaps A"),
    ("short D", Status::CUBLAS_STATUS_EXECUTION_FAILED, "matmul NN 37x21x29 F32 DEFAULT: D: "),
];

#[test]
fn mistakes_are_found() {
    let body = || {
        let mistake = std::env::var("VGPU_TEST_MISTAKE").unwrap();
        let case = match mistake.as_str() {
            "relu aux ld" => Case { aux_ld: Some(37), ..Case::new(Epilogue::CUBLASLT_EPILOGUE_RELU_AUX) },
            "gelu aux ld" => Case { aux_ld: Some(37), ..Case::new(Epilogue::CUBLASLT_EPILOGUE_GELU_AUX) },
            "short aux ld" => Case { aux_ld: Some(32), ..Case::new(Epilogue::CUBLASLT_EPILOGUE_GELU_AUX) },
            "no bias" => Case { no_bias: true, ..Case::new(Epilogue::CUBLASLT_EPILOGUE_BIAS) },
            "unaligned A" => Case { a_offset: 4, ..Case::new(DEFAULT) },
            "moved bias" => Case { bias_moves: 16, ..Case::new(Epilogue::CUBLASLT_EPILOGUE_BIAS) },
            "small workspace" => Case { workspace_bytes: 16, ..Case::new(DEFAULT) },
            "unaligned workspace" => {
                Case { workspace_offset: 8, workspace_bytes: (1 << 20) - 8, ..Case::new(DEFAULT) }
            }
            "D is A" => Case { d_is_a: true, m: 29, n: 29, ..Case::new(DEFAULT) },
            "short D" => Case { short_d: true, ..Case::new(DEFAULT) },
            other => panic!("{other}"),
        };
        let (_, status, _) = MISTAKES.into_iter().find(|(name, ..)| *name == mistake).unwrap();
        assert_eq!(multiply(&case).err(), Some(status));
        done();
    };
    for (mistake, _, words) in MISTAKES {
        Body::here().env("VGPU_TEST_MISTAKE", mistake).run(body).has_finding(words);
    }
}

#[test]
fn two_streams_may_not_share_a_workspace_without_order() {
    let body = || {
        let context = CudaContext::new(0).unwrap();
        // SAFETY: this test orders its streams by itself, or means not to.
        unsafe { context.disable_event_tracking() };
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        let shared = streams[0].alloc_zeros::<u8>(1 << 20).unwrap();
        let (x, y) = (streams[0].alloc_zeros::<f32>(64).unwrap(), streams[0].alloc_zeros::<f32>(64).unwrap());
        let outputs =
            [streams[0].alloc_zeros::<f32>(64).unwrap(), streams[0].alloc_zeros::<f32>(64).unwrap()];
        streams[0].synchronize().unwrap();
        let handle = result::create_handle().unwrap();
        let operation = result::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Dtype::CUDA_R_32F).unwrap();
        let layout = result::create_matrix_layout(Dtype::CUDA_R_32F, 8, 8, 8).unwrap();
        let preference = result::create_matmul_pref().unwrap();
        let max_workspace = (1u64 << 20).to_le_bytes();
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference lives, and the attribute has eight bytes.
        unsafe { result::set_matmul_pref_attribute(preference, attribute, max_workspace.as_ptr().cast(), 8) }
            .unwrap();
        // SAFETY: all descriptors live.
        let found = unsafe {
            result::get_matmul_algo_heuristic(handle, operation, layout, layout, layout, layout, preference)
        }
        .unwrap();
        let (one, zero) = (1f32, 0f32);
        for (stream, output) in streams.iter().zip(&outputs) {
            // SAFETY: all descriptors and buffers live until the streams have finished.
            unsafe {
                result::matmul(
                    handle,
                    operation,
                    (&raw const one).cast(),
                    (&raw const zero).cast(),
                    x.device_ptr(stream).0 as *const c_void,
                    layout,
                    y.device_ptr(stream).0 as *const c_void,
                    layout,
                    std::ptr::null(),
                    layout,
                    output.device_ptr(stream).0 as *mut c_void,
                    layout,
                    &found.algo,
                    shared.device_ptr(stream).0 as *mut c_void,
                    1 << 20,
                    stream.cu_stream().cast(),
                )
            }
            .unwrap();
            if std::env::var_os("VGPU_TEST_ORDERED").is_some() {
                stream.synchronize().unwrap();
            }
        }
        let _ = streams.map(|stream| stream.synchronize());
        done();
    };
    Body::here().env("VGPU_CHECK", 1).env("VGPU_TEST_ORDERED", 1).run(body).is_clean();
    Body::here().env("VGPU_CHECK", 1).run(body).has_finding("race between streams: cublasLtMatmul");
}
