#!/usr/bin/env bash
# A column of Int128 makes a Parquet file of polars 2.1.0 one that pyarrow 26.0.1 cannot open at all. Parquet has no such type, so polars writes
# 16 bytes per value, and the number only in the Arrow schema that it stores in the file's metadata. pyarrow trusts that schema first: opening the
# file, reading its schema, and reading only the other columns all raise ArrowNotImplementedError, "Integers with more than 64 bits not
# implemented", although each column by itself has a valid physical type. DuckDB 2.0.1 ignores the stored schema and returns the numbers as BLOB,
# without a warning; polars itself reads them back as Int128. So one wide sum in a table decides whether its other columns can be read.
#
# Run: ./findings/polars_int128_locks_pyarrow_out.sh     needs python3 with venv and PyPI; exit 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1

cat >find.py <<'PY'
import duckdb
import polars as pl
import pyarrow.parquet as pq

frame = pl.DataFrame({"a": [1, 2], "wide": pl.Series([1, 2], dtype=pl.Int128)})
frame.write_parquet("t.parquet")
assert pl.read_parquet("t.parquet").schema["wide"] == pl.Int128

ways = {
    "open": lambda: pq.ParquetFile("t.parquet"),
    "schema": lambda: pq.read_schema("t.parquet"),
    "column a alone": lambda: pq.read_table("t.parquet", columns=["a"]),
}
for name, way in ways.items():
    try:
        way()
    except NotImplementedError as error:
        print(f"pyarrow, {name}: {type(error).__name__}: {error}")
        assert "more than 64 bits" in str(error)
    else:
        raise SystemExit(f"changed: pyarrow, {name}, succeeds")

[(kind, first)] = duckdb.sql("select typeof(wide), wide from 't.parquet' limit 1").fetchall()
print(f"duckdb: {kind}, {first!r}")
assert kind == "BLOB" and int.from_bytes(first, "little") == 1

frame.drop("wide").write_parquet("without.parquet")
assert pq.read_table("without.parquet")["a"].to_pylist() == [1, 2]
PY
venv/bin/python find.py
