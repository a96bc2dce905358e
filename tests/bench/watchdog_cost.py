#!/usr/bin/env python3
"""Measures the cost of the watchdog: interleaved pairs of `bench step` on 2 ranks, without and with `--watchdog`.

  python tests/bench/watchdog_cost.py [--binary FILE] [--pairs 20] [--out FILE]

The case is the smallest one (64,128,10, batch 32), where a step is shortest. The order within a pair alternates. A ratio is time per
step with the watchdog over without, of one pair; reported are the median of the ratios and its 95% bootstrap interval. Needs only
Python 3, mpirun and an idle machine; as root, the processes take priority over others.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess

import records
import release_program

CASE = ["--dims", "64,128,10", "--batch", "32", "--optim", "sgd", "--threads", "1", "--warmup", "500"]


def step_ms(args, has_watchdog):
    """Median time of a step in ms."""
    env = {
        **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }
    if not shutil.which("ssh"):
        env.setdefault("OMPI_MCA_plm", "isolated")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", args.binary, "bench", "step", "--json", *CASE]
    command += ["--steps", str(args.steps), *(["--watchdog"] if has_watchdog else [])]
    if os.geteuid() == 0:
        command = ["nice", "-n", "-20", *command]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.splitlines()
    return json.loads(lines[-1])["step_ms_median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--note", default="", help="a remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    times = {False: [], True: []}
    for pair in range(args.pairs):
        for has_watchdog in (False, True) if pair % 2 == 0 else (True, False):
            times[has_watchdog].append(step_ms(args, has_watchdog))
    ratios = [on / off for off, on in zip(times[False], times[True])]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=args.pairs)) for _ in range(4000))
    result = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "note": args.note,
        "off_ms": statistics.median(times[False]),
        "on_ms": statistics.median(times[True]),
        "ratio": statistics.median(ratios),
        "interval_95": [medians[100], medians[3899]],
        "pairs": args.pairs,
        "steps": args.steps,
        "ratios": [round(ratio, 4) for ratio in ratios],
    }
    print(json.dumps({key: value for key, value in result.items() if key != "ratios"}))
    if args.out:
        records.write(args.out, result)


if __name__ == "__main__":
    main()
