#!/usr/bin/env python3
"""Measures memory and CPU time of a host whose ranks predict with one model, by number of ranks.

  python tests/bench/model_copies.py [--binary FILE] [--before FILE] [--width 6000] [--rows 20000] [--ranks 1,4,8] [--repeats 3] [--out FILE]

A network of two hidden layers of `width` units predicts rows of 20 features in a CSV file (20,000 rows, repeated) under mpirun. The
memory is the largest sum of the proportional set sizes (PSS) of all ranks, sampled from outside; the CPU time includes mpirun's. Runs of
both programs alternate; figures are medians.
"""

import argparse
import os
import platform
import random
import resource
import statistics
import subprocess
import tempfile
import time

import one_copy
import records
import release_program


def measured(arguments, folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(arguments, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    start, peak = time.perf_counter(), 0.0
    while process.poll() is None:
        peak = max(peak, sum(one_copy.pss_mib(child) for child in one_copy.descendants(process.pid)))
        time.sleep(0.02)
    assert process.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"peak_pss_mib": round(peak, 1), "wall_s": round(time.perf_counter() - start, 3), "cpu_s": round(cpu, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--before", help="another program, to compare with")
    parser.add_argument("--width", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--ranks", default="1,4,8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result as a line of JSON")
    args = parser.parse_args()
    programs = {"before": args.before, "after": args.binary} if args.before else {"after": args.binary}
    programs = {side: os.path.abspath(program) for side, program in programs.items()}
    version = lambda program: subprocess.run([program, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(0)
        with open(os.path.join(folder, "rows.csv"), "w", encoding="utf-8") as file:
            file.write(",".join([*(f"x{column}" for column in range(20)), "y"]) + "\n")
            rows = []
            for _ in range(20_000):
                x = [round(draw.gauss(0, 1), 4) for _ in range(20)]
                rows.append(",".join(map(str, [*x, int(sum(x) > 0)])) + "\n")
            block = "".join(rows)
            file.writelines(block for _ in range(args.rows // 20_000))
        train = [programs["after"], "train", "rows.csv", "--target", "y", "--hidden", f"{args.width},{args.width}", "--steps", "1", "--out", "run", "--device", "cpu"]
        subprocess.run(train, cwd=folder, check=True, capture_output=True)
        result = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "note": args.note,
            "versions": {side: version(program) for side, program in programs.items()},
            "model_mib": round(os.path.getsize(os.path.join(folder, "run/model.safetensors")) / 2**20, 1),
            "rows": args.rows,
            "repeats": args.repeats,
            "ranks": {},
        }
        for n in [int(number) for number in args.ranks.split(",")]:
            figures = {side: [] for side in programs}
            for _ in range(args.repeats):
                for side, program in programs.items():
                    predict = [program, "predict", "run", "rows.csv", "--out", "p.npy", "--overwrite", "--device", "cpu"]
                    figures[side].append(measured(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n), *predict], folder))
            medians = {side: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for side, runs in figures.items()}
            result["ranks"][n] = medians
            print(n, medians, flush=True)
    print(records.line(result), end="")
    if args.out:
        records.append(args.out, result)


if __name__ == "__main__":
    main()
