#!/usr/bin/env python3
"""Measures the rate of `ddp-train predict`: npy next to forward passes alone, and CSV in MB/s.

  python tests/bench/predict_rate.py [--binary FILE] [--repeats 5] [--out FILE]

The model of npy has the layers 64-1024-1024-2, 400,000 rows of f32; forward passes by `bench step --forward` on as many threads.
CSV has 200,000 rows of 20 columns, its model one layer of 32, one compute thread; the same with three kept columns, from CSV to CSV and
from Parquet to Parquet (the latter needs pyarrow). Whole processes are timed, after one that fills the caches. Needs numpy and an
idle machine; the result holds the load average.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import records
import release_program


def timed(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    threads = str(os.cpu_count())
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400_000, 64)).astype(np.float32)
    label = (x[:, 0] > 0).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        np.save(path("rows.npy"), x)
        np.save(path("few.npy"), x[:5000])
        np.save(path("few_labels.npy"), label[:5000])
        header = ",".join(f"f{column}" for column in range(20))
        np.savetxt(path("rows.csv"), x[:200_000, :20], fmt="%.6f", delimiter=",", header=header, comments="")
        few = np.column_stack([x[:5000, :20], label[:5000]])
        np.savetxt(path("few.csv"), few, fmt=["%.6f"] * 20 + ["%d"], delimiter=",", header=header + ",label", comments="")
        try:
            from pyarrow import csv as arrow_csv, parquet
            parquet.write_table(arrow_csv.read_csv(path("rows.csv")), path("rows.parquet"))
        except ImportError:
            print("skipped: Parquet needs pyarrow", file=sys.stderr)
        train = [args.binary, "train", "--epochs", "1", "--quiet", "--device", "cpu"]
        npy = ["--data", path("few.npy"), "--set", f"data.labels={path('few_labels.npy')}", "--hidden", "1024,1024"]
        timed([*train, *npy, "--out", path("npy")])
        timed([*train, "--data", path("few.csv"), "--hidden", "32", "--out", path("csv")])
        forward = [args.binary, "bench", "step", "--forward", "--dims", "64,1024,1024,2", "--batch", "1024"]
        forward += ["--steps", "100", "--threads", threads, "--device", "cpu", "--json"]

        def predict(kind, n_threads, *more):
            model = "npy" if kind == "npy" else "csv"
            command = [args.binary, "predict", "--checkpoint", path(model), "--data", path(f"rows.{kind}"), *more]
            return timed([*command, "--out", path(f"out.{kind}"), "--overwrite", "--device", "cpu", "--threads", n_threads])

        rates, ratios, csv = {"forward": [], "predict": []}, [], []
        keep = ["--keep", "f0,f9,f19"]
        keep_ratios = {kind: [] for kind in ["csv", "parquet"] if os.path.exists(path(f"rows.{kind}"))}
        predict("npy", threads)
        for kind in keep_ratios:
            predict(kind, "1", *keep)
        for _ in range(args.repeats):
            line = subprocess.run(forward, check=True, capture_output=True, text=True).stdout
            rates["forward"].append(json.loads(line)["samples_per_s"])
            rates["predict"].append(len(x) / predict("npy", threads))
            ratios.append(rates["predict"][-1] / rates["forward"][-1])
            csv.append(os.path.getsize(path("rows.csv")) / 1e6 / predict("csv", "1"))
            for kind, of_kind in keep_ratios.items():
                of_kind.append(predict(kind, "1") / predict(kind, "1", *keep))
    result = {
        "machine": f"{platform.machine()}, {threads} cores",
        "note": args.note,
        "load_average": os.getloadavg()[0],
        "version": subprocess.run([args.binary, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[0],
        "numpy": np.__version__,
        "repeats": args.repeats,
        "forward_rows_per_s": statistics.median(rates["forward"]),
        "predict_npy_rows_per_s": statistics.median(rates["predict"]),
        "ratio_median": statistics.median(ratios),
        "predict_csv_mb_per_s": statistics.median(csv),
        "keep_to_plain_ratio": {kind: statistics.median(of_kind) for kind, of_kind in keep_ratios.items()},
    }
    print(records.line(result), end="")
    if args.out:
        records.write(args.out, result)


if __name__ == "__main__":
    main()
