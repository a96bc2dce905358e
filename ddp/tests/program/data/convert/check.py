"""Compares converted files with their sources, read by pandas: check.py CONVERTED_FOLDER SOURCE_FOLDER"""

import pathlib
import sys

import pandas as pd
import pyarrow as pa

out, sources = map(pathlib.Path, sys.argv[1:])
READ = {".parquet": pd.read_parquet, ".feather": pd.read_feather}
n_files = 0

for name in ["snappy.parquet", "lz4.feather"]:
    want = READ[pathlib.Path(name).suffix](sources / name)
    got = pd.read_parquet(out / (name + ".parquet"))
    pd.testing.assert_frame_equal(got, want, check_exact=True)
    n_files += 1

large = [2**64 - 1, 2**64 - 2, 2**63]
got = pd.read_parquet(out / "typed.parquet", dtype_backend="pyarrow")
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

print(n_files, "files")
