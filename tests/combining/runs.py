"""Runs the program in a folder of a trial: alone, under mpirun, stopped, killed, and reads what it left."""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

from . import keys as of_keys

# Keys without which no table is read, and those that it needs in most cases.
ALWAYS = {"data.train", "data.target", "data.labels"}
NEEDED = {"data.eval_labels", "data.categorical", "data.drop", "heads", "data.task", "data.header", "data.missing", "data.missing_target"}
# Longer than any command here takes on a machine that is ten times too busy.
PATIENCE_S = 120
DONE, FAILED, REFUSED, LOST, OTHER_WORLD, STOPPED = 0, 1, 2, 75, 78, 85
# Numbers of an event that are times of its process, and the rows that it trained in that time.
TIMES = {"samples", "samples_per_s", "gflops_per_s", "time", "h2d_ms", "pause_ms", "write_s", "elapsed_s", "train_s", "startup_s"}
# A training that failed for its numbers, not for its config.
OF_NUMBERS = re.compile(r"is (NaN|not finite|infinite)|not finite|overflow|by the recent losses|to return to|rolled? back|diverge|loss scale", re.I)


class Broken(Exception):
    """A law that does not hold: its name and what was seen."""

    def __init__(self, law, what):
        super().__init__(f"{law}: {what}")
        self.law = law


class Refused(Exception):
    """A config that was refused as it must be: before the first step, with key and remedy."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


class Diverged(Exception):
    """A training that ended for its numbers."""


class Ended:
    """A command that ended."""

    def __init__(self, line, status, stdout, stderr):
        self.line, self.status, self.stdout, self.stderr = line, status, stdout, stderr

    def __str__(self):
        words = " ".join(map(str, self.line))
        return f"`{words}` ended with status {self.status}: {self.stderr[-1500:].strip()}"


# Commands that take `--share-gpu`, or hand it to one that does.
RANKED = ("train", "eval", "predict", "launch")


class Program:
    """The program under test and how its ranks are started."""

    def __init__(self, binary, device, keys, shares_gpu=False):
        self.binary, self.device, self.shares_gpu = str(binary), device, shares_gpu
        # Longer names first: some hold others.
        self.key_names = sorted(keys, key=len, reverse=True)
        self.conflicts = {pair(key.name, other) for key in keys.values() for other in [key.alternative, *key.conflicts_with] if other}
        self.env = {**os.environ, "RUST_BACKTRACE": "0", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                    "HWLOC_COMPONENTS": "-pci,-linuxio", "HWLOC_PLUGINS_PATH": "/nonexistent"}
        if device == "cpu":
            self.env["CUDA_VISIBLE_DEVICES"] = ""
        if not shutil.which("ssh"):
            self.env["OMPI_MCA_plm"] = "isolated"

    def line(self, ranks, *args):
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
        share = ["--share-gpu"] if self.shares_gpu and args[0] in RANKED else []
        return [*mpirun, self.binary, *map(str, args), *share]

    def start(self, ranks, *args):
        return subprocess.Popen(self.line(ranks, *args), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)

    def run(self, ranks, *args):
        """Runs a command to its end; it hangs, panics or says "internal error" only to break a law."""
        process = self.start(ranks, *args)
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill(process)
            stdout, stderr = process.communicate()
            raise Broken("never hangs", str(Ended(self.line(ranks, *args), "none", stdout, stderr))) from None
        ended = Ended(self.line(ranks, *args), process.returncode, stdout, stderr)
        if "panicked" in stderr or "internal error" in stderr or process.returncode in (101, 134, 139, -6, -11):
            raise Broken("never panics", str(ended))
        return ended

    def must(self, law, ranks, *args):
        ended = self.run(ranks, *args)
        if ended.status != DONE:
            raise Broken(law, str(ended))
        return ended

    def check_declared(self, named, text):
        """A refusal that names two keys is a conflict of the keys' table."""
        # A longer name that holds a shorter one, such as early_stop_metric, names only itself.
        line = text.split("\n")[0]
        named = [key for key in named if f"`{key}`" in line or f"`{key} " in line]
        pairs = [pair(a, b) for a, b in itertools.combinations(named, 2)]
        if pairs and not any(of in self.conflicts for of in pairs):
            raise Broken("conflicts are declared", line)

    def check_refusal(self, ended):
        """What is refused ends with status 2 or 78, a hint, and a message that names a key, a flag or a file."""
        lines = [line for line in ended.stderr.strip().split("\n") if not line.startswith(("-", "MPI_ABORT", "NOTE", "with errorcode"))]
        error = next((index for index, line in enumerate(lines) if line.startswith("error: ")), None)
        text = "\n".join(lines[error:]) if error is not None else ""
        named = [key for key in self.key_names if key in text]
        if error is None or "hint: " not in text or not (named or "--" in text or "/" in text):
            raise Broken("a refusal names key and remedy", str(ended))
        self.check_declared(named, text)
        if "MPI_ABORT was invoked" in ended.stderr:
            raise Broken("all ranks refuse together", str(ended))
        return Refused(text)


def wait_for_step(process, out, step):
    """Waits until the event of this step is written, or the process has ended."""
    while process.poll() is None:
        try:
            if f'"step":{step},' in (out / "metrics.jsonl").read_text():
                break
        except OSError:
            pass
        time.sleep(0.002)


def is_rank(pid):
    """Whether this is a rank that `launch` has started."""
    try:
        return b"launch" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def kill(process):
    """Ends a process that was started here and all of its session: mpirun gives its ranks groups of their own."""
    while members := of_session(process.pid):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def of_session(session):
    """Living processes of a session."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            state, _, _, of = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4] if folder.name.isdigit() else "Z000"
        except OSError:
            continue
        if int(of) == session and state not in "ZX":
            found.append(int(folder.name))
    return found


def pair(a, b):
    return frozenset([a, b])


def named_key(message, config, forced):
    """The given key to drop after a refusal: the one that it names first, of those without which the table can be read; None if it
    names none."""
    places = [(key in forced, key in NEEDED, message.find(key), key) for key in config if key in message and key not in ALWAYS]
    return min(places)[3] if places else None


def accepted(program, config, own, path):
    """The config of these keys without those that are refused next to the keys of `own`, which it gets too."""
    while True:
        whole = {**config, **own}
        path.write_text(of_keys.config_text(whole))
        ended = program.run(1, "train", path, "--dry-run", "--device", program.device, "--threads", "1", "--quiet")
        if ended.status == DONE:
            return config
        key = named_key(program.check_refusal(ended).message, whole, own)
        if key is None or key in own:
            raise Broken("a config without the keys that are refused is accepted", str(ended))
        config = {name: of for name, of in config.items() if name != key}


class Trial:
    """A table, a config, and a folder for their runs."""

    def __init__(self, program, folder, table, config, ranks):
        if "data.cache" in config:
            config = {**config, "data.cache": str(folder / "cache")}
        self.program, self.folder, self.table, self.config, self.ranks = program, folder, table, config, ranks
        self.path = folder / "run.toml"
        self.path.write_text(of_keys.config_text(config))

    def args(self, out, *sets, config=None):
        line = ["train", config or self.path, "--out", out, "--device", self.program.device, "--threads", "1", "--progress", "none"]
        for one in sets:
            line += ["--set", one]
        return line

    def dry_run(self):
        """Raises Refused if the config is refused on one rank."""
        ended = self.program.run(1, "train", self.path, "--dry-run", "--device", self.program.device, "--threads", "1", "--quiet")
        if ended.status == DONE:
            return
        if ended.status != REFUSED:
            raise Broken("a dry run accepts or refuses", str(ended))
        raise self.program.check_refusal(ended)

    def train(self, name, *sets, ranks=None, config=None, more=()):
        """Trains into a folder of this name, to the end."""
        out = self.folder / name
        ended = self.program.run(ranks or self.ranks, *self.args(out, *sets, config=config), *more)
        return self.judge(Run(out, ended))

    def judge(self, run):
        """The run, if it is complete; raises what its end means."""
        ended = run.ended
        if ended.status == DONE:
            return run
        steps = [event for event in run.events() if event["event"] == "step"]
        if ended.status in (REFUSED, OTHER_WORLD):
            # Only an evaluation finds that its rows do not define the metric that judges.
            if steps and "is not defined for the evaluation rows" not in ended.stderr:
                raise Broken("refused before the first step", str(ended))
            raise self.program.check_refusal(ended)
        if ended.status == FAILED and OF_NUMBERS.search(ended.stderr):
            raise Diverged("\n".join(line for line in ended.stderr.splitlines() if line.startswith("error: ")) or str(ended))
        raise Broken("a config that is accepted trains", str(ended))

    def stop_at(self, name, step, *sets, ranks=None, more=()):
        """Trains until after this step."""
        out = self.folder / name
        ended = self.program.run(ranks or self.ranks, *self.args(out, *sets, f"train.stop_after_steps={step}"), *more)
        if ended.status == STOPPED:
            return Run(out, ended)
        return self.judge(Run(out, ended))

    def resume(self, name, *sets, ranks=None, with_config=True):
        """Trains on from the newest checkpoint of this folder, to the end."""
        out = self.folder / name
        line = self.args(out, *sets)
        line = line + ["--resume", "auto"] if with_config else ["train", "--resume", out, *line[4:]]
        return self.judge(Run(out, self.program.run(ranks or self.ranks, *line)))

    def launch(self, out, *sets, kill_at=None, more=()):
        """Trains under `launch`, whose ranks meet without MPI; `kill_at` kills one of them as soon as this step is written."""
        line = ["launch", "-n", self.ranks, "--launcher", "env", "--", *self.args(out, *sets), *more]
        if kill_at is None:
            return self.program.run(1, *line)
        process = self.program.start(1, *line)
        wait_for_step(process, out, kill_at)
        for rank in sorted(of_session(process.pid)):
            if rank != process.pid and is_rank(rank):
                os.kill(rank, signal.SIGKILL)
                break
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill(process)
            stdout, stderr = process.communicate()
        return Ended(self.program.line(1, *line), process.returncode, stdout, stderr)

    def kill_at(self, name, step, *sets, ranks=None, more=()):
        """Trains, and kills all ranks as soon as this step is written; returns whether the run was complete before."""
        out = self.folder / name
        process = self.program.start(ranks or self.ranks, *self.args(out, *sets), *more)
        wait_for_step(process, out, step)
        kill(process)
        process.communicate()
        return (out / "done.json").exists()


class Run:
    """A folder in which a training ended."""

    def __init__(self, out, ended):
        self.out, self.ended = out, ended

    def events(self, *kinds):
        """Events of these kinds, or all, without times."""
        try:
            text = (self.out / "metrics.jsonl").read_text()
        except OSError:
            return []
        events = [json.loads(line) for line in text.splitlines()]
        found = [{key: of for key, of in event.items() if key not in TIMES} for event in events]
        return [event for event in found if not kinds or event["event"] in kinds]

    def end(self):
        return self.events("end")[-1]

    def n_steps(self):
        return self.end()["steps"]

    def weights(self):
        """Bytes and types of the model's tensors, by name."""
        return tensors(self.out / "model.safetensors")

    def files(self):
        """Contents of the files that two runs of the same inputs have in common, by their paths."""
        found = {}
        for path in sorted(self.out.rglob("*")):
            name = str(path.relative_to(self.out))
            if not path.is_file() or name.startswith(("logs", ".", "tb/")) or name in ("done.json", "metrics.jsonl", "report.html"):
                continue
            text = path.read_bytes()
            if name == "config.toml":
                # A run without a name has that of its folder.
                text = text.replace(f'name = "{self.out.name}"\n'.encode(), b"", 1)
            if path.name == "manifest.json":
                manifest = json.loads(text)
                for key in ("run_id", "time", "checksum"):
                    manifest.pop(key, None)
                # Timed on a GPU, in whose cache another process may leave its own times.
                manifest["run"].pop("matmul_choices", None)
                text = json.dumps(manifest).encode()
            found[name] = text
        return found


def tensors(path):
    """Bytes and types of the tensors of a safetensors file, by name."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {name: (of["dtype"], tuple(of["shape"]), body[slice(*of["data_offsets"])]) for name, of in header.items()}
