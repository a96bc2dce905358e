"""What the run ran on."""
import json
import os
import platform
import shutil
import sys

import command

SMI_FIELDS = ["name", "driver_version", "vbios_version", "memory.total", "memory.used", "utilization.gpu", "clocks.sm", "clocks.mem",
              "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu", "persistence_mode", "compute_mode",
              "mig.mode.current", "ecc.mode.current", "pcie.link.gen.current", "pcie.link.width.current", "uuid"]


def devices(binary):
    """Output of `ddp-train devices --json`, or None with the reason."""
    outcome = command.run([binary, "devices", "--json"], 60)
    try:
        return json.loads(outcome.stdout.splitlines()[-1]), ""
    except (IndexError, ValueError):
        return None, outcome.tail()


def smi():
    """One object for each GPU, as nvidia-smi reports; a field that it does not know is left out."""
    if not shutil.which("nvidia-smi"):
        return []
    found = []
    for field in SMI_FIELDS:
        outcome = command.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], 20)
        for index, value in enumerate(outcome.stdout.splitlines() if outcome.ok else []):
            while len(found) <= index:
                found.append({})
            found[index][field] = value.strip()
    return found


def smi_numbers():
    """Clocks in MHz, power in W, temperature in °C and used memory in MiB of the first GPU, now."""
    fields = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "memory.used"]
    outcome = command.run(["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], 5)
    if not outcome.ok:
        raise OSError(outcome.tail(200))
    return dict(zip(fields, (value.strip() for value in outcome.stdout.split(","))))


def machine(part):
    """The part that reports it."""
    session = part.session
    cpu = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    part.results["cpu"] = {"model": cpu[0] if cpu else platform.processor(), "threads": len(os.sched_getaffinity(0)),
                           "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20}
    part.results["system"] = {"kernel": platform.release(), "libc": " ".join(platform.libc_ver()), "python": sys.version.split()[0]}
    try:
        part.results["system"]["name"] = platform.freedesktop_os_release().get("PRETTY_NAME")
    except (OSError, AttributeError):
        pass
    part.results["ddp_train"] = session.version
    if session.mpirun:
        part.results["mpirun"] = (part.run([*session.mpirun, "--version"]).stdout.splitlines() or ["?"])[0]
    part.results["devices"] = session.devices
    part.results["nvidia_smi"] = smi()
    libraries = {library["name"]: library for library in session.devices.get("libraries", [])}
    for name in ("NVRTC", "cuBLASLt"):
        library = libraries.get(name, {})
        part.check(f"{name} is found", library.get("path"), library.get("version") or library.get("missing"))
    gpu = session.devices["gpus"][0]
    session.row("GPU", f"{gpu['name']}, {gpu['memory_gib']:.0f} GiB, CUDA {session.devices.get('driver_cuda_version')}")
