#!/usr/bin/env python3
"""Compares exported models in onnxruntime with `ddp-train predict`.

  compare.py CASES.json EXAMPLES

CASES.json is a list of {name, model, rows, predictions}: an ONNX file, a CSV file, and what `predict --proba` wrote for it as CSV.
EXAMPLES is the folder of predict_with_onnxruntime.py, which reads the rows. Each model must pass the checker, give outputs within
1e-5 + 1e-5 * |expected|, and give for one row what it gives for all. Prints one line per case.
"""
import csv
import json
import sys
import warnings

import numpy as np
import onnx
import onnxruntime

DOMAINS = {"": 20, "ai.onnx.ml": 2}


def check(path):
    """The format's own checks, with inferred shapes; known operators only."""
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert {opset.domain: opset.version for opset in model.opset_import} == DOMAINS
    for node in model.graph.node:
        schema = onnx.defs.get_schema(node.op_type, DOMAINS[node.domain], node.domain)
        assert not schema.deprecated, node.op_type


def read_predictions(path):
    """The probabilities or quantities, `[rows, outputs]`, and the predictions as texts."""
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    probabilities = [i for i, name in enumerate(header) if name.startswith("proba_")]
    predictions = [i for i, name in enumerate(header) if name.startswith("prediction")]
    values = [[float(row[i]) for i in probabilities or predictions] for row in rows]
    return np.array(values), [[row[i] for i in predictions] for row in rows]


def compare_heads(case, heads, got):
    """Compares the outputs of several heads, a column of the predictions each."""
    with open(case["predictions"], newline="") as file:
        header, *rows = csv.reader(file)
    column = lambda name: [row[header.index(name)] for row in rows]
    largest = 0
    for head in heads:
        name, task, columns = head["name"], head["task"], head["columns"]
        if task == "regression":
            names, values = [f"prediction_{c}" for c in columns], got[f"{name}.prediction"]
        elif task == "multilabel":
            names, values = [f"proba_{c}" for c in columns], got[f"{name}.probabilities"]
        else:
            names, values = [f"proba_{columns[0]}_{label}" for label in head["labels"]], got[f"{name}.probabilities"]
        expected = np.array([column(n) for n in names], float).T
        difference = np.abs(values - expected)
        assert (difference <= 1e-5 + 1e-5 * np.abs(expected)).all(), (case["name"], name, difference.max())
        largest = max(largest, difference.max())
        if task != "regression":
            texts = [[str(label) for label in np.ravel(row)] for row in got[f"{name}.label"].tolist()]
            assert texts == [list(row) for row in zip(*(column(f"prediction_{c}") for c in columns))], (case["name"], name)
    print(f"{case['name']}: {len(rows)} rows, largest difference {largest:.3g}")


def compare(case, predict, read_table):
    check(case["model"])
    session = onnxruntime.InferenceSession(case["model"], providers=["CPUExecutionProvider"])
    rows = read_table(case["rows"])
    got = predict(session, rows)
    heads = session.get_modelmeta().custom_metadata_map.get("ddp_train.heads")
    if heads:
        return compare_heads(case, json.loads(heads), got)
    expected, labels = read_predictions(case["predictions"])
    values = got.get("probabilities", got.get("prediction"))
    assert values.shape == expected.shape, (values.shape, expected.shape)
    difference = np.abs(values - expected)
    excess = (difference - 1e-5 - 1e-5 * np.abs(expected)).max()
    assert excess <= 0, f"{case['name']}: largest difference {difference.max():.3g}"
    if "label" in got:
        texts = [[str(label) for label in np.ravel(row)] for row in got["label"].tolist()]
        assert texts == labels, case["name"]
    # One row alone, and all of them.
    for name, value in predict(session, rows[:1]).items():
        same = np.array_equal if value.dtype.kind in "iO" else lambda a, b: np.allclose(a, b, 1e-5, 1e-6)
        assert same(value[0], got[name][0]), (case["name"], name)
    print(f"{case['name']}: {len(rows)} rows, largest difference {difference.max():.3g}")


def main():
    # What onnx says of its own future is nothing that this checks.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.path.insert(0, sys.argv[2])
    from predict_with_onnxruntime import predict, read_table
    with open(sys.argv[1]) as file:
        for case in json.load(file):
            compare(case, predict, read_table)


if __name__ == "__main__":
    main()
