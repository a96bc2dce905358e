"""Runs ddp-train from Python: starts the program, reads the files of its runs, and hands rows to trained models.

    import ddp_train

    run = ddp_train.run({"data": {"train": "train.csv", "target": "label"}}, ranks=2)
    run.end["eval_accuracy"], run.metrics, run.predict("new.csv")

Nothing is computed here: each run is a process of its own, with all checks and messages of the program.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import hashlib
import importlib
import itertools
import json
import math
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

if TYPE_CHECKING:
    import pyarrow

    from .tracking import track

__all__ = ["InputError", "Run", "Stopped", "TrainError", "load", "program", "run", "track"]

Path = Union[str, "os.PathLike[str]"]
Config = Union[Path, Mapping[str, Any]]
#: Tells runs of one process apart that begin in the same second.
_counter = itertools.count(1)


def __getattr__(name: str) -> Any:
    # Imported on first use: few programs need it.
    if name == "track":
        return importlib.import_module(".tracking", __name__).track
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TrainError(RuntimeError):
    """The program failed; the message is the end of its stderr."""

    def __init__(self, status: int, stderr: str):
        super().__init__(stderr.strip() or f"ddp-train ended with status {status}")
        #: Exit status: 2 for bad usage, config or data, 85 for a run that was stopped and saved, and so on.
        self.status = status

    def __reduce__(self) -> Any:
        # Workers of joblib and multiprocessing send errors to their parent.
        return type(self), (self.status, str(self))


class InputError(TrainError, ValueError):
    """The program refused its arguments, its config or the rows: status 2."""


class Stopped(KeyboardInterrupt):
    """An interrupt, after which the program has saved a checkpoint and ended; before its first step there is nothing to save."""


def program() -> str:
    """The path of the program: next to this Python, else on the PATH."""
    # `pip install --user` has a folder of its own.
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    own = [path for path in (os.path.join(folder, "ddp-train") for folder in folders) if os.path.exists(path)]
    found = own[0] if own else shutil.which("ddp-train")
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

    Raises TrainError if the program fails, and Stopped if an interrupt stopped it after it had saved a checkpoint. A second interrupt
    kills the program.
    """
    if ranks < 1:
        raise ValueError(f"ranks: expected at least 1, got {ranks}")
    args = _words(args)
    is_path, is_config = isinstance(config, (str, os.PathLike)), isinstance(config, Mapping)
    with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
        # An address stays as it is, and a pattern or a query is no name of a folder.
        file = os.fspath(config) if is_path else os.path.join(folder, "run.toml" if is_config else "rows")
        if out is None:
            stem = re.sub(r"[^\w.:-]", "_", pathlib.PurePath(file).stem)
            out = pathlib.Path("runs", f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_counter)}")
        out = _local(out, "out")
        if is_config:
            pathlib.Path(file).write_text("".join(f"{key} = {_toml(value, key)}\n" for key, value in _plain(config).items()), encoding="utf-8")
        start = ["launch", "-n", str(ranks), "--launcher", "env", "--"] if ranks > 1 else []
        end = ["--out", str(out), *_flags(settings), *args]
        # On a terminal and in a notebook, a bar.
        if not quiet and (sys.stderr.isatty() or "ipykernel" in sys.modules) and not any(arg.startswith("--progress") for arg in end):
            end += ["--progress", "bar"]
        with contextlib.nullcontext(file) if is_path or is_config else _kept_rows(_rows(config, folder), out) as file:
            _output([*start, "train", file, *end, *(["--quiet"] if quiet else [])], shows_progress=not quiet)
    return Run(out)


class Run:
    """A run in its folder, also one of the command line."""

    def __init__(self, folder: Path):
        self.folder = _local(folder, "folder")
        self._server = _Server()
        if not (self.folder / "metrics.jsonl").is_file():
            raise FileNotFoundError(f"{self.folder} holds no run: there is no metrics.jsonl")

    def __repr__(self) -> str:
        return f"ddp_train.Run({str(self.folder)!r})"

    @property
    def metrics(self) -> List[Dict[str, Any]]:
        """The events of the run in order: its start, steps, epochs, evaluations and end. docs/logs.md lists their keys.

        A last line that is not complete is left out: it is being written, or was when the run was killed. Other damage gives a warning.
        """
        path, events = self.folder / "metrics.jsonl", []
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
                event["event"]
                events.append(event)
            except (ValueError, LookupError, TypeError):
                if number < len(lines):
                    warnings.warn(f"{path}, line {number}: left out a damaged line: {line[:60]!r}", RuntimeWarning, stacklevel=2)
        return events

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
            line = ["eval", "--checkpoint", str(self.folder), *rows, "--json", *_words(args)]
            return json.loads(_output(line).splitlines()[-1])

    def predict(self, data: Any, *, proba: bool = False, keep: Sequence[str] = (), device: str = "auto") -> pyarrow.Table:
        """Predictions of rows as an Arrow table, in their order; docs/predicting.md lists the columns. Needs pyarrow.

        data: a path, a pyarrow table, a data frame or an array.
        proba: also the probabilities of classes.
        keep: columns of the data to pass through; a text is one name.
        device: auto, cpu, cuda or cuda:N.
        """
        import pyarrow.parquet

        keep = [keep] if isinstance(keep, str) else keep
        files = [self.folder / "model.safetensors", self.folder / "checkpoints" / "latest"]
        version = [file.stat().st_mtime_ns for file in files if file.exists()]

        def use(folder: str, path: str) -> Any:
            out = os.path.join(folder, "predictions.parquet")
            self._server.predict(lambda: str(self.folder), path, out, proba, keep, version, ["--device", device])
            return pyarrow.parquet.read_table(out, memory_map=False)

        return _with_rows(data, use)


def load(run: Union[Run, Path], framework: str = "numpy", device: str = "auto") -> Callable[[Any], Any]:
    """The model of a run, to be called with rows.

    "numpy": a function of rows (as of `Run.predict`), which returns an array of labels or values, or with proba=True of
    probabilities. The first call starts a process that keeps the model on `device` (auto, cpu, cuda or cuda:N) until the function is gone.
    "torch": a torch.nn.Module in evaluation mode, with the preprocessing inside. Its input are the columns as numbers, made of the
    strings of rows (dicts) by `module.columns.tensor(rows)`; `module.labels` are the labels of its outputs. Needs torch and safetensors.
    """
    folder = run.folder if isinstance(run, Run) else _local(run, "run")
    model = folder / "model.safetensors" if folder.is_dir() else folder
    if not model.is_file():
        raise FileNotFoundError(f"{model} does not exist: a complete run has it")
    if framework == "torch":
        module, columns, _, labels = importlib.import_module(".load_in_pytorch", __name__).load(str(model))
        module.columns, module.labels = columns, labels
        return module  # type: ignore[no-any-return]
    if framework != "numpy":
        raise ValueError(f"framework: expected numpy or torch, got {framework!r}")

    server = _Server()

    def predict(rows: Any, proba: bool = False) -> Any:
        import numpy

        def use(folder: str, path: str) -> Any:
            out = os.path.join(folder, "predictions.npy")
            n_without = server.predict(lambda: str(model), path, out, proba, args=["--device", device])
            labels = pathlib.Path(f"{out}.labels.json")
            return numpy.load(out), n_without, None if proba or not labels.exists() else json.loads(labels.read_text(encoding="utf-8"))

        values, n_without, labels = _with_rows(rows, use)
        values = _present(values, n_without, stacklevel=2)
        return values if labels is None else numpy.asarray(labels["labels"] if isinstance(labels, dict) else labels)[values]

    return predict


#: Status of the program where a disk is full.
_DISK_FULL = 74
#: Most processes that wait for requests; beyond them, that of the longest wait ends.
_MOST_SERVERS = 8
_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


class _Server:
    """A process of the program that keeps a model, from the first request on until this object is gone or others need its place."""

    def __init__(self) -> None:
        self._lock, self._process, self._last_use = threading.Lock(), None, 0.0
        self._start_of: Any = None
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=100)
        _servers.add(self)

    def __reduce__(self) -> Any:
        # A copy starts a process of its own.
        return type(self), ()

    def predict(
        self, model: Callable[[], str], data: str, out: str, proba: bool, keep: Sequence[str] = (), version: Any = None, args: Sequence[str] = ()
    ) -> int:  # fmt: skip
        """Writes predictions of `data` to `out`; returns how many rows have none. Another `version` of the model, and other arguments of
        `ddp-train predict`, start the process anew."""
        data = data if "://" in data or data.startswith("builtin:") else os.path.abspath(data)
        request = json.dumps({"data": data, "out": out, "proba": proba, "keep": list(keep)}) + "\n"
        with self._lock:
            self._last_use = time.monotonic()
            if self._process is None or self._start_of != (version, args):
                self._start(model(), args)
                self._start_of = version, args
            process: Any = self._process
            try:
                process.stdin.write(request.encode())
                process.stdin.flush()
                # Not in one system call, which an interrupt does not end where a module such as polars handles signals too.
                answers = select.poll()
                answers.register(process.stdout, select.POLLIN)
                while not answers.poll(100):
                    pass
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            except BaseException:
                # Its answer would be taken for that of the next request.
                self._stop()
                raise
            if not answer:
                status = process.wait()
                self._reader.join(1)
                self._stop()
                error = InputError if status == 2 else TrainError
                raise error(status, _error_of(b"".join(self._stderr).decode("utf-8", "replace").splitlines(keepends=True)))
        answer = json.loads(answer)
        if "error" in answer:
            text = f"error: {answer['error']}\nhint: {answer.get('hint')}"
            raise TrainError(_DISK_FULL, text) if "No space left on device" in text else InputError(2, text)
        return int(answer.get("without_prediction", 0))

    def _start(self, model: str, args: Sequence[str]) -> None:
        self._stop()
        running = sorted((other for other in list(_servers) if other._process is not None), key=lambda other: other._last_use)
        for other in running[: max(0, len(running) + 1 - _MOST_SERVERS)]:
            # One that is in use stays.
            if other._lock.acquire(blocking=False):
                other._stop()
                other._lock.release()
        line = [program(), "predict", "--checkpoint", model, "--serve", *args]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        process: Any = subprocess.Popen(line, start_new_session=True, env=_environment(), **pipes)  # type: ignore[call-overload]
        self._stderr.clear()
        self._reader = threading.Thread(target=_keep, args=(process.stderr, self._stderr), daemon=True)
        self._reader.start()
        self._process, self._close = process, weakref.finalize(self, _end, process, os.getpid())

    def _stop(self) -> None:
        if self._process is not None:
            self._process = None
            self._close()

    def _forget(self) -> None:
        """Leaves process and lock to the parent, of which this is a fork. Another thread may have held the lock, and those of the pipes."""
        process: Any = self._process
        self._lock, self._process = threading.Lock(), None
        if process is not None:
            self._close.detach()
            process.returncode = 0
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (process.stdin, process.stdout, process.stderr):
                # The parent's end alone keeps a pipe open. Closing here could wait for a lock.
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(null, stream.fileno(), inheritable=False)
            os.close(null)


def _forget_servers() -> None:
    for server in list(_servers):
        server._forget()


os.register_at_fork(after_in_child=_forget_servers)


def _present(values: Any, n_without: int, stacklevel: int) -> Any:
    """Predictions of which `n_without` rows have none: an error for labels, which would look like others, and a warning for NaN."""
    if n_without == 0:
        return values
    import numpy

    are_labels = values.dtype.kind == "i"
    lacks = values == numpy.iinfo(numpy.int64).min if are_labels else numpy.isnan(values)
    rows = numpy.flatnonzero(lacks.reshape(len(values), -1).any(axis=1)).tolist()
    some = ", ".join(map(str, rows[:5])) + ", ..." * (len(rows) > 5)
    text = f"no prediction for {n_without} of {len(values)} rows ({some}): the model's outputs are NaN, as for features beyond the range of f32"
    if are_labels:
        raise ValueError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    return values


def _keep(stream: Any, lines: collections.deque[bytes]) -> None:
    with stream:
        lines.extend(stream)


def _end(process: Any, pid: int) -> None:
    if pid == os.getpid():
        # It ends with its requests; a request under way is of no use any more.
        process.kill()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        process.wait()


def _local(path: Path, name: str) -> pathlib.Path:
    """A path of this host, whose files Python reads."""
    if "://" in os.fspath(path):
        command = "`ddp-train train` trains into an address, and `ddp-train predict` reads its model"
        raise ValueError(f"{name}: expected a path of this host, got {os.fspath(path)!r}\nhint: {command}")
    return pathlib.Path(path)


def _environment() -> Dict[str, str]:
    return {**os.environ, "DDP_TRAIN_STOPS_WITH_PARENT": "1"}


#: Most rows and bytes of rows whose predictions go through files in memory.
_FEW_ROWS, _FEW_BYTES = 10_000, 8 << 20


def _memory(rows: Any) -> Optional[str]:
    """A folder in memory for the predictions of few rows, if it has much more room than they take."""
    columns = list(rows.values()) if isinstance(rows, Mapping) else [rows]
    are_in_memory = not isinstance(rows, (str, os.PathLike)) and all(hasattr(column, "__len__") for column in columns)
    try:
        is_few = are_in_memory and max(map(len, columns), default=0) <= _FEW_ROWS and sum(map(_n_bytes, columns)) <= _FEW_BYTES
        has_room = is_few and os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free >= 4 * _FEW_BYTES
    except OSError:
        has_room = False
    return "/dev/shm" if has_room else None


def _n_bytes(values: Any) -> int:
    """Memory of an array, a column or a frame."""
    if hasattr(values, "estimated_size"):
        return int(values.estimated_size())
    if hasattr(values, "memory_usage"):
        usage = values.memory_usage(deep=True)
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    return int(values.nbytes) if hasattr(values, "nbytes") else sum(map(sys.getsizeof, values))


def _in_folder(memory: Optional[str], use: Callable[[Optional[str]], Any]) -> Any:
    """What `use` makes in a folder in memory, or in the temporary folder: without `memory`, or where that becomes full."""
    try:
        return use(memory)
    except (OSError, TrainError) as error:
        # Others may fill it meanwhile, and predictions may be wider than the rows.
        if memory is None or isinstance(error, TrainError) and error.status != _DISK_FULL:
            raise
    return use(None)


def _with_rows(rows: Any, use: Callable[[str, str], Any]) -> Any:
    """What `use` makes of a folder for predictions, and of the path of the rows, which are saved there if they are in memory."""

    def use_folder(place: Optional[str]) -> Any:
        with tempfile.TemporaryDirectory(prefix="ddp-train-", dir=place) as folder:
            return use(folder, _rows(rows, folder))

    return _in_folder(_memory(rows), use_folder)


def _words(args: Sequence[str]) -> Sequence[str]:
    """Arguments of a command line; a text would be taken for its letters."""
    if isinstance(args, (str, bytes)):
        raise TypeError(f"args: expected a list of arguments, such as ['--resume', 'auto'], got the text {args!r}")
    return args


def _flags(settings: Mapping[str, Any]) -> List[str]:
    """Keywords as flags: epochs=3 is --epochs=3, drop=["a", "b"] is --set data.drop=["a", "b"], and optimizer={"lr": 0.01} --set optimizer.lr=0.01."""
    flags: List[str] = []
    for name, value in _plain(settings).items():
        if isinstance(value, list) and name in ("target", "drop", "categorical"):
            # The flags split names at commas.
            name, value = "data", {name: [str(item) for item in value]}
        if isinstance(value, Mapping):
            flags += [part for key, item in value.items() for part in ("--set", f"{name}.{key.replace('-', '_')}={_toml(item, f'{name}.{key}')}")]
        else:
            text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else _toml(value, name)
            flags.append(f"--{name.replace('_', '-')}={text}")
    return flags


def _rows(data: Any, folder: str) -> str:
    """The path of rows, which are written into `folder` if they are in memory."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    if hasattr(data, "__array__") and not hasattr(data, "columns"):
        import numpy

        from .frames import plain

        numpy.save(os.path.join(folder, "rows.npy"), plain(numpy.ascontiguousarray(data)))
        return os.path.join(folder, "rows.npy")
    if not (hasattr(data, "columns") or hasattr(data, "__arrow_c_stream__") or isinstance(data, Mapping)):
        expected = "a path, an Arrow table, a data frame, a dict of columns or an array"
        raise TypeError(f"rows: expected {expected}, got {type(data).__name__}")
    import pyarrow.parquet

    from .frames import arrow_table

    # Data frames of pandas and polars, and whatever else has Arrow's interface.
    pyarrow.parquet.write_table(arrow_table(data), os.path.join(folder, "rows.parquet"))
    return os.path.join(folder, "rows.parquet")


@contextlib.contextmanager
def _kept_rows(rows: str, out: pathlib.Path) -> Iterator[str]:
    """Moves a file of rows next to the run, which reads them again when it is resumed or evaluated; away again if the run does not begin."""
    digest = hashlib.sha256()
    with open(rows, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    # The name tells the rows, so that those of another run are never replaced.
    kept = out / f"rows-{digest.hexdigest()[:16]}{pathlib.Path(rows).suffix}"
    if kept.exists():
        yield str(kept)
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    shutil.move(rows, kept)
    try:
        yield str(kept)
    except BaseException:
        config = out / "config.toml"
        if not (config.is_file() and kept.name in config.read_text(encoding="utf-8")):
            with contextlib.suppress(OSError):
                kept.unlink()
                for folder in made:
                    folder.rmdir()
        raise


def _output(args: Sequence[str], shows_progress: bool = False) -> str:
    """Stdout of the program. Its stderr is shown as it comes if wanted, and raised if it fails."""
    # In a session of its own no Ctrl-C reaches the program but the one that is passed on: a second one would end it without a save.
    process = subprocess.Popen([program(), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=_environment())
    texts: Dict[Any, List[str]] = {process.stdout: [], process.stderr: []}

    def read(stream: Any) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with stream:
            for chunk in iter(lambda: stream.read1(1 << 16), b""):
                texts[stream].append(decoder.decode(chunk))
                if shows_progress and stream is process.stderr:
                    sys.stderr.write(texts[stream][-1])
                    sys.stderr.flush()

    readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in texts]

    def wait() -> int:
        # Not in one system call, which an interrupt does not end where a module such as polars handles signals too.
        for reader in readers:
            while reader.is_alive():
                reader.join(0.1)
        return process.wait()

    try:
        for reader in readers:
            reader.start()
        status = wait()
    except BaseException as interrupt:
        try:
            process.send_signal(signal.SIGINT)
            status = wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if status == 85 and isinstance(interrupt, KeyboardInterrupt):
            raise Stopped from None
        raise
    if status != 0:
        raise (InputError if status == 2 else TrainError)(status, _error_of("".join(texts[process.stderr]).splitlines(keepends=True)))
    return "".join(texts[process.stdout])


def _error_of(lines: List[str]) -> str:
    """The lines of an error at the end of stderr."""
    begin = next((i for i, line in enumerate(lines) if line.lstrip().startswith("error")), max(len(lines) - 20, 0))
    return "".join(lines[begin:])


def _plain(value: Any) -> Any:
    """A value of a config without types of NumPy and pandas, and without keys that are None."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _toml(value: Any, name: str) -> str:
    """A plain value of a config as TOML, in one line. `name` is that of its key."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(item, f'{name}.{key}')}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item, name) for item in value) + "]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    # JSON strings, numbers and booleans are valid TOML, but for those that are not finite.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{name}: a config holds no {type(value).__name__}, got {value!r}")
