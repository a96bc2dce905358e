"""The laws of training, which every run obeys, whatever its features. Each is a function of a trial and its finished run `base`."""

import json
import re
import struct

from . import keys as of_keys
from .checks import check_as_one, check_bits, check_weights, differs, global_rows, is_fixed, must_train, other_ranks, precision
from .runs import DONE, STOPPED, Broken, Diverged, Refused, Run
from .tables import TABLE_FORMATS


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
    try:
        got = must_train("killed and resumed", lambda: trial.resume("killed"))
    except Broken as broken:
        if finds_norm(str(broken)):
            return
        raise
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
    try:
        want = trial.train("longer", longer)
    except Diverged as diverged:
        check_diverges("extended", trial, longer, str(diverged))
        return
    got = must_train("extended", lambda: trial.resume("extended", longer))
    check_weights("extended", got, want, f"one more epoch, and a run with {longer}")


def check_diverges(law, trial, longer, want):
    """A run that diverges in the epochs that are added to it does so at the same step."""
    try:
        trial.resume(law, longer)
    except Diverged as diverged:
        if str(diverged) == want:
            return
        raise Broken(law, f"{diverged}, expected {want}") from None
    raise Broken(law, f"it went on to its end, expected {want}")


def saved_config_trains_alike(trial, base, draw):
    """(f) and (g): `config.toml` as it was saved trains to the same bits, and two runs of the same inputs write equal files."""
    # The name of the folder is another one in another folder.
    lines = (base.out / "config.toml").read_text().splitlines(keepends=True)
    saved = trial.folder / "saved.toml"
    saved.write_text("".join(line for line in lines if line.strip() != f'name = "{base.out.name}"'))
    got = must_train("a saved config trains alike", lambda: trial.train("again", config=saved))
    check_bits("a saved config trains alike", got, base, "from config.toml of the run")
    ours, theirs = got.files(), base.files()
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise Broken("two processes write equal bytes", f"{name} differs, or is in one folder only")


def another_format_trains_alike(trial, base, draw):
    """(h) The same rows in another format give the same bits."""
    table = trial.table
    if table.is_array or not table.has_header:
        return
    name = draw.choice([name for name in TABLE_FORMATS if name != table.format_name])
    law = "another format trains alike"
    files = table.write(trial.folder / f"as-{name}", trial.program.binary, name)
    sets = [f"data.train={json.dumps(files['train'])}", 'data.format="auto"', 'data.delimiter="auto"', 'data.decimal="auto"']
    if name != "csv":
        # Other formats have no header to set.
        sets.append('data.header="auto"')
    if "eval" in files:
        sets.append(f"data.eval={json.dumps(files['eval'])}")
    if name == "csv" and table.delimiter != ",":
        sets[2:] = [f"data.delimiter={json.dumps(table.delimiter)}", *sets[3:]]
    try:
        got = must_train(law, lambda: trial.train("format", *sets))
    except Broken as broken:
        # Parts that are converted one by one may have whole numbers in one and fractions in the other, which is refused by name.
        if table.n_files > 1 and re.search(r'column "[^"]*" is [A-Z]\w+ in one and [A-Z]\w+ in the other', str(broken)):
            return
        raise
    check_weights(law, got, base, f"{name} for {table.format_name}")


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


def starts_alike(trial, base, draw):
    """Ranks that `launch` starts without MPI train to the bits of those of mpirun."""
    law, out = "ranks start alike", trial.folder / "launched"
    ended = trial.launch(out)
    got = must_train(law, lambda: trial.judge(Run(out, ended)))
    check_bits(law, got, base, f"{trial.ranks} ranks of launch")


def restarts_after_a_loss(trial, base, draw):
    """A rank that is killed costs no bit: `launch` starts all ranks again from the newest checkpoint."""
    law, out = "launch restarts after a loss", trial.folder / "lost"
    if base.n_steps() < 3:
        return
    ended = trial.launch(out, "checkpoint.every_steps=1", "log.every_steps=1", kill_at=draw.randint(1, base.n_steps() - 1))
    if finds_norm(ended.stderr):
        return
    if ended.status != DONE:
        raise Broken(law, str(ended))
    check_weights(law, Run(out, ended), base, "after the loss")


def finds_norm(stderr):
    """Whether a run ends that has a norm for each logged step: a gradient is checked where its norm is wanted, and a run that logs
    fewer steps goes on."""
    return "gradient is not finite at step" in stderr or "gradient overflows f32 when squared at step" in stderr


def a_life_of_interruptions(trial, base, draw):
    """(b) A run that is stopped, killed and moved to other ranks again and again has the weights of one that nothing disturbed."""
    try:
        live_with_interruptions(trial, base, draw)
    except Broken as broken:
        if not finds_norm(str(broken)):
            raise


def live_with_interruptions(trial, base, draw):
    law, step, sets, resume = "a life of interruptions", 0, ["checkpoint.every_steps=1", "log.every_steps=1"], ["--resume", "auto"]
    ranks, told = trial.ranks, []
    while step < base.n_steps() - 1 and len(told) < 4:
        step = draw.randint(step + 1, base.n_steps() - 1)
        same_rows = global_rows(trial, trial.ranks)
        if draw.random() < 0.5:
            told.append(f"stopped after step {step} on {ranks} ranks")
            stop = lambda: trial.stop_at("life", step, *sets, *same_rows, ranks=ranks, more=resume)
            if must_train(law, stop).ended.status != STOPPED:
                raise Broken(law, f"{', '.join(told)}: it went on to its end")
        else:
            told.append(f"killed at step {step} on {ranks} ranks")
            if trial.kill_at("life", step, *sets, *same_rows, ranks=ranks, more=resume):
                break
            # The kill comes some steps later; a run is not stopped after a step that is done.
            saved = (trial.folder / "life/checkpoints").glob("step-*")
            step = max([step, *(int(folder.name.split("-")[1]) for folder in saved if folder.name[5:].isdigit())])
        ranks = other_ranks(trial, draw) if is_fixed(trial) else trial.ranks
    if not told:
        return
    got = must_train(law, lambda: trial.train("life", *sets, *global_rows(trial, trial.ranks), ranks=ranks, more=resume))
    check_weights(law, got, base, ", ".join(told))


def starts_from_its_model(trial, base, draw):
    """A run that starts from the model of another one, and learns next to nothing, has its weights."""
    law, path = "a run starts from a model", trial.folder / "from.toml"
    rates = {key: 1e-30 for key in ("optimizer.lr", "optimizer.adamw_lr") if key == "optimizer.lr" or trial.config.get("optimizer.kind") == "muon"}
    config = {key: of for key, of in trial.config.items() if key != "optimizer.groups"}
    path.write_text(of_keys.config_text({**config, **rates}))
    try:
        got = trial.train("from", config=path, more=["--init-from", base.out / "model.safetensors"])
    except Diverged:
        return
    except Refused as refused:
        raise Broken(law, refused.message) from None
    ours, theirs = got.weights(), base.weights()
    if ours.keys() != theirs.keys():
        raise Broken(law, f"{sorted(ours.keys() ^ theirs.keys())} in one of the models only")
    for name, (kind, shape, data) in theirs.items():
        # Statistics of batch norms follow the rows.
        if kind != "F32" or "running_" in name or "num_batches" in name:
            continue
        values = [struct.unpack(f"<{len(of) // 4}f", of) for of in (ours[name][2], data)]
        # An average of equal weights rounds.
        if any(differs(a, b, 1e-6, 1e-12) for a, b in zip(*values)):
            raise Broken(law, f"{name} differs from the model that the run started from")


def cached_trains_alike(trial, base, draw):
    """A run whose table is kept, and one that maps the kept table, on as many ranks, have the bits of one that reads it."""
    law = "a kept table trains alike"
    if trial.table.is_array:
        return
    folder = trial.folder / "kept"
    for name in ("kept-made", "kept-used"):
        got = must_train(law, lambda: trial.train(name, f"data.cache={json.dumps(str(folder))}"))
        check_bits(law, got, base, name)
    # A second name is that for runs that resume.
    tables = {table.stat().st_ino for table in folder.glob("*.rows")}
    if len(tables) != 1 or any(table.suffix != ".rows" for table in folder.iterdir()):
        raise Broken(law, f"one table is kept, not {[table.name for table in folder.iterdir()]}")


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
