"""The crates' own tests on the real device, and several ranks that share it."""
import re

from runs import DIGITS, largest_relative, relative_distance, train
from session import ROOT, Skipped

# The programs that use a GPU and the tests of each that do, the telling ones first. All other tests pass without one, in
# tests/run: here they would only cost time. The trainers of ddp-nn.library need GPUs for their ranks, each its own; what they would
# do on one, ddp-nn.gpu does.
GPU_TESTS = {
    "ddp-kernels.lib": ["ops::", "cuda::"],
    "ddp-nn.gpu": [],
    "ddp-comm.gpu": [],
    "ddp-kernels.cuda": [],
    "ddp-kernels.golden_ops": [],
    "ddp-nn.lib": ["data::loader::", "checkpoint::snapshot::"],
    "ddp-tables.lib": ["io::"],
    "ddp-kernels.real_libraries": [],
    "ddp-comm.real_nccl": [],
}


def programs(session):
    """The test programs that use a GPU and are there, the telling ones first."""
    if not session.tests or not session.tests.is_dir():
        raise Skipped("the test programs, which launch/pack or cargo makes")
    return [session.tests / name for name in GPU_TESTS if (session.tests / name).exists()]


def test_programs(part):
    """Runs each; a test that needs more GPUs than there are says so and passes."""
    n_passed = n_failed = n_skipped = 0
    for program in programs(part.session):
        # One test at a time: they share the device's streams, and what one captures as a graph no other may touch.
        words = [program, *GPU_TESTS[program.name], "--show-output", "--test-threads=1"]
        outcome = part.run(words, 100, {"RUST_BACKTRACE": "0"}, ROOT)
        text = outcome.stdout
        counts = [tuple(map(int, m)) for m in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.M)]
        passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
        names = re.findall(r"^test (\S+) \.\.\. FAILED", text, re.M)
        # A test that needs more GPUs than there are says so and passes: its name, and why.
        skipped = re.findall(r"^---- (\S+) stdout ----\n(?:(?!---- ).*\n)*?\s*(skipped: .*)$", text, re.M)
        passed -= len(skipped)
        messages = re.findall(r"^(?:thread .* panicked at .*\n.*|.*FINDING: .*)", text + outcome.stderr, re.M)
        part.results[program.name] = {"passed": passed, "failed": failed, "failing": names, "messages": messages[:40],
                                      "skipped": [f"{name}: {why.removeprefix('skipped: ')}" for name, why in skipped],
                                      "seconds": round(outcome.seconds, 2), "status": outcome.status}
        if outcome.ok:
            detail = f"{passed} tests, {outcome.seconds:.1f} s"
        else:
            # The messages of failing tests precede the list of their names.
            detail = f"{failed} of {passed + failed} tests: {', '.join(names[:8]) or outcome.tail(400)}; {'; '.join(messages[:2])}"
        part.check(f"{program.name}", outcome.ok, detail)
        n_passed, n_failed, n_skipped = n_passed + passed, n_failed + failed, n_skipped + len(skipped)
    part.session.row("tests on the GPU", f"{n_passed} passed, {n_failed} failed; reported as skipped: {n_skipped}")


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
