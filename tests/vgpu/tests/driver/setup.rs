//! Devices, versions, images, and that nothing runs here by accident.

use crate::run;
use crate::support::{Gpu, expect, ok};
use cudarc::driver::{CudaContext, sys};
use cudarc::nvrtc::sys as nvrtc;
use std::ffi::{CString, c_char};

#[test]
fn devices_are_distinct_and_say_that_they_are_virtual() {
    let client = || {
        assert_eq!(CudaContext::device_count().unwrap(), 3);
        let all: Vec<_> = (0..3).map(|i| CudaContext::new(i).unwrap()).collect();
        assert!(all.iter().all(|device| device.name().unwrap() == "Virtual GPU"), "one model");
        assert_eq!(all[0].compute_capability().unwrap(), (8, 0));
        assert_eq!(all[0].total_mem().unwrap(), 1 << 30);
        assert_ne!(all[0].uuid().unwrap().bytes, all[1].uuid().unwrap().bytes);
        let mut id = [0 as c_char; 32];
        ok(unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, 1) });
        let id: Vec<u8> = id.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        assert_eq!(id, b"0000:02:00.0");
        let reach = |a, b| {
            let mut can = -1;
            ok(unsafe { sys::cuDeviceCanAccessPeer(&mut can, a, b) });
            can
        };
        assert_eq!((reach(0, 1), reach(1, 0), reach(1, 2), reach(0, 0)), (1, 1, 0, 0));
    };
    let settings = [("VGPU_ARCH", "8.0"), ("VGPU_MEMORY", "1073741824"), ("VGPU_PEERS", "pairs")];
    let got = run!(["-n", "3"], settings, client);
    assert!(got.clean().stderr.contains("3 VIRTUAL devices"), "{got:#?}");
}

#[test]
fn visible_devices_are_renumbered() {
    let client = || {
        assert_eq!(CudaContext::device_count().unwrap(), 2);
        let number = |index| CudaContext::new(index).unwrap().uuid().unwrap().bytes[15] as u8;
        assert_eq!([number(0), number(1)], [b'3', b'1']);
    };
    run!(["-n", "4"], [("CUDA_VISIBLE_DEVICES", "3,1")], client).clean();
}

#[test]
fn it_refuses_unless_it_was_asked_for() {
    let client = || expect(unsafe { sys::cuInit(0) }, sys::CUresult::CUDA_ERROR_NO_DEVICE);
    let got = run!(["-n", "1"], [("VGPU_TEST_UNSET", "1")], || {
        // The runner sets it; this is a client that found the library by chance. Nothing has read it yet.
        unsafe { std::env::remove_var("VGPU_DEVICES") };
        client();
    });
    assert!(got.clean().stderr.contains("set VGPU_DEVICES"), "{got:#?}");
}

/// Compiles with these options; the result and the log.
fn compile(source: &str, options: &[&str]) -> (nvrtc::nvrtcProgram, nvrtc::nvrtcResult, String) {
    let source = CString::new(source).unwrap();
    let options: Vec<_> = options.iter().map(|o| CString::new(*o).unwrap()).collect();
    let pointers: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    unsafe {
        let name = c"test.cu".as_ptr();
        nvrtc::nvrtcCreateProgram(&mut program, source.as_ptr(), name, 0, std::ptr::null(), std::ptr::null());
        let result = nvrtc::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr());
        let mut n = 0;
        nvrtc::nvrtcGetProgramLogSize(program, &mut n);
        let mut log = vec![0u8; n];
        nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        (program, result, String::from_utf8_lossy(&log).into_owned())
    }
}

fn cubin(program: nvrtc::nvrtcProgram) -> Vec<u8> {
    let mut n = 0;
    assert_eq!(unsafe { nvrtc::nvrtcGetCUBINSize(program, &mut n) }, nvrtc::nvrtcResult::NVRTC_SUCCESS);
    let mut image = vec![0u8; n];
    if n > 0 {
        assert_eq!(
            unsafe { nvrtc::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) },
            nvrtc::nvrtcResult::NVRTC_SUCCESS
        );
    }
    image
}

const SOURCE: &str = "extern \"C\" __global__ void one(float *p) { *p = N; }";

#[test]
fn cubins_are_made_loaded_and_refused() {
    let client = || {
        let _gpu = Gpu::new(0);
        let (program, result, log) = compile(SOURCE, &["--gpu-architecture=sm_90", "-DN=1.f"]);
        assert_eq!(result, nvrtc::nvrtcResult::NVRTC_SUCCESS, "{log}");
        let image = cubin(program);
        let load = |image: &[u8]| {
            let mut module = std::ptr::null_mut();
            unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) }
        };
        ok(load(&image));
        expect(load(b"\x7fELF\x02\0"), sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
        // As if the cache had been emptied since a client wrote the image to its own.
        let text = String::from_utf8(image.clone()).unwrap();
        let path = text.split_once("path ").unwrap().1.trim_end_matches(['\0', '\n']);
        std::fs::remove_file(path).unwrap();
        expect(load(&image), sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
        // For another architecture, and a virtual one, which has no cubin.
        let (program, ..) = compile(SOURCE, &["--gpu-architecture=sm_100", "-DN=2.f"]);
        expect(load(&cubin(program)), sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        let (program, ..) = compile(SOURCE, &["--gpu-architecture=compute_90", "-DN=1.f"]);
        assert!(cubin(program).is_empty());
        // Errors name the client's line; an option that is not there is refused.
        let (_, result, log) = compile("\n\nextern \"C\" __global__ void f() { oops; }", &[]);
        assert_eq!(result, nvrtc::nvrtcResult::NVRTC_ERROR_COMPILATION);
        assert!(log.contains("test.cu:3") && log.contains("oops"), "{log}");
        let (_, result, log) = compile(SOURCE, &["--no-such-option"]);
        assert_eq!(result, nvrtc::nvrtcResult::NVRTC_ERROR_INVALID_OPTION);
        assert!(log.contains("--no-such-option"), "{log}");
        // NVRTC has no headers of its own.
        let (_, result, _) = compile("#include <cuda_bf16.h>\n", &[]);
        assert_eq!(result, nvrtc::nvrtcResult::NVRTC_ERROR_COMPILATION);
    };
    let folder = std::env::temp_dir().join(format!("vgpu-test-{}", std::process::id()));
    let cache = folder.to_str().unwrap().to_string();
    run!(["-n", "1"], [("VGPU_CACHE", &cache[..])], client).clean();
    let _ = std::fs::remove_dir_all(folder);
}
