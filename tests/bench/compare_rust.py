#!/usr/bin/env python3
"""Compares steps of this library with those of candle and burn on this machine's CPU, in one interleaved run.

  python tests/bench/compare_rust.py --out result.jsonl [--repeats 7] [--threads 1]

Builds tests/bench/rust_peers (minutes, from crates.io), then runs every form once, then all again. Ours includes the loader and reads
the loss of each step; the peers step on tensors that are there already. Prints the median over runs of each run's median step.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

import records

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = ["ours", "candle", "burn"]
CASES = [("mlp", "sgd", 4000), ("mlp", "adamw", 4000), ("char_gpt", "adamw", 300)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="compare_rust.jsonl")
    p.add_argument("--repeats", type=int, default=7)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--target", default=str(HERE / "rust_peers" / "target"))
    opt = p.parse_args()
    subprocess.run(["cargo", "build", "--release", "--quiet", "--target-dir", opt.target], cwd=HERE / "rust_peers", check=True)
    runs, load = [], os.getloadavg()[0]
    env = {**os.environ, "RAYON_NUM_THREADS": str(opt.threads), "CUDA_VISIBLE_DEVICES": ""}
    for repeat in range(opt.repeats):
        for case, optimizer, steps in CASES:
            for library in LIBRARIES:
                command = [f"{opt.target}/release/{library}", case, optimizer, str(steps)]
                out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
                runs.append({**json.loads(out), "repeat": repeat})
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    about = {
        "what": "microseconds per step of this library, candle and burn",
        "date": datetime.date.today().isoformat(), "cpu": cpu, "cores": os.cpu_count(), "load_before": load, "threads": opt.threads,
        "versions": {"candle": "0.11.1", "burn": "0.22.0 (flex)"}, "repeats": opt.repeats,
    }
    records.write(opt.out, about, runs)
    print(f"{cpu}, {opt.threads} thread(s), load before {load:.1f}; us per step, best run in brackets")
    for case, optimizer, _ in CASES:
        cells, ours = [], None
        for library in LIBRARIES:
            us = [run["us_per_step"] for run in runs if (run["library"], run["case"], run["optimizer"]) == (library, case, optimizer)]
            median = statistics.median(us)
            ours = ours or median
            cells.append(f"{library} {median:.1f} ({min(us):.1f}, {median / ours:.2f}x)")
        print(f"{case} {optimizer}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
