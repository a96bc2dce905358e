"""Running a program with a limit of time, and what is kept of it."""
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass

MPIRUN_BANNER = re.compile(r"^-{60,}\n(?:Primary job|mpirun (?:detected|noticed)).*?^-{60,}\n", re.M | re.S)


@dataclass
class Outcome:
    """How a program ended. `status` is None where it was killed at its limit."""

    command: list
    status: "int | None"
    stdout: str
    stderr: str
    seconds: float
    limit_s: float

    @property
    def ok(self):
        return self.status == 0

    def tail(self, n_chars=1500):
        """The end of what it said, and how it ended."""
        # A rank's own error precedes mpirun's report of it.
        stderr = MPIRUN_BANNER.sub("", self.stderr)
        text = (self.stdout.rstrip()[-n_chars:] + "\n" + stderr.rstrip()[-n_chars:]).strip()
        how = f"status {self.status}" if self.status is not None else f"killed after {self.limit_s:.0f} s"
        return f"$ {' '.join(map(str, self.command))}\n{text}\n[{how}]"


def run(command, limit_s, env=None, cwd=None):
    """Runs `command`; at the limit it and all that it started are killed."""
    command = [str(word) for word in command]
    started = time.monotonic()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace", env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True)
    except OSError as error:
        return Outcome(command, 127, "", str(error), 0.0, limit_s)
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        stdout, stderr = kill(process)
        status = None
    except BaseException:
        kill(process)
        raise
    return Outcome(command, status, stdout, stderr, time.monotonic() - started, limit_s)


def kill(process):
    """Ends a process and its group; gives what it had said."""
    # Open MPI's mpirun takes its ranks along when it is asked, and leaves them behind when it is killed.
    for number, wait_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            return process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            continue
    return "", "it did not end when killed"
