#!/usr/bin/env python3
"""Compares `ddp-train bench loader` with PyTorch on this machine, in one interleaved run.

  python tests/bench/compare_loader.py [--binary FILE] --out result.jsonl [--repeats 5]

Both read the same npy files, shuffled, in batches of the same size, with nobody to compute on them; the files are in the
system's cache (each side reads them once first). PyTorch's side is what its tutorials show (a TensorDataset over a memory
map, torch's default collate, 0 and 2 workers, pinned memory where a GPU is) and what an expert writes: one permutation, and
`index_select` of a batch of the mapped tensor, into the same memory each time. Ours: 1 and 2 loader threads, to the GPU where
one is, NaN checked. It also trains 64-128-10, batch 32, from a npy of 10 million rows (--train-rows), mapped and read piece by piece,
shuffled fully and in blocks, beside the same step on resident synthetic rows (`bench step`). --before measures an older binary too. Files are made in --folder and removed. Prints medians and the bars, met or not.

Needs torch and numpy for --python. About eight minutes on two idle cores; 5 GiB of disk.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import records
import release_program
from compare_torch import machine, versions, wait_for_idle

# Features, format of an element: rows.
SHAPES = {(64, "f4"): 2_000_000, (256, "f4"): 500_000, (1024, "f4"): 200_000, (256, "f2"): 500_000, (256, "u1"): 500_000}
BATCH = 256

TORCH_SIDE = r"""
import json, sys, time
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
x, y, workers, batch, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
x, y = np.load(x, mmap_mode="c"), np.load(y, mmap_mode="c")
rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
torch.from_numpy(x).sum()  # into the system's cache
loader = DataLoader(rows, batch_size=batch, shuffle=True, num_workers=workers, pin_memory=torch.cuda.is_available())
batches = iter(loader)
for _ in range(8):
    next(batches)
n, start = 0, time.perf_counter()
for a, b in batches:
    n += len(b)
    if time.perf_counter() - start > seconds:
        break
s = time.perf_counter() - start
print(json.dumps({"rows_per_s": n / s, "gb_per_s": n / s * (x.shape[1] * x.itemsize + 8) * 1e-9}))
"""


EXPERT_SIDE = r"""
import json, sys, time
import numpy as np, torch
x, y, threads, batch, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
torch.set_num_threads(threads)
x, y = torch.from_numpy(np.load(x, mmap_mode="c")), torch.from_numpy(np.load(y, mmap_mode="c"))
x.view(torch.uint8).sum()  # into the system's cache
a, b = x[:batch].clone(), y[:batch].clone()
n, spent = 0, 0.0
while spent < seconds:
    start = time.perf_counter()
    order = torch.randperm(len(x))
    for i in range(0, len(x) - batch + 1, batch):
        rows = order[i:i + batch]
        torch.index_select(x, 0, rows, out=a)
        torch.index_select(y, 0, rows, out=b)
        n += batch
    spent += time.perf_counter() - start
print(json.dumps({"rows_per_s": n / spent, "gb_per_s": n / spent * (x.shape[1] * x.itemsize + 8) * 1e-9}))
"""


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--before", help="an older binary, measured beside the other in the same run")
    p.add_argument("--out", default="compare_loader.jsonl", help="the JSON lines to write")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--python", default=sys.executable, help="a Python with torch and numpy")
    p.add_argument("--mpirun", default="mpirun", help=argparse.SUPPRESS)
    p.add_argument("--folder", help="where the files are made [default: the system's temporary folder]")
    p.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    p.add_argument("--train-rows", type=int, default=10_000_000)
    p.add_argument("--wait-idle", type=float, default=20, metavar="S", help="longest wait for an idle machine before a run")
    return p.parse_args()


def make(python, folder, name, rows, features, dtype="f4"):
    """A pair of npy files, by numpy."""
    code = (
        "import numpy as np, sys\n"
        "path, rows, features, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]\n"
        "rng = np.random.default_rng(0)\n"
        "with open(path + '.npy', 'wb') as file:\n"
        "    about = {'descr': np.dtype(dtype).str, 'fortran_order': False, 'shape': (rows, features)}\n"
        "    np.lib.format.write_array_header_1_0(file, about)\n"
        "    for i in range(0, rows, 1 << 16):\n"
        "        some = rng.standard_normal((min(1 << 16, rows - i), features), dtype=np.float32)\n"
        "        ((16 * some).astype('i1').astype('u1') if dtype == 'u1' else some.astype(dtype)).tofile(file)\n"
        "np.save(path + '_y.npy', rng.integers(0, 10, rows))\n"
    )
    path = str(pathlib.Path(folder) / name)
    subprocess.run([python, "-c", code, path, str(rows), str(features), dtype], check=True)
    return path + ".npy", path + "_y.npy"


def run(command, env=None):
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout).strip()[-400:]}
    return {**json.loads(lines[-1]), "process_s": round(time.monotonic() - started, 3)}


def forms(opt, folder):
    found = []
    sets = lambda **keys: [arg for key, value in keys.items() for arg in ("--set", f"{key.replace('__', '.')}={value}")]
    for (features, dtype), rows in SHAPES.items():
        x, y = make(opt.python, folder, f"x{features}{dtype}", rows, features, dtype)
        features = shape_name(features, dtype)
        for workers in (0, 2):
            command = [opt.python, "-c", TORCH_SIDE, x, y, str(workers), str(BATCH), str(opt.seconds)]
            found.append((f"{features} features, torch DataLoader, {workers} workers", command))
        for threads in (1, 2):
            command = [opt.python, "-c", EXPERT_SIDE, x, y, str(threads), str(BATCH), str(opt.seconds)]
            found.append((f"{features} features, torch index_select, {threads} threads", command))
            common = dict(data__train=x, data__labels=y, data__classes=10, train__batch_size=BATCH, data__loader_threads=threads)
            common["data__placement"] = "host"
            bench = ["bench", "loader", "--json", "--repeats", "5", "--repeat-ms", str(int(opt.seconds * 200)), *sets(**common)]
            for ours, binary in binaries(opt):
                found.append((f"{features} features, {ours}, {threads} threads", [binary, *bench]))
    if opt.train_rows:
        x, y = make(opt.python, folder, "big", opt.train_rows, 64)
        steps = opt.train_rows // 32
        train = ["train", "--json", "-q", "--device", "cpu", "--out", str(pathlib.Path(folder) / "run"), "--overwrite"]
        keys = dict(data__train=x, data__labels=y, data__classes=10, model__hidden="[128]", train__batch_size=32, train__steps=steps)
        keys.update(optimizer__kind="sgd", optimizer__lr=0.01, log__every_steps=10_000)
        shape = ["--dims", "64,128,10", "--batch", "32", "--steps", str(steps), "--optim", "sgd", "--device", "cpu"]
        for threads in (1, 2):
            more = ["--threads", str(threads)]
            # The files mapped, and read piece by piece, as files beyond half of the machine's memory are.
            in_pieces = dict(data__loader_memory_mib=1024)
            for ours, binary in binaries(opt):
                of = "" if ours == "ours" else f", {ours}"
                name = lambda what: f"train from npy{what}, {threads} threads{of}"
                found.append((name(""), [binary, *train, *sets(**keys), *more]))
                found.append((name(" read piece by piece"), [binary, *train, *sets(**keys, **in_pieces), *more]))
                blocks = sets(**keys, **in_pieces, data__shuffle_mode="blocks")
                found.append((name(" read piece by piece, shuffled in blocks"), [binary, *train, *blocks, *more]))
            found.append((f"step on resident rows, {threads} threads", [opt.binary, "bench", "step", *shape, "--json", *more]))
    return found


def binaries(opt):
    return [("ours", opt.binary)] + ([("ours before", opt.before)] if opt.before else [])


def shape_name(features, dtype):
    return f"{features} {dtype}"


def figure(result):
    return result.get("rows_per_s", result.get("samples_per_s"))


def bars(medians):
    def ratio(ours, theirs):
        return medians[ours] / medians[theirs] if ours in medians and theirs in medians else None

    found = []
    for features, dtype in SHAPES:
        for threads in (1, 2):
            shape = f"{shape_name(features, dtype)} features"
            value = ratio(f"{shape}, ours, {threads} threads", f"{shape}, torch index_select, {threads} threads")
            found.append((f"{shape}: ours over index_select, {threads} threads", value, 1.2))
    for features, want in ((shape_name(64, "f4"), 10), (shape_name(1024, "f4"), 3)):
        best = max((medians.get(f"{features} features, ours, {t} threads", 0) for t in (1, 2)), default=0)
        for workers in (0, 2):
            theirs = medians.get(f"{features} features, torch DataLoader, {workers} workers")
            value = best / theirs if theirs else None
            found.append((f"{features} features: ours over DataLoader with {workers} workers", value, want))
    for threads in (1, 2):
        for what in ("", " read piece by piece", " read piece by piece, shuffled in blocks"):
            value = ratio(f"train from npy{what}, {threads} threads", f"step on resident rows, {threads} threads")
            found.append((f"training from npy{what} over resident rows, {threads} threads", value, 0.9))
    return [{"bar": name, "value": value, "want": want, "met": None if value is None else value >= want} for name, value, want in found]


def main():
    opt = options()
    runs = []
    with tempfile.TemporaryDirectory(dir=opt.folder) as folder:
        todo = forms(opt, folder)
        for repeat in range(opt.repeats):
            for name, command in todo:
                wait_for_idle(opt.wait_idle)
                result = run(command)
                runs.append({"form": name, "repeat": repeat, **result})
                value = figure(result)
                shown = f"{value:14,.0f} rows/s" if value else result.get("error", "no figure")
                print(f"{repeat + 1}/{opt.repeats}  {name:48} {shown}", file=sys.stderr)
    values = {}
    for r in runs:
        if figure(r):
            values.setdefault(r["form"], []).append(figure(r))
    medians = {name: statistics.median(v) for name, v in values.items()}
    found = bars(medians)
    summary = {name: {"median": medians[name], "min": min(v), "max": max(v), "runs": len(v)} for name, v in values.items()}
    # Where files lie on this machine is nobody's business.
    for r in runs:
        r.pop("source", None)
    about = {"machine": machine(), "versions": versions(opt), "batch": BATCH,
             "shapes": {shape_name(*shape): rows for shape, rows in SHAPES.items()}}
    records.write(opt.out, about, [*({"summary": name, **row} for name, row in summary.items()), *found, *runs])
    for name, row in summary.items():
        print(f"{name:50} {row['median']:14,.0f} rows/s ({row['min']:,.0f} to {row['max']:,.0f})")
    for bar in found:
        value = "did not run" if bar["value"] is None else f"{bar['value']:.2f}"
        print(f"{'met' if bar['met'] else 'MISSED' if bar['met'] is False else '-':7} {bar['bar']}: {value}, wanted {bar['want']}")


if __name__ == "__main__":
    main()
