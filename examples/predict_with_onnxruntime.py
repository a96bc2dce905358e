#!/usr/bin/env python3
"""Predicts the rows of a CSV file with an exported model, in onnxruntime: no ddp-train, no GPU, no other preprocessing.

  ddp-train train examples/csv.toml --out runs/csv
  ddp-train checkpoint export runs/csv --out digits.onnx
  python examples/predict_with_onnxruntime.py digits.onnx examples/data/digits_test.csv

Prints one JSON object per row: the label with its probability, or the predicted quantities. If the file has the target's column
too, the last line tells the accuracy or the mean absolute error on stderr.

The model takes the columns as they are in the file. Its metadata names the columns of each input; missing numbers are NaN (the
smallest int64 among integers), missing texts are empty. Needs onnxruntime and numpy.
"""
import csv
import json
import sys

import numpy as np
import onnxruntime

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
# What ddp-train takes for a missing number.
MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"}


def feeds(session, rows):
    """The inputs of the model, from rows as dicts of texts."""
    columns = json.loads(session.get_modelmeta().custom_metadata_map["ddp_train.inputs"])
    arrays = {}
    for given in session.get_inputs():
        texts = [[row[name].strip() for name in columns[given.name]] for row in rows]
        if given.type == "tensor(string)":
            arrays[given.name] = np.array(texts, dtype=object)
        else:
            # Integers may have more digits than a float.
            is_integer = given.type == "tensor(int64)"
            number, missing = (int, np.iinfo(np.int64).min) if is_integer else (float, np.nan)
            numbers = [[missing if text in MISSING else number(text) for text in row] for row in texts]
            arrays[given.name] = np.array(numbers, dtype=DTYPES[given.type])
    return arrays


def predict(session, rows):
    """The outputs by their names: `probabilities` and `label`, or `prediction`."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds(session, rows))))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    targets, task = json.loads(metadata["ddp_train.targets"]), metadata["ddp_train.task"]
    with open(sys.argv[2], newline="") as file:
        rows = list(csv.DictReader(file))
    outputs = predict(session, rows)

    for index in range(len(rows)):
        if task == "classification":
            label = outputs["label"][index]
            row = {targets[0]: label.item() if hasattr(label, "item") else label,
                   "probability": float(outputs["probabilities"][index].max())}
        elif task == "multilabel":
            row = dict(zip(targets, outputs["probabilities"][index].tolist()))
        else:
            row = dict(zip(targets, outputs["prediction"][index].tolist()))
        print(json.dumps(row))

    if not all(target in row for row in rows for target in targets):
        return
    truth = [[row[target].strip() for target in targets] for row in rows]
    if task == "classification":
        n_right = sum(same(label, text) for label, [text] in zip(outputs["label"].tolist(), truth))
        print(f"accuracy {n_right / len(rows):.6f} ({n_right} of {len(rows)} rows)", file=sys.stderr)
    elif task == "multilabel":
        right = outputs["label"] == np.array(truth, dtype=float)
        print(f"accuracy {right.mean():.6f} over {right.size} labels", file=sys.stderr)
    else:
        errors = np.abs(outputs["prediction"] - np.array(truth, dtype=float))
        print(f"mean absolute error {errors.mean():.6f}", file=sys.stderr)


def same(label, text):
    """Whether a text of the file stands for the label; `1.0` stands for 1."""
    try:
        return float(label) == float(text)
    except ValueError:
        return str(label) == text


if __name__ == "__main__":
    main()
