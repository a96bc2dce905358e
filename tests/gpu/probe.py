"""Figures about ideas that are not built, by PyTorch alone: whether they are worth it."""
import json
import os
import sys

from session import ROOT, Skipped


def probe(part):
    """tests/bench/gpu_probe.py, line by line."""
    session = part.session
    if session.options.no_torch or not session.torch.start(min(30, part.remaining_s())):
        raise Skipped(session.torch.why or "PyTorch")
    words = [os.environ.get("TORCH_PYTHON", sys.executable), ROOT / "tests" / "bench" / "gpu_probe.py", *(["--tiny", "--device", "cpu"] if session.options.dry_run else [])]
    outcome = part.run(words, max(10, part.remaining_s() - 3))
    lines = []
    for line in outcome.stdout.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            pass
    part.results["lines"] = lines
    done = [line["done"] for line in lines if "done" in line]
    part.check("the probe has figures", done, f"{', '.join(done)}" if done else outcome.tail(300))
