"""The program that a test or benchmark starts: the release build of this checkout, DDP_TRAIN or what --binary names."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def add_binary(parser):
    """Adds --binary to a parser: the path of a program that exists, by default the one that launch/build prints, which builds it where it is
    missing."""
    parser.add_argument("--binary", type=existing, default="", help="the program to start, in place of what launch/build makes")


def existing(path):
    if path:
        found = shutil.which(path)
        if found is None:
            raise argparse.ArgumentTypeError(f"no program is at {path}\nhint: without --binary, ./launch/build finds or makes it")
        return os.path.realpath(found)
    built = subprocess.run([ROOT / "launch" / "build"], stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        # It has said why.
        sys.exit(built.returncode)
    return built.stdout.strip()
