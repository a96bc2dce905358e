#!/usr/bin/env python3
"""Trains runs whose results go to a bucket of this host, and kills them, and holds them to runs in a folder.

  python tests/bucket_runs.py [--binary FILE] [--kills 20] [--seed 1] [--part NAME] [--trial K]

The program is one with the feature `stores`, as in tests/stores.py, whose server this one extends by writing: PUT with If-Match and
If-None-Match, DELETE, DeleteObjects and multipart uploads. Entity tags change with each write. Each "machine" is an empty TMPDIR.

- A run at an address leaves the files of a run there, with the bits of the same run in a folder; it is refused where a run is, replaces it
  with --overwrite, continues on another machine, and keeps as many checkpoints as asked. The commands that read runs read it.
- Only one of two runs at an address trains. One that cannot renew its sign of life completes no large file; an upload that fails leaves no
  parts.
- A damaged checkpoint, in the bucket or at home, gives way to the newest intact one. A checkpoint whose upload has begun gets there, also
  when the run has deleted it meanwhile; commands read a run whose checkpoints come and go.
- A bucket that is absent is refused before training. One that fails later delays no step; the run ends with status 74, and the same command
  with --resume auto brings everything there.
- Keys of the store show nowhere.
- Kills: runs of random settings on 1 or 2 ranks are killed at random moments and resumed here or on another machine while the server makes
  faults. All complete checkpoints in the bucket verify, none is lost, and the final model has the bits of an undisturbed run.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
from xml.sax.saxutils import escape, unescape

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests"))
import release_program  # noqa: E402
import stores  # noqa: E402

SECRET = "a-key-that-must-not-show"
MARK = "DDP_BUCKET_TRIAL"
# Statuses of the program.
USAGE, IO, BUSY, STOPPED = 2, 74, 75, 85
# Longer than anything here takes on a machine that is ten times too busy.
PATIENCE_S = 150
# What a complete run leaves.
LEFT = {"model.safetensors", "config.toml", "metrics.jsonl", "report.html", "done.json", ".run-id"}
MANIFEST = re.compile(r"checkpoints/step-(\d+)/manifest\.json$")
# Kinds of faults of a server, each as likely as another.
KINDS = [500, 503, "reset", "lost", "late", "short"]
# Longer than the time between two signs of life of a run.
BEAT_S = 11


class Written(bytes):
    """An object, with an entity tag of its own."""

    tag = None


class Bucket(stores.Store):
    """A store that takes objects, and makes faults by a rule or at random."""

    def __init__(self, *buckets):
        self.buckets, self.uploads, self.n_written, self.leaks = set(buckets), {}, 0, []
        self.rule, self.draw, self.probability, self.n_faults = None, random.Random(0), 0.0, {}
        super().__init__(Writer)

    def handle_error(self, *_):
        """A client that was killed is no error."""

    def has_bucket(self, name):
        return name in self.buckets

    def put(self, path, data):
        """Called with the lock."""
        self.n_written += 1
        written = Written(data)
        written.tag = f"{self.n_written:032x}"
        self.objects[path] = written
        if SECRET.encode() in data:
            self.leaks.append(path)
        return written.tag

    def fault(self, command, path):
        found = self.rule(command, path) if self.rule else super().fault(command, path)
        if found is None and self.draw.random() < self.probability * len(KINDS):
            found = self.draw.choice(KINDS)
        if found is not None:
            self.n_faults[found] = self.n_faults.get(found, 0) + 1
        return found

    def names(self, folder):
        """Names of the objects below `bucket/folder`."""
        with self.lock:
            return {name.removeprefix(folder + "/") for name in self.objects if name.startswith(folder + "/")}

    def read(self, path):
        with self.lock:
            return bytes(self.objects.get(path, b""))

    def complete(self, folder):
        """Steps of the complete checkpoints of the run."""
        return sorted(int(found[1]) for name in self.names(folder) if (found := MANIFEST.fullmatch(name)))


class Writer(stores.Handler):
    """Reading as in tests/stores.py, and writing."""

    # Headers and body of an answer are two packets.
    disable_nagle_algorithm = True
    last = None

    def do_PUT(self):
        self.write()

    def do_POST(self):
        self.write()

    def do_DELETE(self):
        self.write()

    def do_GET(self):
        self.answer()

    def cut(self):
        """Resets the connection."""
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def said(self, code, name, headers=()):
        body = f"<?xml version=\"1.0\"?><Error><Code>{name}</Code><Message>made by the test</Message></Error>"
        self.reply(code, body.encode(), [("Content-Type", "application/xml"), *headers])

    def reply(self, status, body=b"", headers=(), length=None):
        if self.last == "lost":
            # All was done, and nobody hears of it.
            self.cut()
        else:
            super().reply(status, body, headers, length)

    def answer(self):
        if self.server.has_bucket(urllib.parse.unquote(self.path).split("/")[1].split("?")[0]):
            super().answer()
        else:
            self.said(404, "NoSuchBucket")

    def write(self):
        store, parts = self.server, urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(parts.path).lstrip("/"), urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            # Whoever wrote it was killed.
            self.close_connection = True
            return
        with store.lock:
            store.requests.append((self.command, path, dict(self.headers)))
            now = store.fault(self.command, path)
        self.last = now
        if now == "late" or isinstance(now, float):
            time.sleep(0.3 if now == "late" else now)
        if now == "reset":
            self.cut()
        elif isinstance(now, int):
            wait = [("Retry-After", str(store.n_faults[now] % 2))] if now == 503 else []
            self.said(now, "SlowDown" if now == 503 else "InternalError", wait)
        elif not store.has_bucket(path.split("/")[0]):
            self.said(404, "NoSuchBucket")
        else:
            with store.lock:
                status, answer, headers = self.change(store, path, query, body)
            if status >= 400:
                self.said(status, answer)
            else:
                self.reply(status, answer.encode(), headers)

    def change(self, store, path, query, body):
        """Makes one change, and returns status, body and headers of the answer."""
        is_xml = [("Content-Type", "application/xml")]
        upload = query.get("uploadId", [None])[0]
        if self.command == "POST" and "delete" in query:
            keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for key in keys:
                store.objects.pop(f"{path.split('/')[0]}/{key}", None)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return 200, f"<DeleteResult>{gone}</DeleteResult>", is_xml
        if self.command == "POST" and "uploads" in query:
            store.n_written += 1
            upload = f"upload-{store.n_written}"
            store.uploads[upload] = (path, {})
            return 200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>", is_xml
        if upload is not None and store.uploads.get(upload, (None,))[0] != path:
            return (204, "", []) if self.command == "DELETE" else (404, "NoSuchUpload", [])
        if self.command == "PUT" and upload is not None:
            store.n_written += 1
            written = f"{store.n_written:032x}"
            store.uploads[upload][1][int(query["partNumber"][0])] = (written, body)
            return 200, "", [("ETag", f'"{written}"')]
        if self.command == "POST" and upload is not None:
            named = re.findall(r"<Part>(.*?)</Part>", body.decode(), re.DOTALL)
            named = [(int(re.search(r"<PartNumber>(\d+)<", part)[1]), re.search(r"[0-9a-f]{32}", part)[0]) for part in named]
            parts = store.uploads[upload][1]
            if any(parts.get(number, (None,))[0] != written for number, written in named):
                return 400, "InvalidPart", []
            del store.uploads[upload]
            written = store.put(path, b"".join(parts[number][1] for number, _ in sorted(named)))
            answer = f"<ETag>&quot;{written}&quot;</ETag><Key>{escape(path.split('/', 1)[1])}</Key>"
            return 200, f"<CompleteMultipartUploadResult>{answer}</CompleteMultipartUploadResult>", is_xml
        if self.command == "DELETE":
            if upload is not None:
                del store.uploads[upload]
            else:
                store.objects.pop(path, None)
            return 204, "", []
        if self.command != "PUT":
            return 400, "InvalidRequest", []
        old, wanted = store.objects.get(path), self.headers.get("If-Match")
        if wanted and old is None:
            return 404, "NoSuchKey", []
        if (wanted and wanted.strip('"') != old.tag) or (self.headers.get("If-None-Match") == "*" and old is not None):
            return 412, "PreconditionFailed", []
        return 200, "", [("ETag", f'"{store.put(path, body)}"')]


class Machine:
    """A host: a TMPDIR of its own, and the processes started with it."""

    def __init__(self, of, name, **more):
        self.of, self.tmp, self.mark = of, of.folder / name, f"{of.folder.name}/{name}"
        self.tmp.mkdir()
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")}, MARK: self.mark, "TMPDIR": str(self.tmp),
            "AWS_ENDPOINT_URL": of.store.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "OMPI_MCA_btl_vader_backing_directory": str(self.tmp), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", "RUST_BACKTRACE": "0", **more,
        }

    def start(self, *words, before=(), cwd=None):
        # In files: a pipe would be held open by whoever survives a kill.
        out = open(self.tmp.parent / f"{self.tmp.name}.{time.monotonic_ns()}.out", "w+")
        process = subprocess.Popen(
            [*before, self.of.binary, *map(str, words)], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, cwd=cwd)
        process.out = out
        return process

    def end(self, process, patience_s=PATIENCE_S):
        """Waits for the end of a process; returns its status and what it has printed."""
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            process.wait()
        process.out.seek(0)
        text = process.out.read()
        process.out.close()
        self.of.printed.append(text)
        return process.returncode, text

    def run(self, *words, patience_s=PATIENCE_S, cwd=None):
        return self.end(self.start(*words, cwd=cwd), patience_s)

    def processes(self):
        """Living processes that were started here."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                        if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                            found.append(int(folder.name))
        return found

    def ranks(self):
        """Processes of these that train."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"train"]:
                    found.append(pid)
        return found

    def kill(self):
        deadline = time.monotonic() + 30
        while (found := self.processes()) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


class Checks:
    """Checks on a server of their own, in a folder of their own."""

    lock, n, wrong, printed, left = threading.Lock(), 0, [], [], []

    def __init__(self, binary, folder, *buckets):
        self.binary, self.folder, self.store = binary, folder, Bucket(*buckets)
        folder.mkdir()

    def check(self, name, is_right, shown=""):
        with Checks.lock:
            Checks.n += 1
            print(f"{'right' if is_right else 'WRONG'}: {name}", flush=True)
            if not is_right:
                Checks.wrong.append(name)
                shown = str(shown)
                shown = shown if len(shown) < 4000 else f"{shown[:2000]}\n[...]\n{shown[-2000:]}"
                print(f"    {shown}".replace("\n", "\n    "), flush=True)

    def machine(self, name, **more):
        return Machine(self, name, **more)

    def close(self):
        self.store.shutdown()
        Checks.left += [str(path) for path in self.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        Checks.left += self.store.leaks


def weights(data):
    """The weights in a file, without its header."""
    return data[8 + int.from_bytes(data[:8], "little"):] if data else None


def bits(store, run):
    """The weights of the model of a run in the bucket."""
    return weights(store.read(f"runs/{run}/model.safetensors"))


def words_of(out, *more, ranks=1, **settings):
    """Words that train a small model."""
    settings = {
        "train__seed": 3, "train__epochs": 4, "train__global_batch_size": 96, "model__hidden": "[64]", "train__deterministic": "true",
        "log__every_steps": 1, **settings}
    if "train__steps" in settings:
        del settings["train__epochs"]
    words = ["launch", "-n", ranks, "--"] if ranks > 1 else ["train"]
    words += ["--data", "builtin:digits", "--device", "cpu", "--threads", 1, "--progress", "none", "--out", out, *more]
    for key, value in settings.items():
        words += ["--set", f"{key.replace('__', '.')}={value}"]
    return words


def steps_of(text):
    """Steps in metrics.jsonl, in the order of its lines."""
    events = [json.loads(line) for line in text.splitlines()]
    return [event["step"] for event in events if event["event"] == "step"]


def results(of):
    """What a run leaves, and the commands that read it."""
    store, here = of.store, of.machine("results")
    for ranks in (1, 2):
        address, local = f"s3://runs/folder/ranks-{ranks}", of.folder / f"ranks-{ranks}"
        status, text = here.run(*words_of(address, ranks=ranks, checkpoint__every_steps=5, checkpoint__keep=2))
        near, near_text = here.run(*words_of(local, ranks=ranks, checkpoint__every_steps=5, checkpoint__keep=2))
        names = store.names(f"runs/folder/ranks-{ranks}")
        of.check(f"{ranks} ranks: status 0", status == near == 0, text + near_text)
        of.check(f"{ranks} ranks: the files of a run are in the bucket", names >= LEFT, sorted(names))
        model = store.read(f"runs/folder/ranks-{ranks}/model.safetensors")
        is_same = near == 0 and weights(model) == weights((local / "model.safetensors").read_bytes())
        of.check(f"{ranks} ranks: the model has the bits of a run in a folder", is_same, text)
        files = {str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()} - {".lock"}
        # A checkpoint that is not the newest may be left out.
        other = {name for name in (names ^ files) - {".owner"} if not name.startswith("checkpoints/")}
        of.check(f"{ranks} ranks: the bucket has the files of a run in a folder", not other, sorted(other))
        pruned(of, f"runs/folder/ranks-{ranks}", 2)
        for name in ("config.toml", "model.safetensors"):
            same = store.read(f"runs/folder/ranks-{ranks}/{name}") == (local / name).read_bytes()
            of.check(f"{ranks} ranks: {name} is that of a run in a folder", same, store.read(f"runs/folder/ranks-{ranks}/{name}")[:800])
    address = "s3://runs/folder/ranks-1"
    reader = of.machine("reader")
    page, table = of.folder / "page.html", of.folder / "predicted.csv"
    to_there = address[:-1] + "2"
    for command, said in {
        ("checkpoint", "ls", address): "step-", ("checkpoint", "verify", address): "", ("checkpoint", "show", address): "",
        ("runs", "ls", "s3://runs/folder/"): "ranks-2", ("runs", "show", address): "complete", ("runs", "diff", address, to_there): "",
        ("report", address, "--out", page): "", ("eval", "--checkpoint", address, "--device", "cpu"): "accuracy",
        ("predict", "--checkpoint", address, "--data", "builtin:digits", "--out", table, "--device", "cpu"): "",
        ("checkpoint", "export", address, "--out", of.folder / "model.onnx"): "",
    }.items():
        status, text = reader.run(*command)
        of.check(f"{' '.join(map(str, command[:2]))} reads the bucket", status == 0 and said in text, f"{status} {text}")
    of.check("report and predict have written files here", page.exists() and table.exists(), of.folder)
    of.check("readers leave no copies", not [path for path in reader.tmp.rglob("*") if path.is_file()], list(reader.tmp.rglob("*")))
    # Its default is a file in the folder of the run, which is a copy here.
    status, text = reader.run("report", address, cwd=of.folder)
    is_here = (of.folder / "report.html").exists()
    of.check("report of a bucket without --out is written here", status == 0 and is_here, f"{status} {text}")
    status, text = reader.run("checkpoint", "prune", address, "--keep", 1)
    of.check("checkpoint prune of a bucket is refused with a hint", status == USAGE and "hint: " in text, f"{status} {text}")
    # The run that continues from it works elsewhere.
    status, text = reader.run(*words_of(of.folder / "longer", "--resume", address, train__epochs=6))
    of.check("a run in a folder starts from one in a bucket", status == 0, text)


def pruned(of, folder, keep):
    """All checkpoints are complete, and no more than `keep` and the best."""
    names, complete = of.store.names(folder), of.store.complete(folder)
    steps = {int(found[1]) for name in names if (found := re.match(r"checkpoints/step-(\d+)/", name))}
    of.check(f"{folder}: all checkpoints are complete", steps == set(complete) and complete, sorted(names))
    of.check(f"{folder}: old checkpoints are gone", len(complete) <= keep + 1, complete)


def again(of):
    """A second run at an address."""
    store, here, other = of.store, of.machine("again"), of.machine("again-other")
    status, text = here.run("train", "--data", "builtin:digits", "--device", "cpu", "--resume", "s3://runs/misspelt")
    of.check("--resume ADDRESS where no run is: refused", status == USAGE and "hint: " in text, f"{status} {text}")
    address, folder = "s3://runs/again", "runs/again"
    status, text = here.run(*words_of(address, checkpoint__every_steps=5))
    of.check("a run before another one", status == 0, text)
    before = {name: data for name, data in store.objects.items() if name.startswith(folder + "/")}
    for machine, name in ((here, "here"), (other, "elsewhere")):
        status, text = machine.run(*words_of(address, train__seed=4))
        is_said = "holds a run" in text and "--overwrite" in text and "--resume" in text
        of.check(f"a second run is refused {name}", status == USAGE and is_said, f"{status} {text}")
    changed = {name for name in before if store.objects.get(name) is not before[name]}
    # It would be a pity to lose a run to a misspelt key.
    status, text = here.run(*words_of(address, "--overwrite", train__sed=4))
    of.check("--overwrite with a wrong config is refused", status == USAGE, f"{status} {text}")
    gone = sorted(name for name in before if name not in store.objects)
    of.check("--overwrite with a wrong config deletes nothing", not gone, gone)
    of.check("a refused run changes nothing", changed <= {f"{folder}/.owner"}, changed)
    newest = f"checkpoints/step-{max(store.complete(folder))}"
    for words in (("--resume", f"{address}/{newest}"), ("--out", f"{address}/{newest}", "--overwrite"), ("--resume", f"{address}/checkpoints")):
        before = dict(store.objects)
        status, text = here.run("train", "--data", "builtin:digits", "--device", "cpu", *words)
        of.check(f"a checkpoint is no run: {words}", status == USAGE and "no run" in text and "hint: " in text, f"{status} {text}")
        of.check("and nothing is written into it", store.objects == before, set(store.objects) ^ set(before))
    status, text = here.run(*words_of(of.folder / "from-checkpoint", "--resume", f"{address}/{newest}", train__epochs=5))
    of.check("but a run in a folder starts from it", status == 0, f"{status} {text}")
    before = {name: data for name, data in store.objects.items() if name.startswith(folder + "/")}
    status, text = other.run(*words_of(address, "--overwrite", ranks=2, train__seed=4, checkpoint__every_steps=7))
    of.check("--overwrite replaces the run", status == 0, f"{status} {text}")
    kept = [name for name, data in before.items() if store.objects.get(name) is data]
    of.check("--overwrite leaves no object of the old run", not kept, kept)
    steps = store.complete(folder)
    of.check("--overwrite leaves no checkpoint of the old run", all(step % 7 == 0 or step == max(steps) for step in steps), steps)


def resumed(of):
    """A run that is stopped on one machine and continued on another one."""
    store = of.store
    for ranks in (1, 2):
        name = f"resumed-{ranks}"
        address, folder, local = f"s3://runs/{name}", f"runs/{name}", of.folder / f"{name}-local"
        settings = {"train__steps": 90, "checkpoint__every_steps": 8, "train__ema_decay": 0.9}
        first, second = of.machine(f"{name}-a"), of.machine(f"{name}-b")
        status, text = first.run(*words_of(address, "--resume", "auto", ranks=ranks, train__stop_after_steps=37, **settings))
        of.check(f"{ranks} ranks: status 85 after a stop", status == STOPPED, f"{status} {text}")
        of.check(f"{ranks} ranks: the checkpoint of a stop is in the bucket", 37 in store.complete(folder), store.complete(folder))
        of.check(f"{ranks} ranks: the command to resume names the address", f"--resume {address}" in text, text)
        of.check(f"{ranks} ranks: a stopped run is not done", "done.json" not in store.names(folder), store.names(folder))
        status, text = second.run(*words_of(address, "--resume", "auto", ranks=ranks, **settings))
        of.check(f"{ranks} ranks: it continues on another machine", status == 0 and "resuming after step 37" in text, f"{status} {text}")
        near, near_text = second.run(*words_of(local, ranks=ranks, **settings))
        is_same = near == 0 and weights(store.read(f"{folder}/model.safetensors")) == weights((local / "model.safetensors").read_bytes())
        of.check(f"{ranks} ranks: and comes to the bits of an undisturbed run", is_same, near_text)
        steps = steps_of(store.read(f"{folder}/metrics.jsonl").decode())
        of.check(f"{ranks} ranks: each step is once in metrics.jsonl", steps == list(range(1, 91)), steps)
    first, second = of.machine("signal-a"), of.machine("signal-b")
    # The secret is in no command line of the processes of a run.
    settings = {"model__hidden": "[512,512]", "train__global_batch_size": 480, "train__steps": 100000, "log__every_steps": 50}
    process, lines = first.start(*words_of("s3://runs/signal", ranks=2, **settings)), set()
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < 60 and ".run-id" not in store.names("runs/signal"):
        time.sleep(0.05)
    for _ in range(5):
        for pid in first.processes():
            with contextlib.suppress(OSError):
                lines.add(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        time.sleep(0.1)
    of.check("the keys are in no command line", len(lines) >= 2 and not any(SECRET.encode() in line for line in lines), lines)
    process.send_signal(signal.SIGTERM)
    status, text = first.end(process)
    steps = store.complete("runs/signal")
    of.check("SIGTERM: status 85, and the checkpoint is in the bucket", status == STOPPED and steps, f"{status} {steps} {text}")
    settings["train__steps"] = max(steps, default=0) + 50
    status, text = second.run(*words_of("s3://runs/signal", "--resume", "auto", ranks=2, **settings))
    is_right = status == 0 and f"resuming after step {max(steps, default=0)} " in text
    of.check("and it continues on another machine", is_right, f"{status} {text}")


def large(of):
    """A model of several parts, whose answers get lost."""
    store, here = of.store, of.machine("large")
    settings = {"model__hidden": "[2100,2100]", "train__steps": 6, "checkpoint__every_steps": 3, "optimizer__kind": '"sgd"'}
    status, text = here.run(*words_of("s3://runs/large", **settings))
    near, near_text = here.run(*words_of(of.folder / "large", **settings))
    is_same = near == 0 and bits(store, "large") == weights((of.folder / "large/model.safetensors").read_bytes())
    of.check("a model of several parts", status == 0 and is_same, f"{status} {text} {near_text}")
    of.check("no upload is left", not store.uploads, {upload: of_[0] for upload, of_ in store.uploads.items()})
    seen = []

    def rule(command, path):
        """Refuses one of the last parts."""
        if command == "PUT" and path == "runs/refused/checkpoints/step-3/model.safetensors":
            seen.append(path)
        return 403 if command == "PUT" and len(seen) == 3 and seen.append(path) is None else None

    store.rule = rule
    status, text = here.run(*words_of("s3://runs/refused", **settings))
    store.rule = None
    of.check("a part that is refused is sent again", status == 0 and len(seen) > 4 and 3 in store.complete("runs/refused"), f"{seen} {text}")
    of.check("no upload is left of one that failed", not store.uploads, {upload: of_[0] for upload, of_ in store.uploads.items()})


def silent(of):
    """A writer that cannot renew its object while a large file is on its way."""
    store, here, seen = of.store, of.machine("silent"), []
    folder = "runs/silent"
    name = f"{folder}/checkpoints/step-2/model.safetensors"

    def rule(command, path):
        """From the fifth part on no sign of life is taken, and parts are slow."""
        if command == "PUT" and path == name:
            seen.append(path)
            return 12.0
        return 500 if len(seen) >= 5 and command == "PUT" and path.endswith("/.owner") else None

    store.rule = rule
    process = here.start(*words_of(f"s3://{folder}", model__hidden="[4200,4200]", train__steps=100000, checkpoint__every_steps=2,
                                   optimizer__kind='"sgd"', train__global_batch_size=16))
    began = time.monotonic()
    while len(seen) < 5 and process.poll() is None and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.05)
    # Longer than a writer without a sign of life writes, and than all parts take.
    time.sleep(65)
    is_right = 5 <= len(seen) and name not in store.objects and not store.uploads
    of.check("without a sign of life no large file is completed", is_right, f"{len(seen)} parts, {store.names(folder)} {store.uploads.keys()}")
    store.rule, began = None, time.monotonic()
    while not store.complete(folder) and process.poll() is None and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.05)
    of.check("and it goes there when there is one again", store.complete(folder), store.names(folder))
    process.send_signal(signal.SIGTERM)
    status, text = here.end(process)
    of.check("and the run ends as it is asked", status == STOPPED, f"{status} {text}")


def slow(of):
    """Checkpoints that take longer to the bucket than the run keeps them."""
    store, here = of.store, of.machine("slow")
    store.rule = lambda command, path: 3.0 if command == "PUT" and "/checkpoints/step-" in path and path.endswith(".safetensors") else None
    process = here.start(*words_of("s3://runs/slow", train__epochs=10_000_000, log__every_steps=10000, checkpoint__every_steps=200, checkpoint__keep=1))
    began = time.monotonic()
    while not store.complete("runs/slow") and process.poll() is None and time.monotonic() - began < 40:
        time.sleep(0.1)
    kept = [path for path in here.tmp.glob("ddp-train-runs-*/*/slow/checkpoints/step-*")]
    complete = store.complete("runs/slow")
    is_gone = all(f"step-{step}" not in [path.name for path in kept] for step in complete)
    of.check("a checkpoint gets there that the run has deleted meanwhile", complete and is_gone and process.poll() is None, f"{complete} {kept}")
    store.rule = None
    process.send_signal(signal.SIGTERM)
    status, text = here.end(process)
    of.check("and the run ends as it is asked", status == STOPPED, f"{status} {text}")
    status, text = here.run("checkpoint", "verify", "s3://runs/slow")
    of.check("and all checkpoints verify", status == 0, f"{status} {text}")


def damaged(of):
    """Checkpoints that are damaged in the bucket, at home or in both places."""
    store, reader = of.store, of.machine("reader")
    settings = {"train__steps": 60, "checkpoint__every_steps": 5, "checkpoint__keep": 3}
    reader.run(*words_of(of.folder / "local", **settings))
    expected = weights((of.folder / "local/model.safetensors").read_bytes())

    def flipped(data):
        return bytes([*data[:-1], data[-1] ^ 1])

    def begun(name):
        """A run with checkpoints 25, 30 and 35, and its home."""
        machine = of.machine(name)
        status, text = machine.run(*words_of(f"s3://runs/{name}", **settings, train__stop_after_steps=35))
        of.check(f"{name}: a run stops", status == STOPPED and store.complete(f"runs/{name}")[-3:] == [25, 30, 35], f"{status} {text}")
        return machine, next(machine.tmp.glob(f"ddp-train-runs-*/*/{name}"))

    def in_bucket(name, step):
        path = f"runs/{name}/checkpoints/step-{step}/optimizer-00000-of-00001.safetensors"
        with store.lock:
            store.put(path, flipped(store.objects[path]))

    def at_home(home, step):
        path = home / f"checkpoints/step-{step}/optimizer-00000-of-00001.safetensors"
        path.write_bytes(flipped(path.read_bytes()))

    def resumed_to_end(machine, name, step, said=""):
        status, text = machine.run(*words_of(f"s3://runs/{name}", "--resume", "auto", **settings))
        is_right = status == 0 and f"resuming after step {step} " in text and said in text
        of.check(f"{name}: resumes after the newest intact checkpoint", is_right, f"{status} {text}")
        of.check(f"{name}: and comes to the same bits", bits(store, name) == expected, text)

    begun("away")
    in_bucket("away", 35)
    in_bucket("away", 30)
    status, text = reader.run("eval", "--checkpoint", "s3://runs/away", "--device", "cpu")
    of.check("eval takes the newest intact checkpoint", status == 0 and "step-25" in text, f"{status} {text}")
    status, text = reader.run(*words_of(of.folder / "from-away", "--resume", "s3://runs/away", train__steps=60))
    of.check("and so does a run in a folder", status == 0 and "resuming after step 25 " in text, f"{status} {text}")
    resumed_to_end(of.machine("elsewhere"), "away", 25, "skipped checkpoint step-35")

    machine, home = begun("ahead")
    in_bucket("ahead", 35)
    shutil.rmtree(home / "checkpoints/step-35")
    store.forget()
    resumed_to_end(machine, "ahead", 30, "skipped checkpoint step-35")
    of.check("a good home stays", not any("step-30/optimizer" in name for name in store.sent), store.sent)

    machine, home = begun("home")
    for step in (25, 30, 35):
        at_home(home, step)
    resumed_to_end(machine, "home", 35)

    machine, home = begun("both")
    at_home(home, 35)
    with store.lock:
        for path in [path for path in store.objects if "runs/both/checkpoints/step-35/" in path]:
            del store.objects[path]
    words = words_of("s3://runs/both", "--resume", "auto", **settings, train__stop_after_steps=33)
    status, text = machine.run(*words)
    steps = store.complete("runs/both")
    of.check("both: a damaged checkpoint does not go to the bucket", status == STOPPED and steps[-1:] == [33], f"{status} {steps} {text}")
    status, text = reader.run("checkpoint", "verify", "s3://runs/both")
    of.check("both: all checkpoints in the bucket verify", status == 0, f"{status} {text}")
    resumed_to_end(of.machine("both-elsewhere"), "both", 33)

    begun("none")
    for step in (25, 30, 35):
        in_bucket("none", step)
    with store.lock:
        for path in [path for path in store.objects if re.match("runs/none/checkpoints/step-(?!25/|30/|35/)", path)]:
            del store.objects[path]
    status, text = of.machine("none-elsewhere").run(*words_of("s3://runs/none", "--resume", "auto", **settings))
    is_said = "none of its checkpoints can be used" in text and "s3://runs/none" in text and "step-25" in text
    of.check("none: refused with the address and all reasons", status == USAGE and is_said, f"{status} {text}")


def live(of):
    """Commands that read a run whose objects come and go."""
    store, here = of.store, of.machine("live")
    status, text = here.run(*words_of("s3://runs/live", checkpoint__every_steps=5, checkpoint__keep=3))
    of.check("a run to read", status == 0, text)
    steps = store.complete("runs/live")
    due = [f"runs/live/checkpoints/step-{steps[0]}/"]

    def rule(command, path):
        """The run prunes a checkpoint and writes its events, after both were listed."""
        if due and command == "GET" and path.startswith("runs/live/"):
            for name in [name for name in store.objects if name.startswith(due[0])]:
                del store.objects[name]
            due.pop()
            store.put("runs/live/metrics.jsonl", store.objects["runs/live/metrics.jsonl"])

    store.rule = rule
    status, text = here.run("checkpoint", "verify", "s3://runs/live")
    is_right = status == 0 and f"step-{steps[-1]}" in text and f"step-{steps[0]}:" not in text and not due
    of.check("checkpoint verify of a run that prunes", is_right, f"{status} {text}")
    due.append("nothing")
    status, text = here.run("runs", "show", "s3://runs/live")
    of.check("runs show of a run that writes its events", status == 0 and not due, f"{status} {text}")
    store.rule = None


def faults(of):
    """One fault of each kind at each kind of request of a run."""
    store = of.store
    settings = {"train__steps": 40, "checkpoint__every_steps": 10}
    local = of.folder / "local"
    here = of.machine("faults")
    here.run(*words_of(local, **settings))
    expected = weights((local / "model.safetensors").read_bytes())
    for kind in [500, 503, "reset", "lost", "late", "short"]:
        for name, when in {
            ".owner": lambda command, path: command == "PUT" and path.endswith("/.owner"),
            "a manifest": lambda command, path: command == "PUT" and path.endswith("/manifest.json"),
            "the model": lambda command, path: command == "PUT" and path.endswith("/model.safetensors"),
            "a deletion": lambda command, path: command in ("POST", "DELETE"),
            "reading": lambda command, path: command in ("GET", "HEAD"),
        }.items():
            if kind == "short" and name != "reading":
                continue
            seen = []

            def rule(command, path, kind=kind, when=when, seen=seen):
                # The first two such requests, with one in between.
                if when(command, path):
                    seen.append(path)
                    return kind if len(seen) in (1, 3) else None
                return None

            folder = f"runs/fault-{kind}-{name.split()[-1]}"
            store.rule = rule
            status, text = here.run(*words_of(f"s3://{folder}", **settings))
            store.rule = None
            is_same = weights(store.read(f"{folder}/model.safetensors")) == expected
            of.check(f"{kind} at {name}", status == 0 and is_same and "done.json" in store.names(folder), f"{status} {seen[:4]} {text}")


def busy(of):
    """Two runs at an address at once."""
    store, here = of.store, of.machine("busy")
    first = endless(of, here, "busy")
    here_too, other = of.machine("busy-here"), of.machine("busy-other")
    seconds = [(machine, machine.start(*words_of("s3://runs/busy", flag, *more)))
               for machine, flag, *more in ((here_too, "--overwrite"), (other, "--resume", "auto"))]
    for (machine, second), name in zip(seconds, ("--overwrite", "--resume auto"), strict=True):
        status, text = machine.end(second)
        of.check(f"a second run with {name} is refused while the first one runs", status == BUSY and "in use" in text, f"{status} {text}")
    of.check("the first one goes on", first.poll() is None, first.returncode)
    # A container has the host's name at times, and processes of its own.
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") and subprocess.run([*inside, "true"], capture_output=True).returncode == 0:
        container = of.machine("busy-container")
        status, text = container.end(container.start(*words_of("s3://runs/busy", "--overwrite"), before=inside))
        of.check("a second run in a container of the same host name is refused", status == BUSY and "in use" in text, f"{status} {text}")
    else:
        print("left out: unshare makes no PID namespace here")
    first.send_signal(signal.SIGTERM)
    status, text = here.end(first)
    of.check("the first one ends as it was asked", status == STOPPED, f"{status} {text}")
    of.check("and its checkpoint is in the bucket", store.complete("runs/busy"), store.names("runs/busy"))
    # The first process of a container may leave zombies, which have a folder in /proc.
    zombie = endless(of, here, "zombie")
    os.kill(zombie.pid, signal.SIGKILL)
    began = time.monotonic()
    status, text = here.run(*words_of("s3://runs/zombie", "--overwrite"))
    took_s = time.monotonic() - began
    of.check("a writer that is a zombie is taken for dead at once", status == 0 and took_s < 10, f"{status} {took_s:.0f} s {text}")
    here.end(zombie)


def outage(of):
    """Buckets that are absent, and that fail in the middle of a run."""
    store, here = of.store, of.machine("outage")
    began = time.monotonic()
    status, text = here.run(*words_of("s3://none/run"))
    took = time.monotonic() - began
    is_said = "NoSuchBucket" in text and "s3://none/run" in text and "hint: " in text
    of.check("an absent bucket is refused before training", status == USAGE and is_said and took < 20, f"{status} {took:.1f} s {text}")
    settings = {"train__steps": 400, "checkpoint__every_steps": 40, "train__global_batch_size": 480, "model__hidden": "[256,128]"}
    near, near_text = here.run(*words_of(of.folder / "outage-local", **settings))

    def rule(command, path):
        """Nothing can be written from the second checkpoint on."""
        is_written = command not in ("GET", "HEAD")
        return 500 if is_written and not path.endswith(".owner") and any(MANIFEST.search(name) for name in store.objects) else None

    store.rule = rule
    began = time.monotonic()
    status, text = here.run(*words_of("s3://runs/outage", **settings), patience_s=300)
    took = time.monotonic() - began
    store.rule = None
    homes = [str(path.parent) for path in here.tmp.rglob("done.json")] + [str(path.parent) for path in here.tmp.rglob("metrics.jsonl")]
    of.check("a bucket that fails later: status 74", status == IO, f"{status} after {took:.1f} s: {text}")
    of.check("the message names the folder with the files", homes and homes[0] in text and "--resume auto" in text, text)
    took = [re.search(r"in ([0-9.]+) (m?s) of training", words) for words in (text, near_text)]
    took = [float(found[1]) / (1000 if found[2] == "ms" else 1) if found else 0.0 for found in took]
    of.check("steps do not wait for the bucket", 0 < took[0] < 3 * took[1] + 1, f"{took} {text}")
    of.check("the run is not done in the bucket", "done.json" not in store.names("runs/outage"), store.names("runs/outage"))
    status, text = here.run(*words_of("s3://runs/outage", "--resume", "auto", **settings))
    of.check("the same command with --resume auto brings the run there", status == 0, f"{status} {text}")
    names = store.names("runs/outage")
    of.check("and the bucket has all of it", names >= LEFT, sorted(names))
    is_same = near == 0 and bits(store, "outage") == weights((of.folder / "outage-local/model.safetensors").read_bytes())
    of.check("with the bits of an undisturbed run", is_same, text)
    pruned(of, "runs/outage", 3)


def endless(of, machine, run, *more):
    """Starts a run that goes on until it is ended, and waits for its first checkpoint in the bucket."""
    process = machine.start(*words_of(f"s3://runs/{run}", *more, train__epochs=10_000_000, model__hidden="[256,128]",
                                      log__every_steps=10000, train__global_batch_size=480, checkpoint__every_steps=2000))
    os.setpriority(os.PRIO_PROCESS, process.pid, 10)
    began = time.monotonic()
    while not of.store.complete(f"runs/{run}") and process.poll() is None and time.monotonic() - began < 60:
        time.sleep(0.1)
    return process


def launched(of):
    """Restarts of a supervisor, which sees the home alone."""
    store, first = of.store, of.machine("launched")
    # Without --resume, the words of the first start say that nothing is there.
    process = first.start(*words_of("s3://runs/launched", ranks=2, train__epochs=10_000_000, model__hidden="[256,128]",
                                    log__every_steps=10000, train__global_batch_size=480, checkpoint__every_steps=2000))
    began = time.monotonic()
    while not store.complete("runs/launched") and process.poll() is None and time.monotonic() - began < 60:
        time.sleep(0.1)
    before = max(store.complete("runs/launched"), default=0)
    for checkpoints in first.tmp.glob("ddp-train-runs-*/*/launched/checkpoints"):
        shutil.rmtree(checkpoints, ignore_errors=True)
    for pid in first.ranks():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    lost, began = False, time.monotonic()
    while time.monotonic() - began < 8:
        lost |= not store.complete("runs/launched")
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    status, text = first.end(process)
    of.check("a restart of launch without a home keeps what the bucket has", before > 0 and not lost, f"{before} {text}")
    after = max(store.complete("runs/launched"), default=0)
    of.check("and continues from there", status == STOPPED and after >= before, f"{status} {text}")
    # The events that a fresh machine fetches end with a stop; rows that take longer than the supervisor's patience come before its own.
    rows = "x,y\n" + "".join(f"{number % 17},{number % 5}\n" for number in range(300))
    with store.lock:
        store.put("runs/rows.csv", rows.encode())
    words = ["launch", "-n", 1, "--", "--data", "s3://runs/rows.csv", "--target", "y", "--device", "cpu", "--threads", 1]
    words += ["--out", "s3://runs/slow", "--resume", "auto", "--set", "train.epochs=9", "--set", "watchdog.save_s=0.1"]
    status, text = of.machine("slow-0").run(*words, "--set", "train.stop_after_steps=20")
    of.check("a run under launch stops", status == STOPPED, f"{status} {text}")
    store.rule = lambda command, path: time.sleep(9) if (command, path) == ("GET", "runs/rows.csv") else None
    status, text = of.machine("slow-1").run(*words)
    is_right = status == 0 and "resuming after step 20" in text
    of.check("the next machine waits for rows longer than for a rank's end", is_right, f"{status} {text}")
    store.rule = None


def owners(of):
    """The sign of life of a run, whose answers get lost, and which others overwrite."""
    store, machines = of.store, [of.machine(f"owners-{index}") for index in range(3)]
    silent = {"host": "elsewhere", "pid": 1, "nonce": "0", "job_id": None, "n_renewed": 7, "has_ended": False}
    with store.lock:
        store.put("runs/silent/.owner", json.dumps(silent).encode())
    began = time.monotonic()
    waiting = machines[0].start(*words_of("s3://runs/silent"))
    # A renewal that was done, whose answer is lost, and after which the store fails for a while.
    hurt, stolen, seen = endless(of, machines[1], "hurt"), endless(of, machines[2], "stolen"), []

    def rule(command, path):
        if command != "PUT" or path != "runs/hurt/.owner":
            return None
        seen.append(time.monotonic())
        return "lost" if len(seen) == 1 else 500 if seen[-1] - seen[0] < 5 else None

    store.rule = rule
    with store.lock:
        store.put("runs/stolen/.owner", json.dumps(silent).encode())
    time.sleep(BEAT_S)
    at_theft = {name: data for name, data in store.objects.items() if name.startswith("runs/stolen/")}
    time.sleep(BEAT_S + 2)
    store.rule = None
    of.check("the store has failed at a sign of life", len(seen) > 2, seen)
    before = store.complete("runs/hurt")
    time.sleep(4)
    of.check("a lost answer to a sign of life does not end the writing", store.complete("runs/hurt") != before, before)
    hurt.send_signal(signal.SIGTERM)
    status, text = machines[1].end(hurt)
    of.check("and the run ends as it is asked", status == STOPPED, f"{status} {text}")
    later = {name for name, data in store.objects.items() if name.startswith("runs/stolen/") and at_theft.get(name) is not data}
    of.check("a run whose address was taken over writes no more", not later, later)
    stolen.send_signal(signal.SIGTERM)
    status, text = machines[2].end(stolen)
    of.check("and says so", status not in (0, STOPPED) and "has taken over" in text, f"{status} {text}")
    owner = store.read("runs/stolen/.owner")
    of.check("and the other one's sign of life is there", b"elsewhere" in owner, owner)
    status, text = machines[0].end(waiting)
    took_s = time.monotonic() - began
    is_said = "waiting for a sign of life" in text
    of.check("a writer elsewhere that is silent is taken for dead", status == 0 and is_said, f"{status} {text}")
    of.check("but not before half a minute", took_s > 30, took_s)


def short_outages(of):
    """A store that fails for some seconds is waited for, as docs/buckets.md says."""
    store, here = of.store, of.machine("short")
    settings = {"train__steps": 40, "checkpoint__every_steps": 10}
    for name, begins in {"at the start": lambda path: True, "at the end": lambda path: path.endswith("/model.safetensors")}.items():
        for kind in (500, "reset"):
            seen = []

            def rule(command, path, kind=kind, begins=begins, seen=seen):
                if begins(path):
                    seen.append(time.monotonic())
                return kind if seen and time.monotonic() - seen[0] < 4 else None

            run = f"short-{kind}-{name.split()[-1]}"
            store.rule = rule
            status, text = here.run(*words_of(f"s3://runs/{run}", **settings))
            store.rule = None
            of.check(f"{kind} for 4 s {name} is waited for", status == 0 and store.names(f"runs/{run}") >= LEFT, f"{status} {text}")


class Wrong(Exception):
    """A trial that shows a fault of the program."""


def trial(binary, parent, seed, number):
    """A run of random settings that is killed at random moments; returns what happened, or raises `Wrong`."""
    draw = random.Random(f"{seed}/{number}")
    of = Checks(binary, parent / f"trial-{number}", "runs")
    folder, address, ranks, n_steps = "runs/killed", "s3://runs/killed", draw.choice([1, 2]), draw.randint(150, 400)
    settings = {
        "train__steps": n_steps, "train__global_batch_size": 480, "model__hidden": "[448,320]", "train__precision": '"f32"',
        "optimizer__kind": draw.choice(['"sgd"', '"adamw"']), "train__ema_decay": draw.choice([0.0, 0.9]), "train__clip_grad_norm": 1.0,
        "checkpoint__every_steps": draw.randint(3, 20), "checkpoint__async": draw.choice(["true", "false"]),
        "checkpoint__keep": draw.choice([1, 2, 3]), "train__eval_every_steps": draw.choice([0, 25]),
    }
    log = [f"{ranks} ranks {settings}"]
    plain = of.machine("plain")
    began = time.monotonic()
    status, text = plain.run(*words_of(of.folder / "local", ranks=ranks, **settings))
    lasts_s = time.monotonic() - began
    if status != 0:
        raise Wrong(f"without faults: {status} {text}")
    expected = weights((of.folder / "local/model.safetensors").read_bytes())
    machines = [of.machine("machine-0")]
    machine, store = machines[0], of.store
    store.draw = random.Random(f"{seed}/{number}/server")
    resumes, least, n_kills, n_kills_of_ranks = [], None, 0, 0

    def look(text, least):
        """Notes at which step a start has resumed, and holds it to what the bucket had."""
        found = re.search(r"resuming after step (\d+) ", text)
        if found:
            resumes.append(int(found[1]))
        if least and ("of training" in text or found) and (not found or int(found[1]) < least):
            raise Wrong(f"resumed after step {found and found[1]}, and the bucket had {least}\n" + "\n".join(log) + "\n" + text)

    for _ in range(draw.choice([1, 2, 3])):
        process = machine.start(*words_of(address, *(["--resume", "auto"] if len(log) > 1 else []), ranks=ranks, **settings))
        lasts_now_s = 0.3 + lasts_s * (1 - (least or 0) / n_steps)
        after_s = draw.uniform(0.05, 0.6) if draw.random() < 0.3 else draw.uniform(0.5, lasts_now_s + 0.3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        if draw.random() < 0.4:
            # While a checkpoint is on its way, or its manifest is there.
            n_put, until = draw.randint(1, 12) + store.n_written, time.monotonic() + 2
            while store.n_written < n_put and process.poll() is None and time.monotonic() < until:
                time.sleep(0.001)
        if ranks > 1 and draw.random() < 0.3 and (victims := machine.ranks()):
            # `launch` starts them again.
            with contextlib.suppress(OSError):
                os.kill(draw.choice(victims), signal.SIGKILL)
                n_kills_of_ranks += 1
                log.append(f"{machine.tmp.name}: one rank was killed after {after_s:.2f} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.5, 2 * lasts_s + 1))
        is_over = process.poll() is not None
        n_kills += not is_over
        machine.kill()
        status, text = machine.end(process)
        what = f"ended with {status}" if is_over else f"killed after {after_s:.2f} s"
        log.append(f"{machine.tmp.name}: {what}, {store.complete(folder)} are complete")
        if is_over and status != 0:
            raise Wrong(f"status {status}\n" + "\n".join(log) + "\n" + text)
        look(text, least)
        store.probability = 0.0
        complete = store.complete(folder)
        if complete:
            status, text = plain.run("checkpoint", "verify", address)
            if status != 0:
                raise Wrong(f"checkpoint verify: {status} of {complete}\n" + "\n".join(log) + "\n" + text)
        least = max(complete, default=None)
        if draw.random() < 0.5:
            # Where it was before, or on a new one.
            if len(machines) < 2 or draw.random() < 0.6:
                machines.append(of.machine(f"machine-{len(machines)}"))
                machine = machines[-1]
            else:
                machine = draw.choice(machines)
        store.probability = 0.03
        if is_over and draw.random() < 0.7:
            break
    status, text = machine.run(*words_of(address, "--resume", "auto", ranks=ranks, **settings))
    log.append(f"{machine.tmp.name}: ended with {status}; faults {store.n_faults}")
    look(text, least)
    told = "\n".join(log) + "\n" + text
    if status != 0:
        raise Wrong(f"status {status}\n{told}")
    if weights(store.read(f"{folder}/model.safetensors")) != expected:
        raise Wrong(f"other bits than without faults\n{told}")
    names, complete = store.names(folder), store.complete(folder)
    if not names >= LEFT:
        raise Wrong(f"not in the bucket: {LEFT - names}\n{told}")
    steps = steps_of(store.read(f"{folder}/metrics.jsonl").decode())
    if steps != list(range(1, n_steps + 1)):
        lost, twice = set(range(1, n_steps + 1)) - set(steps), {step for step in steps if steps.count(step) > 1}
        first_last = [(min(steps), max(steps)) if steps else "none" for steps in (lost, twice)]
        raise Wrong(f"steps in metrics.jsonl: {len(lost)} absent in {first_last[0]}, {len(twice)} twice in {first_last[1]}\n{told}")
    there = {int(found[1]) for name in names if (found := re.match(r"checkpoints/step-(\d+)/", name))}
    if there != set(complete) or len(complete) > settings["checkpoint__keep"] + 1:
        raise Wrong(f"checkpoints {sorted(there)}, complete {complete}, keep {settings['checkpoint__keep']}\n{told}")
    store.probability = 0.0
    status, text = plain.run("checkpoint", "verify", address)
    if status != 0:
        raise Wrong(f"checkpoint verify at the end: {status}\n{text}\n{told}")
    of.close()
    shutil.rmtree(of.folder, ignore_errors=True)
    n_faults = sum(store.n_faults.values())
    return f"{ranks} ranks, {n_kills} kills and {n_kills_of_ranks} of a rank, resumed after {resumes} of {n_steps}, {n_faults} faults"


def part(function, binary, folder):
    """Runs one group of checks, whose own failure is a wrong check."""
    of = Checks(binary, folder / function.__name__, "runs")
    began = time.monotonic()
    try:
        function(of)
    except Exception:
        of.check(f"{function.__name__} ends", False, traceback.format_exc())
    of.close()
    print(f"{function.__name__}: {time.monotonic() - began:.1f} s", flush=True)


def killed(binary, folder, seed, number):
    of = Checks(binary, folder / f"check-{number}", "runs")
    began = time.monotonic()
    try:
        said, fault = trial(binary, folder, seed, number), ""
    except Wrong as wrong:
        said, fault = "see below", str(wrong)
    except Exception:
        said, fault = "see below", traceback.format_exc()
    of.check(f"kills {seed}/{number}: {said}, {time.monotonic() - began:.1f} s", not fault, fault)
    of.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    os.environ.setdefault("DDP_FEATURES", "parquet,stores")
    release_program.add_binary(parser)
    parser.add_argument("--kills", type=int, default=20, help="trials with kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, help="this trial alone")
    functions = (owners, silent, launched, slow, outage, short_outages, busy, results, again, resumed, damaged, live, large, faults)
    parts = {function.__name__: function for function in functions}
    parser.add_argument("--part", choices=[*parts, "kills"], help="this part alone")
    args = parser.parse_args()
    memory = pathlib.Path("/dev/shm")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddp-bucket-", dir=memory if memory.is_dir() else None))
    began = time.monotonic()
    with contextlib.ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        pool = at_end.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        jobs = []
        if args.trial is None:
            chosen = [parts[args.part]] if args.part in parts else [] if args.part else parts.values()
            jobs += [pool.submit(part, function, args.binary, folder) for function in chosen]
        if args.part in (None, "kills"):
            numbers = range(args.kills) if args.trial is None else [args.trial]
            jobs += [pool.submit(killed, args.binary, folder, args.seed, number) for number in numbers]
        for job in jobs:
            job.result()
        of = Checks(args.binary, folder / "end", "runs")
        of.check("the keys are in no object and no file", not Checks.left, Checks.left)
        of.check("the keys are not printed", not any(SECRET in text for text in Checks.printed), "")
    print(f"{Checks.n - len(Checks.wrong)} of {Checks.n} right, {time.monotonic() - began:.0f} s")
    for name in Checks.wrong:
        print(f"WRONG: {name}")
    sys.exit(1 if Checks.wrong else 0)


if __name__ == "__main__":
    main()
