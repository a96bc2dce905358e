"""Draws tables of rows that fit what the program can be asked, and writes them in any of its formats.

A table knows its rows as Python values: numbers, texts, None for a missing cell. Text files, JSON lines and arrays are written here,
independently of the program; Parquet, which needs a library, by `ddp-train data convert` from the CSV file, and Arrow from that by pyarrow
where it is installed; else no table is one of Arrow.
"""

import importlib.util
import io
import json
import math
import struct
import subprocess
import zipfile

TABLE_FORMATS = ["csv", "parquet", "jsonl"] + ["arrow"] * bool(importlib.util.find_spec("pyarrow"))
ARRAY_FORMATS = ["npz", "safetensors", "npy", "idx"]
LOSSES = {
    "classification": ["auto", "cross_entropy", "cross_entropy", "focal", "ordinal"],
    "regression": ["auto", "mse", "huber", "log_cosh", "quantile", "poisson"],
    "multilabel": ["auto", "bce", "focal"],
    "heads": [],
}
# Names that a key of a metric can have, without eval_; docs/metrics.md lists all.
METRICS = {
    "classification": ["accuracy", "balanced_accuracy", "precision_macro", "recall_macro", "f1_macro", "f1_weighted", "top_5_accuracy",
                       "log_loss", "roc_auc", "average_precision", "ece", "class_mae", "quadratic_kappa"],
    "regression": ["mae", "rmse", "r2"],
    "multilabel": ["accuracy", "subset_accuracy", "precision_macro", "recall_macro", "f1_macro", "f1_micro", "roc_auc",
                   "average_precision", "ece"],
    "heads": [],
}
SUFFIX = {"csv": "csv", "parquet": "parquet", "arrow": "arrow", "jsonl": "jsonl", "npz": "npz", "safetensors": "safetensors", "npy": "npy"}
ROWS = [1, 2, 3, 5, 7, 16, 17, 33, 33, 64, 65, 65, 97, 97, 129, 129, 200, 200]
NAMES = ["oslo", "são paulo", "new york", "a,b", 'say "x"', "0", "tab", "Ω"]
LABELS = [["no", "yes"], ["setosa", "versicolor", "virginica"], ["b", "a"], ["007", "7", "x"], ["<=50K", ">50K"], ["ä", "z", "A", "10"]]


class Table:
    """Rows of one drawn kind. `n_eval` of them, the last ones, are in a file of their own where `eval_from` is "file"."""

    def __init__(self, draw, plain=False):
        """Draws the kind and the rows; a plain table has only numbers as features and no missing cell."""
        self.task = draw.choice(["classification", "classification", "regression", "multilabel", "heads"] if not plain else
                                ["classification", "regression"])
        self.format_name = draw.choice(TABLE_FORMATS + ARRAY_FORMATS) if plain else draw.choice(TABLE_FORMATS)
        if plain and self.format_name == "idx":
            self.task = "classification"
        self.is_array = self.format_name in ARRAY_FORMATS
        self.is_text = self.format_name == "csv"
        self.delimiter = draw.choice([",", ",", ";", "tab", "|"]) if self.is_text else ","
        self.decimal = draw.choice([".", ","]) if self.is_text and self.delimiter != "," else "."
        self.has_header = not (self.is_text and draw.random() < 0.1)
        self.n_files = 1 if self.is_array or draw.random() < 0.7 else draw.choice([2, 3])
        self.n_rows = draw.choice(ROWS)
        self.labels, self.n_classes, self.has_numbered_labels, self.has_missing = [], 0, False, False
        self.columns, self.targets, self.features, self.categorical, self.drop = {}, [], [], [], []
        self.weight = self.split = None
        self.heads, self.has_counts = [], False
        self.draw_features(draw, plain)
        self.draw_targets(draw, plain)
        self.draw_others(draw, plain)
        self.draw_eval(draw)

    def draw_features(self, draw, plain):
        n_numbers = draw.choice([1, 2, 3, 6])
        is_idx = self.format_name == "idx"
        for index in range(n_numbers):
            kind = draw.choice(["unit", "unit", "unit", "whole", "constant", "large"]) if not is_idx else "byte"
            cell = {
                "unit": lambda: round(draw.gauss(0, 1), 3),
                "whole": lambda: draw.randint(-5, 30),
                "constant": lambda: 4.5,
                "large": lambda: round(1e6 + draw.gauss(0, 3), 2),
                "byte": lambda: draw.randint(0, 255),
            }[kind]
            self.add_feature(f"f{index}", [cell() for _ in range(self.n_rows)])
        if plain:
            return
        for index in range(draw.choice([0, 0, 1, 2])):
            names = draw.sample(NAMES, draw.choice([1, 2, 5]))
            cells = [draw.choice(names) for _ in range(self.n_rows)]
            if draw.random() < 0.3:
                cells = [None if draw.random() < 0.1 else cell for cell in cells]
            self.add_feature(f"c{index}", cells)
            self.categorical.append(f"c{index}")
        if draw.random() < 0.2:
            day = lambda: f"20{draw.randint(10, 25)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
            self.add_feature("day", [day() for _ in range(self.n_rows)])
        if draw.random() < 0.3:
            name = draw.choice([name for name in self.features if name.startswith("f")])
            cells = self.columns[name]
            self.columns[name] = [None if draw.random() < 0.15 else cell for cell in cells]
            self.has_missing = None in self.columns[name]

    def add_feature(self, name, cells):
        self.columns[name] = cells
        self.features.append(name)

    def score(self, row):
        """A number that the features decide, for targets that can be learned."""
        value = self.columns["f0"][row]
        return 0.0 if value is None else math.sin(float(value))

    def draw_targets(self, draw, plain):
        scores = [self.score(row) + draw.gauss(0, 0.1) for row in range(self.n_rows)]
        if self.task == "classification":
            self.targets = ["label"]
            self.columns["label"] = self.draw_labels(draw, scores, plain)
        elif self.task == "regression":
            self.targets = [f"t{index}" for index in range(draw.choice([1, 1, 2, 3]))]
            kind = draw.choice(["plain", "plain", "counts", "large"])
            self.has_counts = kind != "plain"
            for index, name in enumerate(self.targets):
                of = {
                    "plain": lambda score: round(score * (index + 1), 3),
                    "counts": lambda score: max(0, round(3 * score + 2)),
                    "large": lambda score: round(1e5 + 20 * score, 2),
                }[kind]
                self.columns[name] = [of(score) for score in scores]
        elif self.task == "multilabel":
            self.targets = [f"t{index}" for index in range(draw.choice([2, 3]))]
            for index, name in enumerate(self.targets):
                self.columns[name] = [int(score > 0.3 * index) for score in scores]
        else:
            names = draw.choice([["kind", "size"], ["kind", "size", "marks"], ["size", "price"]])
            for name in names:
                head = {"name": name, "task": {"kind": "classification", "marks": "multilabel"}.get(name, "regression")}
                columns = ["m0", "m1"] if name == "marks" else [name]
                for column in columns:
                    self.columns[column] = self.draw_head(draw, head["task"], scores)
                if columns != [name]:
                    head["target"] = columns
                if draw.random() < 0.4:
                    head["weight"] = draw.choice([0.5, 2.0])
                if draw.random() < 0.3:
                    losses = {"classification": ["cross_entropy", "focal", "ordinal"], "regression": ["mse", "huber", "log_cosh"],
                              "multilabel": ["bce", "focal"]}
                    head["loss"] = {"kind": draw.choice(losses[head["task"]])}
                self.heads.append(head)
                self.targets += columns
        self.has_missing_target = self.n_rows > 8 and not plain and draw.random() < 0.15
        if self.has_missing_target:
            name = draw.choice(self.targets)
            cells = self.columns[name]
            self.columns[name] = [None if row % 7 == 3 else cell for row, cell in enumerate(cells)]

    def draw_head(self, draw, task, scores):
        if task == "classification":
            names = draw.choice(LABELS)
            return [names[int(score > 0) % len(names)] for score in scores]
        if task == "multilabel":
            return [int(score > 0) for score in scores]
        return [round(2 * score, 3) for score in scores]

    def draw_labels(self, draw, scores, plain):
        n_classes = 1 if draw.random() < 0.05 else draw.choice([2, 2, 3, 5])
        place = lambda score: min(int((score + 1.2) / 2.4 * n_classes), n_classes - 1) if score > -1.2 else 0
        classes = [place(score) for score in scores]
        is_text = not plain and draw.random() < 0.5
        gap = 1 if plain or draw.random() < 0.7 else 5
        numbers = [of * gap for of in range(n_classes)]
        names = draw.choice(LABELS) if is_text else numbers
        if n_classes > 1 and self.n_rows > 2:
            # Rows that are trained on whatever is held out.
            classes[0], classes[1] = 0, 1
        cells = [names[of % len(names)] for of in classes]
        self.labels = sorted(set(cells)) if is_text else []
        self.has_numbered_labels = not is_text and names == list(range(n_classes))
        self.n_classes = n_classes if self.has_numbered_labels else len(set(cells))
        return cells

    def draw_others(self, draw, plain):
        if draw.random() < 0.25 and self.format_name not in ("npy", "idx"):
            self.weight = "w"
            self.columns["w"] = [draw.choice([0.0, 0.5, 1.0, 1.0, 3.0]) for _ in range(self.n_rows)]
        if not plain and draw.random() < 0.2:
            self.columns["id"] = [f"row{row}" for row in range(self.n_rows)]
            self.drop.append("id")

    def draw_eval(self, draw):
        """Rows to evaluate on: none, a fraction, those of a column, or those of a file of their own."""
        kinds = ["none", "fraction", "file", "file"]
        if not self.is_array:
            kinds += ["column", "group", "time"]
        self.eval_from = draw.choice(kinds) if self.n_rows >= 5 else "none"
        self.n_eval = max(1, self.n_rows // 4) if self.eval_from == "file" else 0
        if self.eval_from == "column":
            self.columns["fold"] = ["test" if row % 4 == 3 else "train" for row in range(self.n_rows)]
            self.split = {"column": "fold", "eval": "test"}
        elif self.eval_from == "group":
            self.columns["who"] = [f"p{row % 5}" for row in range(self.n_rows)]
            self.split = {"group": "who"}
        elif self.eval_from == "time":
            self.columns["when"] = [f"2024-03-{row % 28 + 1:02}" for row in range(self.n_rows)]
            self.split = {"time": "when"}

    def least_train_rows(self):
        """A number of rows that are left to train on, whatever is held out or lacks a target."""
        return max(1, (self.n_rows - self.n_eval) // 2)

    def fits(self, forced):
        """Whether a config with these values can train on the table, as far as values depend on tables."""
        wanted = {
            "data.format": lambda of: of in ("auto", self.format_name),
            "data.task": lambda of: not self.heads and of in ("auto", self.task),
            "data.header": lambda of: self.is_text and of in ("auto", self.has_header),
            "data.delimiter": lambda of: of in ("auto", self.delimiter) if self.is_text else of == "auto",
            "data.decimal": lambda of: of in ("auto", self.decimal) if self.is_text else of == "auto",
            "data.missing": lambda of: of != "error" or not self.has_missing,
            "data.missing_target": lambda of: not self.is_array and (of == "skip" or not self.has_missing_target),
            "data.datetime": lambda of: not self.is_array,
            "data.filter": lambda of: not self.is_array,
            "data.balance": lambda of: of == "none" or self.task == "classification",
            "data.cache": lambda of: not self.is_array,
            "data.stratify": lambda of: not (of and self.split),
            "loss.kind": lambda of: of in LOSSES[self.task] and not (of == "poisson" and not self.has_counts),
            "loss.class_weights": lambda of: self.task == "classification",
            "data.normalize_target": lambda of: of != "standard" or self.task != "classification",
            "train.early_stop_metric": self.has_metric,
            "checkpoint.keep_best": self.has_metric,
        }
        return all(wanted[name](of) for name, of in forced.items() if name in wanted)

    def has_metric(self, name):
        is_of_task = name in ("eval_loss", "none") or name.removeprefix("eval_") in METRICS[self.task]
        return is_of_task and (name in ("eval_loss", "none") or self.eval_from != "none")

    def place(self, column):
        """The name by which a config calls a column: that of its place where the file names none."""
        return column if self.has_header else f"column_{list(self.columns).index(column) + 1}"

    def config(self, draw):
        """The keys that name the table's files and columns."""
        config = {"data.train": self.files["train"]}
        if self.eval_from == "file":
            config["data.eval"] = self.files["eval"]
        elif self.eval_from in ("fraction", "group") and draw.random() < 0.4:
            config["data.fold"] = draw.choice(["1/2", "2/4", "4/4"])
        elif self.eval_from in ("fraction", "group", "time"):
            config["data.eval_fraction"] = 0.25
        if self.split:
            config["data.split"] = {key: self.place(of) if key != "eval" else of for key, of in self.split.items()}
        if self.format_name == "npy":
            config["data.labels"] = self.files["labels"]
            if self.eval_from == "file":
                config["data.eval_labels"] = self.files["eval_labels"]
        if self.has_missing and draw.random() < 0.9:
            config["data.missing"] = draw.choice(["mean", "zero"])
        if self.has_missing_target and draw.random() < 0.9:
            config["data.missing_target"] = "skip"
        if not self.has_header:
            config["data.header"] = False
        if self.weight:
            config["data.weight"] = self.place("w") if not self.is_array else "weights"
        if self.heads:
            config["heads"] = [
                {**head, "target": [self.place(of) for of in head.get("target", [head["name"]])]} for head in self.heads
            ]
        elif self.is_array:
            config["data.task"] = self.task
        else:
            targets = [self.place(of) for of in self.targets]
            config["data.target"] = targets if len(targets) > 1 else targets[0]
            # Regression on whole numbers, and several columns of 0 and 1, would be taken for another task.
            if self.task != "classification" or draw.random() < 0.5:
                config["data.task"] = self.task
        if self.categorical:
            config["data.categorical"] = [self.place(of) for of in self.categorical]
        if self.drop:
            config["data.drop"] = [self.place(of) for of in self.drop]
        return config

    # Files ---------------------------------------------------------------------------------------------------------------------

    def write(self, folder, binary, format_name=None):
        """Writes the rows into `folder` in this format, the table's own by default, and returns the paths by their use."""
        name = format_name or self.format_name
        folder.mkdir(parents=True, exist_ok=True)
        n_train = self.n_rows - self.n_eval
        parts = {"train": range(n_train), **({"eval": range(n_train, self.n_rows)} if self.n_eval else {})}
        return {use: path for part, rows in parts.items() for use, path in self.write_part(folder, binary, name, part, rows).items()}

    def write_part(self, folder, binary, name, part, rows):
        if name in ARRAY_FORMATS:
            return self.write_arrays(folder, name, part, rows)
        n_files = self.n_files if part == "train" else 1
        if n_files == 1:
            path = folder / f"{part}.{SUFFIX[name]}"
            self.write_table(path, binary, name, rows)
            return {part: str(path)}
        (folder / part).mkdir(exist_ok=True)
        step = -(-len(rows) // n_files)
        for index in range(n_files):
            of_file = rows[index * step:(index + 1) * step]
            if len(of_file) > 0:
                self.write_table(folder / part / f"part-{index}.{SUFFIX[name]}", binary, name, of_file)
        return {part: str(folder / part / f"part-*.{SUFFIX[name]}")}

    def write_table(self, path, binary, name, rows):
        if name == "jsonl":
            lines = ({column: cells[row] for column, cells in self.columns.items()} for row in rows)
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
            return
        text = self.csv_text(rows, plain=name != "csv")
        if name == "csv":
            path.write_text(text)
            return
        source = path.with_suffix(".source.csv")
        source.write_text(text)
        # Labels such as 007 stay texts, as in the CSV file.
        texts = [column for column, cells in self.columns.items() if any(isinstance(cell, str) for cell in cells)]
        keep = [word for column in texts if column not in ("day", "when", *self.targets) for word in ("--categorical", column)]
        parquet = path.with_suffix(".parquet")
        line = [binary, "data", "convert", source, parquet, *keep]
        ended = subprocess.run(line, capture_output=True, text=True)
        if ended.returncode != 0:
            raise RuntimeError(f"data convert: status {ended.returncode}: {ended.stderr}")
        source.unlink()
        if name == "arrow":
            as_arrow(parquet, path)
            parquet.unlink()

    def csv_text(self, rows, plain):
        """The rows as text; plain with commas, points and a header, whatever the table says."""
        delimiter = "," if plain else {"tab": "\t"}.get(self.delimiter, self.delimiter)
        decimal = "." if plain else self.decimal

        def cell(value):
            if value is None:
                return ""
            if isinstance(value, float):
                return repr(value).replace(".", decimal)
            text = str(value)
            return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in [delimiter, '"', "\n"]) else text

        lines = [list(self.columns)] if plain or self.has_header else []
        lines += [[cells[row] for cells in self.columns.values()] for row in rows]
        return "".join(delimiter.join(map(cell, line)) + "\n" for line in lines)

    def write_arrays(self, folder, name, part, rows):
        features = [float(self.columns[column][row]) for row in rows for column in self.features]
        shape = [len(rows), len(self.features)]
        is_classes = self.task == "classification"
        targets = [self.columns[column][row] for row in rows for column in self.targets]
        target_shape = [len(rows)] if is_classes or len(self.targets) == 1 else [len(rows), len(self.targets)]
        arrays = {"features": ("f4", shape, features), "labels": ("i8" if is_classes else "f4", target_shape, targets)}
        if self.weight:
            arrays["weights"] = ("f4", [len(rows)], [self.columns["w"][row] for row in rows])
        if name == "npy":
            paths = {"features": folder / f"{part}.npy", "labels": folder / f"{part}.labels.npy"}
            for array, path in paths.items():
                path.write_bytes(npy(*arrays[array]))
            return {part: str(paths["features"]), "labels" if part == "train" else "eval_labels": str(paths["labels"])}
        if name == "idx":
            stem = "train" if part == "train" else "t10k"
            images, labels = folder / f"{stem}-images-idx3-ubyte", folder / f"{stem}-labels-idx1-ubyte"
            images.write_bytes(struct.pack(">HBBIII", 0, 8, 3, len(rows), 1, shape[1]) + bytes(map(int, features)))
            labels.write_bytes(struct.pack(">HBBI", 0, 8, 1, len(rows)) + bytes(targets))
            return {part: str(images)}
        path = folder / f"{part}.{SUFFIX[name]}"
        if name == "npz":
            with zipfile.ZipFile(path, "w") as archive:
                for array, of in arrays.items():
                    archive.writestr(f"{array}.npy", npy(*of))
        else:
            path.write_bytes(safetensors(arrays))
        return {part: str(path)}


def as_arrow(parquet, path):
    """Copies a Parquet file to one of Arrow."""
    import pyarrow.feather
    import pyarrow.parquet

    pyarrow.feather.write_feather(pyarrow.parquet.read_table(parquet), str(path))


class Digits(Table):
    """The built-in digits, as far as keys are drawn for them: classes from 0, no column of any other kind."""

    def __init__(self):
        self.task, self.format_name, self.is_array, self.is_text, self.has_header = "classification", "auto", True, False, True
        self.delimiter, self.decimal, self.eval_from, self.split, self.weight = ",", ".", "file", None, None
        self.labels, self.n_classes, self.has_numbered_labels, self.n_rows = [], 10, True, 1797
        self.has_missing, self.has_missing_target, self.has_counts, self.heads = False, False, False, []

    def config(self, draw):
        return {"data.train": "builtin:digits"}


def packed(dtype, values):
    return struct.pack(f"<{len(values)}{'f' if dtype == 'f4' else 'q'}", *values)


def npy(dtype, shape, values):
    header = f"{{'descr': '<{dtype}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))},), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + packed(dtype, values)


def safetensors(arrays):
    header, body = {}, io.BytesIO()
    for name, (dtype, shape, values) in arrays.items():
        start = body.tell()
        body.write(packed(dtype, values))
        header[name] = {"dtype": "F32" if dtype == "f4" else "I64", "shape": shape, "data_offsets": [start, body.tell()]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body.getvalue()
