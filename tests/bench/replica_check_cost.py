#!/usr/bin/env python3
"""Measures the comparison of replicas: its time, per million parameters, and its share of training at the default interval.

  python tests/bench/replica_check_cost.py [--binary FILE] [--runs 5] [--out FILE]

`bench step` times both a step and a comparison. The first case, on two ranks, has the shortest step; the others show the cost of the
fingerprints per parameter on one rank and thread, for weights alone (SGD) and with Adam's two tensors of state. Reported are medians of the runs. Needs only Python 3, mpirun and an idle machine.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess

import records
import release_program

# The default of train.replica_check_steps.
EVERY_STEPS = 1000
# Ranks and arguments.
CASES = {
    "64,128,10 batch 32 SGD": (2, ["--dims", "64,128,10", "--batch", "32", "--steps", "2000", "--optim", "sgd"]),
    "784,1024,1024,10 batch 8 SGD": (1, ["--batch", "8", "--steps", "5", "--optim", "sgd"]),
    "784,1024,1024,10 batch 8 AdamW": (1, ["--batch", "8", "--steps", "5", "--optim", "adamw"]),
}


def measure(binary, n_ranks, case):
    """One run of a case."""
    env = {
        **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }
    if not shutil.which("ssh"):
        env.setdefault("OMPI_MCA_plm", "isolated")
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n_ranks)] if n_ranks > 1 else []
    command = [*launcher, binary, "bench", "step", "--json", "--threads", "1", *case]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.splitlines()
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--note", default="", help="a remark on the machine, for the result")
    parser.add_argument("--out", help="file for the results as JSON lines")
    args = parser.parse_args()
    about = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "note": args.note,
        "runs": args.runs,
        "every_steps": EVERY_STEPS,
    }
    cases = []
    for name, (n_ranks, case) in CASES.items():
        runs = [measure(args.binary, n_ranks, case) for _ in range(args.runs)]
        step_ms = statistics.median(run["step_ms_median"] for run in runs)
        check_ms = statistics.median(run["replica_check_ms_median"] for run in runs)
        cases.append({
            "case": name,
            "ranks": n_ranks,
            "params": runs[0]["params"],
            "step_ms": round(step_ms, 5),
            "check_ms": round(check_ms, 5),
            "check_ms_per_million_params": round(check_ms * 1e6 / runs[0]["params"], 3),
            "share_of_training": round(check_ms / (EVERY_STEPS * step_ms), 7),
        })
        print(json.dumps(cases[-1]))
    if args.out:
        records.write(args.out, about, cases)


if __name__ == "__main__":
    main()
