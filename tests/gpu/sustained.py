"""A minute of the large model: the card's clocks, power and memory beside the times of steps."""
import subprocess
import threading
import time

from machine import smi_numbers
from speed import cases


def sustained(part):
    """Steps of the large case for a minute, in stretches of some seconds, and what nvidia-smi says each second."""
    session = part.session
    case = cases(session)[0]
    seconds = 2 if session.options.dry_run else 60
    samples, end = [], threading.Event()

    def watch():
        while not end.wait(1.0):
            try:
                samples.append({"s": round(time.monotonic() - started, 1), **smi_numbers()})
            except (OSError, subprocess.SubprocessError):
                return

    started = time.monotonic()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    stretches = []
    try:
        while time.monotonic() - started < seconds and part.remaining_s() > 12:
            words = [session.binary, "bench", "step", "--dims", ",".join(map(str, case.dims)), "--batch", case.batch, "--steps", case.steps, "--repeats",
                     1 if session.options.dry_run else 15, "--warmup", 5, "--optim", case.optim, "--dtype", case.dtypes[0], "--device", "cuda", "--json"]
            lines = part.json_lines("bench step", words, 30)
            if not lines:
                break
            stretches.append({"s": round(time.monotonic() - started, 1), "step_ms": lines[-1]["repeat_step_ms"]})
    finally:
        end.set()
        watcher.join(timeout=5)
        part.results.update({"case": case.name, "dtype": case.dtypes[0], "stretches": stretches, "nvidia_smi": samples})
    if len(stretches) > 1:
        first, last = (min(stretch["step_ms"]) for stretch in (stretches[0], stretches[-1]))
        part.check("steps are as fast after a minute", last <= 1.1 * first or session.options.dry_run, f"{first:.3f} ms, then {last:.3f} ms")
        session.row("a minute of the large case", f"{first:.3f} ms a step, at the end {last:.3f} ms")
