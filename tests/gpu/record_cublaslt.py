"""What this GPU's cuBLASLt answers to every question of a step's matmuls, as a file that the virtual one answers from."""
import collections
import pathlib
import re

from session import ROOT, Skipped

# Of the test program ddp-kernels.lib.
TEST = "cuda::matmul::record_tests::record_cublaslt"


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


def record(part):
    """Asks, and leaves the record beside the JSON of --out."""
    session = part.session
    program = session.tests / "ddp-kernels.lib" if session.tests else None
    if not program or not program.exists():
        raise Skipped("the test programs, which launch/pack or cargo makes")
    gpu = re.sub(r"[^a-z0-9]+", "_", session.devices["gpus"][0]["name"].lower()).strip("_")
    folder = pathlib.Path(session.options.out).parent if session.options.out else pathlib.Path(session.work)
    path = folder / f"cublaslt_{gpu}.tsv"
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
