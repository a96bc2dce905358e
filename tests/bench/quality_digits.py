#!/usr/bin/env python3
"""Test accuracy of `ddp-train train` on the bundled digits, over several seeds, with 1 and with 2 ranks.

  python tests/bench/quality_digits.py [--binary FILE] [--ranks 1 2] [--seeds 0 1 2 3 4] [--out FILE]

64-128-64-10 with ReLU, AdamW at 1e-3, 30 epochs, 32 rows a global batch. The mean is held to 0.965: PyTorch 2.15 makes
0.9705 (0.9666 to 0.9749) of the same split. Needs nothing but Python, and mpirun for several ranks.
Exit status 1 if a mean is below the bar.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import records
import release_program

BAR = 0.965
CONFIG = """\
[data]
train = "builtin:digits"
target = "label"
task = "classification"
[model]
hidden = [128, 64]
activation = "relu"
[optimizer]
kind = "adamw"
lr = 1e-3
weight_decay = 0.01
[train]
epochs = 30
global_batch_size = 32
"""
ROOT_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def train(opt, folder, ranks, seed):
    """The run's `end` event."""
    run = folder / f"ranks{ranks}-seed{seed}"
    mpi = [opt.mpirun, "-n", str(ranks), "--bind-to", "none", "--oversubscribe"] if ranks > 1 else []
    command = [*mpi, opt.binary, "train", str(folder / "digits.toml"), "--set", f"train.seed={seed}", "--out", str(run),
               "--device", "cpu", "--threads", "1", "--progress", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=opt.timeout, env={**os.environ, **ROOT_ENV})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with status {done.returncode}: {done.stderr.strip()[-1000:]}")
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    end = [event for event in events if event["event"] == "end"]
    if len(end) != 1 or end[0]["world_size"] != ranks:
        sys.exit(f"{run}/metrics.jsonl: expected one end event of {ranks} rank(s), got {end}")
    return end[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    p.add_argument("--mpirun", default="mpirun")
    p.add_argument("--timeout", type=float, default=300, metavar="S")
    p.add_argument("--out", help="the JSON lines to write")
    opt = p.parse_args()
    version = subprocess.run([opt.binary, "--version"], capture_output=True, text=True).stdout.strip()
    about = {"generator": "tests/bench/quality_digits.py", "ddp_train": version, "config": CONFIG, "bar": BAR}
    met, lines = True, []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "digits.toml").write_text(CONFIG)
        for ranks in opt.ranks:
            ends = {seed: train(opt, folder, ranks, seed) for seed in opt.seeds}
            accuracy = [end["eval_accuracy"] for end in ends.values()]
            mean = statistics.mean(accuracy)
            met &= mean >= BAR
            lines.append({"ranks": ranks, "mean": mean, "min": min(accuracy), "max": max(accuracy), "met": mean >= BAR})
            lines += [{"ranks": ranks, "seed": seed, **end} for seed, end in ends.items()]
            print(f"{ranks} rank(s), {len(accuracy)} seeds: test accuracy mean {mean:.4f}, min {min(accuracy):.4f}, max {max(accuracy):.4f}"
                  f"; {'met' if mean >= BAR else 'NOT MET'} (mean >= {BAR}); training loss {statistics.mean(e['train_loss'] for e in ends.values()):.4f}")
    if opt.out:
        records.write(opt.out, about, lines)
        print(f"written: {opt.out}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
