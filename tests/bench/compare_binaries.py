#!/usr/bin/env python3
"""Compares the training speed of two ddp-train binaries: interleaved pairs of `bench step`, ratios, bootstrap interval.

  python tests/bench/compare_binaries.py OLD NEW [--cases a,b] [--pairs 20] [--out FILE]

The order within a pair alternates. A ratio is time per step of NEW over OLD, of one pair; reported are the median of the
ratios and its 95% bootstrap interval. Needs only Python 3 and an idle machine.
"""

import argparse
import json
import random
import statistics
import subprocess

import records

CASES = {
    "64,128,10 batch 32 SGD": ["--dims", "64,128,10", "--batch", "32", "--steps", "30000", "--optim", "sgd"],
    "64,128,10 batch 32 AdamW": ["--dims", "64,128,10", "--batch", "32", "--steps", "20000", "--optim", "adamw"],
    "784,1024,1024,10 batch 128 SGD": ["--batch", "128", "--steps", "60", "--optim", "sgd"],
    "1024,4096,4096,1024 batch 256 SGD": [
        "--dims", "1024,4096,4096,1024", "--batch", "256", "--steps", "4", "--warmup", "1", "--optim", "sgd",
    ],
}


def version(binary):
    return subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


def step_ms(binary, arguments):
    """Median time of a step in ms, on one thread."""
    command = [binary, "bench", "step", "--threads", "1", "--json", *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])["step_ms_median"]


def compare(old, new, arguments, n_pairs):
    """Medians, and the ratio with its interval, of one case."""
    times = {old: [], new: []}
    for pair in range(n_pairs):
        for binary in (old, new) if pair % 2 == 0 else (new, old):
            times[binary].append(step_ms(binary, arguments))
    ratios = [b / a for a, b in zip(times[old], times[new])]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=n_pairs)) for _ in range(4000))
    return {
        "old_ms": statistics.median(times[old]),
        "new_ms": statistics.median(times[new]),
        "ratio": statistics.median(ratios),
        "interval_95": [medians[100], medians[3899]],
        "pairs": n_pairs,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--cases", default="", help="parts of the names of cases, separated by ';' [default: all]")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--out", help="file for the results as JSON lines")
    args = parser.parse_args()
    wanted = [part for part in args.cases.split(";") if part]
    results = {}
    for name, arguments in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        results[name] = compare(args.old, args.new, arguments, args.pairs)
        print(name, json.dumps(results[name]), flush=True)
    if args.out:
        about = {"command": "tests/bench/compare_binaries.py", **records.processor(), "old": version(args.old), "new": version(args.new)}
        records.write(args.out, about, ({"case": name, **result} for name, result in results.items()))


if __name__ == "__main__":
    main()
