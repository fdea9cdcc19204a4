"""One device of 16 GiB (and some bytes, so that fractions do not come out even) with an allocator that never reuses."""

import os
from types import SimpleNamespace

from torch import OutOfMemoryError
from torch.cuda import memory

__all__ = ["OutOfMemoryError", "memory"]

TOTAL_BYTES = (16 << 30) + 12_345
SEGMENT_BYTES = 2 << 20

is_async = "cudaMallocAsync" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
observers = []
calls = []
allowed_bytes = TOTAL_BYTES
totals = {"allocated": 0, "freed": 0, "free_requested": 0, "refused": 0}
live = {}
peak_bytes = 0
reserved_bytes = 0
_next_address = 0x7F0000000000


def refuse_if_async():
    """As torch does for what only its own allocator has."""
    if is_async:
        raise RuntimeError("cudaMallocAsync does not yet support this")


def is_available():
    return "STUB_NO_CUDA" not in os.environ


def init():
    calls.append("init")


def device_count():
    return 1


def current_device():
    return 0


def synchronize(device=None):
    calls.append("synchronize")


def get_device_properties(device):
    return SimpleNamespace(name="Stub", total_memory=TOTAL_BYTES, uuid="00000000-stub")


def get_allocator_backend():
    return "cudaMallocAsync" if is_async else "native"


def set_per_process_memory_fraction(fraction, device):
    global allowed_bytes
    allowed_bytes = int(fraction * TOTAL_BYTES)


def allocate(size):
    """A tensor's memory, in a segment of its own."""
    global peak_bytes, reserved_bytes, _next_address
    segment_bytes = -(-size // SEGMENT_BYTES) * SEGMENT_BYTES
    if sum(live.values()) + segment_bytes > allowed_bytes:
        totals["refused"] += 1
        for observer in observers:
            observer(0, segment_bytes, allowed_bytes, 0)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {segment_bytes} bytes.")
    address, _next_address = _next_address, _next_address + segment_bytes
    live[address] = size
    totals["allocated"] += 1
    peak_bytes = max(peak_bytes, sum(live.values()))
    reserved_bytes = max(reserved_bytes, sum(-(-size // SEGMENT_BYTES) * SEGMENT_BYTES for size in live.values()))
    memory.record("alloc", address, size)
    return address


def free(address, is_deferred=False):
    """`is_deferred`: another stream still uses it, so the block stays."""
    totals["free_requested"] += 1
    memory.record("free_requested", address, live[address])
    if not is_deferred:
        memory.record("free_completed", address, live.pop(address))
        totals["freed"] += 1


def memory_allocated(device=None):
    return sum(live.values())


def memory_stats(device=None):
    current = sum(live.values())
    return {
        "allocation.all.allocated": totals["allocated"],
        "allocation.all.freed": totals["free_requested"],
        "allocation.all.current": len(live),
        "active.all.freed": totals["freed"],
        "allocated_bytes.all.current": current,
        "allocated_bytes.all.peak": peak_bytes,
        "requested_bytes.all.current": current,
        "reserved_bytes.all.current": reserved_bytes,
        "reserved_bytes.all.peak": reserved_bytes,
        "num_ooms": totals["refused"],
    }


def reset_peak_memory_stats(device=None):
    global peak_bytes
    peak_bytes = sum(live.values())


def memory_snapshot():
    refuse_if_async()
    calls.append("memory_snapshot")
    return memory._snapshot()["segments"]
