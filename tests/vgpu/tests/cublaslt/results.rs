//! Results compared with plain loops.
use crate::case::*;
use crate::libs::Body;
use crate::reference::*;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::{CUgraphInstantiate_flags as InstantiateFlags, CUstreamCaptureMode as CaptureMode};
use cudarc::driver::{CudaContext, DevicePtr};
use std::ffi::c_void;
use sys::cublasComputeType_t as Compute;
use sys::cublasLtEpilogue_t as Epilogue;
use sys::cudaDataType as Dtype;

#[test]
fn every_epilogue_agrees_with_plain_loops() {
    let body = || {
        for epilogue in epilogues() {
            for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let base = Case { trans_a, trans_b, gap: 3, ..Case::new(epilogue) };
                compare(&base);
                compare(&Case { alpha: 0.5, beta: -2.0, ..base.clone() });
            }
            let bf16 = Case { inputs: Dtype::CUDA_R_16BF, output: Dtype::CUDA_R_16BF, ..Case::new(epilogue) };
            compare(&bf16);
            compare(&Case { output: Dtype::CUDA_R_32F, ..bf16 });
            let f64s = (Dtype::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F);
            compare(&Case { inputs: f64s.0, output: f64s.0, compute: f64s.1, ..Case::new(epilogue) });
        }
    };
    // The order in which streams and threads run can't matter; the checks find nothing.
    Body::here().run(body).is_clean();
    Body::here().env("VGPU_CHECK", 1).env("VGPU_FUZZ", 7).run(body).is_clean();
}

#[test]
fn tf32_rounds_the_inputs() {
    let body = || {
        let exact = Case::new(DEFAULT);
        let tf32 = Case { compute: Compute::CUBLAS_COMPUTE_32F_FAST_TF32, ..exact.clone() };
        compare(&tf32);
        // It is not f32 by another name: a tolerance for f32 has to fail.
        let (got, want) = (multiply(&tf32).unwrap(), expected(&exact));
        let error = got.d.iter().zip(&want.d).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
        assert!(error > 1e-4, "TF32 differs from f32 by {error} only");
    };
    Body::here().run(body).is_clean();
}

#[test]
fn a_relu_of_nan_is_zero() {
    let body = || {
        // A bias of NaN through a missing write would show here; hardware's max(x, 0) drops the NaN as well.
        let case = Case { alpha: f64::NAN, ..Case::new(Epilogue::CUBLASLT_EPILOGUE_RELU) };
        assert!(multiply(&case).unwrap().d.iter().all(|x| *x == 0.0));
        let case = Case { alpha: f64::NAN, ..Case::new(DEFAULT) };
        assert!(multiply(&case).unwrap().d.iter().all(|x| x.is_nan()));
    };
    Body::here().run(body).is_clean();
}

#[test]
fn a_workspace_is_used_only_within_its_limit() {
    let body = || {
        // With no workspace allowed the algorithm needs none; none has to be given.
        compare(&Case { max_workspace: 0, workspace_bytes: 0, ..Case::new(DEFAULT) });
        compare(&Case { max_workspace: 100, workspace_bytes: 0, ..Case::new(DEFAULT) });
    };
    Body::here().run(body).is_clean();
}

#[test]
fn a_captured_multiplication_is_repeated() {
    let body = || {
        let context = CudaContext::new(0).unwrap();
        // SAFETY: this test uses one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let x = stream.clone_htod(&[1f32, 2.0, 3.0, 4.0]).unwrap();
        let mut sum = stream.clone_htod(&[0f32; 4]).unwrap();
        stream.synchronize().unwrap();
        let handle = result::create_handle().unwrap();
        let operation = result::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Dtype::CUDA_R_32F).unwrap();
        let layout = result::create_matrix_layout(Dtype::CUDA_R_32F, 2, 2, 2).unwrap();
        let one = 1f32;
        stream.begin_capture(CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        let (x_address, sum_address) = (x.device_ptr(&stream).0, sum.device_ptr(&stream).0);
        // SAFETY: all descriptors and buffers live until the stream has finished.
        unsafe {
            result::matmul(
                handle,
                operation,
                (&raw const one).cast(),
                (&raw const one).cast(),
                x_address as *const c_void,
                layout,
                x_address as *const c_void,
                layout,
                sum_address as *const c_void,
                layout,
                sum_address as *mut c_void,
                layout,
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                stream.cu_stream().cast(),
            )
        }
        .unwrap();
        let flags = InstantiateFlags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [0.0; 4], "capturing runs nothing");
        // The scalars were read at the call, and the descriptors too.
        // SAFETY: it is destroyed once.
        unsafe { result::destroy_matrix_layout(layout) }.unwrap();
        // SAFETY: it is destroyed once.
        unsafe { result::destroy_matmul_desc(operation) }.unwrap();
        for _ in 0..3 {
            graph.launch().unwrap();
        }
        // Column-major [[1, 3], [2, 4]] squared, three times.
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [21.0, 30.0, 45.0, 66.0]);
        stream.memset_zeros(&mut sum).unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [7.0, 10.0, 15.0, 22.0]);
    };
    Body::here().run(body).is_clean();
}
