"""That tests/fake_trainer.py is what the tuner's tests take it for: a program of the protocol, and an exact one.

    python3 -m unittest discover tests/python
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
sys.dont_write_bytecode = True

from fake_trainer import FAULTS, Allocator  # noqa: E402


class Run:
    """The fake trainer, run once."""

    def __init__(self, *arguments, **settings):
        with tempfile.TemporaryDirectory() as folder:
            report, trace = Path(folder) / "report", Path(folder) / "trace.pickle"
            report.touch()
            environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUNE_", "FAKE_"))}
            environment.update(TUNE_REPORT=str(report), TUNE_STEPS="6", TUNE_TRACE=str(trace), PYTHONDONTWRITEBYTECODE="1")
            environment.update({name: str(value) for name, value in settings.items()})
            script = [sys.executable, str(TESTS / "fake_trainer.py"), *map(str, arguments)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            done = subprocess.run(script, env=environment, timeout=60, **pipes)
            self.status, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr.decode()
            self.raw = report.read_bytes()
            self.snapshot = pickle.loads(trace.read_bytes()) if trace.exists() else None

    @property
    def lines(self):
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def end(self):
        return self.lines[-1]

    def peak(self, name):
        return max(line[name] for line in self.lines if line["event"] == "sample")


class APlainRun(unittest.TestCase):
    def test_it_reports_as_the_protocol_says(self):
        run = Run("--batch-size", 4, TUNE_PURPOSE="soak", TUNE_EVALUATE_AFTER=3)
        events = [line["event"] for line in run.lines]
        self.assertEqual(run.status, 0)
        self.assertEqual(
            events, ["hello", "step", "step", "sample", "step", "evaluation", "step", "sample", "step", "step", "sample", "end"]
        )

    def test_without_a_tuner_it_only_runs(self):
        run = Run("--batch-size", 4, "--unmodified")
        self.assertEqual((run.status, run.raw, run.stderr), (0, b"", ""))

    def test_times_are_a_line_in_the_batch_and_workers_take_the_wait(self):
        def times(*arguments):
            line = [line for line in Run(*arguments).lines if line["event"] == "step"][-1]
            return line["total_ms"] - line["data_wait_ms"], line["data_wait_ms"]

        self.assertAlmostEqual(times("--batch-size", 20)[0] - times("--batch-size", 10)[0], 0.2, places=5)
        self.assertGreater(times("--batch-size", 10)[1], 0)
        self.assertEqual(times("--batch-size", 10, "--loader-workers", 1)[1], 0)


class Memory(unittest.TestCase):
    def forecast(self, batch_size, conf):
        """From probes at 2 and 3: every size as a line in the batch, placed by the rules anew."""
        two, three = (
            Run("--batch-size", batch, TUNE_PURPOSE="probe", PYTORCH_CUDA_ALLOC_CONF=conf).snapshot["device_traces"][0]
            for batch in (2, 3)
        )
        moves = ("alloc", "free_completed")
        two, three = ([entry for entry in trace if entry["action"] in moves] for trace in (two, three))
        self.assertEqual([entry["action"] for entry in two], [entry["action"] for entry in three])
        allocator, places = Allocator(1 << 40, 1 << 40, conf), {}
        for here, there in zip(two, three):
            if here["action"] == "alloc":
                size = here["size"] + (there["size"] - here["size"]) * (batch_size - 2)
                places[here["addr"]] = allocator.malloc(size)
            else:
                allocator.free(places.pop(here["addr"]))
        return allocator.peak_allocated, allocator.peak_reserved

    def test_two_probes_tell_the_memory_of_any_batch_to_the_byte(self):
        for conf in ("", "expandable_segments:True", "max_split_size_mb:64"):
            run = Run("--batch-size", 37, PYTORCH_CUDA_ALLOC_CONF=conf)
            measured = run.peak("peak_allocated_bytes"), run.peak("peak_reserved_bytes")
            self.assertEqual(self.forecast(37, conf), measured, conf)

    def test_marks_are_places_in_the_trace(self):
        run = Run("--batch-size", 3, TUNE_PURPOSE="probe", TUNE_EVALUATE_AFTER=4)
        marks = [(line["mark"], line["step"]) for line in run.lines if line["event"] == "mark"]
        steps = [("step", step) for step in range(7)]
        self.assertEqual(marks, steps[:4] + [("evaluation", 4)] + steps[4:])
        actions = [entry["action"] for entry in run.snapshot["device_traces"][0]]
        last = [line for line in run.lines if line["event"] == "mark"][-1]
        self.assertEqual((actions.count("alloc"), actions.count("free_completed")), (last["allocations"], last["frees"]))

    def test_above_the_limit_it_runs_out_of_memory(self):
        limit = 512 << 20
        self.assertEqual(Run("--batch-size", 4, TUNE_LIMIT_BYTES=limit).end["outcome"], "completed")
        run = Run("--batch-size", 100, TUNE_LIMIT_BYTES=limit)
        self.assertEqual((run.status, run.end["outcome"]), (1, "out_of_memory"))
        self.assertGreater(run.end["requested_bytes"], 0)

    def test_an_unmodified_script_tells_only_stderr(self):
        run = Run("--batch-size", 100, "--unmodified", "--device-bytes", 512 << 20)
        self.assertEqual((run.status, run.raw), (1, b""))
        self.assertIn("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", run.stderr)


class Faults(unittest.TestCase):
    def fault(self, name, *arguments, **settings):
        return Run("--batch-size", 4, "--fault", name, *arguments, **settings)

    def test_signals_and_statuses(self):
        for name, status in (
            ("kill", -signal.SIGKILL),
            ("segv", -signal.SIGSEGV),
            ("abort", -signal.SIGABRT),
            ("leave", 0),
            ("status", 3),
        ):
            run = self.fault(name)
            self.assertEqual(run.status, status, name)
            self.assertEqual(run.end["event"], "sample", name)

    def test_errors_of_the_program(self):
        for name, text in (("typo", "NameError"), ("missing_file", "FileNotFoundError")):
            run = self.fault(name)
            self.assertEqual((run.status, run.end["outcome"]), (1, "failed"))
            self.assertIn(text, run.end["message"])
            self.assertIn(text, run.stderr)
            self.assertIn(text, self.fault(name, "--unmodified").stderr)

    def test_a_loss_that_is_not_finite(self):
        self.assertEqual(self.fault("diverge").end, {"event": "end", "outcome": "diverged", "step": 3})

    def test_a_fault_can_wait_for_a_batch_size(self):
        self.assertEqual(self.fault("out_of_memory", "--fault-batch", 5).status, 0)
        self.assertEqual(self.fault("out_of_memory", "--fault-batch", 4).end["outcome"], "out_of_memory")

    def test_out_of_memory_that_only_stderr_tells(self):
        run = self.fault("out_of_memory_text")
        self.assertEqual((run.status, run.end["event"]), (1, "sample"))
        self.assertIn("CUDA out of memory", run.stderr)

    def test_broken_lines(self):
        self.assertTrue(self.fault("half_line").raw.endswith(b'"step":'))
        self.assertIn(b"\xff\xfe", self.fault("garbage").raw)
        self.assertTrue(self.fault("garbage").raw.endswith(b'"completed"}\n'))
        self.assertGreater(max(map(len, self.fault("long_line").raw.splitlines())), 1 << 20)

    def test_a_flood_of_output(self):
        self.assertGreater(len(self.fault("flood").stdout), 60 << 20)

    def test_traces_that_are_missing_or_poisoned(self):
        self.assertIsNone(self.fault("no_trace", TUNE_PURPOSE="probe").snapshot)

    def test_those_that_do_not_end_are_alive_until_killed(self):
        for name, ends in (("hang", False), ("hang_hard", False), ("linger", True)):
            with tempfile.NamedTemporaryFile() as report:
                environment = dict(os.environ, TUNE_REPORT=report.name, TUNE_STEPS="3", PYTHONDONTWRITEBYTECODE="1")
                script = [sys.executable, str(TESTS / "fake_trainer.py"), "--fault", name, "--batch-size", "4"]
                with subprocess.Popen(script, env=environment) as process:
                    with self.assertRaises(subprocess.TimeoutExpired):
                        process.wait(1.5)
                    process.kill()
                self.assertEqual(b'"end"' in Path(report.name).read_bytes(), ends, name)

    def test_every_fault_is_known(self):
        self.assertNotEqual(Run("--fault", "unheard_of").status, 0)
        self.assertIn("grandchild", FAULTS)


if __name__ == "__main__":
    unittest.main()
