"""Rows in memory as Arrow tables: columns whose types Arrow or the program lacks become plain numbers or texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain_type(dtype: Any) -> Any:
    """A type that Arrow, npy and the program know."""
    return np.float32 if dtype == np.float16 else np.float64 if dtype == np.longdouble else dtype.newbyteorder("=")


def plain(values: Any) -> Any:
    """An array of numbers in a type that Arrow and npy know; others as they are."""
    is_other = values.dtype.kind in "iuf" and values.dtype not in (np.float16, plain_type(values.dtype))
    return values.astype(plain_type(values.dtype)) if is_other else values


def arrow_table(rows: Any, **options: Any) -> Any:
    """A table of a frame of pandas (`options` are those of `Table.from_pandas`), of columns by name, or of what has Arrow's interface.

    Dense columns take the place of sparse ones, and texts that of intervals and of categories that are tuples, bytes and the like.
    Raises ValueError, which names the column, where Arrow has no type.
    """
    import pyarrow as pa

    place = ""
    try:
        if isinstance(rows, Mapping):
            columns = {}
            for name, values in rows.items():
                place = f"column {name}: "
                values = plain(values) if isinstance(values, np.ndarray) else values
                columns[name] = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
            return pa.table(columns)
        if not (hasattr(rows, "iloc") and hasattr(rows, "columns")):
            return rows if isinstance(rows, pa.Table) else pa.table(rows)
        return pa.Table.from_pandas(_plain_frame(rows), **options)
    except pa.ArrowException as error:
        reason = place + ": ".join(map(str, error.args))
        raise ValueError(f"no type of Arrow holds the values of a column; leave it out, or astype(str) makes them texts: {reason}") from error


#: Kinds of categories, as pandas infers them, of which the program knows only their texts.
_TEXT_KINDS = ("interval", "mixed", "mixed-integer", "bytes", "complex")


def _plain_frame(frame: Any) -> Any:
    """A frame of pandas whose columns Arrow and the program know."""
    dtypes, result = list(frame.dtypes), frame
    for place, dtype in enumerate(dtypes):
        kind, column = type(dtype).__name__, None
        if kind == "SparseDtype":
            column = frame.iloc[:, place].astype(dtype.subtype)
            dtype = dtype.subtype
        elif kind == "IntervalDtype":
            column = frame.iloc[:, place].astype("category")
            dtype = column.dtype
        if isinstance(dtype, np.dtype):
            if dtype.kind in "iuf" and dtype not in (np.float16, plain_type(dtype)):
                column = (frame.iloc[:, place] if column is None else column).astype(plain_type(dtype))
        elif hasattr(dtype, "categories") and dtype.categories.inferred_type in _TEXT_KINDS and dtype.categories.map(str).is_unique:
            column = (frame.iloc[:, place] if column is None else column).cat.rename_categories(str)
        if column is not None:
            result = frame.copy(deep=False) if result is frame else result
            result.isetitem(place, column)
    return result
