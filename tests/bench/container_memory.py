#!/usr/bin/env python3
"""Measures training on a table three times as large as the memory of its container: seconds per epoch from CSV next to Parquet, and peaks.

  python tests/bench/container_memory.py [--binary FILE] [--rows 10000000] [--epochs 4] [--repeats 1] [--note TEXT] [--out FILE]

A table of 20 features of f32 and a label, as CSV and as Parquet of the same rows (zstd, groups of 125,000). The container is a control
group of memory, a third of the CSV's size, which this script makes and removes: as root, version 1 or 2. Runs of one epoch and of
--epochs with `data.shuffle_mode = "blocks"` take turns; the time of an epoch is their difference. A run that the system kills fails.

Needs pyarrow and numpy.
"""

import argparse
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import records
import release_program

GROUP = "ddp-train-bench"


def write_tables(folder, n_rows):
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    draw, part_rows = np.random.default_rng(0), 125_000
    names = [f"x{column}" for column in range(20)]
    schema = pa.schema([(name, pa.float32()) for name in names] + [("y", pa.int64())])
    with parquet.ParquetWriter(folder / "t.parquet", schema, compression="zstd") as rows, csv.CSVWriter(folder / "t.csv", schema) as text:
        for start in range(0, n_rows, part_rows):
            n = min(part_rows, n_rows - start)
            columns = [draw.normal(size=n).astype(np.float32) for _ in names] + [draw.integers(0, 10, n)]
            table = pa.table(columns, schema=schema)
            rows.write_table(table)
            text.write_table(table)


def container(limit):
    """The folder of a new control group with so many bytes of memory."""
    old = pathlib.Path("/sys/fs/cgroup/memory")
    folder = (old if old.is_dir() else pathlib.Path("/sys/fs/cgroup")) / GROUP
    folder.mkdir()
    (folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(limit))
    return folder


def run(group, arguments):
    """Seconds of wall and CPU time, and the peak of the process's memory in MiB."""
    join = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    start = time.perf_counter()
    process = subprocess.Popen(arguments, preexec_fn=join, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"{arguments}: status {status}"
    return {"wall_s": time.perf_counter() - start, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    version = subprocess.run([args.binary, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_tables(folder, args.rows)
        limit = (folder / "t.csv").stat().st_size // 3
        group = container(limit)
        found = {kind: {epochs: [] for epochs in (1, args.epochs)} for kind in ("csv", "parquet")}
        try:
            for _ in range(args.repeats):
                for epochs in (1, args.epochs):
                    for kind in found:
                        train = [args.binary, "train", "--quiet", "--overwrite", "--device", "cpu", "--out", folder / "run", "--target", "y"]
                        sets = [f"data.train={folder}/t.{kind}", f"train.epochs={epochs}", "train.batch_size=4096", "model.hidden=[16]"]
                        sets.append("data.shuffle_mode=blocks")
                        found[kind][epochs].append(run(group, [*train, *(word for of in sets for word in ("--set", of))]))
        finally:
            group.rmdir()
    middle = lambda runs, key: statistics.median(of[key] for of in runs)
    cases = {}
    for kind, runs in found.items():
        per_epoch = lambda key: (middle(runs[args.epochs], key) - middle(runs[1], key)) / (args.epochs - 1)
        cases[kind] = {f"{key} per epoch": per_epoch(key) for key in ("wall_s", "cpu_s")}
        cases[kind]["runs"] = {f"{epochs} epochs": of for epochs, of in runs.items()}
    ratio = cases["csv"]["wall_s per epoch"] / cases["parquet"]["wall_s per epoch"]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    result = {"machine": machine, "note": args.note, "version": version, "rows": args.rows, "container_mib": limit >> 20}
    result |= {"csv_over_parquet_per_epoch": ratio, "cases": cases}
    print(records.line(result), end="")
    if args.out:
        records.append(args.out, result)


if __name__ == "__main__":
    main()
