#!/usr/bin/env python3
"""PyTorch's side of the comparison on one GPU: training steps, matrix products and copies, in one process.

  python gpu_torch.py --dims 4096,4096,4096 --batch 8192 --dtype bf16 --form compile+graph --steps 50
  python gpu_torch.py --serve         requests as JSON lines on stdin, an answer to each on stdout

A step is forward, loss, backward and optimizer on resident random rows: what `ddp-train bench step` times. Forms:

  eager          kernel by kernel; foreach and fused optimizers are PyTorch's own choice of best, so: fused
  compile        torch.compile of model and loss
  graph          the whole eager step captured as a CUDA graph and replayed
  compile+graph  the compiled step captured

f32 is IEEE single precision, tf32 the same with tf32 products, bf16 autocast over f32 weights. Times are wall time over
all steps between two synchronizations.

Requests: {"do": "step", "dims": [..], "batch": N, "dtype": .., "optim": .., "form": .., "steps": N}, of which the first of a
kind builds, compiles, warms up and captures, and the others only measure; steps 0 is only that. {"do": "addmm", "m", "n",
"k", "transpose_a", "transpose_b", "dtype"}, {"do": "copy", "bytes"}. An answer has "error" where it went wrong.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--serve", action="store_true")
parser.add_argument("--dims", default="784,1024,1024,10")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--dtype", choices=["f32", "tf32", "bf16"], default="f32")
parser.add_argument("--optim", choices=["sgd", "adamw"], default="adamw", help="sgd: lr 0.01, momentum 0.9; adamw: lr 1e-3, decay 0.01")
parser.add_argument("--form", choices=["eager", "compile", "graph", "compile+graph"], default="eager")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu only tries the script, without graphs")
args = parser.parse_args()

# Compilers write where they like; what is said here is only answers.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def answer(value):
    print(json.dumps(value), file=answers, flush=True)


try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    answer({"error": f"no torch: {error}"})
    sys.exit(3)

ON_GPU = args.device == "cuda"
if ON_GPU and not torch.cuda.is_available():
    answer({"error": "torch sees no GPU", "torch": torch.__version__})
    sys.exit(3)
DEVICE = torch.device(args.device)
N_POOL = 8  # batches taken in turn, so that a step does not find its own rows in the cache
N_WARM_UP = 6

# Each form compiles the same code anew for its own model.
torch._dynamo.config.cache_size_limit = 64
torch.manual_seed(0)


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def use(dtype):
    """Chooses how f32 products are computed; compiled code is only valid for one choice."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


class NetAndLoss(torch.nn.Module):
    """Network and loss in one forward, so that torch.compile sees both."""

    def __init__(self, dims, dtype, cache_casts):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(i, o) for i, o in zip(dims, dims[1:]))
        self.is_bf16, self.cache_casts = dtype == "bf16", cache_casts

    def forward(self, x, labels):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.is_bf16, cache_enabled=self.cache_casts):
            for layer in self.layers[:-1]:
                x = F.relu(layer(x))
            x = self.layers[-1](x)
        return F.cross_entropy(x.float(), labels)


class Step:
    """A training step in one form, ready to run."""

    def __init__(self, request, pool):
        dims, dtype, form = request["dims"], request["dtype"], request["form"]
        is_graph = form.endswith("graph")
        model = NetAndLoss(dims, dtype, cache_casts=not is_graph).to(DEVICE)
        self.forward = torch.compile(model) if form.startswith("compile") else model
        options = {"fused": True, **({"capturable": True} if is_graph and request["optim"] == "adamw" else {})}
        if request["optim"] == "sgd":
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **options)
        self.pool, self.next, self.graph = pool, 0, None
        if is_graph:
            self.capture()
        else:
            for _ in range(N_WARM_UP):
                self.run()
        synchronize()

    def train(self, x, labels):
        loss = self.forward(x, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def capture(self):
        self.x, self.labels = (tensor.clone() for tensor in self.pool[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(N_WARM_UP):
                self.train(self.x, self.labels)
        torch.cuda.current_stream().wait_stream(side)
        synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self.loss = self.train(self.x, self.labels)
        self.graph = graph
        for _ in range(N_WARM_UP):
            self.run()

    def run(self):
        x, labels = self.pool[self.next]
        self.next = (self.next + 1) % N_POOL
        if not self.graph:
            return self.train(x, labels)
        self.x.copy_(x, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)
        self.graph.replay()
        return self.loss


pools, steps = {}, {}


def random_rows(dims, batch):
    """Random rows whose labels a linear map of the features gives, so that there is something to learn."""
    if (key := (dims[0], dims[-1], batch)) not in pools:
        teacher = torch.randn(dims[0], dims[-1], device=DEVICE) / math.sqrt(dims[0])
        xs = [torch.randn(batch, dims[0], device=DEVICE) for _ in range(N_POOL)]
        pools[key] = [(x, (x @ teacher).argmax(1)) for x in xs]
    return pools[key]


def time_step(request):
    dims, batch = request["dims"], request["batch"]
    use(request["dtype"])
    key = json.dumps({**request, "steps": None}, sort_keys=True)
    prepared_s = 0.0
    if key not in steps:
        started = time.perf_counter()
        steps[key] = Step(request, random_rows(dims, batch))
        prepared_s = time.perf_counter() - started
    step, n = steps[key], request["steps"]
    result = {"prepared_s": prepared_s, "params": sum(i * o + o for i, o in zip(dims, dims[1:]))}
    if not n:
        return result
    for _ in range(3):
        step.run()
    synchronize()
    started = time.perf_counter()
    for _ in range(n):
        loss = step.run()
    synchronize()
    wall_s = time.perf_counter() - started
    flop = batch * (6 * sum(i * o for i, o in zip(dims, dims[1:])) - 2 * dims[0] * dims[1])
    result.update(step_ms=wall_s * 1e3 / n, samples_per_s=batch * n / wall_s, tflops_per_s=flop * n / wall_s * 1e-12, final_loss=loss.item())
    if ON_GPU:
        result["reserved_mib_of_all_forms"] = torch.cuda.memory_reserved() / 2**20
    return result


def median_ms(work, repeats=7, repeat_ms=20.0):
    """Median time of one call, several in one measurement, between two events."""
    work(0)
    synchronize()
    started = time.perf_counter()
    work(1)
    synchronize()
    n = max(1, min(1000, math.ceil(repeat_ms / max(1e-3, (time.perf_counter() - started) * 1e3))))
    times = []
    for _ in range(repeats):
        if ON_GPU:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for i in range(n):
                work(i)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / n)
        else:
            started = time.perf_counter()
            for i in range(n):
                work(i)
            times.append((time.perf_counter() - started) * 1e3 / n)
    return {"ms_median": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}


def n_sets(n_bytes):
    """Sets of operands that are together larger than the largest L2."""
    return max(1, min(64, math.ceil((512 << 20 if ON_GPU else 1 << 20) / n_bytes)))


def time_addmm(request):
    m, n, k, dtype = request["m"], request["n"], request["k"], request["dtype"]
    use(dtype)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    sets = n_sets((m * k + k * n + m * n) * kind.itemsize)

    def factor(rows, columns, is_transposed):
        shape = (columns, rows) if is_transposed else (rows, columns)
        values = [torch.rand(shape, device=DEVICE).mul_(2).sub_(1).to(kind) for _ in range(sets)]
        return [value.t() for value in values] if is_transposed else values

    a, b = factor(m, k, request.get("transpose_a")), factor(k, n, request.get("transpose_b"))
    c = [torch.empty(m, n, device=DEVICE, dtype=kind) for _ in range(sets)]
    result = median_ms(lambda i: torch.mm(a[i % sets], b[i % sets], out=c[i % sets]))
    result["tflops_per_s"] = 2e-9 * m * n * k / result["ms_median"]
    return result


def time_copy(request):
    n_bytes = request["bytes"]
    sets = n_sets(2 * n_bytes)
    sources = [torch.rand(n_bytes // 4, device=DEVICE) for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]
    result = median_ms(lambda i: targets[i % sets].copy_(sources[i % sets]))
    result["gb_per_s"] = 2e-6 * n_bytes / result["ms_median"]
    return result


def handle(request):
    try:
        return {"step": time_step, "addmm": time_addmm, "copy": time_copy}[request["do"]](request)
    except Exception as error:  # one form that fails must not cost the others
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


if args.serve:
    answer({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
            "device": torch.cuda.get_device_name() if ON_GPU else "cpu", "nccl": ".".join(map(str, torch.cuda.nccl.version())) if ON_GPU else None})
    for line in sys.stdin:
        answer(handle(json.loads(line)))
else:
    dims = [int(width) for width in args.dims.split(",")]
    request = {"do": "step", "dims": dims, "batch": args.batch, "dtype": args.dtype, "optim": args.optim, "form": args.form, "steps": args.steps}
    result = handle(request)
    answer({"torch": torch.__version__, **request, **result})
    sys.exit(1 if "error" in result else 0)
