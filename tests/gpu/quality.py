"""Results of training on a GPU, compared with the CPU's, with PyTorch's goldens, and between runs."""
import json
import statistics

from runs import DIGITS, largest_gap, largest_relative, relative_distance, tensors_of, train, windows
from session import ROOT, OutOfTime
import runs

# Mean test accuracy on the digits that PyTorch reaches is 0.9705, 0.967 at worst; one row is 0.0028.
DIGITS_BAR = 0.965
ROUNDED_BAR = 0.96


def cpu_and_gpu(part):
    """The same f32 run on both, step by step."""
    n = 10 if part.session.options.dry_run else 60
    short = [*DIGITS, f"train.steps={n}", "log.every_steps=1"]
    rich = ["model.activation=gelu", "model.norm=layer", "model.dropout=0.1", "train.clip_grad_norm=1.0", "train.grad_accum_steps=2"]
    # Sums in another order cost some 1e-7 a step, and SGD keeps that small. AdamW divides a gradient by its own size, so that
    # the rounding of one near 0 moves its weight by up to lr.
    cases = [("sgd", [*short, "optimizer.kind=sgd", "optimizer.lr=0.05"], 1e-3, 1e-4),
             ("adamw", short, 1e-2, 1e-2),
             ("rich", [*short, *rich], 1e-2, 1e-2)]
    for name, settings, loss_bound, weight_bound in cases:
        cpu = train(part, f"{name}-cpu", settings, device="cpu")
        gpu = train(part, f"{name}-gpu", settings)
        if not cpu or not gpu:
            continue
        loss, weight = largest_relative(gpu.losses, cpu.losses), relative_distance(gpu.weights(), cpu.weights())
        part.results[name] = {"steps": len(cpu.losses), "largest_relative_loss_gap": loss, "relative_weight_distance": weight,
                              "startup_s": gpu.end["startup_s"], "seconds": gpu.seconds}
        part.check(f"{name}: losses as on the CPU", loss <= loss_bound, f"{loss:.2e} of {loss_bound:.0e}")
        part.check(f"{name}: weights as on the CPU", weight <= weight_bound, f"{weight:.2e} of {weight_bound:.0e}")
    starts = [part.results[name]["startup_s"] for name, *_ in cases if name in part.results]
    if len(starts) > 1:
        # The first run compiles the kernels, the second finds them in the cache.
        part.session.row("start to first step on the GPU", f"{starts[0]:.2f} s, with kernels from the cache {starts[1]:.2f} s")
    if "adamw" in part.results:
        part.session.row(f"GPU against CPU, {n} f32 steps", f"losses {part.results['adamw']['largest_relative_loss_gap']:.1e}, "
                         f"weights {part.results['adamw']['relative_weight_distance']:.1e} apart")


def graphs_and_repeats(part):
    """A graph gives the bits that single kernels give, and a second run those of the first."""
    n = 12 if part.session.options.dry_run else 200
    for precision in ("f32", "f32x3", "tf32", "bf16"):
        settings = [*DIGITS, f"train.steps={n}", "log.every_steps=1", f"train.precision={precision}", "model.dropout=0.1"]
        eager = train(part, f"{precision}-eager", settings, "--cuda-graph", "off")
        graph = train(part, f"{precision}-graph", settings, "--cuda-graph", "on")
        again = train(part, f"{precision}-graph-again", settings, "--cuda-graph", "on")
        for name, other in (("graph and eager", eager), ("two runs", again)):
            if graph and other:
                same = graph.model_bytes() == other.model_bytes() and graph.losses == other.losses
                gap = largest_gap(graph.weights(), other.weights())
                part.check(f"{precision}: {name} give the same bits", same, f"weights {gap:.1e} apart after {n} steps")
                part.results[f"{precision} {name}"] = {"same_bits": same, "largest_weight_gap": gap}
    part.session.row("same bits: graph and eager, two runs", "yes" if part.checks and all(c["passed"] for c in part.checks) else "NO")


def precisions(part):
    """Accuracy on the digits in every format, and short formats' losses beside f32's."""
    session = part.session
    n_seeds = 1 if session.options.dry_run else 3
    epochs = 1 if session.options.dry_run else 30
    for precision, bar in (("f32", DIGITS_BAR), ("tf32", ROUNDED_BAR), ("bf16", ROUNDED_BAR)):
        found = []
        for seed in range(n_seeds):
            settings = [*DIGITS, f"train.epochs={epochs}", f"train.seed={seed}", f"train.precision={precision}"]
            run = train(part, f"digits-{precision}-{seed}", settings)
            if run:
                found.append(run.end["eval_accuracy"])
        if found:
            mean = statistics.mean(found)
            part.results[f"digits {precision}"] = {"accuracy_mean": mean, "accuracies": found, "epochs": epochs}
            # One seed may be one or two rows below the mean.
            bound = bar if n_seeds > 1 else bar - 0.01
            if not session.options.dry_run:
                part.check(f"digits in {precision}", mean >= bound, f"{mean:.4f}, wanted {bound:.3f}")
            session.row(f"digits, {precision}: test accuracy", f"{mean:.4f} (mean of {len(found)} seeds)")

    steps, window = (20, 5) if session.options.dry_run else (500, 50)
    losses = {}
    for precision in ("f32", "f32x3", "tf32", "bf16"):
        settings = [*DIGITS, f"train.steps={steps}", "log.every_steps=1", f"train.precision={precision}"]
        run = train(part, f"curve-{precision}", settings)
        if run:
            losses[precision] = windows(run.losses, window)
            part.results[f"loss {precision}, means of {window} steps"] = losses[precision]
    # Factors are rounded to 2^-8 in bf16, to 2^-11 in tf32 and to 2^-22 in f32x3, with errors of either sign.
    for precision, bound in (("f32x3", 0.001), ("tf32", 0.01), ("bf16", 0.02)):
        if precision in losses and "f32" in losses:
            gap = largest_relative(losses[precision], losses["f32"])
            # Late losses are near 0, where a share of them says little.
            absolute = max(abs(a - b) for a, b in zip(losses[precision], losses["f32"]))
            part.results[f"loss gap {precision}"] = {"relative": gap, "absolute": absolute}
            part.check(f"{precision} follows f32 over {steps} steps", gap <= bound or absolute <= 0.005, f"{gap:.2%} of {bound:.0%}, {absolute:.4f} absolute")
            session.row(f"{precision} against f32, {steps} steps", f"mean losses within {gap:.3%} (absolute {absolute:.1e})")


def goldens(part):
    """Five steps of each of PyTorch's runs."""
    folder = ROOT / "tests" / "golden"
    file = json.loads((folder / "training.json").read_text())
    worst_loss = worst_weight = 0.0
    cases = file["cases"][:2] if part.session.options.dry_run else file["cases"]
    for case in cases:
        name = case["name"]
        toml = [f"[data]\ntrain = {json.dumps(str(folder / case['csv']))}\nshuffle = {json.dumps(file['shuffle'])}",
                f"task = {json.dumps(case['task'])}\ntarget = {json.dumps(case['targets'])}",
                'normalize = "none"\nnormalize_target = "none"',
                f"[model]\nhidden = {case['hidden']}\nactivation = {json.dumps(case['activation'])}",
                f"[train]\nsteps = {file['steps']}\nbatch_size = {file['batch_size']}\n[log]\nevery_steps = 1"]
        for section in ("loss", "optimizer"):
            # Numbers, texts and lists are written alike in JSON and TOML.
            # PyTorch's optimizers decay all parameters.
            keys = {**({"decay_bias_norm": True} if section == "optimizer" else {}), **case[section]}
            toml += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        config = f"{part.session.work}/{name}.toml"
        with open(config, "w") as f:
            f.write("\n".join(toml) + "\n")
        run = train(part, name, [], "--init-from", folder / case["init"], config=config)
        if not run:
            continue
        want = {key: runs.floats(data) for key, (_, _, data) in tensors_of(folder / case["final"]).items()}
        loss, weight = largest_relative(run.losses, case["losses"]), largest_gap(run.weights(), want)
        norm = largest_relative(run.of("step", "grad_norm"), case["grad_norms"])
        part.results[name] = {"loss_gap": loss, "weight_gap": weight, "grad_norm_gap": norm}
        # As on the CPU (ddp/tests/program/parity.rs), with room for the GPU's elementary functions and its order of sums.
        part.check(f"{name} as in PyTorch", loss <= 5e-6 and weight <= 1e-5 and norm <= 5e-5, f"loss {loss:.1e}, weights {weight:.1e}, norm {norm:.1e}")
        worst_loss, worst_weight = max(worst_loss, loss), max(worst_weight, weight)
        if part.remaining_s() < 2:
            raise OutOfTime
    part.session.row("PyTorch's goldens, 5 f32 steps", f"losses {worst_loss:.1e}, weights {worst_weight:.1e} apart")
