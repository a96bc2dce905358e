"""Compares converted files with their sources, read by pandas and NumPy: check.py CONVERTED_FOLDER SOURCE_FOLDER"""

import pathlib
import sys

import numpy as np
import pandas as pd
import pyarrow as pa

out, sources = map(pathlib.Path, sys.argv[1:])
READ = {".parquet": pd.read_parquet, ".feather": pd.read_feather}
n_files = 0

for name in ["snappy.parquet", "lz4.feather"]:
    want = READ[pathlib.Path(name).suffix](sources / name)
    for ending in READ:
        got = READ[ending](out / (name + ending))
        pd.testing.assert_frame_equal(got, want, check_exact=True)
        n_files += 1

large = [2**64 - 1, 2**64 - 2, 2**63]
for ending in READ:
    got = READ[ending](out / ("typed" + ending), dtype_backend="pyarrow")
    types = {name: str(of) for name, of in got.dtypes.items()}
    assert types["whole"] == "int64[pyarrow]", types
    assert types["large"] == "uint64[pyarrow]", types
    assert types["number"] == "double[pyarrow]", types
    assert types["truth"] == "bool[pyarrow]", types
    assert types["day"].startswith("date32"), types
    assert types["moment"].startswith("timestamp[us]"), types
    rows = pa.Table.from_pandas(got).to_pydict()
    assert rows["whole"] == [-9007199254740993, 7, None], rows
    assert rows["large"] == large, rows
    assert rows["number"] == [0.1, -2.5e-300, None], rows
    assert rows["truth"] == [True, False, None], rows
    assert rows["text"] == ["öß", "NA", "x y"], rows
    assert [str(day) for day in rows["day"][:2]] == ["2024-02-29", "1970-01-01"], rows
    assert rows["moment"][0] == pd.Timestamp("1999-12-31 23:59:59.123456"), rows
    assert rows["label"] == [0, 1, 1], rows
    n_files += 1

want = np.array([[-9007199254740993.0, 2.0**64, 0.1], [7, 2.0**64, -2.5e-300], [np.nan, 2.0**63, np.nan]])
npz = np.load(out / "rows.npz")
names = sorted(npz.files, key=lambda name: -npz[name].ndim)
for x, y in [(np.load(out / "rows.npy"), np.load(out / "rows.labels.npy")), [npz[name] for name in names]]:
    assert x.dtype == np.float64 and y.dtype == np.int64, (x.dtype, y.dtype)
    np.testing.assert_array_equal(x, want)
    np.testing.assert_array_equal(y, [0, 1, 1])
    n_files += 2

print(n_files, "files")
