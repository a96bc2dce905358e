#!/usr/bin/env python3
"""Makes the goldens of this folder with PyTorch on the CPU, in float32, on one thread.

  python tests/golden/make_goldens.py

Made with torch 2.15.0 (pip), numpy and safetensors; seed 20260. Both are written into every
output. README.md tells the layout. The Rust tests read the outputs and need no Python.
"""
import copy
import json
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


def loss_of(out, y, loss):
    kind = loss["kind"]
    if kind == "cross_entropy":
        weight = torch.tensor(loss["class_weights"], dtype=out.dtype) if "class_weights" in loss else None
        return F.cross_entropy(out, y, weight=weight, label_smoothing=loss.get("label_smoothing", 0.0))
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
                loss = F.cross_entropy(logits, labels, weight=weights, label_smoothing=smoothing, ignore_index=-100)
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

    def pair(op, name, function, params, x_name, y_name, x, y):
        x = x.detach().clone().requires_grad_()
        loss = function(x, y)
        loss.backward()
        case(op, name, params, {x_name: x, y_name: y}, {"loss": loss, f"d_{x_name}": x.grad})

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


def operations():
    for make in (addmm, linear, activations, losses, layer_norm, optimizers, embeddings):
        make()
    names = [(c["op"], c["name"]) for c in OPS]
    assert len(set(names)) == len(names)
    body = ",\n".join(json.dumps(c, separators=(",", ":")) for c in OPS)
    head = json.dumps(HEAD)[1:-1]
    (HERE / "ops.json").write_text(f'{{{head}, "cases": [\n{body}\n]}}\n')
    print(f"ops.json: {len(OPS)} cases, {(HERE / 'ops.json').stat().st_size} bytes")


if __name__ == "__main__":
    training()
    operations()
