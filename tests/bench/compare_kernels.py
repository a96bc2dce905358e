#!/usr/bin/env python3
"""Compares the CPU kernels of two ddp-train binaries: `bench kernels` of each in turn.

  tests/bench/compare_kernels.py OLD NEW [--runs N] [--rows N] [--cols N] [--out FILE.jsonl]

For each operation: the time with OLD over the time with NEW, of the fastest call of all runs and of the median of the runs'
medians. The fastest calls are robust where other work runs on the machine. The JSON holds every run.
"""
import argparse
import collections
import json
import statistics
import subprocess
import sys

import records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--cols", type=int, default=256)
    parser.add_argument("--out")
    args = parser.parse_args()

    binaries = {"old": args.old, "new": args.new}
    versions = {
        key: subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        for key, binary in binaries.items()
    }
    options = ["--device", "cpu", "--dtype", "f32", "--rows", str(args.rows), "--cols", str(args.cols)]
    times = collections.defaultdict(lambda: {"old": [], "new": []})
    for _ in range(args.runs):
        for key, binary in binaries.items():
            command = [binary, "bench", "kernels", *options, "--repeats", "5", "--json"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
            for line in run.stdout.splitlines():
                result = json.loads(line)
                times[result["op"]][key].append([result["ms_min"], result["ms_median"]])

    summary = []
    for op, runs in times.items():
        if not runs["old"] or not runs["new"]:
            continue
        fastest = {key: min(low for low, _ in all_runs) for key, all_runs in runs.items()}
        median = {key: statistics.median(mid for _, mid in all_runs) for key, all_runs in runs.items()}
        ratios = {"old_over_new_fastest": fastest["old"] / fastest["new"], "old_over_new_median": median["old"] / median["new"]}
        summary.append({"op": op, **ratios, "fastest_ms": fastest, "runs_ms_min_and_median": runs})
    summary.sort(key=lambda entry: -entry["old_over_new_fastest"])
    for entry in summary:
        print(f"{entry['old_over_new_fastest']:7.2f} {entry['old_over_new_median']:7.2f}  {entry['op']}")
    if args.out:
        about = {**records.processor(), "versions": versions, "rows": args.rows, "cols": args.cols, "runs": args.runs}
        records.write(args.out, about, summary)


if __name__ == "__main__":
    main()
