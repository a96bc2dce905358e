"""The laws that every run obeys, whatever its features. Each is a function of a trial and its finished run `base`."""

import csv
import importlib.util
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

from . import keys as of_keys
from .runs import STOPPED, Broken, Diverged, Refused

# Of losses and norms of the first step on other ranks, relative: sums in another order, in f32 and in the digits of 16-bit products.
FIRST_STEP = {"f32": 2e-4, "tf32": 2e-3, "bf16": 4e-2, "f16": 2e-2}
# Of later steps: an update that divides by a tiny moment, or takes a sign, turns rounding into a step.
LATER_STEPS = {"f32": 5e-2, "tf32": 5e-2, "bf16": 0.3, "f16": 0.3}
# Of what one step does to the weights; the sum of squares below which rounding is all there is.
FLOOR = {"f32": 1e-4, "tf32": 1e-3, "bf16": 2e-2, "f16": 2e-2}


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
    learning rate that differs by 1e-5 changed the norm of step 7 as much as another number of ranks did.
    """
    kind, betas = trial.config.get("optimizer.kind", "adamw"), trial.config.get("optimizer.betas", [0.9, 0.999])
    if kind not in ("sgd", "lion") and betas[0] ** 2 > betas[1]:
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


# Laws ------------------------------------------------------------------------------------------------------------------------------

def ranks_train_as_one(trial, base, draw):
    """(a) N ranks train as another number of ranks, to the bit where `deterministic` is "world"."""
    ranks = other_ranks(trial, draw)
    what = f"{ranks} ranks for {trial.ranks}"
    got = trial.train("ranks", *global_rows(trial, trial.ranks), ranks=ranks)
    check_as_one("N ranks train as one", trial, got, base, what)


def stopped_and_resumed(trial, base, draw):
    """(b) Stopped and resumed equals uninterrupted, to the bit on as many ranks."""
    if base.n_steps() < 2:
        return
    step = draw.randint(1, base.n_steps() - 1)
    stopped = trial.stop_at("stopped", step)
    if stopped.ended.status != STOPPED:
        raise Broken("stopped and resumed", f"asked to stop after step {step} of {base.n_steps()}, it did not: {stopped.ended}")
    got = must_train("stopped and resumed", lambda: trial.resume("stopped", with_config=draw.random() < 0.5))
    check_bits("stopped and resumed", got, base, f"stopped after step {step}")


def resumed_on_other_ranks(trial, base, draw):
    """(b) A run that stopped resumes on another number of ranks."""
    if base.n_steps() < 2:
        return
    ranks, step = other_ranks(trial, draw), draw.randint(1, base.n_steps() - 1)
    if trial.stop_at("moved", step).ended.status != STOPPED:
        raise Broken("resumed on other ranks", f"asked to stop after step {step} of {base.n_steps()}, it did not")
    what = f"stopped after step {step} on {trial.ranks} ranks, resumed on {ranks}"
    try:
        got = trial.resume("moved", *global_rows(trial, trial.ranks), ranks=ranks)
    except Refused as refused:
        raise Broken("resumed on other ranks", f"{what}: {refused.message}") from None
    check_as_one("resumed on other ranks", trial, got, base, what)


def killed_and_resumed(trial, base, draw):
    """(b) A run that was killed resumes from its newest checkpoint, or from the start, to the same bits."""
    if base.n_steps() < 3:
        return
    sets = ["checkpoint.every_steps=1", "log.every_steps=1"]
    if trial.kill_at("killed", draw.randint(1, base.n_steps() - 1), *sets):
        return
    got = must_train("killed and resumed", lambda: trial.resume("killed"))
    # A checkpoint of each step keeps the weights of each best evaluation.
    check_weights("killed and resumed", got, base, "after the kill")


def extended(trial, base, draw):
    """(b) More epochs of a complete run equal a run of as many, where the schedule does not depend on them."""
    if trial.config.get("schedule.kind", "constant") != "constant" or "train.steps" in trial.config:
        return
    if "schedule.warmup_fraction" in trial.config or any("schedule" in group for group in trial.config.get("optimizer.groups", [])):
        return
    if trial.config.get("train.early_stop_patience", 0) > 0:
        return
    longer = f"train.epochs={trial.config.get('train.epochs', 30) + 1}"
    trial.train("extended", "checkpoint.every_epochs=1")
    want = trial.train("longer", longer)
    got = must_train("extended", lambda: trial.resume("extended", longer))
    check_weights("extended", got, want, f"one more epoch, and a run with {longer}")


def saved_config_trains_alike(trial, base, draw):
    """(f) and (g): `config.toml` as it was saved trains to the same bits, and two runs of the same inputs write equal files."""
    saved = base.out / "config.toml"
    got = must_train("a saved config trains alike", lambda: trial.train("again", config=saved))
    check_bits("a saved config trains alike", got, base, "from config.toml of the run")
    ours, theirs = got.files(), base.files()
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise Broken("two processes write equal bytes", f"{name} differs, or is in one folder only")


def evaluates_alike(trial, base, draw):
    """(c) `eval` on the rows of the training's evaluations gives its figures."""
    end = base.end()
    if "eval_loss" not in end:
        return
    best = end.get("best")
    ended = trial.program.must("eval gives the training's figures", 1, "eval", "--checkpoint", base.out, "--json",
                               "--device", trial.program.device)
    got = json.loads(ended.stdout)
    want = {key: of for key, of in end.items() if key.startswith("eval_") and isinstance(of, float)}
    if best:
        # The model is the best one: of averaged weights, or of the weights themselves.
        if best.get("is_last"):
            want = {f"eval_{key[5:]}": of for key, of in end.items() if key.startswith("last_") and isinstance(of, float)}
        # Where every step was withheld, all evaluations are of one step, and batch norm's statistics still differ.
        epochs = [event["epoch"] for event in base.events("epoch")]
        is_last = (best["step"], best["epoch"]) == (end["steps"], epochs[-1] if epochs else best["epoch"])
        want = {**(want if is_last else {}), **({best["metric"]: best["value"]} if "." not in best["metric"] else {})}
    tolerance = {"f32": 1e-4, "tf32": 1e-3}.get(precision(trial), 3e-2)
    for key, of in want.items():
        if key in got and differs(got[key], of, tolerance, tolerance / 10):
            raise Broken("eval gives the training's figures", f"{key} is {got[key]}, {of} in the run")


def read_rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predicts_alike(trial, base, draw):
    """(c) `predict` agrees with `eval`, and an exported model with `predict`."""
    law, table = "predict agrees with eval", trial.table
    data = table.files.get("eval", table.files["train"])
    labels = [] if table.format_name != "npy" else ["--labels", table.files.get("eval_labels", table.files["labels"])]
    # Of a run that drops columns for a split, or leaves rows out, the same rows are read by both commands.
    skip = ["--unknown-label", "skip", "--missing-target", "skip"] if not table.is_array else []
    ended = trial.program.run(1, "eval", "--checkpoint", base.out, "--data", data, *labels, *skip, "--json", "--device",
                              trial.program.device)
    out = trial.folder / "predicted.csv"
    trial.program.must(law, 1, "predict", "--checkpoint", base.out, "--data", data, "--out", out, "--overwrite", "--device",
                       trial.program.device)
    rows = read_rows(out)
    first = 0 if "eval" not in table.files else table.n_rows - table.n_eval
    if len(rows) != (table.n_eval or table.n_rows):
        raise Broken(law, f"{len(rows)} predictions of {table.n_eval or table.n_rows} rows")
    if ended.status != 0 or table.heads:
        return
    figures = json.loads(ended.stdout)
    weights = table.columns["w"] if table.weight and (table.format_name != "npy") else [1.0] * table.n_rows
    if table.task == "classification" and "eval_accuracy" in figures:
        right = total = 0.0
        known = {row["prediction"] for row in rows} | set(map(str, table.columns[table.targets[0]]))
        for index, row in enumerate(rows):
            cell = table.columns[table.targets[0]][first + index]
            if cell is None or str(cell) not in known:
                continue
            right += weights[first + index] * (row["prediction"] == str(cell))
            total += weights[first + index]
        # With rows whose label training never saw the two count different rows.
        if figures["rows"] == len(rows) and total > 0 and differs(right / total, figures["eval_accuracy"], 0, 1e-6 + 0.5 / total * 0.01):
            raise Broken(law, f"{right / total} of the predictions are right, eval_accuracy is {figures['eval_accuracy']}")
    if table.task == "regression" and "eval_mae" in figures and figures["rows"] == len(rows):
        names = [name for name in rows[0] if name.startswith("prediction")]
        error = total = 0.0
        for index, row in enumerate(rows):
            for name, target in zip(names, table.targets):
                cell = table.columns[target][first + index]
                error += weights[first + index] * abs(float(row[name]) - float(cell))
                total += weights[first + index]
        # Predictions are f32.
        largest = max(abs(float(of)) for target in table.targets for of in table.columns[target] if of is not None)
        if total > 0 and differs(error / total, figures["eval_mae"], 1e-3, 1e-5 + largest / 2**23):
            raise Broken(law, f"the mean error of the predictions is {error / total}, eval_mae {figures['eval_mae']}")


def another_format_trains_alike(trial, base, draw):
    """(h) The same rows in another format give the same bits."""
    table = trial.table
    if table.is_array or not table.has_header:
        return
    name = draw.choice([name for name in ("csv", "parquet", "arrow", "jsonl") if name != table.format_name])
    law = "another format trains alike"
    files = table.write(trial.folder / f"as-{name}", trial.program.binary, name)
    sets = [f"data.train={json.dumps(files['train'])}", 'data.format="auto"', 'data.delimiter="auto"', 'data.decimal="auto"']
    if "eval" in files:
        sets.append(f"data.eval={json.dumps(files['eval'])}")
    if name == "csv" and table.delimiter != ",":
        sets[2:] = [f"data.delimiter={json.dumps(table.delimiter)}", *sets[3:]]
    got = must_train(law, lambda: trial.train("format", *sets))
    check_weights(law, got, base, f"{name} for {table.format_name}")


def exported_models_predict_alike(trial, base, draw):
    """(c) An exported model in onnxruntime agrees with `predict`."""
    law, table = "exported models agree with predict", trial.table
    if not has_modules("numpy", "onnxruntime") or table.is_array or table.heads:
        return
    onnx, rows, out = (trial.folder / name for name in ("model.onnx", "rows.csv", "predicted.csv"))
    # Onnxruntime reads the rows as plain text, whatever the format of the table; large numbers become f64 there.
    rows.write_text(table.csv_text(range(table.n_rows), plain=True))
    exported = trial.program.run(1, "checkpoint", "export", base.out, "--out", onnx)
    if exported.status != 0:
        trial.program.check_refusal(exported)
        return
    if table.delimiter != "," or not table.has_header:
        return
    proba = ["--proba"] if table.task in ("classification", "multilabel") else []
    trial.program.must(law, 1, "predict", "--checkpoint", base.out, "--data", rows, "--format", "csv", "--out", out, "--overwrite",
                       *proba, "--device", trial.program.device)
    ours = [[float(cell) for name, cell in row.items() if name.startswith("proba_" if proba else "prediction")] for row in read_rows(out)]
    from predict_with_onnxruntime import onnxruntime, predict, read_table

    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    theirs = predict(session, read_table(rows))["probabilities" if proba else "prediction"].tolist()
    check_predictions(law, "onnxruntime", trial, ours, theirs)


def check_predictions(law, what, trial, ours, theirs):
    """The same numbers, up to the rounding of the run's format beside the largest of them."""
    rtol = {"f32": 1e-4, "tf32": 2e-3}.get(precision(trial), 3e-2)
    largest = max([abs(of) for row in ours for of in row], default=0.0)
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        raise Broken(law, f"{what}: {len(theirs)} rows of {len(theirs[0])}, expected {len(ours)} of {len(ours[0])}")
    for index, (row, other) in enumerate(zip(ours, theirs)):
        for a, b in zip(row, other):
            if differs(a, b, rtol, rtol * largest + 1e-6):
                raise Broken(law, f"{what}: row {index} gives {b}, predict {a}")


def predicted(task, outputs, n_columns):
    """The numbers of `predict --proba` from a row of the network's outputs; those of regression are predictions already."""
    above = [1 / (1 + math.exp(min(-of, 700.0))) for of in outputs]
    if task == "classification" and len(outputs) == n_columns:
        values = [math.exp(of - max(outputs)) for of in outputs]
    elif task == "classification":
        # The ordinal loss: each logit says whether the class is above its own. 2^-23 is the least difference.
        values = [max(a - b, 2**-23) for a, b in itertools.pairwise([1.0, *above, 0.0])]
    else:
        return above if task == "multilabel" else outputs
    return [of / sum(values) for of in values]


def loads_in_pytorch(trial, base, draw):
    """(c) The example that loads a model in PyTorch reads the table as it is, predicts as `predict` does and scores as `eval` does."""
    law, table = "a model in PyTorch agrees with predict and eval", trial.table
    # Of a format, delimiter or decimal mark that the config names, eval reads no other one.
    if trial.config.get("data.format", "auto") not in ("auto", "csv") or table.delimiter != "," or table.decimal != ".":
        return
    # Importing torch takes longer than all else of a run.
    if draw.random() < 0.7 or not has_modules("torch", "safetensors"):
        return
    # Columns of arrays and of files without a header have other names in the model.
    if table.is_array or not table.has_header:
        return
    rows, outputs, out = (trial.folder / name for name in ("rows.csv", "outputs.json", "predicted.csv"))
    # A byte order mark, as spreadsheets write it, changes nothing.
    mark = draw.choice(["", "\ufeff"])
    rows.write_text(mark + table.csv_text(range(table.n_rows), plain=True), encoding="utf-8")
    script = pathlib.Path(__file__).resolve().parents[2] / "examples/load_in_pytorch.py"
    line = [sys.executable, script, base.out / "model.safetensors", rows, outputs]
    ended = subprocess.run(line, capture_output=True, text=True)
    if ended.returncode != 0:
        raise Broken(law, ended.stderr[-600:])
    if not table.heads:
        proba = ["--proba"] if table.task != "regression" else []
        trial.program.must(law, 1, "predict", "--checkpoint", base.out, "--data", rows, "--out", out, "--overwrite", *proba, "--device",
                           trial.program.device)
        start = "proba_" if proba else "prediction"
        ours = [[float(cell) for name, cell in row.items() if name.startswith(start)] for row in read_rows(out)]
        theirs = [predicted(table.task, of, len(ours[0])) for of in json.loads(outputs.read_text())]
        check_predictions(law, "PyTorch", trial, ours, theirs)
    figures = json.loads(trial.program.must(law, 1, "eval", "--checkpoint", base.out, "--data", rows, "--json", "--unknown-label", "skip",
                                            "--missing-target", "skip", "--metrics", "all", "--device", trial.program.device).stdout)
    for head, title, value, n_rows in re.findall(r"(?:(\S+): )?(accuracy|R²) (\S+) \((?:\d+ of )?(\d+) rows\)", ended.stdout):
        of_head = figures["eval_heads"][head] if head else figures
        key = {"accuracy": "eval_accuracy", "R²": "eval_r2"}[title]
        # With weights or several targets the two are means of other things, and with missing targets means over other rows.
        has_others = int(n_rows) != figures["rows"] or table.has_missing_target and table.heads
        if table.weight or has_others or title == "R²" and not head and len(table.targets) > 1:
            continue
        tolerance = {"f32": 1e-4, "tf32": 1e-3}.get(precision(trial), 5e-2) + 1.01 * (title == "accuracy") / table.n_rows
        if key in of_head and differs(float(value), of_head[key], tolerance, tolerance):
            raise Broken(law, f"{head} {title} {value} in PyTorch, {key} {of_head[key]}")


# Uses of memory in the GPU's account, and the kinds of `describe` that make them.
USES = {"parameters": ["parameters", "compute weights"], "gradients": ["gradients"], "optimizer": ["optimizer"], "average": ["average"],
        "activations": ["activations"]}


def memory_is_as_described(trial, base, draw):
    """(d) What `describe` says of parameters and memory agrees with the model, and on a GPU with its account of memory."""
    law = "memory is as described"
    ended = trial.program.must(law, 1, "describe", trial.path, "--world-size", trial.ranks, "--device", trial.program.device, "--json")
    report = json.loads(ended.stdout)
    described = {of["name"]: tuple(of["shape"]) for of in report["parameters"]}
    saved = {name: shape for name, (_, shape, _) in base.weights().items()
             if not name.startswith(("normalize.", "target.")) and "running_" not in name}
    if described != saved:
        raise Broken(law, f"describe lists {sorted(described.items() ^ saved.items())[:4]} otherwise than model.safetensors")
    if trial.program.device != "cuda":
        return
    found = re.search(r"bytes of GPU memory by use: (.*)", trial.train("described", more=["-v"]).ended.stderr)
    account = dict(re.findall(r"(\w+) (\d+)", found.group(1)))
    of_stage = next(of for of in report["memory"] if of["zero"] == report["zero"])
    planned = {of["what"]: of["bytes"] for of in of_stage["bytes"]}
    for use, kinds in USES.items():
        plan = sum(planned[kind] for kind in kinds)
        if abs(int(account[use]) - plan) > plan / 20 + 1024:
            raise Broken(law, f"{use}: {account[use]} bytes in use, {plan} described")


def has_modules(*names):
    return all(importlib.util.find_spec(name) for name in names)


# Keys that must not keep a model from learning what is easy to learn.
HARMLESS = ("loss.", "train.ema_decay", "train.precision", "train.deterministic", "train.init", "train.grad_accum_steps",
            "optimizer.kind", "model.kind", "model.activation", "model.norm", "model.residual", "comm.",
            "data.normalize", "data.shuffle", "data.encode", "data.placement", "data.weight", "data.prefetch")
EASY_LR = {"sgd": 0.05, "lion": 0.002, "muon": 0.02}


def learns_what_is_easy(trial, base, draw):
    """A model of any keys that must do no harm learns a table in which each class has a feature of its own, one of them rare."""
    law = "learns what is easy"
    config = {key: of for key, of in trial.config.items() if key.startswith(HARMLESS)}
    for key in ("loss.kind", "loss.class_weights", "loss.quantile", "data.weight"):
        of = config.get(key)
        if key != "loss.class_weights" or of != "balanced":
            config.pop(key, None)
    if draw.random() < 0.5:
        config["loss.class_weights"] = "balanced"
    if draw.random() < 0.5:
        config["loss.label_smoothing"] = draw.choice([0.05, 0.1, 0.2])
    if draw.random() < 0.5:
        config["train.ema_decay"] = draw.choice([0.5, 0.9, 0.99, 0.999])
    for key in ("loss.gamma", "loss.delta"):
        config.pop(key, None)
    rows = trial.folder / "easy.csv"
    counts = [400, 60, 12, 4]
    lines = [",".join("1" if of == column else "0" for column in range(4)) + f",k{of}" for of, n in enumerate(counts) for _ in range(n)]
    rows.write_text("a,b,c,d,y\n" + "\n".join(lines) + "\n")
    # A linear scale of rare features, and steps that all models can take.
    config = {**config, "data.train": str(rows), "data.eval": str(rows), "data.target": "y", "model.hidden": [16], "train.epochs": 40,
              "train.global_batch_size": 32, "optimizer.lr": EASY_LR.get(config.get("optimizer.kind"), 0.01), "log.every_steps": 1000,
              "checkpoint.every_minutes": 0.0, "checkpoint.keep_best": "none", "data.task": "classification",
              "train.eval_metrics": ["accuracy", "log_loss"]}
    path = trial.folder / "easy.toml"
    path.write_text(of_keys.config_text(config))
    end = must_train(law, lambda: trial.train("easy", config=path, ranks=1)).end()
    # With the largest smoothing a perfect model has a log loss of 0.16.
    if end["eval_accuracy"] < 0.95 or end["eval_log_loss"] > 0.25:
        small = {key: of for key, of in config.items() if key.startswith(HARMLESS)}
        raise Broken(law, f"accuracy {end['eval_accuracy']}, log loss {end['eval_log_loss']} with {json.dumps(small)}")


def weights_are_relative(trial, base, draw):
    """Weights of rows that are all four times as large change no bit: losses and gradients are means over the sum of weights."""
    law, table = "weights are relative", trial.table
    if not table.weight or precision(trial) == "f16":
        return
    weights = table.columns["w"]
    table.columns["w"] = [4 * weight for weight in weights]
    try:
        files = table.write(trial.folder / "heavier", trial.program.binary)
    finally:
        table.columns["w"] = weights
    sets = [f"data.{use}={json.dumps(path)}" for use, path in files.items() if use in ("train", "eval")]
    got = must_train(law, lambda: trial.train("heavy", *sets))
    check_weights(law, got, base, "with four times the weights")


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


def traced_trains_alike(trial, base, draw):
    """(i) A run that is traced has the same bits, and the trace has the steps of all ranks."""
    law = "a traced run trains alike"
    first = draw.randint(1, max(base.n_steps(), 1))
    last = first + draw.randint(0, 5)
    got = must_train(law, lambda: trial.train("traced", more=("--trace", f"{first}..{last}")))
    check_bits(law, got, base, f"traced from step {first} to {last}")
    if got.n_steps() < first:
        return
    # A run that returns to a checkpoint may have another one.
    traces = list((got.out / "traces").glob(f"steps-{first}-*.json"))
    if not traces:
        raise Broken(law, f"no trace of steps {first} to {last}")
    events = json.loads(traces[0].read_text())["traceEvents"]
    for rank in range(trial.ranks):
        steps = {of["name"] for of in events if of["pid"] == rank + 1 and of["ph"] == "X" and of["name"].startswith("step ")}
        if f"step {first}" not in steps:
            raise Broken(law, f"rank {rank} has {sorted(steps)} of steps {first} to {last}")


LAWS = {law.__name__: law for law in [
    ranks_train_as_one, stopped_and_resumed, resumed_on_other_ranks, killed_and_resumed, extended, saved_config_trains_alike,
    evaluates_alike, predicts_alike, another_format_trains_alike, learns_what_is_easy,
    exported_models_predict_alike, loads_in_pytorch, memory_is_as_described, weights_are_relative,
    traced_trains_alike,
]}
