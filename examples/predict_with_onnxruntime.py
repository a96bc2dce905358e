#!/usr/bin/env python3
"""Predicts the rows of a CSV file with an exported model, in onnxruntime: no ddp-train, no GPU, no other preprocessing.

  ddp-train train examples/csv.toml --out runs/csv
  ddp-train checkpoint export runs/csv --out digits.onnx
  python examples/predict_with_onnxruntime.py digits.onnx examples/data/digits_test.csv

The file may have any delimiter, a decimal comma, dates of ISO 8601, and be compressed by gzip.

Prints one JSON object per row: the label with its probability, or the predicted quantities. If the file has the target's column
too, the last line reports the accuracy or the mean absolute error on stderr.

The model takes the columns as they are in the file. Its metadata names the columns of each input; missing numbers are NaN (the
smallest int64 among integers), missing texts are empty. Needs onnxruntime and numpy.
"""
import csv
import datetime
import gzip
import json
import re
import sys
import tomllib

import numpy as np
import onnxruntime

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
# What ddp-train takes for a missing number.
MISSING = {"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NaT", "null", "NULL", "None", "-", "?"}
# Points may separate thousands.
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][+-]?\d+)?")
TRUTHS = {"true": 1, "yes": 1, "false": 0, "no": 0}
# Features of a column of dates with data.datetime = "parts".
PARTS = {
    ".year": lambda at: at.year, ".month": lambda at: at.month, ".day": lambda at: at.day,
    ".weekday": lambda at: at.weekday(), ".hour": lambda at: at.hour, ".minute": lambda at: at.minute,
    ".second": lambda at: at.second + at.microsecond / 1e6,
}


def read_table(path):
    """The rows as dicts of texts, with points in their numbers."""
    with open(path, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if is_packed else open)(path, "rt", newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        if head.startswith("sep="):
            head, delimiter = "", head[4]
        else:
            delimiter = max(",;\t|", key=head.count)
            file.seek(0)
        rows = list(csv.DictReader(file, delimiter=delimiter, skipinitialspace=True))
    if delimiter != ",":
        for row in rows:
            for name, text in row.items():
                if DECIMAL_COMMA.fullmatch(text.strip()):
                    row[name] = text.replace(".", "").replace(",", ".")
    return rows


def moment(text):
    """The date and time of a text, UTC if there is no offset; None for another text."""
    for parse in (datetime.datetime.fromisoformat, lambda text: datetime.datetime.strptime(text, "%d.%m.%Y")):
        try:
            at = parse(text.replace("Z", "+00:00"))
            return at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
        except ValueError:
            pass
    return None


def number(text, kind):
    """The number of a text: 1 and 0 for truth values, seconds for dates and times."""
    if text.lower() in TRUTHS:
        return kind(TRUTHS[text.lower()])
    try:
        return kind(text)
    except ValueError:
        pass
    at = moment(text) or moment("1970-01-01T" + text)
    return kind(at.timestamp()) if at else kind(float(text))


def missing_marks(metadata):
    """The texts that mark a missing value, with those of `data.missing_values` in the run's config."""
    listed = tomllib.loads(metadata["ddp_train.config"])["data"].get("missing_values", [])
    listed = {str(mark) for mark in ([listed] if isinstance(listed, str) else listed)}
    return listed if "" in listed else MISSING | listed


def values(row, name, kind, missing, marks):
    """The value of a column of the model in a row."""
    if name not in row:
        column, part = name[: name.rindex(".")], name[name.rindex(".") :]
        text = row[column].strip()
        return missing if text in marks else PARTS[part](moment(text).astimezone(datetime.timezone.utc))
    text = row[name].strip()
    return missing if text in marks else number(text, kind)


def category(text):
    """A whole number without the zeros after its point, as the model spells it; any other text as it is."""
    return re.sub(r"\A(-?[0-9]+)\.0+\Z", r"\1", text)


def feeds(session, rows):
    """The inputs of the model, from rows as dicts of texts."""
    metadata = session.get_modelmeta().custom_metadata_map
    columns, marks = json.loads(metadata["ddp_train.inputs"]), missing_marks(metadata)
    arrays = {}
    for given in session.get_inputs():
        names = columns[given.name]
        if given.type == "tensor(string)":
            texts = [[category(row[name].strip()) for name in names] for row in rows]
            arrays[given.name] = np.array(texts, dtype=object)
        else:
            # Integers may have more digits than a float.
            is_integer = given.type == "tensor(int64)"
            kind, missing = (int, np.iinfo(np.int64).min) if is_integer else (float, np.nan)
            numbers = [[values(row, name, kind, missing, marks) for name in names] for row in rows]
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
    rows = read_table(sys.argv[2])
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
