#!/usr/bin/env python3
"""Compares exported models in onnxruntime with the outputs that ddp-train computed.

  compare.py CASES.json EXAMPLES

CASES.json is a list of {name, model, rows, expected}: an ONNX file, a CSV file and one list of outputs per row. EXAMPLES is the
folder of predict_with_onnxruntime.py, which reads the rows. Each model must pass the checker, give outputs within
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


def labels_of(name, expected, metadata):
    """The labels that belong to the outputs."""
    if metadata["ddp_train.task"] == "multilabel":
        return (expected > 0.5).astype(np.int64)
    return np.array(json.loads(metadata["ddp_train.labels"]), dtype=object)[expected.argmax(axis=1)]


def compare(case, predict):
    check(case["model"])
    session = onnxruntime.InferenceSession(case["model"], providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    with open(case["rows"], newline="") as file:
        rows = list(csv.DictReader(file))
    expected = np.array(case["expected"])
    got = predict(session, rows)
    values = got.get("probabilities", got.get("prediction"))
    assert values.shape == expected.shape, (values.shape, expected.shape)
    difference = np.abs(values - expected)
    excess = (difference - 1e-5 - 1e-5 * np.abs(expected)).max()
    assert excess <= 0, f"{case['name']}: largest difference {difference.max():.3g}"
    if "label" in got:
        assert (got["label"] == labels_of(case["name"], expected, metadata)).all(), case["name"]
    one = predict(session, rows[:1])
    assert all(np.allclose(one[name][0].astype(float), got[name][0].astype(float), 1e-5, 1e-6)
               for name in one if got[name].dtype != object)
    print(f"{case['name']}: {len(rows)} rows, largest difference {difference.max():.3g}")


def main():
    # What onnx says of its own future is nothing that this checks.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.path.insert(0, sys.argv[2])
    from predict_with_onnxruntime import predict
    with open(sys.argv[1]) as file:
        for case in json.load(file):
            compare(case, predict)


if __name__ == "__main__":
    main()
