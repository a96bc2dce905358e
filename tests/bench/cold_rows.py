#!/usr/bin/env python3
"""Measures rows per second that are read from a cold disk, shuffled fully, next to fio's random reads of the same file.

  python tests/bench/cold_rows.py [--binary FILE] [--before OLDER] [--repeats 5] [--out FILE] [--folder DIR]

A file of 1.6 GB with rows of 4 KiB is put out of the system's cache before each run. Ours reads it piece by piece (it is beyond
`data.loader_memory_mib`) for 200 steps of 256 rows; a row lies in two pages, after the header of npy. fio reads blocks of 4 KiB around the
cache (`direct`), 1, 32 and 256 at a time. Runs alternate. Needs fio and numpy, and a folder on a disk (not tmpfs).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import numpy as np

import records
import release_program
from compare_torch import machine

N_ROWS, N_FEATURES = 400_000, 1024


def write(folder):
    draw = np.random.default_rng(0)
    with open(folder / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (N_ROWS, N_FEATURES)})
        for _ in range(0, N_ROWS, 20_000):
            draw.standard_normal((20_000, N_FEATURES), dtype=np.float32).tofile(file)
    np.save(folder / "y.npy", draw.integers(0, 10, N_ROWS))


def evict(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def train(binary, folder):
    keys = {"data.train": folder / "x.npy", "data.labels": folder / "y.npy", "data.classes": 10, "data.loader_memory_mib": 1024}
    keys |= {"model.hidden": "[4]", "train.batch_size": 256, "train.steps": 200}
    # Nothing but the steps reads the rows.
    keys |= {"data.normalize": "none", "data.fingerprint": "sampled"}
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    command = [binary, "train", "--json", "-q", "--device", "cpu", "--threads", "1", "--overwrite", "--out", folder / "run", *sets]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])["samples_per_s"]


def fio(depth, folder):
    command = ["fio", "--name=rows", f"--filename={folder / 'x.npy'}", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio"]
    command += [f"--iodepth={depth}", "--runtime=3", "--time_based", "--readonly", "--output-format=json"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(text[text.index("{"):])["jobs"][0]["read"]["iops"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--before", help="an older binary, measured beside the other")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where the file is made (default: the system's temporary folder)")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    forms = {"ours": lambda folder: train(args.binary, folder)}
    if args.before:
        forms["ours before"] = lambda folder: train(args.before, folder)
    for depth in (1, 32, 256):
        forms[f"fio, {depth} at a time"] = lambda folder, depth=depth: fio(depth, folder)
    rates = {name: [] for name in forms}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        write(folder)
        for _ in range(args.repeats):
            for name, form in forms.items():
                evict(folder / "x.npy")
                rates[name].append(form(folder))
    version = subprocess.run([args.binary, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    result = {"machine": machine(), "version": version, "repeats": args.repeats, "rows_per_s": rates,
              "median": {name: statistics.median(values) for name, values in rates.items()}}
    print(records.line(result), end="")
    if args.out:
        records.write(args.out, result)


if __name__ == "__main__":
    main()
