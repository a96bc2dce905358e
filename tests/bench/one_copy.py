#!/usr/bin/env python3
"""Measures what a table costs a host whose ranks load it: CPU time, wall time and memory, by number of ranks.

  python tests/bench/one_copy.py [--binary FILE] [--before FILE] [--rows 1000000] [--ranks 1,2,4,8] [--repeats 3] [--case NAME] [--out FILE]

A table of 20 features of f32, a label and a text, as CSV (the texts plain, or in quotes) and as Parquet, and with rows taken out for
evaluation by the text; as Parquet that exceeds the memory, whose row groups are decoded in each of three epochs; last, starts of one rank that keep the CSV (data.cache), and then map it. A run of a
single step (of three epochs there) of a small network is started by `launch -n N --launcher env`; its CPU time is that of all ranks. The memory is the sum of
the proportional set sizes (PSS) of all ranks, sampled from outside while the run trains for two seconds. Runs of both programs
alternate; figures are medians.

Needs numpy and pyarrow.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import tempfile
import time

import records
import release_program


BEYOND = "parquet beyond memory"


def write_tables(folder, n_rows):
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    draw = np.random.default_rng(0)
    columns = {f"x{column}": np.round(draw.normal(size=n_rows), 4).astype(np.float32) for column in range(20)}
    columns["y"] = (sum(columns[f"x{column}"] * (column % 3 - 1) for column in range(20)) > 0).astype(np.int64)
    columns["fold"] = np.where(draw.integers(0, 5, n_rows) == 0, "test", "train")
    table = pa.table(columns)
    parquet.write_table(table, os.path.join(folder, "t.parquet"), row_group_size=100_000)
    csv.write_csv(table, os.path.join(folder, "quoted.csv"))
    csv.write_csv(table, os.path.join(folder, "t.csv"), csv.WriteOptions(quoting_style="none"))
    return table.nbytes


def command(binary, path, n_ranks, out, more):
    train = [binary, "launch", "-n", str(n_ranks), "--launcher", "env", "--"]
    train += ["train", "--set", f"data.train={path}", "--set", "data.target=y", "--out", out, "--overwrite", "--quiet"]
    train += ["--set", "model.hidden=[8]", "--set", "train.batch_size=64", "--device", "cpu"]
    return train + more


def timed(arguments):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "wall_s": time.perf_counter() - start}


def descendants(pid):
    found, left = [], [pid]
    while left:
        pid = left.pop()
        try:
            children = open(f"/proc/{pid}/task/{pid}/children").read().split()
        except OSError:
            continue
        found += children
        left += children
    return found


def pss_mib(pid):
    try:
        lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def memory(arguments):
    """The largest sum of the ranks' memory once all of them train, and while they load."""
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, sum(pss_mib(child) for child in descendants(process.pid)))
        time.sleep(0.02)
    assert process.returncode == 0
    return peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--before", help="another program, to compare with")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", help="only this one")
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    programs = {"after": os.path.abspath(args.binary)}
    if args.before:
        programs = {"before": os.path.abspath(args.before), **programs}
    version = lambda program: subprocess.run([program, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "note": args.note,
        "versions": {side: version(program) for side, program in programs.items()},
        "rows": args.rows,
        "repeats": args.repeats,
        "cases": {},
    }
    cases = {
        "csv": ("t.csv", ["--set", "data.drop=fold"]),
        "csv, texts in quotes": ("quoted.csv", ["--set", "data.drop=fold"]),
        "parquet": ("t.parquet", ["--set", "data.drop=fold"]),
        "csv, split by a column": ("t.csv", ["--set", 'data.split={column="fold"}']),
        BEYOND: ("t.parquet", ["--set", "data.drop=fold", "--set", "data.eval=none", "--set", "data.loader_memory_mib=64", "--set", "data.shuffle_mode=blocks", "--set", "data.shuffle_window_mib=16"]),
    }
    if args.case:
        cases = {args.case: cases[args.case]}
    with tempfile.TemporaryDirectory() as folder:
        write_tables(folder, args.rows)
        out = os.path.join(folder, "run")
        for name, (file, more) in cases.items():
            for n_ranks in [int(number) for number in args.ranks.split(",")]:
                # As many rows a step for any number of ranks.
                epochs = ["--set", "train.epochs=3", "--set", f"train.batch_size={8192 // n_ranks}"]
                figures = {side: [] for side in programs}
                for _ in range(args.repeats):
                    for side, program in programs.items():
                        figures[side].append(timed(command(program, os.path.join(folder, file), n_ranks, out, [*more, *(epochs if name == BEYOND else ["--set", "train.steps=1"])])))
                for side, program in programs.items():
                    medians = {key: round(statistics.median(run[key] for run in figures[side]), 3) for key in ["cpu_s", "wall_s"]}
                    seconds = [*more, *(epochs if name == BEYOND else ["--set", "train.steps=20000"])]
                    medians["peak_pss_mib"] = round(memory(command(program, os.path.join(folder, file), n_ranks, out, seconds)), 1)
                    result["cases"].setdefault(name, {}).setdefault(side, {})[n_ranks] = medians
                print(name, n_ranks, {side: result["cases"][name][side][n_ranks] for side in programs}, flush=True)
        if "csv" in cases:
            cached = [*cases["csv"][1], "--set", "train.steps=1", "--set", f"data.cache={folder}/cache"]
            starts = [timed(command(programs["after"], os.path.join(folder, "t.csv"), 1, out, cached)) for _ in range(1 + args.repeats)]
            result["cached"] = {"first": starts[0], "then": {key: statistics.median(start[key] for start in starts[1:]) for key in starts[0]}}
            print("cached", result["cached"])
    print(records.line(result), end="")
    if args.out:
        records.write(args.out, result)


if __name__ == "__main__":
    main()
