#!/usr/bin/env python3
"""Makes metrics.json: the metrics of docs/metrics.md as scikit-learn computes them.

  python tests/golden/make_metric_goldens.py

Made with scikit-learn 1.9.1 (pip) and numpy. README.md describes the layout. The Rust tests read the output and need no Python.
"""
import json
import pathlib
import warnings

import numpy as np
import sklearn
from sklearn import metrics as sk

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20261
rng = np.random.default_rng(SEED)
warnings.simplefilter("ignore")


def outputs(n_rows, n_outputs, scale=1.5):
    """Multiples of 1/8: short, exact in float32, with ties."""
    return np.round(rng.normal(0, scale, (n_rows, n_outputs)) * 8) / 8


def weights(n_rows):
    return rng.choice([0.0, 0.125, 0.5, 1.0, 2.75], n_rows)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def defined(value):
    return None if value is None or not np.isfinite(value) else float(value)


def ece(y, p, w):
    """Expected calibration error in 15 bins (i/15, (i + 1)/15] of the largest probability (arXiv:1706.04599)."""
    confidence, right = p.max(1), p.argmax(1) == y
    edges = np.linspace(0, 1, 16)
    total = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (confidence > low) & (confidence <= high)
        if w[inside].sum() > 0:
            gap = np.average(right[inside], weights=w[inside]) - np.average(confidence[inside], weights=w[inside])
            total += w[inside].sum() * abs(gap)
    return total / w.sum()


def averages(y, predicted, w):
    kinds = {"macro": "macro", "weighted": "weighted", "micro": "micro"}
    prf = {k: sk.precision_recall_fscore_support(y, predicted, average=k, sample_weight=w, zero_division=0) for k in kinds}
    return {
        "eval_precision_macro": prf["macro"][0],
        "eval_recall_macro": prf["macro"][1],
        "eval_f1_macro": prf["macro"][2],
        "eval_f1_weighted": prf["weighted"][2],
        "eval_f1_micro": prf["micro"][2],
    }


def per_class(y, predicted, w, classes):
    p, r, f, s = sk.precision_recall_fscore_support(y, predicted, labels=classes, sample_weight=w, zero_division=0)
    return {str(c): {"precision": p[i], "recall": r[i], "f1": f[i], "rows": float(s[i])} for i, c in enumerate(classes)}


def areas(truth, p, w, table, columns):
    """One against the rest; None where one of them is not defined."""
    auc, ap = [], []
    for c in columns:
        positive, negative = w[truth[:, c]].sum() > 0, w[~truth[:, c]].sum() > 0
        auc.append(sk.roc_auc_score(truth[:, c], p[:, c], sample_weight=w) if positive and negative else None)
        ap.append(sk.average_precision_score(truth[:, c], p[:, c], sample_weight=w) if positive else None)
        if str(c) in table:
            table[str(c)].update({k: v for k, v in [("roc_auc", auc[-1]), ("average_precision", ap[-1])] if v is not None})
    mean = lambda values: None if None in values else float(np.mean(values))
    return {"eval_roc_auc": mean(auc), "eval_average_precision": mean(ap)}


def classification(name, n_rows, n_classes, used, weighted):
    z = outputs(n_rows, n_classes)
    y = rng.choice(used, n_rows)
    # Mostly right, so that figures differ from chance.
    z[np.arange(n_rows), y] += 1.5
    if len(used) < n_classes:
        z[:, n_classes - 1] = -8.0
    w = weights(n_rows) if weighted else np.ones(n_rows)
    p, predicted = softmax(z), z.argmax(1)
    labels = list(range(n_classes))
    truth = np.eye(n_classes, dtype=bool)[y]
    occurring = sorted(set(y[w > 0]) | set(predicted[w > 0]))
    table = per_class(y, predicted, w, occurring)
    want = {
        "eval_loss": sk.log_loss(y, p, labels=labels, sample_weight=w),
        "eval_log_loss": sk.log_loss(y, p, labels=labels, sample_weight=w),
        "eval_accuracy": sk.accuracy_score(y, predicted, sample_weight=w),
        "eval_balanced_accuracy": sk.balanced_accuracy_score(y, predicted, sample_weight=w),
        "eval_top_5_accuracy": sk.top_k_accuracy_score(y, p, k=5, labels=labels, sample_weight=w) if n_classes > 5 else None,
        "eval_ece": ece(y, p, w),
        "eval_class_mae": sk.mean_absolute_error(y, predicted, sample_weight=w),
        "eval_quadratic_kappa": sk.cohen_kappa_score(y, predicted, weights="quadratic", sample_weight=w),
        **averages(y, predicted, w),
        **areas(truth, p, w, table, [1] if n_classes == 2 else labels),
    }
    if n_classes > 2 and len(used) == n_classes:
        # The same by scikit-learn's own averaging.
        ovr = sk.roc_auc_score(y, p, multi_class="ovr", average="macro", sample_weight=w)
        assert abs(ovr - want["eval_roc_auc"]) < 1e-12
    matrix = sk.confusion_matrix(y, predicted, labels=labels, sample_weight=w)
    return case(name, "classification", z, y, w if weighted else None, want, table, matrix)


def multilabel(name, n_rows, n_labels, weighted):
    z = outputs(n_rows, n_labels)
    y = rng.random((n_rows, n_labels)) < 1 / (1 + np.exp(-1.5 * z + 0.7))
    w = weights(n_rows) if weighted else np.ones(n_rows)
    p, predicted = 1 / (1 + np.exp(-z)), z >= 0
    table = per_class(y, predicted, w, list(range(n_labels)))
    bce = np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - y * z
    want = {
        "eval_loss": np.average(bce.mean(1), weights=w),
        "eval_accuracy": np.average((predicted == y).mean(1), weights=w),
        "eval_subset_accuracy": sk.accuracy_score(y, predicted, sample_weight=w),
        **averages(y, predicted, w),
        **areas(y, p, w, table, range(n_labels)),
    }
    assert abs(want["eval_roc_auc"] - sk.roc_auc_score(y, p, average="macro", sample_weight=w)) < 1e-12
    assert abs(want["eval_average_precision"] - sk.average_precision_score(y, p, average="macro", sample_weight=w)) < 1e-12
    return case(name, "multilabel", z, y.astype(float), w if weighted else None, want, table, None)


def regression(name, n_rows, n_targets, weighted):
    z = outputs(n_rows, n_targets, 3.0)
    y = np.round((z + rng.normal(0, 1, z.shape)) * 8) / 8
    w = weights(n_rows) if weighted else np.ones(n_rows)
    table = {}
    for t in range(n_targets):
        table[str(t)] = {
            "mae": sk.mean_absolute_error(y[:, t], z[:, t], sample_weight=w),
            "rmse": sk.root_mean_squared_error(y[:, t], z[:, t], sample_weight=w),
            "r2": sk.r2_score(y[:, t], z[:, t], sample_weight=w),
        }
    want = {
        "eval_loss": sk.mean_squared_error(y, z, sample_weight=w),
        "eval_mae": sk.mean_absolute_error(y, z, sample_weight=w),
        "eval_rmse": sk.root_mean_squared_error(y, z, sample_weight=w),
        "eval_r2": sk.r2_score(y, z, sample_weight=w),
    }
    return case(name, "regression", z, y, w if weighted else None, want, table, None)


def case(name, task, z, y, w, want, table, matrix):
    return {
        "name": name,
        "task": task,
        "outputs": z.tolist(),
        "targets": y.tolist(),
        "weights": None if w is None else w.tolist(),
        "metrics": {key: defined(value) for key, value in want.items()},
        "table": table,
        "confusion_matrix": None if matrix is None else np.asarray(matrix, dtype=float).tolist(),
    }


cases = [
    classification("seven classes", 90, 7, range(7), False),
    classification("seven classes, weighted", 90, 7, range(7), True),
    classification("three classes", 60, 3, range(3), False),
    classification("two classes", 60, 2, range(2), False),
    classification("two classes, weighted", 60, 2, range(2), True),
    classification("two of four classes", 40, 4, [0, 1], True),
    multilabel("four labels", 60, 4, False),
    multilabel("four labels, weighted", 60, 4, True),
    regression("three targets", 50, 3, False),
    regression("three targets, weighted", 50, 3, True),
]
head = {"generator": "tests/golden/make_metric_goldens.py", "scikit-learn": sklearn.__version__, "seed": SEED}
lines = ",\n".join(json.dumps(case) for case in cases)
(HERE / "metrics.json").write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
