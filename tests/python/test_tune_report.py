"""What examples/pytorch/tune_report.py writes, over the stub of torch beside this file.

    python3 -m unittest discover tests/python
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORTER = HERE.parent.parent / "examples" / "pytorch"
STUB = HERE / "stub"

LOOP = """
import tune_report, torch
weights = torch.cuda.allocate(1 << 20)
with tune_report.run() as t:
    for step in range(100):
        activation = torch.cuda.allocate(1000 * (step + 1))
        torch.cuda.free(activation)
        t.step(4, torch.Tensor(1.5))
"""


def trial_environment(report, **settings):
    """The environment of a trial, as report-protocol version 1 has it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUNE_", "RANK", "LOCAL_", "WORLD_SIZE", "SLURM_"))}
    environment.update(
        PYTHONPATH=os.pathsep.join([str(STUB), str(REPORTER)]),
        PYTHONDONTWRITEBYTECODE="1",
        TUNE_REPORT=str(report),
        TUNE_PROTOCOL="1",
        TUNE_TRIAL="3",
        TUNE_PURPOSE="measure",
        TUNE_STEPS="6",
        TUNE_WARMUP_STEPS="2",
        TUNE_SAMPLE_EVERY="2",
    )
    environment.update({name: str(value) for name, value in settings.items() if value is not None})
    return environment


class Trial:
    """A script run as a trial, and what it left."""

    def __init__(self, script, **settings):
        self.folder = tempfile.TemporaryDirectory()
        report = Path(self.folder.name) / "report.jsonl"
        report.touch()
        self.trace_path = Path(self.folder.name) / "trace.pickle"
        if settings.get("TUNE_PURPOSE") == "probe":
            settings.setdefault("TUNE_TRACE", self.trace_path)
        self.done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=trial_environment(report, **settings),
            cwd=self.folder.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=60,
        )
        self.lines = [json.loads(line) for line in report.read_text().splitlines()]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.folder.cleanup()

    def named(self, event):
        return [line for line in self.lines if line["event"] == event]

    @property
    def events(self):
        return [line["event"] for line in self.lines]


class WithoutATuner(unittest.TestCase):
    def run_idle(self, script, **environment):
        base = {name: value for name, value in os.environ.items() if not name.startswith("TUNE_")}
        base.update(environment, PYTHONPATH=os.pathsep.join([str(STUB), str(REPORTER)]), PYTHONDONTWRITEBYTECODE="1")
        return subprocess.check_output(
            [sys.executable, "-c", textwrap.dedent(script)], env=base, universal_newlines=True, timeout=60
        )

    def test_nothing_happens_and_torch_is_not_imported(self):
        printed = self.run_idle("""
            import sys, tune_report
            hook = sys.excepthook
            loader = [1, 2]
            with tune_report.run(evaluate=lambda: 1 / 0, checkpoint=lambda path: 1 / 0) as t:
                assert t.batches(loader) is loader
                for _ in range(1000):
                    t.step(4, float("nan"))
            print("torch" in sys.modules, sys.excepthook is hook)
        """)
        self.assertEqual(printed.split(), ["False", "True"])

    def test_an_exception_passes_through(self):
        printed = self.run_idle("""
            import tune_report
            try:
                with tune_report.run():
                    raise ValueError("own")
            except ValueError as error:
                print(error)
        """)
        self.assertEqual(printed.strip(), "own")

    def test_settings_are_read_as_the_default_is_typed(self):
        script = """
            from tune_report import run, setting
            print([setting("batch_size", 8), setting("pin_memory", True), setting("missing", 5), setting("precision", None),
                   run().setting("loader_workers", 1)])
        """
        printed = self.run_idle(script, TUNE_BATCH_SIZE="12", TUNE_PIN_MEMORY="false", TUNE_PRECISION="bf16")
        self.assertEqual(printed.strip(), "[12, False, 5, 'bf16', 1]")


class ATrial(unittest.TestCase):
    def test_it_ends_after_its_steps_with_a_complete_report(self):
        with Trial(LOOP, TUNE_LIMIT_BYTES=5 << 30) as trial:
            self.assertEqual(trial.done.returncode, 0, trial.done.stderr)
            self.assertEqual(
                trial.events, ["hello", "step", "step", "sample", "step", "step", "sample", "step", "step", "sample", "end"]
            )
            hello = trial.lines[0]
            self.assertEqual((hello["protocol"], hello["device"], hello["allocator"]), (1, "cuda:0", "native"))
            self.assertEqual((hello["uuid"], hello["name"]), ("GPU-00000000-stub", "Stub"))
            self.assertLessEqual(hello["limit_bytes"], 5 << 30)
            self.assertGreater(hello["limit_bytes"], (5 << 30) - 16)
            steps = trial.named("step")
            self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4, 5, 6])
            self.assertEqual({(step["samples"], step["loss"]) for step in steps}, {(4, 1.5)})
            self.assertEqual(trial.lines[-1], {"event": "end", "outcome": "completed"})

    def test_samples_hold_the_figures_and_peaks_begin_anew(self):
        with Trial(LOOP) as trial:
            samples = trial.named("sample")
            weights = 1 << 20
            self.assertEqual([sample["step"] for sample in samples], [2, 4, 6])
            self.assertEqual([sample["allocated_bytes"] for sample in samples], [weights] * 3)
            self.assertEqual([sample["peak_allocated_bytes"] - weights for sample in samples], [2000, 4000, 6000])
            # The update that ends the warm-up is the second step's.
            self.assertEqual([sample["largest_request_bytes"] for sample in samples], [2000] * 3)
            # The weights' segment is in use by half.
            self.assertEqual(samples[0]["largest_free_bytes"], (2 << 20) - weights)
            self.assertEqual(samples[0]["unreleasable_bytes"], (2 << 20) - weights)
            self.assertEqual(samples[0]["allocated_blocks"], 1)

    def test_the_largest_request_is_that_of_a_whole_update(self):
        with Trial(LOOP, TUNE_ACCUMULATION_STEPS=2, TUNE_WARMUP_STEPS=5) as trial:
            # Steps 3 and 4: the last whole update of a warm-up of 5.
            self.assertEqual(trial.named("sample")[-1]["largest_request_bytes"], 4000)

    def test_data_wait_is_measured_in_torch_loaders_and_others(self):
        script = """
            import time, tune_report
            from torch.utils.data import DataLoader
            def slow():
                for item in range(2):
                    time.sleep(0.02)
                    yield item
            with tune_report.run() as t:
                for _ in DataLoader(2, seconds=0.02):
                    t.step(1)
                for _ in t.batches(slow()):
                    t.step(1)
                for _ in t.batches(DataLoader(2, seconds=0.02)):
                    t.step(1)
        """
        with Trial(script) as trial:
            steps = trial.named("step")
            self.assertEqual(len(steps), 6)
            for step in steps:
                self.assertGreaterEqual(step["data_wait_ms"], 19)
                self.assertLessEqual(step["data_wait_ms"], step["total_ms"])
            # Counted once, though both watch the last two.
            self.assertLess(steps[5]["data_wait_ms"], 39)

    def test_out_of_memory_is_told_by_type_and_still_raised(self):
        script = LOOP.replace("1000 * (step + 1)", "(3 << 30) * (step + 1)")
        with Trial(script, TUNE_LIMIT_BYTES=8 << 30) as trial:
            self.assertEqual(trial.done.returncode, 1)
            self.assertIn("OutOfMemoryError", trial.done.stderr)
            self.assertEqual(len(trial.named("step")), 2)
            end = trial.lines[-1]
            self.assertEqual((end["outcome"], end["requested_bytes"]), ("out_of_memory", 9 << 30))
            self.assertIn("Tried to allocate", end["message"])

    def test_out_of_memory_before_the_run_and_as_a_cause_is_told_too(self):
        script = "import tune_report, torch\ntorch.cuda.allocate(9 << 30)"
        with Trial(script, TUNE_LIMIT_BYTES=8 << 30) as trial:
            self.assertEqual(trial.events, ["hello", "end"])
            self.assertEqual(trial.lines[-1]["outcome"], "out_of_memory")
        script = """
            import tune_report, torch
            try:
                torch.cuda.allocate(9 << 30)
            except RuntimeError as error:
                raise ValueError("wrapped") from error
        """
        with Trial(script, TUNE_LIMIT_BYTES=8 << 30) as trial:
            self.assertEqual(trial.lines[-1]["outcome"], "out_of_memory")

    def test_the_text_of_an_exception_proves_nothing(self):
        with Trial("import tune_report\nraise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')") as trial:
            self.assertEqual(trial.lines[-1]["outcome"], "failed")
        with Trial("import tune_report, torch\nraise torch.AcceleratorError('CUDA error', 2)") as trial:
            self.assertEqual(trial.lines[-1]["outcome"], "out_of_memory")
        with Trial("import tune_report, torch\nraise torch.AcceleratorError('CUDA error', 700)") as trial:
            self.assertEqual(trial.lines[-1]["outcome"], "failed")

    def test_a_failure_is_told_and_seen(self):
        with Trial(LOOP.replace("t.step(4", "t.step(4 + nothing")) as trial:
            self.assertEqual(trial.done.returncode, 1)
            self.assertIn("NameError", trial.done.stderr)
            self.assertEqual(trial.lines[-1]["outcome"], "failed")
            self.assertIn("NameError: name 'nothing' is not defined", trial.lines[-1]["message"])

    def test_an_endless_message_is_cut(self):
        with Trial("import tune_report\nraise ValueError('x' * 3000000)") as trial:
            self.assertLess(len(trial.lines[-1]["message"]), 20_000)

    def test_a_program_that_leaves_early_has_not_completed(self):
        for leave in ("break", "raise SystemExit(0)", "raise SystemExit(7)"):
            with Trial(LOOP + f"        if step == 2: {leave}\n") as trial:
                end = trial.lines[-1]
                self.assertEqual(end["outcome"], "failed")
                self.assertIn("after 3 of 6 steps", end["message"])
                self.assertEqual(len(trial.named("end")), 1)

    def test_a_loss_that_is_not_finite_ends_the_run(self):
        for loss, text in (("nan", "nan"), ("-inf", "-inf")):
            with Trial(LOOP.replace("1.5", f"float('{loss}') if step == 1 else 1.5")) as trial:
                self.assertEqual(trial.done.returncode, 1)
                self.assertEqual(trial.named("step")[-1]["loss"], text)
                self.assertEqual(trial.lines[-1], {"event": "end", "outcome": "diverged", "step": 2})

    def test_an_error_that_the_program_caught_is_a_warning(self):
        script = LOOP.replace("with", "try: torch.cuda.allocate(1 << 50)\nexcept RuntimeError: pass\nwith", 1)
        with Trial(script) as trial:
            self.assertEqual(trial.lines[-1]["outcome"], "completed")
            self.assertIn("refused 1 requests", trial.named("warning")[0]["text"])

    def test_a_report_that_cannot_be_written_does_not_stop_the_training(self):
        with Trial(LOOP, TUNE_REPORT="/nowhere/report") as trial:
            self.assertEqual(trial.done.returncode, 0)
            self.assertEqual(trial.done.stderr.count("tune_report:"), 1)

    def test_a_broken_reporter_warns_once_and_still_ends_the_run(self):
        script = LOOP.replace("weights =", "torch.cuda.memory_stats = lambda device=None: {}[0]\nweights =", 1)
        with Trial(script) as trial:
            self.assertEqual(trial.done.returncode, 0)
            self.assertEqual(trial.done.stderr.count("tune_report:"), 1)
            self.assertEqual(len(trial.named("step")), 6)

    def test_an_allocator_without_blocks_or_events_is_held_to_the_limit_and_sampled(self):
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
        with Trial(LOOP, TUNE_LIMIT_BYTES=8 << 30, **settings) as trial:
            self.assertEqual(trial.done.stderr, "")
            self.assertEqual(trial.lines[0]["allocator"], "cuda_malloc_async")
            self.assertIn("limit_bytes", trial.lines[0])
            self.assertEqual(len(trial.named("sample")), 3)
            self.assertNotIn("largest_request_bytes", trial.named("sample")[-1])
        with Trial(LOOP, TUNE_PURPOSE="probe", **settings) as trial:
            self.assertEqual((trial.named("mark"), trial.named("trace")), ([], []))
            self.assertIn("no trace", trial.named("warning")[0]["text"])

    def test_another_protocol_is_left_alone(self):
        with Trial(LOOP, TUNE_PROTOCOL="2") as trial:
            self.assertEqual((trial.done.returncode, trial.lines), (0, []))
            self.assertIn("protocol 2", trial.done.stderr)

    def test_without_a_device_steps_are_reported_and_samples_are_not(self):
        with Trial(LOOP, STUB_NO_CUDA="1", TUNE_LIMIT_BYTES=1) as trial:
            self.assertEqual(trial.events, ["hello", "warning"] + ["step"] * 6 + ["end"])

    def test_only_the_first_rank_reports_but_any_rank_tells_its_failure(self):
        with Trial(LOOP, RANK=1) as trial:
            self.assertEqual((trial.done.returncode, trial.lines), (0, []))
        with Trial(LOOP.replace("t.step(4", "t.step(nothing"), RANK=1) as trial:
            self.assertEqual(trial.events, ["end"])

    def test_where_several_ranks_are_expected_each_has_a_report_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            report, trace = Path(folder) / "report", Path(folder) / "trace"
            for rank, names in ((0, ("RANK", "WORLD_SIZE")), (1, ("RANK", "WORLD_SIZE")), (2, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))):
                settings = {names[0]: rank, names[1]: 3, "TUNE_REPLICAS": 3, "TUNE_PURPOSE": "probe", "TUNE_TRACE": trace}
                subprocess.check_output(
                    [sys.executable, "-c", textwrap.dedent(LOOP)], env=trial_environment(report, **settings), timeout=60
                )
                own = f".{rank}" if rank else ""
                lines = [json.loads(line) for line in Path(f"{report}{own}").read_text().splitlines()]
                self.assertEqual((lines[0]["rank"], lines[0]["world_size"]), (rank, 3))
                events = [line["event"] for line in lines]
                self.assertEqual(events[1:4], ["mark", "reached", "step"])
                self.assertEqual((lines[-1]["outcome"], events.count("hello")), ("completed", 1))
                self.assertTrue(Path(f"{trace}{own}").exists())

    def test_a_rank_says_hello_before_it_waits_for_others(self):
        script = "import os, tune_report; os._exit(0)"
        for replicas, expected in ((2, ["hello"]), (1, [])):
            with Trial(script, RANK=0, WORLD_SIZE=2, TUNE_REPLICAS=replicas) as trial:
                self.assertEqual(trial.events, expected)

    def test_a_rank_that_leaves_saving_to_another_says_nothing_of_it(self):
        script = Phases.SCRIPT.replace("open(path", "int(os.environ['RANK']) or open(path").replace("import tune", "import os, tune")
        with tempfile.TemporaryDirectory() as folder:
            where, report = os.path.join(folder, "checkpoint"), Path(folder) / "report"
            for rank, saved in ((1, 0), (0, 1)):
                settings = {"TUNE_PURPOSE": "soak", "TUNE_EVALUATE_AFTER": 3, "TUNE_CHECKPOINT": where}
                environment = trial_environment(report, RANK=rank, WORLD_SIZE=2, TUNE_REPLICAS=2, **settings)
                command = [sys.executable, "-c", textwrap.dedent(script)]
                done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=60)
                own = Path(f"{report}.1") if rank else report
                events = [json.loads(line)["event"] for line in own.read_text().splitlines()]
                self.assertEqual((done.stderr, events.count("checkpoint"), events[-1]), (b"", saved, "end"))

    def test_helper_processes_that_import_it_report_nothing(self):
        script = """
            import multiprocessing, sys, tune_report
            def look(): sys.exit(0 if tune_report._the_session is None else 9)
            if __name__ == "__main__":
                worker = multiprocessing.get_context(sys.argv[1]).Process(target=look)
                worker.start(); worker.join(); print(worker.exitcode)
        """
        for method in ("spawn", "forkserver"):
            with tempfile.TemporaryDirectory() as folder:
                path, report = Path(folder) / "script.py", Path(folder) / "report"
                path.write_text(textwrap.dedent(script))
                out = subprocess.check_output(
                    [sys.executable, str(path), method], env=trial_environment(report), universal_newlines=True, timeout=60
                )
                self.assertEqual(out.strip(), "0", method)
                self.assertEqual([json.loads(line)["event"] for line in report.read_text().splitlines()], ["hello", "end"])


class Phases(unittest.TestCase):
    SCRIPT = LOOP.replace("run()", "run(evaluate, save)").replace(
        "weights =",
        "def evaluate():\n    torch.cuda.free(torch.cuda.allocate(5000))\n    return torch.Tensor(2.25)\n"
        "def save(path):\n    open(path, 'w').write('x' * 321)\n"
        "weights =",
        1,
    )

    def test_a_soak_evaluates_and_writes_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "checkpoint")
            with Trial(self.SCRIPT, TUNE_PURPOSE="soak", TUNE_EVALUATE_AFTER=3, TUNE_CHECKPOINT=where) as trial:
                self.assertEqual(trial.events[4:8], ["step", "evaluation", "checkpoint", "step"])
                self.assertEqual(trial.named("evaluation")[0]["loss"], 2.25)
                self.assertEqual(trial.named("checkpoint")[0]["bytes"], 321)
                # The pass's peak is in the next sample.
                self.assertEqual(trial.named("sample")[1]["peak_allocated_bytes"], (1 << 20) + 5000)
                self.assertEqual(trial.lines[-1]["outcome"], "completed")

    def test_a_measurement_does_neither_and_a_probe_only_evaluates(self):
        with Trial(self.SCRIPT, TUNE_EVALUATE_AFTER=3) as trial:
            self.assertNotIn("evaluation", trial.events)
        with Trial(self.SCRIPT, TUNE_PURPOSE="probe", TUNE_EVALUATE_AFTER=3, TUNE_CHECKPOINT="/nowhere") as trial:
            self.assertIn("evaluation", trial.events)
            self.assertNotIn("checkpoint", trial.events)

    def test_an_evaluation_that_fails_is_the_programs_failure(self):
        script = self.SCRIPT.replace("return torch", "1 / 0; return torch")
        with Trial(script, TUNE_PURPOSE="soak", TUNE_EVALUATE_AFTER=3) as trial:
            self.assertEqual(trial.done.returncode, 1)
            self.assertIn("ZeroDivisionError", trial.lines[-1]["message"])


class AProbe(unittest.TestCase):
    def marks_of(self, trial):
        return [(m["mark"], m["step"], m["allocations"], m["frees"]) for m in trial.named("mark")]

    def test_marks_count_the_events_of_the_trace(self):
        with Trial(LOOP, TUNE_PURPOSE="probe", TUNE_STEPS=3) as trial:
            self.assertEqual(trial.done.returncode, 0, trial.done.stderr)
            # The weights, allocated before `run()`, are in the trace.
            expected = [("step", 0, 1, 0), ("step", 1, 2, 1), ("step", 2, 3, 2), ("step", 3, 4, 3)]
            self.assertEqual(self.marks_of(trial), expected)
            self.assertEqual(trial.events[-2:], ["trace", "end"])
            self.assertEqual(trial.named("trace")[0]["path"], str(trial.trace_path))
            with open(trial.trace_path, "rb") as file:
                entries = pickle.load(file)["device_traces"][0]
            self.assertEqual([entry["action"] for entry in entries].count("alloc"), 4)
            self.assertEqual(entries[0]["size"], 1 << 20)

    def test_a_block_that_another_stream_uses_is_not_freed_yet(self):
        script = LOOP.replace("free(activation)", "free(activation, is_deferred=True)")
        with Trial(script, TUNE_PURPOSE="probe", TUNE_STEPS=2) as trial:
            self.assertEqual(self.marks_of(trial)[-1], ("step", 2, 3, 0))

    def test_an_evaluation_is_marked_and_the_next_step_ends_it(self):
        with Trial(Phases.SCRIPT, TUNE_PURPOSE="probe", TUNE_STEPS=3, TUNE_EVALUATE_AFTER=2) as trial:
            expected = [
                ("step", 0, 1, 0),
                ("step", 1, 2, 1),
                ("evaluation", 2, 3, 2),
                ("step", 2, 4, 3),
                ("step", 3, 5, 4),
            ]
            self.assertEqual(self.marks_of(trial), expected)

    def test_it_is_not_held_to_a_limit_and_has_no_block_figures(self):
        with Trial(LOOP, TUNE_PURPOSE="probe") as trial:
            self.assertNotIn("limit_bytes", trial.lines[0])
            self.assertNotIn("largest_free_bytes", trial.named("sample")[0])


class FreeBlocks(unittest.TestCase):
    def figures(self, *segments):
        sys.path.insert(0, str(REPORTER))
        try:
            from tune_report import free_block_figures
        finally:
            sys.path.pop(0)
        return free_block_figures(list(segments), 0)

    def segment(self, *blocks, **fields):
        blocks = [{"size": size, "state": state} for size, state in blocks]
        return {"device": 0, "address": 0, "segment_type": "large", "blocks": blocks, **fields}

    def test_a_segment_that_is_wholly_free_can_be_given_back(self):
        free = self.segment((100, "inactive"))
        part = self.segment((10, "active_allocated"), (30, "inactive"), (5, "active_pending_free"), (20, "inactive"))
        other = self.segment((900, "inactive"), device=1)
        self.assertEqual(self.figures(free, part, other), {"largest_free_bytes": 100, "unreleasable_bytes": 50})

    def test_expandable_segments_give_back_whole_pages(self):
        page = 20 << 20
        blocks = [(page // 2, "active_allocated"), (2 * page, "inactive"), (page // 2, "active_allocated")]
        segment = self.segment(*blocks, is_expandable=True)
        # From the middle of one page to the middle of another: one whole page between them.
        self.assertEqual(self.figures(segment), {"largest_free_bytes": 2 * page, "unreleasable_bytes": page})


if __name__ == "__main__":
    unittest.main()
