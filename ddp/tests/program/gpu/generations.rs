//! Drivers and GPUs of several generations: which are served, and the way out for the others.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use super::program::{counts, on_gpus};
use crate::common::{ddp_train, temp_dir};
use crate::virtual_gpu::{command_under_virtual_gpus, under_virtual_gpus};

/// Drivers from 525 (CUDA 12.0) on are served, though they lack functions of later ones.
#[test]
fn a_driver_of_cuda_12_is_served() {
    let folder = temp_dir();
    for (version, name) in [("12000", "12.0"), ("12020", "12.2")] {
        let out = folder.path().join(version).to_str().unwrap().to_owned();
        let args = ["train", "--progress", "plain", "--out", &out, "--set", "train.steps=2"];
        let counted = folder.path().join(name);
        std::fs::create_dir(&counted).unwrap();
        let env = [("VGPU_DRIVER", version), ("VGPU_COUNTS", counted.to_str().unwrap())];
        let Some(outcome) = under_virtual_gpus(1, &args, &env) else { return };
        outcome.ok();
        assert!(counts(&counted)["cuEventElapsedTime"] > 0.0, "no matmul was chosen by time");
        assert!(outcome.stderr.contains("on cuda:0 (Virtual GPU)"), "{outcome:#?}");
        let listed = under_virtual_gpus(1, &["devices", "--json"], &env).unwrap();
        assert!(listed.ok().contains(&format!("\"{name}\"")), "{listed:#?}");
    }
}

/// GPUs that the driver cannot serve are an error for `auto` too: a run on the CPU would be a surprise that takes days.
#[test]
fn auto_does_not_pass_over_gpus_that_the_driver_cannot_serve() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args = ["train", "--progress", "none", "--out", &out, "--set", "train.steps=2"];
    let cases = [
        (("VGPU_DRIVER", "11080"), "driver to 525 or newer"),
        (("VGPU_FAIL", "driver:802"), "nvidia-fabricmanager"),
        (("VGPU_FAIL", "driver:803"), "restart the machine"),
    ];
    for (variable, way_out) in cases {
        let Some(outcome) = under_virtual_gpus(1, &args, &[variable]) else { return };
        assert_eq!(outcome.status.code(), Some(78), "{variable:?}: {outcome:#?}");
        for part in [way_out, "--device cpu"] {
            assert!(outcome.stderr.contains(part), "{variable:?}: no {part} in {}", outcome.stderr);
        }
        assert!(!Path::new(&out).exists(), "{variable:?}: a run was begun");
        let by_choice = [&args[..], &["--device", "cpu"]].concat();
        under_virtual_gpus(1, &by_choice, &[variable]).unwrap().ok();
        std::fs::remove_dir_all(&out).unwrap();
    }
}

/// GPUs before Ampere have no bf16, which a run reports before it reads its data, and compute tf32 as f32.
#[test]
fn formats_that_a_gpu_lacks_are_reported_with_another() {
    let folder = temp_dir();
    let run = |precision: &str, arch: &str| {
        let out = folder.path().join(format!("{precision}-{arch}")).to_str().unwrap().to_owned();
        let set = format!("train.precision={precision}");
        let args = ["train", "--progress", "none", "--out", &out, "--set", "train.steps=2", "--set", &set];
        under_virtual_gpus(1, &args, &[("VGPU_ARCH", arch)])
    };
    let Some(refused) = run("bf16", "7.5") else { return };
    assert_eq!(refused.status.code(), Some(78), "{refused:#?}");
    for part in ["compute capability 7.5", "no matmuls in bf16", "train.precision = \"f16\""] {
        assert!(refused.stderr.contains(part), "no {part} in {}", refused.stderr);
    }
    let note = "has no tf32";
    for (precision, arch, is_told) in [
        ("tf32", "7.5", true),
        ("f32x3", "7.5", true),
        ("tf32", "8.0", false),
        ("f32x3", "8.0", false),
        ("f16", "7.5", false),
    ] {
        let outcome = run(precision, arch).unwrap();
        outcome.ok();
        assert_eq!(outcome.stderr.contains(note), is_told, "{precision} on {arch}: {}", outcome.stderr);
    }
    // A model of a newer GPU.
    run("bf16", "8.0").unwrap().ok();
    let saved = folder.path().join("bf16-8.0").to_str().unwrap().to_owned();
    let eval = ["eval", "--checkpoint", &saved];
    let outcome = under_virtual_gpus(1, &eval, &[("VGPU_ARCH", "7.5")]).unwrap();
    assert_eq!(outcome.status.code(), Some(78), "{outcome:#?}");
    assert!(outcome.stderr.contains("no matmuls in bf16"), "{}", outcome.stderr);
}

/// CUDA 13's libraries do not serve Volta, though its newest driver runs them: those of CUDA 12 beside them are taken.
#[test]
fn volta_takes_the_libraries_of_cuda_12() {
    let script = "library=$(readlink -f \"${LD_LIBRARY_PATH%%:*}/libcuda.so\"); \
                  for name in libnvrtc.so.12 libnvrtc.so.13 libcublasLt.so.12 libcublasLt.so.13; do \
                  ln -s \"$library\" \"$0/$name\"; done; export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$0; exec \"$@\"";
    for (arch, major) in [("7.0", 12), ("7.5", 13)] {
        let folder = temp_dir();
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(folder.path()).arg(ddp_train()).args(["devices", "--json"]);
        command.env("VGPU_WITHOUT", "libnvrtc libcublasLt").env("VGPU_ARCH", arch);
        let Some(outcome) = command_under_virtual_gpus(1, &command) else { return };
        for library in ["libnvrtc", "libcublasLt"] {
            let path = format!("{library}.so.{major}\"");
            assert!(outcome.ok().contains(&path), "{arch}: no {path} in {outcome:#?}");
        }
    }
}

/// Two MIG instances of one GPU have different UUIDs, but NCCL takes them for one device.
#[test]
fn ranks_on_mig_instances_of_one_gpu_are_refused() {
    let folder = temp_dir();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let args = ["train", "--progress", "none", "--device", "cuda", "--out", &out, "--set", "train.steps=2"];
    let Some(outcome) = on_gpus(2, 2, &args, &[("VGPU_MIG", "1")]) else { return };
    assert_eq!(outcome.status.code(), Some(78), "{outcome:#?}");
    for part in ["ranks 0 and 1 both use the GPU Virtual GPU MIG", "nvidia-smi -mig 0"] {
        assert!(outcome.stderr.contains(part), "no {part} in {}", outcome.stderr);
    }
}

/// Places of the CUDA libraries that the loader does not search.
#[test]
fn libraries_of_conda_and_of_the_user_are_found() {
    let places = [
        ("CONDA_PREFIX", "targets/x86_64-linux/lib"),
        ("CONDA_PREFIX", "lib"),
        ("HOME", ".local/lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("PYTHONUSERBASE", "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib"),
    ];
    // The library under the one name that the loader does not find, in this place.
    let script = "library=$(readlink -f \"${LD_LIBRARY_PATH%%:*}/libcuda.so\"); mkdir -p \"$0\"; \
                  ln -s \"$library\" \"$0/libnvrtc.so.13\"; exec \"$@\"";
    for (variable, place) in places {
        let folder = temp_dir();
        let place = folder.path().join(place);
        let mut command = Command::new("bash");
        command.args(["-c", script, place.to_str().unwrap()]).arg(ddp_train()).args(["devices", "--json"]);
        command.env_remove("CONDA_PREFIX").env_remove("PYTHONUSERBASE").env("VGPU_WITHOUT", "libnvrtc");
        command.env(variable, folder.path());
        let Some(outcome) = command_under_virtual_gpus(1, &command) else { return };
        let found = place.join("libnvrtc.so.13");
        assert!(outcome.ok().contains(found.to_str().unwrap()), "{variable}: {outcome:#?}");
    }
}

/// A model whose steps are too small for a GPU trains on it and says so; a larger one says nothing.
#[test]
fn a_step_that_is_too_small_for_a_gpu_is_reported() {
    let folder = temp_dir();
    for (batch, is_small) in [("32", true), ("256", false)] {
        let out = folder.path().join(batch).to_str().unwrap().to_owned();
        let set = format!("train.batch_size={batch}");
        let args = ["train", "--progress", "plain", "--out", &out, "--set", "train.steps=2", "--set", &set];
        let Some(outcome) = under_virtual_gpus(1, &args, &[]) else { return };
        outcome.ok();
        let is_told = outcome.stderr.contains("takes less time than launching its kernels");
        assert_eq!(is_told, is_small, "{batch}: {}", outcome.stderr);
    }
}
