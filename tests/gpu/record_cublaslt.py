"""What this GPU's cuBLASLt answers to every question of a step's matmuls, as a file that the virtual one answers from."""
import collections
import pathlib
import re

from session import ROOT, Skipped

# Of the test program ddp-kernels.lib.
TEST = "cuda::matmul::record_tests::record_cublaslt"
CANDIDATES_TEST = "cuda::matmul::record_tests::record_candidates"


def refusals(text):
    """{"FORMAT EPILOGUE": "REFUSED of ASKED"} of a record, for what is refused anywhere; and the number of its whole rows."""
    asked, refused = collections.Counter(), collections.Counter()
    for line in text.splitlines(keepends=True)[2:]:
        if not line.endswith("\n"):
            break
        row = line.rstrip("\n").split("\t")
        kind = f"{row[0]} {row[1]}"
        asked[kind] += 1
        refused[kind] += row[8] != "0"
    return {kind: f"{n} of {asked[kind]}" for kind, n in refused.items() if n}, sum(asked.values())


def files(session, kind):
    """The test program that asks, and the file of its answers, beside the JSON of --out."""
    program = session.tests / "ddp-kernels.lib" if session.tests else None
    if not program or not program.exists():
        raise Skipped("the test programs, which launch/pack or cargo makes")
    gpu = re.sub(r"[^a-z0-9]+", "_", session.devices["gpus"][0]["name"].lower()).strip("_")
    folder = pathlib.Path(session.options.out).parent if session.options.out else pathlib.Path(session.work)
    return program, folder / f"{kind}_{gpu}.tsv"


def candidates(part):
    """Runs each algorithm that cuBLASLt offers for 16-byte operands, not the first alone. One that breaks the device ends its process: it
    is noted, and the next process continues after it."""
    session = part.session
    program, path = files(session, "cublaslt_candidates")
    path.unlink(missing_ok=True)
    words = [program, CANDIDATES_TEST, "--exact", "--ignored", "--test-threads=1"]
    broken = []
    try:
        while part.remaining_s() > 3:
            rows = path.read_text().splitlines() if path.exists() else []
            outcome = part.run(words, part.remaining_s() + 1, {"DDP_CUBLASLT_CANDIDATES": str(path), "DDP_CUBLASLT_FROM": str(max(0, len(rows) - 1)),
                                                               "RUST_BACKTRACE": "0"}, ROOT)
            if outcome.ok or len(broken) == 20:
                break
            asked = path.read_text().splitlines()[-1] if path.exists() else ""
            broken.append({"after": asked, "tail": outcome.tail(300)})
            # Its row, so that the next process begins behind it.
            with open(path, "a") as file:
                file.write("broken\n")
    finally:
        # Also of a part that was cut.
        rows = [row.split("\t") for row in path.read_text().splitlines()[1:]] if path.exists() else []
        # Refused questions have no times.
        timed = [row for row in rows if len(row) == 11 and row[8] and float(row[10]) > 0]
        gains = sorted((float(row[9]) / float(row[10]) for row in timed), reverse=True)
        part.results.update({"file": str(path), "questions": len(rows), "broken": broken, "largest_gains_over_the_first": [round(gain, 3) for gain in gains[:20]]})
        part.check("no algorithm breaks the device", rows and not broken, f"{len(rows)} questions, {len(broken)} ended their process")
        late = sum(int(row[8]) >= 8 for row in timed)
        session.row("fastest algorithm of cuBLASLt", f"beyond the eighth in {late} of {len(timed)} questions" + (f"; at most {gains[0]:.2f}x the first" if gains else ""))


def record(part):
    """Asks, and leaves the record beside the JSON of --out."""
    session = part.session
    program, path = files(session, "cublaslt")
    words = [program, TEST, "--exact", "--ignored", "--test-threads=1"]
    try:
        outcome = part.run(words, 60, {"DDP_CUBLASLT_RECORD": str(path), "RUST_BACKTRACE": "0"}, ROOT)
        part.check("every question has an answer", outcome.ok and path.exists(), outcome.tail(600))
    finally:
        # A part that was cut has a record, too: rows are written one by one, small layers first.
        if path.exists():
            refused, n_rows = refusals(path.read_text())
            part.results.update({"file": str(path), "rows": n_rows, "refused": refused})
            plain = [kind for kind in refused if kind.endswith(" None")]
            part.check("plain matmuls are supported", n_rows and not plain, ", ".join(plain) or f"{n_rows} questions")
            shown = ", ".join(list(refused)[:6]) + (", ..." if len(refused) > 6 else "")
            session.row("cuBLASLt refuses somewhere", f"{len(refused)} kinds: {shown}" if refused else "nothing")
