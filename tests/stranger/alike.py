"""The same rows in several formats of several libraries: a model that was trained on one must evaluate alike on the others."""

import datetime
import json
import math
import random

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq

from . import program as of_program

N_ROWS = 120
N_TABLES = 20
# Files on which a model is evaluated.
N_OTHERS = 13
# Its moments have another unit than those of training, and `code` is text in some formats and may be a number in others: converted,
# or refused with the column's name.
EPOCHS = "epochs.jsonl"


def draw_table(draw):
    """Columns of Python's values, and the target's name. The target follows from columns whose form differs between formats."""
    truth = [draw.random() < 0.5 for _ in range(N_ROWS)]
    day = [datetime.date(2024, 1, 1) + datetime.timedelta(days=draw.randrange(300)) for _ in range(N_ROWS)]
    at = [datetime.datetime(2024, 5, 1) + datetime.timedelta(seconds=draw.randrange(10**7)) for _ in range(N_ROWS)]
    city = [draw.choice(["Rome", "Oslo", "São Paulo"]) for _ in range(N_ROWS)]
    number = [round(draw.uniform(-5, 5), 3) for _ in range(N_ROWS)]
    columns = {"number": number}
    # Each a way in which tables of different libraries may differ.
    possible = {
        "truth": truth,
        "truth_with_gaps": [value if draw.random() < 0.9 else None for value in truth],
        "day": day,
        "text_day": [str(value) for value in day],
        "at": at,
        "text_at": [value.isoformat(" ") for value in at],
        "city": city,
        "city_with_gaps": [value if draw.random() < 0.8 else None for value in city],
        "number_with_gaps": [value if draw.random() < 0.8 else None for value in number],
        "count_with_gaps": [draw.randrange(9) if draw.random() < 0.8 else None for _ in range(N_ROWS)],
        "big": [2**40 + draw.randrange(10**6) for _ in range(N_ROWS)],
        "code": [f"{draw.randrange(5):03}" for _ in range(N_ROWS)],
    }
    names = draw.sample(list(possible), draw.randint(3, len(possible)))
    columns.update((name, possible[name]) for name in names)
    score = [float(flag) + (when > datetime.date(2024, 6, 1)) + (town == "Rome") + value / 5 for flag, when, town, value in zip(truth, day, city, number)]
    kind = draw.choice(["text", "truth", "integer", "number"])
    middle = sorted(score)[N_ROWS // 2]
    columns["y"] = {
        "text": lambda: ["high" if value > middle else "low" for value in score],
        "truth": lambda: [value > middle for value in score],
        "integer": lambda: [int(value > middle) + int(value > middle + 1) for value in score],
        "number": lambda: [round(value * 3, 2) for value in score],
    }[kind]()
    return columns


def write(folder, columns):
    """Names of files with the same rows."""
    table = pa.table(columns)
    frame = table.to_pandas()
    # pandas has columns of integers, truth values and texts that can be missing, too.
    nullable = frame.convert_dtypes()
    polars = pl.DataFrame(columns)
    categories = [name for name in ("city", "city_with_gaps") if name in columns]
    frame.to_csv(folder / "pandas.csv", index=False)
    frame.to_json(folder / "pandas.jsonl", orient="records", lines=True, date_format="iso", date_unit="s", double_precision=15)
    # Milliseconds since 1970.
    frame.to_json(folder / EPOCHS, orient="records", lines=True, date_format="epoch", double_precision=15)
    frame.to_json(folder / "pandas.json", orient="records", date_format="iso", date_unit="s", double_precision=15)
    frame.to_parquet(folder / "pandas.parquet")
    nullable.to_parquet(folder / "nullable.parquet", index=False)
    nullable.to_csv(folder / "nullable.csv", index=False)
    frame.astype({name: "category" for name in categories}).to_parquet(folder / "categories.parquet")
    frame.to_feather(folder / "pandas.feather")
    polars.write_csv(folder / "polars.csv")
    polars.write_csv(folder / "polars.tsv", separator="\t")
    polars.with_columns(pl.col(pl.Date).cast(pl.String), pl.col(pl.Datetime).dt.to_string("%Y-%m-%dT%H:%M:%S")).write_ndjson(folder / "polars.ndjson")
    polars.write_parquet(folder / "polars.parquet")
    polars.write_ipc(folder / "polars.arrow")
    polars.with_columns(pl.col(categories).cast(pl.Categorical)).write_ipc(folder / "categories.arrow", compression="zstd")
    pq.write_table(table, folder / "pyarrow.parquet", version="1.0", store_schema=False)
    pa.csv.write_csv(table, folder / "pyarrow.csv")
    pa.feather.write_feather(table, folder / "pyarrow.arrow", compression="lz4")
    with open(folder / "python.jsonl", "w", encoding="utf-8") as file:
        for row in zip(*columns.values()):
            cells = {name: value.isoformat() if isinstance(value, datetime.date) else value for name, value in zip(columns, row)}
            file.write(json.dumps(cells, ensure_ascii=False) + "\n")
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def metrics(program, folder, run, name):
    ended = program.run("eval", "--checkpoint", run, "--data", name, "--json", cwd=folder).must_end()
    found = json.loads(ended.out)
    if not isinstance(found.get("eval_loss"), float):
        raise of_program.Fault(f"no eval_loss: {ended.out}")
    return {key: value for key, value in found.items() if isinstance(value, float) or key.endswith("rows")}


def judge(program, folder, columns, seed):
    names = write(folder, columns)
    draw = random.Random(seed)
    # Truth values as categories are texts, whose spelling differs.
    categorical = ["--categorical", "truth"] if "truth" in columns and draw.random() < 0.5 else []
    trained = draw.sample([name for name in names if name.endswith(("csv", "parquet", "arrow", "jsonl")) and name != EPOCHS], 2)
    counted, wrong = [], []
    for at, source in enumerate(trained):
        run = f"run{at}"
        ended = program.run(source, "--target", "y", "--epochs", "3", "--lr", "0.01", "-q", "--out", run, *categorical, cwd=folder)
        if ended.status != 0:
            wrong.append(f"train: {ended}")
            counted.append("untrained")
            continue
        own = metrics(program, folder, run, source)
        for name in draw.sample(names, N_OTHERS):
            try:
                found = metrics(program, folder, run, name)
            except of_program.Fault as fault:
                if "status 2" in str(fault) and (name == EPOCHS and 'column "' in str(fault) or 'column "code"' in str(fault)):
                    counted.append("kinds refused")
                    continue
                wrong.append(f"{source} -> {name}: {fault}")
                counted.append("refused")
                continue
            # Sums of other types round differently.
            if own.keys() == found.keys() and all(math.isclose(own[key], found[key], rel_tol=1e-3, abs_tol=1e-4) for key in own if not key.endswith("_s")):
                counted.append("alike")
            else:
                wrong.append(f"{source} -> {name}: status 0, {found}, expected {own}")
                counted.append("different")
    return counted, wrong


def check(program, folder, seed, counts, faults):
    counts.update({"kinds refused": 0}, alike=0, different=0, refused=0, untrained=0)
    draw = random.Random(f"{seed} alike")
    trials = []
    for at in range(N_TABLES):
        own = folder / str(at)
        own.mkdir()
        trials.append((f"table {at}", (own, draw_table(draw), draw.random())))

    def one(name, trial):
        counted, wrong = judge(program, *trial)
        faults.extend(f"{name}, columns {', '.join(trial[1])}: {fault}" for fault in wrong)
        return counted

    of_program.each(trials, one, counts, faults)
