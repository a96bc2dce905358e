"""The program's own check of the GPU against the CPU."""
import json
import os


def self_check(part):
    """Runs `devices --check`: each of its checks is one here."""
    outcome = part.run([part.session.binary, "devices", "--check", "--json"], 60)
    # The trainings of the other parts are compared by these parts.
    os.environ.setdefault("DDP_TRAIN_CHECK", "off")
    try:
        report = json.loads(outcome.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        part.check("devices --check", False, outcome.tail())
        return
    part.results["self_check"] = report
    for gpu in report["gpus"]:
        if gpu.get("impossible"):
            part.check(f"cuda:{gpu['index']}", False, gpu["impossible"])
        for check in gpu["checks"]:
            apart = [result for result in check["results"] if result["relative_difference"] > result["tolerance"]]
            detail = check.get("error") or "; ".join(f"{of['result']}: {of['relative_difference']:.1e} of {of['tolerance']:.0e}" for of in apart[:3])
            part.check(f"cuda:{gpu['index']}: {check['check']}", check["agrees"], detail or f"{len(check['results'])} results agree")
    part.check("exit status", outcome.ok == report["agrees"], outcome.tail())
    n_agree = sum(check["agrees"] for gpu in report["gpus"] for check in gpu["checks"])
    n_checks = sum(len(gpu["checks"]) for gpu in report["gpus"])
    part.session.row("self-check against the CPU", f"{n_agree} of {n_checks} agree, {report['seconds']:.1f} s")
