//! Drivers and GPUs of several generations: which are served, and the way out for the others.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "mpi")]

use std::path::Path;

use super::program::counts;
use crate::common::temp_dir;
use crate::virtual_gpu::under_virtual_gpus;

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
