"""Ranks that share one GPU: every collective of the trainer, eager and in graphs, beside one rank and the CPU."""
import array
import math
import os
import pathlib
import signal
import subprocess
import time

from runs import DIGITS, largest_relative, relative_distance, tensors_of, train
from session import OutOfTime, Skipped
from speed import write_npy

# Name, settings, number of ranks, and how far the weights may be from those of one rank on the CPU, relative.
KINDS = [
    ("plain sums", [], 2, 1e-3),
    ("ZeRO-1", ["comm.zero=1"], 2, 1e-3),
    ("ZeRO-2", ["comm.zero=2"], 2, 1e-3),
    ("ZeRO-1", ["comm.zero=1"], 4, 1e-3),
    ("gradients in bf16", ["comm.dtype=bf16"], 4, 2e-2),
    ("bf16 and gradients in bf16", ["comm.dtype=bf16", "train.precision=bf16"], 2, 5e-2),
    ("batch norm over ranks", ['model.layers=[{kind="linear",out_features=64},{kind="batch_norm"},{kind="activation",activation="relu"}]'], 2, 1e-3),
    ("small buckets, updated one by one", ["comm.bucket_mib=0.01"], 4, 1e-3),
    ("clipped, accumulated", ["train.clip_grad_norm=0.5", "train.grad_accum_steps=2"], 2, 1e-3),
]


def collectives(part):
    """Kinds of exchange, eager and graph; bits that must not depend on ranks; a rank that dies."""
    session = part.session
    if not session.mpirun:
        raise Skipped("mpirun")
    n = 6 if session.options.dry_run else 30
    base = [*DIGITS, f"train.steps={n}", "log.every_steps=1", "optimizer.kind=sgd", "optimizer.lr=0.05"]
    n_right = 0
    for name, settings, ranks, bound in KINDS:
        # Statistics and accumulation change what is computed, so that each has a reference of its own.
        of_model = [s for s in base if not (s.startswith("model.hidden") and any("model.layers" in t for t in settings))]
        reference = [s for s in settings if not s.startswith("comm.") and not s.startswith("train.precision")]
        cpu = train(part, f"{name}-{ranks}-cpu".replace(" ", "-"), [*of_model, *reference], device="cpu")
        bits = {}
        for graph in ("off", "on"):
            title = f"{name}, {ranks} ranks, graph {graph}"
            gpu = train(part, title.replace(", ", "-").replace(" ", "-"), [*of_model, *settings], "--cuda-graph", graph, ranks=ranks, limit_s=40)
            if not cpu or not gpu:
                continue
            bits[graph] = gpu.model_bytes()
            loss, weight = largest_relative(gpu.losses, cpu.losses), relative_distance(gpu.weights(), cpu.weights())
            part.results[title] = {"largest_relative_loss_gap": loss, "relative_weight_distance": weight, "train_s": gpu.end["train_s"]}
            n_right += part.check(title, loss <= bound and weight <= bound, f"losses {loss:.1e}, weights {weight:.1e} of {bound:.0e}")
        if len(bits) == 2:
            part.results[f"{name}, {ranks} ranks: graph and eager have the same bits"] = bits["off"] == bits["on"]
        part.save()
    session.row("collectives of ranks that share the GPU", f"{n_right} of {2 * len(KINDS)} as one rank on the CPU")
    same_bits(part, n)
    lost_rank(part)
    survivors(part)


def same_bits(part, n):
    """`deterministic` twice and resumed, and "world" on 1, 2 and 4 ranks with rows of 13 numbers, which begin at any multiple of 4 bytes."""
    session = part.session
    folder = pathlib.Path(session.work)
    rows = 512
    write_npy(folder / "x13.npy", "<f4", (rows, 13), array.array("f", (math.sin(i * 0.7) for i in range(rows * 13))).tobytes(), 1)
    write_npy(folder / "y13.npy", "|u1", (rows,), bytes(i % 10 for i in range(rows)), 1)
    table = [f"data.train={folder / 'x13.npy'}", f"data.labels={folder / 'y13.npy'}", "data.classes=10", "data.eval=none",
             "model.hidden=[64,32]", "train.seed=0", "train.global_batch_size=40", f"train.steps={n}", "log.every_steps=1"]
    for precision in ("f32", "bf16"):
        world = [*table, "train.deterministic=\"world\"", "train.micro_shards=8", f"train.precision={precision}"]
        bits = {}
        for ranks in (1, 2, 4):
            run = train(part, f"world-{precision}-{ranks}", world, ranks=ranks, limit_s=40)
            bits[ranks] = run and (run.model_bytes(), run.losses)
        equal = {ranks: bits[ranks] == bits[1] for ranks in (2, 4) if bits[ranks] and bits[1]}
        part.results[f"deterministic = \"world\", {precision}: bits of one rank"] = equal
        part.check(f"\"world\" in {precision} has the same bits on 1, 2 and 4 ranks", len(equal) == 2 and all(equal.values()), str(equal))
        part.save()
    settings = [*table, "train.deterministic=true", "optimizer.kind=adamw", "optimizer.lr=1e-3"]
    first, second = (train(part, f"deterministic-{i}", settings, ranks=2, limit_s=40) for i in (1, 2))
    if first and second:
        part.check("deterministic = true, twice on 2 ranks: the same bits", first.model_bytes() == second.model_bytes())
    # A run that stops early ends with a status of its own.
    half = folder / "runs" / "deterministic-half"
    ranks = [*session.mpirun, "-n", 2, session.binary, "train", "--device", "cuda", "--share-gpu", "--progress", "none"]
    sets = [word for setting in [*settings, f"train.stop_after_steps={n // 2}"] for word in ("--set", setting)]
    stopped = part.run([*ranks, *sets, "--out", half], 40)
    resumed = part.run([*ranks, "--resume", half, "--set", "train.stop_after_steps=1000000"], 40)
    if first:
        weights = tensors_of(half / "model.safetensors") if resumed.ok else None
        part.results["stopped and resumed"] = {"status": stopped.status, "stopped_after": n // 2}
        part.check("deterministic = true, stopped and resumed: the same bits", stopped.status == 85 and weights == first.model_bytes(),
                   f"status {stopped.status}, then {resumed.status}: {resumed.tail(300)}")
    part.save()


def lost_rank(part):
    """SIGKILL of one of two ranks: the other ends within its limit and names it."""
    session = part.session
    if part.remaining_s() < 12:
        raise OutOfTime
    out = pathlib.Path(session.work) / "lost-rank"
    words = [*session.mpirun, "-n", 2, session.binary, "train", "--device", "cuda", "--share-gpu", "--out", out, "--progress", "none"]
    for setting in [*DIGITS, "train.steps=1000000", "log.every_steps=10"]:
        words += ["--set", setting]
    started = time.monotonic()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        metrics = out / "metrics.jsonl"
        while time.monotonic() - started < 30 * session.patience and not (metrics.exists() and '"event":"step"' in metrics.read_text()):
            time.sleep(0.2)
        children = [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        # mpirun's only children are the ranks, in the order of their start.
        if not children:
            return part.check("a rank is there to be killed", False, f"no child of mpirun; {process.poll()}")
        killed = time.monotonic()
        os.kill(children[-1], signal.SIGKILL)
        text, _ = process.communicate(timeout=40 * session.patience)
        seconds = time.monotonic() - killed
        part.results["a rank is killed"] = {"ends_after_s": seconds, "status": process.returncode}
        part.check("after SIGKILL of a rank the job ends", process.returncode != 0, f"{seconds:.1f} s, status {process.returncode}")
    except subprocess.TimeoutExpired:
        part.check("after SIGKILL of a rank the job ends", False, "it does not")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def survivors(part):
    """SIGKILL of one of three ranks: the others stop their updates, abort NCCL and save; the resumed run has the bits of an undisturbed one."""
    session = part.session
    if part.remaining_s() < 15:
        raise OutOfTime
    n_steps = 200 if session.options.dry_run else 5000
    settings = [*DIGITS, f"train.steps={n_steps}", "log.every_steps=1", "checkpoint.every_epochs=0", "train.clip_grad_norm=1.0"]

    def words(name):
        out = pathlib.Path(session.work) / name
        launch = [session.binary, "launch", "--launcher", "env", "-n", 3, "--max-restarts", 0, "--", "--device", "cuda", "--share-gpu", "--quiet"]
        return out, [str(word) for word in [*launch, "--resume", "auto", "--out", out, *(w for s in settings for w in ("--set", s))]]

    whole, undisturbed = words("survivors-whole")
    out, disturbed = words("survivors-killed")
    part.run(undisturbed, 40)
    process = subprocess.Popen(disturbed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        started, metrics = time.monotonic(), out / "metrics.jsonl"
        while time.monotonic() - started < 30 * session.patience and not (metrics.exists() and metrics.read_text().count('"event":"step"') > 20):
            time.sleep(0.05)
        tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
        ranks = sorted(int(pid) for task in tasks for pid in task.read_text().split())
        if len(ranks) < 3:
            return part.check("three ranks are there", False, f"{ranks}; {process.poll()}")
        killed = time.monotonic()
        os.kill(ranks[-1], signal.SIGKILL)
        text, _ = process.communicate(timeout=40 * session.patience)
        seconds = time.monotonic() - killed
        saved = next((line for line in text.splitlines() if "could save" in line or "has saved" in line), text[-300:])
        part.results["survivors"] = {"ends_after_s": seconds, "status": process.returncode, "said": saved}
        part.check("the ranks that are left save", "has saved the state after step" in saved, f"{seconds:.1f} s: {saved}")
        part.run(disturbed, 40)
        ended = [folder / "model.safetensors" for folder in (whole, out)]
        are_equal = all(path.exists() for path in ended) and tensors_of(ended[0]) == tensors_of(ended[1])
        part.check("the run that continues has the bits of an undisturbed one", are_equal)
    except subprocess.TimeoutExpired:
        part.check("the ranks that are left save", False, "the job does not end")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
