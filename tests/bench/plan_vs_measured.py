#!/usr/bin/env python3
"""Compares the step times that `ddp-train plan` predicts, after calibration, with those that `bench step` measures, on CPUs.

  python tests/bench/plan_vs_measured.py [--binary FILE] [--repeats 5] [--out FILE] [--quick]

Calibrates with `bench addmm`, `copy`, `allreduce` (2 ranks) and with `bench step` of other models than those that are compared. Cases:
64,128,10 with 32 rows and 784,1024,1024,10 with 128 rows per rank, on 1 rank with all cores and on 2 ranks that share them. A prediction
should be within 20% of the median of the repeats. Needs mpirun and an idle machine; the result holds the load average. --quick only
tries the script.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile

import records
import release_program

CASES = [([64, 128, 10], 32), ([784, 1024, 1024, 10], 128)]
# Models below, between and above the cases.
CALIBRATION = [([32, 96, 10], 32), ([128, 192, 10], 32), ([512, 512, 512, 10], 128), ([1024, 1536, 1024, 10], 128)]
WITHIN = 0.2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few steps: only tries the script")
    parser.add_argument("--note", default="idle machine", help="remark on the machine, for the result")
    parser.add_argument("--out", help="file for the result, JSON lines")
    args = parser.parse_args()
    n_cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()
    steps = ["--steps", "20"] if args.quick else ["--steps", "300"]
    timing = ["--repeats", "2", "--repeat-ms", "1"] if args.quick else []

    def bench(n_ranks, threads, *words):
        command = [args.binary, "bench", *words, "--device", "cpu", "--threads", str(threads), "--json"]
        if n_ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n_ranks), *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def shape(dims, batch):
        return ["--dims", ",".join(map(str, dims)), "--batch", str(batch)]

    def measure(n_ranks, dims, batch):
        line = bench(n_ranks, max(1, n_cores // n_ranks), "step", *shape(dims, batch), *steps)
        return json.loads(line)["step_ms_median"]

    def calibrate():
        lines = []
        # The threads of one rank with all cores, and those of one of two ranks.
        for threads in sorted({n_cores, max(1, n_cores // 2)}):
            lines.append(bench(1, threads, "copy", "--sizes", "16MiB", *timing))
            for dims, batch in CASES + CALIBRATION:
                lines.append(bench(1, threads, "addmm", *shape(dims, batch), "--square", "512", *timing))
            for dims, batch in CALIBRATION:
                lines.append(bench(1, threads, "step", *shape(dims, batch), *steps))
        lines.append(bench(2, max(1, n_cores // 2), "allreduce", *timing))
        return "".join(lines)

    def predict(file, n_ranks, dims, batch):
        command = [args.binary, "plan", "--gpu", "cpu", "--calibrate", file, "--world", str(n_ranks), "--json", "--rows", "1000000"]
        command += ["--features", str(dims[0]), "--hidden", ",".join(map(str, dims[1:-1])), "--batch-size", str(batch)]
        command += ["--set", f"data.classes={dims[-1]}", "--set", "data.train=away.npy", "--set", "train.clip_grad_norm=0"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "measured.json")
        with open(file, "w", encoding="utf-8") as out:
            out.write(calibrate())
        for dims, batch in CASES:
            for n_ranks in [1, 2]:
                measured = [measure(n_ranks, dims, batch) for _ in range(1 if args.quick else args.repeats)]
                plan = predict(file, n_ranks, dims, batch)
                ratio = plan["step_ms"] / statistics.median(measured)
                parts = {key: plan[key] for key in plan if key.endswith("_ms")}
                lines.append({"dims": dims, "batch": batch, "ranks": n_ranks, "measured_step_ms": measured, "predicted": parts,
                              "predicted_over_measured": ratio, "is_within": abs(ratio - 1) <= WITHIN})
                print(f"{dims}, {n_ranks} ranks: predicted {plan['step_ms']:.4g} ms, measured "
                      f"{statistics.median(measured):.4g} ms ({ratio:.2f})")
    about = {"what": "plan next to bench step", "machine": platform.processor() or platform.machine(), "cores": n_cores,
             "load_average": load, "note": args.note, "within": WITHIN, "all_within": all(line["is_within"] for line in lines)}
    if args.out:
        records.write(args.out, about, lines)


if __name__ == "__main__":
    main()
