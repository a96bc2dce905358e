#!/usr/bin/env python3
"""Trains the transformer of examples/src/bin/char_gpt in PyTorch, from the same initial weights and on the same batches.

    cargo run -p ddp-examples --bin char_gpt 1 1 --initial initial.safetensors
    python3 tests/golden/char_gpt.py initial.safetensors order.npy > tests/golden/char_gpt.json

Needs torch and numpy. `--initial` also writes the order of the sequences of two epochs, `order.npy`, next to its file.
"""

import json
import pathlib
import struct
import sys

import numpy as np
import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTEXT, SEQUENCES, WIDTH, HEADS, BLOCKS, STEPS, LR = 32, 8, 32, 4, 2, 20, 3e-3


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        assert entry["dtype"] == "F32", name
        values = np.frombuffer(data[8 + length + start : 8 + length + end], dtype="<f4")
        tensors[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return tensors


class Block(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, dtype=dtype) for _ in range(2))
        sizes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
        self.linear = nn.ModuleList(nn.Linear(a, b, dtype=dtype) for a, b in sizes)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.linear[0](self.norms[0](x)).view(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.linear[1](y.transpose(1, 2).reshape(n, t, c))
        return x + self.linear[3](nn.functional.gelu(self.linear[2](self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, vocab, dtype):
        super().__init__()
        self.characters = nn.Embedding(vocab, WIDTH, dtype=dtype)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH, dtype=dtype))
        self.blocks = nn.ModuleList(Block(dtype) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, dtype=dtype)

    def forward(self, codes):
        x = self.characters(codes) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.characters.weight.T

    def load(self, tensors):
        pairs = [("embedding.characters", self.characters.weight), ("embedding.positions", self.positions)]
        norms = [norm for block in self.blocks for norm in block.norms] + [self.norm]
        linear = [layer for block in self.blocks for layer in block.linear]
        for kind, modules in [("norms", norms), ("layers", linear)]:
            for index, module in enumerate(modules):
                pairs += [(f"{kind}.{index}.weight", module.weight), (f"{kind}.{index}.bias", module.bias)]
        assert sorted(name for name, _ in pairs) == sorted(tensors)
        with torch.no_grad():
            for name, parameter in pairs:
                parameter.copy_(tensors[name])


def train(tensors, text, order, dtype):
    vocab = sorted(set(text))
    codes = torch.tensor([vocab.index(character) for character in text])
    model = Transformer(len(vocab), dtype)
    model.load(tensors)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        starts = [CONTEXT * sequence for sequence in order[step * SEQUENCES : (step + 1) * SEQUENCES]]
        x = torch.stack([codes[start : start + CONTEXT] for start in starts])
        y = torch.stack([codes[start + 1 : start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.set_num_threads(1)
    initial, order = sys.argv[1], np.load(sys.argv[2]).tolist()
    text = (ROOT / "examples/src/bin/char_gpt/sonnets.txt").read_text()
    tensors = read_safetensors(initial)
    losses, wide = (train(tensors, text, order, dtype) for dtype in (torch.float32, torch.float64))
    gap = max(abs(a - b) / b for a, b in zip(losses, wide))
    golden = {"generator": "char_gpt.py", "torch": torch.__version__, "losses": losses, "float64_losses": wide}
    golden["float64_loss_gap"] = gap
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
