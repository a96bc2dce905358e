"""The laws of models: commands that use a finished run `base` agree with it and with each other."""

import csv
import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

from .checks import check_figures, check_predictions, differs, has_modules, precision
from .runs import Broken


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
    # The event leads with the metrics of the model, which is the best one.
    if best and "." not in best["metric"]:
        want[best["metric"]] = best["value"]
    tolerance = {"f32": 1e-4, "f32x3": 1e-4, "tf32": 1e-3}.get(precision(trial), 3e-2)
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
        # A metric that is not finite is null.
        mean = error / total if total > 0 and math.isfinite(error) else None
        if total > 0 and differs(mean, figures["eval_mae"], 1e-3, 1e-5 + largest / 2**23):
            raise Broken(law, f"the mean error of the predictions is {mean}, eval_mae {figures['eval_mae']}")


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
        tolerance = {"f32": 1e-4, "f32x3": 1e-4, "tf32": 1e-3}.get(precision(trial), 5e-2) + 1.01 * (title == "accuracy") / table.n_rows
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
    # Ranks that share a GPU register no buffers, whose sizes are described.
    if trial.program.device != "cuda" or trial.program.shares_gpu:
        return
    found = re.search(r"bytes of GPU memory by use: (.*)", trial.train("described", more=["-v"]).ended.stderr)
    account = dict(re.findall(r"(\w+) (\d+)", found.group(1)))
    of_stage = next(of for of in report["memory"] if of["zero"] == report["zero"])
    planned = {of["what"]: of["bytes"] for of in of_stage["bytes"]}
    for use, kinds in USES.items():
        plan = sum(planned[kind] for kind in kinds)
        # Room for averaged weights comes with the first evaluation; without one, after the account, when the model is written.
        comes_later = use == "average" and trial.table.eval_from == "none"
        if int(account[use]) - plan > plan / 20 + 1024 or not comes_later and plan - int(account[use]) > plan / 20 + 1024:
            raise Broken(law, f"{use}: {account[use]} bytes in use, {plan} described")


def rows_of(table):
    """The files of the rows to evaluate and their labels, as flags, and the flags to leave out rows that cannot be judged."""
    data = ["--data", table.files.get("eval", table.files["train"])]
    if table.is_array:
        return [*data, "--labels", table.files.get("eval_labels", table.files["labels"])] if table.format_name == "npy" else data
    return [*data, "--unknown-label", "skip", "--missing-target", "skip"]


def ranks_agree_on_models(trial, base, draw):
    """All metrics, importances and predictions are the same on any number of ranks."""
    law, program, ranks = "ranks agree on a model", trial.program, draw.choice([2, 3])
    device = ["--device", program.device]
    for flags in (["--metrics", "all"], ["--importance", "--repeats", "1"]):
        line = ["eval", "--checkpoint", base.out, *rows_of(trial.table), *flags, "--json", *device]
        alone, together = (program.run(n, *line) for n in (1, ranks))
        if alone.status != together.status:
            raise Broken(law, f"{together}\nalone: {alone}")
        if alone.status != 0:
            program.check_refusal(alone)
            continue
        figures = [json.loads(ended.stdout) for ended in (together, alone)]
        if trial.table.n_rows < 10:
            # Outputs of a model that tells rows apart by roundings alone: one order more or less is much of an area.
            figures = [{key: of for key, of in each.items() if key not in ("eval_roc_auc", "eval_average_precision", "eval_per_class")} for each in figures]
        check_figures(law, f"{flags[0]} on {ranks} ranks", *figures, 1e-4)
    outs = [trial.folder / f"predicted-{n}.csv" for n in (1, ranks)]
    for n, out in zip((1, ranks), outs):
        program.must(law, n, "predict", "--checkpoint", base.out, *rows_of(trial.table)[:2], "--out", out, *device)
    alone, together = map(read_rows, outs)
    if len(alone) != len(together):
        raise Broken(law, f"{len(together)} predictions on {ranks} ranks, {len(alone)} on one")


def calibration_keeps_classes(trial, base, draw):
    """A fitted temperature changes no predicted class and no log loss for the worse; the model that has it is complete."""
    law, program, table = "calibration keeps classes", trial.program, trial.table
    # Products of 16-bit weights round otherwise once they are scaled, which decides between classes that are equally likely.
    if table.task != "classification" or table.heads or precision(trial) != "f32":
        return
    copy, device = trial.folder / "calibrated", ["--device", program.device]
    shutil.copytree(base.out, copy)
    ended = program.run(1, "eval", "--checkpoint", copy, *rows_of(table), "--calibrate", "--json", *device)
    if ended.status != 0:
        program.check_refusal(ended)
        return
    report = json.loads(ended.stdout)
    before, after = (report[when]["eval_log_loss"] for when in ("before", "after"))
    if before is not None and not after <= before * (1 + 1e-4) + 1e-6:
        raise Broken(law, f"log loss {before} became {after}")
    classes = []
    for folder in (base.out, copy):
        out = trial.folder / f"classes-{folder.name}.csv"
        program.must(law, 1, "predict", "--checkpoint", folder, *rows_of(table)[:2], "--out", out, *device)
        classes.append([row["prediction"] for row in read_rows(out)])
    if classes[0] != classes[1]:
        index = next(index for index, (a, b) in enumerate(zip(*classes)) if a != b)
        raise Broken(law, f"row {index} was of class {classes[0][index]} and is of class {classes[1][index]}")
    program.must(law, 1, "eval", "--checkpoint", copy, *rows_of(table), *device)


def formats_hold_the_same_predictions(trial, base, draw):
    """Predictions are the same in each format."""
    law, program = "formats hold the same predictions", trial.program
    name = draw.choice(["parquet", "jsonl"])
    proba = ["--proba"] if trial.table.task != "regression" and not trial.table.heads and draw.random() < 0.5 else []
    plain, other = trial.folder / "plain.csv", trial.folder / f"other.{name}"
    for out in (plain, other):
        program.must(law, 1, "predict", "--checkpoint", base.out, *rows_of(trial.table)[:2], "--out", out, *proba, "--device", program.device)
    shown = program.must(law, 1, "data", "show", other, "--rows", "0..", "--json").stdout
    ours, theirs = [json.loads(line)["cells"] for line in shown.splitlines()], read_rows(plain)
    if len(ours) != len(theirs):
        raise Broken(law, f"{len(ours)} rows in {name}, {len(theirs)} in CSV")
    for index, (a, b) in enumerate(zip(ours, theirs)):
        if a.keys() != b.keys() or any(a[key] != b[key] and not is_same_number(a[key], b[key]) for key in b):
            raise Broken(law, f"row {index} is {a} in {name}, {b} in CSV")


def models_predict_together(trial, base, draw):
    """A model and itself predict as the model alone, and out of fold it predicts exactly the rows that it was judged on."""
    law, program, ranks = "models predict together", trial.program, draw.choice([1, 2, 3])
    config = (base.out / "config.toml").read_text(encoding="utf-8")
    # The loss may have made numbers of the labels.
    has_classes = re.search(r'^task = "(classification|multilabel)"', config, re.M) and not trial.table.heads
    device, proba = ["--device", program.device], ["--proba"] if has_classes else []
    kind, predicted = "proba_" if proba else "prediction", []
    for number, models in enumerate([1, 2]):
        out = trial.folder / f"together-{number}.csv"
        program.must(law, ranks, "predict", *["--checkpoint", base.out] * models, *rows_of(trial.table)[:2], "--out", out, *proba, *device)
        predicted.append([[row[name] for name in row if name.startswith(kind)] for row in read_rows(out)])
    if not trial.table.heads:
        numbers = [[[float(cell or "nan") for cell in row] for row in rows] for rows in predicted]
        check_predictions(law, "with itself", trial, *numbers)
    if not re.search(r"^(eval_fraction|fold|split) = ", config, re.M):
        return
    judged = program.run(1, "eval", "--checkpoint", base.out, "--json", *device)
    out = trial.folder / "out-of-fold.csv"
    ended = program.run(ranks, "predict", "--checkpoint", base.out, "--out-of-fold", "--out", out, *device)
    if ended.status != 0 or judged.status != 0:
        program.check_refusal(ended if ended.status != 0 else judged)
        return
    n = sum(any(cell != "" for cell in row.values()) for row in read_rows(out))
    if n != json.loads(judged.stdout)["rows"]:
        raise Broken(law, f"{n} rows have predictions out of fold, and {json.loads(judged.stdout)['rows']} are evaluated")


def is_same_number(a, b):
    # A cell that is not a number is a missing one, which `data show` leaves empty.
    if {a, b} == {"", "NaN"}:
        return True
    try:
        return not differs(float(a), float(b), 1e-7, 0)
    except ValueError:
        return False


def folder_is_sound(trial, base, draw):
    """Checksums and used rows of the checkpoints are right, the last one is listed as such, and the run has a page."""
    law, program = "the folder of a run is sound", trial.program
    page = trial.folder / "page.html"
    program.must(law, 1, "report", base.out, "--out", page)
    # One step is one point, and on a GPU it is not timed by part.
    has_chart = trial.program.device == "cpu" or len([of for of in base.events() if of["event"] == "step"]) > 1
    if has_chart and "<svg" not in page.read_text() or not (base.out / "report.html").exists():
        raise Broken(law, "a run without a page, or a page without a chart")
    if not any((base.out / "checkpoints").glob("step-*")):
        return
    program.must(law, 1, "checkpoint", "verify", base.out)
    listed = [json.loads(line) for line in program.must(law, 1, "checkpoint", "ls", base.out, "--json").stdout.splitlines()]
    if not listed:
        raise Broken(law, "no checkpoint is listed")
