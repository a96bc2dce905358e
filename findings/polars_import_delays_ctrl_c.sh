#!/usr/bin/env bash
# Importing polars 2.1.0 changes what Ctrl-C does to a Python program (CPython on Linux) that waits in a system call: without it, SIGINT ends a blocking
# os.read of a pipe with KeyboardInterrupt at once; after `import polars`, and without a single call of it, the read goes on until data comes, and
# only then is KeyboardInterrupt raised. The import replaces Python's own handler of SIGINT in the process by one whose system calls are restarted
# (SA_RESTART), so that Python's part of the handling has no occasion to run; signal.getsignal still names Python's handler. Threads and
# time-outs are not affected: a program that waits for a child by its pipe must wait in a loop with a time limit.
#
# Run: ./findings/polars_import_delays_ctrl_c.sh     needs Linux, python3 with venv and PyPI; exit 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check polars==2.1.0

cat >wait.py <<'PY'
import ctypes
import os
import signal
import sys
import threading
import time

if sys.argv[1:] == ["polars"]:
    import polars  # noqa: F401

# struct sigaction of glibc on 64-bit Linux: handler, 128 bytes of mask, flags.
action = ctypes.create_string_buffer(152)
ctypes.CDLL(None).sigaction(signal.SIGINT, None, action)
restarts = bool(int.from_bytes(action[136:140], "little") & 0x10000000)
is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler

reader, writer = os.pipe()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
threading.Timer(3, os.write, (writer, b"x")).start()
begin = time.monotonic()
try:
    os.read(reader, 1)
except KeyboardInterrupt:
    pass
print(f"interrupted after {time.monotonic() - begin:.0f} s, SA_RESTART {restarts}, getsignal is Python's {is_pythons}", flush=True)
os._exit(0)
PY
without=$(venv/bin/python wait.py)
with=$(venv/bin/python wait.py polars)
printf 'without polars: %s\nwith polars:    %s\n' "$without" "$with"
[[ $without == "interrupted after 0 s, SA_RESTART False, getsignal is Python's True" || $without == "interrupted after 1 s, SA_RESTART False, getsignal is Python's True" ]]
[[ $with == "interrupted after 3 s, SA_RESTART True, getsignal is Python's True" ]]
