//! Invalid command lines.

use super::harness::Place;

#[track_caller]
fn refuses(line: &str, parts: &[&str]) {
    let args: Vec<&str> = line.split(' ').filter(|arg| !arg.is_empty()).collect();
    Place::new().refuses(&args, parts);
}

#[test]
fn unknown_words() {
    refuses("trian", &["unrecognized subcommand 'trian'", "did you mean 'ddp-train train'?"]);
    refuses("train --thread 2", &["unexpected argument '--thread'", "'--threads'"]);
    refuses("train a.toml b.toml", &["unexpected argument 'b.toml'"]);
    refuses("bench steps", &["unrecognized subcommand 'steps'"]);
    refuses("eval", &["--checkpoint <PATH>"]);
    refuses("train -v -q", &["'--verbose...' cannot be used with '--quiet'"]);
}

#[test]
fn values_of_flags() {
    refuses("train --threads 0", &["'0' for '--threads <N>'", "a whole number of 1 or above"]);
    refuses("train --threads two", &["'two' for '--threads <N>'"]);
    refuses("train --progress fancy", &["'fancy' for '--progress", "auto, bar, plain, none"]);
    refuses("train --set", &["--set <SECTION.KEY=VALUE>"]);
    let twice = "train --comm-dtype bf16 --set comm.dtype=f32 --out out --device cpu";
    refuses(twice, &["`comm.dtype`", "--set comm.dtype=f32", "--comm-dtype bf16"]);
    refuses("bench step --dims 64", &["'64' for '--dims", "at least two widths"]);
    refuses("bench step --batch 0", &["'0' for '--batch <N>'"]);
    refuses("completions tcsh", &["'tcsh' for '<SHELL>'", "bash"]);
}

#[test]
fn devices() {
    refuses("train --device gpu", &["'gpu' for '--device", "expected auto, cpu, cuda or cuda:N"]);
    refuses("train --device cuda:x", &["'cuda:x' for '--device"]);
    refuses("train --device mps", &["'mps' for '--device", "not supported by this build"]);
    // If a requested GPU is missing, the program never falls back to the CPU silently.
    for (device, named) in [("cuda", "cuda:0"), ("cuda:3", "cuda:3")] {
        let line = format!("train --device {device} --out out --set train.steps=1");
        let args: Vec<_> = line.split(' ').collect();
        Place::new().refuses_with(
            78,
            &args,
            &[&format!("error: the device {named} cannot be used"), "--device cpu"],
        );
    }
}
