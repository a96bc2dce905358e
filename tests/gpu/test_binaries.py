"""Names the test programs in what `cargo test --no-run --message-format=json` prints.

  cargo test --no-run --message-format=json-render-diagnostics ... | python3 test_binaries.py

One line for each: NAME, a tab, PATH. NAME is PACKAGE.lib for a library's own tests, PACKAGE.TARGET for the others.
"""
import json
import sys


def test_binaries(messages):
    """(name, path) of each test program among cargo's messages."""
    for line in messages:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message.get("executable"):
            continue
        # The package name is in its id, as in `path+file:///somewhere/comm#ddp-comm@0.1.0` or `...ddp#0.1.0`.
        folder, _, end = message["package_id"].rpartition("#")
        package = end.split("@")[0] if "@" in end else folder.rpartition("/")[2]
        target = message["target"]
        yield f"{package}.{'lib' if 'lib' in target['kind'] else target['name']}", message["executable"]


if __name__ == "__main__":
    for binary in sorted(test_binaries(sys.stdin)):
        print(*binary, sep="\t")
