//! Compiles every kernel with the real compiler, which needs no GPU, and checks registers and spills for each architecture.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A report is what it is for.

use ddp_kernels::cuda::library::{self, Library};
use ddp_kernels::ops::{compile_all, kernel_sources};

/// Turing, Ampere for data centers and workstations, Ada, Hopper, Blackwell for data centers (B200, B300), Blackwell for workstations and
/// DGX Spark.
const ARCHITECTURES: [&str; 9] =
    ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"];
/// With more, an SM of 65,536 registers holds fewer than two blocks of 256 threads, which none of our kernels needs.
const MAX_REGISTERS: u32 = 128;

/// f64 is there to compare with, and has no fast units on most GPUs; some of its kernels spill a double or two on some architectures.
const MAX_F64_SPILL_BYTES: u32 = 32;

/// Options that the installed compiler may reject.
const REFUSED: [&str; 2] = ["--ptxas-options", "--gpu-architecture"];

/// The assembler's report on one kernel.
#[derive(Debug, PartialEq, Eq)]
struct Kernel {
    name: String,
    registers: u32,
    spill_bytes: u32,
    shared_bytes: u32,
}

/// The kernels of a log of `ptxas -v`.
fn kernels(log: &str) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    for line in log.lines() {
        // "ptxas info    : Compiling entry function 'name' for 'sm_90'"
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap().to_owned();
            all.push(Kernel { name, registers: 0, spill_bytes: 0, shared_bytes: 0 });
        }
        let Some(kernel) = all.last_mut() else { continue };
        // "8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads" and "Used 32 registers, 272 bytes smem"
        for part in line.split([',', ':']).map(str::trim) {
            let number = || part.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap_or(0);
            match part {
                _ if part.ends_with("bytes spill stores") || part.ends_with("bytes spill loads") => {
                    kernel.spill_bytes += number();
                }
                _ if part.ends_with("registers") => kernel.registers = number(),
                _ if part.ends_with("bytes smem") => kernel.shared_bytes = number(),
                _ => {}
            }
        }
    }
    all
}

#[test]
fn every_kernel_compiles_without_spills() {
    if let Err(why) = library::open(Library::Nvrtc, i32::MAX) {
        assert!(std::env::var_os("REQUIRE_NVRTC").is_none(), "{why}");
        println!("skipped: needs NVRTC (pip install nvidia-cuda-nvrtc): {why}");
        return;
    }
    let compiled = std::thread::scope(|scope| {
        let threads = ARCHITECTURES.map(|architecture| scope.spawn(move || compile_all(architecture)));
        threads.map(|thread| thread.join().unwrap())
    });
    let mut faults = Vec::new();
    for (architecture, files) in ARCHITECTURES.into_iter().zip(compiled) {
        let files = match files {
            Ok(files) => files,
            // The virtual GPU's compiler has no assembler; an older NVRTC does not know the newest architectures.
            Err(log)
                if log.contains("INVALID_OPTION") && REFUSED.iter().any(|option| log.contains(option)) =>
            {
                assert!(std::env::var_os("REQUIRE_NVRTC").is_none(), "{architecture}: {log}");
                println!(
                    "skipped: {architecture} needs a real and newer NVRTC (pip install nvidia-cuda-nvrtc): {log}"
                );
                continue;
            }
            Err(log) => panic!("{architecture}: {log}"),
        };
        for (name, _) in kernel_sources() {
            let has_kernels = files.iter().any(|file| file.name == name && !kernels(&file.log).is_empty());
            assert!(has_kernels, "{architecture}: no report on any kernel of {name}");
        }
        for file in files {
            let kernels = kernels(&file.log);
            println!("{architecture:7} {}.cu, {}: {:.2} s", file.name, file.format, file.compile_s);
            for kernel in kernels {
                let Kernel { name, registers, spill_bytes, shared_bytes } = &kernel;
                println!("{architecture:7} {name:40} {registers:4} registers {shared_bytes:6} B shared");
                if *spill_bytes > if name.ends_with("_f64") { MAX_F64_SPILL_BYTES } else { 0 } {
                    faults.push(format!("{architecture} {name} spills {spill_bytes} bytes"));
                }
                if *registers == 0 || *registers > MAX_REGISTERS {
                    faults.push(format!(
                        "{architecture} {name} uses {registers} registers, at most {MAX_REGISTERS}"
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_report_is_understood() {
    let log = "ptxas info    : 0 bytes gmem\n\
               ptxas info    : Compiling entry function 'a_f32' for 'sm_90'\n\
               ptxas info    : Function properties for a_f32\n    \
               8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
               ptxas info    : Used 32 registers, used 1 barriers, 272 bytes smem\n\
               ptxas info    : Compiling entry function 'b' for 'sm_90'\n\
               ptxas info    : Used 255 registers\n";
    let kernel = |name: &str, registers, spill_bytes, shared_bytes| Kernel {
        name: name.to_owned(),
        registers,
        spill_bytes,
        shared_bytes,
    };
    assert_eq!(kernels(log), [kernel("a_f32", 32, 16, 272), kernel("b", 255, 0, 0)]);
}
