//! Checks that every function called by name exists in NVIDIA's real libraries, if they are installed; needs no GPU. (Those of
//! NCCL are looked up when `ddp-comm` opens it: `comm/tests/real_nccl.rs`.)

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use ddp_kernels::cuda::library::{self, Library};

const NVRTC: &[&str] = &[
    "nvrtcVersion",
    "nvrtcGetErrorString",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
];
const CUBLAS_LT: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtGetStatusName",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];

#[test]
fn the_functions_that_are_called_exist() {
    for (library, names) in [(Library::Nvrtc, NVRTC), (Library::CublasLt, CUBLAS_LT)] {
        let open = match library::open(library, i32::MAX) {
            Ok(open) => open,
            Err(why) => {
                println!("skipped: needs lib{}: {why}", library.name());
                continue;
            }
        };
        for name in names {
            // SAFETY: the address is only compared, never called.
            let address = unsafe { open.symbol::<*const ()>(name) };
            assert!(address.is_some(), "{} has no {name}", open.path.display());
        }
        println!("{}: {} functions", open.path.display(), names.len());
    }
}
