"""Records of measurements, as `results` keeps them: JSON lines, the first about the whole, then one per case or run."""
import json
import math
import os
import pathlib
import platform


def plain(value):
    """The same with floats of six significant digits, and text for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def line(value):
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def write(path, about, lines=()):
    """Writes a record anew. Whoever reads the file meanwhile finds the old one or the new one, complete."""
    path = pathlib.Path(path)
    beside = path.with_name(path.name + ".new")
    beside.write_text("".join(line(value) for value in [about, *lines]), encoding="utf-8")
    os.replace(beside, path)


def append(path, value):
    """Adds a line to a record that grows from one measurement to the next."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line(value))


def processor():
    """The machine as far as speed depends on it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    vectors = [name for name in ("avx2", "fma", "avx512f") if name in fields.get("flags", "").split()]
    family = f"family {fields.get('cpu family')}, model {fields.get('model')}"
    return {"cpu": f"{fields.get('model name')}, {family}", "vectors": vectors, "system": platform.platform()}
