"""Training runs of `ddp-train` and what they left: events, weights."""
import array
import json
import math
import pathlib
import struct
import sys
from dataclasses import dataclass

DIGITS = ["data.train=builtin:digits", "model.hidden=[128,64]", "optimizer.kind=adamw", "optimizer.lr=1e-3",
          "train.global_batch_size=32", "train.seed=0"]


@dataclass
class Run:
    folder: pathlib.Path
    events: list
    seconds: float

    def of(self, event, key):
        return [e[key] for e in self.events if e["event"] == event]

    @property
    def losses(self):
        return self.of("step", "loss")

    @property
    def end(self):
        return next(e for e in reversed(self.events) if e["event"] == "end")

    def model_bytes(self):
        return tensors_of(self.folder / "model.safetensors")

    def weights(self):
        return {name: floats(data) for name, (_, _, data) in self.model_bytes().items()}


def train(part, name, settings, *words, config=None, device="cuda", ranks=1, limit_s=60.0, env=None):
    """Trains; the run, or None and a failed check. `settings` are `KEY=VALUE`, the last of a key counts."""
    session = part.session
    out = pathlib.Path(session.work) / "runs" / f"{len(session.report['parts'])}-{name}"
    unique = {setting.split("=", 1)[0]: setting for setting in settings}
    sets = [word for setting in unique.values() for word in ("--set", setting)]
    command = [session.binary, "train", *([config] if config else []), *sets, "--out", out, "--device", device, "--progress", "none",
               *words]
    if ranks > 1:
        command = [*session.mpirun, "-n", ranks, *command, "--share-gpu"]
    outcome = part.run(command, limit_s, env)
    events = []
    try:
        events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        pass
    # mpirun's status is not enough to go by: the run is done when its end event is written.
    if not outcome.ok or not any(e["event"] == "end" for e in events):
        part.check(f"{name} trains", False, outcome.tail(500))
        return None
    run = Run(out, events, outcome.seconds)
    if run.end["world_size"] != ranks:
        part.check(f"{name} has {ranks} ranks", False, f"found {run.end['world_size']}")
        return None
    return run


def tensors_of(path):
    """(dtype, shape, bytes) of each tensor of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[start + t["data_offsets"][0]:start + t["data_offsets"][1]]) for name, t in header.items()}


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def largest_gap(got, want):
    """The largest |difference| of two sets of weights; infinite where their names or lengths differ."""
    if got.keys() != want.keys() or any(len(got[k]) != len(want[k]) for k in want):
        return math.inf
    gaps = [abs(a - b) for k in want for a, b in zip(got[k], want[k])]
    return math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)


def relative_distance(got, want):
    """`‖got − want‖ / ‖want‖` over all weights."""
    if got.keys() != want.keys() or any(len(got[k]) != len(want[k]) for k in want):
        return math.inf
    above = math.fsum((a - b) ** 2 for k in want for a, b in zip(got[k], want[k]))
    below = math.fsum(b * b for k in want for b in want[k])
    distance = math.sqrt(above / below) if below else math.inf
    return math.inf if math.isnan(distance) else distance


def largest_relative(got, want):
    """The largest `|got − want| / |want|`; infinite for a number that is none, or another count."""
    if len(got) != len(want) or not want or any(not isinstance(v, float) or math.isnan(v) for v in [*got, *want]):
        return math.inf
    return max(abs(g - w) / max(abs(w), 1e-30) for g, w in zip(got, want))


def windows(values, n):
    """Means of `n` values each."""
    return [sum(values[i:i + n]) / n for i in range(0, len(values) - n + 1, n)]
