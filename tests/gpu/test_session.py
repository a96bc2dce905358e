"""Tests of the run itself, with parts that only wait: python3 tests/gpu/test_session.py"""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import tarfile
import tempfile
import time
import unittest

import session
from session import Session

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("DDP_TRAIN", "/bin/true")
os.environ.setdefault("DDP_GPU_MPIRUN", "/bin/false")


def main_module():
    spec = importlib.util.spec_from_file_location("gpu_main", HERE / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Runs(unittest.TestCase):
    def setUp(self):
        self.plan = main_module().Plan
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "gpu.jsonl"
        options = argparse.Namespace(dry_run=False, budget=8.0, only=None, out=str(self.out))
        self.session = Session(options, folder.name)

    def run_part(self, name, predicted_s, function):
        self.session.part(self.plan(name, predicted_s, function))
        # Written when the part ends, not at the end of all.
        return json.loads(self.out.read_text().splitlines()[-1])

    def test_a_part_that_is_cut_keeps_what_it_found_and_has_not_failed(self):
        def slow(part):
            part.check("first", True)
            part.run(["sleep", "30"])

        started = time.monotonic()
        part = self.run_part("slow", 1.5, slow)
        self.assertLess(time.monotonic() - started, 6, "cut at twice its expected time")
        self.assertEqual((part["status"], [check["check"] for check in part["checks"]]), ("not reached", ["first"]))
        self.assertEqual(part["predicted_s"], 1.5)
        self.assertEqual(self.session.counts(), (1, 0, 1))

    def test_what_a_part_found_is_written_while_it_runs(self):
        def saving(part):
            part.results["first"] = 1
            part.save()
            running = json.loads(self.out.read_text().splitlines()[-1])
            part.check("is there", (running["status"], running["results"]) == ("running", {"first": 1}), running)

        self.assertEqual(self.run_part("saving", 5, saving)["status"], "passed")

    def test_a_cut_part_with_a_failed_check_has_failed(self):
        def wrong(part):
            part.check("first", False)
            raise session.OutOfTime

        self.assertEqual(self.run_part("wrong", 5, wrong)["status"], "failed")

    def test_no_part_starts_after_the_budget(self):
        self.session.end = time.monotonic() + 1
        part = self.run_part("late", 10, lambda part: part.check("reached", True))
        self.assertEqual((part["status"], part["checks"]), ("not reached", []))

    def test_all_parts_together_fit_into_one_command(self):
        module = main_module()
        self.assertLessEqual(sum(plan.predicted_s for plan in module.PARTS), 400)
        self.assertLessEqual(sum(plan.predicted_s for plan in module.QUARTER), 520)
        names = [plan.name for plan in module.PARTS]
        order = [names.index(name) for name in ("machine", "tests", "ranks", "exact", "speed step", "speed loader", "sanitizer")]
        self.assertEqual(order, sorted(order), "the most telling first")


class PackedKernels(unittest.TestCase):
    def test_they_are_unpacked_into_a_private_folder(self):
        module = main_module()
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.assertEqual(module.packed_kernels(folder, folder), 0, "there are none")
            (root / "kernels").mkdir()
            for name in ("one.bin", "two.bin"):
                (root / "kernels" / name).write_text(name)
            with tarfile.open(root / "kernel-cache.tar.xz", "w:xz") as archive:
                archive.add(root / "kernels", "kernels")
            self.assertEqual(module.packed_kernels(folder, folder), 2)
            cache = root / "cache" / "kernels"
            self.assertEqual(cache.stat().st_mode & 0o777, 0o700)
            self.assertEqual({file.name: file.read_text() for file in cache.iterdir()}, {"one.bin": "one.bin", "two.bin": "two.bin"})

    def test_a_torn_archive_is_no_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "kernel-cache.tar.xz").write_bytes(b"torn")
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(main_module().packed_kernels(folder, folder), 0)
            self.assertIn("kernel-cache.tar.xz", said.getvalue())


if __name__ == "__main__":
    unittest.main()
