"""Tables of the shapes that people publish: from the bare table to predictions and an exported model."""

import csv
import gzip
import io
import random
import re
import shlex
import zipfile

from . import program as of_program

# Hints that are followed, one after another.
MAX_HINTS = 4


class Shape:
    """Columns by name, of equal length. `target` is one of them."""

    def __init__(self, target, **columns):
        self.target, self.columns = target, columns


def number(draw, n, low=0.0, high=10.0, digits=2):
    return [round(draw.uniform(low, high), digits) for _ in range(n)]


def some(draw, n, values, weights=None):
    return draw.choices(values, weights, k=n)


def date(draw, form="{0}-{1:02}-{2:02}"):
    return form.format(draw.randint(2015, 2024), draw.randint(1, 12), draw.randint(1, 28))


def shapes(draw):
    """The shapes, each of which its function draws anew."""
    n = draw.randint(110, 220)
    by = lambda column, names, cuts: [names[sum(value > cut for cut in cuts)] for value in column]

    def iris():
        length = number(draw, n, 1, 7, 1)
        return Shape("species", sepal_length=number(draw, n, 4, 8, 1), sepal_width=number(draw, n, 2, 4.5, 1), petal_length=length, petal_width=number(draw, n, 0.1, 2.5, 1), species=by(length, ["setosa", "versicolor", "virginica"], [2.5, 5]))

    def titanic():
        sex, fare = some(draw, n, ["male", "female"]), number(draw, n, 5, 90, 4)
        return Shape(
            "Survived", PassengerId=list(range(1, n + 1)), Survived=[int(s == "female" or f > 70) for s, f in zip(sex, fare)], Pclass=some(draw, n, [1, 2, 3]),
            Name=[f"{draw.choice(['Braund', 'Allen', 'Moran'])}, Mr. No. {at}" for at in range(n)], Sex=sex, Age=[draw.choice(["", 22, 38, 26.5, 4]) for _ in range(n)], SibSp=some(draw, n, [0, 1, 2]),
            Ticket=[f"A/5 {draw.randint(10**4, 10**5)}" for _ in range(n)], Fare=fare, Cabin=some(draw, n, ["", "C85", "E46"], [7, 1, 1]), Embarked=some(draw, n, ["S", "C", "Q", ""], [6, 2, 2, 0.2]))

    def adult():
        age = [draw.randint(17, 80) for _ in range(n)]
        return Shape(
            "income", age=age, workclass=some(draw, n, ["Private", "Self-emp-not-inc", "?"]), fnlwgt=[draw.randint(10**4, 10**6) for _ in range(n)], education=some(draw, n, ["HS-grad", "Bachelors", "11th"]),
            hours=[draw.randint(1, 99) for _ in range(n)], country=some(draw, n, ["United-States", "Mexico", "?"], [8, 1, 1]), income=by(age, ["<=50K", ">50K"], [45]))

    def housing():
        rooms = number(draw, n, 2, 9, 3)
        return Shape("MEDV", CRIM=number(draw, n, 0, 80, 5), ZN=some(draw, n, [0, 12.5, 25]), CHAS=some(draw, n, [0, 1]), RM=rooms, MEDV=[round(6 * r + draw.random(), 1) for r in rooms])

    def wine():
        alcohol = number(draw, n, 8, 15, 1)
        return Shape("quality", **{"fixed acidity": number(draw, n, 4, 16, 1), "citric acid": number(draw, n, 0, 1), "pH": number(draw, n, 2.7, 4)}, alcohol=alcohol, quality=[int(a / 2) + draw.randint(0, 2) for a in alcohol])

    def mushrooms():
        odor = some(draw, n, list("anflp"))
        return Shape("class", **{"class": ["e" if o in "anl" else "p" for o in odor], "cap-shape": some(draw, n, list("xbfks")), "odor": odor, "stalk-root": some(draw, n, list("bce?")), "veil-type": ["p"] * n})

    def taxi():
        distance = number(draw, n, 0.3, 20)
        return Shape(
            "fare_amount", vendor_id=some(draw, n, ["CMT", "VTS"]), pickup_datetime=[date(draw) + f" {draw.randint(0, 23):02}:{draw.randint(0, 59):02}:00" for _ in range(n)],
            trip_distance=distance, store_and_fwd_flag=some(draw, n, ["Y", "N"]), zip=[f"{draw.randint(501, 99950):05}" for _ in range(n)], fare_amount=[round(2.5 + 2.1 * d, 2) for d in distance])

    def sensor():
        value = number(draw, n, -20, 40, 3)
        return Shape("alarm", timestamp=[f"2024-03-{1 + at // 24 % 28:02}T{at % 24:02}:00:00Z" for at in range(n)], device=some(draw, n, ["a1", "b2"]), temperature=value, humidity=[draw.choice(["", -999, 55.5, 60.1]) for _ in range(n)], alarm=[v > 25 for v in value])

    def survey():
        return Shape("satisfied", respondent=[f"R{at:05}" for at in range(n)], **{"Q1. How old are you?": some(draw, n, ["18-24", "25-34", "35+"]), "Q2": some(draw, n, [1, 2, 3, 4, 5]), "Q3 (optional)": some(draw, n, ["", "yes", "no"])}, satisfied=some(draw, n, ["Yes", "No"]))

    def one_hot_target():
        kind = some(draw, n, [0, 1, 2])
        return Shape("y", a=number(draw, n), **{f"is_{at}": [int(k == at) for k in kind] for at in range(3)}, y=[int(k == 1) for k in kind])

    def many_classes():
        x = number(draw, n)
        return Shape("letter", x=x, z=number(draw, n), letter=[chr(65 + int(v * 1.5)) for v in x])

    def ratings():
        return Shape("stars", user=some(draw, n, [f"u{at}" for at in range(20)]), item=some(draw, n, [f"i{at}" for at in range(30)]), price=number(draw, n), stars=some(draw, n, [1, 2, 3, 4, 5]))

    def text():
        label = some(draw, n, ["ham", "spam"])
        return Shape("label", label=label, text=[f"{'win a prize' if of == 'spam' else 'see you'} at {draw.randint(1, 10**6)}" for of in label], length=[draw.randint(5, 200) for _ in range(n)])

    def duplicates():
        row = draw.choice([3, 5])
        return Shape("y", a=[at % row for at in range(n)], b=[at % row * 2 for at in range(n)], c=[at % row for at in range(n)], y=[at % row % 2 for at in range(n)])

    def wide():
        columns = {f"gene_{at}": number(draw, 40, -3, 3, 4) for at in range(300)}
        return Shape("tumor", **columns, tumor=by(columns["gene_7"], ["A", "B"], [0]))

    def long():
        x = number(draw, 3000, 0, 1, 5)
        return Shape("y", x=x, z=number(draw, 3000, 0, 1, 5), y=[int(v > 0.5) for v in x])

    def tiny():
        return Shape("y", a=number(draw, 12), b=number(draw, 12), y=[at % 2 for at in range(12)])

    def churn():
        months = [draw.randint(0, 72) for _ in range(n)]
        return Shape(
            "Churn", customerID=[f"{draw.randint(1000, 9999)}-{''.join(draw.choices('ABCDEFGH', k=5))}" for _ in range(n)], SeniorCitizen=some(draw, n, [0, 1]), Partner=some(draw, n, ["Yes", "No"]), tenure=months,
            InternetService=some(draw, n, ["DSL", "Fiber optic", "No"]), TotalCharges=[" " if not m else round(m * 20.5, 2) for m in months], Churn=["No" if m > 20 else "Yes" for m in months])

    def credit():
        return Shape("default payment next month", ID=list(range(1, n + 1)), LIMIT_BAL=[draw.randint(1, 80) * 10_000 for _ in range(n)], PAY_0=some(draw, n, [-2, -1, 0, 1, 2]), **{"default payment next month": some(draw, n, [0, 1], [7, 3])})

    def constant():
        return Shape("y", version=["1.0"] * n, zero=[0] * n, nothing=[""] * n, x=number(draw, n), y=some(draw, n, ["a", "b"]))

    def dates():
        # Of one form, that cannot mean two days.
        form = draw.choice(["{2:02}.{1:02}.{0}", "{0}-{1:02}-{2:02}", "{0}/{1:02}/{2:02}", "{0}{1:02}{2:02}", "{1}/{2}/{0}"])
        return Shape("price", sold=[date(draw, form) for _ in range(n)], area=[draw.randint(20, 200) for _ in range(n)], price=[draw.randint(50, 900) * 1000 for _ in range(n)])

    def money():
        return Shape("rent", flat=some(draw, n, ["A", "B"]), area=[f"{draw.randint(20, 90)} m²" for _ in range(n)], share=[f"{draw.randint(1, 99)}%" for _ in range(n)], rent=number(draw, n, 300, 2000))

    def missing_target():
        return Shape("y", a=number(draw, n), b=number(draw, n), y=some(draw, n, ["p", "q", ""], [5, 5, 1]))

    return [
        iris, titanic, adult, housing, wine, mushrooms, taxi, sensor, survey, one_hot_target, many_classes, ratings, text, duplicates, wide, long, tiny, churn, credit, constant, dates, money, missing_target]


def lines_of(shape, draw, delimiter=",", decimal=".", quoting=csv.QUOTE_MINIMAL, end="\n", gap=None, row_names=False):
    """The table as CSV."""
    names = list(shape.columns)
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
    # R's write.table leaves the name above the row names away, and write.csv empty.
    writer.writerow([*([""] if row_names else []), *names])
    for at, row in enumerate(zip(*shape.columns.values())):
        cells = []
        for name, value in zip(names, row):
            if gap is not None and name != shape.target and (value == "" or draw.random() < 0.05):
                value = gap
            if isinstance(value, float):
                value = str(value).replace(".", decimal)
            cells.append(value)
        writer.writerow([*([at + 1] if row_names else []), *cells])
    return file.getvalue()


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", content)
    return file.getvalue()


# Ways to write a table: the end of its name, and its bytes.
DRESSES = {
    "plain": lambda s, d: (".csv", lines_of(s, d).encode()),
    "semicolons and decimal commas": lambda s, d: (".csv", lines_of(s, d, ";", ",").encode()),
    "tabs": lambda s, d: (".tsv", lines_of(s, d, "\t").encode()),
    "tabs in .txt": lambda s, d: (".txt", lines_of(s, d, "\t").encode()),
    "bars": lambda s, d: (".csv", lines_of(s, d, "|").encode()),
    "quoted": lambda s, d: (".csv", lines_of(s, d, quoting=csv.QUOTE_ALL).encode()),
    "a mark of UTF-8 and CRLF": lambda s, d: (".csv", lines_of(s, d, end="\r\n").encode("utf-8-sig")),
    "a title above the names": lambda s, d: (".csv", ("Published by the office of statistics\n\n" + lines_of(s, d)).encode()),
    "sep=": lambda s, d: (".csv", ("sep=;\n" + lines_of(s, d, ";")).encode()),
    "R's row names": lambda s, d: (".csv", lines_of(s, d, row_names=True, quoting=csv.QUOTE_NONNUMERIC).encode()),
    "gaps as NA": lambda s, d: (".csv", lines_of(s, d, gap="NA").encode()),
    "gaps as ?": lambda s, d: (".csv", lines_of(s, d, gap="?").encode()),
    "gaps as -999": lambda s, d: (".csv", lines_of(s, d, gap="-999").encode()),
    "empty gaps": lambda s, d: (".csv", lines_of(s, d, gap="").encode()),
    "gzip": lambda s, d: (".csv.gz", gzip.compress(lines_of(s, d).encode())),
    "zip": lambda s, d: (".zip", zipped(lines_of(s, d))),
    "blanks after commas": lambda s, d: (".csv", lines_of(s, d).replace(",", ", ").encode()),
    "a last empty line": lambda s, d: (".csv", (lines_of(s, d) + "\n\n").encode()),
}


def flags_of(hint):
    """What a hint says to add to the command, if it names flags or keys with values."""
    for quoted in re.findall(r"`([^`]+)`", hint):
        words = shlex.split(quoted) if quoted.count('"') % 2 == 0 and quoted.count("'") % 2 == 0 else quoted.split()
        if words and words[0].startswith("--") and not any(word in ("...", "COLUMN", "NAME") for word in words):
            return words
        key = re.fullmatch(r"((?:data|train|loss|model|optimizer)\.\w+) ?= ?(.+)", quoted)
        if key:
            return ["--set", f"{key[1]}={key[2]}"]
    found = re.search(r"(--set [\w.]+=\S+|--(?:drop|categorical|target|task|eval-fraction)[ =]\S+)", hint)
    return found[1].rstrip(".,;:)").split() if found else None


def judge(program, folder, path, shape):
    words = [path.name, "--target", shape.target, "--epochs", "2", "-q", "--out", "run"]
    followed = 0
    ended = program.run(*words, cwd=folder)
    while ended.status != 0:
        ended.must_refuse()
        more = flags_of(ended.hint)
        if more is None or followed == MAX_HINTS:
            raise of_program.Fault(f"train is refused: {ended}")
        words += more
        followed += 1
        ended = program.run(*words, cwd=folder)
    counted = ["trained after a hint" if followed else "trained"]
    n_rows = len(next(iter(shape.columns.values())))
    program.run("predict", "--checkpoint", "run", "--data", path.name, "--out", "predictions.csv", cwd=folder).must_end()
    with open(folder / "predictions.csv", encoding="utf-8", newline="") as file:
        predicted = len(list(csv.reader(file))) - 1
    if predicted != n_rows:
        raise of_program.Fault(f"predicts {predicted} rows of {n_rows}")
    counted.append("predicted")
    program.run("eval", "--checkpoint", "run", cwd=folder).must_end()
    program.run("eval", "--checkpoint", "run", "--data", path.name, cwd=folder).must_end()
    counted.append("evaluated")
    program.run("checkpoint", "export", "run", "--out", "m.onnx", cwd=folder).must_end()
    if not (folder / "m.onnx").stat().st_size:
        raise of_program.Fault("the exported model is empty")
    return [*counted, "exported"]


def check(program, folder, seed, counts, faults):
    counts.update({"tables": 0, "trained": 0, "trained after a hint": 0, "predicted": 0, "evaluated": 0, "exported": 0})
    draw = random.Random(f"{seed} tables")
    dresses = list(DRESSES)
    trials = []
    for at, make in enumerate(shapes(draw)):
        # All ways to write a table occur, whatever the seed.
        for dress in ["plain", *(dresses[1 + (at * 3 + more) % (len(dresses) - 1)] for more in range(3))]:
            shape = make()
            ending, content = DRESSES[dress](shape, draw)
            own = folder / str(len(trials))
            own.mkdir()
            path = own / f"{make.__name__}{ending}"
            path.write_bytes(content)
            trials.append((f"{make.__name__}, {dress}", (own, path, shape)))
    counts["tables"] = len(trials)
    of_program.each(trials, lambda _, trial: judge(program, *trial), counts, faults)
    if len(trials) < 60:
        faults.append(f"{len(trials)} tables, of at least 60")
