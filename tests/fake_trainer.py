#!/usr/bin/env python3
"""A training program that trains nothing: it speaks the report protocol like a real one and fails in any way asked for.

    TUNE_REPORT=report.jsonl TUNE_STEPS=12 TUNE_PURPOSE=measure python3 tests/fake_trainer.py --batch-size 8
    python3 tests/fake_trainer.py --unmodified --fault hang --fault-step 2

It needs the standard library alone, so CI can tune a command without torch or a GPU. Its memory is that of a made-up
device behind PyTorch's caching allocator (`Allocator` below follows its rules for one stream, native and expandable,
with max_split_size_mb). Each step makes the same allocations in the same order, each of `a + b·B` bytes, so a forecast
from two probes is exact, and a probe's snapshot is in PyTorch's own form. With `--max-length` (or `--lengths-file`) each
batch has a length T of its own: sizes are `a + b·B·T` then, and attention's scores `B·T²`. With `--max-side` (or `--sides`)
all images of a batch have a side S of its own: sizes are `a + b·B·S²`, and with a border `B·(S + 2)²`. Times are nominal:
the step line says what the formula gives, whatever the machine does, and the program sleeps that long.

With `--ranks 4` it runs as four processes that wait for one another after each step (`fake_ranks.py`), each with a report
and a device of its own.

Options can be given as variables too: `--bytes-per-sample` is `FAKE_BYTES_PER_SAMPLE`.
"""

import argparse
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left, insort

sys.dont_write_bytecode = True

from fake_ranks import Peers, launch  # noqa: E402

MIB = 1 << 20
FIRST_ADDRESS = 0x7F00_0000_0000

FAULTS = {
    "hang": "no step ends any more",
    "hang_hard": "the same, and SIGTERM is ignored",
    "kill": "dies by SIGKILL",
    "segv": "dies by SIGSEGV",
    "abort": "dies by SIGABRT",
    "leave": "leaves with status 0 and no end line",
    "status": "leaves with status 3 and no end line",
    "typo": "a NameError before the first step",
    "missing_file": "a FileNotFoundError before the first step",
    "diverge": "the loss is not finite",
    "out_of_memory": "runs out of memory at that step, whatever the size",
    "out_of_memory_text": "runs out of memory, and only stderr tells",
    "garbage": "lines that are no JSON, no object, no known event, of wrong types; then goes on",
    "half_line": "half a line, then status 1",
    "long_line": "a line of 3 MiB, then goes on",
    "two_ends": "an end line, then more steps and another end line",
    "flood": "64 MiB on stdout and on stderr, then goes on",
    "linger": "an end line, but the process stays",
    "grandchild": "starts a process of its own that stays",
    "no_trace": "a probe that writes no trace",
    "bad_trace": "a probe whose trace is no pickle",
    "slow": "a step of 30 s",
    "silent": "no report, and no other fault",
}


# The device.


class OutOfMemory(Exception):
    """A request that could not be met."""

    def __init__(self, requested_bytes, allocator):
        self.requested_bytes = requested_bytes
        gib = lambda size: f"{size / (1 << 30):.2f} GiB"  # noqa: E731
        super().__init__(
            f"CUDA out of memory. Tried to allocate {requested_bytes / MIB:.2f} MiB. GPU 0 has a total capacity of "
            f"{gib(allocator.device_bytes)} of which {gib(allocator.device_bytes - allocator.reserved)} is free. "
            f"Including non-PyTorch memory, this process has {gib(allocator.reserved)} memory in use. "
            f"{gib(allocator.limit_bytes)} allowed; Of the allocated memory {gib(allocator.allocated)} is allocated by "
            f"PyTorch, and {(allocator.reserved - allocator.allocated) / MIB:.2f} MiB is reserved by PyTorch but "
            "unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


class Block:
    """A stretch of a segment; neighbours are linked."""

    __slots__ = ("address", "size", "requested", "pool", "in_use", "before", "after")

    def __init__(self, address, size, pool):
        self.address, self.size, self.pool = address, size, pool
        self.requested, self.in_use, self.before, self.after = 0, False, None, None

    @property
    def entry(self):
        """Its place among free blocks: by size, then by address."""
        return (self.size, self.address, self)


class Allocator:
    """PyTorch's caching allocator for one stream: sizes are rounded to 512 bytes, requests up to 1 MiB share segments of
    2 MiB, those below 10 MiB segments of 20 MiB, the best fit is taken and split, free neighbours are merged."""

    def __init__(self, device_bytes, limit_bytes, conf):
        settings = dict(part.split(":", 1) for part in conf.replace(" ", "").split(",") if ":" in part)
        self.conf = conf
        self.is_expandable = settings.get("expandable_segments", "").lower() == "true"
        self.max_split = int(settings["max_split_size_mb"]) * MIB if "max_split_size_mb" in settings else None
        self.device_bytes, self.limit_bytes = device_bytes, min(limit_bytes, device_bytes)
        self.free_blocks = {"small": [], "large": []}
        self.segments = []
        self.tails = {}
        self.live = {}
        self.reserved = self.allocated = self.requested = 0
        self.peak_reserved = self.peak_allocated = self.largest_request = 0
        self.allocations = self.frees = 0
        self.next_address = FIRST_ADDRESS
        self.trace = None

    def malloc(self, requested):
        """The address of a new block."""
        size = max(512, -(-requested // 512) * 512)
        pool = "small" if size <= MIB else "large"
        block = self._find(pool, size) or self._grow(pool, size)
        if block is None:
            self._release_cached()
            block = self._grow(pool, size)
        if block is None:
            raise OutOfMemory(requested, self)
        self._split(block, size)
        block.in_use, block.requested = True, requested
        self.live[block.address] = block
        self.allocations += 1
        self.allocated += block.size
        self.requested += requested
        self.largest_request = max(self.largest_request, requested)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._record("alloc", block.address, requested)
        return block.address

    def free(self, address):
        block = self.live.pop(address)
        self.frees += 1
        self.allocated -= block.size
        self.requested -= block.requested
        self._record("free_requested", address, block.requested)
        self._record("free_completed", address, block.requested)
        block.in_use = False
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.in_use:
                self._take_out(neighbour)
                self._merge(block, neighbour)
        insort(self.free_blocks[block.pool], block.entry)

    def begin_window(self):
        """Peaks begin anew."""
        self.peak_reserved, self.peak_allocated = self.reserved, self.allocated

    # Rules.

    def _find(self, pool, size):
        blocks = self.free_blocks[pool]
        place = bisect_left(blocks, (size, 0))
        # The block that the segment can grow from counts as large as it could become.
        if self.is_expandable and place + 1 < len(blocks) and blocks[place][2] is self.tails.get(pool):
            place += 1
        if place == len(blocks):
            return None
        block = blocks[place][2]
        if self.max_split is not None:
            if size < self.max_split <= block.size or (size >= self.max_split and block.size >= size + 20 * MIB):
                return None
        return blocks.pop(place)[2]

    def _grow(self, pool, size):
        if self.is_expandable:
            return self._expand(pool, size)
        if pool == "small":
            total = 2 * MIB
        else:
            total = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + total > self.limit_bytes:
            return None
        block = Block(self.next_address, total, pool)
        self.next_address += total + 2 * MIB
        self.reserved += total
        self.segments.append(block)
        self._record("segment_alloc", block.address, total)
        return block

    def _expand(self, pool, size):
        page = 2 * MIB if pool == "small" else 20 * MIB
        tail = self.tails.get(pool)
        room = tail.size if tail is not None and not tail.in_use else 0
        mapped = -(-(size - room) // page) * page
        if self.reserved + mapped > self.limit_bytes:
            return None
        start = self.next_address if tail is None else tail.address + tail.size
        self.next_address += 1 << 40 if tail is None else 0
        self.reserved += mapped
        self._record("segment_map", start, mapped)
        block = Block(start, mapped, pool)
        if tail is None:
            self.segments.append(block)
        elif room:
            self._take_out(tail)
            tail.size += mapped
            return tail
        else:
            tail.after, block.before = block, tail
        self.tails[pool] = block
        return block

    def _split(self, block, size):
        rest = block.size - size
        if self.is_expandable or block.pool == "small":
            is_split = rest >= 512
        else:
            is_split = rest > MIB and (self.max_split is None or size < self.max_split)
        if not is_split:
            return
        remainder = Block(block.address + size, rest, block.pool)
        block.size = size
        remainder.before, remainder.after, block.after = block, block.after, remainder
        if remainder.after is not None:
            remainder.after.before = remainder
        if self.tails.get(block.pool) is block:
            self.tails[block.pool] = remainder
        insort(self.free_blocks[block.pool], remainder.entry)

    def _merge(self, block, neighbour):
        if self.tails.get(block.pool) is neighbour:
            self.tails[block.pool] = block
        if block.before is neighbour:
            block.address, block.before = neighbour.address, neighbour.before
            if block.before is not None:
                block.before.after = block
            else:
                self.segments[self.segments.index(neighbour)] = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        block.size += neighbour.size

    def _take_out(self, block):
        blocks = self.free_blocks[block.pool]
        del blocks[bisect_left(blocks, block.entry[:2])]

    def _release_cached(self):
        """Gives back segments that are wholly free. (Expandable ones keep their pages here.)"""
        if self.is_expandable:
            return
        for segment in [first for first in self.segments if not first.in_use and first.after is None]:
            self._take_out(segment)
            self.segments.remove(segment)
            self.reserved -= segment.size
            self._record("segment_free", segment.address, segment.size)

    # What is told of it.

    def _record(self, action, address, size):
        if self.trace is not None:
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(self.trace)})

    def blocks(self, first):
        while first is not None:
            yield first
            first = first.after

    def sample(self):
        free = [block for blocks in self.free_blocks.values() for _, _, block in blocks]
        kept = 0
        for first in self.segments:
            page = 2 * MIB if first.pool == "small" else 20 * MIB
            for block in self.blocks(first):
                start, end = block.address - first.address, block.address - first.address + block.size
                if block.in_use or (block is first and block.after is None):
                    continue
                kept += block.size - (max(0, end // page - -(-start // page)) * page if self.is_expandable else 0)
        return {
            "allocated_bytes": self.allocated,
            "requested_bytes": self.requested,
            "reserved_bytes": self.reserved,
            "peak_allocated_bytes": self.peak_allocated,
            "peak_reserved_bytes": self.peak_reserved,
            "largest_free_bytes": max((block.size for block in free), default=0),
            "unreleasable_bytes": kept,
            "allocated_blocks": len(self.live),
            "largest_request_bytes": self.largest_request,
        }

    def snapshot(self):
        segments = []
        for first in self.segments:
            blocks = list(self.blocks(first))
            segments.append(
                {
                    "device": 0,
                    "address": first.address,
                    "total_size": sum(block.size for block in blocks),
                    "stream": 0,
                    "segment_type": first.pool,
                    "segment_pool_id": (0, 0),
                    "is_expandable": self.is_expandable,
                    "blocks": [
                        {
                            "address": block.address,
                            "size": block.size,
                            "requested_size": block.requested,
                            "state": "active_allocated" if block.in_use else "inactive",
                        }
                        for block in blocks
                    ],
                }
            )
        settings = {
            "PYTORCH_CUDA_ALLOC_CONF": self.conf,
            "max_split_size": -1 if self.max_split is None else self.max_split,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": self.is_expandable,
            "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
        }
        return {"segments": segments, "device_traces": [self.trace or []], "allocator_settings": settings}


# The model: what one step allocates.


class Side(int):
    """Pixels of an image's side, where a length is expected."""


class Model:
    """`layers` layers with weights, gradients, Adam's two moments, and activations of `a + b·B` bytes."""

    LAYERS = 6
    FULL_LENGTH = 128
    """At this length a sample takes `--bytes-per-sample`."""
    FULL_SIDE = 256
    """At this side an image takes them."""

    def __init__(self, allocator, args):
        self.allocator = allocator
        # Layers of unequal sizes leave holes that the next one does not fit in.
        shares = [1 + (layer % 3 if args.uneven else 0) for layer in range(self.LAYERS)]
        # Weight, gradient and two moments: four times the weights.
        self.weight_bytes = [max(1, args.fixed_bytes // 4 * share // sum(shares)) for share in shares]
        self.sample_bytes = [max(1, args.bytes_per_sample * share // sum(shares)) for share in shares]
        self.weights = [allocator.malloc(size) for size in self.weight_bytes]
        self.gradients = []
        self.moments = []

    @classmethod
    def bytes_of(cls, per_sample, batch_size, length):
        """What a batch takes of something that a sample of full length takes `per_sample` of."""
        if isinstance(length, Side):
            return per_sample // cls.FULL_SIDE**2 * length**2 * batch_size
        return per_sample * batch_size if length is None else per_sample // cls.FULL_LENGTH * length * batch_size

    def forward(self, batch_size, length):
        """The activations that backward will need."""
        is_image = isinstance(length, Side)
        values = 3 * length**2 if is_image else length or self.FULL_LENGTH
        allocator, kept = self.allocator, [self.allocator.malloc(4 * values * batch_size)]
        for layer, per_sample in enumerate(self.sample_bytes):
            scratch = allocator.malloc(3000 + self.bytes_of(per_sample // 2, batch_size, length))
            # Attention's, or an image with a border.
            pairs = None if length is None else (length + 2) ** 2 if is_image else length * length
            scores = None if pairs is None else allocator.malloc(8 * batch_size * pairs)
            kept.append(allocator.malloc(1000 * layer + self.bytes_of(per_sample, batch_size, length)))
            allocator.free(scratch)
            if scores is not None:
                allocator.free(scores)
        return kept

    def backward(self, kept, batch_size, length):
        allocator, upstream = self.allocator, self.allocator.malloc(4)
        for layer in reversed(range(self.LAYERS)):
            downstream = allocator.malloc(self.bytes_of(self.sample_bytes[layer], batch_size, length))
            gradient = allocator.malloc(self.weight_bytes[layer])
            if len(self.gradients) < self.LAYERS:
                self.gradients.append(gradient)
            else:
                allocator.free(gradient)
            allocator.free(kept.pop())
            allocator.free(upstream)
            upstream = downstream
        allocator.free(upstream)
        allocator.free(kept.pop())

    def update(self):
        if not self.moments:
            self.moments = [self.allocator.malloc(size) for size in self.weight_bytes for _ in range(2)]
        while self.gradients:
            self.allocator.free(self.gradients.pop())

    def evaluate(self, batch_size, length):
        for address in self.forward(batch_size, length):
            self.allocator.free(address)


# The report.


class Report:
    """Lines for the tuner, or nothing where none listens."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None

    def raw(self, data):
        if self.file is not None:
            os.write(self.file, data)

    def write(self, event, **fields):
        self.raw((json.dumps({"event": event, **fields}) + "\n").encode())


class Lengths:
    """To what length each batch is padded, or of which side its images are; `None` where the program knows neither."""

    def __init__(self, args):
        self.has_images = bool(args.sides or args.max_side)
        self.random = random.Random(0)
        self.fixed, self.min, self.max = args.sequence_length, args.min_length, args.max_length
        if self.has_images:
            self.fixed, self.min, self.max = args.image_size, args.min_side, args.max_side
        self.of_file = []
        if args.lengths_file:
            with open(args.lengths_file) as file:
                self.of_file = [int(line) for line in file if line.strip()]

    def of_step(self, step):
        if self.fixed:
            return self._typed(self.fixed)
        if self.of_file:
            return self._typed(self.of_file[step % len(self.of_file)])
        multiple = 32 if self.has_images else 1
        return self._typed(self.random.randrange(self.min, self.max + 1, multiple) if self.max else None)

    def longest(self):
        return self._typed(self.fixed or max(self.of_file, default=self.max or None))

    def _typed(self, value):
        return Side(value) if self.has_images and value is not None else value


class Trainer:
    """The training loop, and the fault that it was told to have."""

    def __init__(self, args):
        self.args = args
        environment = os.environ.get
        self.purpose = environment("TUNE_PURPOSE", "measure")
        self.is_probe = self.purpose == "probe"
        self.sample_every = int(environment("TUNE_SAMPLE_EVERY", "2"))
        self.evaluate_after = int(environment("TUNE_EVALUATE_AFTER", "0"))
        self.checkpoint_path = environment("TUNE_CHECKPOINT")
        self.peers = Peers()
        # A rank's own files, as the protocol has it.
        self.own = f".{self.peers.rank}" if self.peers.rank > 0 and environment("TUNE_REPLICAS", "1") != "1" else ""
        self.trace_path = environment("TUNE_TRACE") and environment("TUNE_TRACE") + self.own
        is_silent = args.unmodified or self.has_fault("silent")
        self.report = Report(None if is_silent or not environment("TUNE_REPORT") else environment("TUNE_REPORT") + self.own)
        limit = args.device_bytes if args.unmodified else int(environment("TUNE_LIMIT_BYTES", args.device_bytes))
        self.allocator = Allocator(args.device_bytes, limit, environment("PYTORCH_CUDA_ALLOC_CONF", ""))
        self.lengths = Lengths(args)
        if self.is_probe and not args.unmodified:
            self.allocator.trace = []

    def has_fault(self, *names):
        is_here = self.args.fault_rank in (None, self.peers.rank)
        return is_here and self.args.fault in names and self.args.batch_size >= self.args.fault_batch

    def run(self):
        allocator = self.allocator
        self.report.write(
            "hello",
            protocol=1,
            framework="fake 1.0",
            pid=os.getpid(),
            rank=self.peers.rank,
            world_size=self.peers.world,
            device="cuda:0",
            uuid="GPU-fake",
            name="Fake device",
            allocator="expandable" if allocator.is_expandable else "native",
            total_bytes=allocator.device_bytes,
            limit_bytes=allocator.limit_bytes,
        )
        if self.has_fault("typo"):
            print(undefined_name)  # noqa: F821
        if self.has_fault("missing_file"):
            open("/does/not/exist/train.bin")
        if self.args.rank_bytes and self.peers.rank:
            allocator.malloc(self.args.rank_bytes * self.peers.rank)
        model = Model(allocator, self.args)
        self.mark("step", 0)
        step = 0
        while self.args.forever or step < self.args.steps:
            self.begin_fault(step)
            self.step(model, step)
            step += 1
        self.finish()

    def step(self, model, step):
        args = self.args
        if args.leak_bytes:
            self.allocator.malloc(args.leak_bytes)
        length = self.lengths.of_step(step)
        model.backward(model.forward(args.batch_size, length), args.batch_size, length)
        if (step + 1) % args.accumulation_steps == 0:
            model.update()
        compute_ms = args.step_ms + args.sample_ms * args.batch_size
        load_ms = args.load_ms * args.batch_size
        wait_ms = max(0.0, load_ms / args.loader_workers - compute_ms) if args.loader_workers else load_ms
        compute_ms += args.rank_ms * self.peers.rank
        time.sleep((compute_ms + wait_ms) / 1e3)
        done = step + 1
        if self.peers.world > 1:
            self.report.write("reached", step=done)
        self.peers.meet()
        loss = "nan" if self.has_fault("diverge") and step == args.fault_step else round(8.0 / (1 + done / 50), 6)
        times = {"total_ms": round(compute_ms + wait_ms, 6), "data_wait_ms": round(wait_ms, 6)}
        self.report.write("step", step=done, samples=args.batch_size, loss=loss, **times)
        if loss == "nan":
            self.report.write("end", outcome="diverged", step=done)
            sys.exit("the loss is not finite")
        self.phases(model, done)
        if done % self.sample_every == 0 or done == args.steps:
            self.report.write("sample", step=done, **self.allocator.sample())
            self.allocator.begin_window()
        self.mark("step", done)

    def phases(self, model, done):
        if done != self.evaluate_after or self.purpose not in ("probe", "soak"):
            return
        self.mark("evaluation", done)
        model.evaluate(self.args.batch_size, self.lengths.longest())
        self.report.write("evaluation", loss=2.5, seconds=0.001)
        if self.purpose == "soak" and self.checkpoint_path:
            with open(self.checkpoint_path, "wb") as file:
                file.write(bytes(10_000))
            self.report.write("checkpoint", bytes=10_000, seconds=0.001)

    def mark(self, kind, step):
        if self.is_probe:
            counts = {"allocations": self.allocator.allocations, "frees": self.allocator.frees}
            self.report.write("mark", mark=kind, step=step, **counts)

    def finish(self):
        if self.is_probe and self.trace_path and not self.has_fault("no_trace") and not self.args.unmodified:
            with open(self.trace_path, "wb") as file:
                if self.has_fault("bad_trace"):
                    file.write(b"\x80\x04cos\nsystem\n.")
                else:
                    pickle.dump(self.allocator.snapshot(), file, protocol=4)
            self.report.write("trace", path=self.trace_path)
        self.report.write("end", outcome="completed")
        if self.has_fault("linger"):
            hang()

    # Faults.

    def begin_fault(self, step):
        if step != self.args.fault_step or not self.has_fault(self.args.fault):
            return
        fault, report = self.args.fault, self.report
        signals = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT}
        if fault in signals:
            os.kill(os.getpid(), signals[fault])
        elif fault in ("hang", "hang_hard"):
            if fault == "hang_hard":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            hang()
        elif fault == "leave":
            sys.exit(0)
        elif fault == "status":
            sys.exit(3)
        elif fault == "out_of_memory":
            raise OutOfMemory(1 << 34, self.allocator)
        elif fault == "out_of_memory_text":
            self.report = Report(None)
            raise OutOfMemory(1 << 34, self.allocator)
        elif fault == "garbage":
            for line in (b"not json\n", b"[1, 2]\n", b"\xff\xfe\x00\n", b"\n", b'{"no": "event"}\n', b'{"event":"step"}\n',
                         b'{"event":"step","step":"one","samples":-1,"total_ms":null}\n', b'{"event":"later","x":1}\n'):
                report.raw(line)
        elif fault == "half_line":
            report.raw(b'{"event":"step","step":')
            sys.exit(1)
        elif fault == "long_line":
            report.raw(b'{"event":"warning","text":"' + b"x" * (3 * MIB) + b'"}\n')
        elif fault == "two_ends":
            report.write("end", outcome="completed")
        elif fault == "flood":
            for stream in (sys.stdout.buffer, sys.stderr.buffer):
                for _ in range(64):
                    stream.write(b"flood of output, without end\n" * (MIB // 29))
                stream.flush()
        elif fault == "grandchild":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            if self.args.pid_file:
                with open(self.args.pid_file, "w") as file:
                    file.write(str(child.pid))
        elif fault == "slow":
            time.sleep(30)


def hang():
    while True:
        time.sleep(60)


def arguments(given=None):
    """Those given; of the command line where none are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Faults: " + ", ".join(FAULTS))

    def option(name, kind, default, help_text):
        variable = "FAKE_" + name.upper().replace("-", "_")
        parser.add_argument("--" + name, type=kind, default=os.environ.get(variable, default), help=help_text)

    def tuned(name, default):
        variable = "TUNE_" + name.upper().replace("-", "_")
        parser.add_argument("--" + name, type=int, default=os.environ.get(variable, default))

    tuned("batch-size", 8)
    tuned("accumulation-steps", 1)
    tuned("loader-workers", 0)
    tuned("prefetch-depth", 2)
    tuned("steps", 20)
    tuned("sequence-length", 0)
    tuned("image-size", 0)
    option("min-length", int, 64, "of the batches, where they vary")
    option("max-length", int, 0, "of the batches; 0: the program knows no lengths")
    parser.add_argument("--lengths-file", help="the length of each batch, one a line; begun again at its end")
    option("min-side", int, 64, "of the images of a batch, where it varies, by 32")
    option("max-side", int, 0, "of the images of a batch; 0: the program has no images")
    parser.add_argument("--sides", action="store_true", help="what --lengths-file holds are sides of images")
    parser.add_argument("--heedless", action="store_true", help="take no notice of --sequence-length and --image-size")
    parser.add_argument("--pin-memory", default="true")
    option("bytes-per-sample", int, 24 * MIB, "of all activations together")
    option("fixed-bytes", int, 64 * MIB, "weights, gradients and optimizer state")
    option("device-bytes", int, 16 << 30, "of the made-up device")
    option("leak-bytes", int, 0, "allocated anew in each step and never freed")
    option("step-ms", float, 0.8, "time of a step apart from its samples")
    option("sample-ms", float, 0.02, "time of a step for each sample")
    option("load-ms", float, 0.05, "time that one worker takes for a sample")
    parser.add_argument("--uneven", action="store_true", help="layers of unequal sizes, which fragment the memory")
    parser.add_argument("--unmodified", action="store_true", help="report nothing, as a script that knows no tuner")
    parser.add_argument("--forever", action="store_true", help="take no notice of --steps")
    option("fault", str, None, "; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    option("fault-step", int, 2, "finished steps before the fault")
    option("fault-batch", int, 0, "only at this batch size and above")
    option("fault-rank", int, None, "only on this rank")
    option("ranks", int, 1, "processes that train together")
    option("rank-bytes", int, 0, "allocated once on rank 1, twice on rank 2, and so on")
    option("rank-ms", float, 0.0, "that a step takes longer on rank 1, twice on rank 2, and so on")
    parser.add_argument("--pid-file", help="where the grandchild's process id goes")
    args = parser.parse_args(given)
    if args.heedless:
        args.sequence_length = args.image_size = 0
    if args.fault is not None and args.fault not in FAULTS:
        parser.error(f"no fault `{args.fault}`")
    return args


def main():
    args = arguments()
    if args.ranks > 1 and "RANK" not in os.environ:
        sys.exit(launch([sys.executable, *sys.argv], args.ranks))
    trainer = Trainer(args)
    try:
        trainer.run()
    except OutOfMemory as error:
        fields = {"message": str(error), "requested_bytes": error.requested_bytes}
        trainer.report.write("end", outcome="out_of_memory", **fields)
        sys.exit(f"Traceback (most recent call last):\ntorch.OutOfMemoryError: {error}")
    except Exception as error:
        trainer.report.write("end", outcome="failed", message=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
