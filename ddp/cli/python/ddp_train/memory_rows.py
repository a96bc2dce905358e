"""Rows of Python as files in memory, for the program to open: Arrow files of columns, block by block, and npy files of many features."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Dict, List, Tuple

import numpy as np
import pyarrow as pa
from scipy import sparse

from .frames import arrow_table, plain_type

#: Arrays of more features are saved as npy, from which the program starts in half of the time.
MOST_COLUMNS = 256


class Files(tempfile.TemporaryDirectory):  # type: ignore[type-arg]
    """A private folder whose large files are in memory, on systems that have such files. The program opens them by their names."""

    def __enter__(self) -> Files:  # type: ignore[override]
        self.descriptors: List[int] = []
        return self

    def path(self, name: str) -> str:
        path = os.path.join(self.name, name)
        if hasattr(os, "memfd_create"):
            self.descriptors.append(os.memfd_create(name))
            os.symlink(f"/proc/{os.getpid()}/fd/{self.descriptors[-1]}", path)
        return path

    def __exit__(self, *error: Any) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        super().__exit__(*error)


def save_table(path: str, X: Any, names: List[str], columns: Mapping[str, Any]) -> Dict[str, Any]:
    """Saves features and more columns as an Arrow file, block by block; returns the keys of `data` for categories."""
    keys: Dict[str, Any] = {}
    begin, writer = 0, None
    with pa.OSFile(path, "wb") as file:
        for table in tables(X, names):
            rows = slice(begin, begin + table.num_rows)
            begin = rows.stop
            if writer is None:
                texts = ("string", "large_string", "string_view")
                types = dict(zip(table.column_names, table.schema.types))
                categories = [name for name in names if pa.types.is_dictionary(types[name]) or str(types[name]) in texts]
                keys["categorical"] = categories or None
                keys["encode"] = "embedding" if any(len(table[name].unique()) > 100 for name in categories) else None
            for name, values in columns.items():
                is_classes = isinstance(values, tuple)
                column = pa.DictionaryArray.from_arrays(values[1][rows], values[0]) if is_classes else pa.array(values[rows])
                table = table.append_column(name, column)
            writer = writer or pa.ipc.new_file(file, table.schema)
            writer.write_table(table, max_chunksize=1 << 16)
        writer.close()
    return keys


def tables(X: Any, names: List[str]) -> Iterator[Any]:
    """Features as Arrow tables: an Arrow table and a frame of several types in one piece, arrays and frames of numbers in blocks."""
    if isinstance(X, pa.Table):
        yield X.rename_columns(names).unify_dictionaries()
    elif hasattr(X, "iloc"):
        dtypes = [dtype.subtype if type(dtype).__name__ == "SparseDtype" else dtype for dtype in X.dtypes]
        is_plain = all(isinstance(dtype, np.dtype) and dtype.kind in "iufb" for dtype in dtypes)
        for rows in blocks(X.shape) if is_plain else [slice(None)]:
            yield arrow_table(X.iloc[rows], preserve_index=False).replace_schema_metadata().rename_columns(names)
    else:
        for rows in blocks(X.shape):
            block = X[rows].toarray() if sparse.issparse(X) else X[rows]
            yield pa.table(list(np.ascontiguousarray(block.T, plain_type(X.dtype))), names=names)


def blocks(shape: Tuple[int, int]) -> List[slice]:
    step = max(1, min(1 << 16, (1 << 24) // shape[1]))
    return [slice(begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step)]


def check_memory(X: Any) -> None:
    """Refuses sparse rows that memory would not hold as dense ones."""
    words = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").split() if os.path.exists("/proc/meminfo") else []
    free = int(words[words.index("MemAvailable:") + 1]) / 2**20 if "MemAvailable:" in words else np.inf
    needed = X.shape[0] * X.shape[1] * X.dtype.itemsize / 2**30
    if needed > free:
        sizes = f"{X.shape[0]} x {X.shape[1]} of {X.dtype} take {needed:.1f} GiB, and {free:.1f} GiB are available"
        raise MemoryError(f"the program needs dense rows: {sizes}; select features, or reduce them with TruncatedSVD")
