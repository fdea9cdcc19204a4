"""Tells `tune` how a PyTorch training run goes. Copy this file beside your script; it needs nothing but torch.

    import tune_report                                        # before the model is built

    with tune_report.run() as t:
        for images, labels in loader:
            loss = train_on(images, labels)                   # one micro-batch, forward and backward
            t.step(len(images), loss)

`tune` starts the script once a trial and says in its environment (`TUNE_REPORT` and others, protocol 1) what the trial
is. Then this file holds the process to the trial's memory limit, appends JSON lines to the report file, and ends the
run after the trial's steps. In a probe it also records every allocation, from the import on. Without `TUNE_REPORT` it
does nothing: torch is not imported, `run()` gives an object whose methods return at once.

Started by `torchrun` (or anything else that sets RANK and WORLD_SIZE) under a tuner whose `target.replicas` is more
than one, every rank reports to a file of its own. `evaluate` and `checkpoint` are called on every rank then, as in a
script that saves sharded state; where only rank 0 is to save, say so in them, as your script does.

What a user calls: `run`, `setting`, `trainer_callback` (Hugging Face), `lightning_callback`. All else is the protocol.

The reporter's own work (statistics, block lists, writing) is outside the step times that it reports, and its own
failures never break the training: they are told once on stderr. Out of memory is told by the exception's type.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

PROTOCOL = "1"

MAX_MESSAGE_CHARS = 16_000
"""Of an exception's text: a line of the report may have 1 MiB."""

PROBE_ENTRIES = 4_000_000
"""Events that a probe's trace may have: some hundred steps of a large model. PyTorch overwrites the oldest beyond."""

UPDATE_ENTRIES = 400_000
"""Events of the one update that is looked at for its largest request."""

TRIM_EVERY_STEPS = 10
"""Steps between two releases of the cache under `TUNE_TRIM=every_k`."""

EXPANDABLE_PAGE_BYTES = {"small": 2 << 20, "large": 20 << 20}
"""Expandable segments give memory back in whole pages of these sizes (c10/cuda/CUDACachingAllocator.cpp)."""


# What scripts call.


def setting(name: str, default: Any) -> Any:
    """A tuned value: `setting("batch_size", 8)` is `TUNE_BATCH_SIZE` as an `int`, or 8 where that is not set.

    The names are those of `tune export --format env`, so a script reads the same values in a trial and in the launch
    that follows. The default's type says how to read the text (`true` and `1` are true); `None` leaves it a string.
    """
    text = os.environ.get("TUNE_" + name.upper(), "")
    if not text:
        return default
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "false", "0"):
            return text.lower() in ("true", "1")
        raise ValueError(f"TUNE_{name.upper()} is {text!r}, expected true or false")
    return text if default is None else type(default)(text)


def run(evaluate: Optional[Callable[[], Any]] = None, checkpoint: Optional[Callable[[str], Any]] = None) -> Run:
    """The run to report on, a context manager.

    `evaluate()` runs one evaluation pass and may return its loss; `checkpoint(path)` writes what you write when you
    save. Both are called once in a trial that wants them, since either can need more memory than training.
    """
    session = _session()
    if session is None or session.ended:
        return Run()
    return _TunedRun(session, evaluate, checkpoint)


class Run:
    """A run that nobody tunes: every method returns at once. Reporting is the subclass's."""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def step(self, samples: int, loss: Any = None) -> None:
        """Call it after each micro-batch, forward and backward done (and the optimizer's step where there is one).
        `loss` is a number or a tensor with one."""

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """`loader`, with the time that it keeps the run waiting measured. torch's `DataLoader` is measured without."""
        return loader

    setting = staticmethod(setting)


# A trial's process.


class _Trial:
    """What the environment says."""

    def __init__(self) -> None:
        self.purpose = os.environ.get("TUNE_PURPOSE", "measure")
        self.steps = setting("steps", 0)
        self.warmup_steps = setting("warmup_steps", 0)
        self.sample_every = max(1, setting("sample_every", 2))
        self.accumulation_steps = max(1, setting("accumulation_steps", 1))
        self.evaluate_after: Optional[int] = setting("evaluate_after", 0) or None
        self.checkpoint_path: Optional[str] = setting("checkpoint", None)
        self.trace_path: Optional[str] = setting("trace", None)
        self.limit_bytes: Optional[int] = setting("limit_bytes", 0) or None
        self.trim = setting("trim", "never")

    @property
    def is_probe(self) -> bool:
        return self.purpose == "probe"

    @property
    def studied_steps(self) -> Tuple[int, int]:
        """First and last + 1 of the update whose requests are looked at: the last whole one of the warm-up, when
        optimizer state exists and cuDNN has made its choices; else the first."""
        update = self.accumulation_steps
        first = max(0, self.warmup_steps // update - 1) * update
        return first, first + update


class _Ranks:
    """Which of several processes that train together this one is."""

    ENVIRONMENTS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
    """Of torchrun (and whoever follows it), srun and mpirun. A script may set the first for itself only later."""

    def __init__(self, torch: Any) -> None:
        self.expected = max(1, setting("replicas", 1))
        self.rank, self.world = int(os.environ.get("LOCAL_RANK") or 0), None
        for rank, world in self.ENVIRONMENTS if self.expected > 1 else self.ENVIRONMENTS[:1]:
            if os.environ.get(rank):
                self.rank, self.world = int(os.environ[rank]), int(os.environ.get(world) or 0) or None
                break
        else:
            # Processes that a script starts by itself (`torch.multiprocessing.spawn`) have agreed by the time of `run()`.
            distributed = getattr(torch, "distributed", None)
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                self.rank, self.world = distributed.get_rank(), distributed.get_world_size()

    def own(self, path: str) -> str:
        """This rank's file, where `path` is that of rank 0."""
        return f"{path}.{self.rank}" if self.expected > 1 and self.rank > 0 else path


class _Report:
    """The report file. Each line is written by one call, so that a reader never sees parts of two.

    Every rank has one where the tuner expects several. Where it expects one, only rank 0 reports, and another rank writes
    nothing but the reason why it failed: the others may hang on it.
    """

    def __init__(self, path: str, ranks: _Ranks, hello: Callable[[], Dict[str, Any]]) -> None:
        self._file = os.open(ranks.own(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._hello: Optional[Callable[[], Dict[str, Any]]] = hello
        self._reports = ranks.rank == 0 or ranks.expected > 1

    def greet(self) -> None:
        """Writes the `hello` line, if it has not been written."""
        hello, self._hello = self._hello, None
        if hello is not None and self._reports:
            self._line("hello", hello())

    def write(self, event: str, **fields: Any) -> None:
        if not self._reports and (event != "end" or fields["outcome"] == "completed"):
            return
        self.greet()
        self._line(event, fields)

    def _line(self, event: str, fields: Dict[str, Any]) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        os.write(self._file, (json.dumps({"event": event, **known}) + "\n").encode())


class _Cuda:
    """The device's caching allocator, as far as it is asked and told anything."""

    def __init__(self, torch: Any) -> None:
        torch.cuda.init()
        self.torch = torch
        local_rank = int(os.environ.get("LOCAL_RANK") or -1)
        self.device: int = local_rank if 0 <= local_rank < torch.cuda.device_count() else torch.cuda.current_device()
        self.limits: Dict[int, int] = {}
        self.refused_bytes: Optional[int] = None
        self.is_recording = False
        self.counts_at_start = self._counts()
        # cudaMallocAsync and old versions of torch have none.
        with contextlib.suppress(AttributeError, RuntimeError):
            torch._C._cuda_attach_out_of_memory_observer(self._refused)

    def _refused(self, device: int, segment_bytes: int, total_bytes: int, free_bytes: int) -> None:
        self.refused_bytes = segment_bytes

    def settle_device(self) -> None:
        """The device that the model is on, where there is one by now. Few scripts call `set_device` before an import."""
        cuda = self.torch.cuda
        busiest = max(range(cuda.device_count()), key=cuda.memory_allocated)
        self.device = busiest if cuda.memory_allocated(busiest) > 0 else cuda.current_device()

    def hold_to(self, limit_bytes: int) -> None:
        """Limits what the allocator may take. PyTorch takes a fraction and rounds down, so the fraction is lowered
        until the product is within the limit."""
        if self.device in self.limits:
            return
        total = self.total_bytes()
        fraction = min(1.0, limit_bytes / total)
        while int(fraction * total) > limit_bytes:
            fraction *= 1.0 - 2.0**-52
        self.torch.cuda.set_per_process_memory_fraction(fraction, self.device)
        self.limits[self.device] = int(fraction * total)

    def total_bytes(self) -> int:
        return self.torch.cuda.get_device_properties(self.device).total_memory

    def facts(self) -> Dict[str, Any]:
        """What the hello line says of the device."""
        cuda = self.torch.cuda
        properties = cuda.get_device_properties(self.device)
        uuid = getattr(properties, "uuid", None)
        return {
            "device": f"cuda:{self.device}",
            "uuid": None if uuid is None else f"GPU-{uuid}",
            "name": properties.name,
            "allocator": self.allocator(),
            "total_bytes": self.total_bytes(),
            "limit_bytes": self.limits.get(self.device),
        }

    def allocator(self) -> str:
        if not self.is_native:
            return "cuda_malloc_async"
        settings = self.torch.cuda.memory._snapshot().get("allocator_settings", {})
        return "expandable" if settings.get("expandable_segments") else "native"

    # The history of events.

    @property
    def is_native(self) -> bool:
        """Whether it is PyTorch's own allocator, which alone tells of its blocks and events."""
        return self.torch.cuda.get_allocator_backend() == "native"

    def record(self, entries: int) -> None:
        """Starts PyTorch's own recording, without stacks: they cost time, and nobody reads them here."""
        if not self.is_native:
            return
        memory = self.torch.cuda.memory
        memory._record_memory_history("all", context=None, stacks="python", max_entries=entries)
        self.is_recording, self.counts_at_start = True, self._counts()

    def stop_recording(self) -> None:
        self.torch.cuda.memory._record_memory_history(None)
        self.is_recording = False

    def largest_recorded_request(self) -> Optional[int]:
        entries = self.torch.cuda.memory._snapshot()["device_traces"][self.device]
        return max((entry["size"] for entry in entries if entry["action"] == "alloc"), default=None)

    def _counts(self) -> List[Tuple[int, int]]:
        """Of each device: `alloc` and `free_completed` events since the process began. (`allocation.all.freed` would
        count `free_requested`; the two differ for tensors that another stream still uses.)"""
        stats = [self.torch.cuda.memory_stats(device) for device in range(self.torch.cuda.device_count())]
        return [(s.get("allocation.all.allocated", 0), s.get("active.all.freed", 0)) for s in stats]

    def counts(self) -> Tuple[int, int]:
        """`alloc` and `free_completed` events of the device since recording began."""
        (allocations, frees), start = self._counts()[self.device], self.counts_at_start[self.device]
        return allocations - start[0], frees - start[1]

    # Figures.

    def sample(self) -> Dict[str, Any]:
        """The fields of a sample line. Peaks begin anew."""
        stats = self.torch.cuda.memory_stats(self.device)
        fields = {
            "allocated_bytes": stats.get("allocated_bytes.all.current", 0),
            "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
            "peak_allocated_bytes": stats.get("allocated_bytes.all.peak"),
            "peak_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        }
        if self.is_native:
            fields["requested_bytes"] = stats.get("requested_bytes.all.current")
            fields["allocated_blocks"] = stats.get("allocation.all.current")
            # While events are recorded they would all be copied with the blocks.
            if not self.is_recording:
                fields.update(free_block_figures(self.torch.cuda.memory_snapshot(), self.device))
        self.torch.cuda.reset_peak_memory_stats(self.device)
        return fields

    def refused_requests(self) -> int:
        return self.torch.cuda.memory_stats(self.device).get("num_ooms", 0)


def free_block_figures(segments: List[Dict[str, Any]], device: int) -> Dict[str, int]:
    """The largest free block, and the free bytes that emptying the cache would not give back to the device, because
    their segment (or page, under expandable segments) is in part in use. `segments` is `memory_snapshot()`."""
    largest, unreleasable = 0, 0
    for segment in segments:
        if segment["device"] != device:
            continue
        start, address, free, in_use = segment["address"], segment["address"], 0, False
        page = EXPANDABLE_PAGE_BYTES.get(segment["segment_type"], 2 << 20)
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] != "inactive":
                in_use = True
            elif segment.get("is_expandable"):
                # Pages count from the segment's start, which is a page's.
                first_page, end_page = -(-(address - start) // page), (address + size - start) // page
                free += size - max(0, end_page - first_page) * page
            else:
                free += size
            if block["state"] == "inactive":
                largest = max(largest, size)
            address += size
        unreleasable += free if in_use or segment.get("is_expandable") else 0
    return {"largest_free_bytes": largest, "unreleasable_bytes": unreleasable}


class _Session:
    """A trial's process, from this file's import to the `end` line."""

    def __init__(self, report_path: str) -> None:
        import torch

        self.torch = torch
        self.trial = _Trial()
        self.ranks = _Ranks(torch)
        if self.trial.trace_path is not None:
            self.trial.trace_path = self.ranks.own(self.trial.trace_path)
        self.report = _Report(report_path, self.ranks, self._hello)
        self.ended = False
        self.steps_done = 0
        self._process = os.getpid()
        self.cuda = _Cuda(torch) if torch.cuda.is_available() else None
        self._watch_for_the_end()
        if self.cuda is None:
            self.warn("torch sees no CUDA device: steps are reported, memory is not")
        elif self.trial.is_probe:
            with _harmless("recording allocations"):
                self.cuda.record(PROBE_ENTRIES)
            if not self.cuda.is_recording:
                self.warn("this allocator does not tell its allocations: the probe has no trace")

    def hold_to_limit(self) -> None:
        """A failure ends the program: a trial that is not held to its limit proves nothing."""
        if self.cuda is not None and self.trial.limit_bytes is not None:
            self.cuda.hold_to(self.trial.limit_bytes)

    def _hello(self) -> Dict[str, Any]:
        fields = {"protocol": int(PROTOCOL), "framework": f"torch {self.torch.__version__}", "pid": os.getpid()}
        fields.update(rank=self.ranks.rank, world_size=self.ranks.world)
        with _harmless("asking for the device's facts"):
            fields.update(self.cuda.facts() if self.cuda is not None else {"device": "cpu"})
        return fields

    def warn(self, text: str) -> None:
        """Tells the user of the tuner."""
        with _harmless("writing a warning"):
            self.report.write("warning", text=text)

    # The end, whichever way it comes.

    def end(self, outcome: str, **fields: Any) -> None:
        """Writes the `end` line, once."""
        if self.ended or os.getpid() != self._process:
            return
        self.ended = True
        with _harmless("writing the end of the report"):
            refused = self.cuda.refused_requests() if self.cuda is not None and outcome == "completed" else 0
            if refused:
                self.warn(f"the allocator refused {refused} requests that the program, or a library, went on without")
            self.report.write("end", outcome=outcome, **fields)

    def end_with(self, error: BaseException) -> None:
        """Writes the `end` line for an exception that nobody caught."""
        if isinstance(error, SystemExit):
            self.end_early(error.code)
        elif self._is_out_of_memory(error):
            refused = self.cuda.refused_bytes if self.cuda is not None else None
            self.end("out_of_memory", message=str(error)[:MAX_MESSAGE_CHARS], requested_bytes=refused)
        else:
            self.end("failed", message=f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARS])

    def end_early(self, status: Any = None) -> None:
        if self.trial.steps == 0:
            return self.end("completed")
        left = "" if status in (None, 0) else f" with status {status}"
        message = f"the program left{left} after {self.steps_done} of {self.trial.steps} steps"
        self.end("failed", message=message[:MAX_MESSAGE_CHARS])

    def _is_out_of_memory(self, error: Optional[BaseException]) -> bool:
        """By type alone: the allocator's own exception, or the driver's error 2, cudaErrorMemoryAllocation."""
        places = ((self.torch, "OutOfMemoryError"), (self.torch.cuda, "OutOfMemoryError"))
        kinds = tuple(kind for kind in (getattr(*place, None) for place in places) if isinstance(kind, type))
        accelerator_error = getattr(self.torch, "AcceleratorError", ())
        while error is not None:
            if isinstance(error, kinds):
                return True
            if isinstance(error, accelerator_error) and getattr(error, "error_code", None) == 2:
                return True
            error = error.__cause__
        return False

    def _watch_for_the_end(self) -> None:
        """So that failures outside `with tune_report.run()` are told as well: while the model is built, in a callback."""
        before = sys.excepthook

        def hook(kind: Any, error: BaseException, traceback: Any) -> None:
            self.end_with(error)
            before(kind, error, traceback)

        sys.excepthook = hook
        atexit.register(self.end_early)


class _TunedRun(Run):
    """A run whose steps are reported."""

    def __init__(self, session: _Session, evaluate: Any, checkpoint: Any) -> None:
        self._session, self._trial, self._report = session, session.trial, session.report
        self._cuda, self._torch = session.cuda, session.torch
        self._evaluate, self._checkpoint = evaluate, checkpoint
        self._has_begun, self._phases_done = False, False
        self._largest_request: Optional[int] = None
        self._wait = _Wait()
        self._began = 0.0

    def __enter__(self) -> Run:
        """Begins the first step."""
        if self._has_begun:
            return self
        self._has_begun = True
        if self._cuda is not None:
            self._cuda.settle_device()
            self._session.hold_to_limit()
            self._study_requests()
        with _harmless("watching the data loaders"):
            self._wait.watch_data_loaders()
        self._mark("step")
        self._begin_step()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._session.end_with(error)
        else:
            self._session.end_early()

    def step(self, samples: int, loss: Any = None) -> None:
        if self._session.ended:
            return
        self._trim(self._session.steps_done + 1)
        if self._session.ranks.expected > 1:
            # The device may wait for other ranks from here on. Whoever has not come this far is the one that is waited for.
            with _harmless("reporting the end of a step"):
                self._report.write("reached", step=self._session.steps_done + 1)
        self._synchronize()
        total = time.perf_counter() - self._began
        self._session.steps_done += 1
        done = self._session.steps_done
        value = self._number(loss)
        with _harmless("reporting a step"):
            self._report.write(
                "step",
                step=done,
                samples=int(samples),
                loss=_json_number(value),
                total_ms=round(total * 1e3, 4),
                data_wait_ms=round(min(self._wait.seconds, total) * 1e3, 4),
            )
        if value is not None and not math.isfinite(value):
            self._session.end("diverged", step=done)
            raise SystemExit(f"tune_report: the loss of step {done} is {value}")
        self._study_requests()
        self._run_phases(done)
        is_last = self._trial.steps > 0 and done >= self._trial.steps
        if is_last or done % self._trial.sample_every == 0:
            self._sample(done)
        self._mark("step")
        if is_last:
            self._write_trace()
            self._session.end("completed")
            raise SystemExit(0)
        self._begin_step()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(loader)
        while True:
            with self._wait.measured():
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    # Parts of a step.

    def _begin_step(self) -> None:
        self._wait.seconds = 0.0
        self._began = time.perf_counter()

    def _synchronize(self) -> None:
        """An error of the program's own kernels surfaces here, so it is raised like any other."""
        if self._cuda is not None:
            self._torch.cuda.synchronize(self._cuda.device)

    def _number(self, loss: Any) -> Optional[float]:
        """The one place where a tensor is brought to the host, after the step's time was taken."""
        number = None
        if loss is not None:
            with _harmless("reading the loss"):
                number = float(loss.detach() if hasattr(loss, "detach") else loss)
        return number

    def _mark(self, kind: str) -> None:
        """Says where in a probe's trace something begins."""
        if self._cuda is None or not self._trial.is_probe or not self._cuda.is_recording:
            return
        with _harmless("marking a place in the trace"):
            allocations, frees = self._cuda.counts()
            self._report.write(
                "mark", mark=kind, step=self._session.steps_done, allocations=allocations, frees=frees
            )

    def _study_requests(self) -> None:
        """Records the events of one update for its largest request. In a probe the whole trace tells that."""
        if self._cuda is None or self._trial.is_probe:
            return
        first, end = self._trial.studied_steps
        with _harmless("looking for the largest request"):
            if self._session.steps_done == first:
                self._cuda.record(UPDATE_ENTRIES)
            elif self._session.steps_done == end and self._cuda.is_recording:
                self._largest_request = self._cuda.largest_recorded_request()
                self._cuda.stop_recording()

    def _sample(self, step: int) -> None:
        if self._cuda is None:
            return
        with _harmless("taking a memory sample"):
            figures = self._cuda.sample()
            self._report.write("sample", step=step, **figures, largest_request_bytes=self._largest_request)

    def _trim(self, done: int) -> None:
        """Hands cached memory back where the trial says so: inside the step's time, as in the planned run."""
        trim = self._trial.trim
        is_update = done % self._trial.accumulation_steps == 0
        if self._cuda is not None and (
            (trim == "after_update" and is_update) or (trim == "every_k" and done % TRIM_EVERY_STEPS == 0)
        ):
            self._torch.cuda.empty_cache()

    def _run_phases(self, done: int) -> None:
        """The evaluation pass and, in a soak, the checkpoint. Their exceptions are the program's own."""
        after, path = self._trial.evaluate_after, self._trial.checkpoint_path
        if self._phases_done or after is None or done < after or self._trial.purpose not in ("probe", "soak"):
            return
        self._phases_done = True
        if self._evaluate is not None:
            self._mark("evaluation")
            loss, seconds = self._timed(self._evaluate)
            if self._trial.trim == "after_eval" and self._cuda is not None:
                self._torch.cuda.empty_cache()
            with _harmless("reporting the evaluation"):
                self._report.write("evaluation", loss=_json_number(self._number(loss)), seconds=seconds)
        if self._checkpoint is not None and path is not None and self._trial.purpose == "soak":
            self._mark("checkpoint")
            checkpoint = self._checkpoint
            _, seconds = self._timed(lambda: checkpoint(path))
            # Of several ranks one may save for all.
            if self._session.ranks.rank == 0 or os.path.exists(path):
                with _harmless("reporting the checkpoint"):
                    self._report.write("checkpoint", bytes=_bytes_at(path), seconds=seconds)

    def _timed(self, work: Callable[[], Any]) -> Tuple[Any, float]:
        began = time.perf_counter()
        result = work()
        self._synchronize()
        return result, round(time.perf_counter() - began, 4)

    def _write_trace(self) -> None:
        path = self._trial.trace_path
        if path is None or not self._trial.is_probe or self._cuda is None or not self._cuda.is_recording:
            return
        with _harmless("writing the trace"):
            self._torch.cuda.memory._dump_snapshot(path)
            self._report.write("trace", path=path)


class _Wait:
    """The time that the run's own thread spends waiting for data in a step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread = threading.get_ident()
        self._depth = 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Counts the time inside, once where such stretches are nested, and not for threads that load ahead."""
        if threading.get_ident() != self._thread:
            yield
            return
        began, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - began

    def watch_data_loaders(self) -> None:
        """Measures every iterator of torch's `DataLoader`, those that a framework makes included."""
        from torch.utils.data import dataloader

        fetch, wait = dataloader._BaseDataLoaderIter.__next__, self

        def measured_next(iterator: Any) -> Any:
            with wait.measured():
                return fetch(iterator)

        dataloader._BaseDataLoaderIter.__next__ = measured_next


# Frameworks with a loop of their own.


def trainer_callback(trainer: Any = None) -> Any:
    """A callback for Hugging Face's `Trainer`: `trainer.add_callback(tune_report.trainer_callback(trainer))`.

    Without the trainer (`callbacks=[tune_report.trainer_callback()]`) neither loss nor evaluation nor checkpoint is
    reported: `Trainer` does not show its callbacks the first, and the others need it.
    """
    import transformers

    session = _session()
    if session is None:
        return transformers.TrainerCallback()

    evaluate = checkpoint = None
    seen: Dict[str, Any] = {"loss": None, "samples": None}
    if trainer is not None:
        train_on = trainer.training_step

        def training_step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            seen["samples"] = _samples_in(inputs)
            seen["loss"] = train_on(model, inputs, *rest, **named)
            return seen["loss"]

        def save(path: str) -> None:
            trainer.save_model(path)
            session.torch.save(trainer.optimizer.state_dict(), os.path.join(path, "optimizer.pt"))

        trainer.training_step, checkpoint = training_step, save
        if trainer.eval_dataset is not None:
            evaluate = lambda: trainer.evaluate().get("eval_loss")  # noqa: E731

    reported = run(evaluate, checkpoint)

    class TuneCallback(transformers.TrainerCallback):
        """Each micro-batch ends either a substep or, where the optimizer steps, a step."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            reported.__enter__()

        def on_substep_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            loss, seen["loss"] = seen["loss"], None
            reported.step(seen["samples"] or args.train_batch_size, loss)

        on_step_end = on_substep_end

    return TuneCallback()


def lightning_callback() -> Any:
    """A callback for Lightning: `Trainer(callbacks=[tune_report.lightning_callback()])`."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        import pytorch_lightning as lightning
    else:
        try:
            import lightning.pytorch as lightning
        except ImportError:
            import pytorch_lightning as lightning

    if _session() is None:
        return lightning.Callback()

    class TuneCallback(lightning.Callback):
        """`on_train_batch_end` comes after each micro-batch, whether or not the optimizer stepped."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            evaluate = (lambda: self._validate(trainer)) if trainer.enable_validation else None
            self._run = run(evaluate, trainer.save_checkpoint).__enter__()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._run.step(_samples_in(batch) or setting("batch_size", 1), loss)

        @staticmethod
        def _validate(trainer: Any) -> Any:
            """As Lightning's own loop does between two batches (`_TrainingEpochLoop.on_advance_end`, 2.0 to 2.6)."""
            is_first = trainer._logger_connector._first_loop_iter
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
            trainer._logger_connector._first_loop_iter = is_first
            return trainer.callback_metrics.get("val_loss")

    return TuneCallback()


def _samples_in(batch: Any) -> Optional[int]:
    """The first dimension of the first tensor in a batch of whatever form."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) > 0 else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((found for found in map(_samples_in, batch) if found is not None), None)
    return None


# Small things.


def _json_number(value: Optional[float]) -> Any:
    """JSON has no infinities: they go as `"nan"`, `"inf"`, `"-inf"`."""
    return value if value is None or math.isfinite(value) else str(value)


def _bytes_at(path: str) -> int:
    """The size of a file, or of all files of a directory."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(file) for file in files)


_has_warned = False


@contextlib.contextmanager
def _harmless(what: str) -> Iterator[None]:
    """For the reporter's own work: a failure is told once and the training goes on."""
    global _has_warned
    try:
        yield
    except Exception as error:
        if not _has_warned:
            _has_warned = True
            print(f"tune_report: {what} failed: {type(error).__name__}: {error}", file=sys.stderr)


_the_session: Optional[_Session] = None
_has_looked = False


def _session() -> Optional[_Session]:
    """This process's session: made on the first call in a trial, `None` where nobody tunes."""
    global _the_session, _has_looked
    path = os.environ.get("TUNE_REPORT")
    if path and not _has_looked:
        _has_looked = True
        protocol = os.environ.get("TUNE_PROTOCOL", PROTOCOL)
        if protocol != PROTOCOL:
            print(f"tune_report: the tuner speaks protocol {protocol}, this file speaks {PROTOCOL}", file=sys.stderr)
            return None
        with _harmless("starting the report"):
            _the_session = _Session(path)
        if _the_session is not None:
            _the_session.hold_to_limit()
            if _the_session.ranks.expected > 1:
                # Before ranks wait for one another: one that dies of it is to be known.
                with _harmless("saying hello"):
                    _the_session.report.greet()
    return _the_session


def _is_helper_process() -> bool:
    """Loader workers that import the script again must not touch the device, nor report. A spawned process has another
    name by then; the fork server, which has not, is told by what `multiprocessing` sets while it imports."""
    import multiprocessing

    process = multiprocessing.current_process()
    return process.name != "MainProcess" or getattr(process, "_inheriting", False)


if os.environ.get("TUNE_REPORT") and not _is_helper_process():
    _session()
