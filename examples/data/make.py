#!/usr/bin/env python3
"""Makes the bundled data from the sets inside the scikit-learn wheel (no download).

  python examples/data/make.py            writes the four CSV files here and ddp/src/data/digits.bin
  python examples/data/make.py --check    writes nothing; fails if a file here differs

Needs numpy and scikit-learn. README.md next to this file gives source, license, split and scaling.
"""
import argparse
import hashlib
import pathlib
import sys

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SPLIT_SEED = 0
TEST_FRACTION = 0.2


def split(n_rows):
    """Row numbers (train, test): the first fifth of one fixed permutation is the test part."""
    order = np.random.RandomState(SPLIT_SEED).permutation(n_rows)
    n_test = round(TEST_FRACTION * n_rows)
    return order[n_test:], order[:n_test]


def decimal(value):
    """Shortest decimal that gives the same f32, read directly as f32 or by way of f64."""
    text = np.format_float_positional(np.float32(value), unique=True, trim="-")
    assert np.float32(text) == np.float32(float(text)) == np.float32(value), text
    return text


def csv(features, targets, target_name, target_text):
    lines = [",".join([f"f{i}" for i in range(features.shape[1])] + [target_name])]
    for row, target in zip(features, targets):
        lines.append(",".join([decimal(v) for v in row] + [target_text(target)]))
    return ("\n".join(lines) + "\n").encode()


def digits():
    pixels, labels = load_digits(return_X_y=True)
    assert pixels.shape == (1797, 64) and set(np.unique(pixels)) <= set(range(17))
    train, test = split(len(pixels))
    both = np.concatenate([train, test])
    binary = np.column_stack([pixels[both], labels[both]]).astype(np.uint8).tobytes()
    return {
        HERE / "digits_train.csv": csv(pixels[train] / 16, labels[train], "label", str),
        HERE / "digits_test.csv": csv(pixels[test] / 16, labels[test], "label", str),
        ROOT / "ddp" / "src" / "data" / "digits.bin": binary,
    }


def diabetes():
    x, y = load_diabetes(return_X_y=True)
    assert x.shape == (442, 10)
    train, test = split(len(x))
    x = (x - x[train].mean(0)) / x[train].std(0)
    mean, std = y[train].mean(), y[train].std()
    print(f"diabetes target: mean {mean:.9g}, standard deviation {std:.9g} of the training rows")
    y = (y - mean) / std
    return {
        HERE / "diabetes_train.csv": csv(x[train], y[train], "target", decimal),
        HERE / "diabetes_test.csv": csv(x[test], y[test], "target", decimal),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    check = parser.parse_args().check
    differing = []
    for path, content in {**digits(), **diabetes()}.items():
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif not path.is_file() or path.read_bytes() != content:
            differing.append(path.name)
        print(hashlib.sha256(content).hexdigest(), len(content), path.relative_to(ROOT))
    if differing:
        sys.exit(f"differs from what this script makes: {', '.join(differing)}")


if __name__ == "__main__":
    main()
