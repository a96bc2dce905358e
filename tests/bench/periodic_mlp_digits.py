#!/usr/bin/env python3
"""Test accuracy of the preset `periodic_mlp` and of the plain MLP of the same hidden widths on the bundled digits.

  python tests/bench/periodic_mlp_digits.py [--binary FILE] [--seeds 0 1 2 3 4] [--out FILE]

The model and data of quality_digits.py: hidden widths 128 and 64 with ReLU, AdamW, 32 rows a global batch, 30 epochs. The preset has its
clipped, embedded and scaled features in front of them, and robust normalization by default; the plain MLP takes the features as they
are, and a second time with the same robust normalization. Needs nothing but Python. Exit status 1 if the mean accuracy of the preset
after the last epoch is below that of the plain MLP.
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

MODELS = {"mlp": [], "mlp_robust": ["data.normalize=robust"], "periodic_mlp": ["model.kind=periodic_mlp"]}


def accuracies(opt, folder, name, seed):
    """Test accuracy after each epoch."""
    run = folder / f"{name}-seed{seed}"
    sets = [word for key in (*MODELS[name], f"train.seed={seed}", "checkpoint.every_minutes=0") for word in ("--set", key)]
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
    about = {"generator": "tests/bench/periodic_mlp_digits.py", "ddp_train": version, "config": CONFIG, "sets": MODELS,
             "machine": {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}}
    means, lines = {}, []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "digits.toml").write_text(CONFIG)
        for kind in MODELS:
            runs = {seed: accuracies(opt, folder, kind, seed) for seed in opt.seeds}
            last = [of_run[-1] for of_run in runs.values()]
            spread = statistics.stdev(last) if len(last) > 1 else 0.0
            means[kind] = statistics.mean(last)
            lines.append({"model": kind, "mean": means[kind], "stdev": spread})
            lines += [{"model": kind, "seed": seed, "accuracy_by_epoch": run} for seed, run in runs.items()]
            print(f"{kind}: mean test accuracy {means[kind]:.4f}, standard deviation {spread:.4f}")
    met = about["met"] = means["periodic_mlp"] >= means["mlp"]
    if opt.out:
        records.write(opt.out, about, lines)
        print(f"written: {opt.out}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
