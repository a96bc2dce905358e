"""Measures how long building ddp-train takes, and the size of the binary.

  python tests/bench/build_times.py [--commit REV] [--profile release] [--jobs N] [--out FILE.jsonl]

Three builds of a commit, in a temporary folder, so that the checkout and its target folder stay as they are:

  demo        what launch/demo builds, from nothing: all crates but Parquet's, ddp not optimized (launch/build --quick)
  one line    the same after one line of comm/src/lib.rs has changed
  full        what launch/build builds, from nothing: all crates

Each with its seconds of wall and of CPU time, and the size of the binary as cargo leaves it and stripped. Crates must have
been downloaded (cargo fetch). Run it on an idle machine. With --out the result is appended to FILE.jsonl.
"""
import argparse
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time

import records

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = {"demo": ["--config", "launch/quick.toml"], "full": ["--features", "parquet"]}


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def cpu_model():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def build(checkout, target, of_build, options):
    """Builds once; seconds of wall time and of all processes' CPU time."""
    command = ["cargo", "build", "--profile", options.profile, "--locked", "--offline", "-p", "ddp-train", "--bin", "ddp-train",
               "--jobs", str(options.jobs), "--target-dir", str(target), *of_build]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-4000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}


def sizes(binary, folder):
    stripped = folder / "stripped"
    subprocess.run(["strip", "-o", stripped, binary], check=True)
    return {"binary_mb": round(binary.stat().st_size / 1e6, 1), "stripped_mb": round(stripped.stat().st_size / 1e6, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="HEAD", help="commit to build (default HEAD)")
    parser.add_argument("--profile", default="release", help="profile of Cargo.toml (default release)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="jobs of cargo (default: number of cores)")
    parser.add_argument("--only", choices=["demo", "full"], help="leave the other builds out")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines to append the result to")
    options = parser.parse_args()

    load_before = os.getloadavg()[0]
    result = {
        "commit": output("git", "rev-parse", "--short", options.commit),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "rustc": output("rustc", "--version"),
        "profile": options.profile,
        "jobs": options.jobs,
        "load_before": round(load_before, 2),
    }
    with tempfile.TemporaryDirectory(prefix="ddp-build-times-") as folder:
        folder = pathlib.Path(folder)
        checkout = folder / "checkout"
        checkout.mkdir()
        archive = subprocess.run(["git", "archive", options.commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", checkout], input=archive, check=True)
        for name, of_build in OPTIONS.items():
            if options.only not in (None, name):
                continue
            target = folder / name
            result[name] = build(checkout, target, of_build, options)
            result[name] |= sizes(target / options.profile / "ddp-train", folder)
            if name == "demo" or options.only:
                with open(checkout / "comm" / "src" / "lib.rs", "a", encoding="utf-8") as file:
                    file.write("\n/// One more line.\npub const ONE_MORE_LINE: u32 = 1;\n")
                result["one line"] = build(checkout, target, of_build, options)
            subprocess.run(["rm", "-rf", target], check=True)
    result["load_after"] = round(os.getloadavg()[0], 2)
    print(records.line(result), end="")
    if options.out:
        records.append(options.out, result)


if __name__ == "__main__":
    main()
