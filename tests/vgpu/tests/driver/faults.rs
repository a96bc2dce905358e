//! Faults on request, the watchdog, and the counts.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, threads};
use cudarc::driver::{PushKernelArg, sys};
use std::path::PathBuf;
use sys::CUresult::*;

fn fill(gpu: &Gpu, p: u64) -> sys::CUresult {
    let launched = unsafe {
        gpu.stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&1f32).arg(&64i32).launch(threads(64))
    };
    match launched.and_then(|_| gpu.stream.synchronize()) {
        Ok(()) => CUDA_SUCCESS,
        Err(e) => e.0,
    }
}

#[test]
fn the_third_allocation_and_the_second_launch_fail() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(256);
        plain(4);
        let mut q = 0;
        expect(unsafe { sys::cuMemAlloc_v2(&mut q, 4) }, CUDA_ERROR_OUT_OF_MEMORY);
        plain(4);
        expect(fill(&gpu, p), CUDA_SUCCESS);
        expect(fill(&gpu, p), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        expect(fill(&gpu, p), CUDA_SUCCESS);
    };
    run!(["--fail", "malloc:3,launch:2"], client).clean();
}

#[test]
fn hardware_errors_are_sticky() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(256);
        expect(fill(&gpu, p), CUDA_SUCCESS);
        expect(fill(&gpu, p), CUDA_ERROR_ECC_UNCORRECTABLE);
        expect(unsafe { sys::cuCtxSynchronize() }, CUDA_ERROR_ECC_UNCORRECTABLE);
        expect(unsafe { sys::cuMemFree_v2(p) }, CUDA_ERROR_ECC_UNCORRECTABLE);
    };
    run!(["--fail", "ecc:2"], client).clean();
}

#[test]
fn a_rule_for_another_rank_does_nothing() {
    let client = || expect(fill(&Gpu::new(0), plain(256)), CUDA_SUCCESS);
    run!(["--fail", "illegal:1,rank=1"], client).clean();
}

#[test]
fn the_driver_can_be_missing_its_devices() {
    let client = || expect(unsafe { sys::cuInit(0) }, CUDA_ERROR_NO_DEVICE);
    run!(["--fail", "nodevice"], client).clean();
}

#[test]
fn the_driver_can_be_of_another_version() {
    let client = || expect(unsafe { sys::cuInit(0) }, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    run!(["--fail", "driver"], client).clean();
}

#[test]
fn compilation_can_fail() {
    let client = || assert!(cudarc::nvrtc::compile_ptx("").is_err());
    run!(["--fail", "nvrtc"], client).clean();
}

#[test]
fn a_hang_ends_with_what_every_stream_does() {
    let client = || {
        let gpu = Gpu::new(0);
        let second = gpu.ctx.new_stream().unwrap();
        let p = plain(256);
        ok(unsafe { sys::cuMemsetD32Async(p, 0, 64, gpu.stream.cu_stream()) });
        second.wait(&gpu.stream.record_event(None).unwrap()).unwrap();
        second.synchronize().unwrap();
    };
    let got = run!(["--fail", "hang:1", "--timeout", "1"], client);
    got.told("no progress for 1 s").told("runs cuMemsetD32Async").told("waits for an event of stream");
}

/// A training loop in small: what it calls per step must not depend on how many steps there are.
fn steps(n: usize) {
    let gpu = Gpu::new(0);
    let p = plain(256);
    for _ in 0..n {
        unsafe {
            gpu.stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&1f32).arg(&64i32).launch(threads(64))
        }
        .unwrap();
    }
    gpu.stream.synchronize().unwrap();
    let mut host = [0f32; 64];
    ok(unsafe { sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), p, 256) });
}

#[test]
fn counts_are_exact() {
    let count = |steps: usize| {
        let folder: PathBuf =
            std::env::temp_dir().join(format!("vgpu-counts-{}-{steps}", std::process::id()));
        let path = folder.to_str().unwrap().to_string();
        let steps_text = steps.to_string();
        let got = run!(["--check", "--counts", &path[..]], [("VGPU_TEST_STEPS", &steps_text[..])], || {
            self::steps(std::env::var("VGPU_TEST_STEPS").unwrap().parse().unwrap())
        });
        got.clean();
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        let text = std::fs::read_to_string(&files[0]).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let number = |key: &str| -> Option<u64> {
            let line = text.lines().find(|l| l.contains(&format!("\"{key}\":")))?;
            line.split_once(": ")?.1.trim_end_matches(',').parse().ok()
        };
        [
            "cuLaunchKernel",
            "kernel:fill",
            "cuMemAlloc_v2",
            "cuStreamSynchronize",
            "bytes:dtoh_pageable",
            "live_bytes:0",
            "peak_bytes:0",
            "live_allocations:0",
            "written:fill",
            "read:fill",
            "read:cuMemcpyDtoH",
            "written_of:256",
            "read_of:256",
        ]
        .map(number)
        .to_vec()
    };
    let want = |n| {
        let of_memory = [Some(256 * n), None, Some(256), Some(256 * n), Some(256)];
        [Some(n), Some(n), Some(1), Some(1), Some(256), Some(256), Some(256), Some(1)]
            .into_iter()
            .chain(of_memory)
            .collect::<Vec<_>>()
    };
    assert_eq!(count(3), want(3));
    assert_eq!(count(8), want(8));
}
