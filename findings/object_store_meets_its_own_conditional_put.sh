#!/usr/bin/env bash
# The Rust crate object_store, seen through obstore 0.12.1, its Python package, treats two failures of one conditional write (`mode="create"`:
# If-None-Match) in opposite ways. A lost connection is not tried again, because the write may have been done. An answer of 500 or 503, of which
# S3 says as little about that, is: where the store had done the write, the second try meets the object of the first, and the caller gets
# AlreadyExistsError for an object that it has just written and nobody else. Whoever takes that error for "another process was faster", as locks
# and commits on buckets do, gives up a lock that it holds; nothing in the error tells of the first try, only reading the object back does.
#
# Run: ./findings/object_store_meets_its_own_conditional_put.sh     needs python3 with venv and PyPI; exit 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check obstore==0.12.1

cat >find.py <<'PY'
"""A store that keeps conditional writes as S3 does, and whose first answers tell of a failure although the writes are done."""
import http.server
import socket
import struct
import threading

import obstore
from obstore.store import S3Store

objects, tries = {}, []


class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", tag='"1"'):
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tries.append(self.headers.get("If-None-Match"))
        if self.path in objects:
            self.reply(412, b"<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>")
            return
        objects[self.path] = body
        if self.path.endswith("failed"):
            self.reply(500, b"<Error><Code>InternalError</Code><Message>try again</Message></Error>")
            return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def do_GET(self):
        self.reply(200, objects[self.path])


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = S3Store("bucket", endpoint=f"http://127.0.0.1:{server.server_address[1]}", access_key_id="a", secret_access_key="b", region="us-east-1",
                client_options={"allow_http": True})
found = {}
for name in ("failed", "reset"):
    tries.clear()
    try:
        obstore.put(store, name, b"mine", mode="create")
        said = "written"
    except Exception as error:
        said = type(error).__name__
    held = bytes(obstore.get(store, name).bytes())
    found[name] = (said, len(tries), held)
    print(f"obstore {obstore.__version__}, answer {name}: {said} after {len(tries)} tries; the object holds {held!r}, which this process wrote")
assert found == {"failed": ("AlreadyExistsError", 2, b"mine"), "reset": ("GenericError", 1, b"mine")}, found
PY
venv/bin/python find.py
