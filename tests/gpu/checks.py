"""The crates' own tests on the real device, and several ranks that share it."""
import re

from runs import DIGITS, largest_relative, relative_distance, train
from session import ROOT, Skipped

# The order in which they say most about a new device. What is not named comes behind.
FIRST = ["ddp-kernels.lib", "ddp.gpu", "ddp-comm.gpu", "ddp-kernels.golden_ops", "ddp.lib"]
# What the virtual GPU has no stand-in for: NVIDIA's compiler.
NEED_NVIDIA = ["ddp-kernels.real_compilation"]


def programs(session):
    """The test programs that are there, the telling ones first."""
    if not session.tests or not session.tests.is_dir():
        raise Skipped("the test programs, which launch/pack or cargo makes")
    found = {path.name: path for path in session.tests.iterdir()}
    return [found[name] for name in sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))]


def test_programs(part):
    """Runs each; a test that needs more GPUs than there are says so and passes."""
    n_passed = n_failed = n_skipped = 0
    for program in programs(part.session):
        if part.session.report["virtual"] and program.name in NEED_NVIDIA:
            continue
        # One test at a time: they share the device's streams, and what one captures as a graph no other may touch.
        outcome = part.run([program, "--show-output", "--test-threads=1"], 100, {"RUST_BACKTRACE": "0"}, ROOT)
        text = outcome.stdout
        counts = [tuple(map(int, m)) for m in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.M)]
        passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
        names = re.findall(r"^test (\S+) \.\.\. FAILED", text, re.M)
        skipped = sorted(set(re.findall(r"^\s*(skipped: .*)$", text, re.M)))
        messages = re.findall(r"^(?:thread .* panicked at .*\n.*|.*FINDING: .*)", text + outcome.stderr, re.M)
        part.results[program.name] = {"passed": passed, "failed": failed, "failing": names, "messages": messages[:40], "skipped": skipped,
                                      "seconds": round(outcome.seconds, 2), "status": outcome.status}
        if outcome.ok:
            detail = f"{passed} tests, {outcome.seconds:.1f} s"
        else:
            # The messages of failing tests stand before the list of their names.
            detail = f"{failed} of {passed + failed} tests: {', '.join(names[:8]) or outcome.tail(400)}; {'; '.join(messages[:2])}"
        part.check(f"{program.name}", outcome.ok, detail)
        n_passed, n_failed, n_skipped = n_passed + passed, n_failed + failed, n_skipped + len(skipped)
    part.session.row("tests on the GPU", f"{n_passed} passed, {n_failed} failed; told as skipped: {n_skipped}")


def several_ranks(part):
    """Two ranks on one GPU by NCCL train as one does on the CPU; NCCL's sums are timed, for what that is worth there."""
    session = part.session
    if not session.mpirun:
        raise Skipped("mpirun")
    n = 6 if session.options.dry_run else 40
    settings = [*DIGITS, f"train.steps={n}", "log.every_steps=1", "optimizer.kind=sgd", "optimizer.lr=0.05"]
    cpu = train(part, "one-rank-cpu", settings, device="cpu")
    for name, ranks, words in (("2 ranks", 2, ["--cuda-graph", "off"]), ("2 ranks, graph", 2, ["--cuda-graph", "on"]),
                               ("2 ranks, gradients in bf16", 2, ["--comm-dtype", "bf16", "--cuda-graph", "off"]),
                               ("4 ranks", 4, ["--cuda-graph", "off"])):
        gpu = train(part, name.replace(", ", "-").replace(" ", "-"), settings, *words, ranks=ranks, limit_s=45)
        if not cpu or not gpu:
            continue
        loss, weight = largest_relative(gpu.losses, cpu.losses), relative_distance(gpu.weights(), cpu.weights())
        bound = 2e-2 if "bf16" in name else 1e-3
        part.results[name] = {"largest_relative_loss_gap": loss, "relative_weight_distance": weight, "seconds": gpu.seconds,
                              "train_s": gpu.end["train_s"]}
        part.check(f"{name} on one GPU as one rank on the CPU", loss <= bound and weight <= bound, f"losses {loss:.1e}, weights {weight:.1e} of {bound:.0e}")
        if name == "2 ranks":
            session.row("2 ranks on one GPU (NCCL) against CPU", f"losses {loss:.1e}, weights {weight:.1e} apart")
    sizes = "64KiB" if session.options.dry_run else "64KiB,4MiB,64MiB"
    lines = part.json_lines("bench allreduce", [*session.mpirun, "-n", 2, session.binary, "bench", "allreduce", "--device", "cuda", "--share-gpu", "--sizes",
                             sizes, "--repeats", 3, "--json"], 40)
    part.results["allreduce on a shared GPU, which says nothing of real links"] = lines
