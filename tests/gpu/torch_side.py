"""PyTorch's side as a process that stays: it starts when it is first needed, and is idle while ddp-train is timed."""
import json
import os
import queue
import subprocess
import sys
import threading
import time

from session import ROOT, OutOfTime


class TorchSide:
    """Answers requests in their order. Where there is no torch, `why` says so and nothing is asked."""

    def __init__(self, session):
        self.session = session
        self.process, self.answers, self.n_waiting = None, queue.Queue(), 0
        self.about = None
        self.why = "PyTorch, left out by --no-torch" if session.options.no_torch else ""

    def _launch(self):
        session = self.session
        words = [os.environ.get("TORCH_PYTHON", sys.executable), str(ROOT / "tests" / "bench" / "gpu_torch.py"), "--serve"]
        env = dict(os.environ)
        if session.report["virtual"]:
            # The virtual libraries know what ddp-train calls, and PyTorch calls far more.
            words += ["--device", "cpu"]
            env.pop("LD_LIBRARY_PATH", None)
        # What compilers say may be long; a pipe that nobody empties would stop them.
        self.log = open(os.path.join(session.work, "torch.log"), "w+")
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env,
                                        start_new_session=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def _next(self, timeout_s):
        try:
            line = self.answers.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise OutOfTime from None
        if line is None:
            self.log.seek(0)
            self.why = f"PyTorch, whose process ended: {self.log.read()[-800:].strip()}"
            self.answers.put(None)
            return {"error": self.why}
        return json.loads(line)

    def start(self, timeout_s):
        """Whether it is there; waits for its import."""
        if not self.process and not self.why:
            self._launch()
        if self.process and not self.about and not self.why:
            hello = self._next(timeout_s)
            if "error" in hello and not self.why:
                self.why = f"PyTorch: {hello['error']}"
            self.about = hello
        return not self.why

    def send(self, request):
        """Asks, and does not wait. The answer comes by `drain`."""
        if self.why or not self.process:
            return
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            self.n_waiting += 1
        except OSError as error:
            self.why = f"PyTorch, whose process ended: {error}"

    def drain(self, timeout_s):
        """All answers that are still to come, in order. Raises OutOfTime, and forgets nothing, if they don't."""
        end, found = time.monotonic() + timeout_s, []
        while self.n_waiting and not self.why:
            found.append(self._next(end - time.monotonic()))
            self.n_waiting -= 1
        return found

    def ask(self, request, timeout_s):
        """One answer; it is idle again after it."""
        if self.why:
            return {"error": self.why}
        self.send(request)
        found = self.drain(timeout_s)
        return found[-1] if found else {"error": self.why}

    def close(self, why=""):
        """Ends it, at once if it does not end by itself; `why` is reported to later callers."""
        self.why = self.why or why
        if self.process and self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                # Compilers' helpers are of its group.
                try:
                    os.killpg(self.process.pid, 9)
                except ProcessLookupError:
                    pass
                self.process.wait(10)
