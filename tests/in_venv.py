"""Parts of a test that run in a virtual environment with packages of PyPI, for tests/estimators and tests/from_python.

The environment is made in target/estimators, or in the folder that VENV names. The exit status is 77 if no index of packages answers.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
import venv

import release_program

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {}


def part(function):
    PARTS[function.__name__] = function
    return function


@contextlib.contextmanager
def refused(kind, *parts):
    """The block must raise an error of this kind whose message has these parts."""
    try:
        yield
    except kind as error:
        assert all(text in str(error) for text in parts), f"{error} lacks one of {parts}"
    else:
        raise AssertionError(f"accepted; expected {kind.__name__} with {parts}")


def install(packages):
    """A Python with the packages, or the exit status 77."""
    folder = pathlib.Path(os.environ.get("VENV", ROOT / "target" / "estimators"))
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"skipped: needs {', '.join(packages)}: {done.stderr.strip().splitlines()[-1:]}")
        sys.exit(77)
    return python


def enter(script, about, packages):
    """Starts the script again in the environment, in an empty folder, with the program on the PATH; returns there."""
    if "IN_VENV" in os.environ:
        return
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    release_program.add_binary(parser)
    args = parser.parse_args()
    python = install(packages)
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(args.binary, os.path.join(folder, "ddp-train"))
        path = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "ddp/cli/python"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [python, os.path.realpath(script), *([args.only] if args.only else PARTS)]
        sys.exit(subprocess.run(command, env={**os.environ, **path, "IN_VENV": "1"}, cwd=folder, check=False).returncode)


def run_parts():
    failed = []
    for name in sys.argv[1:]:
        begin = time.monotonic()
        try:
            PARTS[name]()
        except (Exception, KeyboardInterrupt):
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {'FAILED' if name in failed else 'right'}, {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(1 if failed else 0)
