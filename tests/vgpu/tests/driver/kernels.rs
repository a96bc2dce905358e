//! Kernels: their language, their limits, and what goes wrong inside of them.

use crate::run;
use crate::support::{Gpu, plain, read, threads};
use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, sys};

#[test]
fn the_language_means_what_it_means() {
    let client = || {
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let mut out = s.alloc_zeros::<f32>(16).unwrap();
        let mut counter = s.clone_htod(&[0u32, 0, 0, 7, 0]).unwrap();
        let mut wide = s.alloc_zeros::<u64>(1).unwrap();
        let mut total = s.alloc_zeros::<f64>(1).unwrap();
        let bf16 = s.clone_htod(&[0x3fc0u16, 5]).unwrap();
        let kernel = gpu.kernel("language");
        let mut launch = s.launch_builder(&kernel);
        launch.arg(&mut out).arg(&mut counter).arg(&mut wide).arg(&mut total).arg(&bf16);
        unsafe { launch.launch(threads(64)) }.unwrap();
        let out = s.clone_dtoh(&out).unwrap();
        // The second warp's lanes 32..64 sum to 1520; lane 33's neighbor below is 32.
        let want = [
            64.0, 1520.0, 1520.0, 1520.0, 126.0, 1.0, 32.0, 11.0, 6.5, 21.0, 47.0, 11.0, 0.982617, 1.0, 97.0,
            26.0,
        ];
        for (i, (got, want)) in out.iter().zip(want).enumerate() {
            assert!((got - want).abs() < 1e-5, "{i}: {got}, not {want}");
        }
        // 64 x 2; the highest thread; the lowest; 7 became 9 once; 64 increments modulo 10.
        assert_eq!(s.clone_dtoh(&counter).unwrap(), [128, 63, -63i32 as u32, 9, 4]);
        assert_eq!(s.clone_dtoh(&wide).unwrap(), [64 << 33]);
        assert_eq!(s.clone_dtoh(&total).unwrap(), [32.0]);
    };
    for options in [&["-n", "1"][..], &["--fuzz", "7"], &["--check"]] {
        let got = run!(options, client);
        assert!(got.clean().stderr.contains("language 33"), "{got:#?}");
    }
}

#[repr(C)]
struct Table {
    p: [u64; 3],
    n: i32,
}
unsafe impl DeviceRepr for Table {}

#[test]
fn pointers_inside_of_a_structure_work() {
    let client = || {
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let parts: Vec<_> = (0..3).map(|_| s.alloc_zeros::<f32>(64).unwrap()).collect();
        let table = Table { p: std::array::from_fn(|i| parts[i].device_ptr(s).0), n: 64 };
        unsafe { s.launch_builder(&gpu.kernel("by_value")).arg(&table).launch(threads(64)) }.unwrap();
        let seen: Vec<f32> = parts.iter().map(|p| s.clone_dtoh(p).unwrap()[63]).collect();
        assert_eq!(seen, [1.0, 2.0, 3.0]);
    };
    run!(["--check"], client).clean();
}

fn fill(elements: usize, n: i32) {
    let gpu = Gpu::new(0);
    let s = &gpu.stream;
    let mut a = s.alloc_zeros::<f32>(elements).unwrap();
    let config = LaunchConfig::for_num_elems(n as u32);
    unsafe { s.launch_builder(&gpu.kernel("fill")).arg(&mut a).arg(&1f32).arg(&n).launch(config) }.unwrap();
    assert!(s.synchronize().is_err(), "an illegal address is an error of the stream");
    // Sticky: nothing works any more.
    assert!(s.alloc_zeros::<f32>(1).is_err());
    std::mem::forget(a);
}

#[test]
fn a_write_far_out_of_bounds_is_found() {
    run!(["-n", "1"], || fill(1000, 100_000)).told("illegal address");
}

#[test]
fn a_write_one_element_out_of_bounds_is_found() {
    run!(["-n", "1"], || fill(1000, 1001)).told("was written 1 bytes past its end");
}

#[test]
fn a_write_one_element_out_of_bounds_names_the_thread_with_check() {
    run!(["--check"], || fill(1000, 1001)).told("thread [1000, 0, 0]: illegal write of 4 bytes");
}

fn block_sum(shared: u32, barrier: i32) {
    let gpu = Gpu::new(0);
    let s = &gpu.stream;
    let x = s.clone_htod(&vec![1f32; 256]).unwrap();
    let mut y = s.alloc_zeros::<f32>(1).unwrap();
    let config = LaunchConfig { shared_mem_bytes: shared, ..threads(256) };
    unsafe { s.launch_builder(&gpu.kernel("block_sum")).arg(&x).arg(&mut y).arg(&barrier).launch(config) }
        .unwrap();
    match s.clone_dtoh(&y) {
        Ok(y) => println!("sum {}", y[0]),
        Err(e) => println!("failed {e:?}"),
    }
}

#[test]
fn a_block_sum_with_its_barriers_is_clean() {
    for options in [&["-n", "1"][..], &["--fuzz", "3"], &["--check"], &["--check", "--fuzz", "9"]] {
        let got = run!(options, || block_sum(1024, 1));
        assert!(got.clean().stdout.contains("sum 256"), "{got:#?}");
    }
}

#[test]
fn a_race_in_shared_memory_is_found() {
    run!(["--check"], || block_sum(1024, 0)).found("race in shared memory");
}

/// The compiler ignores the section of a template's variable.
#[test]
fn a_race_in_shared_memory_of_a_template_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let mut a = gpu.stream.alloc_zeros::<f32>(64).unwrap();
        unsafe { gpu.stream.launch_builder(&gpu.kernel("template_race")).arg(&mut a).launch(threads(64)) }
            .unwrap();
        assert!(gpu.stream.synchronize().is_err());
        std::mem::forget(a);
    };
    run!(["--check"], client).told("race in shared memory");
}

#[test]
fn too_little_shared_memory_is_found() {
    run!(["--check"], || block_sum(512, 1)).found("out of bounds of dynamic shared memory");
}

#[test]
fn wrong_arguments_and_shapes_are_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let mut a = s.alloc_zeros::<f32>(100).unwrap();
        let fill = gpu.kernel("fill");
        let swapped =
            unsafe { s.launch_builder(&fill).arg(&100i64).arg(&mut a).arg(&1f32).launch(threads(32)) };
        assert!(swapped.is_err());
        let block =
            unsafe { s.launch_builder(&fill).arg(&mut a).arg(&1f32).arg(&100i32).launch(threads(2048)) };
        assert!(block.is_err());
        let bounds = unsafe { s.launch_builder(&gpu.kernel("bounded")).arg(&mut a).launch(threads(65)) };
        assert!(bounds.is_err());
        let shared = LaunchConfig { shared_mem_bytes: 49 << 10, ..threads(32) };
        let shared = unsafe { s.launch_builder(&fill).arg(&mut a).arg(&1f32).arg(&100i32).launch(shared) };
        assert!(shared.is_err());
        // None of these is sticky.
        unsafe { s.launch_builder(&fill).arg(&mut a).arg(&1f32).arg(&100i32).launch(threads(128)) }.unwrap();
        assert_eq!(s.clone_dtoh(&a).unwrap(), vec![1.0; 100]);
    };
    let got = run!(["-n", "1"], client);
    for words in
        ["argument 0 is a pointer", "1024 threads", "__launch_bounds__ allow 64", "49152 bytes of dynamic"]
    {
        got.told(words);
    }
    assert_eq!(got.findings.len(), 4, "{got:#?}");
}

/// The largest block of dynamic shared memory that a kernel can ask for, bytes, on each architecture.
const SHARED_LIMITS: [(&str, u32); 5] =
    [("7.5", 64 << 10), ("8.0", 163 << 10), ("8.6", 99 << 10), ("9.0", 227 << 10), ("12.0", 99 << 10)];

#[test]
fn each_architecture_has_its_limit_of_shared_memory() {
    let client = || {
        let arch = std::env::var("VGPU_ARCH").unwrap();
        let (_, most) = *SHARED_LIMITS.iter().find(|(name, _)| *name == arch).unwrap();
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let mut a = s.alloc_zeros::<f32>(32).unwrap();
        let fill = gpu.kernel("fill");
        let mut launch = |bytes: u32| {
            let config = LaunchConfig { shared_mem_bytes: bytes, ..threads(32) };
            unsafe { s.launch_builder(&fill).arg(&mut a).arg(&1f32).arg(&32i32).launch(config) }.is_ok()
        };
        let ask = |bytes: u32| {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            fill.set_attribute(attribute, bytes as i32).is_ok()
        };
        assert!(launch(48 << 10) && !launch((48 << 10) + 1), "without asking");
        assert!(ask(56 << 10) && launch(56 << 10) && !launch((56 << 10) + 1), "as much as asked for");
        assert!(ask(most) && launch(most) && !launch(most + 1), "{most} bytes");
        assert!(!ask(most + 1), "more than the architecture has");
        s.synchronize().unwrap();
    };
    for (arch, most) in SHARED_LIMITS {
        let got = run!(["-n", "1"], [("VGPU_ARCH", arch)], client);
        got.told(&format!("at most {most} together"));
        assert_eq!(got.findings.len(), 4, "{arch}: {got:#?}");
    }
}

/// Each kernel of a module has its own.
#[test]
fn static_shared_memory_counts_too() {
    let client = || {
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST_DYNAMIC,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as STATIC,
        };
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let mut a = s.alloc_zeros::<f32>(256).unwrap();
        for (name, own) in [("static_40k", 40 << 10), ("static_1k", 1040), ("static_none", 0), ("fill", 0)] {
            let kernel = gpu.kernel(name);
            assert_eq!(kernel.get_attribute(STATIC).unwrap(), own, "{name}");
            let left = (48 << 10) - own;
            assert_eq!(kernel.get_attribute(MOST_DYNAMIC).unwrap(), left, "{name}");
            let mut launch = |shared: i32| {
                let config = LaunchConfig { shared_mem_bytes: shared as u32, ..threads(64) };
                let mut launch = s.launch_builder(&kernel);
                launch.arg(&mut a);
                if name == "fill" {
                    launch.arg(&1f32).arg(&64i32);
                }
                unsafe { launch.launch(config) }.map(|_| ()).map_err(|error| error.0)
            };
            let too_much = Err(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!((launch(left), launch(left + 1)), (Ok(()), too_much), "{name}");
            let most = (227 << 10) - own;
            assert!(kernel.set_attribute(MOST_DYNAMIC, most + 1).is_err(), "{name}");
            assert!(kernel.set_attribute(MOST_DYNAMIC, most).is_ok(), "{name}");
            assert_eq!((launch(most), launch(most + 1)), (Ok(()), too_much), "{name}");
        }
        s.synchronize().unwrap();
    };
    for options in [&["-n", "1"][..], &["--check"]] {
        let got = run!(options, client);
        got.told("can't have 191489 bytes of dynamic shared memory next to 40960 of static: at most 232448");
        got.told(
            "it may have 8192 bytes of dynamic shared memory (cuFuncSetAttribute), as it has 40960 of static",
        );
        assert_eq!(got.findings.len(), 12, "{got:#?}");
    }
}

#[test]
fn too_much_static_shared_memory_does_not_compile() {
    let client = || {
        let source = |n: usize| {
            format!(
                "extern \"C\" __global__ void k(float *p) {{ __shared__ float s[{n}]; s[threadIdx.x] = p[0]; \
                 __syncthreads(); p[threadIdx.x] = s[(threadIdx.x * 5) % {n}]; }}"
            )
        };
        cudarc::nvrtc::compile_ptx(source(12 << 10)).unwrap();
        let refused = format!("{:?}", cudarc::nvrtc::compile_ptx(source((12 << 10) + 1)).unwrap_err());
        assert!(refused.contains("uses too much shared data (0xc004 bytes, 0xc000 max)"), "{refused}");
    };
    run!(["-n", "1"], client).clean();
}

#[test]
fn grids_and_blocks_have_their_limits() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(4096);
        let launch = |grid_dim: (u32, u32, u32), block_dim: (u32, u32, u32)| {
            let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
            // No elements: only the shape matters.
            let kernel = gpu.kernel("fill");
            unsafe { gpu.stream.launch_builder(&kernel).arg(&p).arg(&1f32).arg(&0i32).launch(config) }.is_ok()
        };
        assert!(launch((70_000, 1, 1), (1, 1, 1)) && launch((1, 65_535, 1), (1, 1, 1)));
        assert!(
            launch((1, 1, 1), (1024, 1, 1))
                && launch((1, 1, 1), (16, 1, 64))
                && launch((1, 1, 1), (2, 512, 1))
        );
        for (grid, block) in [
            ((1, 65_536, 1), (1, 1, 1)),
            ((1, 1, 65_536), (1, 1, 1)),
            ((0, 1, 1), (1, 1, 1)),
            ((1, 1, 1), (1025, 1, 1)),
            ((1, 1, 1), (32, 33, 1)),
            ((1, 1, 1), (1, 1, 65)),
            ((1, 1, 1), (1, 0, 1)),
        ] {
            assert!(!launch(grid, block), "{grid:?} {block:?}");
        }
        gpu.stream.synchronize().unwrap();
    };
    let got = run!(["-n", "1"], client);
    got.found("can't be launched with");
    assert_eq!(got.findings.len(), 7, "{got:#?}");
}

#[test]
fn registers_limit_a_block_without_launch_bounds() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(4096);
        let launch = |name: &str, n: u32| {
            let kernel = gpu.kernel(name);
            let mut launch = gpu.stream.launch_builder(&kernel);
            let launch = launch.arg(&p);
            let launch = if name == "fill" { launch.arg(&1f32).arg(&0i32) } else { launch };
            unsafe { launch.launch(threads(n)) }.map_err(|error| error.0)
        };
        assert!(launch("fill", 256).is_ok() && launch("bounded", 64).is_ok());
        let lack = sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        assert_eq!(launch("fill", 257).unwrap_err(), lack);
        // The compiler keeps to what such a block may have.
        assert!(launch("bounded_wide", 1024).is_ok());
        gpu.stream.synchronize().unwrap();
    };
    let got = run!(["-n", "1"], [("VGPU_REGISTERS", "255")], client);
    got.found("288 threads of 256 registers");
}

#[test]
fn misaligned_words_and_divergent_barriers_are_found() {
    let client = |name: &'static str| {
        move || {
            let gpu = Gpu::new(0);
            let mut a = gpu.stream.alloc_zeros::<f32>(256).unwrap();
            unsafe { gpu.stream.launch_builder(&gpu.kernel(name)).arg(&mut a).launch(threads(64)) }.unwrap();
            assert!(gpu.stream.synchronize().is_err());
        }
    };
    match std::env::var("VGPU_TEST_KERNEL") {
        Ok(name) if name == "misaligned" => drop(run!(["--check"], client("misaligned"))),
        Ok(_) => drop(run!(["--check"], client("divergent"))),
        Err(_) => {
            let misaligned = run!(["--check"], [("VGPU_TEST_KERNEL", "misaligned")], || ());
            misaligned.told("misaligned write of 8 bytes");
            let divergent = run!(["-n", "1"], [("VGPU_TEST_KERNEL", "divergent")], || ());
            divergent.told("deadlock");
        }
    }
}

#[test]
fn work_of_many_blocks_is_complete_in_any_order() {
    let client = || {
        let gpu = Gpu::new(0);
        let n = 100_003;
        let p = plain(n * 4);
        let config = LaunchConfig::for_num_elems(n as u32);
        unsafe {
            gpu.stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&2f32).arg(&(n as i32)).launch(config)
        }
        .unwrap();
        gpu.stream.synchronize().unwrap();
        assert!(read(p, n).iter().all(|&v| v == 2.0));
    };
    run!(["--fuzz", "11"], client).clean();
}

#[test]
fn modules_share_the_stacks_of_their_threads() {
    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
    }
    // A stack and its guard for each of 1024 threads that wait at a barrier.
    fn launch() {
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let x = s.clone_htod(&[1.0f32; 1024]).unwrap();
        let mut sum = s.alloc_zeros::<f32>(1).unwrap();
        let kernel = gpu.kernel("block_sum");
        let mut launch = s.launch_builder(&kernel);
        launch.arg(&x).arg(&mut sum).arg(&1i32);
        unsafe { launch.launch(LaunchConfig { shared_mem_bytes: 4096, ..threads(1024) }) }.unwrap();
        assert_eq!(s.clone_dtoh(&sum).unwrap(), [1024.0]);
    }
    let client = || {
        launch();
        let after_one = mappings();
        assert!(after_one > 2000, "{after_one} mappings");
        (0..4).for_each(|_| launch());
        let after_five = mappings();
        assert!(after_five < after_one + 500, "{after_one} mappings, then {after_five}");
    };
    run!(["-n", "1"], client).clean();
}
