"""The trackers of `track`: what each of them is asked for and given. MLflow by its REST API, the others by their packages."""

from __future__ import annotations

import base64
import contextlib
import http.client
import importlib
import json
import logging
import os
import pathlib
import shutil
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple
from urllib.parse import quote, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    from .tracking import _Events, _Note

_log = logging.getLogger("ddp_train.tracking")
#: A step, the time of its first event in ms, and its numbers.
Row = Tuple[int, int, Dict[str, float]]


class TrackingError(RuntimeError):
    """The tracker refused, or was away for too long (status 75). The same call continues after what was delivered."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status


class Away(Exception):
    """The tracker does not answer now."""


class Client:
    """A tracker: `open` creates or continues the run there and returns its address, then come `send` and `close`."""

    kind, title, hint, takes_parts = "", "", "", False
    #: Where runs go, which names the note about a run.
    where = ""
    #: The last step that the tracker has.
    last = -1

    def lacks(self, key: str, step: int) -> bool:
        return step > self.last


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Credentials go to no other host than the one that the user named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class MLflow(Client):
    """The REST API of MLflow, which keeps one of equal points, and knows the last step of each metric."""

    kind, title, takes_parts = "mlflow", "MLflow", True

    def __init__(self, tracker: str, project: Optional[str], options: Dict[str, Any]):
        self.tags = dict(options.pop("tags", {}))
        if options:
            raise TypeError(f"options for MLflow: expected tags, got {', '.join(options)}")
        uri = urlsplit(os.environ.get("MLFLOW_TRACKING_URI", "") if tracker == "mlflow" else tracker)
        try:
            self.host, port = uri.hostname or "", uri.port
        except ValueError:
            self.host, port = "", None
        if not self.host or uri.scheme not in ("http", "https", "mlflow"):
            what = "MLFLOW_TRACKING_URI" if tracker == "mlflow" else "tracker"
            raise ValueError(f"{what}: expected the address of an MLflow server: http://HOST:PORT, or mlflow://HOST:PORT/EXPERIMENT")
        scheme, path = ("http", "") if uri.scheme == "mlflow" else (uri.scheme, uri.path.rstrip("/"))
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.base = f"{scheme}://{host}{f':{port}' if port else ''}{path}"
        named = unquote(uri.path.strip("/")) if uri.scheme == "mlflow" else ""
        self.experiment = project or named or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "ddp-train"
        self.where = f"{self.base} {self.experiment}"
        user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{name}", "").strip() for name in ("USERNAME", "PASSWORD", "TOKEN"))
        if uri.username:
            user, password = unquote(uri.username), unquote(uri.password or "")
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.auth = {"Authorization": f"Basic {basic}" if user else f"Bearer {token}"} if user or token else {}
        self.opener = urllib.request.build_opener(_NoRedirect)

    def call(self, path: str, body: Any = None, method: str = "POST") -> Dict[str, Any]:
        """One request; a file as `body` is uploaded. Messages hold no credentials."""
        is_file = hasattr(body, "read")
        headers = {**self.auth, "Content-Type": "application/octet-stream" if is_file else "application/json"}
        if is_file:
            headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        data = body if is_file or body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.base}/api/2.0/{path}", data, headers, method=method)
            with self.opener.open(request, timeout=600 if is_file else 30) as answer:
                return dict(json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            try:
                answered = json.loads(error.read())
                code, text = answered["error_code"], answered["message"]
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
                code, text = "", error.reason
            if code == "RESOURCE_DOES_NOT_EXIST":
                raise LookupError(text) from None
            if code == "RESOURCE_ALREADY_EXISTS":
                raise FileExistsError(text) from None
            if error.code in (408, 429) or error.code >= 500:
                raise Away(f"MLflow at {self.base} answers with status {error.code}: {text}") from None
            message = f"MLflow at {self.base} refused {path.split('?')[0]} with status {error.code}: {text}"
            if error.code < 400:
                message += f"\nhint: give the address that it leads to: {error.headers.get('Location')}"
            if error.code == 401:
                message += "\nhint: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            raise TrackingError(message) from None
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"MLflow at {self.base} does not answer: {getattr(error, 'reason', None) or error}") from None
        except ValueError:
            raise TrackingError(f"{self.base} does not answer as MLflow does, or the credentials are no plain text") from None

    def open(self, note: _Note, events: _Events, name: str, is_live: bool) -> str:
        query = f"mlflow/experiments/get-by-name?{urlencode({'experiment_name': self.experiment})}"
        try:
            experiment = self.call(query, method="GET")["experiment"]["experiment_id"]
        except LookupError:
            try:
                experiment = self.call("mlflow/experiments/create", {"name": self.experiment})["experiment_id"]
            except FileExistsError:
                # Another run has just made it.
                experiment = self.call(query, method="GET")["experiment"]["experiment_id"]
        # The tag also finds a run whose creator died at once.
        search = {"experiment_ids": [experiment], "filter": f"tags.`ddp_train.run_id` = '{note.run_id}'", "max_results": 1}
        found = self.call("mlflow/runs/search", search).get("runs")
        if not found:
            tags = {"ddp_train.run_id": note.run_id, "mlflow.source.name": "ddp-train", **self.tags}
            pairs = [{"key": key, "value": str(value)} for key, value in tags.items()]
            new = {"experiment_id": experiment, "run_name": name, "start_time": events.begin_ms, "tags": pairs}
            found = [self.call("mlflow/runs/create", new)["run"]]
        self.info, data = found[0]["info"], found[0].get("data", {})
        self.steps = {metric["key"]: int(metric.get("step", 0)) for metric in data.get("metrics", [])}
        self.update(status="RUNNING")
        # A parameter never changes in MLflow: a run that resumes with another value keeps the first one.
        there = {param["key"] for param in data.get("params", [])}
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in events.config().items()}
        self.log("params", [{"key": key, "value": value[:500]} for key, value in texts.items() if key not in there], 100)
        return f"{self.base}/#/experiments/{experiment}/runs/{self.info['run_id']}"

    def update(self, **changes: Any) -> None:
        self.call("mlflow/runs/update", {"run_id": self.info["run_id"], **changes})

    def log(self, kind: str, items: Sequence[Mapping[str, Any]], limit: int) -> None:
        for i in range(0, len(items), limit):
            self.call("mlflow/runs/log-batch", {"run_id": self.info["run_id"], kind: items[i : i + limit]})

    def lacks(self, key: str, step: int) -> bool:
        return step > self.steps.get(key, -1)

    def send(self, rows: Sequence[Row]) -> None:
        points = [(key, "NaN" if value != value else value, at, step) for step, at, numbers in rows for key, value in numbers.items()]
        self.log("metrics", [dict(zip(("key", "value", "timestamp", "step"), point)) for point in points], 1000)
        self.steps.update({key: step for key, _, _, step in points})

    def close(self, status: str, events: _Events, files: Sequence[pathlib.Path]) -> None:
        uri = urlsplit(self.info["artifact_uri"])
        folder = unquote(uri.path)
        for file in files:
            if uri.scheme == "mlflow-artifacts":
                with open(file, "rb") as content:
                    self.call(f"mlflow-artifacts/artifacts{quote(folder)}/{file.name}", content, "PUT")
            elif uri.scheme in ("", "file") and folder.startswith("/") and self.host in ("localhost", "127.0.0.1", "::1"):
                os.makedirs(folder, exist_ok=True)
                shutil.copyfile(file, os.path.join(folder, file.name))
            else:
                _log.warning("%s is not delivered: the server does not take files for %s", file, uri.geturl())
        why = {key: events.last.get(key) for key in ("error", "hint", "reason")}
        self.log("tags", [{"key": f"ddp_train.{key}", "value": value[:5000]} for key, value in why.items() if value], 100)
        if status != "RUNNING":
            self.update(status=status, end_time=events.stamp()[1] // 1_000_000)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"can't import {name}: {error}\nhint: `pip install {name}`") from None


class WandB(Client):
    """W&B by its package. Steps of the optimizer are W&B's own steps, of which it takes each once."""

    kind, title, hint = "wandb", "W&B", ", or with WANDB_MODE=offline ends without the server"

    def __init__(self, _: str, project: Optional[str], options: Dict[str, Any]):
        self.wandb, self.options = _package("wandb"), options
        self.project = project or os.environ.get("WANDB_PROJECT") or "ddp-train"
        self.is_offline = (options.get("mode") or os.environ.get("WANDB_MODE")) == "offline"
        self.where = f"{self.project} {options.get('entity')} {options.get('id')} {self.is_offline} {os.environ.get('WANDB_BASE_URL')}"

    def open(self, note: _Note, events: _Events, name: str, is_live: bool) -> str:
        # A killed process leaves a torn file, as W&B buffers. All that it holds is written again.
        torn = pathlib.Path(note.kept.get("open", ""))
        if torn.name.startswith("offline-run-") and not list(torn.glob("*.synced")):
            shutil.rmtree(torn, ignore_errors=True)
        settings = self.wandb.Settings(console="off", x_disable_stats=not is_live)
        given = {"project": self.project, "name": name, "id": note.run_id, "resume": "allow", "reinit": "create_new", "settings": settings}
        try:
            self.run = self.wandb.init(**{**given, **self.options})
        except self.wandb.errors.CommError as error:
            raise Away(f"W&B does not answer: {str(error).splitlines()[0]}") from None
        except self.wandb.Error as error:
            raise TrackingError(f"W&B refused the run: {error}\nhint: `wandb login`, or WANDB_MODE=offline") from None
        self.note, self.last = note, note.kept.get("step", -1) if self.is_offline else self.run.step - 1
        self.run.define_metric("*", step_metric="step")
        config: Dict[str, Any] = {}
        for key, value in events.config().items():
            section, _, name = key.rpartition(".")
            (config.setdefault(section, {}) if section else config)[name] = value
        self.run.config.update(config, allow_val_change=True)
        address = str(pathlib.Path(self.run.dir).parent if self.is_offline else self.run.url)
        note.save(open=address)
        return address

    def send(self, rows: Sequence[Row]) -> None:
        for step, _, numbers in rows:
            self.run.log({**numbers, "step": step}, step=step, commit=True)
            self.last = step

    def close(self, status: str, events: _Events, files: Sequence[pathlib.Path]) -> None:
        for file in files:
            if file.suffix == ".safetensors":
                self.run.log_artifact(str(file), name=f"model-{self.run.id}", type="model")
            else:
                # W&B would link to the file, which may be another one when it is uploaded.
                self.run.save(shutil.copy(file, self.run.dir), base_path=self.run.dir, policy="now")
        self.run.summary.update({key: events.last[key] for key in ("error", "hint", "reason") if events.last.get(key)})
        self.run.finish(exit_code=events.last.get("exit_code", 1) if status == "FAILED" else 0)
        self.note.save(open="", step=self.last)


class Trackio(Client):
    """Trackio by its package, whose store knows the last step."""

    kind, title = "trackio", "Trackio"

    def __init__(self, _: str, project: Optional[str], options: Dict[str, Any]):
        self.trackio, self.options = _package("trackio"), options
        self.project = project or "ddp-train"
        stores = [os.environ.get(f"TRACKIO_{name}") for name in ("DIR", "SPACE_ID", "SERVER_URL")]
        self.where = f"{self.project} {options.get('space_id')} {options.get('server_url')} {stores}"
        is_space = options.get("space_id") or stores[1]
        self.server = "" if is_space else options.get("server_url") or stores[2] or ""

    @property
    def storage(self) -> Any:
        return importlib.import_module("trackio.sqlite_storage").SQLiteStorage

    def stored(self) -> int:
        step = self.storage.get_max_step_for_run(self.project, self.run.name, run_id=self.run.id)
        return -1 if step is None else int(step)

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Tells a server or a Space that is away from one that refuses. The errors come from several packages."""
        try:
            yield
        except Exception as error:
            names = {of.__name__ for of in type(error).__mro__}
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if names & {"ConnectionError", "RequestError", "Timeout", "TimeoutError", "URLError"} or status >= 500 or "not ready" in str(error):
                raise Away(f"Trackio's server does not answer: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
            raise

    def ask(self) -> None:
        """Asks the server for its page: Trackio starts without a server that is away, and does not know then what it has."""
        try:
            urllib.request.urlopen(urlsplit(self.server)._replace(query="").geturl(), timeout=30).close()
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise ConnectionError(f"status {error.code}") from None

    def open(self, note: _Note, events: _Events, name: str, is_live: bool) -> str:
        # Trackio finds runs by their names, so each has one of its own.
        given = {"project": self.project, "name": f"{name}-{note.run_id[:6]}", "resume": "allow", "embed": False, "config": events.config()}
        hardware = {} if is_live else {"auto_log_gpu": False, "auto_log_cpu": False}
        with self.reaching():
            if self.server:
                self.ask()
            self.run = self.trackio.init(**{**given, **hardware, **self.options})
        self.is_local = getattr(self.run, "_is_local", True)
        # Trackio keeps what it could not send, and sends it after the next start.
        self.last = self.stored() if self.is_local else max(self.last, getattr(self.run, "_next_step", 0) - 1)
        return f"run {self.run.name} of project {self.project}"

    def send(self, rows: Sequence[Row]) -> None:
        for step, _, numbers in rows:
            self.run.log(dict(numbers), step=step)
            self.last = step
        # A thread of Trackio writes, and only warns if it can't.
        began = time.monotonic()
        while rows and self.is_local and self.stored() < self.last:
            if time.monotonic() - began > 30:
                self.run.finish()
                raise Away("Trackio does not store what it was given")
            time.sleep(0.1)

    def close(self, status: str, events: _Events, files: Sequence[pathlib.Path]) -> None:
        try:
            with self.reaching():
                for file in files:
                    kind = "model" if file.suffix == ".safetensors" else "file"
                    self.run.log_artifact(str(file), name=f"{self.run.name}-{file.name}", type=kind)
        finally:
            self.run.finish()
        if not self.is_local and self.storage.has_pending_data(self.project):
            raise Away(f"Trackio's server does not take all points of project {self.project}")
        self.last = -1
