"""Random configs over all features on the GPU, which ranks share, and the laws that each run obeys."""
import sys

from session import ROOT, Skipped


def combinations(part):
    """tests/combinations for as long as the part may take; what was under way at the end is not counted."""
    session = part.session
    if not session.mpirun:
        raise Skipped("mpirun")
    seconds = 3 if session.options.dry_run else 25
    words = [sys.executable, ROOT / "tests" / "combinations", "--device", "cuda", "--share-gpu", "--runs", 10000, "--seconds", seconds, "--jobs", 4,
             "--seed", 67, "--no-shrink", "--binary", session.binary]
    outcome = part.run(words, part.remaining_s() + 1)
    lines = outcome.stdout.strip().splitlines()
    part.results["lines"] = lines[-40:]
    part.check("the laws hold", outcome.status in (0, 77), outcome.tail(600))
    session.row("random configs on the GPU", next((line for line in reversed(lines) if "trained" in line), outcome.tail(100)))
