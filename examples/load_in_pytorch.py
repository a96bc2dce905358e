#!/usr/bin/env python3
"""Loads the model of a run, or one exported from a checkpoint, into PyTorch and prints its accuracy or R² on a CSV file.

  ddp-train train examples/csv.toml --out runs/csv
  python examples/load_in_pytorch.py runs/csv/model.safetensors examples/data/digits_test.csv

  ddp-train checkpoint export runs/csv --out digits.safetensors
  python examples/load_in_pytorch.py digits.safetensors examples/data/digits_test.csv logits.json

A third argument names a file for the outputs, a list per row, in JSON; those of regression are in the units of the targets.

Names and shapes of the weights are those of the module below, so `load_state_dict` takes them as they are. The run's config
stands in the file's metadata, as TOML, and the embeddings, as JSON: the last features, in their order, are codes of theirs.
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
               "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}


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


class Exponential(nn.Module):
    """Rates from the logarithms that a model of the Poisson loss gives."""

    def forward(self, y):
        return y.double().exp()


class Mlp(nn.Module):
    """The trained network; dropout plays no part after training."""

    def __init__(self, widths, n_features, embeddings, config, n_normalized, target):
        super().__init__()
        n_inputs = n_features - len(embeddings) + sum(e["dim"] for e in embeddings)
        pairs = list(zip([n_inputs, *widths], widths))
        self.normalize = Normalize(n_normalized) if n_normalized else nn.Identity()
        self.target = target
        # A key is the feature's name, with what a ModuleDict takes for none written in another way.
        self.embeddings = nn.ModuleDict({e["key"]: nn.Embedding(e["n_codes"], e["dim"]) for e in embeddings})
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=config["bias"]) for i, o in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(o) for _, o in pairs[:-1] if config["norm"] == "layer")
        self.activation = ACTIVATIONS[config["activation"]]
        self.residual = config["residual"]

    def forward(self, x):
        x = self.normalize(x).float()
        n_numbers = x.shape[1] - len(self.embeddings)
        codes = x[:, n_numbers:].long()
        rows = [table(codes[:, i]) for i, table in enumerate(self.embeddings.values())]
        x = torch.cat([x[:, :n_numbers], *rows], dim=1)
        for i, layer in enumerate(self.layers[:-1]):
            y = layer(x)
            y = self.activation(self.norms[i](y) if len(self.norms) else y)
            x = x + y if self.residual and x.shape == y.shape else y
        return self.target(self.layers[-1](x))


def load(path):
    """The module, the names of its features, the data's section of the config, and the labels in the order of the outputs."""
    state = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    config = tomllib.loads(metadata["ddp_train.config"])
    features = json.loads(metadata["ddp_train.features"])
    embeddings = json.loads(metadata.get("ddp_train.embeddings", "[]"))
    n_layers = len(config["model"]["hidden"]) + 1
    widths = [state[f"layers.{i}.weight"].shape[0] for i in range(n_layers)]
    n_normalized = len(state.get("normalize.shift", []))
    if n_normalized:
        state.setdefault("normalize.offset", torch.zeros(n_normalized, dtype=torch.float64))
    n_scaled = len(state.get("target.shift", []))
    target = Target(n_scaled) if n_scaled else nn.Identity()
    if config["loss"]["kind"] == "poisson":
        target = Exponential()
    model = Mlp(widths, len(features), embeddings, config["model"], n_normalized, target)
    model.load_state_dict(state)
    # Files of earlier versions number their classes.
    labels = json.loads(metadata.get("ddp_train.labels", json.dumps(list(range(widths[-1])))))
    return model.eval(), features, config["data"], [str(label) for label in labels]


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model, features, data, classes = load(sys.argv[1])
    target = data["target"]
    with open(sys.argv[2], newline="") as file:
        rows = list(csv.DictReader(file))
    x = torch.tensor([[float(row[name]) for name in features] for row in rows], dtype=torch.float64)
    with torch.no_grad():
        logits = model(x)
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w") as file:
            json.dump(logits.tolist(), file)
    if data["task"] == "regression":
        names = [target] if isinstance(target, str) else target
        y = torch.tensor([[float(row[name]) for name in names] for row in rows], dtype=torch.float64)
        r2 = 1 - ((y - logits) ** 2).sum(dim=0) / ((y - y.mean(dim=0)) ** 2).sum(dim=0)
        print(f"R² {r2.mean():.6f} ({len(rows)} rows)")
        return
    labels = torch.tensor([classes.index(row[target]) for row in rows])
    n_right = int((logits.argmax(dim=1) == labels).sum())
    print(f"accuracy {n_right / len(rows):.6f} ({n_right} of {len(rows)} rows)")


if __name__ == "__main__":
    main()
