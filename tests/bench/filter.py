#!/usr/bin/env python3
"""Start of a run whose rows a filter selects, beside a file that holds only these rows, and beside all rows.

    tests/bench/filter.py PROGRAM [--pairs 5] > results.jsonl

Time from the start of the process to the end of one step, and its CPU time, for tables of 20 features; a condition on two columns keeps
about half of the rows. Medians of runs in turn.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import records

CONDITION = "x0 > 0 and kind != 'd' or x1 > 2"


def write(path, kept_path, n_rows):
    draw = random.Random(1)
    head = ",".join([*(f"x{i}" for i in range(20)), "kind", "y"]) + "\n"
    with open(path, "w") as file, open(kept_path, "w") as kept:
        file.write(head)
        kept.write(head)
        for _ in range(n_rows):
            x = [draw.gauss(0, 1) for _ in range(20)]
            kind = draw.choice("abcd")
            cells = [round(value, 4) for value in x]
            line = ",".join([*map(str, cells), kind, str(int(x[0] + x[2] > 0))]) + "\n"
            file.write(line)
            if cells[0] > 0 and kind != "d" or cells[1] > 2:
                kept.write(line)


def start(program, table, more, folder):
    """Seconds and CPU seconds of a run of one step."""
    keys = ["data.eval=none", "train.steps=1", "data.categorical=kind"]
    line = [program, "train", table, "--target", "y", "--plain", "--device", "cpu", "--quiet", "--overwrite", "--out", folder / "run"]
    before, begin = os.times(), time.monotonic()
    subprocess.run([*line, *(word for key in [*keys, *more] for word in ("--set", key))], check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - begin, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    version = subprocess.run([args.program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    sys.stdout.write(records.line({"version": version, "condition": CONDITION, "pairs": args.pairs, "machine": records.processor()}))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n_rows in (10_000, 100_000, 1_000_000):
            write(folder / "all.csv", folder / "kept.csv", n_rows)
            for table in ("all", "kept"):
                convert = [args.program, "data", "convert", folder / f"{table}.csv", folder / f"{table}.parquet", "--overwrite"]
                subprocess.run(convert, check=True, capture_output=True)
            for ending in ("csv", "parquet"):
                of = {"filtered": ("all", [f"data.filter={CONDITION}"]), "kept": ("kept", []), "all": ("all", [])}
                times = {case: [] for case in of}
                for _ in range(args.pairs):
                    for case, (table, more) in of.items():
                        times[case].append(start(args.program, folder / f"{table}.{ending}", more, folder))
                line = {"rows": n_rows, "format": ending}
                for case, runs in times.items():
                    wall, cpu = (statistics.median(values) for values in zip(*runs))
                    line |= {f"{case}_s": wall, f"{case}_cpu_s": cpu}
                line["filtered_to_all"] = line["filtered_s"] / line["all_s"]
                sys.stdout.write(records.line(line))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
