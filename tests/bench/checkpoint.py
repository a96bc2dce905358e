#!/usr/bin/env python3
"""Compares `ddp-train bench checkpoint` with dd on one disk, in one interleaved run.

  python tests/bench/checkpoint.py [--binary FILE] --folder DIR --out result.jsonl [--repeats 5]

Each repeat writes and reads with dd as many bytes as a checkpoint has, random ones: through the system's cache (a block of 1 MiB,
`conv=fsync`; before reading the system is asked to forget the file), and around it (8 MiB, `direct`); and has the program take a
snapshot, save it, and read it back, every checksum compared. Who comes first changes from repeat to repeat. The bars are against
the faster dd, by the median. 1 GiB in all (weights and AdamW's state), with --large also 1 GiB of weights (3 GiB in all). Disks of
rented machines have a budget that refills with time: --pause waits for it. Prints medians and the bars, met or not.

Needs dd, 4 GiB of memory (--large 10) and 3 GiB of disk (--large 7).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import records
import release_program
from compare_torch import machine, wait_for_idle

DIMS = {"1 GiB in all": "9459,9459", "1 GiB of weights, 3 GiB in all": "16384,16384"}
BYTES = {"1 GiB in all": 1 << 30, "1 GiB of weights, 3 GiB in all": 3 << 30}
PAUSE_MS, RATE = 150, 0.8


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--out", default="checkpoint.jsonl", help="the JSON lines to write")
    p.add_argument("--folder", default=".", help="a folder on the disk to measure")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--large", action="store_true", help="also 1 GiB of weights")
    p.add_argument("--pause", type=float, default=20, metavar="S", help="before each measurement, for the disk's budget")
    p.add_argument("--wait-idle", type=float, default=20, metavar="S", help="longest wait for an idle machine before a run")
    return p.parse_args()


def dd(folder, size_bytes):
    """GB/s of writing and reading so many bytes; random ones out of memory, which no disk can shorten."""
    path = pathlib.Path(folder) / f"dd-{os.getpid()}"
    source = pathlib.Path("/dev/shm") / f"dd-{os.getpid()}"
    with open(source, "wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(os.urandom(1 << 20))
    n_mib = size_bytes >> 20
    rates = {}
    try:
        for what, command in (
            ("dd write", ["dd", f"if={source}", f"of={path}", "bs=1M", "conv=fsync"]),
            ("dd read", ["dd", f"if={path}", "of=/dev/null", "bs=1M"]),
            ("dd write direct", ["dd", f"if={source}", f"of={path}", "bs=8M", "oflag=direct", "conv=fsync"]),
            ("dd read direct", ["dd", f"if={path}", "of=/dev/null", "bs=8M", "iflag=direct"]),
        ):
            if "write" in what:
                path.unlink(missing_ok=True)
            with open(path, "ab") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            rates[what] = {"gb_per_s": (n_mib << 20) / (time.perf_counter() - start) * 1e-9}
    finally:
        path.unlink(missing_ok=True)
        source.unlink()
    return rates


def ours(opt, dims):
    command = [opt.binary, "bench", "checkpoint", "--json", "--device", "cpu", "--repeats", "1", "--dims", dims, "--out", opt.folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["what"]: {key: line[key] for key in ("size_bytes", "ms_median", "gb_per_s")} for line in lines}


def main():
    opt = options()
    runs = []
    sizes = {name: dims for name, dims in DIMS.items() if opt.large or name == "1 GiB in all"}
    for repeat in range(opt.repeats):
        for name, dims in sizes.items():
            measured = {}
            for turn in (0, 1):
                time.sleep(opt.pause)
                wait_for_idle(opt.wait_idle)
                is_ours = (turn + repeat) % 2 == 0
                measured.update(ours(opt, dims) if is_ours else dd(opt.folder, BYTES[name]))
            runs.append({"size": name, "repeat": repeat, "load": os.getloadavg()[0], **measured})
            shown = ", ".join(f"{what} {m['gb_per_s']:.2f}" for what, m in measured.items())
            print(f"{repeat + 1}/{opt.repeats}  {name}: {shown} GB/s", file=sys.stderr)
    summary, bars = {}, []
    for name in sizes:
        of_size = [run for run in runs if run["size"] == name]
        whats = [what for what in of_size[0] if isinstance(of_size[0][what], dict)]
        rates = {what: [run[what]["gb_per_s"] for run in of_size] for what in whats}
        summary[name] = {w: {"median_gb_per_s": statistics.median(v), "min": min(v), "max": max(v)} for w, v in rates.items()}
        pause = statistics.median(run["snapshot"]["ms_median"] for run in of_size)
        summary[name]["snapshot"]["median_ms"] = pause
        bars.append({"bar": f"{name}: pause of the snapshot in ms", "value": pause, "want": PAUSE_MS, "met": pause <= PAUSE_MS})
        for what, against in (("save", "dd write"), ("resume", "dd read")):
            fastest = max((against, f"{against} direct"), key=lambda dd: summary[name][dd]["median_gb_per_s"])
            value = statistics.median(run[what]["gb_per_s"] / run[fastest]["gb_per_s"] for run in of_size)
            bars.append({"bar": f"{name}: {what} over {fastest}", "value": value, "want": RATE, "met": value >= RATE})
    version = subprocess.run([opt.binary, "--version"], capture_output=True, text=True).stdout.strip()
    about = {"machine": machine(), "versions": {"ddp-train": version}, "repeats": opt.repeats}
    records.write(opt.out, about, [*({"summary": name, **rows} for name, rows in summary.items()), *bars, *runs])
    for name, rows in summary.items():
        for what, row in rows.items():
            print(f"{name:32} {what:16} {row['median_gb_per_s']:6.2f} GB/s ({row['min']:.2f} to {row['max']:.2f})")
    for bar in bars:
        print(f"{'met' if bar['met'] else 'MISSED':7} {bar['bar']}: {bar['value']:.2f}, wanted {bar['want']}")


if __name__ == "__main__":
    main()
