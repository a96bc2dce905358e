"""Draws values of config keys from the rows of the keys themselves.

`ddp-train config keys --json` gives each key's default and example, `ddp-train config schema` its type and range. A key whose values
must fit the data, or whose range holds values that no test can pay for, has a rule in `RULES`; every other key is drawn by its type,
so a new key joins by itself. A text without a rule can't be drawn: that is a failure of the generator, which names the key.
"""

import json
import math
import subprocess
import tomllib

from .tables import LOSSES, METRICS


class CannotDraw(Exception):
    """A key without a rule whose type says nothing about its values."""


# Whole numbers above this are left to rules: an epoch, a width or a memory of a million is correct and too slow.
MAX_COUNT = 64


class Key:
    """A row of the config's table."""

    def __init__(self, row, schema):
        self.name, self.schema = row["key"], schema
        self.default = None if row["default"] is None else from_toml(row["default"])
        self.example = from_toml(row["example"])
        self.may_change_on_resume = row["may_change_on_resume"]
        self.alternative = row["instead_of"]
        # Binaries of earlier versions list none.
        self.conflicts_with = [of["with"] for of in row.get("conflicts", [])]

    def enumerated(self):
        """All values of a key that has few of them; empty for other keys."""
        schema = self.schema
        for one in [schema, *schema.get("anyOf", [])]:
            if "enum" in one and "type" not in one.get("items", {}):
                return list(one["enum"])
        if schema.get("type") == "boolean":
            return [False, True]
        if schema.get("type") == "integer" and schema["maximum"] - schema["minimum"] < 4:
            return list(range(schema["minimum"], schema["maximum"] + 1))
        return []

    def draw(self, draw):
        """A value by the type alone."""
        return by_type(self.name, self.schema, self.default, self.example, draw)


def by_type(name, schema, default, example, draw):
    """A value of this schema."""
    if "anyOf" in schema:
        return by_type(name, draw.choice(schema["anyOf"]), default, example, draw)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "integer":
        low, high = schema["minimum"], schema["maximum"]
        pool = [low, low + 1, low + 2, low + 7, *(value for value in (default, example) if isinstance(value, int))]
        return draw.choice([value for value in pool if value <= min(high, max(MAX_COUNT, low))])
    if kind == "number":
        return number(schema, default, example, draw)
    if kind == "array":
        length = draw.randint(max(schema.get("minItems", 0), 1), schema.get("maxItems", 3))
        return [by_type(name, schema["items"], None, item, draw) for item in (list(example) * length)[:length]]
    if kind == "object":
        # Every key of the table but, at times, those that need not be there.
        return {
            key: by_type(f"{name}.{key}", of, of.get("default"), (example or {}).get(key), draw)
            for key, of in schema["properties"].items()
            if key in schema.get("required", []) or key in (example or {}) or draw.random() < 0.2
        }
    raise CannotDraw(f"{name} is a text: give it a rule in tests/combining/keys.py")


def number(schema, default, example, draw):
    """A finite number: the default, the example, an end of the range, or near one of them."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    known = [float(value) for value in (default, example) if isinstance(value, (int, float))]
    near = [value * draw.choice([0.5, 0.9, 1.5, 2.0]) for value in known]
    ends = [end for end, is_out in [(low, "exclusiveMinimum"), (high, "exclusiveMaximum")] if not schema.get(is_out)]
    pool = [*known, *near, *(end for end in ends if abs(end) <= 10)]
    is_inside = lambda value: (
        (value > low if schema.get("exclusiveMinimum") else value >= low)
        and (value < high if schema.get("exclusiveMaximum") else value <= high)
    )
    inside = [value for value in pool if is_inside(value)]
    return draw.choice(inside) if inside else low + (min(high, low + 1) - low) / 2


def from_toml(text):
    return tomllib.loads(f"value = {text}")["value"]


def to_toml(value):
    """A value of JSON's types as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(of)}" for key, of in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def config_text(config):
    """A config, by the names of its keys with their sections, as TOML."""
    sections = {}
    for name, value in config.items():
        section, _, short = name.rpartition(".")
        sections.setdefault(section, []).append(f"{short} = {to_toml(value)}\n")
    top = "".join(sections.pop("", []))
    return top + "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())


def read_keys(binary):
    """All keys, by name."""
    ask = lambda *args: subprocess.run([binary, "config", *args], check=True, capture_output=True, text=True).stdout
    schema = json.loads(ask("schema"))["properties"]
    keys = {}
    for line in ask("keys", "--json").splitlines():
        row = json.loads(line)
        section, _, short = row["key"].rpartition(".")
        of_key = schema[section]["properties"][short] if section else schema[short]
        keys[row["key"]] = Key(row, of_key)
    return keys


# Rules -----------------------------------------------------------------------------------------------------------------------------
# A rule takes the source of randomness, the table and the key, and gives a value, or None to leave the key out.

def one_of(*values):
    return lambda draw, table, key: draw.choice(values)


def log_uniform(low, high):
    return lambda draw, table, key: float(f"{math.exp(draw.uniform(math.log(low), math.log(high))):.3g}")


def never(draw, table, key):
    """A key that the table decides, not chance."""
    return None


def layers(draw, depth=0):
    """A list of layers of every kind in turn."""
    kinds = ["linear", "activation", "dropout", "layer_norm", "rms_norm", "batch_norm", "glu", *(["residual"] if depth == 0 else [])]
    found = []
    for kind in [draw.choice(kinds) for _ in range(draw.randint(1, 4))]:
        layer = {"kind": kind}
        if kind in ("linear", "glu"):
            layer["out_features"] = draw.choice([1, 3, 8, 16])
        if kind == "linear" and draw.random() < 0.5:
            layer["activation"] = draw.choice(["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "smooth_clip"])
        if kind == "activation":
            layer["activation"] = draw.choice(["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "smooth_clip"])
        if kind == "glu" and draw.random() < 0.5:
            layer["gate"] = draw.choice(["geglu", "swiglu", "reglu"])
        if kind == "dropout":
            layer["p"] = draw.choice([0.0, 0.1, 0.5])
        if kind == "residual":
            layer["layers"] = layers(draw, depth + 1)
            width = draw.choice([3, 8])
            # A block adds its output to its input: both have this width.
            for inner in layer["layers"]:
                if "out_features" in inner:
                    inner["out_features"] = width
            found.append({"kind": "linear", "out_features": width})
            layer["repeat"] = draw.choice([1, 1, 2])
        found.append(layer)
    if depth == 0 and draw.random() < 0.2:
        found.insert(0, {"kind": "numeric_embedding", "dim": draw.choice([2, 4]), "n_frequencies": draw.choice([2, 5])})
    return found


def groups(draw, table, key):
    found = []
    for _ in range(draw.randint(1, 2)):
        group = {"match": draw.choice(["layers.0.*", "*.bias", "*", "*weight", "embeddings.*"])}
        if draw.random() < 0.6:
            group["lr_scale"] = draw.choice([0.0, 0.1, 1.0, 2.0])
        if draw.random() < 0.4:
            group["weight_decay"] = draw.choice([0.0, 0.1])
        if draw.random() < 0.3:
            group["schedule"] = draw.choice([{"kind": "cosine", "warmup_steps": 2}, {"kind": "constant"}, {"kind": "one_cycle"}])
        found.append(group)
    return found


def classes_of(table):
    return table.n_classes if table.task == "classification" and table.has_numbered_labels else None


def class_weights(draw, table, key):
    if draw.random() < 0.5:
        return "balanced"
    return [draw.choice([0.25, 1.0, 4.0]) for _ in range(max(table.n_classes, 2))]


def loss_kind(draw, table, key):
    """Mostly one of the task, at times any."""
    fitting = LOSSES[table.task]
    return draw.choice(fitting) if fitting and draw.random() < 0.93 else draw.choice(key.enumerated())


def metric(draw, table, key):
    if draw.random() < 0.9:
        fitting = ["eval_loss", *(f"eval_{name}" for name in METRICS[table.task])]
        return draw.choice([name for name in fitting if name in key.enumerated()])
    return draw.choice(key.enumerated())


RULES = {
    "name": one_of("digits", "a_b", "u-1.2", "2"),
    "heads": never,
    "data.train": never,
    "data.labels": never,
    "data.eval": never,
    "data.eval_labels": never,
    "data.eval_weight": never,
    "data.eval_fraction": never,
    "data.split": never,
    "data.format": lambda draw, table, key: draw.choice(["auto", table.format_name]),
    "data.features_key": never,
    "data.labels_key": never,
    "data.target": never,
    "data.task": lambda draw, table, key: None if table.task == "heads" else draw.choice([table.task, table.task, "auto"]),
    "data.classes": lambda draw, table, key: classes_of(table),
    "data.class_order": lambda draw, table, key: draw.sample(table.labels, len(table.labels)) if table.labels else None,
    "data.weight": never,
    "data.fold": never,
    "data.drop": never,
    "data.categorical": never,
    # It keeps all rows: the labels of others may be all that a class has.
    "data.filter": lambda draw, table, key: None if table.is_array else f'"{table.place("f0")}" > -1e12 or "{table.place("f0")}" is missing',
    "data.max_rows": lambda draw, table, key: draw.choice([table.n_rows, 10**6]),
    "data.missing_values": one_of(["-999"], ["", "unknown"], "nix"),
    "data.header": lambda draw, table, key: draw.choice(["auto", table.has_header]),
    "data.delimiter": lambda draw, table, key: draw.choice(["auto", table.delimiter]) if table.is_text else "auto",
    "data.decimal": lambda draw, table, key: draw.choice(["auto", table.decimal]) if table.is_text else "auto",
    "data.missing": lambda draw, table, key: draw.choice(["error", "mean", "zero"] if not table.has_missing else ["mean", "zero"]),
    "data.embedding_dim": one_of(0, 1, 3, 8),
    "data.category_min_rows": one_of(0, 1, 2, 5, 1000),
    "data.shuffle_window_mib": one_of(1, 2, 64),
    "data.loader_memory_mib": one_of(0, 1, 2, 16, 1024),
    "data.cache": lambda draw, table, key: None if table.is_array else "kept-tables",
    "data.prefetch": one_of(1, 2, 4, 9),
    "data.loader_threads": one_of(0, 1, 3),
    "model.hidden": one_of([], [1], [8], [16, 8], [16, 16, 16], [5, 1, 3]),
    "model.layers": lambda draw, table, key: layers(draw),
    "model.dropout": one_of(0.0, 0.1, 0.5),
    "loss.kind": loss_kind,
    "loss.class_weights": class_weights,
    "optimizer.lr": log_uniform(1e-4, 3e-2),
    "optimizer.adamw_lr": log_uniform(1e-4, 3e-2),
    "optimizer.eps": log_uniform(1e-10, 1e-3),
    "optimizer.groups": groups,
    "schedule.warmup_steps": one_of(0, 1, 5),
    "schedule.decay_steps": one_of(0, 1, 5),
    "schedule.step_every_steps": one_of(1, 2, 5),
    "schedule.restart_growth": one_of(1, 2, 3),
    "schedule.plateau_patience": one_of(1, 2),
    "train.epochs": one_of(1, 2, 3, 4),
    "train.steps": one_of(1, 2, 7, 20),
    "train.batch_size": one_of(1, 2, 3, 8, 32, 50),
    "train.global_batch_size": one_of(1, 2, 5, 8, 12, 24, 48, 64, 100),
    "train.grad_accum_steps": one_of(1, 2, 3),
    "train.clip_grad_norm": one_of(0.0, 0.05, 1.0),
    "train.seed": one_of(0, 1, 7, 9223372036854775807),
    "train.loss_scale_init": one_of(1.0, 1024.0, 65536.0, 1073741824.0),
    "train.ema_decay": one_of(0.0, 0.5, 0.9, 0.999),
    "train.ema_eval": one_of("both", "averaged"),
    "train.micro_shards": one_of(1, 2, 4, 8, 16),
    "train.eval_every_steps": one_of(0, 1, 3, 7),
    "train.gpu_without": lambda draw, table, key: draw.sample(
        ["fused-epilogues", "timed-matmuls", "stream-priorities", "memory-pool", "mapped-outcome", "pinned-memory",
         "dependent-launches"], draw.randint(0, 3)),
    "train.eval_metrics": lambda draw, table, key: draw.choice([["default"], ["all"], ["default", *draw.sample(METRICS[table.task], 1)]])
    if METRICS[table.task] else ["default"],
    "train.early_stop_metric": metric,
    "train.early_stop_patience": one_of(0, 1, 2),
    "train.early_stop_min_delta": one_of(0.0, 0.001, 0.5),
    "train.replica_check_steps": one_of(0, 1, 4, 1000),
    "train.spike_window": one_of(8, 10),
    "train.spike_threshold": one_of(1.0, 3.0, 10.0),
    "train.schedule_steps": one_of(1, 2, 7, 100),
    "train.stop_after_steps": never,
    "train.stop_after_epochs": never,
    "comm.bucket_mib": one_of(0.0001, 0.001, 0.01, 32.0),
    "comm.zero_copies_every_steps": one_of(1, 2, 5, 20),
    "checkpoint.every_steps": one_of(0, 1, 2, 5),
    "checkpoint.every_minutes": one_of(0.0, 5.0),
    "checkpoint.every_epochs": one_of(0, 1, 2),
    "checkpoint.keep": one_of(0, 1, 3),
    "checkpoint.keep_best": lambda draw, table, key: "none" if draw.random() < 0.3 else metric(draw, table, key),
    "log.every_steps": one_of(1, 1, 1, 3, 50),
    # A test takes seconds; a rank that waits for a busy core is not lost.
    "watchdog.timeout_s": one_of(30.0, 60.0),
    "watchdog.interval_s": one_of(0.1, 0.5),
    "watchdog.save_s": one_of(0.0, 30.0),
    "run.file_mode": one_of("600", "640", "666"),
}


def draw_config(draw, keys, table, presence, forced):
    """A config on `table`, in which each key that chance decides is given with the probability `presence`, and those of `forced` as
    they are there."""
    config = table.config(draw)
    for name, key in keys.items():
        rule = RULES.get(name)
        # Drawn by its type also where it is not given, so that a key without a rule is found at once.
        value = rule(draw, table, key) if rule else key.draw(draw)
        if value is not None and name not in config and draw.random() < presence:
            config[name] = value
    if "model.layers" in config and (forced.keys() & {"model.kind", "model.norm", "model.activation", "model.residual"}):
        del config["model.layers"]
    if "model.layers" in config:
        for name in [name for name in config if name.startswith("model.") and name not in ("model.layers", "model.bias")]:
            del config[name]
    for name in list(config):
        other = keys[name].alternative
        if name in config and other in config:
            del config[draw.choice([name, other])]
    if config.get("comm.zero_copies_every_steps", 20) != 20 and "comm.zero_copies" not in forced and draw.random() < 0.9:
        # Without copies there is nothing to refresh.
        config["comm.zero_copies"] = 1
    if config.get("comm.zero_copies") and "comm.zero" not in forced and draw.random() < 0.9:
        # Without shards there is nothing to copy.
        config["comm.zero"] = draw.choice([1, 2])
    return {**config, **forced}
