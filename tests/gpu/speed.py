"""ddp-train's speed and PyTorch's, at the same sizes, in turn, in one run."""
import array
import math
import pathlib
import statistics
import tempfile
from dataclasses import dataclass

from session import OutOfTime, Skipped


@dataclass
class Case:
    """A model, its batch, and the formats in which its step is timed."""

    name: str
    dims: list
    batch: int
    optim: str
    dtypes: list
    steps: int
    # Formats in which PyTorch's compiled forms are timed too: each takes some ten seconds to make.
    compiled: list


# What a large matrix product decides; what neither does; what launches decide.
CASES = [
    Case("4096 x 8", [4096] * 9, 8192, "adamw", ["bf16"], 60, ["bf16"]),
    Case("1024 x 3", [1024] * 4, 1024, "adamw", ["bf16", "tf32", "f32x3", "f32"], 300, ["bf16"]),
    Case("64-128-10", [64, 128, 10], 32, "adamw", ["f32"], 3000, ["f32"]),
    # What split factors are for; PyTorch has none.
    Case("4096 x 3", [4096] * 4, 8192, "adamw", ["f32x3", "f32"], 5, []),
]
TINY = [
    Case("tiny", [16, 24, 8], 8, "adamw", ["bf16", "f32x3", "f32"], 5, []),
    Case("64-128-10", [64, 128, 10], 32, "sgd", ["f32"], 5, []),
]
OWN_CASES = ["4096 x 3"]
OUR_FORMS = {"eager": "off", "graph": "on"}


def cases(session):
    return TINY if session.options.dry_run else CASES


def torch_forms(session, case, dtype):
    """Forms of PyTorch's step that are worth their time in this run."""
    if not torch_has(case, dtype):
        return []
    if session.options.dry_run:
        return ["eager"]
    forms = ["eager", "graph"]
    if dtype in case.compiled:
        forms += ["compile", "compile+graph"]
    return forms


def torch_keys(session):
    """(case, dtype, form) of each, those first that are quickly made."""
    keys = [(case, dtype, form) for case in cases(session) for dtype in case.dtypes for form in torch_forms(session, case, dtype)]
    return sorted(keys, key=lambda key: key[2].startswith("compile"))


def torch_has(case, dtype):
    return dtype != "f32x3" and case.name not in OWN_CASES


def torch_request(case, dtype, form, steps):
    return {"do": "step", "dims": case.dims, "batch": case.batch, "dtype": dtype, "optim": case.optim, "form": form, "steps": steps}


def ours(part, case, dtype, form, n_repeats):
    """Times of a step in ms, one for each repeat in one process, and the whole line; none and a failed check where it fails."""
    words = [part.session.binary, "bench", "step", "--dims", ",".join(map(str, case.dims)), "--batch", case.batch, "--steps", case.steps,
             "--repeats", n_repeats, "--warmup", 5 if part.session.options.dry_run else 10, "--optim", case.optim, "--dtype", dtype,
             "--cuda-graph", OUR_FORMS[form], "--device", "cuda", "--json"]
    name = f"bench step, {case.name} {dtype} {form}"
    lines = part.json_lines(name, words, 60)
    if not lines:
        return []
    line = lines[-1]
    if line.get("cuda_graph") != (form == "graph"):
        part.check(name, False, f"asked for {form}, and its cuda_graph is {line.get('cuda_graph')}")
    return [{"step_ms": ms, **({"line": line} if index == 0 else {}), "mfu": line.get("mfu")}
            for index, ms in enumerate(line["repeat_step_ms"])]


def steps(part):
    """Medians over repeats, and the ratio of the best forms. PyTorch compiles first, and is idle while ddp-train is timed."""
    session = part.session
    has_torch = session.torch.start(min(60, part.remaining_s()))
    part.results["pytorch"] = session.torch.about if has_torch else f"skipped: needs {session.torch.why}"
    failed_forms = set()
    if has_torch:
        asked = [(case.name, dtype, form) for case, dtype, form in torch_keys(session)]
        try:
            for case, dtype, form in torch_keys(session):
                session.torch.send(torch_request(case, dtype, form, 0))
            built_forms = session.torch.drain(part.remaining_s() * 0.5)
            part.results["pytorch_prepared_s"] = {" ".join(key): built.get("prepared_s") for key, built in zip(asked, built_forms)}
            for key, built in zip(asked, built_forms):
                if "error" in built:
                    failed_forms.add(key)
                    part.results[f"PyTorch cannot: {' '.join(key)}"] = built["error"]
        except OutOfTime:
            # It would go on compiling while ddp-train is timed.
            session.torch.close("PyTorch, which was not ready in time")
            part.results["pytorch"] = f"skipped: needs {session.torch.why}"
            has_torch = False

    time_forms(part, OUR_FORMS, torch_forms if has_torch else lambda *_: [], failed_forms)


def own_steps(part):
    """ddp-train's steps alone, in all formats."""
    time_forms(part, OUR_FORMS, lambda *_: [], set())


def torch_steps(part):
    """PyTorch's steps alone, compiled in all formats."""
    session = part.session
    if not session.torch.start(min(60, part.remaining_s())):
        raise Skipped(session.torch.why)
    part.results["pytorch"] = session.torch.about
    forms = ["eager"] if session.options.dry_run else ["graph", "compile", "compile+graph"]
    try:
        time_forms(part, {}, lambda _, case, dtype: forms if torch_has(case, dtype) else [], set())
    except OutOfTime:
        # It would go on compiling while others are timed.
        session.torch.close("PyTorch, which was not ready in time")
        raise


def time_forms(part, ours_forms, forms_of_torch, failed_forms):
    """Times the forms of each case in turn, and leaves the figures after each."""
    session = part.session
    samples = {}
    n_repeats = 1 if session.options.dry_run else 5
    try:
        for case in cases(session):
            for dtype in case.dtypes:
                for form in ours_forms:
                    samples[case.name, dtype, "ours", form] = ours(part, case, dtype, form, n_repeats)
                    leave(part, samples, n_repeats)
                for form in forms_of_torch(session, case, dtype):
                    if (case.name, dtype, form) in failed_forms:
                        continue
                    for _ in range(n_repeats):
                        line = session.torch.ask(torch_request(case, dtype, form, case.steps), part.remaining_s())
                        if "error" in line:
                            part.results[f"PyTorch cannot: {case.name} {dtype} {form}"] = line["error"]
                            break
                        step_ms = case.batch / line["samples_per_s"] * 1e3
                        samples.setdefault((case.name, dtype, "torch", form), []).append({"step_ms": step_ms, "line": line})
                    leave(part, samples, n_repeats)
    finally:
        # Also of a part that was cut.
        leave(part, samples, n_repeats)
        tell(part, {key: runs for key, runs in samples.items() if runs})


def leave(part, samples, n_repeats):
    """What is complete counts, also of a part that is cut."""
    part.results["repeats"] = n_repeats
    part.results["samples"] = [{"case": key[0], "dtype": key[1], "side": key[2], "form": key[3], "runs": runs} for key, runs in samples.items() if runs]
    part.save()


def tell(part, samples):
    """Rows of the table and their figures."""
    part.results["summary"] = []
    for case in cases(part.session):
        flop = case.batch * (6 * sum(i * o for i, o in zip(case.dims, case.dims[1:])) - 2 * case.dims[0] * case.dims[1])
        for dtype in case.dtypes:
            medians = {}
            for (name, of, side, form), runs in samples.items():
                if (name, of) == (case.name, dtype):
                    ms = [run["step_ms"] for run in runs]
                    medians[side, form] = (statistics.median(ms), min(ms), max(ms), len(ms))
            best = {side: min(((m[0], form) for (s, form), m in medians.items() if s == side), default=None) for side in ("ours", "torch")}
            line = {"case": case.name, "dims": case.dims, "batch": case.batch, "optim": case.optim, "dtype": dtype,
                    "forms": {f"{side} {form}": dict(zip(("step_ms_median", "step_ms_min", "step_ms_max", "runs"), m)) for (side, form), m in medians.items()}}
            text = "no figure"
            if best["ours"]:
                ms, form = best["ours"]
                # Of what the best product of the same format and run reaches.
                shares = [run["mfu"] for run in samples[case.name, dtype, "ours", form] if run.get("mfu")]
                share = statistics.median(shares) if shares else None
                line["ours_best"] = {"form": form, "step_ms": ms, "tflops_per_s": flop / ms * 1e-9, "share_of_best_product": share}
                text = f"{ms:.3f} ms ({form}), {flop / ms * 1e-9:.3g} TFLOP/s" + (f", {share:.0%} of the best product" if share else "")
            if best["torch"]:
                ms, form = best["torch"]
                line["torch_best"] = {"form": form, "step_ms": ms, "tflops_per_s": flop / ms * 1e-9}
                text += f"; PyTorch {ms:.3f} ms ({form})"
            if best["ours"] and best["torch"]:
                line["speed_over_pytorch"] = best["torch"][0] / best["ours"][0]
                text += f"; {line['speed_over_pytorch']:.2f}x"
            part.results["summary"].append(line)
            part.session.row(f"step {case.name}, batch {case.batch}, {dtype}", text)


def effort(session):
    return ["--repeats", 2, "--repeat-ms", 1] if session.options.dry_run else ["--repeats", 5, "--repeat-ms", 20]


def addmm(part):
    """Matrix products in every format: squares and the layers of the large case."""
    session = part.session
    tiny = session.options.dry_run
    sizes = ["--dims", "16,24,8", "--batch", 8, "--square", 32] if tiny else ["--dims", "4096,4096,4096", "--batch", 8192, "--square", "1024,4096,8192"]
    lines = part.json_lines("bench addmm", [session.binary, "bench", "addmm", *sizes, *effort(session), "--device", "cuda", "--json"], 50)
    if not lines:
        return
    part.results["ours"] = lines
    for dtype in ("bf16", "tf32", "f32x3", "f32"):
        best = max((line for line in lines if line["dtype"] == dtype), key=lambda line: line["tflops_per_s"], default=None)
        if not best:
            continue
        text = f"{best['tflops_per_s']:.0f} TFLOP/s ({best['pass']} {best['m']} x {best['n']} x {best['k']})"
        if dtype != "f32x3" and session.torch.start(min(30, part.remaining_s())):
            theirs = {}
            for line in lines:
                if line["dtype"] == dtype:
                    request = {"do": "addmm", **{key: line[key] for key in ("m", "n", "k", "transpose_a", "transpose_b", "dtype")}}
                    theirs[f"{line['pass']} {line['m']}x{line['n']}x{line['k']}"] = session.torch.ask(request, part.remaining_s())
            part.results[f"pytorch {dtype}"] = theirs
            rates = [answer["tflops_per_s"] for answer in theirs.values() if "tflops_per_s" in answer]
            if rates:
                text += f"; PyTorch at best {max(rates):.0f}"
        session.row(f"best product, {dtype}", text)


def copy(part):
    """Copies on every way, and PyTorch's within the device."""
    session = part.session
    sizes = "64KiB" if session.options.dry_run else "1MiB,64MiB,1GiB"
    lines = part.json_lines("bench copy", [session.binary, "bench", "copy", "--sizes", sizes, *effort(session), "--device", "cuda", "--json"], 35)
    if not lines:
        return
    part.results["ours"] = lines
    for way in sorted({line["way"] for line in lines}):
        best = max((line for line in lines if line["way"] == way), key=lambda line: line["gb_per_s"])
        session.row(f"copy, {way}", f"{best['gb_per_s']:.0f} GB/s at {best['size_bytes'] / 2**20:g} MiB")
    if session.torch.start(min(30, part.remaining_s())):
        n_bytes = (64 << 10) if session.options.dry_run else (1 << 30)
        part.results["pytorch, within the device"] = session.torch.ask({"do": "copy", "bytes": n_bytes}, part.remaining_s())


def kernels(part):
    """Operations that memory bounds, as a share of a plain copy."""
    session = part.session
    sizes = ["--rows", 16, "--cols", 32] if session.options.dry_run else ["--rows", 8192, "--cols", 4096]
    lines = part.json_lines("bench kernels", [session.binary, "bench", "kernels", *sizes, *effort(session), "--device", "cuda", "--json"], 45)
    if not lines:
        return
    part.results["ours"] = lines
    shares = [(line["fraction_of_copy"], f"{line['op']} {line['dtype']}") for line in lines if line.get("fraction_of_copy")]
    if not shares:
        raise Skipped("a bench that reports shares of a copy")
    below = sorted(share for share in shares if share[0] < 0.85)
    session.row("operations bound by memory", f"median {statistics.median(s[0] for s in shares):.0%} of a copy; {len(below)} of {len(shares)} under 85%"
                + (f", least {below[0][1]} {below[0][0]:.0%}" if below else ""))


def write_npy(path, descr, shape, block, repeats):
    """An npy file of one block of values again and again; numpy may not be there."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
        for _ in range(repeats):
            file.write(block)


def loader(part):
    """Rows of a file into the GPU's memory: from pinned memory, and gathered there."""
    rates(part, (64, 1024), (("<f4", "f32"),), (("host", None), ("device", None)))


def loader_matrix(part):
    """The same from pinned memory by width, formats of the file and of the model, and number of threads."""
    tiny = part.session.options.dry_run
    formats = (("<f4", "f32"), ("<f4", "bf16"), ("<f2", "bf16"), ("|u1", "bf16"))
    rates(part, (64,) if tiny else (64, 256, 1024), formats, [("host", threads) for threads in ((1,) if tiny else (1, 4, 16))])


def rates(part, widths, formats, places):
    """Rows a second of a file of each width and format for a model in another, from each place by so many threads."""
    session = part.session
    part.results["ours"] = []
    for features, descr, precision in ((features, *kinds) for features in widths for kinds in formats):
        item = int(descr[2])
        rows = 1024 if session.options.dry_run else (256 << 20) // (item * features)
        block_rows = 256
        numbers = array.array("f", (math.sin(i * 0.7) for i in range(block_rows * features))).tobytes()
        # In short formats any bytes that are numbers: 1.0 and 1.0009765625 in f16.
        block = {"<f4": numbers, "<f2": b"\x00\x3c\x01\x3c" * (block_rows * features // 2), "|u1": bytes(i % 251 for i in range(block_rows * features))}[descr]
        with tempfile.TemporaryDirectory() as folder:
            x, y = pathlib.Path(folder) / "x.npy", pathlib.Path(folder) / "y.npy"
            write_npy(x, descr, (rows, features), block, rows // block_rows)
            write_npy(y, "|u1", (rows,), bytes(i % 10 for i in range(block_rows)), rows // block_rows)
            for placement, threads in places:
                keys = {"data.train": x, "data.labels": y, "data.classes": 10, "data.placement": placement, "train.batch_size": 1024,
                        "train.precision": precision}
                sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
                effort = ["--repeats", 2, "--repeat-ms", 1] if session.options.dry_run else ["--repeats", 5, "--repeat-ms", 200]
                words = [session.binary, "bench", "loader", *sets, *effort, "--device", "cuda", "--json", *(["--threads", threads] if threads else [])]
                title = f"{features} features, {descr[1:]} for {precision}, {placement}" + (f", {threads} threads" if threads else "")
                lines = part.json_lines(f"bench loader, {title}", words, 30)
                if lines:
                    # Where files lie on this machine is nobody's business.
                    line = {key: value for key, value in lines[-1].items() if key != "source"}
                    part.results["ours"].append({"format": descr[1:], "precision": precision, "threads": threads, **line})
                    part.save()
                    session.row(f"rows of {title}", f"{line['rows_per_s'] / 1e6:.1f} M rows/s, {line['gb_per_s']:.1f} GB/s")
