"""Files of pyarrow and polars, whose values `data convert FILE out.parquet` must keep."""

import datetime
import decimal
import fractions
import json
import random
import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq

from . import program as of_program

N_ROWS = 7
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
TEXTS = ["plain", 'a "quoted" one', "comma, semicolon;", "two\nlines", "Zürich 東京", "NA", " padded "]


def whole(draw, kind):
    """Whole numbers of a type, its bounds among them."""
    info = np.iinfo(kind)
    return [int(info.min), int(info.max), 0, *(draw.randint(int(info.min), int(info.max)) for _ in range(N_ROWS - 3))]


def moments(draw, unit):
    """Ticks from 1905 to 2200, some before 1970 and with all digits of the unit."""
    return [draw.randint(-2 * 10**9, 7 * 10**9) * PER_S[unit] + draw.randrange(PER_S[unit]) for _ in range(N_ROWS - 1)] + [-1]


def simple_types(draw):
    """Pairs of a type and the values of a column."""
    number = lambda: draw.uniform(-1e3, 1e3)
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        yield getattr(pa, kind)(), whole(draw, kind)
    yield pa.float16(), [np.float16(number()) for _ in range(N_ROWS)]
    yield pa.float32(), [float(np.float32(number())) for _ in range(N_ROWS - 3)] + [1e-45, 3.4028234663852886e38, -0.0]
    yield pa.float64(), [number() for _ in range(N_ROWS - 4)] + [5e-324, 1.7976931348623157e308, 0.1, 2.0**53 + 2]
    yield pa.bool_(), [draw.random() < 0.5 for _ in range(N_ROWS)]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield kind, TEXTS
    for make, digits, scale in [(pa.decimal32, 9, 2), (pa.decimal64, 18, 4), (pa.decimal128, 5, 0), (pa.decimal128, 18, 6), (pa.decimal128, 38, 10), (pa.decimal256, 50, 3), (pa.decimal128, 9, 9)]:
        # Of 15 digits, that all readers hold exactly.
        top = 10 ** min(digits, 15) - 1
        yield make(digits, scale), [decimal.Decimal(draw.randint(-top, top)).scaleb(-scale) for _ in range(N_ROWS)]
    days = [draw.randint(-20_000, 60_000) for _ in range(N_ROWS)]
    yield pa.date32(), days
    yield pa.date64(), [day * 86_400_000 for day in days]
    for unit in PER_S:
        for zone in (None, "UTC", "Europe/Berlin", "+05:30"):
            yield pa.timestamp(unit, zone), moments(draw, unit)
        yield pa.duration(unit), [draw.randint(-(10**5) * PER_S[unit], 10**6 * PER_S[unit]) for _ in range(N_ROWS - 1)] + [-1]
        yield (pa.time32 if unit in ("s", "ms") else pa.time64)(unit), [draw.randrange(86_400 * PER_S[unit]) for _ in range(N_ROWS)]


def array(kind, values, draw, has_nulls):
    phase = draw.randrange(3)
    values = [None if has_nulls and at % 3 == phase else value for at, value in enumerate(values)]
    if has_nulls:
        values[1] = None
    if pa.types.is_date64(kind) or pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(kind)
    if pa.types.is_float16(kind):
        return pa.array(np.array([np.nan if value is None else value for value in values], np.float16), mask=np.array([value is None for value in values]))
    return pa.array(values, kind)


def columns(draw, has_nulls):
    """Triples of a name, a column, and whether a refusal is right."""
    plain = [(kind, array(kind, values, draw, has_nulls)) for kind, values in simple_types(draw)]
    for kind, column in plain:
        yield str(kind), column, False
    for index in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()):
        indices = pa.array([None if has_nulls and row == 2 else row % 3 for row in range(N_ROWS)], index)
        yield f"dictionary of {index}", pa.DictionaryArray.from_arrays(indices, pa.array(["lo", "mid", "hi"])), False
    indices = pa.array([None if has_nulls and row == 2 else row % 2 for row in range(N_ROWS)], pa.int8())
    for kind, column in plain:
        # pyarrow writes no dictionary of views, and forgets in Parquet that the values of one are durations.
        if pa.types.is_string_view(kind) or pa.types.is_duration(kind):
            continue
        # The last value occurs in all columns: nulls inside of a dictionary are a case of their own.
        values = column.drop_null()[:2]
        yield f"dictionary to {kind}", pa.DictionaryArray.from_arrays(indices, values), False
    yield "dictionary with a null", pa.DictionaryArray.from_arrays(indices, pa.array(["a", None])), False
    for kind, column in plain:
        if kind in (pa.int32(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us")):
            ends = pa.array([2, 4, N_ROWS], pa.int32())
            yield f"run-end-encoded {kind}", pa.RunEndEncodedArray.from_arrays(ends, column[:3]), False
    rows = [[float(row), None if has_nulls and row == 1 else row + 0.5] for row in range(N_ROWS)]
    for kind in (pa.int32, pa.float32, pa.float64, pa.int64):
        cells = [[value if value is None or kind in (pa.float32, pa.float64) else int(value) for value in row] for row in rows]
        for of in (pa.list_(kind()), pa.large_list(kind()), pa.list_(kind(), 2), pa.list_view(kind())):
            yield str(of), pa.array(cells, of), False
    yield "list that is null", pa.array([None if has_nulls and row == 3 else [1, row] for row in range(N_ROWS)], pa.list_(pa.int64(), 2)), False
    yield "nulls only", pa.nulls(N_ROWS), False
    for name, values in {
        "lists of many lengths": [list(range(row)) for row in range(N_ROWS)],
        "lists of texts": [["a"], ["b"]] * 3 + [["c"]],
        "struct": [{"p": row, "q": f"t{row}"} for row in range(N_ROWS)],
        "lists of structs": [[{"p": row}] for row in range(N_ROWS)],
        "lists of lists": [[[1, 2], [3]] for _ in range(N_ROWS)],
        "binary": [bytes([row, 255]) for row in range(N_ROWS)],
        "infinite": [1.0, float("inf"), float("-inf"), 2.0, 3.0, 4.0, 5.0],
    }.items():
        yield name, pa.array([None if has_nulls and row == 1 else value for row, value in enumerate(values)]), True
    yield "map", pa.array([[("k", row)] for row in range(N_ROWS)], pa.map_(pa.string(), pa.int64())), True
    yield "large binary", pa.array([bytes([row]) for row in range(N_ROWS)], pa.large_binary()), True
    yield "fixed binary", pa.array([bytes([row, 200]) for row in range(N_ROWS)], pa.binary(2)), True
    yield "interval", pa.array([(1, 2, 3)] * N_ROWS, pa.month_day_nano_interval()), True


def parquet_options(draw, kind):
    options = {
        "compression": draw.choice(CODECS), "data_page_version": draw.choice(["1.0", "2.0"]), "row_group_size": draw.choice([1, 3, 1000]),
        "use_dictionary": draw.random() < 0.5, "write_statistics": draw.random() < 0.7, "write_page_index": draw.random() < 0.3,
        "write_page_checksum": draw.random() < 0.5, "data_page_size": draw.choice([16, 1 << 20]), "store_schema": draw.random() < 0.8,
    }
    if not options["use_dictionary"]:
        encodings = ["PLAIN"]
        if pa.types.is_int32(kind) or pa.types.is_int64(kind):
            encodings += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        elif pa.types.is_float32(kind) or pa.types.is_float64(kind) or pa.types.is_float16(kind):
            encodings += ["BYTE_STREAM_SPLIT"]
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            encodings += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        elif pa.types.is_boolean(kind):
            encodings += ["RLE"]
        options["column_encoding"] = {"v": draw.choice(encodings)}
    return options


def write(table, path, options):
    """Writes a table as the end of `path` says; False where pyarrow has no such file."""
    try:
        if path.suffix == ".parquet":
            pq.write_table(table, path, **options)
        else:
            codec = options["compression"] if options["compression"] in ("lz4", "zstd") else None
            make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
            with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
                writer.write_table(table, max_chunksize=options["row_group_size"])
        return True
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError, TypeError):
        return False


def trials(folder, seed):
    """Pairs of a name, and a path with whether a refusal is right."""
    draw = random.Random(f"{seed} parquet")
    made = []

    def add(name, table, suffix, may_refuse, options):
        path = folder / f"{len(made)}{suffix}"
        if write(table, path, options):
            made.append((f"{name} in {suffix[1:]}, {options}", (path, may_refuse)))

    for has_nulls in (False, True):
        for name, column, may_refuse in columns(draw, has_nulls):
            table = pa.table({"i": pa.array(range(N_ROWS)), "v": column})
            nulls = "with nulls" if has_nulls else "without nulls"
            for suffix in (".parquet", draw.choice([".arrow", ".arrows"])):
                add(f"{name} {nulls}", table, suffix, may_refuse, parquet_options(draw, column.type))
    # Without durations, so that what is wrong with a type is no fault of all files.
    mixed = pa.table({"i": pa.array(range(N_ROWS)), **{str(kind): array(kind, values, draw, True) for kind, values in simple_types(draw) if not pa.types.is_duration(kind)}})
    fixed = parquet_options(random.Random(1), pa.null())
    fixed.pop("column_encoding", None)
    for codec in CODECS:
        for version in ("1.0", "2.0"):
            add("mixed", mixed, ".parquet", False, {**fixed, "compression": codec, "data_page_version": version})
    for more in (
        {"version": "1.0"}, {"version": "2.4"}, {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
        {"coerce_timestamps": "us", "allow_truncated_timestamps": True}, {"store_decimal_as_integer": True}, {"use_compliant_nested_type": False},
        {"row_group_size": 1}, {"row_group_size": 2, "data_page_size": 1}, {"dictionary_pagesize_limit": 1, "use_dictionary": True}, {"store_schema": False},
        {"use_byte_stream_split": ["float", "double"], "use_dictionary": False}, {"write_batch_size": 1},
    ):
        add("mixed", mixed, ".parquet", False, {**fixed, **more})
    for suffix in (".parquet", ".arrow", ".arrows"):
        add("no rows", mixed[:0], suffix, True, fixed)
        add("one row", mixed[:1], suffix, False, fixed)
        add("many rows", pa.concat_tables([mixed] * 300), suffix, False, {**fixed, "row_group_size": 100})
    made += polars_trials(folder, draw)
    return made


def polars_trials(folder, draw):
    """Files that polars writes itself."""
    frame = pl.DataFrame({
        "i": range(N_ROWS), "f": [draw.random() for _ in range(N_ROWS)], "b": [True, None, False, True, False, None, True], "s": TEXTS,
        "c": pl.Series(["a", "b", None, "a", "b", "c", "a"], dtype=pl.Categorical), "e": pl.Series(["a", "b"] * 3 + [None], dtype=pl.Enum(["b", "a"])),
        "day": [datetime.date(2024, 1, 1 + row) for row in range(N_ROWS)], "at": [datetime.datetime(2024, 5, 31, 12, row, 1, 5) for row in range(N_ROWS)],
        "t": [datetime.time(row, 1, 2, 3) for row in range(N_ROWS)], "took": [datetime.timedelta(seconds=row, microseconds=1) for row in range(N_ROWS)],
        "d": pl.Series([decimal.Decimal(row).scaleb(-2) for row in range(N_ROWS)], dtype=pl.Decimal(12, 2)), "u8": pl.Series(range(N_ROWS), dtype=pl.UInt8),
    })
    made = []
    for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"):
        path = folder / f"polars-{codec}.parquet"
        frame.write_parquet(path, compression=codec, row_group_size=draw.choice([2, None]), statistics=draw.random() < 0.5)
        made.append((f"polars, {codec}", (path, False)))
    for codec in ("uncompressed", "lz4", "zstd"):
        for ending, writer in ((".arrow", frame.write_ipc), (".arrows", frame.write_ipc_stream)):
            path = folder / f"polars-{codec}{ending}"
            writer(path, compression=codec)
            made.append((f"polars, {codec} {ending}", (path, False)))
    for name, kind in {"i128": pl.Int128, "list": pl.List(pl.Float64), "array": pl.Array(pl.Float32, 2)}.items():
        values = [[row, row + 0.5] for row in range(N_ROWS)] if name != "i128" else [row * 10**6 for row in range(N_ROWS)]
        one = pl.DataFrame({"i": range(N_ROWS), "v": pl.Series(values, dtype=kind)})
        for ending, writer in ((".parquet", one.write_parquet), (".arrow", one.write_ipc)):
            path = folder / f"polars-{name}{ending}"
            writer(path)
            made.append((f"polars {name} {ending}", (path, name == "i128")))
    return made


def read(path):
    """What pyarrow reads, or polars where pyarrow lacks the type."""
    if "i128" in path.name:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ipc(path)
        return frame.cast(pl.Int64).to_arrow()
    if path.suffix == ".parquet":
        return pq.read_table(path)
    opened = (pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream)(pa.memory_map(str(path)))
    return opened.read_all()


def expected(name, column):
    """Cells of `data show`: pairs of a name and a function from a row's number to whether a cell is right."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        # pyarrow has no kernel for a dictionary of views.
        values = column.dictionary.cast(pa.string()) if pa.types.is_string_view(kind.value_type) else column.dictionary
        return expected(name, pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return expected(name, pc.run_end_decode(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        rows = column.to_pylist()
        lengths = {len(row) for row in rows if row is not None}
        if len(lengths) > 1:
            raise of_program.Fault(f"wrong with status 0: {name} has lists of {sorted(lengths)}")
        [width] = lengths
        parts = [pa.array([None if row is None else row[at] for row in rows], kind.value_type) for at in range(width)]
        return [(f"{name}[{at}]", expected(name, part)[0][1]) for at, part in enumerate(parts)]
    ticks = None
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        ticks = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
        if pa.types.is_date32(kind):
            ticks = [tick if tick is None else tick * 86_400 * 10**9 for tick in ticks]
        else:
            unit = "ms" if pa.types.is_date64(kind) else kind.unit
            ticks = [tick if tick is None else tick * (10**9 // PER_S[unit]) for tick in ticks]
    # Cells have no other way to show an empty text than a missing one.
    values = ticks if ticks is not None else column.to_pylist()

    def is_right(row, cell):
        value = values[row]
        if value is None or value != value or value == "":
            return cell in ("", "NaN")
        if pa.types.is_duration(kind):
            return float(cell) == float(fractions.Fraction(value, 10**9))
        if ticks is not None:
            return nanoseconds(cell) == value
        if pa.types.is_boolean(kind):
            return cell in ("true", "false") and (cell == "true") == value
        if pa.types.is_integer(kind):
            return re.fullmatch(r"-?\d+", cell) and int(cell) == value
        if pa.types.is_decimal(kind):
            return decimal.Decimal(cell) == value
        if pa.types.is_floating(kind):
            to = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
            return to(float(cell)) == to(value)
        return cell == value

    return [(name, is_right)]


def values(column):
    """The values as Python has them, whatever says them: dictionaries and runs are not kept as such."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        own = column.dictionary.cast(pa.string()) if pa.types.is_string_view(kind.value_type) else column.dictionary
        column = pa.DictionaryArray.from_arrays(column.indices, own).dictionary_decode()
    elif pa.types.is_run_end_encoded(kind):
        column = pc.run_end_decode(column)
    # NaN equals no NaN, and its text does.
    return [repr(value) for value in column.to_pylist()]


def has_cells(column):
    """Whether `data show` shows the values as texts: numbers, truth values, texts and moments."""
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    binaries = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return not pa.types.is_nested(kind) and not any(is_one(kind) for is_one in binaries)


def of_row(table, name, row):
    return table[name if name in table.column_names else name.rsplit("[", 1)[0]][row]


def nanoseconds(cell):
    """A date, moment or time of ISO 8601; since 1970 or midnight, in UTC."""
    found = re.fullmatch(r"(?:(\d{4})-(\d\d)-(\d\d))?[ T]?(?:(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?(?:Z|\+00:00)?", cell)
    year, month, day, hour, minute, second, rest = found.groups()
    days = (datetime.date(int(year), int(month), int(day)) - datetime.date(1970, 1, 1)).days if year else 0
    seconds = days * 86_400 + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    return seconds * 10**9 + int((rest or "").ljust(9, "0"))


def judge(program, path, may_refuse):
    out = path.with_name(path.name + ".out.parquet")
    ended = program.run("data", "convert", path, out, cwd=path.parent)
    if ended.status != 0:
        ended.must_refuse()
        table = read(path)
        if table.num_rows and not any(f'"{name}' in ended.err for name in table.column_names):
            raise of_program.Fault(f"names no column: {ended}")
        if not may_refuse:
            raise of_program.Fault(f"refused: {ended}")
        return ["refused"]
    table, copy = read(path), pq.read_table(out)
    if (copy.column_names, copy.num_rows) != (table.column_names, table.num_rows):
        raise of_program.Fault(f"{copy.num_rows} rows of {copy.column_names}, expected {table.num_rows} of {table.column_names}")
    shown = program.run("data", "show", out, "--rows", "0..", "--json", cwd=path.parent)
    if shown.status != 0:
        raise of_program.Fault(f"the copy is not shown: {shown}")
    rows = [json.loads(line)["cells"] for line in shown.out.splitlines()]
    wanted = []
    for name in table.column_names:
        if values(copy[name]) == values(table[name]):
            continue
        if "i128" in path.name:
            # Parquet has no integers of 128 bits: polars' are bytes there, and stay so.
            for order in ("little", "big"):
                cells = copy[name].to_pylist()
                numbers = [int.from_bytes(cell, order, signed=True) if isinstance(cell, bytes) else cell for cell in cells]
                if numbers == table[name].to_pylist():
                    break
            else:
                raise of_program.Fault(f"wrong with status 0: column {name!r} is {copy[name].to_pylist()}")
            continue
        if not has_cells(table[name]):
            raise of_program.Fault(f"wrong with status 0: column {name!r} is {copy[name].to_pylist()}, in pyarrow {table[name].to_pylist()}")
        # Another type, such as a moment in other units: its cells tell.
        wanted += expected(name, table[name])
    if rows and not {name for name, _ in wanted} <= rows[0].keys():
        raise of_program.Fault(f"columns {list(rows[0])}, expected {[name for name, _ in wanted]}")
    for name, is_right in wanted:
        for row, cells in enumerate(rows):
            try:
                right = is_right(row, cells[name] or "")
            except (ValueError, AttributeError, ArithmeticError):
                right = False
            if not right:
                raise of_program.Fault(f"wrong with status 0: row {row}, column {name!r}: {cells[name]!r}, in pyarrow {of_row(table, name, row)}")
    return ["equal"]


def check(program, folder, seed, counts, faults):
    counts.update(equal=0, refused=0)
    made = trials(folder, seed)
    of_program.each(made, lambda _, trial: judge(program, *trial), counts, faults)
    counts["wrong"] = sum("wrong with status 0" in fault for fault in faults)
    if len(made) < 150:
        faults.append(f"{len(made)} files, of at least 150")
