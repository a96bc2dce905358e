#!/usr/bin/env python3
"""Compares the quality of models with scikit-learn's on small tables, with all defaults of ddp-train.

  python tests/bench/versus_sklearn.py [--binary FILE] [--splits 20] [--sets iris,wine] [--out FILE]

Both sides train on the same rows and are scored on the same other rows, by scikit-learn: accuracy, or R² in regression. There:
StandardScaler and MLPClassifier or MLPRegressor (100 hidden, Adam 1e-3, alpha 1e-4, batch 32, at most 200 epochs), regression
in TransformedTargetRegressor(StandardScaler). Here: `ddp-train train rows.csv`, 100 hidden, AdamW 1e-3, batch 32, 200 epochs,
then `ddp-train predict`. Tables are CSV as pandas writes them, with the labels' names. A set passes if the mean paired
difference is at least -max(0.005 accuracy or 0.01 R², 2 standard errors). Needs numpy, pandas and scikit-learn.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pandas as pd
import sklearn
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import accuracy_score, r2_score, recall_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import records
import release_program

warnings.filterwarnings("ignore")  # MLPClassifier warns where 200 epochs do not converge
MLP = {"hidden_layer_sizes": (100,), "learning_rate_init": 1e-3, "alpha": 1e-4, "batch_size": 32, "max_iter": 200}


def named(load):
    """A table of scikit-learn with the names of its classes."""
    data = load(as_frame=True)
    labels = np.asarray(data.target_names)[data.target] if "target_names" in data else data.target
    if load in (datasets.load_digits, datasets.load_diabetes):
        labels = data.target.to_numpy()
    return data.data, pd.DataFrame({"target": labels})


def frame(x):
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def friedman(shift=0.0, scale=1.0):
    x, y = datasets.make_friedman1(n_samples=600, noise=1.0, random_state=7)
    return frame(x), pd.DataFrame({"target": y * scale + shift})


def imbalanced():
    x, y = datasets.make_classification(
        n_samples=2000, n_features=12, n_informative=6, weights=[0.965], flip_y=0.002, class_sep=1.2, random_state=3
    )
    return frame(x), pd.DataFrame({"target": np.where(y == 1, "fraud", "fine")})


def multilabel():
    x, y = datasets.make_multilabel_classification(n_samples=800, n_features=20, n_classes=4, random_state=5)
    return frame(x), pd.DataFrame(y, columns=["sport", "music", "art", "food"])


SETS = {
    "iris": ("classification", lambda: named(datasets.load_iris)),
    "wine": ("classification", lambda: named(datasets.load_wine)),
    "breast cancer": ("classification", lambda: named(datasets.load_breast_cancer)),
    "digits": ("classification", lambda: named(datasets.load_digits)),
    "imbalanced": ("classification", imbalanced),
    "diabetes": ("regression", lambda: named(datasets.load_diabetes)),
    "friedman": ("regression", friedman),
    "friedman x 1e5 + 3e5": ("regression", lambda: friedman(3e5, 1e5)),
    "multilabel": ("multilabel", multilabel),
}


def theirs(task, x_train, y_train, x_test, seed):
    if task == "regression":
        model = TransformedTargetRegressor(MLPRegressor(random_state=seed, **MLP), transformer=StandardScaler())
    else:
        model = MLPClassifier(random_state=seed, **MLP)
    y = y_train if y_train.shape[1] > 1 else y_train.iloc[:, 0]
    return np.asarray(make_pipeline(StandardScaler(), model).fit(x_train, y).predict(x_test))


def ours(binary, folder, task, x_train, y_train, x_test, seed, more=()):
    train, test, run = (os.path.join(folder, name) for name in ("train.csv", "test.csv", "run"))
    pd.concat([x_train, y_train], axis=1).to_csv(train, index=False)
    x_test.to_csv(test, index=False)
    command = [binary, "train", train, "--epochs", "200", "--batch-size", "32"]
    command += [f"--target={column}" for column in y_train.columns]
    command += ["--hidden", "100", "--lr", "0.001", "--set", "optimizer.kind=adamw", "--set", f"train.seed={seed}"]
    if task == "multilabel" or (task == "regression" and (y_train % 1 == 0).all(axis=None)):
        command += ["--task", task]
    command += ["--out", run, "--overwrite", "--quiet", "--device", "cpu", "--threads", "1", *more]
    subprocess.run(command, check=True)
    out = os.path.join(folder, "predictions.csv")
    predict = [binary, "predict", "--checkpoint", run, "--data", test, "--out", out, "--overwrite", "--device", "cpu"]
    subprocess.run(predict, check=True, stderr=subprocess.DEVNULL)
    predictions = pd.read_csv(out)
    return predictions.to_numpy() if y_train.shape[1] > 1 else predictions["prediction"].to_numpy()


def score(task, truth, predicted):
    truth = truth.to_numpy() if truth.shape[1] > 1 else truth.iloc[:, 0].to_numpy()
    return r2_score(truth, predicted) if task == "regression" else accuracy_score(truth, predicted)


def compare(binary, name, n_splits):
    task, load = SETS[name]
    x, y = load()
    scores, recalls = {"ours": [], "sklearn": []}, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(n_splits):
            stratify = y.iloc[:, 0] if task == "classification" else None
            split = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=stratify)
            x_train, x_test, y_train, y_test = (part.reset_index(drop=True) for part in split)
            scores["ours"].append(score(task, y_test, ours(binary, folder, task, x_train, y_train, x_test, seed)))
            scores["sklearn"].append(score(task, y_test, theirs(task, x_train, y_train, x_test, seed)))
            if name == "imbalanced":
                weights = ["--set", 'loss.class_weights="balanced"']
                predicted = ours(binary, folder, task, x_train, y_train, x_test, seed, weights)
                recalls.append(recall_score(y_test.iloc[:, 0], predicted, pos_label="fraud"))
    differences = np.subtract(scores["ours"], scores["sklearn"])
    error = differences.std(ddof=1) / np.sqrt(n_splits)
    allowed = max(0.01 if task == "regression" else 0.005, 2 * error)
    result = {
        "set": name,
        "task": task,
        "rows": len(x),
        "ours": float(np.mean(scores["ours"])),
        "sklearn": float(np.mean(scores["sklearn"])),
        "mean_difference": float(differences.mean()),
        "standard_error": float(error),
        "allowed": -float(allowed),
        "passes": bool(differences.mean() >= -allowed),
    }
    if recalls:
        result["minority_recall_balanced"] = float(np.mean(recalls))
        result["passes"] &= result["minority_recall_balanced"] >= 0.7
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--out", help="file for the results as JSON lines")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = []
    for name in args.sets.split(","):
        results.append(compare(args.binary, name, args.splits))
        print(json.dumps(results[-1]), flush=True)
    versions = {"python": platform.python_version(), "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    version = subprocess.run([args.binary, "--version"], check=True, capture_output=True, text=True).stdout
    if args.out:
        records.write(args.out, {"ddp-train": version.strip(), "versions": versions, "splits": args.splits}, results)
    sys.exit(0 if all(result["passes"] for result in results) else 1)


if __name__ == "__main__":
    main()
