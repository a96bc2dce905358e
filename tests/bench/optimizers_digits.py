#!/usr/bin/env python3
"""Epochs that optimizers take to the accuracy of the plain MLP on the bundled digits.

  python tests/bench/optimizers_digits.py [--binary FILE] [--seeds 0 1 2 3 4] [--out FILE]

The model and data of quality_digits.py: 64-128-64-10 with ReLU, 32 rows a global batch, 30 epochs. The bar is the mean test accuracy
of AdamW after its last epoch; an optimizer reaches it in the first epoch after which its mean over the seeds is at least that. Each
optimizer runs with its defaults, Lion with a weight decay ten times that of AdamW, as its paper advises. Needs nothing but Python.
Exit status 1 if neither Muon nor Lion reaches the bar in at most the epochs of AdamW.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import records
import release_program
from quality_digits import CONFIG

OPTIMIZERS = {
    "adamw": [],
    "lion": ["optimizer.kind=lion", "optimizer.lr=1e-4", "optimizer.weight_decay=0.1"],
    "muon": ["optimizer.kind=muon", "optimizer.lr=0.02", "optimizer.weight_decay=0.1"],
    "lamb": ["optimizer.kind=lamb", "optimizer.lr=0.01"],
}


def accuracies(opt, folder, name, seed):
    """Test accuracy after each epoch."""
    run = folder / f"{name}-seed{seed}"
    sets = [word for key in (*OPTIMIZERS[name], f"train.seed={seed}", "checkpoint.every_minutes=0") for word in ("--set", key)]
    command = [opt.binary, "train", str(folder / "digits.toml"), *sets, "--out", str(run), "--device", "cpu", "--threads", "1",
               "--progress", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=opt.timeout)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with status {done.returncode}: {done.stderr.strip()[-1000:]}")
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["eval_accuracy"] for event in events if event["event"] == "epoch"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    p.add_argument("--timeout", type=float, default=600, metavar="S")
    p.add_argument("--out", help="the JSON lines to write")
    opt = p.parse_args()
    version = subprocess.run([opt.binary, "--version"], capture_output=True, text=True).stdout.strip()
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.processor())
    about = {"generator": "tests/bench/optimizers_digits.py", "ddp_train": version, "config": CONFIG, "sets": OPTIMIZERS,
             "machine": {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}}
    optimizers, lines = {}, []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "digits.toml").write_text(CONFIG)
        for kind in OPTIMIZERS:
            runs = {seed: accuracies(opt, folder, kind, seed) for seed in opt.seeds}
            means = [statistics.mean(epoch) for epoch in zip(*runs.values(), strict=True)]
            optimizers[kind] = {"optimizer": kind, "mean_by_epoch": means}
            lines += [{"optimizer": kind, "seed": seed, "accuracy_by_epoch": run} for seed, run in runs.items()]
    bar = about["bar"] = optimizers["adamw"]["mean_by_epoch"][-1]
    epochs = {}
    for kind, found in optimizers.items():
        first = next((epoch for epoch, mean in enumerate(found["mean_by_epoch"], 1) if mean >= bar), None)
        epochs[kind] = found["epochs_to_bar"] = first
        print(f"{kind}: mean test accuracy {found['mean_by_epoch'][-1]:.4f} after {len(found['mean_by_epoch'])} epochs, "
              f"best {max(found['mean_by_epoch']):.4f}; {bar:.4f} after {first or 'no'} epochs")
    about["met"] = met = any(epochs[kind] and epochs[kind] <= epochs["adamw"] for kind in ("muon", "lion"))
    if opt.out:
        records.write(opt.out, about, [*optimizers.values(), *lines])
        print(f"written: {opt.out}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
