#!/usr/bin/env python3
"""Kills ranks of running jobs at random moments and counts the steps that are lost, and checks that the runs that continue end in the same
weights, bit for bit, as runs that nobody disturbs.

  python tests/survivors.py [--binary FILE] [--base FILE] [--start launch|mpirun] [--trials 40] [--back 0] [--seed 1] [--out FILE]
  tests/vgpu/run -n 4 -- python3 tests/survivors.py --device cuda ...        # ranks on GPUs, also virtual ones
  tests/vgpu/run -n 4 -- python3 tests/survivors.py --device cuda --faults ecc,nccl,kill ...   # virtual GPUs that break, or NCCL that fails

Each trial trains a small model of random settings on 2 to 4 ranks, kills one of them after a random time, and another one once more while the
run continues, in a third of the trials. Steps lost: the last step that rank 0 has reported, less that of the newest checkpoint.
With --base the same is done with another build, which shows what was lost before. --back measures so many times how long it takes under
`launch` from the kill of a rank to the next trained step, with both builds in turn. With --out the results are written as JSON lines;
the exit status is 0 only if every run ended in the right weights and, under launch, 99 % of the losses cost at most one step, or five where copies of
shards are refreshed every five steps.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "bench")]
import records  # noqa: E402
import release_program  # noqa: E402

# What differs from run to run. The first is the plain one.
KINDS = {
    "plain": [],
    "sgd": ["optimizer.kind=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9"],
    "ema": ["train.ema_decay=0.99"],
    "accumulated": ["train.grad_accum_steps=2"],
    "dropout": ["model.dropout=0.2"],
    "batch norm": ['model.layers=[{kind="linear",out_features=96},{kind="batch_norm"},{kind="linear",out_features=32,activation="relu"}]'],
    "clipped": ["train.clip_grad_norm=1.0"],
    "evaluated": ["train.eval_every_steps=7"],
    "saved often": ["checkpoint.every_steps=20", "checkpoint.keep=2"],
    "saved in place": ["checkpoint.every_steps=20", "checkpoint.async=false"],
    "sum of shards": ["comm.zero=1"],
}
# Kinds that only CPUs have: each rank keeps a copy of another one's shard.
CPU_KINDS = {
    "copies": ["comm.zero=1", "comm.zero_copies=1"],
    "copies averaged": ["comm.zero=1", "comm.zero_copies=1", "train.ema_decay=0.99", "comm.bucket_mib=0.01"],
    "copies accumulated": ["comm.zero=2", "comm.zero_copies=1", "train.grad_accum_steps=2", "train.clip_grad_norm=1.0"],
    "copies saved often": ["comm.zero=2", "comm.zero_copies=1", "checkpoint.every_steps=20", "checkpoint.keep=2", "comm.bucket_mib=0.01"],
}
REFRESHED = ["comm.zero_copies=1", "comm.zero_copies_every_steps=5"]
# Kinds that only GPUs have. The third one computes in buckets whose weights are updated one after the other. Copies of shards are refreshed every
# five steps.
GPU_KINDS = {
    "bf16": ["train.precision=bf16"],
    "f16": ["train.precision=f16"],
    "several buckets": ["comm.bucket_mib=0.01"],
    "no overlap": ["comm.overlap=false"],
    "refreshed": ["comm.zero=1", *REFRESHED],
    "refreshed averaged": ["comm.zero=2", *REFRESHED, "train.ema_decay=0.99", "comm.bucket_mib=0.01", "train.clip_grad_norm=1.0"],
    "refreshed accumulated": ["comm.zero=2", *REFRESHED, "train.grad_accum_steps=2", "train.eval_every_steps=7"],
    "refreshed bf16": ["comm.zero=1", *REFRESHED, "train.precision=bf16", "optimizer.kind=muon"],
    "refreshed f16": ["comm.zero=1", *REFRESHED, "train.precision=f16"],
    "refreshed batch norm": [
        "comm.zero=1", *REFRESHED,
        'model.layers=[{kind="linear",out_features=96},{kind="batch_norm"},{kind="linear",out_features=32,activation="relu"}]',
    ],
    "refreshed saved often": ["comm.zero=1", *REFRESHED, "checkpoint.every_steps=12", "checkpoint.keep=2"],
}
# Longest time of a run, on a machine that does other things too.
LIMIT_S = 300
JOBS = []
# These ranks do not hold the whole state: the newest checkpoint counts.
WITHOUT_SAVE = {"sum of shards"}


def most_lost(kind):
    """Most steps that a loss may cost."""
    return 5 if kind.startswith("refreshed") else 1


def settings(kind, seed, device):
    """Of one run: a second or two of training, on virtual GPUs some more."""
    of_kind = {**KINDS, **CPU_KINDS, **GPU_KINDS}[kind]
    # Most kinds save too rarely for a loss to find a checkpoint.
    of_saves = [] if any(item.startswith("checkpoint.") for item in of_kind) else ["checkpoint.every_epochs=0"]
    of_model = [] if any(item.startswith("model.") for item in of_kind) else ["model.hidden=[96,64]"]
    n_epochs = 400 if device == "cpu" else 40
    return [*of_model, f"train.epochs={n_epochs}", "log.every_steps=1", f"train.seed={seed}", "watchdog.timeout_s=2", *of_saves, *of_kind]


def command(binary, out, n_ranks, sets, start, device):
    train = ["train", "--out", str(out), "--resume", "auto", "--quiet", "--threads", "1", "--device", device]
    for item in sets:
        train += ["--set", item]
    if start == "launch":
        return [binary, "launch", "--launcher", "env", "-n", str(n_ranks), "--max-restarts", "0", "--", *train]
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n_ranks), binary, *train]


def begin(args, binary, out, n_ranks, sets, fault=None):
    env = {
        **os.environ, **({"VGPU_FAIL": fault} if fault else {}), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    if not shutil.which("ssh"):
        env["OMPI_MCA_plm"] = "isolated"
    with open(f"{out}.stderr", "a") as stderr:
        return subprocess.Popen(command(binary, out, n_ranks, sets, args.start, args.device), env=env, stdout=subprocess.DEVNULL, stderr=stderr)


def ranks_of(job):
    """Process ids of the ranks that a launcher has started, by rank."""
    found = {}
    for task in pathlib.Path(f"/proc/{job.pid}/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for word in words:
                if word.startswith((b"RANK=", b"OMPI_COMM_WORLD_RANK=")):
                    found[int(word.split(b"=")[1])] = int(pid)
    return found


def last_step(out):
    """The last step that rank 0 has reported."""
    try:
        lines = (out / "metrics.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    steps = [json.loads(line)["step"] for line in lines if line.startswith('{"event":"step"') and line.endswith("}")]
    return max(steps, default=0)


def newest_checkpoint(out):
    steps = [int(path.name[5:]) for path in out.glob("checkpoints/step-*") if (path / "manifest.json").exists()]
    return max(steps, default=0)


def weights(out):
    """The bytes of the tensors of a run's model, by name."""
    data = (out / "model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    begin_of = 8 + n
    return {
        name: data[begin_of + of["data_offsets"][0]:begin_of + of["data_offsets"][1]]
        for name, of in header.items() if name != "__metadata__"
    }


def failing(fault, victim, seconds):
    """What makes a virtual GPU break, or NCCL fail on a rank or on all, after about this time in a run."""
    if fault == "ecc":
        return f"ecc:{450 + int(5000 * seconds)},rank={victim}"
    return f"nccl:step={30 + int(400 * seconds)}" + (f",rank={victim}" if victim else "")


def disturbed(args, binary, out, n_ranks, sets, kills):
    """Runs to the end, with a rank killed at each of `kills`, (rank, seconds after the first step, fault), or its GPU or NCCL broken. Returns the
    losses."""
    losses = []
    for victim, seconds, fault in [*kills, (None, None, "kill")]:
        began_at = last_step(out)
        job = begin(args, binary, out, n_ranks, sets, failing(fault, victim, seconds) if fault != "kill" else None)
        JOBS.append(job)
        if fault != "kill":
            status = job.wait(timeout=LIMIT_S)
            if not (out / "done.json").exists() and last_step(out) > began_at:
                reported, kept = last_step(out), newest_checkpoint(out)
                losses.append({
                    "rank": victim, "fault": fault, "step": reported, "checkpoint": kept, "lost": max(0, reported - kept), "status": status,
                })
            continue
        if victim is not None:
            deadline = time.monotonic() + 30
            while (len(ranks_of(job)) < n_ranks or last_step(out) <= began_at) and job.poll() is None:
                if time.monotonic() > deadline:
                    job.kill()
                    raise TimeoutError("no step")
                time.sleep(0.005)
            time.sleep(seconds)
            pid = ranks_of(job).get(victim)
            if pid is not None and job.poll() is None:
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                status = job.wait(timeout=LIMIT_S)
                if (out / "done.json").exists():
                    # It came too late.
                    continue
                reported, kept = last_step(out), newest_checkpoint(out)
                losses.append({
                    "rank": victim, "step": reported, "checkpoint": kept, "lost": max(0, reported - kept),
                    "ended_s": round(time.monotonic() - killed, 3), "status": status,
                })
                continue
        status = job.wait(timeout=LIMIT_S)
        if (out / "done.json").exists():
            return losses
        if victim is None:
            raise RuntimeError(f"status {status}: {pathlib.Path(f'{out}.stderr').read_text()[-1500:]}")
    return losses


def back(binary, out, n_ranks, victim, seconds):
    """Seconds from the kill of a rank to the first step after the restart."""
    line = command(binary, out, n_ranks, settings("plain", 1, "cpu"), "launch", "cpu")
    line[line.index("--max-restarts") + 1] = "1"
    with open(f"{out}.stderr", "a") as stderr:
        job = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        while len(ranks_of(job)) < n_ranks or last_step(out) == 0:
            time.sleep(0.005)
        time.sleep(seconds)
        os.kill(ranks_of(job)[victim], signal.SIGKILL)
        killed, has_failed = time.monotonic(), False
        while time.monotonic() - killed < 30:
            time.sleep(0.002)
            try:
                with (out / "metrics.jsonl").open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                    last = (file.read().splitlines() or [b""])[-1]
            except OSError:
                continue
            has_failed |= last.startswith(b'{"event":"failed"')
            if has_failed and last.startswith(b'{"event":"step"'):
                return time.monotonic() - killed
        raise TimeoutError("no step after the restart")
    finally:
        for pid in ranks_of(job).values():
            os.kill(pid, signal.SIGKILL)
        job.kill()
        job.wait()


def times_back(args):
    """Medians of `back` with both builds in turn."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddp-survivors-back-"))
    builds = {"now": args.binary, **({"base": args.base} if args.base else {})}
    times = {name: [] for name in builds}
    for index in range(args.back):
        for name, binary in builds.items():
            times[name].append(back(binary, folder / f"{name}{index}", 3, index % 3, 0.2))
    shutil.rmtree(folder)
    return {name: {"median_s": round(statistics.median(of), 3), "all_s": [round(s, 3) for s in of]} for name, of in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release_program.add_binary(parser)
    parser.add_argument("--base", help="another build, for comparison")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--start", choices=["launch", "mpirun"], default="launch", help="what starts the ranks")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--back", type=int, default=0, help="measurements of the time until training goes on")
    parser.add_argument("--kinds", help="only these, separated by commas")
    parser.add_argument("--faults", default="kill", help="of these, separated by commas: kill, and of virtual GPUs ecc and nccl")
    parser.add_argument("--out", help="file for the results as JSON lines")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    until_back = times_back(args) if args.back else None
    kinds = args.kinds.split(",") if args.kinds else [*KINDS, *(GPU_KINDS if args.device == "cuda" else CPU_KINDS)]
    results, wrong = [], []
    for index in range(args.trials):
        kind, n_ranks, seed = kinds[index % len(kinds)], draw.choice([2, 3, 4]), draw.randrange(1000)
        n_kills = draw.choice([1, 1, 2])
        faults = args.faults.split(",")
        kills = [(draw.choice([0, draw.randrange(1, n_ranks)]), draw.uniform(0, 0.5), faults[(index + i) % len(faults)]) for i in range(n_kills)]
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddp-survivors-"))
        result = {"kind": kind, "ranks": n_ranks, "seed": seed, "kills": [[rank, round(s, 3), *([fault] if fault != "kill" else [])] for rank, s, fault in kills]}
        try:
            sets = settings(kind, seed, args.device)
            reference = folder / "reference"
            disturbed(args, args.binary, reference, n_ranks, sets, [])
            result["losses"] = disturbed(args, args.binary, folder / "run", n_ranks, sets, kills)
            if args.base:
                known = [item for item in sets if not item.startswith("comm.zero_copies")]
                result["losses of base"] = disturbed(args, args.base, folder / "base", n_ranks, known, kills)
            problem = None if weights(reference) == weights(folder / "run") else "other weights"
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired, OSError) as error:
            problem = str(error)
            # Its ranks end with it.
            JOBS[-1].kill()
            JOBS[-1].wait()
        if problem:
            result["problem"] = problem
            wrong.append(problem)
            kept = pathlib.Path(tempfile.gettempdir()) / f"ddp-survivors-wrong-{index}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(folder, kept)
        shutil.rmtree(folder, ignore_errors=True)
        results.append(result)
        lost = [f"{of['lost']} of {of['step']}" for of in result.get("losses", [])]
        print(f"{index + 1}/{args.trials} {kind}, {n_ranks} ranks, {[f'{fault} of {rank}' for rank, _, fault in kills]}: steps lost {', '.join(lost) or 'none'}"
              f"{'; ' + problem if problem else ''}", flush=True)
    counted = [(result["kind"], of) for result in results if result["kind"] not in WITHOUT_SAVE for of in result.get("losses", [])]
    few = sum(of["lost"] <= most_lost(kind) for kind, of in counted)
    base = [of["lost"] for result in results if result["kind"] not in WITHOUT_SAVE for of in result.get("losses of base", [])]
    about = {
        "start": args.start, "device": args.device, "trials": len(results), "seed": args.seed, "wrong": len(wrong), "losses": len(counted), "of few steps": few,
        "faults": args.faults, "until the next step": until_back, "steps lost": sum(of["lost"] for _, of in counted), "steps lost by base": sum(base) if args.base else None, "machine": records.processor(),
    }
    if args.out:
        records.write(args.out, about, results)
    print(f"{len(results) - len(wrong)} of {len(results)} right; {few} of {len(counted)} losses cost at most one step, or those since a refresh"
          + (f"; {about['steps lost']} steps lost, {sum(base)} by the other build" if args.base else "")
          + "".join(f"; next step after {of['median_s']} s ({name})" for name, of in (until_back or {}).items()))
    sys.exit(1 if wrong or (args.start == "launch" and few < 0.99 * len(counted)) else 0)


if __name__ == "__main__":
    main()
