#!/usr/bin/env python3
"""PyTorch's side of `ddp-train bench step`: training steps of a ReLU network on resident random data, on the CPU.

  one process   python torch_step.py --dims 784,1024,1024,10 --batch 128 --steps 60 --warmup 5 --threads 2
  DDP, gloo     python -m torch.distributed.run --standalone --nproc-per-node 2 torch_step.py ... --threads 1
  the machine   python torch_step.py --limits --threads 1      (products of 2048 x 2048, a triad over 3 x 128 MiB)

Rank 0 prints one JSON object. --batch is rows per rank; samples_per_s counts the rows of all ranks.
"""
import argparse
import json
import os
import resource
import statistics
import time


def process_start(pid):
    """When a process started, in seconds since the epoch (from /proc, to 10 ms)."""
    with open(f"/proc/{pid}/stat") as f:
        ticks = float(f.read().rsplit(") ", 1)[1].split()[19])
    with open("/proc/uptime") as f:
        return time.time() - float(f.read().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")


WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
UNDER_LAUNCHER = "TORCHELASTIC_RUN_ID" in os.environ
# Under torch.distributed.run the launcher's own start counts: that is what a user waits for.
STARTED = process_start(os.getppid() if UNDER_LAUNCHER else os.getpid())

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dims", default="784,1024,1024,10")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--optim", choices=["sgd", "adamw"], default="sgd", help="sgd: lr 0.01, momentum 0.9; adamw: lr 1e-3, decay 0.01")
parser.add_argument("--opt-impl", choices=["default", "fused"], default="default")
parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast, with weights in f32")
parser.add_argument("--compile", action="store_true", help="torch.compile of model and loss")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--limits", action="store_true", help="measure the machine instead of a training step")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(args.threads)
N_POOL = 8  # batches taken in turn, so that a step does not find its own rows in the cache


def limits():
    def best_s(function, seconds=1.0):
        function()
        times, end = [], time.perf_counter() + seconds
        while len(times) < 5 or time.perf_counter() < end:
            t0 = time.perf_counter()
            function()
            times.append(time.perf_counter() - t0)
        return min(times)

    n = 2048
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    gflop = 2 * n**3 / 1e9
    out = {"mm_gflops": gflop / best_s(lambda: torch.mm(a, b, out=c))}
    try:
        # Where torch.mm is MKL, which leaves AVX-512 unused on some machines, oneDNN shows what a core can do.
        out["onednn_gflops"] = gflop / best_s(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    except (AttributeError, RuntimeError) as error:
        out["onednn_error"] = str(error)[:200]
    m = 32 << 20
    x, y, z = torch.ones(m), torch.ones(m), torch.ones(m)
    out["triad_gb_s"] = 12 * m / best_s(lambda: torch.add(x, y, alpha=0.5, out=z)) / 1e9
    return out


class NetAndLoss(torch.nn.Module):
    """Network and loss in one forward, so that torch.compile sees both."""

    def __init__(self, dims):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(i, o) for i, o in zip(dims, dims[1:]))

    def forward(self, x, labels):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return F.cross_entropy(self.layers[-1](x), labels)


def bench():
    dist, rank = None, 0
    if UNDER_LAUNCHER:
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    dims = [int(d) for d in args.dims.split(",")]
    net = model = NetAndLoss(dims)
    if dist:
        net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    forward = torch.compile(net) if args.compile else net
    fused = {"fused": True} if args.opt_impl == "fused" else {}
    if args.optim == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **fused)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **fused)
    generator = torch.Generator().manual_seed(1000 + rank)
    pool = [(torch.randn(args.batch, dims[0], generator=generator),
             torch.randint(dims[-1], (args.batch,), generator=generator)) for _ in range(N_POOL)]

    def step(i):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = forward(*pool[i % N_POOL])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step(0)
    startup_s = time.time() - STARTED
    for i in range(1, args.warmup):
        step(i)
    if dist:
        dist.barrier()
    marks = [time.perf_counter()]
    cpu = time.process_time()
    for i in range(args.steps):
        loss = step(i)
        marks.append(time.perf_counter())
    cpu = time.process_time() - cpu
    step_ms = [(b - a) * 1e3 for a, b in zip(marks, marks[1:])]
    rows = WORLD_SIZE * args.batch
    result = {
        "samples_per_s": rows * args.steps / (marks[-1] - marks[0]),
        "step_ms_median": statistics.median(step_ms), "step_ms_min": min(step_ms), "cpu_ms_per_step": cpu / args.steps * 1e3,
        "startup_s": startup_s, "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "world_size": WORLD_SIZE, "threads": torch.get_num_threads(), "dims": dims, "batch": args.batch, "steps": args.steps,
        "dtype": args.dtype, "optim": args.optim, "opt_impl": args.opt_impl, "compile": args.compile, "ddp": bool(dist), "loss": loss.item(),
    }
    if dist:
        dist.barrier()
        dist.destroy_process_group()
    return result if rank == 0 else None


result = limits() if args.limits else bench()
if result:
    print(json.dumps({"torch": torch.__version__, **result}), flush=True)
