"""Where the time of a step is: each kernel of a graph's replay, by NVIDIA's profiler, and the trace of the program itself."""
import collections
import csv
import glob
import io
import json
import pathlib
import shutil

from runs import DIGITS
from session import OutOfTime, Skipped
from speed import cases

# Kernels of one process that are measured at most: each is run by itself, with its memory saved and restored.
MOST_KERNELS = 400


def find():
    """Nsight Compute, where a CUDA toolkit or its own package put it."""
    places = ["/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/nsight-compute*/ncu"]
    found = shutil.which("ncu") or next((path for place in places for path in sorted(glob.glob(place))), None)
    if not found:
        raise Skipped("ncu of the CUDA toolkit")
    return found


def kernels_of(text):
    """{kernel: [launches, microseconds together]} of ncu's CSV."""
    start = text.find('"ID"')
    found = collections.defaultdict(lambda: [0, 0.0])
    for row in csv.DictReader(io.StringIO(text[start:] if start >= 0 else "")):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        scale = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6}
        kernel = found[row["Kernel Name"].split("(")[0][:120]]
        kernel[0] += 1
        kernel[1] += value * scale.get(row.get("Metric Unit", "nsecond"), 1e-3)
    return found


def profile(part):
    """Kernels of two steps of each case; a profiler that may not count (permissions) is said."""
    session = part.session
    tool = find()
    for case in cases(session):
        for dtype in case.dtypes:
            if part.remaining_s() < 4:
                raise OutOfTime
            bench = [session.binary, "bench", "step", "--dims", ",".join(map(str, case.dims)), "--batch", case.batch, "--steps", 2, "--repeats", 1,
                     "--warmup", 3, "--optim", case.optim, "--dtype", dtype, "--cuda-graph", "on", "--device", "cuda", "--json"]
            # Matmuls were chosen by an earlier part and are on disk, so that few kernels precede the steps.
            words = [tool, "--graph-profiling", "node", "--csv", "--metrics", "gpu__time_duration.sum", "--launch-count", MOST_KERNELS, *bench]
            outcome = part.run(words, 25)
            found = kernels_of(outcome.stdout)
            name = f"{case.name} {dtype}"
            if not found:
                part.results[name] = {"error": outcome.tail(400)}
                if "ERR_NVGPUCTRPERM" in outcome.stdout + outcome.stderr:
                    raise Skipped("permission to count on the GPU (ERR_NVGPUCTRPERM)")
                part.check(f"profile of {name}", session.options.dry_run, outcome.tail(300))
                continue
            by_time = sorted(found.items(), key=lambda item: -item[1][1])
            part.results[name] = [{"kernel": kernel, "launches": n, "us": round(us, 2)} for kernel, (n, us) in by_time[:60]]
            part.check(f"profile of {name}", True, f"{len(found)} kernels, first {by_time[0][0]} {by_time[0][1][1]:.0f} us")
            part.save()


def traces(part):
    """The program's own trace of steps 50 to 60 of each case: parts of a step, and where the update lies."""
    session = part.session
    runs = [("digits", [*DIGITS, "train.steps=70"]),
            ("1024 x 3", [*DIGITS, "model.hidden=[1024,1024]", "train.global_batch_size=1024", "train.precision=bf16", "train.steps=70"])]
    for name, settings in runs[:1] if session.options.dry_run else runs:
        out = pathlib.Path(session.work) / "traces" / name.replace(" ", "")
        sets = [word for setting in {s.split("=", 1)[0]: s for s in settings}.values() for word in ("--set", setting)]
        outcome = part.run([session.binary, "train", *sets, "--out", out, "--device", "cuda", "--trace", "50..60", "--progress", "none", "-v"], 30)
        found = sorted(out.glob("traces/*.json"))
        part.check(f"trace of {name}", outcome.ok and found, outcome.tail(300))
        if found:
            events = json.loads(found[0].read_text())
            events = events.get("traceEvents", events) if isinstance(events, dict) else events
            part.results[name] = [event for event in events if event.get("ph") == "X"][:300]
        part.results[f"{name}: choices"] = [line for line in (outcome.stdout + outcome.stderr).splitlines() if "updated" in line][:3]
