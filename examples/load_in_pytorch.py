#!/usr/bin/env python3
"""Loads the model of a run, or one exported from a checkpoint, into PyTorch and prints its accuracy or R² on a CSV file.

  ddp-train train examples/csv.toml --out runs/csv
  python examples/load_in_pytorch.py runs/csv/model.safetensors examples/data/digits_test.csv

  ddp-train checkpoint export runs/csv --out digits.safetensors
  python examples/load_in_pytorch.py digits.safetensors examples/data/digits_test.csv logits.json

A third argument names a file for the outputs, a list per row, in JSON: logits, or the predictions of regression in the units of
the targets. Rows whose target is missing or unknown are not scored.

The CSV file has the columns as they are in the data, in any order, with commas between cells and points in numbers. Its texts
become numbers here: categories their codes, dates seconds or parts, missing numbers NaN. The module does the rest.

Names and shapes of the weights are those of the module below, so `load_state_dict` takes them as they are. The file's metadata
holds the run's config, as TOML, and as JSON the columns (`ddp_train.columns`), the labels and the embeddings.
Needs torch and safetensors, and tomli before Python 3.11.
"""
import csv
import datetime
import json
import math
import re
import sys
import warnings

try:
    import tomllib
except ModuleNotFoundError:
    try:
        import tomli as tomllib
    except ModuleNotFoundError:
        raise ImportError("Python before 3.11 reads no TOML: install tomli") from None

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU(),
               "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "smooth_clip": lambda x: x / torch.sqrt(1 + (x / 3) ** 2)}
GATES = {"swiglu": nn.functional.silu, "geglu": nn.functional.gelu, "reglu": nn.functional.relu}
NORMS = {"layer_norm": lambda width, entry: nn.LayerNorm(width), "rms_norm": lambda width, entry: nn.RMSNorm(width, eps=1e-6),
         "batch_norm": lambda width, entry: nn.BatchNorm1d(width, eps=entry["eps"], momentum=entry["momentum"])}

# Texts that ddp-train takes for a missing number.
MISSING = {"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NaT", "null", "NULL", "None", "-", "?"}
TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
# Columns of a date with data.datetime = "parts".
PARTS = {
    ".year": lambda at: at.year, ".month": lambda at: at.month, ".day": lambda at: at.day,
    ".weekday": lambda at: at.weekday(), ".hour": lambda at: at.hour, ".minute": lambda at: at.minute,
    ".second": lambda at: at.second + at.microsecond / 1e6,
}


# A date, as 2024-05-31 or 31.05.2024, a time of day, and an offset.
MOMENT = re.compile(r"(?:(\d\d)\.(\d\d)\.(\d{4})|(\d{4})-(\d\d)-(\d\d))"
                    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d(?:[.,]\d+)?))?(?: ?(?:[Zz]|UTC|GMT|([+-]\d\d):?(\d\d)?))?)?", re.ASCII)


def moment(text):
    """The date and time in UTC, which is meant where there is no offset, of an ISO 8601 text or one such as 31.05.2024 12:30."""
    found = MOMENT.fullmatch(text)
    if not found:
        raise ValueError(f"expected a number, a truth value, a date or a time, got {text!r}; write durations in seconds")
    day, month, year, *iso, hour, minute, second, offset, minutes = found.groups()
    at = datetime.datetime(*map(int, (year, month, day) if year else iso), tzinfo=datetime.timezone.utc)
    ahead = 60 * int(offset or 0) + int(f"{(offset or '+')[0]}{minutes or 0}")
    seconds = float((second or "0").replace(",", "."))
    return at + datetime.timedelta(hours=int(hour or 0), minutes=int(minute or 0) - ahead, seconds=seconds)


def as_float(text):
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def number(text):
    """The number of a text: 1 and 0 for truth values, seconds since 1970 for dates, seconds since midnight for times."""
    if text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    value = as_float(text)
    return value if value is not None else moment(f"1970-01-01T{text}" if text[2:3] == ":" else text).timestamp()


def whole(text):
    """A whole number without the zeros after its point, so that 1.0 is the category 1; any other text as it is."""
    return re.sub(r"\A(-?[0-9]+)\.0+\Z", r"\1", text)


def shortest(text):
    """The shortest spelling of a number that is a category: 1 for 1.0, 1.5 for 1.50 and 1.5e0, 1e16 for 1e+16; any other text as it is.

    Zeros before a number and exponents such as that of 1e3, which programs write differently, are parts of a code.
    """
    if whole(text) != text or not re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-][0-9]+)", text):
        return whole(text)
    value = float(text)
    return whole(re.sub(r"e\+?(-?)0*", r"e\1", repr(value))) if math.isfinite(value) else text


def codes_of(values):
    """The code of each category, also by the shortest spelling of a number; where all are words for truth values, that of the truth value
    too, whose spellings are one category."""
    numbered = list(enumerate(values, 1))
    codes = {value: code for code, value in numbered}
    for code, value in numbered:
        codes.setdefault(shortest(value), code)
    if all(value.lower() in TRUTHS for value in values):
        codes.update((TRUTHS[value.lower()], code) for code, value in reversed(numbered))
    return codes


class Columns:
    """Numbers from the texts of a row, one per column that the model knows."""

    def __init__(self, plan, data):
        self.names = plan["columns"]
        # Code 0 is for unknown and empty texts.
        self.codes = {known["column"]: codes_of(known["values"]) for known in plan["vocabularies"]}
        self.marks = {mark.strip() for mark in data.get("missing_values", [])}
        self.marked_numbers = {as_float(mark) for mark in self.marks} - {None}
        # An empty text in the list makes it the whole list.
        self.missing = self.marks if "" in self.marks else MISSING | self.marks

    def is_missing(self, text, marks):
        """Whether a text is one of the marks, or equal to a number among those of the config: -999.0 to -999."""
        return text in marks or as_float(text) in self.marked_numbers

    def value(self, name, row):
        """The value of a column: a code, a part of a date, or a number; NaN if it is missing."""
        if name in self.codes:
            codes, text = self.codes[name], row[name]
            spellings = (text, TRUTHS.get(text.lower()), shortest(text))
            return 0 if self.is_missing(text, self.marks) else next((codes[key] for key in spellings if key in codes), 0)
        date, dot, part = name.rpartition(".")
        is_part = name not in row and date in row
        text = row[date if is_part else name]
        if self.is_missing(text, self.missing):
            return math.nan
        return PARTS[dot + part](moment(text)) if is_part else number(text)

    def tensor(self, rows):
        return torch.tensor([[self.value(name, row) for name in self.names] for row in rows], dtype=torch.float64)


def read_rows(path):
    """The rows of a CSV file as dicts of texts without blanks around them; a byte order mark is not part of the first name."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        names = [name.strip() for name in next(lines)]
        return [dict(zip(names, map(str.strip, line))) for line in lines if line]


def gated(f, x):
    """A gated linear unit after its linear layer: the first half of a row is the gate."""
    a, b = x.chunk(2, dim=-1)
    return f(a) * b


class NumericEmbedding(nn.Module):
    """Each column becomes itself and linear functions of cosines of it."""

    def __init__(self, n_features, n_frequencies, dim):
        super().__init__()
        self.frequencies, self.phases = (nn.Parameter(torch.zeros(n_features, n_frequencies)) for _ in range(2))
        self.weight = nn.Parameter(torch.zeros(n_features, n_frequencies, dim - 1))
        self.bias = nn.Parameter(torch.zeros(n_features, dim - 1))

    def forward(self, x):
        cosines = torch.cos(2 * torch.pi * self.frequencies * x[:, :, None] + self.phases)
        others = torch.einsum("nfk,fke->nfe", cosines, self.weight) + self.bias
        return torch.cat([x[:, :, None], others], dim=2).flatten(1)


class Scale(nn.Module):
    """A factor for each column."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.weight


def run(steps, x):
    for step in steps:
        x = step(x)
    return x


def steps_of(entries, width, model):
    """The steps of a list of layers (`[[model.layers]]`), whose modules join those of `model`, and the width after them."""
    steps = []
    for entry in entries:
        for _ in range(entry.get("repeat", 1)):
            kind = entry["kind"]
            if kind in ("linear", "glu"):
                factor = 2 if kind == "glu" else 1
                model.layers.append(nn.Linear(width, factor * entry["out_features"], bias=entry["bias"]))
                width = entry["out_features"]
                steps.append(model.layers[-1])
            elif kind in NORMS:
                model.norms.append(NORMS[kind](width, entry))
                steps.append(model.norms[-1])
            elif kind == "scale":
                model.scales.append(Scale(width))
                steps.append(model.scales[-1])
            elif kind == "numeric_embedding":
                model.numeric.append(NumericEmbedding(width, entry["n_frequencies"], entry["dim"]))
                steps.append(model.numeric[-1])
                width *= entry["dim"]
            elif kind == "residual":
                block, _ = steps_of(entry["layers"], width, model)
                steps.append(lambda x, block=block: x + run(block, x))
            if kind == "glu":
                steps.append(lambda x, f=GATES[entry["gate"]]: gated(f, x))
            if "activation" in entry:
                steps.append(ACTIVATIONS[entry["activation"]])
    return steps, width


class Features(nn.Module):
    """Features from the columns: numbers, then an indicator for each column that lacked some, then the one-hot columns of categories.

    Offset, shift and scale, fitted on the training rows, have an entry per feature, of which those of the numbers are used.
    """

    def __init__(self, plan, n_features):
        super().__init__()
        sizes = {known["column"]: len(known["values"]) + 1 for known in plan["vocabularies"]}
        self.numbers = [place for place, name in enumerate(plan["columns"]) if name not in sizes]
        self.categories = [(place, sizes[name]) for place, name in enumerate(plan["columns"]) if name in sizes]
        self.indicators, self.embeds = plan["indicators"], plan["embed"]
        fill = torch.tensor([plan["fill"][place] for place in self.numbers]) if plan["fill"] else None
        self.register_buffer("fill", fill, persistent=False)
        self.register_buffer("offset", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_features, dtype=torch.float64))

    def forward(self, columns):
        """The features, f32, and the codes of the categories that have embeddings."""
        n = len(self.numbers)
        # As in training, numbers become f32 after the offset, and are filled then.
        numbers = (columns[:, self.numbers] - self.offset[:n]).float()
        if self.fill is not None:
            numbers = torch.where(numbers.isnan(), self.fill, numbers)
        numbers = (numbers.double() - self.shift[:n]) * self.scale[:n]
        indicators = columns[:, self.indicators].isnan()
        codes = [(columns[:, place].long(), size) for place, size in self.categories]
        one_hot = [nn.functional.one_hot(code, size) for code, size in codes if not self.embeds]
        features = torch.cat([part.float() for part in (numbers, indicators, *one_hot)], dim=1)
        return features, [code for code, _ in codes if self.embeds]


class Target(nn.Module):
    """Scale of the targets of regression, fitted on the training rows: undone in predictions."""

    def __init__(self, n_targets):
        super().__init__()
        self.register_buffer("shift", torch.zeros(n_targets, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_targets, dtype=torch.float64))

    def forward(self, y):
        return y.double() * self.scale + self.shift


class Heads(nn.Module):
    """Outputs of several heads: those of regression in the units of the targets, the others as they are."""

    def __init__(self, heads, losses, n_scaled):
        super().__init__()
        self.heads, output, column = [], 0, 0
        for head, loss in zip(heads, losses):
            n_columns = len(head["columns"])
            n_outputs = len(head.get("labels") or head["columns"]) - (loss == "ordinal")
            self.heads.append((head, loss, slice(output, output + n_outputs), slice(column, column + n_columns)))
            output, column = output + n_outputs, column + n_columns
        if n_scaled:
            self.register_buffer("shift", torch.zeros(n_scaled, dtype=torch.float64))
            self.register_buffer("scale", torch.ones(n_scaled, dtype=torch.float64))

    def forward(self, y):
        y = y.double().clone()
        for head, loss, outputs, columns in self.heads:
            if loss == "poisson":
                y[:, outputs] = y[:, outputs].exp()
            elif head["task"] == "regression" and hasattr(self, "scale"):
                y[:, outputs] = y[:, outputs] * self.scale[columns] + self.shift[columns]
        return y


class Exponential(nn.Module):
    """Rates from the logarithms that a model of the Poisson loss gives."""

    def forward(self, y):
        return y.double().exp()


class Network(nn.Module):
    """The trained network; dropout plays no part after training."""

    def __init__(self, n_outputs, n_features, embeddings, config, plan, target):
        super().__init__()
        self.normalize = Features(plan, n_features)
        self.target = target
        # A key is the feature's name, with what a ModuleDict takes for none written in another way.
        self.embeddings = nn.ModuleDict({e["key"]: nn.Embedding(e["n_codes"], e["dim"]) for e in embeddings})
        self.layers, self.norms, self.scales, self.numeric = (nn.ModuleList() for _ in range(4))
        width = n_features - len(embeddings) + sum(e["dim"] for e in embeddings)
        if "layers" in config:
            steps, width = steps_of(config["layers"], width, self)
        else:
            steps, width = self.perceptron(config, width)
        self.layers.append(nn.Linear(width, n_outputs, bias=config["bias"]))
        self.steps = [*steps, self.layers[-1]]

    def perceptron(self, config, width):
        """The hidden layers of a model without a list, and the width after them."""
        steps = []
        for out in config["hidden"]:
            entry = {"kind": "linear", "out_features": out, "bias": config["bias"]}
            norm = [{"kind": "layer_norm"}] if config["norm"] == "layer" else []
            entries = [entry, *norm, {"kind": "activation", "activation": config["activation"]}]
            if config["residual"] and out == width:
                entries = [{"kind": "residual", "layers": entries}]
            more, width = steps_of(entries, width, self)
            steps += more
            width = out
        return steps, width

    def forward(self, columns):
        x, codes = self.normalize(columns)
        x = torch.cat([x, *(table(code) for table, code in zip(self.embeddings.values(), codes))], dim=1)
        return self.target(run(self.steps, x))


def load(path):
    """The module, its columns, the data's section of the config, and the labels in the order of the outputs."""
    state = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    config = tomllib.loads(metadata["ddp_train.config"])
    n_features = len(json.loads(metadata["ddp_train.features"]))
    plan = json.loads(metadata["ddp_train.columns"])
    embeddings = json.loads(metadata.get("ddp_train.embeddings", "[]"))
    n_layers = sum(name.startswith("layers.") and name.endswith(".weight") for name in state)
    n_outputs = state[f"layers.{n_layers - 1}.weight"].shape[0]
    # What leaves numbers as they are is not in the file.
    for name, value in [("offset", 0.0), ("shift", 0.0), ("scale", 1.0)]:
        state.setdefault(f"normalize.{name}", torch.full([n_features], value, dtype=torch.float64))
    coded = {known["column"] for known in plan["vocabularies"]}
    numbers = [name for name in plan["columns"] if name not in coded]
    rounded = [name for name, offset in zip(numbers, state["normalize.offset"].tolist()) if abs(offset) >= 2**53]
    if rounded:
        warnings.warn(f"float64 rounds the numbers of {rounded}, which lie beyond 2^53: ddp-train predict and the ONNX file keep them", stacklevel=2)
    n_scaled = len(state.get("target.shift", []))
    target = Target(n_scaled) if n_scaled else nn.Identity()
    loss = config["loss"].get("kind")
    if loss == "poisson":
        target = Exponential()
    if "heads" in config:
        heads = json.loads(metadata["ddp_train.heads"])
        target = Heads(heads, [head["loss"]["kind"] for head in config["heads"]], n_scaled)
    model = Network(n_outputs, n_features, embeddings, config["model"], plan, target)
    model.load_state_dict(state)
    # Files of earlier versions number their classes.
    numbers = list(range(n_outputs + (loss == "ordinal")))
    labels = json.loads(metadata.get("ddp_train.labels", json.dumps(numbers)))
    return model.eval(), Columns(plan, config["data"]), config["data"], [str(label) for label in labels]


def score(rows, columns, task, names, classes, outputs):
    """R² of quantities, or accuracy of classes or labels, in words."""
    if task == "classification":
        # The label 1 may be written 1.0.
        places = {label: place for place, label in enumerate(classes)}
        targets = [places.get(row[names[0]], places.get(whole(row[names[0]]))) for row in rows]
    else:
        cells = [[row[name] for name in names] for row in rows]
        targets = [None if any(columns.is_missing(cell, columns.missing) for cell in of_row) else [number(cell) for cell in of_row]
                   for of_row in cells]
    known = [index for index, target in enumerate(targets) if target is not None]
    n, outputs = len(known), outputs[known]
    y = torch.tensor([targets[index] for index in known], dtype=torch.float64)
    if task == "multilabel":
        return f"accuracy {((outputs > 0) == (y > 0.5)).double().mean():.6f} ({n} rows)"
    if task != "classification":
        r2 = 1 - ((y - outputs) ** 2).sum(dim=0) / ((y - y.mean(dim=0)) ** 2).sum(dim=0)
        return f"R² {r2.mean():.6f} ({n} rows)"
    # The ordinal loss has one logit less than classes: each says whether the class is above its own.
    is_ordinal = outputs.shape[1] < len(classes)
    predicted = (outputs > 0).sum(dim=1) if is_ordinal else outputs.argmax(dim=1)
    n_right = int((predicted == y).sum())
    return f"accuracy {n_right / max(n, 1):.6f} ({n_right} of {n} rows)"


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model, columns, data, classes = load(sys.argv[1])
    rows = read_rows(sys.argv[2])
    with torch.no_grad():
        outputs = model(columns.tensor(rows))
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w") as file:
            json.dump(outputs.tolist(), file)
    if isinstance(model.target, Heads):
        for head, _, of_head, _ in model.target.heads:
            labels = [str(label) for label in head.get("labels") or []]
            print(f"{head['name']}: {score(rows, columns, head['task'], head['columns'], labels, outputs[:, of_head])}")
        return
    names = [data["target"]] if isinstance(data["target"], str) else data["target"]
    print(score(rows, columns, data["task"], names, classes, outputs))


if __name__ == "__main__":
    main()
