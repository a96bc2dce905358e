#!/usr/bin/env python3
"""Compares `ddp-train bench step` with PyTorch on this machine, in one interleaved run.

  python tests/bench/compare_torch.py [--binary FILE] --out result.jsonl [--repeats 5] [--only SUBSTR]

Every form runs once, then all run again, so that a slow minute of the machine meets all of them; before each run the
script waits for an idle machine, though not for ever. A form is `CASE OPTIM NAME`, as in `b adamw torch fused 2t`.
Prints medians and best, then the project's speed bars, each met or not, or not measured where others used the machine; the
JSON holds every single run.

Rows are counted alike on both sides: --batch is a rank's, samples_per_s counts all ranks. PyTorch's start is counted
from the start of its launcher. A bar asks the median of our form against the median of PyTorch's best form with as many
threads. Needs torch for --python, and mpirun. A repeat of everything takes some minutes on two idle cores.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time

import records
import release_program

HERE = pathlib.Path(__file__).resolve().parent
CASES = {
    "a": {"dims": [64, 128, 10], "batch": 32, "steps": 2000, "warmup": 100},
    "b": {"dims": [784, 1024, 1024, 10], "batch": 128, "steps": 60, "warmup": 5},
    "c": {"dims": [1024, 4096, 4096, 1024], "batch": 256, "steps": 6, "warmup": 2},
}
# Peak RSS of the leanest Rust trainer on the same steps (burn, flex backend, one process, x86-64 Linux, November 2026).
RUST_PEER_RSS_MIB = {"a": 8, "b": 45, "c": 425}
# Its samples/s on a Zen 4 server; only shown, since another machine's speed says nothing here. --peer measures it.
RUST_PEER_ELSEWHERE = {"sgd": 455_000, "adamw": 355_000}
# Part of the machine that others may take while a form runs, for its figure to be compared.
BUSY = 0.1
ROOT_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(p)
    p.add_argument("--out", default="compare_torch.jsonl", help="the JSON lines to write")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--only", default="", help="only forms whose name holds this")
    p.add_argument("--python", default=sys.executable, help="a Python with torch")
    p.add_argument("--mpirun", default="mpirun")
    p.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND",
                   help="one more trainer, on one thread: COMMAND gets --dims --batch --steps --warmup --optim appended and prints such JSON")
    p.add_argument("--bf16", action="store_true", help="steps in bf16 too, against autocast")
    p.add_argument("--wait-idle", type=float, default=60, metavar="S", help="longest wait for an idle machine before a run")
    p.add_argument("--timeout", type=float, default=600, metavar="S", help="longest time for one run")
    return p.parse_args()


# ---------------------------------------------------------------- what runs


def forms(opt):
    """(label, command, environment) of every form, in the order in which a repeat runs them."""
    torch_step = str(HERE / "torch_step.py")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = []

    def add(label, command, **env):
        if opt.only in label:
            found.append((label, command, env))

    def torch(label, shape, threads, *extra, ddp=False):
        add(label, [opt.python, *(launch if ddp else []), torch_step, *shape, "--threads", str(threads), *extra],
            OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))

    def ours(label, shape, threads, ranks=1):
        over = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []
        mpi = [opt.mpirun, "-n", str(ranks), "--bind-to", "none", *over] if ranks > 1 else []
        add(label, [*mpi, opt.binary, "bench", "step", *shape, "--threads", str(threads), "--device", "cpu", "--json"], **ROOT_ENV)

    for threads in (1, 2):
        torch(f"limits {threads}t", ["--limits"], threads)
    def shape_of(case, optim):
        return ["--dims", ",".join(map(str, case["dims"])), "--batch", str(case["batch"]), "--steps", str(case["steps"]),
                "--warmup", str(case["warmup"]), "--optim", optim]

    for name, case in CASES.items():
        for optim in ("sgd", "adamw"):
            key = f"{name} {optim}"
            shape = shape_of(case, optim)
            for threads in (1, 2):
                for impl in ("default", "fused"):
                    torch(f"{key} torch {impl} {threads}t", shape, threads, "--opt-impl", impl)
                    # Compiling pays in this one case only, and costs half a minute each time.
                    if key == "b adamw":
                        torch(f"{key} torch compile+{impl} {threads}t", shape, threads, "--opt-impl", impl, "--compile")
                ours(f"{key} ours {threads}t", shape, threads)
            for impl in ("default", "fused"):
                torch(f"{key} torch ddp {impl} 2 ranks", shape, 1, "--opt-impl", impl, ddp=True)
            ours(f"{key} ours 2 ranks", shape, 1, ranks=2)
            if key == "b sgd":
                ours(f"{key} ours 4 ranks", shape, 1, ranks=4)
            for peer in opt.peer:
                peer_name, command = peer.split("=", 1)
                add(f"{key} peer {peer_name} 1t", [*shlex.split(command), *shape], RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1")
    # In bf16, which is worth a comparison where the processor has instructions for it.
    if opt.bf16:
        for name in ("b", "c"):
            key, shape = f"{name} adamw bf16", [*shape_of(CASES[name], "adamw"), "--dtype", "bf16"]
            for threads in (1, 2):
                for impl in ("default", "fused"):
                    torch(f"{key} torch {impl} {threads}t", shape, threads, "--opt-impl", impl)
                    torch(f"{key} torch compile+{impl} {threads}t", shape, threads, "--opt-impl", impl, "--compile")
                ours(f"{key} ours {threads}t", shape, threads)
    return found


# ---------------------------------------------------------------- the machine


def busy_and_total():
    """Jiffies of all cores since boot: spent on anything but waiting, and in all."""
    v = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return sum(v) - v[3] - v[4], sum(v)


def wait_for_idle(limit_s):
    """Waits until under 7% of the machine was busy twice running; gives the seconds waited."""
    start, calm, before = time.monotonic(), 0, busy_and_total()
    while calm < 2 and time.monotonic() - start < limit_s:
        time.sleep(0.4)
        now = busy_and_total()
        calm = calm + 1 if (now[0] - before[0]) / max(1, now[1] - before[1]) < 0.07 else 0
        before = now
    return time.monotonic() - start


def children_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def first_line(*command):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        return text.splitlines()[0] if text else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def machine():
    cpu = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    family = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith(("cpu family", "model\t"))][:2]
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    return {"cpu": cpu[0] if cpu else platform.processor(), "cpu_family_and_model": family, "cores": os.cpu_count(),
            "avx2": " avx2" in flags, "avx512f": " avx512f" in flags, "amx_bf16": " amx_bf16" in flags,
            "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20, "kernel": platform.release()}


def versions(opt):
    return {"ddp_train": first_line(opt.binary, "--version"), "rustc": first_line("rustc", "--version"),
            "torch": first_line(opt.python, "-c", "import torch; print(torch.__version__)"),
            "python": first_line(opt.python, "--version"), "mpirun": first_line(opt.mpirun, "--version")}


def run_once(command, env, timeout_s):
    t0, busy0, cpu0 = time.monotonic(), busy_and_total(), children_cpu_s()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **env})
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            result = {"error": f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"}
        else:
            result = json.loads(lines[-1])
            if not {"samples_per_s", "triad_gb_s"} & set(result):
                result = {"error": f"no samples_per_s in {lines[-1][:300]}"}
    except subprocess.TimeoutExpired:
        result = {"error": f"ran over {timeout_s:g} s"}
    except (OSError, json.JSONDecodeError) as error:
        result = {"error": str(error)}
    wall, busy1 = time.monotonic() - t0, busy_and_total()
    all_busy = (busy1[0] - busy0[0]) / max(1, busy1[1] - busy0[1])
    own = (children_cpu_s() - cpu0) / (wall * (os.cpu_count() or 1))
    # How much of the machine others took meanwhile: distinguishes a disturbed run from a slow one.
    return {**result, "process_s": round(wall, 3), "others_cpu": round(max(0.0, all_busy - own), 3)}


# ---------------------------------------------------------------- what it says


def summarize(runs):
    """Per form: median, best and spread of its runs."""
    table = {}
    for label in dict.fromkeys(run["form"] for run in runs):
        mine = [run for run in runs if run["form"] == label and "error" not in run]
        errors = [run["error"] for run in runs if run["form"] == label and "error" in run]
        row = {"runs": len(mine)}
        if errors:
            row["error"] = errors[-1]
        for key, best in (("samples_per_s", max), ("step_ms_median", min), ("startup_s", min), ("peak_rss_mib", max), ("process_s", min),
                          ("optimizer_ms_median", min), ("gemm_gflops_per_s", max), ("mm_gflops", max), ("onednn_gflops", max),
                          ("triad_gb_s", max), ("others_cpu", max)):
            values = [run[key] for run in mine if isinstance(run.get(key), (int, float))]
            if values:
                row[key] = {"median": statistics.median(values), "best": best(values), "min": min(values), "max": max(values)}
        table[label] = row
    return table


def bars(table):
    """The project's speed bars: figure, target, met (None where a form did not run)."""
    found = []

    def get(label, key, which="median"):
        return table.get(label, {}).get(key, {}).get(which)

    def best_torch(key, ending):
        """Speed and name of PyTorch's best form of this case and number of threads."""
        speeds = [(row["samples_per_s"]["median"], label) for label, row in table.items()
                  if label.startswith(f"{key} torch") and label.endswith(ending) and "samples_per_s" in row]
        return max(speeds, default=(None, ""))

    def bar(text, figure, target, at_least=True, unit="x", note=""):
        met = None if figure is None or target is None else (figure >= target if at_least else figure <= target)
        found.append({"bar": text, "figure": figure, "target": target, "sense": ">=" if at_least else "<=", "unit": unit, "met": met, "note": note})

    def disturbed(label):
        """Whether others took more than a tenth of the machine during most runs of a form: its figures say nothing."""
        return (get(label, "others_cpu") or 0) > BUSY

    def ratio(text, figure, base, target, note=""):
        bar(text, figure / base if figure and base else None, target, note=note)

    for name, single, double in (("a", 10, 20), ("b", 1.2, 1.3), ("c", 1.12, 1.15)):
        for optim in ("sgd", "adamw"):
            key = f"{name} {optim}"
            for threads in (1, 2):
                base, form = best_torch(key, f" {threads}t")
                if disturbed(form) or disturbed(f"{key} ours {threads}t"):
                    base, form = None, "the machine was busy"
                ratio(f"{key}: 1 rank, {threads} thread(s), over PyTorch's best", get(f"{key} ours {threads}t", "samples_per_s"), base, single, form)
            base, form = best_torch(key, " 2 ranks")
            if disturbed(form) or disturbed(f"{key} ours 2 ranks"):
                base, form = None, "the machine was busy"
            ratio(f"{key}: 2 ranks over DDP's best", get(f"{key} ours 2 ranks", "samples_per_s"), base, double, form)
    for name in ("b", "c"):
        for threads in (1, 2):
            key = f"{name} adamw bf16"
            base, form = best_torch(key, f" {threads}t")
            if base:
                ratio(f"{key}: 1 rank, {threads} thread(s), over PyTorch's best", get(f"{key} ours {threads}t", "samples_per_s"), base, 1.2, form)
    for optim in ("sgd", "adamw"):
        key, here = f"a {optim}", get(f"a {optim} ours 1t", "samples_per_s")
        peers = [(row["samples_per_s"]["median"], label) for label, row in table.items()
                 if label.startswith(f"{key} peer") and "samples_per_s" in row]
        if peers:
            base, form = max(peers)
            ratio(f"{key}: 1 rank over the best Rust peer", here, base, 2, form)
        else:
            elsewhere = RUST_PEER_ELSEWHERE[optim]
            shown = f"; on a Zen 4 server burn-flex made {elsewhere:,}, {here / elsewhere:.2f}x of which is made here" if here else ""
            bar(f"{key}: 1 rank over the best Rust peer", None, 2, note="no --peer given" + shown)
    for optim in ("sgd", "adamw"):
        key = f"c {optim}"
        ratio(f"{key}: 2 ranks over 1 rank of 1 thread", get(f"{key} ours 2 ranks", "samples_per_s"), get(f"{key} ours 1t", "samples_per_s"), 1.85)

    for key in ("c sgd", "c adamw"):
        step_ms, optimizer_ms = get(f"{key} ours 1t", "step_ms_median"), get(f"{key} ours 1t", "optimizer_ms_median")
        torch_rates = [get("limits 1t", k, "best") for k in ("mm_gflops", "onednn_gflops")]
        rates = {"its own product's rate": get(f"{key} ours 1t", "gemm_gflops_per_s"),
                 "the best product's rate on this machine": max((v for v in torch_rates if v), default=None)}
        note = "" if optimizer_ms is not None else "the optimizer's time is counted in, since optimizer_ms_median is missing"
        made = flop_per_row(CASES["c"]["dims"]) * CASES["c"]["batch"] / (step_ms - (optimizer_ms or 0)) / 1e6 if step_ms else None
        for what, rate in rates.items():
            told = f"{made:.1f} of {rate:.1f} GFLOP/s" if made and rate else "" if rate else "no rate given"
            bar(f"{key}: 1 thread, outside the optimizer, share of {what}", 100 * made / rate if made and rate else None, 92, unit="%",
                note="; ".join(filter(None, (told, note))))
    n_weights = sum((i + 1) * o for i, o in zip(CASES["c"]["dims"], CASES["c"]["dims"][1:]))
    for threads in (1, 2):
        adamw, sgd = (get(f"c {optim} ours {threads}t", "step_ms_median") for optim in ("adamw", "sgd"))
        speed = get(f"limits {threads}t", "triad_gb_s")
        # AdamW moves 28 bytes per weight (w, m, v, g read; w, m, v written), SGD with momentum 20.
        bar(f"c: {threads} thread(s), what AdamW's step costs over SGD's", adamw - sgd if adamw and sgd else None,
            8 * n_weights / speed / 1e6 if speed else None, at_least=False, unit=" ms",
            note=f"8 B x {n_weights / 1e6:.1f} M weights at {speed:.1f} GB/s" if speed else "no bandwidth measured")
    for name, peak in RUST_PEER_RSS_MIB.items():
        for optim in ("sgd", "adamw"):
            bar(f"{name} {optim}: peak memory of 1 rank, below the best Rust peer's", get(f"{name} {optim} ours 1t", "peak_rss_mib", "max"), peak,
                at_least=False, unit=" MiB", note="burn-flex, measured on another x86-64 machine")
    for label, target in (("a sgd ours 1t", 0.05), ("a sgd ours 2 ranks", 0.6)):
        whole = get(label, "process_s", "min")
        bar(f"{label}: start to first step done", get(label, "startup_s"), target, at_least=False, unit=" s",
            note=f"whole run, {CASES['a']['steps'] + CASES['a']['warmup']} steps and end included: {whole:.3f} s" if whole else "")
    ratio("b sgd: 4 ranks over 2 ranks (waiting must not eat the machine)", get("b sgd ours 4 ranks", "samples_per_s"), get("b sgd ours 2 ranks", "samples_per_s"), 0.5)
    return found


def flop_per_row(dims):
    """Forward, weight gradient and input gradient, but for the first layer's input: nobody needs its gradient."""
    return 6 * sum(i * o for i, o in zip(dims, dims[1:])) - 2 * dims[0] * dims[1]


def show(table, judged):
    print(f"\n{'form':38} {'n':>2} {'samples/s':>12} {'best':>12} {'ms/step':>9} {'start s':>8} {'RSS MiB':>8} {'others':>7}")
    for label, row in table.items():
        if "samples_per_s" in row:
            m = lambda k: row.get(k, {}).get("median", float("nan"))  # noqa: B023,E731
            print(f"{label:38} {row['runs']:2} {m('samples_per_s'):12,.0f} {row['samples_per_s']['best']:12,.0f} {m('step_ms_median'):9.3f}"
                  f" {m('startup_s'):8.3f} {m('peak_rss_mib'):8.0f} {m('others_cpu'):6.0%}")
        elif "triad_gb_s" in row:
            print(f"{label:38} {row['runs']:2} " + ", ".join(f"{k} {row[k]['best']:.1f}" for k in ("mm_gflops", "onednn_gflops", "triad_gb_s") if k in row) + " (best)")
        if "error" in row:
            print(f"{label:38}    failed: {' '.join(row['error'].split())[-150:]}")
    print()
    for b in judged:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[b["met"]]
        number = lambda v: "?" if v is None else f"{v:.3g}" if abs(v) < 100 else f"{v:.0f}"  # noqa: E731
        print(f"{verdict:12}  {b['bar']}: {number(b['figure'])}{b['unit']} ({b['sense']} {number(b['target'])}{b['unit']})" + (f"  [{b['note']}]" if b["note"] else ""))
    count = lambda v: sum(b["met"] is v for b in judged)  # noqa: E731
    print(f"\n{count(True)} met, {count(False)} not met, {count(None)} not measured")


def main():
    opt = options()
    todo = forms(opt)
    if not todo:
        sys.exit(f"no form's name holds '{opt.only}'")
    head = {"generator": "tests/bench/compare_torch.py", "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(), "versions": versions(opt), "repeats": opt.repeats, "only": opt.only, "cases": CASES}
    print(json.dumps({k: head[k] for k in ("machine", "versions")}, indent=1))
    runs, failed = [], set()
    for repeat in range(opt.repeats):
        for label, command, env in todo:
            if label in failed:
                continue
            waited = wait_for_idle(opt.wait_idle)
            run = {"form": label, "repeat": repeat, "waited_s": round(waited, 1), **run_once(command, env, opt.timeout)}
            if "error" in run:
                failed.add(label)
            runs.append(run)
            said = run.get("error") or f"{run['samples_per_s']:,.0f} samples/s" if "triad_gb_s" not in run else "done"
            print(f"[{repeat + 1}/{opt.repeats}] {label:38} {' '.join(said.split())[-150:]}", file=sys.stderr, flush=True)
            # Written after each run: hours of measuring should not hang on the last one.
            table = summarize(runs)
            judged = bars(table)
            records.write(opt.out, head, [*({"summary": name, **row} for name, row in table.items()), *judged, *runs])
    show(table, judged)
    print(f"written: {opt.out}")


if __name__ == "__main__":
    main()
