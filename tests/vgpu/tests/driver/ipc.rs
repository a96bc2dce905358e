//! Memory that another process maps.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, read, threads};
use cudarc::driver::{PushKernelArg, sys};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const IMPORTER: &str = "VGPU_TEST_IMPORTER";
const LAZY: u32 = 1;

fn as_bytes(handle: sys::CUipcMemHandle) -> [u8; 64] {
    handle.reserved.map(|c| c as u8)
}

/// The second process: opens the handle from its standard input on device 1 and adds to what it finds.
fn import() {
    let mut bytes = [0u8; 64];
    std::io::stdin().read_exact(&mut bytes).unwrap();
    let gpu = Gpu::new(1);
    let handle = sys::CUipcMemHandle { reserved: bytes.map(|b| b as _) };
    let (mut p, mut again) = (0, 0);
    ok(unsafe { sys::cuIpcOpenMemHandle_v2(&mut p, handle, LAZY) });
    ok(unsafe { sys::cuIpcOpenMemHandle_v2(&mut again, handle, LAZY) });
    assert_eq!(p, again);
    assert_eq!(read(p, 64), vec![1.0; 64]);
    let kernel = gpu.kernel("add");
    unsafe { gpu.stream.launch_builder(&kernel).arg(&p).arg(&p).arg(&p).arg(&64i32).launch(threads(64)) }
        .unwrap();
    gpu.stream.synchronize().unwrap();
    ok(unsafe { sys::cuIpcCloseMemHandle(p) });
    ok(unsafe { sys::cuIpcCloseMemHandle(p) });
    let mut one = 0f32;
    let closed = unsafe { sys::cuMemcpyDtoH_v2((&raw mut one).cast(), p, 4) };
    expect(closed, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
}

fn export() {
    let _gpu = Gpu::new(0);
    let p = plain(256);
    ok(unsafe { sys::cuMemsetD32_v2(p, 1f32.to_bits(), 64) });
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    ok(unsafe { sys::cuIpcGetMemHandle(&mut handle, p) });
    // Still there, at the same address.
    assert_eq!(read(p, 64), vec![1.0; 64]);
    let mut own = 0;
    let own = unsafe { sys::cuIpcOpenMemHandle_v2(&mut own, handle, LAZY) };
    expect(own, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        .env(IMPORTER, "1")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&as_bytes(handle)).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read(p, 64), vec![2.0; 64]);
    ok(unsafe { sys::cuMemFree_v2(p) });
}

#[test]
fn memory_is_shared_by_two_processes() {
    let client = || if std::env::var_os(IMPORTER).is_some() { import() } else { export() };
    for mode in [&["-n", "2"][..], &["-n", "2", "--check"], &["-n", "2", "--fuzz", "3"]] {
        let got = run!(mode, client);
        // The two mistakes above: opened by its own process, used after it was closed.
        assert!(
            got.findings.iter().all(|f| f.contains("opened by the process") || f.contains("cuMemcpyDtoH")),
            "{got:#?}"
        );
        assert_eq!((got.code, got.findings.len()), (Some(86), 2), "{got:#?}");
    }
}

#[test]
fn memory_of_a_pool_has_no_handle() {
    let client = || {
        let gpu = Gpu::new(0);
        let (mut p, mut handle) = (0, sys::CUipcMemHandle { reserved: [0; 64] });
        ok(unsafe { sys::cuMemAllocAsync(&mut p, 256, gpu.stream.cu_stream()) });
        let result = unsafe { sys::cuIpcGetMemHandle(&mut handle, p) };
        expect(result, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    run!(["-n", "1"], client).found("memory of a pool");
}
