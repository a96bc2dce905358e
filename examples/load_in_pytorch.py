#!/usr/bin/env python3
"""Loads the model of a run, or one exported from a checkpoint, into PyTorch and prints its accuracy or R² on a CSV file.

  ddp-train train examples/csv.toml --out runs/csv
  python examples/load_in_pytorch.py runs/csv/model.safetensors examples/data/digits_test.csv

  ddp-train checkpoint export runs/csv --out digits.safetensors
  python examples/load_in_pytorch.py digits.safetensors examples/data/digits_test.csv logits.json

A third argument names a file for the outputs, a list per row, in JSON; those of regression are in the units of the targets.

Names and shapes of the weights are those of the module below, so `load_state_dict` takes them as they are. The run's config
is in the file's metadata, as TOML, and the embeddings, as JSON: the last features, in their order, are codes of theirs.
Needs torch, safetensors and Python 3.11.
"""
import csv
import json
import sys
import tomllib

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU(),
               "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "smooth_clip": lambda x: x / torch.sqrt(1 + (x / 3) ** 2)}
GATES = {"swiglu": nn.functional.silu, "geglu": nn.functional.gelu, "reglu": nn.functional.relu}
NORMS = {"layer_norm": lambda width, entry: nn.LayerNorm(width), "rms_norm": lambda width, entry: nn.RMSNorm(width, eps=1e-6),
         "batch_norm": lambda width, entry: nn.BatchNorm1d(width, eps=entry["eps"], momentum=entry["momentum"])}


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


class Normalize(nn.Module):
    """Offset, shift and scale of the first features, fitted on the training rows; from f64 to f32."""

    def __init__(self, n_features):
        super().__init__()
        self.register_buffer("offset", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_features, dtype=torch.float64))

    def forward(self, x):
        n = len(self.shift)
        # As in training, rows become f32 after the offset.
        numbers = ((x[:, :n] - self.offset).float().double() - self.shift) * self.scale
        return torch.cat([numbers, x[:, n:]], dim=1).float()


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

    def __init__(self, n_outputs, n_features, embeddings, config, n_normalized, target):
        super().__init__()
        self.normalize = Normalize(n_normalized) if n_normalized else nn.Identity()
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

    def forward(self, x):
        x = self.normalize(x).float()
        n_numbers = x.shape[1] - len(self.embeddings)
        codes = x[:, n_numbers:].long()
        rows = [table(codes[:, i]) for i, table in enumerate(self.embeddings.values())]
        x = torch.cat([x[:, :n_numbers], *rows], dim=1)
        return self.target(run(self.steps, x))


def load(path):
    """The module, the names of its features, the data's section of the config, and the labels in the order of the outputs."""
    state = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    config = tomllib.loads(metadata["ddp_train.config"])
    features = json.loads(metadata["ddp_train.features"])
    embeddings = json.loads(metadata.get("ddp_train.embeddings", "[]"))
    n_layers = sum(name.startswith("layers.") and name.endswith(".weight") for name in state)
    n_outputs = state[f"layers.{n_layers - 1}.weight"].shape[0]
    n_normalized = len(state.get("normalize.shift", []))
    if n_normalized:
        state.setdefault("normalize.offset", torch.zeros(n_normalized, dtype=torch.float64))
    n_scaled = len(state.get("target.shift", []))
    target = Target(n_scaled) if n_scaled else nn.Identity()
    loss = config["loss"].get("kind")
    if loss == "poisson":
        target = Exponential()
    if "heads" in config:
        heads = json.loads(metadata["ddp_train.heads"])
        target = Heads(heads, [head["loss"]["kind"] for head in config["heads"]], n_scaled)
    model = Network(n_outputs, len(features), embeddings, config["model"], n_normalized, target)
    model.load_state_dict(state)
    # Files of earlier versions number their classes.
    numbers = list(range(n_outputs + (loss == "ordinal")))
    labels = json.loads(metadata.get("ddp_train.labels", json.dumps(numbers)))
    return model.eval(), features, config["data"], [str(label) for label in labels]


def score(rows, task, names, classes, outputs):
    """R² of quantities, or accuracy of classes or labels, in words."""
    n = len(rows)
    if task != "classification":
        y = torch.tensor([[float(row[name]) for name in names] for row in rows], dtype=torch.float64)
        if task == "multilabel":
            return f"accuracy {((outputs > 0) == (y > 0.5)).double().mean():.6f} ({n} rows)"
        r2 = 1 - ((y - outputs) ** 2).sum(dim=0) / ((y - y.mean(dim=0)) ** 2).sum(dim=0)
        return f"R² {r2.mean():.6f} ({n} rows)"
    labels = torch.tensor([classes.index(row[names[0]]) for row in rows])
    # The ordinal loss has one logit less than classes: each says whether the class is above its own.
    is_ordinal = outputs.shape[1] < len(classes)
    predicted = (outputs > 0).sum(dim=1) if is_ordinal else outputs.argmax(dim=1)
    n_right = int((predicted == labels).sum())
    return f"accuracy {n_right / n:.6f} ({n_right} of {n} rows)"


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model, features, data, classes = load(sys.argv[1])
    with open(sys.argv[2], newline="") as file:
        rows = list(csv.DictReader(file))
    x = torch.tensor([[float(row[name]) for name in features] for row in rows], dtype=torch.float64)
    with torch.no_grad():
        logits = model(x)
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w") as file:
            json.dump(logits.tolist(), file)
    if isinstance(model.target, Heads):
        for head, _, outputs, _ in model.target.heads:
            labels = [str(label) for label in head.get("labels", [])]
            print(f"{head['name']}: {score(rows, head['task'], head['columns'], labels, logits[:, outputs])}")
        return
    names = [data["target"]] if isinstance(data["target"], str) else data["target"]
    print(score(rows, data["task"], names, classes, logits))


if __name__ == "__main__":
    main()
