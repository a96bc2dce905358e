"""tests/gpu.sh, past its first lines: options, the parts in their order, the summary, the exit status."""
import argparse
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import typing
from dataclasses import dataclass

import checks
import collectives
import combined
import machine
import probe
import profile
import quality
import record_cublaslt
import sanitizer
import self_check
import speed
import sustained
from session import ROOT, Session
from torch_side import TorchSide


@dataclass(frozen=True)
class Plan:
    """A part, the seconds that it is expected to take at most on an H100, and what it runs.

    A part is cut at twice its expected seconds, so that none eats the time of those after it.
    """

    name: str
    predicted_s: float
    function: "typing.Callable"

    @property
    def limit_s(self):
        return 2 * self.predicted_s


# The most telling first: a run that is cut leaves the last ones out.
PARTS = [
    Plan("machine", 5, machine.machine),
    Plan("self-check", 10, self_check.self_check),
    Plan("cublaslt record", 12, record_cublaslt.record),
    Plan("tests", 30, checks.test_programs),
    Plan("ranks", 20, checks.several_ranks),
    Plan("training", 10, quality.cpu_and_gpu),
    Plan("exact", 12, quality.graphs_and_repeats),
    Plan("goldens", 12, quality.goldens),
    Plan("precision", 15, quality.precisions),
    # PyTorch compiles within this part: nothing runs beside what is timed.
    Plan("speed step", 130, speed.steps),
    Plan("speed addmm", 15, speed.addmm),
    Plan("speed kernels", 15, speed.kernels),
    Plan("speed copy", 10, speed.copy),
    Plan("speed loader", 10, speed.loader),
    Plan("sanitizer", 50, sanitizer.sanitizer),
]


# What no record has yet, in one call of a quarter of an hour's machine: whether this build agrees with the CPU, then what a user of
# several GPUs would miss most, then where the time is.
QUARTER = [
    Plan("machine", 5, machine.machine),
    Plan("self-check", 10, self_check.self_check),
    Plan("tests", 30, checks.test_programs),
    Plan("exact", 12, quality.graphs_and_repeats),
    Plan("collectives", 85, collectives.collectives),
    Plan("combinations", 35, combined.combinations),
    Plan("own steps", 35, speed.own_steps),
    Plan("profile", 40, profile.profile),
    Plan("candidates", 25, record_cublaslt.candidates),
    Plan("probe", 60, probe.probe),
    Plan("PyTorch compiled", 60, speed.torch_steps),
    Plan("traces", 8, profile.traces),
    Plan("loader matrix", 25, speed.loader_matrix),
    Plan("sustained", 62, sustained.sustained),
    Plan("sanitizer", 28, sanitizer.sanitizer),
]


def options():
    p = argparse.ArgumentParser(prog="tests/gpu.sh", description="Everything that needs a real GPU: tests, training quality, speed beside PyTorch.")
    p.add_argument("--out", metavar="FILE.jsonl", help="the JSON lines to write, one per part [default: none]")
    p.add_argument("--budget", type=float, metavar="S", help="seconds after which no part is started and the running one is cut [default: 460; of a dry run 1800]")
    p.add_argument("--quarter", action="store_true", help="what no record has yet, in one call of 520 s: collectives of ranks that share the GPU, each kernel of a step, "
                   "cuBLASLt's further algorithms, ideas that are not built, PyTorch compiled in all formats, rows from the host, a minute of the large model")
    p.add_argument("--only", action="append", metavar="TEXT", help="only parts whose name holds TEXT; may be repeated")
    p.add_argument("--list", action="store_true", help="name the parts with their expected seconds and stop")
    p.add_argument("--dry-run", action="store_true", help="tiny sizes, to try the script itself; the one way to run on a virtual GPU")
    p.add_argument("--no-torch", action="store_true", help="leave PyTorch's side out")
    p.add_argument("--keep", action="store_true", help="keep the folder of the training runs and say where it is")
    opt = p.parse_args()
    if opt.budget is None:
        opt.budget = 1800 if opt.dry_run else 520 if opt.quarter else 460
    return opt


def gpu_or_stop(opt, session):
    """Finds the GPU; without one, says so and stops."""
    session.devices, why = machine.devices(session.binary)
    gpus = (session.devices or {}).get("gpus", [])
    if session.devices is None:
        sys.exit(f"tests/gpu.sh: `ddp-train devices --json` fails:\n{why}")
    if not gpus:
        missing = session.devices.get("no_gpu") or {}
        print(f"skipped: needs a GPU, found none: {missing.get('reason', '')}")
        sys.exit(1 if os.environ.get("REQUIRE_GPUS", "0") not in ("", "0") else 77)
    session.report["virtual"] = any(gpu.get("virtual") for gpu in gpus)
    if session.report["virtual"] and not opt.dry_run:
        print("tests/gpu.sh: this is a virtual GPU, whose speed means nothing; --dry-run tries the script on it", file=sys.stderr)
        sys.exit(2)
    if session.report["virtual"]:
        os.environ["DDP_TRAIN_BENCH_VIRTUAL"] = "1"
    os.environ["REQUIRE_GPUS"] = "1"


def summary(session):
    """The last lines: what is known now, then the count."""
    passed, failed, other = session.counts()
    print("\n" + "-" * 100)
    if session.report["virtual"]:
        print("DRY RUN ON A VIRTUAL GPU: no figure here is a measurement")
    elif session.options.dry_run:
        print("DRY RUN with tiny sizes: no figure here is a measurement")
    for name, value in session.table:
        print(f"{name:42} {value}")
    print("-" * 100)
    for part in session.report["parts"]:
        if part["status"] != "passed":
            failing = [check["check"] for check in part["checks"] if not check["passed"]]
            print(f"{part['status']}: {part['part']}: {', '.join(failing[:6]) or (part['note'].strip().splitlines() or ['?'])[-1]}")
    print(f"{passed} checks passed, {failed} failed, {other} parts skipped or not reached, {session.report.get('seconds', 0):.0f} s")
    return 1 if failed else 0


def packed_kernels(work, root=ROOT):
    """Unpacks the kernels that launch/pack compiled, if there are any, to where the run keeps its own. Returns their number."""
    packed = os.path.join(root, "kernel-cache.tar.xz")
    if not os.path.exists(packed):
        return 0
    cache = os.path.join(work, "cache", "kernels")
    os.makedirs(os.path.dirname(cache), mode=0o700)
    os.mkdir(cache, mode=0o700)
    n = 0
    try:
        with tarfile.open(packed) as archive:
            for entry in archive:
                if entry.isfile():
                    with open(os.path.join(cache, os.path.basename(entry.name)), "wb") as file:
                        shutil.copyfileobj(archive.extractfile(entry), file)
                    n += 1
    except (tarfile.TarError, OSError, EOFError) as error:
        # Kernels are compiled instead.
        print(f"{packed}: {error}", file=sys.stderr)
    return n


def main():
    opt = options()
    parts = QUARTER if opt.quarter else PARTS
    if opt.list:
        for plan in parts:
            print(f"{plan.name:16} {plan.predicted_s:3g} s expected, {plan.limit_s:3g} s at most")
        print(f"{'all':16} {sum(plan.predicted_s for plan in parts):3g} s expected")
        return 0
    work = tempfile.mkdtemp(prefix="ddp-gpu-")
    # Tests read their data relative to the root.
    out = os.path.abspath(opt.out) if opt.out else None
    opt.out = out
    if out:
        os.makedirs(os.path.dirname(out), exist_ok=True)
    os.chdir(ROOT)
    # Kernels are compiled once per run, and where that goes is known to be private.
    packed_kernels(work)
    os.environ.setdefault("DDP_TRAIN_CACHE", os.path.join(work, "cache"))
    session = None
    # Stopped from outside, it still ends what it started and clears up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        session = Session(opt, work)
        gpu_or_stop(opt, session)
        # An older report must not be taken for this run's.
        session.write()
        session.torch = TorchSide(session)
        for plan in parts:
            session.part(plan)
        session.report["ended"] = True
        session.report["table"] = [list(row) for row in session.table]
        session.write()
        return summary(session)
    finally:
        if session and session.torch:
            session.torch.close()
        if opt.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
