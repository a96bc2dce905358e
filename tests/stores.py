#!/usr/bin/env python3
"""Trains from object stores of this host, and holds the result to that of local files.

  python tests/stores.py [--binary FILE]

The program is one with the feature `stores`: without --binary, DDP_FEATURES=parquet,stores launch/build makes it. The store is a server on the
loopback interface that speaks the part of S3 that reading needs (list, head, get with ranges and If-Match), plain HTTP, and the paths of
Hugging Face; it counts what is asked and makes faults. Where moto can be imported (pip install 'moto[server]'), its S3 is read, too.
"""

import argparse
import contextlib
import hashlib
import http.server
import importlib.util
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import release_program  # noqa: E402

SECRET = "a-secret-that-must-not-show"


class Store(http.server.ThreadingHTTPServer):
    """Objects by bucket and key, what was asked, and the faults to make."""

    daemon_threads = True

    def __init__(self, handler=None):
        self.objects, self.sent, self.requests, self.faults, self.lock = {}, {}, [], {}, threading.Lock()
        super().__init__(("127.0.0.1", 0), handler or Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path, data):
        self.objects[path] = data

    def has_bucket(self, name):
        return any(path.startswith(name + "/") for path in list(self.objects))

    def fault(self, command, path):
        """The fault to make of a request, if any. Called with the lock."""
        due = self.faults.get(command) or []
        return due.pop(0) if due else None

    def forget(self):
        self.sent, self.requests, self.faults = {}, [], {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        store, parts = self.server, urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(parts.path).lstrip("/"), urllib.parse.parse_qs(parts.query)
        with store.lock:
            store.requests.append((self.command, path, dict(self.headers)))
            now = store.fault(self.command, path)
        if now in ("reset", "lost"):
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if now in ("slow", "late"):
            time.sleep(2 if now == "slow" else 0.3)
        if isinstance(now, int):
            headers = [("Retry-After", "1")] if now == 503 else []
            code = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}[now]
            self.reply(now, f"<Error><Code>{code}</Code><Message>no luck</Message></Error>".encode(), headers)
            return
        if "list-type" in query:
            prefix = path.split("/")[0] + "/" + query.get("prefix", [""])[0]
            objects = dict(store.objects)
            found = sorted(name for name in objects if name.startswith(prefix))
            if not store.has_bucket(path.split("/")[0]):
                self.reply(404, b"<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>")
                return
            items = "".join(
                f"<Contents><Key>{name.split('/', 1)[1]}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>&quot;{tag(objects[name])}&quot;</ETag><Size>{len(objects[name])}</Size></Contents>" for name in found)
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
            self.reply(200, body.encode(), [("Content-Type", "application/xml")])
            return
        data = store.objects.get(path)
        if data is None:
            self.reply(404, b"<Error><Code>NoSuchKey</Code><Message>The key does not exist</Message></Error>")
            return
        headers = [("ETag", f'"{tag(data)}"'), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")]
        wanted = self.headers.get("If-Match")
        if now == "changed" or (wanted and wanted.strip('"') != tag(data)):
            self.reply(412, b"<Error><Code>PreconditionFailed</Code><Message>changed</Message></Error>", headers)
            return
        span = self.headers.get("Range")
        status = 200
        total = len(data)
        if span:
            begin, end = span.removeprefix("bytes=").split("-")
            begin, end = int(begin), min(int(end), total - 1)
            data, status = data[begin:end + 1], 206
            headers.append(("Content-Range", f"bytes {begin}-{end}/{total}"))
        if self.command == "GET":
            with store.lock:
                store.sent[path] = store.sent.get(path, 0) + len(data)
        if now == "short":
            self.reply(status, data[:len(data) // 2], headers, len(data))
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.reply(status, data, headers)


def tag(data):
    """The entity tag of an object: its own, if it has one."""
    return getattr(data, "tag", None) or hashlib.md5(data).hexdigest()


def table(n, seed):
    draw = random.Random(seed)
    lines = ["a,b,c,label"]
    for _ in range(n):
        x = [draw.gauss(0, 1) for _ in range(3)]
        lines.append(",".join(f"{v:.5f}" for v in x) + "," + ("yes" if x[0] + x[1] > 0 else "no"))
    return ("\n".join(lines) + "\n").encode()


class Checks:
    def __init__(self, binary, folder, store):
        self.binary, self.folder, self.store, self.failed, self.n, self.printed = binary, folder, store, [], 0, []
        (folder / "tmp").mkdir()
        self.env = {
            **os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": store.url,
            "HF_ENDPOINT": store.url, "HF_TOKEN": SECRET, "TMPDIR": str(folder / "tmp"),
        }

    def run(self, *words, env=None):
        done = subprocess.run([self.binary, *map(str, words)], env={**self.env, **(env or {})}, text=True, capture_output=True, timeout=120)
        self.printed += [done.stdout, done.stderr]
        return done

    def train(self, data, out, ranks=1, **more):
        words = ["train", "--data", data, "--out", self.folder / out, "--set", "train.epochs=2", "--set", "train.seed=3", "--threads", "1", "--plain"]
        if "eval" not in more:
            words += ["--set", "data.eval_fraction=0.2"]
        for key, value in more.items():
            words += ["--set", f"{key.replace('__', '.')}={value}"]
        before = ["launch", "--launcher", "env", "-n", ranks, "--max-restarts", 0, "--"] if ranks > 1 else []
        return self.run(*before, *words)

    def check(self, name, is_right, shown=""):
        self.n += 1
        print(f"{'right' if is_right else 'WRONG'}: {name}", flush=True)
        if not is_right:
            self.failed.append(name)
            print(str(shown)[-1500:], flush=True)

    def model(self, out):
        data = (self.folder / out / "model.safetensors").read_bytes()
        return data[8 + int.from_bytes(data[:8], "little"):]

    def left(self):
        """Copies that are left in the folder for temporary files."""
        return [path for path in (self.folder / "tmp").rglob("*") if path.is_file()]


def reads(of):
    """Each way to name rows gives the bits of local files, and each host fetches each byte once."""
    store, folder = of.store, of.folder
    local = folder / "local"
    (local / "parts").mkdir(parents=True)
    one = table(3000, 1)
    (local / "one.csv").write_bytes(one)
    store.put("rows/one.csv", one)
    for i in range(3):
        part = table(1000, 10 + i)
        (local / "parts" / f"p{i}.csv").write_bytes(part)
        store.put(f"rows/parts/p{i}.csv", part)
    store.put("rows/parts/_SUCCESS", b"")
    store.put("rows/parts/notes.md", b"text")
    of.run("data", "convert", local / "one.csv", local / "one.parquet")
    store.put("rows/one.parquet", (local / "one.parquet").read_bytes())
    store.put("datasets/me/set/resolve/main/data/one.csv", one)
    pairs = {
        "s3://rows/one.csv": local / "one.csv",
        "s3://rows/parts/": local / "parts",
        "s3://rows/parts/p*.csv": local / "parts" / "p*.csv",
        "s3://rows/parts/{p0,p2}.csv": local / "parts" / "{p0,p2}.csv",
        "s3://rows/one.parquet": local / "one.parquet",
        f"{store.url}/rows/one.csv?signature={SECRET}": local / "one.csv",
        "hf://datasets/me/set/data/one.csv": local / "one.csv",
    }
    for index, (address, path) in enumerate(pairs.items()):
        store.forget()
        remote, near = of.train(address, f"remote{index}"), of.train(path, f"near{index}")
        both = remote.returncode == near.returncode == 0
        of.check(f"{address} trains as the local files do", both and of.model(f"remote{index}") == of.model(f"near{index}"), remote.stderr + near.stderr)
        twice = [name for name, n in store.sent.items() if n > len(store.objects[name])]
        of.check(f"{address}: each byte once", not twice and store.sent, store.sent)
        of.check(f"{address}: nothing is left", not of.left(), of.left())
        config = (folder / f"remote{index}" / "config.toml")
        # A signature is a secret.
        saved = address.split("?")[0]
        of.check(f"{saved} is in the saved config", config.exists() and saved in config.read_text(), remote.stderr)
    store.forget()
    four = of.train("s3://rows/one.csv", "four", ranks=4)
    of.check("4 ranks of a host fetch each byte once", four.returncode == 0 and store.sent == {"rows/one.csv": len(one)}, four.stderr + str(store.sent))
    for command in (["data", "inspect", "s3://rows/one.csv"], ["eval", folder / "remote0", "--data", "s3://rows/parts/"],
                    ["predict", folder / "remote0", "--data", "s3://rows/one.csv", "--out", folder / "predicted.csv"]):
        done = of.run(*command)
        of.check(f"{command[0]} {command[1]} reads the store", done.returncode == 0, done.stderr)
    store.put("rows/model.safetensors", (folder / "remote0" / "model.safetensors").read_bytes())
    begun = of.run("train", "--data", "s3://rows/one.csv", "--init-from", "s3://rows/model.safetensors", "--out", folder / "begun", "--set", "train.epochs=1",
                   "--set", "data.eval_fraction=0.2")
    of.check("--init-from reads the store", begun.returncode == 0, begun.stderr)
    resumed = of.run("train", "--data", "s3://rows/one.csv", "--out", folder / "remote0", "--resume", "auto", "--set", "train.epochs=3", "--set", "train.seed=3",
                     "--set", "data.eval_fraction=0.2", "--plain", "--threads", "1")
    of.check("a run resumes from the store", resumed.returncode == 0, resumed.stderr)
    big = table(400_000, 5)
    store.put("rows/big.csv", big)
    store.forget()
    large = of.train("s3://rows/big.csv", "large", train__epochs=1)
    ranges = [headers["Range"] for command, _, headers in store.requests if command == "GET" and "Range" in headers]
    of.check("a large object is fetched in parts, once", large.returncode == 0 and store.sent == {"rows/big.csv": len(big)} and len(ranges) <= 3, large.stderr + str(ranges))


def kept(of):
    """With data.cache the copies stay, and are fetched again only where the object has changed."""
    store, cache = of.store, of.folder / "cache"
    for name, changes, expected in [("first", False, 1), ("second", False, 0), ("changed", True, 1)]:
        if changes:
            store.put("rows/one.csv", table(3000, 99))
        store.forget()
        done = of.train("s3://rows/one.csv", f"kept-{name}", data__cache=json.dumps(str(cache)))
        fetched = store.sent.get("rows/one.csv", 0)
        of.check(f"data.cache, {name} start", done.returncode == 0 and fetched == expected * len(store.objects["rows/one.csv"]), done.stderr + str(store.sent))
    own = of.train("s3://rows/one.csv", "own-changed")
    index = next(cache.glob("objects/*/.objects.json"))
    store.put("rows/parts/p9.csv", table(1000, 19))
    for name, changes in [("before", lambda: None), ("after", lambda: (store.objects.pop("rows/parts/p9.csv"), kept.write_text("")))]:
        changes()
        done = of.train("s3://rows/parts/", f"listed-{name}", data__cache=json.dumps(str(cache)))
        of.check(f"data.cache, {name} its list was cut short", done.returncode == 0, done.stderr)
        kept = next(path for path in cache.glob("objects/*/.objects.json") if path != index)
    near = of.train(of.folder / "local/parts", "listed-near")
    of.check("what has left the store is not read", near.returncode == 0 and of.model("listed-after") == of.model("listed-near"), near.stderr)
    of.check("what has changed is what is trained", own.returncode == 0 and of.model("own-changed") == of.model("kept-changed"), own.stderr)


def faults(of):
    """Faults of servers are survived, or named with what to do."""
    store = of.store
    for name, made in {
        "500 twice": {"GET": [500, 500]}, "503 with Retry-After": {"HEAD": [503]}, "a reset": {"GET": ["reset"]}, "a slow first byte": {"GET": ["slow"]},
        "a body that ends early": {"GET": ["short"]},
    }.items():
        store.forget()
        store.faults = made
        done = of.train("s3://rows/one.csv", f"fault-{name.split()[0]}-{name.split()[1]}")
        of.check(f"{name} is survived", done.returncode == 0 and of.model(f"fault-{name.split()[0]}-{name.split()[1]}") == of.model("own-changed"), done.stderr)
    for name, address, made, said in [
        ("no such key", "s3://rows/none.csv", {}, "lists no object"),
        ("a signed link to nothing", f"{store.url}/rows/none.csv?signature={SECRET}", {}, "rows/none.csv"),
        ("no such bucket", "s3://other/one.csv", {}, "NoSuchBucket"),
        ("a listing without rows", "s3://rows/model*.csv", {}, "objects there matches"),
        ("refused", "s3://rows/one.csv", {"HEAD": [403] * 9}, "credentials"),
        ("changed while it is read", "s3://rows/one.csv", {"GET": ["changed"]}, "has changed while it was read"),
        ("no file in an address", "https://127.0.0.1:1/", {}, "names no file"),
        ("no file of a data set", "hf://me/x.csv", {}, "hf://datasets/OWNER/NAME"),
    ]:
        store.forget()
        store.faults = made
        done = of.train(address, "none")
        of.check(f"{name}: status 2 and a hint", done.returncode == 2 and said in done.stderr and "hint: " in done.stderr, f"{done.returncode} {done.stderr}")
        of.check(f"{name}: nothing is left", not of.left(), of.left())
    folder = of.folder
    shown = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    of.check("no secret is in any file", not shown, shown)
    of.check("no secret is printed", not any(SECRET in text for text in of.printed), of.printed)


def moto(of):
    """The S3 of moto, where it is there."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("boto3") is None:
        print("left out: moto is not installed")
        return
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key=SECRET, region_name="us-east-1")
    client.create_bucket(Bucket="rows")
    client.put_object(Bucket="rows", Key="one.csv", Body=of.store.objects["rows/one.csv"])
    done = of.run("train", "--data", "s3://rows/one.csv", "--out", of.folder / "moto", "--set", "train.epochs=2", "--set", "train.seed=3", "--threads", "1", "--plain",
                  "--set", "data.eval_fraction=0.2", env={"AWS_ENDPOINT_URL": url})
    of.check("moto's S3 gives the same bits", done.returncode == 0 and of.model("moto") == of.model("own-changed"), done.stderr)
    server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    os.environ.setdefault("DDP_FEATURES", "parquet,stores")
    release_program.add_binary(parser)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddp-stores-"))
    of = Checks(args.binary, folder, Store())
    with contextlib.ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        for part in (reads, kept, faults, moto):
            part(of)
    print(f"{of.n - len(of.failed)} of {of.n} right")
    sys.exit(1 if of.failed else 0)


if __name__ == "__main__":
    main()
