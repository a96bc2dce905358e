"""Estimators for scikit-learn, which train and predict by the program.

    from ddp_train.sklearn import DdpClassifier

    model = DdpClassifier(hidden=(256, 128), optimizer__lr=3e-3, random_state=0)
    model.fit(frame, labels, eval_set=(other_frame, other_labels))
    model.predict_proba(new_frame)

Rows reach the program as a file in memory: columns as an Arrow file, arrays of many features as npy. Nothing is computed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, assert_all_finite, check_is_fitted, validate_data

import ddp_train

from .frames import plain_type
from .memory_rows import MOST_COLUMNS, Files, blocks, check_memory, save_table

__all__ = ["DdpClassifier", "DdpMultilabelClassifier", "DdpRegressor"]

#: Sections of docs/config.md: `optimizer__lr` is the key `optimizer.lr`.
_SECTIONS = ("data", "model", "loss", "optimizer", "schedule", "train", "comm", "checkpoint", "log", "watchdog", "run")
#: Keys of `data` that follow from the arguments of `fit`.
_FIXED = ("train", "labels", "eval", "eval_labels", "eval_weight", "format", "target", "task", "classes", "weight", "categorical")
#: Texts that the program takes for truth values, where all labels are such.
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
#: Texts that the program takes for missing labels.
_MISSING = ("", "na", "n/a", "<na>", "#n/a", "nan", "nat", "null", "none", "-", "?")


class _DdpEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters, rows and runs of all estimators; docs/python.md lists the parameters."""

    _task: str
    _names: Optional[List[str]]

    def __init__(
        self, *, hidden: Union[int, Sequence[int]] = (128, 64), activation: str = "relu", dropout: float = 0.0, optimizer: str = "adamw",
        lr: Optional[float] = None, batch_size: Optional[int] = None, epochs: Optional[int] = None,
        eval_fraction: Union[float, str, None] = "auto", early_stop_patience: int = 10, random_state: Any = None, ranks: int = 1,
        device: str = "auto", out: Optional[ddp_train.Path] = None, verbose: bool = False, config: Optional[Mapping[str, Any]] = None,
        **settings: Any,
    ):  # fmt: skip
        self.hidden, self.activation, self.dropout = hidden, activation, dropout
        self.optimizer, self.lr, self.batch_size, self.epochs = optimizer, lr, batch_size, epochs
        self.eval_fraction, self.early_stop_patience, self.random_state = eval_fraction, early_stop_patience, random_state
        self.ranks, self.device, self.out, self.verbose, self.config = ranks, device, out, verbose, config
        for name, value in settings.items():
            if not _is_key(name):
                expected = "a parameter of the estimator or SECTION__KEY of docs/config.md, such as optimizer__lr"
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}: expected {expected}")
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> Dict[str, Any]:
        """Parameters of the signature, and the keys of the config that were set."""
        return {**super().get_params(deep), **{name: value for name, value in vars(self).items() if _is_key(name)}}

    def set_params(self, **params: Any) -> Any:
        """Sets parameters and keys of the config; None unsets a key."""
        super().set_params(**{name: value for name, value in params.items() if not _is_key(name)})
        for name in filter(_is_key, params):
            setattr(self, name, params[name])
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Any:
        """Trains a new model.

        X: an array, a sparse matrix, a frame of pandas or polars, an Arrow table, or an object with `__arrow_c_stream__`. NaN, None and NA
            are missing values. Columns of texts, categories and dictionaries are categories.
        y: labels or targets. sample_weight: the weight of each row in the loss and in metrics.
        eval_set: (X, y), or a list with one such pair: rows to evaluate on after each epoch. The model has the weights of the best evaluation.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        # A fit that fails leaves no model, rather than one of other columns.
        self.__dict__.pop("model_bytes_", None)
        X = self._features(X, reset=True)
        targets = self._targets(y, X, reset=True)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not sample_weight.any():
                raise ValueError("sample_weight: the weights are all zero, expected one above zero")
        eval_set = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
        if not (eval_set is None or isinstance(eval_set, (tuple, list)) and len(eval_set) == 2):
            raise ValueError("eval_set: expected (X, y) or [(X, y)]")
        with Files(prefix="ddp-train-") as files, _told_of_memory(files.name):
            data = self._save(files, "rows", X, targets, sample_weight)
            if eval_set is not None:
                X_eval = self._features(eval_set[0], reset=False)
                weight = None if sample_weight is None else np.ones(X_eval.shape[0])
                saved = self._save(files, "eval", X_eval, self._targets(eval_set[1], X_eval, reset=False), weight)
                data.update({"eval": saved["train"], "eval_labels": saved.get("labels"), "eval_weight": saved.get("eval_weight")})
            out = ddp_train._local(os.path.join(files.name, "run") if self.out is None else self.out, "out")
            args = ["--device", self.device, *_threads(self.ranks)]
            model = out / "model.safetensors"
            try:
                ddp_train.run(self._config(data, X.shape[0]), ranks=self.ranks, out=out, args=args, quiet=not self.verbose)
            except ddp_train.Stopped:
                saves = sorted(out.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
                if not saves:
                    raise
                # That of the best evaluation, unless it is the checkpoint's own.
                model = next(filter(pathlib.Path.exists, [saves[-1] / "best.safetensors", saves[-1] / "model.safetensors"]))
            run = ddp_train.Run(out)
            events = run.metrics
            self.model_bytes_ = model.read_bytes()
        self.evals_result_ = [event for event in events if event["event"] in ("epoch", "eval") and "eval_loss" in event]
        self.n_iter_ = max([1, *(event["epoch"] for event in events if "epoch" in event)])
        if model.parent != out:
            text = f"training was interrupted in epoch {self.n_iter_}: the model comes from the checkpoint that was saved then"
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        self._server = ddp_train._Server()
        self.__dict__.pop("run_", None)
        if self.out is not None:
            self.run_ = run
        return self

    def save(self, path: ddp_train.Path) -> None:
        """Writes the model as a file for `ddp-train predict`, `ddp_train.load` and other programs (docs/export.md)."""
        check_is_fitted(self, "model_bytes_")
        pathlib.Path(path).write_bytes(self.model_bytes_)

    def _features(self, X: Any, reset: bool) -> Any:
        """X as a dense or sparse array, as an Arrow table, or as a frame of pandas."""
        is_pandas = hasattr(X, "iloc") and hasattr(X, "columns")
        is_series = len(getattr(X, "shape", (0, 0))) != 2
        is_frame = is_pandas or not is_series and any(hasattr(X, f"__arrow_c_{kind}__") for kind in ("stream", "array"))
        if not is_frame or not reset and self._names is None:
            X = validate_data(self, X, accept_sparse="csr", ensure_all_finite="allow-nan", reset=reset)
            if reset:
                self._names = [f"x{i}" for i in range(X.shape[1])] if X.shape[1] <= MOST_COLUMNS else None
            return X
        X = X if is_pandas else pa.table(X)
        names = [str(name) for name in (X.columns if is_pandas else X.column_names)]
        if len(set(names)) < len(names):
            raise ValueError(f"feature names must differ, got {max(names, key=names.count)!r} more than once")
        validate_data(self, X, skip_check_array=True, reset=reset)
        if 0 in X.shape:
            unit = "sample(s)" if X.shape[0] == 0 else "feature(s)"
            raise ValueError(f"Found array with 0 {unit} (shape={X.shape}) while a minimum of 1 is required by {type(self).__name__}.")
        if reset:
            # The program takes columns without a name, or with that of an index of pandas, for row numbers.
            own = [name for name in names if name.strip() and not re.fullmatch(r"__index_level_\d+__", name)]
            self._names = [name if name in own else _free_names([f"column_{i}"], own)[0] for i, name in enumerate(names)]
        return X

    def _target_columns(self, y: Any, values: Any, X: Any, reset: bool) -> Dict[str, Any]:
        check_consistent_length(X, values)
        if reset:
            self._target_names = _names_of(y, values.shape[1])
        if len(self._target_names) != values.shape[1]:
            raise ValueError(f"eval_set: expected {len(self._target_names)} targets, got {values.shape[1]}")
        return {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(self._target_names)}

    def _save(self, files: Files, stem: str, X: Any, targets: Mapping[str, Any], weight: Any) -> Dict[str, Any]:
        """Saves rows; returns the keys of `data` for them. `targets` are columns by name, classes as pairs of labels and class numbers."""
        if sparse.issparse(X):
            check_memory(X)
        if self._names is not None:
            names = _free_names([*targets, "weight"], self._names)
            columns = dict(zip(names, [*targets.values(), *([] if weight is None else [weight])]))
            data: Dict[str, Any] = {"train": files.path(f"{stem}.arrow"), "target": names[:-1]}
            if weight is not None:
                data["weight"] = names[-1]
            return {**data, **save_table(data["train"], X, self._names, columns)}
        data = {"train": files.path(f"{stem}.npy")}
        out: Any = np.lib.format.open_memmap(data["train"], "w+", plain_type(X.dtype), X.shape)
        for rows in blocks(X.shape):
            out[rows] = X[rows].toarray() if sparse.issparse(X) else X[rows]
        if targets:
            values = [column[0][column[1]] if isinstance(column, tuple) else column for column in targets.values()]
            data["labels"] = files.path(f"{stem}-labels.npy")
            np.save(data["labels"], values[0] if self._task == "classification" else np.stack(values, axis=1))
        if weight is not None:
            key = "weight" if stem == "rows" else "eval_weight"
            data[key] = files.path(f"{stem}-weight.npy")
            np.save(data[key], weight)
        return data

    def _given_keys(self) -> Dict[str, Any]:
        """Sections of SECTION__KEY and `config`; the first wins."""
        config: Any = {} if self.config is None else self.config
        if not (isinstance(config, Mapping) and all(key in _SECTIONS and isinstance(config[key], Mapping) for key in config)):
            raise ValueError(f"config: expected sections with their keys, such as {{'optimizer': {{'lr': 0.01}}}}, got {config!r}")
        given: Dict[str, Any] = {section: dict(keys) for section, keys in config.items()}
        for name in filter(_is_key, vars(self)):
            section, _, key = name.partition("__")
            if getattr(self, name) is not None:
                given.setdefault(section, {})[key] = getattr(self, name)
        return dict(ddp_train._plain(given))

    def _unmarked(self, labels: Any) -> Any:
        """The labels, or others in their places where the user's marks of missing values mean one of them."""
        marks = self._given_keys().get("data", {}).get("missing_values", [])
        missing = {_meaning(mark) for mark in ([marks] if isinstance(marks, str) else marks) if isinstance(mark, str)}
        head = ""
        while not missing.isdisjoint(map(_meaning, _texts(labels))):
            head += "c"
            labels = np.array([f"{head}{i}" for i in range(len(labels))])
        return labels

    def _config(self, data: Dict[str, Any], n_rows: int) -> Dict[str, Any]:
        """The config of a run: SECTION__KEY wins over `config`, which wins over named parameters."""
        given = self._given_keys()
        for key in given.setdefault("data", {}):
            if key in _FIXED:
                raise ValueError(f"data.{key} follows from the arguments of fit: remove it from the parameters")

        def default(section: str, key: str, value: Any, *others: str) -> None:
            if value is not None and given.setdefault(section, {}).keys().isdisjoint((key, *others)):
                given[section][key] = ddp_train._plain(value)

        is_auto = self.eval_fraction == "auto"
        seed = self.random_state
        # 32 for tables of up to 12,800 rows, 1,024 from 204,800 rows on.
        batch_size = min(max(32, 1 << max(n_rows // 200, 1).bit_length() - 1), 1024) if self.batch_size is None else self.batch_size
        # Small tables need more epochs for 2,000 steps.
        epochs = min(max(30, 2000 * batch_size // n_rows), 200) if self.epochs is None else self.epochs
        default("model", "hidden", np.atleast_1d(self.hidden), "layers")
        default("model", "activation", None if self.activation == "relu" else self.activation)
        default("model", "dropout", self.dropout or None)
        default("optimizer", "kind", self.optimizer)
        default("optimizer", "lr", self.lr)
        default("train", "global_batch_size", batch_size, "batch_size")
        default("train", "epochs", epochs, "steps")
        default("train", "seed", seed if seed is None or isinstance(seed, (int, np.integer)) else check_random_state(seed).randint(2**31))
        if "eval" not in data:
            fraction = (0.1 if n_rows >= 50 else None) if is_auto else self.eval_fraction
            default("data", "eval_fraction", fraction or None, *(["split", "fold"] if is_auto else []))
        if "eval" in data or not given["data"].keys().isdisjoint(("eval_fraction", "split", "fold")):
            default("train", "early_stop_patience", self.early_stop_patience)
        default("data", "missing", "mean")
        if self._names is None:
            default("data", "normalize", "robust" if given["model"].get("kind") == "periodic_mlp" else "standard")
        else:
            default("data", "datetime", "parts")
            default("data", "encode", data.pop("encode", None))
        self._order_classes(given["data"], given.get("loss", {}))
        given["data"].update(ddp_train._plain(data), task=self._task)
        return given

    def _order_classes(self, data: Dict[str, Any], loss: Dict[str, Any]) -> None:
        """Spells classes in the config as the program does."""

    def _predict(self, X: Any, proba: bool = False) -> Tuple[Any, Any]:
        """Predictions of the program, and the labels that class numbers stand for."""
        check_is_fitted(self, "model_bytes_")
        X = self._features(X, reset=False)
        n_outputs = len(getattr(self, "classes_", self._target_names))
        memory = ddp_train._memory(range(X.shape[0])) if X.shape[0] * n_outputs * 8 <= ddp_train._FEW_BYTES else None

        def use(folder: Optional[str]) -> Any:
            with Files(prefix="ddp-train-", dir=folder) as files, _told_of_memory(files.name):

                def model() -> str:
                    path = files.path("model.safetensors")
                    pathlib.Path(path).write_bytes(self.model_bytes_)
                    return path

                out = pathlib.Path(files.name, "predictions.npy")
                rows, args = self._save(files, "rows", X, {}, None)["train"], ["--device", self.device, *_threads(1)]
                n_without = self._server.predict(model, rows, str(out), proba, args=args)
                labels = out.with_name("predictions.npy.labels.json")
                return np.load(out), n_without, json.loads(labels.read_text(encoding="utf-8")) if labels.exists() else None

        values, n_without, labels = ddp_train._in_folder(memory, use)
        return ddp_train._present(values, n_without, stacklevel=3), labels

    def __getstate__(self) -> Any:
        # The process that predicts is not part of the estimator.
        return {name: value for name, value in super().__getstate__().items() if name != "_server"}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._server = ddp_train._Server()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = self._task != "classification"
        return tags


class DdpClassifier(ClassifierMixin, _DdpEstimator):  # type: ignore[misc]
    """Classifies rows. `classes_` has the labels in the order of np.unique, as the columns of `predict_proba`."""

    _task = "classification"

    def predict(self, X: Any) -> Any:
        """Labels of rows."""
        values, labels = self._predict(X)
        if labels is None:
            # The program writes integers themselves.
            labels, values = np.unique(values, return_inverse=True)
        return self.classes_[_positions(labels, self._labels)][values]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of classes, `[rows, classes]`."""
        values, labels = self._predict(X, proba=True)
        # The model lacks classes whose rows a filter has left out.
        probabilities = np.zeros((len(values), len(self._labels)), values.dtype)
        probabilities[:, _positions(labels, self._labels)] = values
        return probabilities

    def _targets(self, y: Any, X: Any, reset: bool) -> Dict[str, Any]:
        names = _names_of(y, 1)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_consistent_length(X, y)
        if reset:
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            if len(self.classes_) < 2:
                raise ValueError(f"{type(self).__name__} needs labels of two classes or more, got one class: {self.classes_.tolist()}")
            self._labels, self._target_names = self._unmarked(_saved_labels(self.classes_, self._names is None)), names
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = y[self.classes_[codes] != y]
        if len(unknown):
            raise ValueError(f"eval_set has labels that y lacks: {np.unique(unknown).tolist()}")
        return {self._target_names[0]: (self._labels, codes)}

    def _order_classes(self, data: Dict[str, Any], loss: Dict[str, Any]) -> None:
        """Spells `data.class_order` as the labels are saved. A list of weights has the order of `classes_`, and the program its own."""
        weights, order = loss.get("class_weights"), data.get("class_order")
        if order is None and not isinstance(weights, list):
            return
        order = self.classes_ if order is None else order
        if sorted(_texts(order)) != sorted(_texts(self.classes_)):
            raise ValueError(f"data.class_order: expected the labels {self.classes_.tolist()} of y in some order, got {list(order)}")
        places = _positions(order, self.classes_)
        data["class_order"] = _texts(self._labels[places])
        if isinstance(weights, list):
            if len(weights) != len(places):
                raise ValueError(f"loss.class_weights: expected a weight for each of the labels {self.classes_.tolist()}, got {weights}")
            loss["class_weights"] = [weights[place] for place in places]


class DdpMultilabelClassifier(ClassifierMixin, _DdpEstimator):  # type: ignore[misc]
    """Predicts several labels of a row, each 0 or 1. y is `[rows, labels]`; `classes_` has the names or numbers of its columns."""

    _task = "multilabel"

    def predict(self, X: Any) -> Any:
        """0 or 1 of each label, `[rows, labels]`."""
        return self._predict(X)[0].reshape(-1, len(self.classes_))

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of 1, `[rows, labels]`."""
        return self._predict(X, proba=True)[0]

    def _targets(self, y: Any, X: Any, reset: bool) -> Dict[str, Any]:
        values = check_array(y, accept_sparse="csr", input_name="y")
        values = values.toarray() if sparse.issparse(values) else values
        if not np.isin(values, (0, 1)).all():
            raise ValueError("y: expected 0 or 1 for each row and label; DdpClassifier takes one label of each row")
        # Marks of missing values such as 0 mean no truth values.
        numbers = np.arange(2)
        columns = self._target_columns(y, values.astype(np.int64 if self._unmarked(numbers) is numbers else bool), X, reset)
        if reset:
            self.classes_ = np.array(list(columns)) if hasattr(y, "columns") else np.arange(len(columns))
        return columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags


class DdpRegressor(RegressorMixin, _DdpEstimator):  # type: ignore[misc]
    """Predicts a quantity, or several where y is `[rows, targets]`."""

    _task = "regression"

    def predict(self, X: Any) -> Any:
        """Values, `[rows]` or `[rows, targets]`."""
        return self._predict(X)[0]

    def _targets(self, y: Any, X: Any, reset: bool) -> Dict[str, Any]:
        values = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        values = column_or_1d(values, warn=True)[:, None] if values.ndim == 1 or values.shape[1] == 1 else values
        return self._target_columns(y, values, X, reset)


@contextlib.contextmanager
def _told_of_memory(folder: str) -> Iterator[None]:
    """Errors without commands for files that are gone, and without the advice to set a key that follows from the rows."""
    try:
        yield
    except ddp_train.TrainError as error:
        lines = [line for line in str(error).split("\n") if not (line.startswith("`ddp-train ") and folder in line)]
        hint = "hint: convert the column to texts or numbers, for predictions in the same way as for training"
        lines = [hint if line.startswith("hint: ") and "`data.categorical`" in line else line for line in lines]
        raise type(error)(error.status, "\n".join(lines)) from None


def _names_of(y: Any, n: int) -> List[str]:
    """Names of target columns, taken from a frame or a series, else y, or y0, y1 and so on."""
    names = list(getattr(y, "column_names", y.columns)) if hasattr(y, "columns") else [getattr(y, "name", None)]
    default = ["y"] if n == 1 else [f"y{i}" for i in range(n)]
    return _free_names([str(name) for name in names], ()) if len(names) == n and None not in names else default


def _free_names(wanted: Iterable[str], taken: Sequence[str]) -> List[str]:
    """Names that differ from those taken and from each other."""
    names: List[str] = []
    for name in wanted:
        while name in taken or name in names or not name.strip():
            name += "_"
        names.append(name)
    return names


def _saved_labels(classes: Any, in_arrays: bool) -> Any:
    """Labels that the program and the model's file have for classes: their own, or their numbers where it would take some for others."""
    if classes.dtype.kind == "b" or classes.dtype.kind in "iuf" and max(abs(int(label)) for label in classes) < 2**63:
        return classes if classes.dtype.kind == "b" else classes.astype(np.int64)
    texts = _texts(classes)
    words = {text.strip().casefold() for text in texts}
    # Labels that are all truth values are read as such.
    meanings = {_TRUTHS[word] for word in words} if words.issubset(_TRUTHS) else words
    is_clear = classes.dtype.kind in "UO" and len(meanings) == len(classes) and words.isdisjoint(_MISSING)
    is_clear = is_clear and all(text == text.strip() and "\0" not in text and not (in_arrays and _is_other_number(text)) for text in texts)
    return np.array(texts) if is_clear else np.arange(len(classes))


def _meaning(text: str) -> Union[float, str]:
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _is_other_number(text: str) -> bool:
    """Whether a text is a number that the program spells otherwise: 1.0, 1. or 01."""
    try:
        return str(int(float(text))) != text
    except (ValueError, OverflowError):
        return False


def _texts(labels: Any) -> List[str]:
    return list(map(str, labels.tolist() if isinstance(labels, np.ndarray) else labels))


def _positions(labels: Any, among: Any) -> List[int]:
    position = {text: i for i, text in enumerate(_texts(among))}
    return [position[text] for text in _texts(labels)]


def _threads(ranks: int) -> List[str]:
    """The limit that joblib sets for its workers, and others by habit."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return ["--threads", str(max(1, int(limit) // max(1, ranks)))] if limit.isdigit() and int(limit) else []


def _is_key(name: str) -> bool:
    section, separator, key = name.partition("__")
    return section in _SECTIONS and bool(separator and key)
