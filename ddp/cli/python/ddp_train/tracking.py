"""Shows a run in an experiment tracker: MLflow, Weights & Biases or Trackio. docs/tracking.md lists the names of the metrics.

    ddp_train.track("runs/first", "mlflow://127.0.0.1:5000/digits")    # python -m ddp_train.tracking runs/first mlflow://...

Only reads the files of the run: training neither waits for a tracker nor fails with it. Each number of a step is delivered once; a call
continues where an earlier one ended, by what the tracker says that it has and by a note in `tracking/` of the run's folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import pathlib
import re
import sys
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import Path, Run, TrainError, _output
from .trackers import Away, Client, MLflow, Row, Trackio, TrackingError, WandB

__all__ = ["Tracking", "TrackingError", "track"]

_log = logging.getLogger("ddp_train.tracking")
_POLL_S, _MAX_ROWS, _PIECE_BYTES = 1.0, 20_000, 1 << 22
#: Time without a renewal of the lease in `.lock` after which the process of the run is gone.
_STALE_S = 6.0


def track(
    run: Union[Run, Path],
    tracker: str,
    *,
    project: Optional[str] = None,
    name: Optional[str] = None,
    follow: bool = True,
    background: bool = False,
    artifacts: bool = True,
    wait_s: float = 60.0,
    give_up_s: float = 60.0,
    **options: Any,
) -> Tracking:
    """Delivers the metrics of a run to a tracker until the run ends, then its files. `address` of the result is where they are.

    tracker: "mlflow" (at MLFLOW_TRACKING_URI), "mlflow://HOST:PORT/EXPERIMENT", "http(s)://..." of an MLflow server, "wandb" or "trackio".
    project: the project or experiment [default: the tracker's environment variable, else ddp-train].
    follow: waits for more while the run trains; otherwise delivers what is there. In the background a thread does, whose `join()`
        raises what went wrong.
    artifacts: also delivers config.toml, report.html and model.safetensors at the end.
    wait_s: time to wait for a run to begin, or to start again after a rank or its process was lost.
    give_up_s: time that the tracker may be away once the run has ended.
    options: arguments of wandb.init or trackio.init; tags={...} for MLflow.

    Raises TrackingError if the tracker refuses, or is away for too long.
    """
    folder = run.folder if isinstance(run, Run) else pathlib.Path(run)
    if not follow or folder.is_file():
        Run(folder)
    if tracker not in ("wandb", "trackio", "mlflow") and not tracker.startswith(("mlflow://", "http://", "https://")):
        raise ValueError(f"tracker: expected wandb, trackio, mlflow or mlflow://HOST:PORT/EXPERIMENT, got {tracker!r}")
    client = {"wandb": WandB, "trackio": Trackio}.get(tracker, MLflow)(tracker, project, options)
    tracking = Tracking(folder, client, name or folder.resolve().name, follow, artifacts, wait_s, give_up_s)
    if background:
        tracking.start()
    else:
        tracking.follow_all()
    return tracking


class Tracking(threading.Thread):
    """The delivery of a run."""

    def __init__(self, folder: pathlib.Path, client: Client, name: str, follow: bool, artifacts: bool, wait_s: float, give_up_s: float):
        super().__init__(name="ddp_train.track", daemon=True)
        self.folder, self._client, self._run_name, self._follow, self._artifacts = folder, client, name, follow, artifacts
        self._wait_s, self._give_up_s = wait_s, give_up_s
        #: Address of the run in the tracker, once it is known.
        self.address = ""
        self._error: Optional[BaseException] = None

    def run(self) -> None:
        try:
            self.follow_all()
        except BaseException as error:
            self._error = error

    def join(self, timeout: Optional[float] = None) -> None:
        """Waits until the run has ended and is delivered. Raises TrackingError as `track` does."""
        if self.ident is not None:
            super().join(timeout)
        if self._error is not None:
            raise self._error

    def follow_all(self) -> None:
        """Delivers the run in the folder, and one that replaces it."""
        is_replaced = True
        while is_replaced:
            self._wait_for_run()
            with _Note(self.folder, self._client) as note, _Events(self.folder, note.run_id) as events:
                is_replaced = self._deliver(note, events)

    def _wait_for_run(self) -> None:
        """Waits for a run; in the background, where it starts later, for one that trains or is new."""
        events, lock, began = self.folder / "metrics.jsonl", self.folder / ".lock", time.monotonic()

        def state(path: pathlib.Path) -> Optional[Tuple[int, int]]:
            return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None

        before = state(events) if self._follow and threading.current_thread() is self else None
        is_told = False
        while state(events) == before and not (before and (state(lock) or (0, 0))[0]) and time.monotonic() - began < self._wait_s:
            if not is_told:
                _log.warning("waiting up to %g s for a run in %s", self._wait_s, self.folder)
            is_told = True
            time.sleep(_POLL_S)
        Run(self.folder)

    def _deliver(self, note: _Note, events: _Events) -> bool:
        """Delivers one run; True if another one replaces it."""
        client: Any = self._client
        is_open, is_away, delay_s, present = False, False, _POLL_S, time.monotonic()
        while True:
            try:
                is_alive = events.is_alive()  # Before the events, so that the last one of a process that has ended is read.
                is_at_end = events.read()
                if not is_away or (is_alive and self._follow):
                    present = time.monotonic()
                status = self._status(events, is_alive) if is_at_end else "RUNNING"
                is_last = status != "RUNNING" or (is_at_end and not self._follow)
                if is_last and not is_open and note.kept.get("delivered") == [status, *events.stamp()]:
                    self.address = note.kept["address"]
                    _log.info("%s: %s has all of it already", self.folder, client.title)
                    return False
                if events.is_replaced and not is_open:
                    return True
                if not is_open:
                    self.address = client.open(note, events, self._run_name, is_alive)
                    _log.log(logging.WARNING if is_away else logging.INFO, "%s: goes to %s", self.folder, self.address)
                    is_open, is_away, delay_s = True, False, _POLL_S
                client.send(events.lacking(client, is_last))
                events.forget()
                if is_last:
                    names = ("config.toml", "report.html", "model.safetensors") if self._artifacts and status != "RUNNING" else ()
                    files = [events.folder / name for name in names if not events.is_replaced and (events.folder / name).is_file()]
                    client.close(status, events, files)
                    note.save(address=self.address, delivered=[status, *events.stamp()])
                    state = {"FINISHED": "complete", "FAILED": "failed", "KILLED": "stopped"}.get(status, "still training")
                    _log.info("%s: %s at step %d; %s has all of it", self.folder, state, events.step, client.title)
                    return events.is_replaced
                if is_at_end:
                    time.sleep(_POLL_S)
            except Away as error:
                if not is_away:
                    _log.warning("%s; trying again, the points wait in %s", error, events.path)
                is_open, is_away = False, True
                if time.monotonic() - present >= self._give_up_s:
                    hint = f"the run is over; the same call continues{client.hint}"
                    raise TrackingError(f"{error}; gave up after {self._give_up_s:g} s\nhint: {hint}", 75) from None
                time.sleep(delay_s)
                delay_s = min(delay_s * 2, 30.0)

    def _status(self, events: _Events, is_alive: bool) -> str:
        """MLflow's word for how the run has ended, or RUNNING."""
        kind = events.last.get("event")
        if is_alive and not events.is_replaced:
            return "RUNNING"
        if kind in ("end", "stop") or events.is_replaced:
            return "FINISHED" if kind == "end" else "KILLED"
        # A supervisor starts a run again that has lost a rank, or was killed.
        if kind == "failed" and events.last["exit_code"] != 75 or not self._follow or events.gone_s() >= self._wait_s:
            return "FAILED" if kind == "failed" else "KILLED"
        return "RUNNING"


class _Note:
    """What is known of a run in a tracker, in a file that one process at a time owns."""

    def __init__(self, folder: pathlib.Path, client: Client):
        digest = hashlib.sha256(client.where.encode()).hexdigest()[:8]
        self.path, self.run_id = folder / "tracking" / f"{client.kind}-{digest}.json", _run_id(folder)
        try:
            self.path.parent.mkdir(exist_ok=True)
            self.lock = open(self.path.with_name(f".{self.path.stem}.lock"), "w")
        except OSError as error:
            hint = "track a copy of the folder: config.toml, metrics.jsonl and .run-id suffice"
            raise TrackingError(f"can't keep a note in {self.path.parent}: {error.strerror}\nhint: {hint}") from None
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrackingError(f"another process delivers {folder} to {client.title}\nhint: wait for its end, or end it") from None
        except OSError:
            pass  # A file system without locks.
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        self.kept: Dict[str, Any] = kept if kept.get("run_id") == self.run_id else {"run_id": self.run_id}

    def __enter__(self) -> _Note:
        return self

    def __exit__(self, *_: Any) -> None:
        self.lock.close()

    def save(self, **changes: Any) -> None:
        self.kept.update(changes)
        new = self.path.with_name(f".{self.path.stem}.new")
        new.write_text(json.dumps(self.kept) + "\n", encoding="utf-8")
        os.replace(new, self.path)


def _run_id(folder: pathlib.Path) -> str:
    """The id that a run keeps when it resumes; of a copy without it a digest of the first event."""
    try:
        return (folder / ".run-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        with open(folder / "metrics.jsonl", "rb") as file:
            return hashlib.sha256(file.readline()).hexdigest()[:32]


class _Events:
    """Follows metrics.jsonl, also where a resumed run replaces it by a shorter one, and the lease of the run's process."""

    def __init__(self, folder: pathlib.Path, run_id: str):
        self.folder, self.path, self.run_id, self.is_replaced = folder, folder / "metrics.jsonl", run_id, False
        made = folder / ".run-id"
        self.begin_ms = int((made if made.exists() else self.path).stat().st_mtime * 1000)
        self.lease, self.renewed, self.file = "", 0.0, open(self.path, "rb")
        self._start_over()

    def __enter__(self) -> _Events:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def _start_over(self) -> None:
        self.rest, self.clock_ms, self.step = b"", 0.0, 0
        self.rows: Dict[int, Row] = {}
        self.last: Dict[str, Any] = {}

    def stamp(self) -> Tuple[int, int]:
        stat = os.fstat(self.file.fileno())
        return stat.st_size, stat.st_mtime_ns

    def read(self) -> bool:
        """Reads a piece; True at the end of the file."""
        if len(self.rows) >= _MAX_ROWS:
            return False
        try:
            self.is_replaced = _run_id(self.folder) != self.run_id
            if self.is_replaced:
                return True
            # While it is open, no other file gets its number.
            if not os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno())) or self.stamp()[0] < self.file.tell():
                self.file.close()
                self.file = open(self.path, "rb")
                self._start_over()
            piece = self.file.read(_PIECE_BYTES)
        except OSError:
            return True  # It is being replaced, or its file system is away.
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            try:
                self._add(json.loads(line))
            except (ValueError, TypeError, AttributeError, LookupError):
                _log.warning("%s: left out a damaged line: %r", self.path, line[:60])
        return len(piece) < _PIECE_BYTES

    def _add(self, event: Dict[str, Any]) -> None:
        kind = event["event"]
        if kind != "checkpoint":
            self.last = event
        if kind in ("step", "epoch", "eval", "end"):
            step = int(event["steps"] if kind == "end" else event["step"])
            self.clock_ms += (event.get("time", {}).get("total") or 0.0) * (step - self.step) if kind == "step" else 0.0
            self.step = step
            row = self.rows.setdefault(step, (step, self.begin_ms + int(self.clock_ms), {}))
            row[2].update({key: value for key, value in _numbers(event, kind).items() if key not in row[2]})

    def lacking(self, client: Client, is_last: bool) -> List[Row]:
        """What the tracker lacks; without the newest row, which may get more numbers, unless the tracker takes it in parts."""
        rows = [self.rows[step] for step in sorted(self.rows)]
        rows = rows if is_last or client.takes_parts else rows[:-1]
        lacking = [(step, at, {key: value for key, value in numbers.items() if client.lacks(key, step)}) for step, at, numbers in rows]
        return [row for row in lacking if row[2]]

    def forget(self) -> None:
        self.rows = {step: self.rows[step] for step in sorted(self.rows)[-1:]}

    def is_alive(self) -> bool:
        """Whether a process trains in the folder: it renews the lease each second, and empties it at its end."""
        try:
            path = self.folder / ".lock"
            lease, age_s = path.read_text(encoding="utf-8", errors="replace"), time.time() - path.stat().st_mtime
        except OSError:
            lease, age_s = "", math.inf
        if lease != self.lease or not self.renewed:
            # Clocks of hosts differ: only the first look goes by them.
            self.lease, self.renewed = lease, time.monotonic() - (0.0 if self.renewed else min(max(age_s, 0.0), _STALE_S))
        return bool(lease) and self.gone_s() < _STALE_S

    def gone_s(self) -> float:
        return time.monotonic() - self.renewed

    def config(self) -> Dict[str, Any]:
        """The keys of the config with their values, by the program itself: Python reads TOML only since 3.11."""
        try:
            return dict(json.loads(_output(["runs", "show", str(self.folder), "--json"]).splitlines()[-1])["config"])
        except (OSError, TrainError, ValueError, LookupError) as error:
            _log.warning("%s: its config is not delivered as parameters: %s", self.folder, error)
            return {}


def _numbers(event: Mapping[str, Any], kind: str, head: str = "") -> Dict[str, float]:
    """The numbers of an event by their names in trackers. What is not finite is null in metrics.jsonl."""
    numbers: Dict[str, float] = {}
    for key, value in event.items():
        of, _, rest = key.partition("_")
        if key == "eval_heads":
            for name, fields in value.items():
                numbers.update(_numbers(fields, kind, head=re.sub(r"[^\w -]", "_", name)[:150] + "/"))
        elif key == "time" and kind == "step":
            numbers.update({f"time/{part}_ms": math.nan if ms is None else ms for part, ms in value.items()})
        elif key == "best":
            numbers.update({f"final/best_{part}": math.nan if value[part] is None else value[part] for part in ("value", "step", "epoch")})
        elif key != "step" and (value is None or type(value) in (int, float)):
            group = "final" if kind == "end" else of if of in ("eval", "last", "train") and rest else "train"
            key = "epoch_loss" if key == "train_loss" and kind == "epoch" else rest if of == "eval" or group == of else key
            numbers[f"{group}/{head}{key}"] = math.nan if value is None else value
    return numbers


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line: 0 all is delivered, 1 the tracker refused, 2 bad usage, 75 the tracker was away: the same command continues."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m ddp_train.tracking", description="Delivers the metrics of a run to a tracker.")
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("tracker", help="mlflow://HOST:PORT/EXPERIMENT, mlflow (at MLFLOW_TRACKING_URI), wandb or trackio")
    parser.add_argument("--project", help="project or experiment [default: the tracker's environment variable, else ddp-train]")
    parser.add_argument("--name", help="name of the run in the tracker [default: name of the folder]")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="deliver what is there, and end")
    parser.add_argument("--no-artifacts", dest="artifacts", action="store_false", help="leave config, report and model out")
    parser.add_argument("--wait-s", type=float, default=60.0, help="time to wait for a run to begin or to start again, in s [60]")
    parser.add_argument("--give-up-s", type=float, default=60.0, help="time that the tracker may be away after the end, in s [60]")
    logging.basicConfig(format="%(message)s")
    _log.setLevel(logging.INFO)
    try:
        track(**vars(parser.parse_args(arguments)))
        return 0
    except KeyboardInterrupt:
        text, status = "interrupted\nhint: the same command continues", 130
    except TrackingError as error:
        text, status = str(error), error.status
    except (OSError, ValueError, ImportError) as error:
        text, status = str(error), 2
    print(f"error: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
