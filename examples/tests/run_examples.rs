//! Every example does what it claims.

// A test that cannot continue panics, and a test that is skipped prints that it is.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use ddp::distributed::World;
use ddp_train::cli::{Cli, Command as Subcommand};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Output of the command, which must succeed.
#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:#?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The number after `name` in `text`.
#[track_caller]
fn number(text: &str, name: &str) -> f64 {
    let rest = text.split(name).nth(1).unwrap_or_else(|| panic!("no {name:?} in {text}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn single_process() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_single_process")));
    assert_eq!(text.lines().count(), 11, "{text}");
    assert!(number(&text, "test accuracy ") > 0.93, "{text}");
}

#[test]
fn threads() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_threads")));
    assert!(number(&text, "test accuracy ") > 0.9, "{text}");
    assert!(text.contains("4 of 4 ranks hold the same 17"), "{text}");
    // Rounding alone grows over 225 steps, but not to where the models would differ.
    assert!(number(&text, "largest difference ") < 1e-3, "{text}");
}

#[test]
fn own_dataset() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_own_dataset")));
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(number(&text, "test accuracy ") > 0.93, "{text}");
}

#[test]
fn own_layer() {
    let texts = on_cpu_and_virtual_gpus(env!("CARGO_BIN_EXE_own_layer"), &[]);
    for (text, device) in texts.iter().zip(["cpu", "cuda:0"]) {
        assert!(text.contains(&format!("gradients are right on {device}")), "{text}");
        assert!(text.contains("layers.0.weight, layers.0.bias, swish.0, layers.1.weight"), "{text}");
        let buffers = ["buffer input.mean: tensor([", "buffer input.deviation", &format!("device={device}")];
        assert!(buffers.iter().all(|part| text.contains(part)), "{text}");
        assert!(number(text, " -> ") < 0.2 * number(text, "loss "), "{text}");
        assert!(text.contains("2 of 2 ranks of this process hold the same weights"), "{text}");
    }
}

/// Runs the program on the CPU and, if virtual GPUs can be built, on two of them.
#[track_caller]
fn on_cpu_and_virtual_gpus(program: &str, args: &[&str]) -> Vec<String> {
    let mut texts = vec![output(Command::new(program).args(args))];
    if Command::new("g++").arg("--version").output().is_err() || !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: the virtual GPU needs x86-64 and g++");
        return texts;
    }
    let mut command = Command::new(root().join("tests/vgpu/run"));
    texts.push(output(command.args(["-n", "2", "--", program]).args(args)));
    texts
}

#[test]
fn device_tour() {
    let texts = on_cpu_and_virtual_gpus(env!("CARGO_BIN_EXE_device_tour"), &[]);
    for (index, text) in texts.iter().enumerate() {
        let on_gpu = index == 1;
        let device = if on_gpu { "cuda:0" } else { "cpu" };
        for part in [
            format!("tensor([0.0000, 0.3333, 0.6667, 1.0000], device={device}, dtype=f32)"),
            "device=cpu, dtype=bf16)".to_owned(),
            format!("buffer shift: tensor([0., 1., 2.], device={device}, dtype=f32)"),
            format!("parameter layers.0.weight: [2, 3] on {device}"),
            format!("10 batches on {device}; rows are resident on a GPU: {on_gpu}"),
            "equal: true".to_owned(),
            "a tensor of 4 MiB allocates 4194304 bytes".to_owned(),
        ] {
            assert!(text.contains(&part), "no {part:?} in {text}");
        }
        let error = if on_gpu { "different devices" } else { "different dtypes" };
        assert!(text.contains(error) && text.contains("hint: "), "{text}");
        let of_gpus = ["copies from cuda:0 to cuda:1: ", "addmm on cuda:1", "pinned copy: the sum is 32768"];
        assert!(of_gpus.iter().all(|part| text.contains(part) == on_gpu), "{text}");
    }
}

#[test]
fn own_training_loop() {
    for text in on_cpu_and_virtual_gpus(env!("CARGO_BIN_EXE_own_training_loop"), &[]) {
        assert!(number(&text, "epoch 8: loss ") < 0.3 * number(&text, "epoch 1: loss "), "{text}");
        assert!(text.contains("2 of 2 ranks of this process have the same losses"), "{text}");
    }
}

#[test]
fn tensor_dataset() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_tensor_dataset")));
    assert_eq!(text.lines().count(), 4, "{text}");
    let own = [
        "rank 0: [[0.0, 1.0, 2.0], [6.0, 7.0, 8.0], [10.0, 11.0]]",
        "rank 1: [[3.0, 4.0, 5.0], [9.0, 9.0, 10.0], [11.0]]",
    ];
    assert!(own.iter().all(|part| text.contains(&format!("own order, {part}"))), "{text}");
}

/// The losses of the first steps equal PyTorch's for any number of ranks, on CPU threads and on GPUs.
#[test]
fn char_gpt() {
    let golden = std::fs::read_to_string(root().join("tests/golden/char_gpt.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let want: Vec<f64> =
        golden["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    // A few tens of f32 rounding errors; PyTorch's own f32 differs from its f64 by 1.3e-7.
    let tolerance = 5e-6;
    assert!(golden["float64_loss_gap"].as_f64().unwrap() < tolerance);
    let program = env!("CARGO_BIN_EXE_char_gpt");
    let mut texts = vec![(20, output(Command::new(program).args(["20", "1"])))];
    texts.extend(on_cpu_and_virtual_gpus(program, &["8", "2"]).into_iter().map(|text| (8, text)));
    texts.push((8, output(Command::new(program).args(["8", "4"]))));
    // An expression and a backward pass that is written out are the same attention.
    let own_backward = on_cpu_and_virtual_gpus(program, &["8", "2", "--own-backward"]);
    texts.extend(own_backward.into_iter().map(|text| (8, text)));
    assert_eq!(want.len(), 20);
    for (n_steps, text) in texts {
        for (step, want) in want[..n_steps].iter().enumerate() {
            let got = number(&text, &format!("step {}: loss ", step + 1));
            assert!((got - want).abs() <= tolerance * want, "step {}: {got}, PyTorch {want}", step + 1);
        }
        assert!(text.contains("ranks of this process have the same losses"), "{text}");
    }
}

/// Compares in f64, with a loop on one rank. A rounding error of 1e-16 grows over 20 steps of AdamW; f32 would be 1e-7 away.
#[test]
fn char_gpt_in_f64() {
    let golden = std::fs::read_to_string(root().join("tests/golden/char_gpt.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let want = golden["float64_losses"].as_array().unwrap();
    assert_eq!(want.len(), 20);
    let program = env!("CARGO_BIN_EXE_char_gpt");
    let mut texts = vec![(20, output(Command::new(program).args(["20", "1", "--double"])))];
    let on_gpus = on_cpu_and_virtual_gpus(program, &["8", "1", "--double"]).into_iter().skip(1);
    texts.extend(on_gpus.map(|text| (8, text)));
    for (n_steps, text) in texts {
        for (step, want) in want[..n_steps].iter().map(|loss| loss.as_f64().unwrap()).enumerate() {
            let got = number(&text, &format!("f64 step {}: loss ", step + 1));
            assert!((got - want).abs() <= 1e-11 * want, "step {}: {got:.15}, PyTorch {want:.15}", step + 1);
        }
    }
}

#[test]
fn mpi_all_reduce_alone() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_mpi_all_reduce")));
    assert_eq!(text, "world of 1 (single): sum of ranks 0, largest 0\n");
}

#[test]
fn mpi_all_reduce_of_ranks() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: needs mpirun");
        return;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-n", "3"]);
    let text = output(command.arg(env!("CARGO_BIN_EXE_mpi_all_reduce")));
    assert!(text.contains("world of 3 (") && text.contains("sum of ranks 3, largest 2\n"), "{text}");
}

#[test]
fn addmm() {
    let text = output(&mut Command::new(env!("CARGO_BIN_EXE_addmm")));
    for part in [
        "2 a·b + 10 = [42.0, 54.0, 78.0, 108.0]",
        "a·aᵀ = [14.0, 32.0, 32.0, 77.0]",
        "shapes: addmm: b [4, 2] f32 on cpu should be [3, 2]",
        "dtypes: addmm: a [2, 3] f32 on cpu and b [3, 2] f64 on cpu have different dtypes",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let devices = text.split("devices: ").nth(1).unwrap();
    assert!(devices.contains("cuda:0") && devices.contains("hint: "), "{text}");
}

/// Trains with a config of the examples, like `ddp-train`; returns the run's last event.
fn train(config: &str, out: &Path) -> Value {
    // Configs contain paths of data files relative to the root.
    std::env::set_current_dir(root()).unwrap();
    let out_arg = out.to_str().unwrap();
    let args = ["ddp-train", "train", config, "--out", out_arg, "--threads", "1", "-q"];
    let Subcommand::Train(args) = Cli::parse_from(args).command else { panic!() };
    let world = World::single();
    ddp_train::commands::train::train(
        &world,
        &ddp_train::report::log::Log::none(&world),
        &ddp::train::stop_signals::StopSignals::default(),
        &args,
    )
    .unwrap();
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    serde_json::from_str(metrics.lines().last().unwrap()).unwrap()
}

#[test]
fn digits_toml() {
    let out = tempfile::tempdir().unwrap();
    let end = train("examples/digits.toml", out.path());
    assert!(end["eval_accuracy"].as_f64().unwrap() > 0.95, "{end}");
}

#[test]
fn diabetes_toml() {
    let out = tempfile::tempdir().unwrap();
    let end = train("examples/diabetes.toml", out.path());
    // Least squares reach 0.33 on this split.
    assert!(end["eval_r2"].as_f64().unwrap() > 0.3, "{end}");
}

#[test]
fn csv_toml_and_its_model_in_pytorch() {
    let out = tempfile::tempdir().unwrap();
    let end = train("examples/csv.toml", out.path());
    let accuracy = end["eval_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.95, "{end}");

    let has_torch = Command::new("python3").args(["-c", "import torch, safetensors, tomllib"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs torch and safetensors");
        return;
    }
    let mut command = Command::new("python3");
    command.arg("examples/load_in_pytorch.py").arg(out.path().join("model.safetensors"));
    let text = output(command.arg("examples/data/digits_test.csv"));
    // One row of 359 may lie on the border between two classes.
    assert!((number(&text, "accuracy ") - accuracy).abs() < 1.5 / 359.0, "{text}{end}");
}

/// On two virtual GPUs, operands are copied, the results are collected, and both ways give the same matrix.
#[test]
fn multi_gpu_addmm() {
    let program = env!("CARGO_BIN_EXE_multi_gpu_addmm");
    // Alone it reports what is missing, or uses what is there.
    output(Command::new(program).arg("64"));
    if Command::new("g++").arg("--version").output().is_err() || !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: the virtual GPU needs x86-64 and g++");
        return;
    }
    let mut command = Command::new(root().join("tests/vgpu/run"));
    let text = output(command.args(["-n", "2", "--", program, "192"]));
    assert!(text.contains("a [192, 192] f32 on cuda:0 and b [192, 192] f32 on cuda:1"), "{text}");
    assert!(text.contains("copies from cuda:0 to cuda:1: peer to peer"), "{text}");
    assert!(number(&text, "largest difference ") < 1e-4, "{text}");
}
