"""One run of all parts: its options, its time, its record."""
import json
import os
import pathlib
import shlex
import sys
import time
import traceback

import command

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import records  # noqa: E402

# What is still worth starting.
LEAST_S = 2.0


class OutOfTime(Exception):
    """The part has no time left; what it found so far counts."""


class Skipped(Exception):
    """The part has nothing to do here; the text says what it needs."""


class Part:
    """One part while it runs: its checks, its results, its time.

    A check holds or doesn't. A result is anything that JSON can hold.
    """

    def __init__(self, session, name, limit_s):
        self.session, self.name = session, name
        self.checks, self.results, self.tails = [], {}, []
        self.end = min(time.monotonic() + limit_s * session.patience, session.end)
        # As the report has it, while the part runs and after it.
        self.entry = {"part": name, "status": "running", "note": "", "ddp_train": session.version, "checks": self.checks, "results": self.results,
                      "tails": self.tails}

    def remaining_s(self):
        return self.end - time.monotonic()

    def save(self):
        """Writes what was found so far, for a run that is cut within the part."""
        self.session.write()

    def check(self, name, passed, detail=""):
        """Notes whether something holds; `detail` is the figures, or why not."""
        passed = bool(passed)
        self.checks.append({"check": name, "passed": passed, "detail": str(detail)})
        if not passed:
            print(f"  FAILED {name}: {str(detail)[-400:]}")
        return passed

    def run(self, words, limit_s=60.0, env=None, cwd=None):
        """Runs a program within its own limit and the part's. Raises OutOfTime if the part's is what ended it."""
        remaining = self.remaining_s()
        limit_s *= self.session.patience
        if remaining < LEAST_S:
            raise OutOfTime
        outcome = command.run(words, min(limit_s, remaining), env, cwd)
        if outcome.status is None and remaining < limit_s:
            self.tails.append(outcome.tail())
            raise OutOfTime
        if not outcome.ok:
            self.tails.append(outcome.tail(4000))
        return outcome

    def json_lines(self, label, words, limit_s=60.0, env=None):
        """The objects that a program prints, one per line; None, and a failed check of that name, if it fails."""
        outcome = self.run(words, limit_s, env)
        if not outcome.ok:
            self.check(label, False, outcome.tail(600))
            return None
        try:
            return [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith("{")]
        except ValueError as error:
            self.check(label, False, f"its output is not JSON: {error}")
            return None


class Session:
    """Runs parts and keeps the report."""

    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.started = time.monotonic()
        # The virtual GPU computes on the CPU, and compiles each kernel with a C++ compiler.
        self.patience = 5 if options.dry_run else 1
        self.end = self.started + options.budget
        self.binary = os.environ["DDP_TRAIN"]
        self.version = command.run([self.binary, "--version"], 20).stdout.strip()
        self.mpirun = self._mpirun()
        self.tests = pathlib.Path(os.environ["DDP_GPU_TESTS"]) if os.environ.get("DDP_GPU_TESTS") else None
        self.report = {"format": 1, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "virtual": False,
                       "dry_run": options.dry_run, "ended": False, "parts": []}
        self.torch = None
        self.table = []

    def _mpirun(self):
        text = os.environ.get("DDP_GPU_MPIRUN", "mpirun")
        # A path of the packed folder is one word, whatever it holds.
        words = [text] if os.path.exists(text) else shlex.split(text)
        return words if command.run([*words, "--version"], 20).ok else None

    def row(self, name, value):
        """A line of the short table."""
        self.table.append((name, value))

    def part(self, plan):
        """Runs one part, whatever becomes of it, and writes the report so far.

        A part that runs out of its time, or for which none is left, is "not reached", which is not a failure: what it found counts.
        """
        name = plan.name
        if self.options.only and not any(word in name for word in self.options.only):
            return
        print(f"== {name} ({plan.predicted_s:g} s expected)", flush=True)
        part = Part(self, name, plan.limit_s)
        self.report["parts"].append(part.entry)
        started = time.monotonic()
        status, note, stopped = "passed", "", None
        try:
            if part.remaining_s() < LEAST_S:
                raise OutOfTime
            plan.function(part)
        except OutOfTime:
            status, note = "not reached", f"out of time after {time.monotonic() - started:.0f} s"
        except Skipped as why:
            status, note = "skipped", f"needs {why}"
        except (KeyboardInterrupt, SystemExit) as why:
            status, note, stopped = "not reached", "the run was stopped", why
        except Exception:  # a fault of this script must not cost the rest of the run
            status, note = "failed", traceback.format_exc()
        n_failed = sum(not check["passed"] for check in part.checks)
        if n_failed:
            status = "failed"
        seconds = time.monotonic() - started
        part.entry.update({"status": status, "note": note, "predicted_s": plan.predicted_s, "seconds": round(seconds, 2)})
        for tail in part.tails[-3:]:
            print("  | " + "\n  | ".join(tail.splitlines()[-12:]))
        n_passed = len(part.checks) - n_failed
        last_line = note.strip().splitlines()[-1] if note else ""
        print(f"== {name}: {status}, {n_passed} checks passed, {n_failed} failed, {seconds:.1f} s{': ' + last_line if last_line else ''}", flush=True)
        self.write()
        if stopped:
            raise stopped

    def write(self):
        """The report as it is now; a run that is stopped leaves what it found."""
        if not self.options.out:
            return
        self.report["seconds"] = round(time.monotonic() - self.started, 1)
        about = {key: value for key, value in self.report.items() if key != "parts"}
        records.write(self.options.out, about, self.report["parts"])

    def counts(self):
        """(passed, failed, skipped or unreached parts): checks, and parts that failed by themselves."""
        passed = failed = other = 0
        for part in self.report["parts"]:
            n_failed = sum(not check["passed"] for check in part["checks"])
            passed += len(part["checks"]) - n_failed
            failed += n_failed or part["status"] == "failed"
            other += part["status"] in ("not reached", "skipped")
        return passed, failed, other
