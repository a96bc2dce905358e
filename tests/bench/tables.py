#!/usr/bin/env python3
"""Measures how fast tables become rows to train on: labels that are integers next to texts, and rows that a split divides.

  python tests/bench/tables.py [--binary FILE] [--repeats 5] [--rows 1000000] [--out FILE]
                               [--large ROW_GROUPS] [--polars] [--before BINARY]

Labels: a table of four features of f32 with ten classes, as CSV and as npy, whose labels are 0 to 9 or the texts c0 to c9. A whole
run of a single step is timed, in which all rows are read, after one that fills the caches; runs of the two kinds alternate.

Loader: `bench loader` on the CSV without a split, with `data.eval_fraction`, and with `data.split` by column and by group.

--large writes a Parquet file of that many row groups of 50,000 rows of 40 features of f32 (400: 3.4 GB), trains 200 steps on it with
64 MiB for rows and a split by column and by group, and reports the peak of the resident memory.

--polars compares a table of 20 features of f32 and a label, as CSV and as Parquet: from the start of the process to the end of the
first step (`startup_s`), next to the time that `polars.read_csv` and `polars.read_parquet` take for the same file, with a sum of each
column and without the import of polars; both with as many threads as the machine has. Runs alternate.

--before compares with another program, without the parts above: a run of a single step on tables of --rows rows as plain CSV (20 numbers),
CSV of texts (4 numbers, 6 categories), JSON lines and Parquet of the same, on one thread and on two. Runs alternate.

Needs numpy, pyarrow for --large, and polars for --polars.
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
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def peak_mib(command):
    """Seconds and peak resident memory of a process of its own, so that no other child counts."""
    program = (
        "import resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL)\n"
        "print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
    )
    line = subprocess.run(["python3", "-c", program, *command], check=True, capture_output=True, text=True).stdout
    return [float(number) for number in line.split()]


def write_large(path, n_groups):
    import pyarrow as pa
    from pyarrow import parquet

    draw, rows = np.random.default_rng(0), 50_000
    names = [f"x{column}" for column in range(40)]
    fields = [(name, pa.float32()) for name in names]
    schema = pa.schema([*fields, ("patient", pa.string()), ("fold", pa.string()), ("label", pa.int64())])
    base = draw.normal(size=(rows, 40)).astype(np.float32)
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=["patient", "fold"]) as writer:
        for group in range(n_groups):
            x = np.roll(base, group, axis=1) + np.float32(group * 1e-3)
            patient = draw.integers(0, 5000, rows)
            columns = [pa.array(x[:, column]) for column in range(40)]
            columns.append(pa.array(np.char.add("p", patient.astype(str))))
            columns.append(pa.array(np.where(patient % 5 == 0, "eval", "train")))
            columns.append(pa.array((x[:, 0] > group * 1e-3).astype(np.int64)))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=rows)


def large(binary, n_groups, folder):
    path = os.path.join(folder, "large.parquet")
    write_large(path, n_groups)
    train = [binary, "train", "--set", f"data.train={path}", "--target", "label", "--batch-size", "4096", "--hidden", "16", "--device", "cpu"]
    train += ["--set", "data.loader_memory_mib=64", "--set", "data.shuffle_mode=blocks", "--set", "train.steps=200"]
    train += ["--threads", "1", "--quiet", "--overwrite", "--out", os.path.join(folder, "large")]
    cases = {
        "eval_fraction": ["--eval-fraction", "0.2", "--set", 'data.drop=["patient","fold"]'],
        "column": ["--set", 'data.split={column="fold"}', "--set", "data.drop=patient"],
        "group": ["--set", 'data.split={group="patient"}', "--eval-fraction", "0.2", "--set", "data.drop=fold"],
    }
    results = {"file_mib": os.path.getsize(path) / 2**20, "loader_memory_mib": 64}
    for name, more in cases.items():
        seconds, peak = peak_mib([*train, *more])
        results[name] = {"seconds": seconds, "peak_rss_mib": peak}
    os.remove(path)
    return results


POLARS_SIDE = """
import sys, time, polars
start = time.perf_counter()
table = getattr(polars, "read_" + sys.argv[2])(sys.argv[1])
total = table.select(polars.all().sum()).row(0)
print(time.perf_counter() - start)
"""


def first_row(binary, n_rows, repeats, folder):
    import polars

    draw = np.random.default_rng(1)
    names = [f"x{column}" for column in range(20)]
    table = polars.DataFrame({name: draw.normal(size=n_rows).astype(np.float32) for name in names})
    table = table.with_columns(polars.Series("label", draw.integers(0, 10, n_rows)))
    results = {"polars": polars.__version__, "columns": 21}
    for kind in ["csv", "parquet"]:
        path = os.path.join(folder, f"first.{kind}")
        getattr(table, f"write_{kind}")(path)
        train = [binary, "train", "--set", f"data.train={path}", "--target", "label", "--hidden", "4", "--set", "train.steps=1", "--device", "cpu"]
        train += ["--json", "--quiet", "--set", "data.fingerprint=sampled", "--overwrite", "--out", os.path.join(folder, "run")]
        seconds = {"ddp-train": [], "polars": []}
        for repeat in range(repeats + 1):
            lines = subprocess.run(train, check=True, capture_output=True, text=True).stdout.splitlines()
            theirs = subprocess.run([sys.executable, "-c", POLARS_SIDE, path, kind], check=True, capture_output=True, text=True).stdout
            if repeat > 0:
                seconds["ddp-train"].append(json.loads(lines[-1])["startup_s"])
                seconds["polars"].append(float(theirs))
        median = {side: statistics.median(seconds[side]) for side in seconds}
        mib = os.path.getsize(path) / 2**20
        results[kind] = {"mib": mib, "seconds": seconds, "speed_over_polars": median["polars"] / median["ddp-train"]}
        os.remove(path)
    return results


def compare(before, after, n_rows, repeats, folder):
    """Seconds of a run of a single step by both programs, per file and number of threads."""
    draw, path = np.random.default_rng(2), lambda name: os.path.join(folder, name)
    numbers = [f"x{column}" for column in range(20)]
    with open(path("plain.csv"), "w") as file:
        file.write(",".join([*numbers, "label"]) + "\n")
        for row in np.column_stack([draw.normal(size=(n_rows, 20)), draw.integers(0, 10, n_rows)]):
            file.write(",".join(f"{value:.6f}" for value in row[:20]) + f",{row[20]:.0f}\n")
    texts = [f"t{column}" for column in range(6)]
    with open(path("texts.csv"), "w") as file:
        file.write(",".join([*numbers[:4], *texts, "label"]) + "\n")
        for values, codes in zip(draw.normal(size=(n_rows, 4)), draw.integers(0, 50, (n_rows, 7))):
            cells = [f"{value:.6f}" for value in values] + [f"value {code}" for code in codes[:6]]
            file.write(",".join(cells) + f",c{codes[6] % 10}\n")
    with open(path("plain.csv")) as rows, open(path("plain.jsonl"), "w") as lines:
        names = next(rows).strip().split(",")
        for row in rows:
            lines.write("{" + ",".join(f'"{name}":{cell}' for name, cell in zip(names, row.strip().split(","))) + "}\n")
    line = [before, "data", "convert", path("plain.csv"), path("plain.parquet")]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = {}
    for name in ["plain.csv", "texts.csv", "plain.jsonl", "plain.parquet"]:
        for threads in [1, 2]:
            train = ["train", path(name), "--hidden", "4", "--set", "train.steps=1", "--target", "label", "--device", "cpu"]
            train += ["--set", f"data.categorical={json.dumps(texts if name == 'texts.csv' else [])}"]
            train += ["--threads", str(threads), "--quiet", "--overwrite", "--out", path("run")]
            seconds = {"before": [], "after": []}
            for repeat in range(repeats + 1):
                for side, binary in [("before", before), ("after", after)]:
                    took = timed([binary, *train])
                    if repeat > 0:
                        seconds[side].append(took)
            median = {side: statistics.median(seconds[side]) for side in seconds}
            results[f"{name}, {threads} threads"] = {"seconds": seconds, "after_over_before": median["after"] / median["before"]}
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=0, help="row groups of the large file (default: none)")
    parser.add_argument("--polars", action="store_true", help="compare the time to the first step with polars' time to read")
    parser.add_argument("--before", help="another program, to compare with")
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    binary = os.path.abspath(args.binary)
    if args.before:
        before = os.path.abspath(args.before)
        version = lambda program: subprocess.run([program, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
        with tempfile.TemporaryDirectory() as folder:
            result = {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "note": args.note,
                "versions": {"before": version(before), "after": version(binary)},
                "rows": args.rows,
                "repeats": args.repeats,
                "files": compare(before, binary, args.rows, args.repeats, folder),
            }
        print(records.line(result), end="")
        if args.out:
            records.write(args.out, result)
        return
    draw = np.random.default_rng(0)
    x = draw.normal(size=(args.rows, 4)).astype(np.float32)
    label = draw.integers(0, 10, args.rows)
    texts = np.char.add("c", label.astype(str))
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "note": args.note,
        "load_average": os.getloadavg()[0],
        "version": subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[0],
        "numpy": np.__version__,
        "repeats": args.repeats,
        "rows": args.rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        cells = [",".join(f"{value:.6f}" for value in row) for row in x]
        group = draw.integers(0, args.rows // 50, args.rows)
        for name, labels in [("integers", label), ("texts", texts)]:
            with open(path(f"{name}.csv"), "w") as file:
                file.write("a,b,c,d,label\n")
                file.writelines(f"{row},{of_row}\n" for row, of_row in zip(cells, labels))
            np.save(path(f"{name}.npy"), labels)
        with open(path("split.csv"), "w") as file:
            file.write("a,b,c,d,patient,fold,label\n")
            rows = zip(cells, group, label)
            file.writelines(f"{row},p{g},{'eval' if g % 5 == 0 else 'train'},{of_row}\n" for row, g, of_row in rows)
        np.save(path("x.npy"), x)
        train = [binary, "train", "--hidden", "4", "--set", "train.steps=1", "--device", "cpu", "--threads", "1", "--quiet"]
        train += ["--set", "data.fingerprint=sampled", "--overwrite", "--out", path("run")]
        kinds = ["integers", "texts"]
        command = {
            "csv": lambda kind: [*train, "--set", f"data.train={path(kind + '.csv')}"],
            "npy": lambda kind: [*train, "--data", path("x.npy"), "--set", f"data.labels={path(kind + '.npy')}"],
        }
        for of_format, of_kind in command.items():
            seconds = {kind: [] for kind in kinds}
            for repeat in range(args.repeats + 1):
                for kind in kinds:
                    took = timed(of_kind(kind))
                    if repeat > 0:
                        seconds[kind].append(took)
            median = {kind: statistics.median(seconds[kind]) for kind in kinds}
            result[f"labels_{of_format}"] = {
                "seconds": seconds,
                "rows_per_s": {kind: args.rows / median[kind] for kind in kinds},
                "integers_over_texts": median["texts"] / median["integers"],
            }
        loader = [binary, "bench", "loader", path("split.csv"), "--json", "--device", "cpu", "--repeats", str(args.repeats)]
        result["loader_rows_per_s"] = {}
        for name, more in {
            "no split": ["--set", 'data.drop=["patient","fold"]'],
            "eval_fraction": ["--set", "data.eval_fraction=0.2", "--set", 'data.drop=["patient","fold"]'],
            "column": ["--set", 'data.split={column="fold"}', "--set", "data.drop=patient"],
            "group": ["--set", 'data.split={group="patient"}', "--set", "data.eval_fraction=0.2", "--set", "data.drop=fold"],
        }.items():
            line = subprocess.run([*loader, *more], check=True, capture_output=True, text=True).stdout
            measured = json.loads(line.splitlines()[-1])
            of_row = measured.get("results", [measured])[0]
            result["loader_rows_per_s"][name] = of_row["rows_per_s"]
        if args.polars:
            result["first_row"] = first_row(binary, args.rows, args.repeats, folder)
        if args.large > 0:
            result["large_parquet"] = large(binary, args.large, folder)
    print(records.line(result), end="")
    if args.out:
        records.write(args.out, result)


if __name__ == "__main__":
    main()
