#!/usr/bin/env python3
"""Predicts the rows of a CSV file with an exported model, in onnxruntime: no ddp-train, no GPU, no other preprocessing.

  ddp-train train examples/csv.toml --out runs/csv
  ddp-train checkpoint export runs/csv --out digits.onnx
  python examples/predict_with_onnxruntime.py digits.onnx examples/data/digits_test.csv

The file may have any delimiter, a decimal comma, dates of ISO 8601 or such as 31.05.2024 12:30, and be compressed by gzip.

Prints one JSON object per row: the label with its probability, or the predicted quantities, of each head. If the file has the
target's column too, a last line on stderr reports the accuracy or the mean absolute error of the rows that have a target.

The model takes the columns as they are in the file. Its metadata names the columns of each input; missing numbers are NaN (the
smallest int64 among integers), missing texts are empty. Needs onnxruntime, numpy and Python 3.11.
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


class CommaRow(dict):
    """A row of a file in which commas are no delimiters, but may be the marks of fractions."""


def read_table(path):
    """The rows as dicts of texts."""
    with open(path, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if is_packed else open)(path, "rt", newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        if head.startswith("sep="):
            head, delimiter = "", head[4]
        else:
            delimiter = max(",;\t|", key=head.count)
            file.seek(0)
        reader = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
        reader.fieldnames = [name.strip() for name in reader.fieldnames]
        return [row if delimiter == "," else CommaRow(row) for row in reader]


def number_text(row, name):
    """The text of a cell without blanks around it, with a point in its number."""
    text = row[name].strip()
    has_comma = isinstance(row, CommaRow) and DECIMAL_COMMA.fullmatch(text)
    return text.replace(".", "").replace(",", ".") if has_comma else text


def moment(text):
    """The date and time in UTC, which is meant where there is no offset, of an ISO 8601 text or one such as 31.05.2024 12:30."""
    iso = re.sub(r"\A(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1", text)
    iso = re.sub(r" ?(?:UTC|GMT|[Zz])\Z", "+00:00", re.sub(r" (?=[+-]\d\d)", "", iso))
    try:
        at = datetime.datetime.fromisoformat(iso)
    except ValueError:
        raise ValueError(f"expected a number, a truth value, a date or a time, got {text!r}; write durations in seconds") from None
    return at.astimezone(datetime.timezone.utc) if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)


def number(text, kind):
    """The number of a text: 1 and 0 for truth values, seconds for dates and times."""
    if text.lower() in TRUTHS:
        return kind(TRUTHS[text.lower()])
    for read in (kind, float):
        try:
            return kind(read(text))
        except ValueError:
            pass
    return kind(moment(f"1970-01-01T{text}" if text[2:3] == ":" else text).timestamp())


def as_float(text):
    try:
        return float(text)
    except ValueError:
        return None


class Marks:
    """The texts that mark a missing value, with those of `data.missing_values` in the run's config."""

    def __init__(self, metadata):
        listed = tomllib.loads(metadata["ddp_train.config"])["data"].get("missing_values", [])
        listed = {str(mark).strip() for mark in ([listed] if isinstance(listed, str) else listed)}
        # An empty text in the list makes it the whole list.
        self.texts = listed if "" in listed else MISSING | listed
        self.numbers = {as_float(mark) for mark in listed} - {None}

    def __contains__(self, text):
        """Whether a text is one of the marks, or equal to a number among those of the config: -999.0 to -999."""
        return text in self.texts or as_float(text) in self.numbers


def values(row, name, kind, missing, marks):
    """The value of a column of the model in a row."""
    if name not in row:
        column, part = name[: name.rindex(".")], name[name.rindex(".") :]
        text = row[column].strip()
        return missing if text in marks else PARTS[part](moment(text))
    text = number_text(row, name)
    return missing if text in marks else number(text, kind)


def category(text):
    """A whole number without the zeros after its point, as the model spells it; any other text as it is."""
    return re.sub(r"\A(-?[0-9]+)\.0+\Z", r"\1", text)


def feeds(session, rows):
    """The inputs of the model, from rows as dicts of texts."""
    metadata = session.get_modelmeta().custom_metadata_map
    columns, marks = json.loads(metadata["ddp_train.inputs"]), Marks(metadata)
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
    """The outputs by their names: `probabilities` and `label`, or `prediction`; after `HEAD.` where there are several heads."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds(session, rows))))


def heads_of(metadata):
    """Prefix of the outputs, task, target columns and labels of each head; of a model without heads those of its only one."""
    if "ddp_train.heads" in metadata:
        return [(f"{head['name']}.", head["task"], head["columns"], head.get("labels")) for head in json.loads(metadata["ddp_train.heads"])]
    labels = json.loads(metadata.get("ddp_train.labels", "null"))
    return [("", metadata["ddp_train.task"], json.loads(metadata["ddp_train.targets"]), labels)]


def predicted(outputs, head, index):
    """The predictions of one head for a row, by their names."""
    prefix, task, targets, _ = head
    if task == "classification":
        label = outputs[f"{prefix}label"][index]
        probability = float(outputs[f"{prefix}probabilities"][index].max())
        return {targets[0]: label.item() if hasattr(label, "item") else label, f"{prefix}probability": probability}
    return dict(zip(targets, outputs[prefix + ("probabilities" if task == "multilabel" else "prediction")][index].tolist()))


def score(outputs, head, rows, marks):
    """Accuracy or mean absolute error of a head over the rows that have its targets, in words."""
    prefix, task, targets, labels = head
    truth = [[number_text(row, target) for target in targets] for row in rows]
    names = [str(label) for label in labels or []]
    known = [index for index, texts in enumerate(truth) if not any(text in marks and text not in names for text in texts)]
    truth = [truth[index] for index in known]
    if not known:
        return f"{prefix}no row has its target"
    if task == "classification":
        found = outputs[f"{prefix}label"][known].tolist()
        n_right = sum(same(str(label), text, names) for label, [text] in zip(found, truth))
        return f"{prefix}accuracy {n_right / len(known):.6f} ({n_right} of {len(known)} rows)"
    truth = np.array([[number(text, float) for text in texts] for texts in truth])
    if task == "multilabel":
        right = outputs[f"{prefix}label"][known] == truth
        return f"{prefix}accuracy {right.mean():.6f} over {right.size} labels"
    return f"{prefix}mean absolute error {np.abs(outputs[f'{prefix}prediction'][known] - truth).mean():.6f}"


def same(label, text, labels):
    """Whether a text of the file stands for the label: `1.0` for 1, and `yes` for True, unless it is a label itself."""
    if label == text or text in labels:
        return label == text
    return any(read(label) is not None and read(label) == read(text) for read in (as_float, lambda word: TRUTHS.get(word.lower())))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    heads, rows = heads_of(metadata), read_table(sys.argv[2])
    outputs = predict(session, rows)
    for index in range(len(rows)):
        print(json.dumps({name: value for head in heads for name, value in predicted(outputs, head, index).items()}))
    for head in heads:
        if all(target in row for row in rows for target in head[2]):
            print(score(outputs, head, rows, Marks(metadata)), file=sys.stderr)


if __name__ == "__main__":
    main()
