#!/usr/bin/env python3
"""Seconds to the same AUC or accuracy: ddp-train next to LightGBM, XGBoost, scikit-learn's MLP and a loop in PyTorch.

  python tests/bench/time_to_quality.py [--binary FILE] [--only NAME] [--budget 60] [--out FILE]

Three tables that are made here: "covertype-like" (500,000 x 54, 7 classes that are regions of a few of the columns),
"higgs-like" (2,000,000 x 28, two overlapping classes whose difference lies in products of columns), and "digits x 1000"
(scikit-learn's digits, each shifted and with noise, 1000 times). Every trainer has --threads threads, gets the same rows as
arrays in files and is scored on the same other rows after each round of its own: an epoch or part of one for networks, ten
rounds of boosting. Time is counted from the start of training, reading included, scoring excluded (of ddp-train, scoring and
the start of its process are included). Networks are 256,256 with ReLU, AdamW 1e-3, batch 512 (scikit-learn: Adam).

Prints the seconds at which each trainer first reaches each target, and its best score within the budget. One run each.
Needs numpy, scikit-learn, torch, lightgbm and xgboost.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy as np

import compare_torch
import records
import release_program

HIDDEN, LR, BATCH = (256, 256), 1e-3, 512


def covertype_like(rng, n=500_000):
    """Classes by a random tree-like rule over ten of 54 columns, 44 of them binary; a tenth of the labels are drawn anew."""
    numbers = rng.standard_normal((n, 10), dtype=np.float32)
    flags = (rng.random((n, 44), dtype=np.float32) < 0.1).astype(np.float32)
    score = np.sin(2 * numbers[:, 0] + numbers[:, 1]) + numbers[:, 2] * numbers[:, 3] + np.abs(numbers[:, 4]) + flags[:, :6] @ np.arange(1, 7)
    edges = np.quantile(score, [0.36, 0.85, 0.91, 0.92, 0.94, 0.97])
    labels = np.searchsorted(edges, score)
    anew = rng.random(n) < 0.1
    labels[anew] = rng.integers(0, 7, anew.sum())
    return np.hstack([numbers, flags]), labels


def higgs_like(rng, n=2_000_000):
    x = rng.standard_normal((n, 28), dtype=np.float32)
    score = 0.8 * x[:, 0] * x[:, 1] + 0.6 * np.tanh(x[:, 2] * x[:, 3]) + 0.5 * (x[:, 4] ** 2 - x[:, 5] ** 2) + 0.3 * x[:, 6:12].sum(1)
    labels = (rng.random(n) < 1 / (1 + np.exp(-1.5 * score))).astype(np.int64)
    return x, labels


def digits_x_1000(rng):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    n = len(labels) * 1000
    x = np.empty((n, 64), np.float32)
    for part in range(1000):
        shift = rng.integers(-1, 2, 2)
        moved = np.roll(images.reshape(-1, 8, 8), shift, (1, 2)).reshape(-1, 64)
        x[part * len(labels) : (part + 1) * len(labels)] = moved + rng.normal(0, 4, moved.shape)
    return x, np.tile(labels, 1000)


# Name: how it is made, metric, targets.
TABLES = {
    "covertype-like": (covertype_like, "accuracy", [0.75, 0.8, 0.85]),
    "higgs-like": (higgs_like, "auc", [0.8, 0.83, 0.85]),
    "digits x 1000": (digits_x_1000, "accuracy", [0.9, 0.93, 0.95]),
}


def score(metric, labels, probabilities):
    from sklearn.metrics import roc_auc_score

    if metric == "auc":
        return float(roc_auc_score(labels, probabilities[:, 1] if probabilities.ndim == 2 else probabilities))
    return float((probabilities.argmax(1) == labels).mean())


class Clock:
    """Points of time and score; the time that scoring takes does not count."""

    def __init__(self, budget):
        self.points, self.spent, self.budget = [], 0.0, budget
        self.started = time.perf_counter()

    def add(self, make_score):
        self.spent += time.perf_counter() - self.started
        self.points.append((self.spent, make_score()))
        self.started = time.perf_counter()
        return self.spent < self.budget


def ddp_train(opt, folder, metric, clock):
    rows = len(np.load(folder / "x.npy", mmap_mode="r"))
    part = max(1, rows // BATCH // 10)
    sets = {
        "data.train": folder / "x.npy", "data.labels": folder / "y.npy", "data.eval": folder / "ex.npy", "data.eval_labels": folder / "ey.npy",
        "model.hidden": list(HIDDEN), "optimizer.kind": "adamw", "optimizer.lr": LR, "train.batch_size": BATCH,
        "train.eval_every_steps": part, "train.epochs": 100, "train.eval_metrics": ["roc_auc" if metric == "auc" else "default"],
    }
    args = [opt.binary, "train", "--json", "-q", "--device", "cpu", "--threads", str(opt.threads), "--out", str(folder / "run"), "--overwrite"]
    for key, value in sets.items():
        args += ["--set", f"{key}={json.dumps(value) if isinstance(value, list) else value}"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    started = time.perf_counter()
    for line in process.stdout:
        event = json.loads(line)
        value = event.get("eval_roc_auc" if metric == "auc" else "eval_accuracy")
        if value is not None and event["event"] != "end":
            clock.points.append((time.perf_counter() - started, value))
        if time.perf_counter() - started > opt.budget:
            process.terminate()
    process.wait()


def lightgbm(opt, folder, metric, clock):
    import lightgbm

    x, y, ex, ey = (np.load(folder / f"{name}.npy") for name in ("x", "y", "ex", "ey"))
    n_classes = int(y.max()) + 1
    kind = {"objective": "binary"} if n_classes == 2 else {"objective": "multiclass", "num_class": n_classes}
    rows = lightgbm.Dataset(x, y)
    booster = lightgbm.Booster({**kind, "num_threads": opt.threads, "verbosity": -1, "num_leaves": 255, "learning_rate": 0.1}, rows)
    for _ in range(200):
        for _ in range(10):
            booster.update()
        if not clock.add(lambda: score(metric, ey, booster.predict(ex))):
            break


def xgboost(opt, folder, metric, clock):
    import xgboost

    x, y, ex, ey = (np.load(folder / f"{name}.npy") for name in ("x", "y", "ex", "ey"))
    n_classes = int(y.max()) + 1
    kind = {"objective": "binary:logistic"} if n_classes == 2 else {"objective": "multi:softprob", "num_class": n_classes}
    rows = xgboost.QuantileDMatrix(x, y, nthread=opt.threads)
    booster = xgboost.Booster({**kind, "nthread": opt.threads, "tree_method": "hist", "max_depth": 8, "eta": 0.3}, [rows])
    other = xgboost.DMatrix(ex, nthread=opt.threads)
    for n in range(200):
        for m in range(10):
            booster.update(rows, 10 * n + m)
        if not clock.add(lambda: score(metric, ey, booster.predict(other))):
            break


def sklearn_mlp(opt, folder, metric, clock):
    from sklearn.neural_network import MLPClassifier

    x, y, ex, ey = (np.load(folder / f"{name}.npy") for name in ("x", "y", "ex", "ey"))
    model = MLPClassifier(HIDDEN, batch_size=BATCH, learning_rate_init=LR, alpha=1e-4)
    rng, part = np.random.default_rng(0), max(BATCH, len(x) // 10)
    while True:
        order = rng.permutation(len(x))
        for start in range(0, len(x), part):
            rows = order[start : start + part]
            model.partial_fit(x[rows], y[rows], classes=np.arange(int(y.max()) + 1))
            if not clock.add(lambda: score(metric, ey, model.predict_proba(ex))):
                return


def torch_loop(opt, folder, metric, clock):
    import torch

    torch.set_num_threads(opt.threads)
    x, y, ex, ey = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("x", "y", "ex", "ey"))
    widths = (x.shape[1], *HIDDEN, int(y.max()) + 1)
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    loss = torch.nn.CrossEntropyLoss()
    part = max(1, len(x) // BATCH // 10)
    n = 0
    while True:
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            optimizer.zero_grad(set_to_none=True)
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            n += 1
            if n % part == 0:
                with torch.no_grad():
                    if not clock.add(lambda: score(metric, ey.numpy(), model(ex).softmax(1).numpy())):
                        return


TRAINERS = {"ddp-train": ddp_train, "PyTorch": torch_loop, "LightGBM": lightgbm, "XGBoost": xgboost, "scikit-learn MLP": sklearn_mlp}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--python", default="python3", help=argparse.SUPPRESS)
    p.add_argument("--mpirun", default="mpirun", help=argparse.SUPPRESS)
    p.add_argument("--only", default="", help="only tables whose name holds this")
    p.add_argument("--trainers", default="", help="only trainers whose name holds this")
    p.add_argument("--budget", type=float, default=60, help="seconds per trainer and table")
    p.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    p.add_argument("--scale", type=float, default=1.0, help="fraction of the rows, to try this script")
    p.add_argument("--out", default="time_to_quality.jsonl")
    return p.parse_args()


def main():
    opt = options()
    results = []
    for name, (make, metric, targets) in TABLES.items():
        if opt.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            x, y = make(np.random.default_rng(0))
            order = np.random.default_rng(1).permutation(len(x))[: int(len(x) * opt.scale)]
            n_eval = min(100_000, len(order) // 5)
            for file, rows in (("ex", order[:n_eval]), ("x", order[n_eval:])):
                np.save(folder / f"{file}.npy", np.ascontiguousarray(x[rows], np.float32))
                np.save(folder / f"{file.replace('x', 'y')}.npy", y[rows].astype(np.int64))
            del x, y
            for trainer, run in TRAINERS.items():
                if opt.trainers not in trainer:
                    continue
                compare_torch.wait_for_idle(20)
                clock = Clock(opt.budget)
                run(opt, folder, metric, clock)
                reached = {str(t): next((round(s, 2) for s, value in clock.points if value >= t), None) for t in targets}
                best = max((value for _, value in clock.points), default=None)
                results.append({"table": name, "trainer": trainer, "metric": metric, "seconds_to": reached, "best": best, "rounds": len(clock.points)})
                print(f"{name:16} {trainer:18} " + "  ".join(f"{metric} {t}: {s} s" for t, s in reached.items()) + f"  best {best}", flush=True)
    about = {"machine": compare_torch.machine(), "versions": compare_torch.versions(opt), "threads": opt.threads, "budget_s": opt.budget}
    records.write(opt.out, about, results)


if __name__ == "__main__":
    main()
