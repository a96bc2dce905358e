#!/usr/bin/env python3
"""Time of a training step with an embedding of many values, whose rows few batches touch: two programs in turn.

    tests/bench/wide_embedding.py OLD NEW [--pairs 3] > results.jsonl

After about 765 steps the moments of untouched rows are subnormal numbers, unless they become zero.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

ROWS = 60_000


def write_table(path, n_values):
    """Rows of a category with `n_values` values, three numbers and a label."""
    draw = random.Random(1)
    effects = [draw.gauss(0, 1) for _ in range(n_values)]
    with open(path, "w") as file:
        print("id,x1,x2,x3,y", file=file)
        for _ in range(ROWS):
            value, x = draw.randrange(n_values), [draw.gauss(0, 1) for _ in range(3)]
            label = int(effects[value] + x[0] + draw.gauss(0, 0.5) > 0)
            print(f"c{value},{x[0]:.4f},{x[1]:.4f},{x[2]:.4f},{label}", file=file)


def step_us(program, table, steps, out):
    """Mean time of a step in microseconds, on one thread."""
    args = f"train {table} --target y --categorical id --device cpu --threads 1 --hidden 128 --progress none --out {out}"
    for key in ["data.encode=embedding", f"train.steps={steps}", "train.global_batch_size=32", "data.eval=none"]:
        args += f" --set {key}"
    subprocess.run([program, *args.split()], check=True, capture_output=True)
    events = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    end = next(event for event in events if event["event"] == "end")
    return end["train_s"] / end["steps"] * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for n_values in (14, 14_000):
            table = Path(folder) / f"{n_values}.csv"
            write_table(table, n_values)
            for steps in (600, 3000):
                pairs = [
                    [step_us(program, table, steps, f"{folder}/{n_values}-{steps}-{pair}-{which}")
                     for which, program in enumerate((args.old, args.new))]
                    for pair in range(args.pairs)
                ]
                old, new = (statistics.median(of) for of in zip(*pairs))
                print(json.dumps({"values": n_values, "steps": steps, "old_us": round(old, 1), "new_us": round(new, 1),
                                  "ratio": round(statistics.median(n / o for o, n in pairs), 3), "pairs": args.pairs}),
                      flush=True)


if __name__ == "__main__":
    main()
