"""compute-sanitizer on the kernels' tests and on a few training steps."""
import glob
import re
import shutil

from session import ROOT, OutOfTime, Skipped
import checks


def find():
    """The tool, where a CUDA toolkit or the profiler's package put it."""
    places = ["/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
              "/opt/nvidia/*/compute-sanitizer", "/opt/nvidia/*/*/compute-sanitizer"]
    found = shutil.which("compute-sanitizer") or next((path for place in places for path in sorted(glob.glob(place))), None)
    if not found:
        raise Skipped("compute-sanitizer of the CUDA toolkit")
    return found


def sanitizer(part):
    """Each tool by itself; one that finds no end in its time has not failed, but what it reported until then counts."""
    session = part.session
    tool = find()
    kernels = next((path for path in checks.programs(session) if path.name == "ddp-kernels.lib"), None)
    steps = [session.binary, "train", "--set", "train.steps=4", "--set", "train.precision=bf16", "--device", "cuda", "--progress", "none"]
    # Tests of operations alone: those of the CPU's own parts start nothing on the device.
    runs = [("memcheck", "training", [*steps, "--cuda-graph", "off", "--out", f"{session.work}/sanitizer-eager"], 40),
            ("memcheck", "training as a graph", [*steps, "--cuda-graph", "on", "--out", f"{session.work}/sanitizer-graph"], 40)]
    if kernels:
        tests = [kernels, "ops::", "--test-threads=1"]
        runs += [("memcheck", "kernels", tests, 70), ("racecheck", "kernels", tests, 70), ("initcheck", "kernels", tests, 50)]
    n_clean = 0
    for name, what, command, limit_s in runs:
        words = [tool, "--tool", name, "--error-exitcode", "99", "--print-limit", "20"]
        if name == "memcheck":
            # A library asks for what a device may not have, and takes the answer; that is no fault.
            words += ["--report-api-errors", "no"]
        if part.remaining_s() < 5:
            raise OutOfTime
        outcome = part.run([*words, *command], min(limit_s, part.remaining_s() - 3), {"REQUIRE_GPUS": "1"}, ROOT)
        text = outcome.stdout + outcome.stderr
        if "Device not supported" in text or "not supported on this" in text:
            raise Skipped(f"a device that compute-sanitizer supports: {text.strip()[-200:]}")
        findings = [line for line in text.splitlines() if re.match(r"========= (Invalid|Out|Misaligned|Error: Race|Error: Potential|Uninitialized|Warning: Race)", line)]
        summary = re.findall(r"========= (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
        part.results[f"{name}, {what}"] = {"status": outcome.status, "seconds": round(outcome.seconds, 1), "summary": summary,
                                           "findings": findings[:20], "finished": outcome.status is not None}
        if name == "initcheck":
            # It also reports what cuBLASLt and padded copies read and never use, so it is for reading.
            continue
        hazards = any(not line.startswith("0 ") for line in summary)
        finished = "" if outcome.status is not None else ", not finished"
        ok = not findings and not hazards and outcome.status in (0, None)
        n_clean += ok
        part.check(f"{name}, {what}", ok, f"{'; '.join(summary) or 'no summary'}{finished} {findings[:2] or ''}")
    session.row("compute-sanitizer", f"{n_clean} of {len(part.checks)} clean")
