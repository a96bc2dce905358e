#!/usr/bin/env python3
"""Makes the goldens of this folder with PyTorch on the CPU, in float32, on one thread.

  python tests/golden/make_goldens.py

Made with torch 2.15.0 (pip), numpy and safetensors; seed 20260. Both are written into every
output. README.md describes the layout. The Rust tests read the outputs and need no Python.
"""
import copy
import fnmatch
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20260
N_FEATURES, HIDDEN = 12, [24, 16]
BATCH_SIZE, STEPS = 16, 5
ROWS = BATCH_SIZE * STEPS

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
HEAD = {"generator": "tests/golden/make_goldens.py", "torch": torch.__version__, "seed": SEED}


def short(value):
    """The float64 with the fewest digits that rounds to this float32, so that files stay small."""
    number = float(str(np.float32(value)))
    assert np.float32(number) == np.float32(value)
    return number


# ---------------------------------------------------------------- whole training runs

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
ADAMW = {"kind": "adamw", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
CROSS_ENTROPY, MSE = {"kind": "cross_entropy"}, {"kind": "mse"}
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
T4 = ["t0", "t1", "t2", "t3"]
#    name, activation, task, target columns, [loss], [optimizer]
RUNS = [
    ("relu_ce_sgd", "relu", "classification", ["label"], CROSS_ENTROPY, SGD),
    ("relu_ce_adamw", "relu", "classification", ["label"], CROSS_ENTROPY, ADAMW),
    ("gelu_mse_sgd", "gelu", "regression", ["target"], MSE, SGD),
    ("gelu_mse_adamw", "gelu", "regression", ["target"], MSE, ADAMW),
    ("gelu_tanh_mse_sgd", "gelu_tanh", "regression", T4[:3], MSE, SGD),
    ("gelu_tanh_mse_adamw", "gelu_tanh", "regression", T4[:3], MSE, ADAMW),
    ("silu_bce_sgd_nesterov", "silu", "multilabel", T4, {"kind": "bce"}, {**SGD, "nesterov": True}),
    ("tanh_huber_adamw", "tanh", "regression", ["target"], {"kind": "huber"}, ADAMW),
    ("sigmoid_ce_weighted_sgd", "sigmoid", "classification", ["label"],
     {"kind": "cross_entropy", "label_smoothing": 0.1, "class_weights": [0.5, 1.0, 1.5, 2.0, 0.75]}, SGD),
]
N_CLASSES = 5


def problem(task, n_out, generator):
    """Rows of a random linear teacher with noise: `x` [ROWS, N_FEATURES] and the targets."""
    x = torch.randn(ROWS, N_FEATURES, generator=generator)
    teacher = torch.randn(N_FEATURES, n_out, generator=generator) / N_FEATURES**0.5
    score = x @ teacher + 0.3 * torch.randn(ROWS, n_out, generator=generator)
    if task == "classification":
        return x, score.argmax(1)
    # The regression targets reach past 1 so that Huber meets both of its branches.
    return x, (score > 0).float() if task == "multilabel" else 2.0 * score


def write_csv(path, x, y, targets, integers):
    def text(v):
        s = np.format_float_positional(np.float32(v), unique=True, trim="-")
        assert np.float32(s) == np.float32(float(s)) == np.float32(v)
        return s

    rows = [",".join([f"f{i}" for i in range(x.shape[1])] + targets)]
    for xr, yr in zip(x.tolist(), y.reshape(len(y), -1).tolist()):
        rows.append(",".join([text(v) for v in xr] + [str(int(v)) if integers else text(v) for v in yr]))
    path.write_text("\n".join(rows) + "\n")


def cross_entropy(logits, labels, weights, smoothing):
    """The mean of cross-entropies weighted by the classes of the labels. PyTorch's weights with smoothing are others: they pull each
    row toward the classes of large weight (pytorch#104776)."""
    each = F.cross_entropy(logits, labels, label_smoothing=smoothing, ignore_index=-100, reduction="none")
    keep = labels >= 0
    if smoothing == 0 or weights is None:
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=smoothing, ignore_index=-100)
    of_rows = weights[labels[keep]]
    return (of_rows * each[keep]).sum() / of_rows.sum()


def loss_of(out, y, loss):
    kind = loss["kind"]
    if kind == "cross_entropy":
        weight = torch.tensor(loss["class_weights"], dtype=out.dtype) if "class_weights" in loss else None
        return cross_entropy(out, y, weight, loss.get("label_smoothing", 0.0))
    y = y.to(out.dtype).reshape(out.shape)
    if kind == "bce":
        return F.binary_cross_entropy_with_logits(out, y)
    return F.mse_loss(out, y) if kind == "mse" else F.huber_loss(out, y, delta=1.0)


def train(layers, activation, x, y, loss, optimizer):
    """Five steps over the rows in file order; losses and gradient norms are of before each update."""
    layers = copy.deepcopy(layers)
    params = [p for layer in layers for p in (layer.weight, layer.bias)]
    keys = {k: v for k, v in optimizer.items() if k != "kind"}
    make = torch.optim.SGD if optimizer["kind"] == "sgd" else torch.optim.AdamW
    step = make(params, foreach=False, fused=False, **keys)
    losses, norms = [], []
    for i in range(STEPS):
        rows = slice(i * BATCH_SIZE, (i + 1) * BATCH_SIZE)
        out = x[rows]
        for k, layer in enumerate(layers):
            out = layer(out)
            if k + 1 < len(layers):
                out = ACTIVATIONS[activation](out)
        value = loss_of(out, y[rows], loss)
        step.zero_grad()
        value.backward()
        losses.append(value.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in params]).item())
        step.step()
    return layers, losses, norms


def named(layers):
    return {f"layers.{i}.{k}": getattr(layer, k).detach().clone().contiguous()
            for i, layer in enumerate(layers) for k in ("weight", "bias")}


def training():
    cases = []
    for index, (name, activation, task, targets, loss, optimizer) in enumerate(RUNS):
        n_out = N_CLASSES if task == "classification" else len(targets)
        generator = torch.Generator().manual_seed(SEED + index)
        x, y = problem(task, n_out, generator)
        torch.manual_seed(SEED + index)
        dims = [N_FEATURES, *HIDDEN, n_out]
        layers = torch.nn.ModuleList(torch.nn.Linear(i, o) for i, o in zip(dims, dims[1:]))
        final, losses, norms = train(layers, activation, x, y, loss, optimizer)

        # A golden must not hang on the order of one sum: AdamW turns a gradient that is all rounding
        # into a full step. The same run in float64 shows how far float32 strays here.
        exact, exact_losses, _ = train(layers.double(), activation, x.double(), y, loss, optimizer)
        layers.float()
        gap = max((named(final)[k].double() - v).abs().max().item() for k, v in named(exact).items())
        loss_gap = max(abs(a - b) / abs(b) for a, b in zip(losses, exact_losses))
        assert gap < 1e-6 and loss_gap < 5e-7, f"{name}: float32 strays by {gap:.1e}, {loss_gap:.1e}; take another seed"

        write_csv(HERE / f"{name}.csv", x, y, targets, task != "regression")
        # One key only: safetensors writes several in an order that changes from run to run.
        head = {"made_by": f"{HEAD['generator']}, torch {HEAD['torch']}, seed {SEED}"}
        for part, model in (("init", layers), ("final", final)):
            path = HERE / f"{name}.{part}.safetensors"
            save_file(named(model), path, metadata=head)
            path.chmod(0o644)
        cases.append({
            "name": name, "csv": f"{name}.csv",
            "init": f"{name}.init.safetensors", "final": f"{name}.final.safetensors",
            "in_features": N_FEATURES, "hidden": HIDDEN, "out_features": n_out,
            "activation": activation, "task": task, "targets": targets,
            "loss": loss, "optimizer": optimizer,
            "losses": losses, "grad_norms": norms,
            "float64_weight_gap": gap, "float64_loss_gap": loss_gap,
        })
        print(f"{name:26} loss {losses[0]:.6f} -> {losses[-1]:.6f}   float64 gap: weights {gap:.1e}, loss {loss_gap:.1e}")
    doc = {**HEAD, "batch_size": BATCH_SIZE, "steps": STEPS, "shuffle": False, "cases": cases}
    (HERE / "training.json").write_text(json.dumps(doc, indent=1) + "\n")


# ---------------------------------------------------------------- schedules

LR = torch.optim.lr_scheduler


def rates(make, base_lr, n_steps):
    """The learning rate of each of `n_steps` updates, with a scheduler that `make` builds."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base_lr)
    scheduler = make(optimizer)
    seen = []
    for _ in range(n_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def after_warmup(steps, start, then):
    """`LinearLR` from `start`, by default 1 / (steps + 1), and then `then`, as `SequentialLR` joins them."""
    def make(optimizer):
        if steps == 0:
            return then(optimizer)
        factor = start if start is not None else 1 / (steps + 1)
        if factor == 0:  # which LinearLR refuses
            rise = LR.LambdaLR(optimizer, lambda t: t / steps)
        else:
            rise = LR.LinearLR(optimizer, start_factor=factor, end_factor=1.0, total_iters=steps)
        return LR.SequentialLR(optimizer, [rise, then(optimizer)], milestones=[steps])
    return make


def scheduler(kind, base_lr, total, warmup=0, start=None, end=0.0, every=None, factor=None, decay=None, growth=1):
    """PyTorch's form of `[schedule]`, with everything in steps."""
    rest = total - warmup
    constant = lambda o: LR.ConstantLR(o, factor=1.0, total_iters=0)  # noqa: E731
    if kind == "one_cycle":
        return lambda o: LR.OneCycleLR(
            o, max_lr=base_lr, total_steps=total, pct_start=warmup / total, anneal_strategy="cos",
            div_factor=1 / start, final_div_factor=start / end, cycle_momentum=False)
    if kind == "wsd":
        fall = lambda o: LR.LinearLR(o, start_factor=1.0, end_factor=end, total_iters=decay)  # noqa: E731
        then = lambda o: LR.SequentialLR(o, [constant(o), fall(o)], milestones=[rest - decay])  # noqa: E731
        # SequentialLR does not nest, so the stable part counts from the warm-up's end in one list of three.
        if warmup:
            rise = lambda o: LR.LinearLR(o, start_factor=start or 1 / (warmup + 1), end_factor=1.0, total_iters=warmup)  # noqa: E731
            return lambda o: LR.SequentialLR(o, [rise(o), constant(o), fall(o)], milestones=[warmup, total - decay])
        return then
    then = {
        "constant": constant,
        "linear": lambda o: LR.LinearLR(o, start_factor=1.0, end_factor=end, total_iters=rest),
        "cosine": lambda o: LR.CosineAnnealingLR(o, T_max=rest, eta_min=end * base_lr),
        "step": lambda o: LR.StepLR(o, step_size=every, gamma=factor),
        "exponential": lambda o: LR.ExponentialLR(o, gamma=factor ** (1 / every)),
        "cosine_restarts": lambda o: LR.CosineAnnealingWarmRestarts(o, T_0=every, T_mult=growth, eta_min=end * base_lr),
    }[kind]
    return after_warmup(warmup, start, then)


#    name, base_lr, steps, [schedule] of the config, the same in steps
SCHEDULES = [
    ("constant", 0.1, 10, {"kind": "constant"}, {}),
    ("constant_warm", 0.1, 10, {"kind": "constant", "warmup_steps": 4}, {"warmup": 4}),
    ("constant_warm_from_0", 0.1, 10, {"kind": "constant", "warmup_steps": 4, "warmup_start": 0.0}, {"warmup": 4, "start": 0.0}),
    ("linear", 1e-3, 12, {"kind": "linear"}, {}),
    ("linear_warm", 1e-3, 20, {"kind": "linear", "warmup_fraction": 0.25, "warmup_start": 0.1, "final_fraction": 0.2},
     {"warmup": 5, "start": 0.1, "end": 0.2}),
    ("cosine", 1e-3, 30, {"kind": "cosine"}, {}),
    ("cosine_warm", 3e-4, 100, {"kind": "cosine", "warmup_steps": 10, "final_fraction": 0.1}, {"warmup": 10, "end": 0.1}),
    ("step", 0.1, 20, {"kind": "step", "step_every_steps": 6, "step_factor": 0.5}, {"every": 6, "factor": 0.5}),
    ("step_warm", 0.1, 20, {"kind": "step", "step_every_fraction": 0.2, "warmup_steps": 3},
     {"every": 4, "factor": 0.1, "warmup": 3}),
    ("exponential", 0.1, 20, {"kind": "exponential", "step_every_steps": 6, "step_factor": 0.5}, {"every": 6, "factor": 0.5}),
    ("exponential_warm", 0.1, 20, {"kind": "exponential", "step_every_fraction": 0.05, "step_factor": 0.9, "warmup_steps": 3},
     {"every": 1, "factor": 0.9, "warmup": 3}),
    ("cosine_restarts", 0.1, 20, {"kind": "cosine_restarts", "step_every_steps": 6, "final_fraction": 0.1}, {"every": 6, "end": 0.1}),
    ("cosine_restarts_longer", 0.1, 40, {"kind": "cosine_restarts", "step_every_steps": 3, "restart_growth": 2}, {"every": 3, "growth": 2}),
    ("wsd", 0.01, 25, {"kind": "wsd"}, {"decay": 5}),
    ("wsd_warm", 0.01, 30, {"kind": "wsd", "warmup_fraction": 0.1, "decay_steps": 10, "final_fraction": 0.05},
     {"warmup": 3, "decay": 10, "end": 0.05}),
    ("one_cycle", 0.01, 50, {"kind": "one_cycle"}, {"warmup": 15, "start": 0.04, "end": 4e-6}),
    # A rise that is not a whole number of steps.
    ("one_cycle_other", 0.5, 33, {"kind": "one_cycle", "warmup_fraction": 0.25, "warmup_start": 0.1, "final_fraction": 0.01},
     {"warmup": 8.25, "start": 0.1, "end": 0.01}),
]


def schedules():
    cases = []
    for name, base_lr, n_steps, config, steps in SCHEDULES:
        seen = rates(scheduler(config["kind"], base_lr, n_steps, **steps), base_lr, n_steps)
        cases.append({"name": name, "base_lr": base_lr, "steps": n_steps, "schedule": config, "lr": seen})
    body = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    head = json.dumps(HEAD)[1:-1]
    (HERE / "schedules.json").write_text(f'{{{head}, "cases": [\n{body}\n]}}\n')
    print(f"schedules.json: {len(cases)} cases")


# ---------------------------------------------------------------- runs with all that surrounds a step

LONG_STEPS = 10
DECAYED = {"kind": "adamw", "lr": 2e-3, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.3}
GROUPS = [{"match": "layers.0.*", "lr_scale": 0.1, "weight_decay": 0.05}, {"match": "*.bias", "lr_scale": 2.0}]
#    name, [optimizer], [train], [schedule], the same in steps
LONG_RUNS = [
    ("groups_adamw", {**DECAYED, "groups": GROUPS}, {}, {"kind": "constant"}, {}),
    ("no_decay_adamw", {**DECAYED, "decay_bias_norm": False}, {}, {"kind": "linear", "warmup_steps": 3}, {"warmup": 3}),
    ("clip_ema_adamw", DECAYED, {"clip_grad_norm": 1.2, "ema_decay": 0.9, "ema_warmup": False},
     {"kind": "cosine", "warmup_fraction": 0.2, "final_fraction": 0.1}, {"warmup": 2, "end": 0.1}),
    ("accumulation_sgd", {**SGD, "nesterov": True, "weight_decay": 0.01, "groups": GROUPS, "decay_bias_norm": False},
     {"clip_grad_norm": 1.35, "grad_accum_steps": 3, "ema_decay": 0.4, "ema_warmup": False},
     {"kind": "step", "step_every_steps": 4, "step_factor": 0.5}, {"every": 4, "factor": 0.5}),
    ("everything_adamw", {**DECAYED, "groups": GROUPS, "decay_bias_norm": False},
     {"clip_grad_norm": 0.4, "grad_accum_steps": 2, "ema_decay": 0.8, "ema_warmup": False},
     {"kind": "one_cycle"}, {"warmup": 3, "start": 0.04, "end": 4e-6}),
    ("wsd_adamw", DECAYED, {"grad_accum_steps": 4}, {"kind": "wsd", "warmup_steps": 2, "decay_steps": 4}, {"warmup": 2, "decay": 4}),
    ("group_schedules_adamw", {**DECAYED, "groups": [
        {"match": "layers.0.*", "lr_scale": 0.5, "schedule": {"kind": "linear", "warmup_steps": 3, "final_fraction": 0.1}},
        {"match": "norms.*", "lr_scale": 2.0},
        {"match": "*.bias", "weight_decay": 0.0, "schedule": {"kind": "step", "step_every_steps": 4, "step_factor": 0.5}}]},
     {}, {"kind": "cosine"}, {}),
]
# Keys of [schedule], and the arguments of `scheduler`.
IN_STEPS = {"warmup_steps": "warmup", "final_fraction": "end", "step_every_steps": "every", "step_factor": "factor"}


class Net(torch.nn.Module):
    """Linear layers, each hidden one followed by layer norm and GELU."""

    def __init__(self, dims):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(i, o) for i, o in zip(dims, dims[1:]))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(o) for o in dims[1:-1])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.gelu(norm(layer(x)))
        return self.layers[-1](x)


def param_groups(net, optimizer):
    """PyTorch's groups for ours: one per parameter; of the groups that match its name the first one counts."""
    made = []
    for name, p in net.named_parameters():
        group = next((g for g in optimizer.get("groups", []) if fnmatch.fnmatchcase(name, g["match"])), {})
        is_weight = name.startswith("layers.") and name.endswith(".weight")
        spared = not optimizer.get("decay_bias_norm", True) and not is_weight
        decay = group.get("weight_decay", 0.0 if spared else optimizer["weight_decay"])
        made.append({"params": [p], "lr": optimizer["lr"] * group.get("lr_scale", 1.0), "weight_decay": decay})
    return made


def group_rates(net, optimizer, lr):
    """The learning rates of each parameter's group: by `lr` of the run, or by the group's schedule, without its factor."""
    made = []
    for name, _ in net.named_parameters():
        group = next((g for g in optimizer.get("groups", []) if fnmatch.fnmatchcase(name, g["match"])), {})
        own = dict(group.get("schedule", {}))
        if own:
            make = scheduler(own.pop("kind"), optimizer["lr"], LONG_STEPS, **{IN_STEPS[k]: v for k, v in own.items()})
            made.append(rates(make, optimizer["lr"], LONG_STEPS))
        else:
            made.append(lr)
    return made


def train_long(net, x, y, optimizer, settings, schedule, in_steps):
    """Ten steps over the rows in file order. Losses and norms are of before each update, norms of before clipping."""
    net = copy.deepcopy(net)
    keys = {k: v for k, v in optimizer.items() if k in ("momentum", "nesterov", "betas", "eps")}
    make = torch.optim.SGD if optimizer["kind"] == "sgd" else torch.optim.AdamW
    groups = param_groups(net, optimizer)
    step = make(groups, lr=optimizer["lr"], foreach=False, fused=False, **keys)
    lr = rates(scheduler(schedule["kind"], optimizer["lr"], LONG_STEPS, **in_steps), optimizer["lr"], LONG_STEPS)
    # A list of functions, one a group.
    factors = [lambda t, own=own: own[min(t, LONG_STEPS - 1)] / optimizer["lr"] for own in group_rates(net, optimizer, lr)]
    schedule_of_groups = LR.LambdaLR(step, factors)
    average = None
    if "ema_decay" in settings:
        multi = torch.optim.swa_utils.get_ema_multi_avg_fn(settings["ema_decay"])
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=multi)
    losses, norms = [], []
    for i in range(LONG_STEPS):
        rows = torch.arange(i * BATCH_SIZE, (i + 1) * BATCH_SIZE)
        step.zero_grad()
        total = 0.0
        # torch.tensor_split gives the first parts a row more where the rows don't divide.
        for part in torch.tensor_split(rows, settings.get("grad_accum_steps", 1)):
            value = F.cross_entropy(net(x[part]), y[part]) * (len(part) / BATCH_SIZE)
            value.backward()
            total += value.item()
        losses.append(total)
        limit = settings.get("clip_grad_norm", math.inf)
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), limit, foreach=False).item())
        step.step()
        schedule_of_groups.step()
        if average is not None:
            average.update_parameters(net)
    ema = None if average is None else dict(average.module.named_parameters())
    return dict(net.named_parameters()), ema, losses, norms


def largest_gap(these, those):
    return max((v.detach().double() - those[k].detach()).abs().max().item() for k, v in these.items())


def long_training():
    cases = []
    for index, (name, optimizer, settings, schedule, in_steps) in enumerate(LONG_RUNS):
        for seed in range(SEED + 100 * index, SEED + 100 * (index + 1)):
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(BATCH_SIZE * LONG_STEPS, N_FEATURES, generator=generator)
            teacher = torch.randn(N_FEATURES, N_CLASSES, generator=generator) / N_FEATURES**0.5
            y = (x @ teacher + 0.3 * torch.randn(len(x), N_CLASSES, generator=generator)).argmax(1)
            net = Net([N_FEATURES, *HIDDEN, N_CLASSES])
            args = (optimizer, settings, schedule, in_steps)
            final, ema, losses, norms = train_long(net, x, y, *args)
            # As in `training`: a golden must not hang on the order of one sum.
            exact, exact_ema, exact_losses, _ = train_long(net.double(), x.double(), y, *args)
            net.float()
            gap = largest_gap(final, exact)
            loss_gap = max(abs(a - b) / abs(b) for a, b in zip(losses, exact_losses))
            if gap < 1e-6 and loss_gap < 3e-7:
                break
        else:
            raise SystemExit(f"{name}: no seed of 100 is well conditioned")
        clipped = sum(norm > settings.get("clip_grad_norm", math.inf) for norm in norms)
        write_csv(HERE / f"{name}.csv", x, y, ["label"], True)
        head = {"made_by": f"{HEAD['generator']}, torch {HEAD['torch']}, seed {seed}"}
        parts = {"init": dict(net.named_parameters()), "final": final, **({} if ema is None else {"ema": ema})}
        for part, tensors in parts.items():
            path = HERE / f"{name}.{part}.safetensors"
            save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, path, metadata=head)
            path.chmod(0o644)
        cases.append({
            "name": name, "csv": f"{name}.csv", **{part: f"{name}.{part}.safetensors" for part in parts}, "seed": seed,
            "hidden": HIDDEN, "optimizer": optimizer, "train": settings, "schedule": schedule,
            "losses": losses, "grad_norms": norms, "n_clipped": clipped,
            "float64_weight_gap": gap, "float64_loss_gap": loss_gap,
        })
        print(f"{name:26} loss {losses[0]:.6f} -> {losses[-1]:.6f}   {clipped} clipped, "
              f"float64 gap: weights {gap:.1e}, loss {loss_gap:.1e}, seed {seed}")
    doc = {**HEAD, "batch_size": BATCH_SIZE, "steps": LONG_STEPS, "shuffle": False, "cases": cases}
    (HERE / "long_training.json").write_text(json.dumps(doc, indent=1) + "\n")


# ---------------------------------------------------------------- single operations

OPS = []
GEN = torch.Generator().manual_seed(SEED)


def randn(*shape, grad=False):
    return torch.randn(*shape, generator=GEN).requires_grad_(grad)


def randint(high, *shape):
    return torch.randint(high, shape, generator=GEN)


def tensor(t):
    t = t.detach()
    if t.dtype == torch.int64:
        return {"dtype": "i64", "shape": list(t.shape), "data": t.reshape(-1).tolist()}
    assert t.dtype == torch.float32 and torch.isfinite(t).all()
    return {"dtype": "f32", "shape": list(t.shape), "data": [short(v) for v in t.reshape(-1).tolist()]}


def case(op, name, params, inputs, outputs):
    # Adding 0 turns -0 into 0: JSON readers differ in how they treat the sign.
    keep = lambda ts: {k: tensor(t + 0 if t.is_floating_point() else t) for k, t in ts.items() if t is not None}  # noqa: E731
    OPS.append({"op": op, "name": name, "params": params, "inputs": keep(inputs), "outputs": keep(outputs)})


def addmm():
    for m, n, k, alpha, beta in ((3, 4, 5, 1.0, 0.0), (3, 4, 5, 1.0, 1.0), (5, 2, 7, 0.5, -2.0), (17, 9, 19, -1.25, 0.5)):
        for trans_a in (False, True):
            for trans_b in (False, True):
                a = randn(*((k, m) if trans_a else (m, k)))
                b = randn(*((n, k) if trans_b else (k, n)))
                c = randn(m, n)
                y = torch.addmm(c, a.T if trans_a else a, b.T if trans_b else b, alpha=alpha, beta=beta)
                case("addmm", f"{m}x{n}x{k}_a{alpha:g}_b{beta:g}_{'t' if trans_a else 'n'}{'t' if trans_b else 'n'}",
                     {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b},
                     {"a": a, "b": b, "c": c}, {"y": y})


def linear():
    for n, i, o, has_bias in ((6, 5, 4, True), (1, 7, 3, True), (19, 17, 1, True), (6, 5, 4, False)):
        x, weight, d_y = randn(n, i, grad=True), randn(o, i, grad=True), randn(n, o)
        bias = randn(o, grad=True) if has_bias else None
        y = F.linear(x, weight, bias)
        y.backward(d_y)
        case("linear", f"{n}x{i}x{o}{'' if has_bias else '_no_bias'}", {},
             {"x": x, "weight": weight, "bias": bias, "d_y": d_y},
             {"y": y, "d_x": x.grad, "d_weight": weight.grad, "d_bias": bias.grad if has_bias else None})


def activations():
    grid = torch.cat([torch.arange(-10, 11) * 1.0, torch.arange(-3, 3.01, 0.25) + 0.1,
                      torch.tensor([0.0, 1e-3, -1e-3, 1e-7, -1e-7])])
    for name, function in ACTIVATIONS.items():
        x = grid.clone().requires_grad_()
        d_y = randn(len(grid))
        y = function(x)
        y.backward(d_y)
        case(name, name, {}, {"x": x, "d_y": d_y}, {"y": y, "d_x": x.grad})


def pair(op, name, function, params, x_name, y_name, x, y):
    x = x.detach().clone().requires_grad_()
    loss = function(x, y)
    loss.backward()
    case(op, name, params, {x_name: x, y_name: y}, {"loss": loss, f"d_{x_name}": x.grad})


def losses():
    n, c = 7, 5
    for smoothing in (0.0, 0.1):
        for weighted in (False, True):
            for ignored in (False, True):
                logits = (3 * randn(n, c)).requires_grad_()
                labels = randint(c, n)
                if ignored:
                    labels[[1, 4]] = -100
                weights = torch.rand(c, generator=GEN) + 0.5 if weighted else None
                loss = cross_entropy(logits, labels, weights, smoothing)
                loss.backward()
                name = "plain" + "_smoothed" * (smoothing > 0) + "_weighted" * weighted + "_ignored" * ignored
                case("softmax_cross_entropy", name, {"label_smoothing": smoothing, "ignore_index": -100},
                     {"logits": logits, "labels": labels, "class_weights": weights}, {"loss": loss, "d_logits": logits.grad})
    logits = torch.tensor([[500.0, -500.0, 0.0], [-80.0, -80.0, -80.0], [1e4, 1e4 - 1, 1e4 - 2]]).requires_grad_()
    labels = torch.tensor([0, 1, 2])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    case("softmax_cross_entropy", "large_logits", {"label_smoothing": 0.0, "ignore_index": -100},
         {"logits": logits, "labels": labels, "class_weights": None}, {"loss": loss, "d_logits": logits.grad})

    bce = F.binary_cross_entropy_with_logits
    pair("bce_with_logits", "plain", bce, {}, "logits", "targets", 2 * randn(6, 4), randint(2, 6, 4).float())
    pair("bce_with_logits", "soft_targets", bce, {}, "logits", "targets", 2 * randn(3, 5), torch.rand(3, 5, generator=GEN))
    far = torch.tensor([[-100.0, -10.0, -1.0, 0.0, 1.0, 10.0, 100.0]])
    pair("bce_with_logits", "far_logits_zero", bce, {}, "logits", "targets", far, torch.zeros_like(far))
    pair("bce_with_logits", "far_logits_one", bce, {}, "logits", "targets", far, torch.ones_like(far))
    pair("mse", "6x3", F.mse_loss, {}, "pred", "target", randn(6, 3), randn(6, 3))
    pair("mse", "9x1", F.mse_loss, {}, "pred", "target", randn(9, 1), randn(9, 1))
    huber = lambda x, y: F.huber_loss(x, y, delta=1.0)  # noqa: E731
    pair("huber", "6x3", huber, {"delta": 1.0}, "pred", "target", 2 * randn(6, 3), randn(6, 3))
    edges = torch.tensor([[-3.0], [-1.0], [-0.5], [0.0], [0.5], [1.0], [1.5]])
    pair("huber", "edges", huber, {"delta": 1.0}, "pred", "target", edges, torch.zeros_like(edges))


def layer_norm():
    for name, x in (("5x8", randn(5, 8)), ("3x33_offset", randn(3, 33) * 4 + 10), ("constant_row", torch.cat([torch.full((1, 6), 0.5), randn(2, 6)]))):
        x = x.requires_grad_()
        c = x.shape[1]
        gamma, beta, d_y = randn(c, grad=True), randn(c, grad=True), randn(*x.shape)
        y = F.layer_norm(x, (c,), gamma, beta, eps=1e-5)
        y.backward(d_y)
        case("layer_norm", name, {"eps": 1e-5}, {"x": x, "gamma": gamma, "beta": beta, "d_y": d_y},
             {"y": y, "d_x": x.grad, "d_gamma": gamma.grad, "d_beta": beta.grad})


def norms_and_gates():
    """RMS norm, and the gated linear units of arXiv:2002.05202: the first half of a row is the gate."""
    for name, x in (("5x8", randn(5, 8)), ("3x33_offset", randn(3, 33) * 4 + 10), ("zero_row", torch.cat([torch.zeros(1, 6), randn(2, 6)]))):
        x = x.requires_grad_()
        norm, d_y = torch.nn.RMSNorm(x.shape[1], eps=1e-6), randn(*x.shape)
        with torch.no_grad():
            norm.weight.copy_(randn(x.shape[1]))
        y = norm(x)
        y.backward(d_y)
        case("rms_norm", name, {"eps": 1e-6}, {"x": x, "gamma": norm.weight, "d_y": d_y},
             {"y": y, "d_x": x.grad, "d_gamma": norm.weight.grad})
    for op, f in (("swiglu", F.silu), ("geglu", F.gelu), ("reglu", F.relu)):
        for rows, cols in ((4, 3), (3, 16)):
            x, d_y = (2 * randn(rows, 2 * cols)).requires_grad_(), randn(rows, cols)
            a, b = x.chunk(2, dim=-1)
            y = f(a) * b
            y.backward(d_y)
            case(op, f"{rows}x{cols}", {}, {"x": x, "d_y": d_y}, {"y": y, "d_x": x.grad})


def optimizers():
    def run(op, name, make, params, states):
        w0, g = randn(37), randn(3, 37)
        g[:, 5] = 0.0
        w = w0.clone().requires_grad_()
        step = make([w], foreach=False, fused=False, **params)
        seen = {"w": [], **{k: [] for k in states}}
        for row in g:
            w.grad = row.clone()
            step.step()
            seen["w"].append(w.detach().clone())
            for k, torch_name in states.items():
                value = step.state[w].get(torch_name)
                seen[k].append(value.clone() if value is not None else torch.zeros_like(w0))
        case(op, name, {k: list(v) if isinstance(v, tuple) else v for k, v in params.items()}, {"w": w0, "g": g},
             {k: torch.stack(v) for k, v in seen.items()})

    for name, momentum, nesterov, decay in (("plain", 0.0, False, 0.0), ("weight_decay", 0.0, False, 0.1),
                                            ("momentum", 0.9, False, 0.0), ("momentum_weight_decay", 0.9, False, 1e-2),
                                            ("nesterov", 0.9, True, 0.0), ("nesterov_weight_decay", 0.9, True, 1e-2)):
        run("sgd", name, torch.optim.SGD,
            {"lr": 0.05, "momentum": momentum, "dampening": 0.0, "nesterov": nesterov, "weight_decay": decay},
            {"momentum_buffer": "momentum_buffer"})
    moments = {"m": "exp_avg", "v": "exp_avg_sq"}
    for op, make in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        for name, lr, betas, decay in (("plain", 1e-3, (0.9, 0.999), 0.0), ("weight_decay", 1e-3, (0.9, 0.999), 0.01),
                                       ("other_betas", 1e-2, (0.8, 0.95), 0.1)):
            run(op, name, make, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": decay}, moments)


def ema():
    for name, decay in (("slow", 0.999), ("usual", 0.9), ("fast", 0.3)):
        w = randn(4, 37)
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(w[0].clone())
        average = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
        seen = []
        for row in w:
            module.w.data.copy_(row)
            average.update_parameters(module)
            seen.append(average.module.w.detach().clone())
        case("ema", name, {"decay": decay}, {"w": w}, {"ema": torch.stack(seen)})


def embeddings():
    for name, n, n_numbers, sizes in (("one", 9, 0, [(4, 3)]), ("two_and_numbers", 20, 2, [(5, 4), (30, 1)])):
        codes = [randint(n_codes, n) for n_codes, _ in sizes]
        tables = [torch.nn.Embedding(*size, _weight=randn(*size)) for size in sizes]
        numbers = randn(n, n_numbers)
        y = torch.cat([numbers, *(table(code) for table, code in zip(tables, codes))], dim=1)
        d_y = randn(*y.shape)
        y.backward(d_y)
        x = torch.cat([numbers, *(code[:, None].float() for code in codes)], dim=1)
        case("embedding", name, {"n_tables": len(sizes)},
             {"x": x, "d_y": d_y, **{f"table_{t}": table.weight for t, table in enumerate(tables)}},
             {"y": y, **{f"d_table_{t}": table.weight.grad for t, table in enumerate(tables)}})


def more_losses():
    """Losses that PyTorch lacks, by their formulas."""
    def log_cosh(x, y):
        e = x - y
        return (e + F.softplus(-2 * e) - math.log(2)).mean()

    far = torch.tensor([[-60.0], [-1.0], [-1e-3], [0.0], [0.5], [3.0], [60.0]])
    pair("log_cosh", "6x3", log_cosh, {}, "pred", "target", 2 * randn(6, 3), randn(6, 3))
    pair("log_cosh", "far", log_cosh, {}, "pred", "target", far, torch.zeros_like(far))
    for q in (0.1, 0.5, 0.9):
        def quantile(x, y, q=q):
            e = y - x
            return torch.where(e > 0, q * e, (q - 1) * e).mean()

        pair("quantile", f"6x3_{q}", quantile, {"quantile": q}, "pred", "target", 2 * randn(6, 3), randn(6, 3))


def lion():
    """Algorithm 2 of arXiv:2302.06675."""
    for name, decay in (("plain", 0.0), ("decay", 0.1)):
        lr, (b1, b2) = 1e-3, (0.9, 0.99)
        w, g = randn(37), randn(3, 37)
        start, m, seen_w, seen_m = w.clone(), torch.zeros_like(w), [], []
        for grad in g:
            mixed = b1 * m + (1 - b1) * grad
            assert (mixed.abs() > 1e-5).all(), "a sign that rounding decides"
            w = (1 - lr * decay) * w - lr * torch.sign(mixed)
            m = b2 * m + (1 - b2) * grad
            seen_w.append(w)
            seen_m.append(m)
        case("lion", name, {"lr": lr, "betas": [b1, b2], "weight_decay": decay}, {"w": start, "g": g},
             {"w": torch.stack(seen_w), "m": torch.stack(seen_m)})


def losses_of_labels_and_counts():
    """Poisson loss; focal loss of arXiv:1708.02002 without its weight alpha, by its formula."""
    counts = torch.tensor([[0.0, 1.0, 7.0], [2.0, 0.0, 30.0]])
    pair("poisson", "2x3", F.poisson_nll_loss, {}, "pred", "target", 2 * randn(2, 3), counts)
    for gamma in (0.0, 0.5, 2.0):
        def focal(x, y, gamma=gamma):
            right = torch.where(y > 0.5, x, -x)
            return (torch.exp(gamma * F.logsigmoid(-right)) * F.softplus(-right)).mean()

        labels = (randn(6, 3) > 0).to(torch.get_default_dtype())
        pair("focal_with_logits", f"6x3_{gamma}", focal, {"gamma": gamma}, "logits", "targets", 3 * randn(6, 3), labels)
        far = torch.tensor([[-100.0, -10.0, -1.0, 0.0, 1.0, 10.0, 100.0]])
        pair("focal_with_logits", f"far_{gamma}", focal, {"gamma": gamma}, "logits", "targets", far, torch.ones_like(far))


def lamb():
    """Algorithm 2 of arXiv:1904.00962 with phi(z) = z, in float64; the inputs are numbers of float32."""
    for name, decay, lr_scale, start in (("plain", 0.0, 1.0, 1.0), ("decay", 0.1, 0.5, 1.0), ("zero_weights", 0.0, 1.0, 0.0)):
        lr, (b1, b2), eps = 1e-2, (0.9, 0.999), 1e-6
        w, g = start * randn(37), randn(3, 37)
        g[:, 5] = 0.0
        first, seen_w, seen_m, seen_v = w, [], [], []
        w, m, v = w.double(), torch.zeros(37).double(), torch.zeros(37).double()
        for t, grad in enumerate(g.double(), 1):
            m = b1 * m + (1 - b1) * grad
            v = b2 * v + (1 - b2) * grad**2
            r = (m / (1 - b1**t)) / (torch.sqrt(v / (1 - b2**t)) + eps)
            update = r + decay * w
            is_zero = w.norm() == 0 or update.norm() == 0
            w = w - lr_scale * lr * (1.0 if is_zero else w.norm() / update.norm()) * update
            for seen, value in ((seen_w, w), (seen_m, m), (seen_v, v)):
                seen.append(value.float())
        case("lamb", name, {"lr": lr, "lr_scale": lr_scale, "betas": [b1, b2], "eps": eps, "weight_decay": decay},
             {"w": first, "g": g}, {"w": torch.stack(seen_w), "m": torch.stack(seen_m), "v": torch.stack(seen_v)})


def muon():
    """`torch.optim.Muon`, whose iterations round to bfloat16: here that rounding is left out, and all is in float64."""
    rounding, torch.bfloat16 = torch.bfloat16, torch.float64
    for name, rows, cols, nesterov in (("wide", 3, 5, True), ("tall", 6, 4, True), ("square", 4, 4, False), ("row", 1, 6, True)):
        w0, g = randn(rows, cols), randn(3, rows, cols)
        params = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": nesterov}
        w = w0.double().requires_grad_()
        step = torch.optim.Muon([w], **params)
        seen, momenta = [], []
        for grad in g.double():
            w.grad = grad.clone()
            step.step()
            seen.append(w.detach().float())
            momenta.append(step.state[w]["momentum_buffer"].float())
        case("muon", name, params, {"w": w0, "g": g}, {"w": torch.stack(seen), "m": torch.stack(momenta)})
    torch.bfloat16 = rounding


def focal_softmax():
    """Focal loss of arXiv:1708.02002 for classes, without its weight alpha, by its formula and autograd."""
    n, c = 7, 5
    for gamma in (0.0, 0.5, 1.0, 2.0):
        for smoothing in (0.0, 0.1):
            for weighted in (False, True):
                logits, labels = (3 * randn(n, c)).requires_grad_(), randint(c, n)
                labels[3] = -100
                weights = torch.rand(c, generator=GEN) + 0.5 if weighted else None
                loss = focal(logits, labels, gamma, smoothing, weights)
                loss.backward()
                name = f"{gamma:g}" + "_smoothed" * (smoothing > 0) + "_weighted" * weighted
                case("focal_softmax", name, {"gamma": gamma, "label_smoothing": smoothing, "ignore_index": -100},
                     {"logits": logits, "labels": labels, "class_weights": weights}, {"loss": loss, "d_logits": logits.grad})
        logits = torch.tensor([[90.0, -90.0, 0.0], [-80.0, 20.0, -80.0], [0.5, 0.0, -0.5]]).requires_grad_()
        labels = torch.tensor([1, 1, 0])
        loss = focal(logits, labels, gamma, 0.0, None)
        loss.backward()
        case("focal_softmax", f"{gamma:g}_far", {"gamma": gamma, "label_smoothing": 0.0, "ignore_index": -100},
             {"logits": logits, "labels": labels, "class_weights": None}, {"loss": loss, "d_logits": logits.grad})


def batch_norm():
    """Batch norm in training, from running statistics of its own, and after training."""
    for name, x in (("6x4", randn(6, 4)), ("5x9_offset", randn(5, 9) * 4 + 10), ("constant_column", torch.cat([torch.full((4, 1), 0.5), randn(4, 2)], 1))):
        for training in (True, False):
            x = x.detach().clone().requires_grad_()
            c = x.shape[1]
            norm, d_y = torch.nn.BatchNorm1d(c), randn(*x.shape)
            with torch.no_grad():
                norm.weight.copy_(randn(c))
                norm.bias.copy_(randn(c))
                norm.running_mean.copy_(randn(c))
                norm.running_var.copy_(0.5 + torch.rand(c, generator=GEN))
            norm.train(training)
            inputs = {"x": x, "gamma": norm.weight, "beta": norm.bias, "d_y": d_y,
                      "running_mean": norm.running_mean.clone(), "running_var": norm.running_var.clone()}
            y = norm(x)
            y.backward(d_y)
            case("batch_norm", f"{name}_{'training' if training else 'eval'}", {"eps": norm.eps, "momentum": norm.momentum, "training": training}, inputs,
                 {"y": y, "d_x": x.grad, "d_gamma": norm.weight.grad, "d_beta": norm.bias.grad,
                  "running_mean": norm.running_mean, "running_var": norm.running_var})


def focal(logits, labels, gamma, smoothing, weights):
    """The mean of `(1 - p)^gamma` times the cross-entropy, `p` being the probability of the label."""
    keep = labels >= 0
    each = F.cross_entropy(logits, labels, label_smoothing=smoothing, ignore_index=-100, reduction="none")
    if weights is not None:
        each = each * weights[labels.clamp(min=0)]
    p = F.softmax(logits, 1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    # 1 - p without cancellation: the sum of the other probabilities.
    is_other = torch.ones_like(logits).scatter(1, labels.clamp(min=0)[:, None], 0.0)
    m = (F.softmax(logits, 1) * is_other).sum(1)
    assert torch.allclose(m, 1 - p, atol=1e-6)
    total = weights[labels[keep]].sum() if weights is not None else keep.sum()
    return (m.pow(gamma) * each)[keep].sum() / total


def ordinal():
    """Binary cross-entropy with logits on the cumulative targets of classes in an order, as of arXiv:1901.07884."""
    for name, n, n_classes in (("two_classes", 6, 2), ("five_classes", 7, 5)):
        logits = (3 * randn(n, n_classes - 1)).requires_grad_()
        labels = randint(n_classes, n)
        targets = (labels[:, None] > torch.arange(n_classes - 1)).to(logits.dtype)
        loss = F.binary_cross_entropy_with_logits(logits, targets)
        loss.backward()
        case("ordinal", name, {}, {"logits": logits, "labels": labels}, {"loss": loss, "d_logits": logits.grad})


def layers_for_tables():
    """The layers of RealMLP (arXiv:2407.04491) by their formulas: PBLD embeddings, the scaling layer and the smooth clip."""
    # Draws the numbers of cases that are gone, so that those below keep theirs.
    for dims in ((5, 7), (9, 2), (11,), (4, 3)):
        randn(*dims), randn(3, *dims)
    x, d_y = torch.tensor([-1e20, -30.0, -3.0, -0.5, 0.0, 0.1, 2.0, 7.0, 1e6]).requires_grad_(), randn(9)
    y = 3 * torch.sin(torch.atan(x / 3))
    y.backward(d_y)
    case("smooth_clip", "9", {}, {"x": x, "d_y": d_y}, {"y": y, "d_x": x.grad})
    for name, n, f, k, e in (("6x3", 6, 3, 5, 2), ("5x1_wide", 5, 1, 16, 3)):
        x, w, b, weight, bias = (v.requires_grad_() for v in (randn(n, f), randn(f, k), 3 * randn(f, k), randn(f, k, e), randn(f, e)))
        d_y = randn(n, f * (1 + e))
        angle = 2 * math.pi * w * x[:, :, None] + b
        y = torch.cat([x[:, :, None], torch.einsum("nfk,fke->nfe", torch.cos(angle), weight) + bias], 2).flatten(1)
        y.backward(d_y)
        case("numeric_embedding", name, {}, {"x": x, "frequencies": w, "phases": b, "weight": weight, "bias": bias, "d_y": d_y},
             {"y": y, "d_x": x.grad, "d_frequencies": w.grad, "d_phases": b.grad, "d_weight": weight.grad, "d_bias": bias.grad})
        x, scale, d_y = randn(n, f).requires_grad_(), randn(f).requires_grad_(), randn(n, f)
        y = x * scale
        y.backward(d_y)
        case("column_scale", name, {}, {"x": x, "scale": scale, "d_y": d_y}, {"y": y, "d_x": x.grad, "d_scale": scale.grad})


def operations():
    for make in (addmm, linear, activations, losses, layer_norm, optimizers, embeddings, ema, more_losses, lion,
                 losses_of_labels_and_counts, lamb, muon, focal_softmax, norms_and_gates, ordinal, batch_norm, layers_for_tables):
        make()
    names = [(c["op"], c["name"]) for c in OPS]
    assert len(set(names)) == len(names)
    body = ",\n".join(json.dumps(c, separators=(",", ":")) for c in OPS)
    head = json.dumps(HEAD)[1:-1]
    (HERE / "ops.json").write_text(f'{{{head}, "cases": [\n{body}\n]}}\n')
    print(f"ops.json: {len(OPS)} cases, {(HERE / 'ops.json').stat().st_size} bytes")


if __name__ == "__main__":
    training()
    schedules()
    long_training()
    operations()
