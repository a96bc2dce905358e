//! `ddp-train devices`: lists the available devices, on machines with and without GPUs.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;

use crate::common::{Outcome, ddp_train, run_ok, single, temp_dir};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

/// Runs the program with valid arguments, and without visible GPUs.
fn without_gpu(args: &[&str]) -> String {
    let mut command = single(args);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("VGPU_DEVICES").env_remove("VGPU");
    let outcome = run_ok(command);
    assert_eq!(outcome.stderr, "");
    outcome.stdout
}

#[test]
fn a_machine_without_gpus_is_an_answer() {
    let text = without_gpu(&["devices"]);
    assert!(text.starts_with("no GPU: "), "{text}");
    for part in ["\nhint: ", "--device cpu", "CUDA driver", "NVRTC", "cuBLASLt", "NCCL", "\nCPU: ", "thread"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }

    let json: Value = serde_json::from_str(&without_gpu(&["devices", "--json"])).unwrap();
    assert_eq!(json["gpus"], Value::Array(Vec::new()));
    assert!(json["no_gpu"]["reason"].is_string() && json["no_gpu"]["hint"].is_string(), "{json}");
    let libraries = json["libraries"].as_array().unwrap();
    assert_eq!(libraries.len(), 4);
    for library in libraries {
        assert!(library["path"].is_string() != library["missing"].is_object(), "found or missing: {library}");
    }
    assert!(json["cpu"]["threads"].as_u64().unwrap() > 0);
}

#[test]
fn virtual_gpus_are_listed_and_warned_of() {
    let Some(text) = under_virtual_gpus(2, &["devices"], &[]) else { return };
    assert_eq!(text.ok().matches("Virtual GPU ").count(), 2, "{text:?}");
    for part in ["warning: a virtual GPU computes on the CPU", "from  to 0", "SMs", "GPU-", "9.0", "GiB"] {
        assert!(text.ok().contains(part), "no {part:?} in\n{}", text.ok());
    }

    let Some(json) = under_virtual_gpus(2, &["devices", "--json"], &[("VGPU_PEERS", "none")]) else { return };
    let json: Value = serde_json::from_str(json.ok()).unwrap();
    assert!(json.get("no_gpu").is_none(), "{json}");
    for (index, gpu) in json["gpus"].as_array().unwrap().iter().enumerate() {
        assert_eq!((gpu["index"].as_u64(), gpu["virtual"].as_bool()), (Some(index as u64), Some(true)));
        assert!(gpu["memory_bytes"].as_u64().unwrap() > 0 && gpu["multiprocessors"].as_u64().unwrap() > 0);
        assert!(gpu["uuid"].as_str().unwrap().starts_with("GPU-") && gpu["pci_bus_id"].is_string());
    }
    assert_eq!(json["peer_links"].to_string(), r#"[["same","host"],["host","same"]]"#);
    for library in json["libraries"].as_array().unwrap() {
        assert!(library["path"].is_string() && library["version"].is_string(), "{library}");
    }
}

/// If kernels cannot be compiled into the cache, the error has a hint, and nothing is listed.
#[test]
fn a_cache_of_kernels_that_cannot_be_filled_is_an_error() {
    let open = temp_dir();
    // Other users could change the code that runs on the device.
    std::fs::create_dir(open.path().join("kernels")).unwrap();
    std::fs::set_permissions(open.path().join("kernels"), Permissions::from_mode(0o755)).unwrap();
    for (env, reason) in [
        (("VGPU_FAIL", "nvrtc"), "a compilation that fails on request"),
        (("VGPU_WITHOUT", "libnvrtc"), "libnvrtc.so"),
        (("DDP_TRAIN_CACHE", open.path().to_str().unwrap()), "the folder of the cache cannot be made"),
    ] {
        let Some(outcome) = under_virtual_gpus(1, &["devices", "--compile", "90"], &[env]) else { return };
        assert!(!outcome.status.success() && outcome.stdout.is_empty(), "{outcome:#?}");
        let stderr = outcome.stderr;
        assert!(
            stderr.contains("cannot be compiled into the cache: ") && stderr.contains(reason),
            "{stderr}"
        );
        assert!(stderr.contains("\nhint: "), "{stderr}");
    }
    // An architecture that the compiler does not know is skipped.
    let Some(outcome) = under_virtual_gpus(1, &["devices", "--compile", "7"], &[]) else { return };
    assert!(outcome.ok().contains("compiled 0 files of kernels (0.0 MiB) for none"), "{outcome:#?}");
    let wrong = crate::common::run(single(&["devices", "--compile", "hopper"]));
    assert_eq!(wrong.status.code(), Some(2), "{wrong:#?}");
}

/// Runs `ddp-train ARGS` on a virtual GPU, with a folder before those of the libraries that contains `name`, a library whose only
/// function is `cuInit`. Returns `None` if no virtual GPU is available.
fn behind_a_decoy(name: &str, args: &str) -> Option<Outcome> {
    let folder = tempfile::tempdir().unwrap();
    let decoy = folder.path().join(name);
    let compiler = std::env::var_os("CXX").unwrap_or("g++".into());
    let source = folder.path().join("decoy.cpp");
    std::fs::write(&source, "extern \"C\" int cuInit(unsigned) { return 999; }\n").unwrap();
    let compiled = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&decoy).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: needs a C++ compiler");
        return None;
    }
    let mut command = Command::new("sh");
    let line = format!(
        "LD_LIBRARY_PATH='{}':$LD_LIBRARY_PATH exec '{}' {args}",
        folder.path().display(),
        ddp_train()
    );
    command.args(["-c", &line]);
    command_under_virtual_gpus(1, &command)
}

#[test]
fn another_library_under_a_shorter_name_is_not_taken() {
    for name in ["libcublasLt.so", "libnvrtc.so"] {
        let out = tempfile::tempdir().unwrap();
        let args = format!(
            "train --device cuda --set train.steps=2 --progress none --out '{}/run'",
            out.path().display()
        );
        let Some(outcome) = behind_a_decoy(name, &args) else { return };
        outcome.ok();
    }
}

#[test]
fn two_drivers_are_refused_by_name() {
    let Some(outcome) = behind_a_decoy("libcuda.so", "devices") else { return };
    for part in ["no GPU: two drivers are found: libcuda.so.1, and /", "/libcuda.so as libcuda.so", "stubs"] {
        assert!(outcome.ok().contains(part), "no {part:?} in\n{}", outcome.ok());
    }
}

#[test]
fn a_rank_shows_its_cpus_and_can_be_left_unbound() {
    let cpus = ddp_kernels::cpu::cpu_set::CpuSet::for_thread().to_string();
    let text = without_gpu(&["devices"]);
    assert!(text.contains(&format!(" (CPUs {cpus})")), "{text}");
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run").display().to_string();
    let args = [
        "train",
        "-v",
        "--device",
        "cpu",
        "--bind",
        "none",
        "--threads",
        "1",
        "--set",
        "train.steps=1",
        "--out",
        &folder,
    ];
    let outcome = run_ok(single(&args));
    assert!(outcome.stderr.contains(&format!("1 thread on CPUs {cpus}")), "{}", outcome.stderr);
}
