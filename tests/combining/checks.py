"""Comparisons of two runs, of their events, weights and predictions."""

import importlib.util
import json

from .runs import Broken, Diverged, Refused

# Of losses and norms of the first step on other ranks, relative: sums in another order, in f32 and in the digits of 16-bit products.
FIRST_STEP = {"f32": 2e-4, "f32x3": 2e-4, "tf32": 2e-3, "bf16": 4e-2, "f16": 2e-2}
# Of later steps: an update that divides by a tiny moment, or takes a sign, turns rounding into a step.
LATER_STEPS = {"f32": 5e-2, "f32x3": 5e-2, "tf32": 5e-2, "bf16": 0.3, "f16": 0.3}
# Of what one step does to the weights; the sum of squares below which rounding is all there is.
FLOOR = {"f32": 1e-4, "f32x3": 1e-4, "tf32": 1e-3, "bf16": 2e-2, "f16": 2e-2}


def precision(trial):
    return trial.config.get("train.precision", "f32")


def ends_by_numbers(trial):
    """Whether rounding may decide when the run ends or which steps count."""
    config = trial.config
    return (config.get("train.early_stop_patience", 0) > 0 or config.get("train.on_spike", "off") != "off"
            or config.get("train.precision") == "f16")


def steps_by_rounding(trial):
    """Whether rounding alone may decide updates.

    An update is then a sign of gradients that rounding makes, those of what a batch norm takes away again; or it divides a first moment
    by a second one that forgets sooner (Adam's ratio is bounded only for betas[0]² < betas[1], arXiv:1412.6980): with [0.9, 0.0] a
    learning rate that differs by 1e-5 changed the norm of step 7 as much as another number of ranks did. With [0.0, 0.0] it is the sign.
    """
    kind, betas = trial.config.get("optimizer.kind", "adamw"), trial.config.get("optimizer.betas", [0.9, 0.999])
    if kind not in ("sgd", "lion") and betas[0] ** 2 >= betas[1]:
        return True
    has_batch_norm = "batch_norm" in json.dumps(trial.config.get("model.layers", []))
    return has_batch_norm and (kind == "lion" or (kind != "sgd" and betas[1] < 0.5))


def differs(a, b, rtol, atol):
    if a is None or b is None:
        return a is not b
    return not abs(a - b) <= atol + rtol * max(abs(a), abs(b))


def check_close(law, trial, got, want, what):
    """Losses and norms of the steps that both runs logged."""
    rounding = precision(trial)
    theirs = {event["step"]: event for event in want.events("step")}
    for event in got.events("step"):
        other = theirs.get(event["step"])
        is_first = event["step"] == 1
        if other is None or (not is_first and steps_by_rounding(trial)):
            continue
        rtol = FIRST_STEP[rounding] if is_first else LATER_STEPS[rounding]
        for key in ("loss", "grad_norm"):
            # A norm of 16-bit gradients near zero is rounding, and so is one that follows from it.
            atol = FLOOR[rounding] * (1 if is_first else 100)
            if differs(event[key], other[key], rtol, atol):
                raise Broken(law, f"{what}: {key} of step {event['step']} is {event[key]}, expected {other[key]}")
    if not ends_by_numbers(trial) and got.n_steps() != want.n_steps():
        raise Broken(law, f"{what}: {got.n_steps()} steps, expected {want.n_steps()}")


def check_bits(law, got, want, what):
    """Weights and events to the bit."""
    check_weights(law, got, want, what)
    kinds = ("step", "epoch", "eval", "end")
    for ours, theirs in zip(got.events(*kinds), want.events(*kinds)):
        # The last leg of a run knows its own ranks.
        ours, theirs = ({key: of for key, of in event.items() if key != "world_size"} for event in (ours, theirs))
        if ours != theirs:
            raise Broken(law, f"{what}: {json.dumps(ours)}, expected {json.dumps(theirs)}")
    if len(got.events(*kinds)) != len(want.events(*kinds)):
        raise Broken(law, f"{what}: {len(got.events(*kinds))} events, expected {len(want.events(*kinds))}")


def is_fixed(trial):
    return trial.config.get("train.deterministic") == "world"


def check_as_one(law, trial, got, want, what):
    """A run on other ranks: to the bit where `deterministic` is "world", else within the bounds of rounding."""
    if is_fixed(trial):
        check_bits(law, got, want, what)
    else:
        check_close(law, trial, got, want, what)


def global_rows(trial, ranks):
    """The setting with which other ranks take the same rows in a step."""
    config = trial.config
    if "train.global_batch_size" in config:
        return []
    return [f"train.global_batch_size={config.get('train.batch_size', 32) * ranks * config.get('train.grad_accum_steps', 1)}"]


def other_ranks(trial, draw):
    limit = min(trial.config.get("train.micro_shards", 8) if is_fixed(trial) else 4, trial.table.least_train_rows())
    return draw.choice([ranks for ranks in (1, 2, 3, 4) if ranks != trial.ranks and ranks <= limit] or [trial.ranks])


def check_weights(law, got, want, what):
    ours, theirs = got.weights(), want.weights()
    if ours != theirs:
        names = [of for of in sorted({*ours, *theirs}) if ours.get(of) != theirs.get(of)]
        raise Broken(law, f"{what}: {', '.join(names[:4])} of model.safetensors differ")


def must_train(law, train):
    """The run of `train`, which nothing may refuse: its config has trained before."""
    try:
        return train()
    except (Refused, Diverged) as ended:
        raise Broken(law, str(ended)) from None


def check_predictions(law, what, trial, ours, theirs):
    """The same numbers, up to the rounding of the run's format beside the largest of them."""
    rtol = {"f32": 1e-4, "f32x3": 1e-4, "tf32": 2e-3}.get(precision(trial), 3e-2)
    largest = max([abs(of) for row in ours for of in row], default=0.0)
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        raise Broken(law, f"{what}: {len(theirs)} rows of {len(theirs[0])}, expected {len(ours)} of {len(ours[0])}")
    for index, (row, other) in enumerate(zip(ours, theirs)):
        for a, b in zip(row, other):
            if differs(a, b, rtol, rtol * largest + 1e-6):
                raise Broken(law, f"{what}: row {index} gives {b}, predict {a}")


def has_modules(*names):
    return all(importlib.util.find_spec(name) for name in names)


def check_figures(law, what, got, want, rtol):
    """Numbers of two JSON values of the same form; a value of NaN is null in both."""
    if isinstance(want, dict) and isinstance(got, dict) and got.keys() == want.keys():
        for key, of in want.items():
            check_figures(law, f"{what}.{key}", got[key], of, rtol)
    elif isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        for index, (ours, theirs) in enumerate(zip(got, want)):
            check_figures(law, f"{what}[{index}]", ours, theirs, rtol)
    elif isinstance(want, float) and isinstance(got, (int, float)):
        if differs(got, want, rtol, rtol):
            raise Broken(law, f"{what} is {got}, expected {want}")
    elif got != want:
        raise Broken(law, f"{what} is {got}, expected {want}")
