"""The program, and what it must never do."""

import concurrent.futures
import os
import subprocess
import traceback

# The program's statuses for usage, config or data, and for a file that can't be read.
REFUSED = 2
JOBS = 2


class Fault(Exception):
    """An outcome that is wrong; its text names input and output."""


class Ended:
    """A command that ended."""

    def __init__(self, words, status, out, err):
        self.words, self.status, self.out, self.err = [str(word) for word in words], status, out, err
        self.said = out + err

    @property
    def first_line(self):
        return self.err.strip().split("\n")[0]

    @property
    def hint(self):
        """The text of all hints."""
        return "\n".join(line.strip() for line in self.err.split("hint:")[1:])

    def __str__(self):
        return f"{' '.join(self.words)}: status {self.status}: {shorten(self.err or self.out)}"

    def must_end(self, status=0):
        if self.status != status:
            raise Fault(f"expected status {status}: {self}")
        return self

    def must_refuse(self):
        """A message and a hint with status 2."""
        self.must_end(REFUSED)
        if not self.hint:
            raise Fault(f"no hint: {self}")
        return self


def shorten(text, most=400):
    text = " | ".join(text.strip().split("\n"))
    return text if len(text) <= most else text[: most // 2] + " ... " + text[-most // 2 :]


class Program:
    """`ddp-train` on CPUs, in a folder of its own for each call of `at`."""

    def __init__(self, binary):
        self.binary = binary
        # Without color codes, and on CPUs only; Open MPI refuses root without these words.
        self.env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.env.pop("LD_LIBRARY_PATH", None)
        for name in list(self.env):
            if name.startswith(("DDP_TRAIN_", "SLURM_")) or name == "RUST_LOG":
                del self.env[name]

    def run(self, *words, cwd, stdin=None, timeout=60):
        """Runs a command. Panics, signals and waits without an end are faults whatever was tried."""
        source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        try:
            ended = subprocess.run([self.binary, *words], cwd=cwd, env=self.env, capture_output=True, timeout=timeout, **source)
        except subprocess.TimeoutExpired:
            raise Fault(f"{' '.join(map(str, words))}: takes more than {timeout} s") from None
        ended = Ended(words, ended.returncode, *(text.decode("utf-8", "replace") for text in (ended.stdout, ended.stderr)))
        if ended.status == 101 or ended.status < 0 or "panicked at" in ended.err:
            raise Fault(f"crashed: {ended}")
        return ended


def each(trials, judge, counts, faults):
    """Calls `judge(name, trial)` for each pair, some at a time. It returns the words to count; what it raises is a fault."""

    def one(pair):
        name, trial = pair
        try:
            return judge(name, trial), None
        except Fault as fault:
            return [], f"{name}: {fault}"
        except Exception:
            return [], f"{name}: {shorten(traceback.format_exc(), 600)}"

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for words, fault in pool.map(one, trials):
            counts.update(words)
            if fault:
                faults.append(fault)
