"""Runs ddp-train from Python: starts the program, reads the files of its runs, and hands rows to trained models.

    import ddp_train

    run = ddp_train.run({"data": {"train": "train.csv", "target": "label"}}, ranks=2)
    run.end["eval_accuracy"], run.metrics, run.predict("new.csv")

Nothing is computed here: each run is a process of its own, with all checks and messages of the program.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Run", "TrainError", "load", "program", "run"]

Path = Union[str, "os.PathLike[str]"]
Config = Union[Path, Mapping[str, Any]]


class TrainError(RuntimeError):
    """The program failed; the message is the end of its stderr."""

    def __init__(self, status: int, stderr: str):
        super().__init__(stderr.strip() or f"ddp-train ended with status {status}")
        #: Exit status: 2 for bad usage, config or data, 85 for a run that was stopped and saved, and so on.
        self.status = status


def program() -> str:
    """The path of the program: next to this Python, else on the PATH."""
    own = pathlib.Path(sysconfig.get_path("scripts"), "ddp-train")
    found = str(own) if own.exists() else shutil.which("ddp-train")
    if found is None:
        raise FileNotFoundError("no program ddp-train next to this Python or on the PATH")
    return found


def run(
    config: Union[Config, Any],
    *,
    ranks: int = 1,
    out: Optional[Path] = None,
    args: Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Trains and returns the complete run.

    config: a file (TOML, or a table to train on), the keys of docs/config.md as nested dicts, or the training rows: a pyarrow table, a data
        frame or an array, which is saved in the run's folder. Needs pyarrow for the first two.
    ranks: processes of this host, which share the rows of each step.
    out: folder of the run [default: a new one in runs].
    args: more arguments of `ddp-train train`, such as ["--set", "train.epochs=3"].
    quiet: shows nothing; otherwise progress appears on stderr.
    settings: flags of `ddp-train train` and keys of the config, such as target="y", epochs=3, seed=1, optimizer={"lr": 0.01}.

    Raises TrainError if the program fails.
    """
    if ranks < 1:
        raise ValueError(f"ranks: expected at least 1, got {ranks}")
    with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
        is_path = isinstance(config, (str, os.PathLike))
        file = pathlib.Path(config if is_path else pathlib.Path(folder, "run.toml" if isinstance(config, Mapping) else "rows"))
        if out is None:
            out = pathlib.Path("runs", f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        if isinstance(config, Mapping):
            file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in config.items()), encoding="utf-8")
        elif not is_path:
            # Next to the run, which reads them again when it is resumed or evaluated.
            rows = _rows(config, folder)
            pathlib.Path(out).mkdir(parents=True, exist_ok=True)
            file = pathlib.Path(shutil.move(rows, os.path.join(out, os.path.basename(rows))))
        start = ["launch", "-n", str(ranks), "--launcher", "env", "--"] if ranks > 1 else []
        line = [*start, "train", str(file), "--out", os.fspath(out), *_flags(settings), *args]
        _output([*line, "--quiet"] if quiet else line, shows_progress=not quiet)
    return Run(out)


class Run:
    """A run in its folder, also one of the command line."""

    def __init__(self, folder: Path):
        self.folder = pathlib.Path(folder)
        if not (self.folder / "metrics.jsonl").is_file():
            raise FileNotFoundError(f"{self.folder} holds no run: there is no metrics.jsonl")

    def __repr__(self) -> str:
        return f"ddp_train.Run({str(self.folder)!r})"

    @property
    def metrics(self) -> List[Dict[str, Any]]:
        """The events of the run in order: its start, steps, epochs, evaluations and end. docs/logs.md lists their keys."""
        with open(self.folder / "metrics.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    @property
    def end(self) -> Dict[str, Any]:
        """The event of the run's end: losses, metrics, times."""
        ends = [event for event in self.metrics if event["event"] == "end"]
        if not ends:
            raise ValueError(f"{self.folder} is not complete: continue it with args=['--resume', 'auto']")
        return ends[-1]

    def evaluate(self, data: Optional[Any] = None, *, args: Sequence[str] = ()) -> Dict[str, Any]:
        """Metrics on rows: a path, a pyarrow table, a data frame or an array; by default the evaluation rows of the run."""
        with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
            rows = [] if data is None else ["--data", _rows(data, folder)]
            return json.loads(_output(["eval", "--checkpoint", str(self.folder), *rows, "--json", *args]).splitlines()[-1])

    def predict(self, data: Any, *, proba: bool = False, keep: Sequence[str] = ()) -> pyarrow.Table:
        """Predictions of rows as an Arrow table, in their order; docs/predicting.md lists the columns. Needs pyarrow.

        data: a path, a pyarrow table, a data frame or an array.
        proba: also the probabilities of classes.
        keep: columns of the data to pass through.
        """
        import pyarrow.parquet

        with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
            out = os.path.join(folder, "predictions.parquet")
            _predict(self.folder, _rows(data, folder), out, proba, ["--keep", ",".join(keep)] if keep else [])
            return pyarrow.parquet.read_table(out, memory_map=False)


def load(run: Union[Run, Path], framework: str = "numpy") -> Callable[[Any], Any]:
    """The model of a run, to be called with rows.

    "numpy": a function of rows (as of `Run.predict`), which returns an array of labels or values, or with proba=True of
    probabilities. Each call starts the program, so give it many rows.
    "torch": a torch.nn.Module in evaluation mode, with the preprocessing inside. Its input are the columns as numbers, made of the
    strings of rows (dicts) by `module.columns.tensor(rows)`; `module.labels` are the labels of its outputs. Needs torch and safetensors.
    """
    folder = run.folder if isinstance(run, Run) else pathlib.Path(run)
    model = folder / "model.safetensors" if folder.is_dir() else folder
    if not model.is_file():
        raise FileNotFoundError(f"{model} does not exist: a complete run has it")
    if framework == "torch":
        module, columns, _, labels = importlib.import_module(".load_in_pytorch", __name__).load(str(model))
        module.columns, module.labels = columns, labels
        return module  # type: ignore[no-any-return]
    if framework != "numpy":
        raise ValueError(f"framework: expected numpy or torch, got {framework!r}")

    def predict(rows: Any, proba: bool = False) -> Any:
        import numpy

        with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
            out = os.path.join(folder, "predictions.npy")
            _predict(model, _rows(rows, folder), out, proba, [])
            values = numpy.load(out)
            if proba or not os.path.exists(f"{out}.labels.json"):
                return values
            with open(f"{out}.labels.json", encoding="utf-8") as file:
                labels = json.load(file)
        return numpy.asarray(labels["labels"] if isinstance(labels, dict) else labels)[values]

    return predict


def _predict(checkpoint: pathlib.Path, data: str, out: str, proba: bool, args: Sequence[str]) -> None:
    line = ["predict", "--checkpoint", str(checkpoint), "--data", data, "--out", out, *args]
    _output(line + ["--proba"] if proba else line)


def _flags(settings: Mapping[str, Any], section: str = "") -> List[str]:
    """Keywords as flags: drop=["a", "b"] is --drop a --drop b, and optimizer={"lr": 0.01} is --optimizer.lr=0.01."""
    flags: List[str] = []
    for name, value in settings.items():
        flag = "--" + section + name.replace("_", "-")
        if isinstance(value, Mapping):
            flags += _flags(value, f"{section}{name}.")
        elif isinstance(value, (list, tuple)) and name in ("target", "drop", "categorical"):
            flags += [word for item in value for word in (flag, str(item))]
        elif isinstance(value, bool) or value is None:
            flags += [] if value is None else [f"{flag}={str(value).lower()}"]
        else:
            flags.append(f"{flag}={value if isinstance(value, (str, os.PathLike)) else _toml(value)}")
    return flags


def _rows(data: Any, folder: str) -> str:
    """The path of rows, which are written into `folder` if they are in memory."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    if hasattr(data, "__array__") and not hasattr(data, "columns"):
        import numpy

        numpy.save(os.path.join(folder, "rows.npy"), numpy.ascontiguousarray(data))
        return os.path.join(folder, "rows.npy")
    if not (hasattr(data, "columns") or hasattr(data, "__arrow_c_stream__") or isinstance(data, Mapping)):
        expected = "a path, an Arrow table, a data frame, a dict of columns or an array"
        raise TypeError(f"rows: expected {expected}, got {type(data).__name__}")
    import pyarrow
    import pyarrow.parquet

    # Data frames of pandas and polars, and whatever else has Arrow's interface.
    table = data if isinstance(data, pyarrow.Table) else pyarrow.table(data)
    pyarrow.parquet.write_table(table, os.path.join(folder, "rows.parquet"))
    return os.path.join(folder, "rows.parquet")


def _output(args: Sequence[str], shows_progress: bool = False) -> str:
    """Stdout of the program. Its stderr is shown line by line if wanted, and raised if it fails."""
    process = subprocess.Popen([program(), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    lines: List[str] = []

    def read() -> None:
        for line in process.stderr:  # type: ignore[union-attr]
            lines.append(line)
            if shows_progress:
                sys.stderr.write(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        stdout = process.stdout.read()  # type: ignore[union-attr]
        status = process.wait()
    except BaseException:
        # An interrupt reaches the program too, which saves a checkpoint and ends.
        process.wait()
        raise
    reader.join()
    if status != 0:
        begin = next((i for i, line in enumerate(lines) if line.lstrip().startswith("error")), max(len(lines) - 20, 0))
        raise TrainError(status, "".join(lines[begin:]))
    return stdout


def _toml(value: Any) -> str:
    """A value of a config as TOML, in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    # JSON strings, numbers and booleans are valid TOML.
    if isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"a config holds no {type(value).__name__}, got {value!r}")
