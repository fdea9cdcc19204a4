"""The history of events, which torch keeps in its private functions."""

import pickle

_entries = []
_is_recording = False


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=0):
    global _is_recording
    from torch import cuda

    cuda.refuse_if_async()
    assert enabled is None or (enabled == "all" and context is None and max_entries > 0)
    _is_recording = enabled is not None
    if not _is_recording:
        _entries.clear()


def record(action, address, size):
    if _is_recording:
        _entries.append({"action": action, "addr": address, "size": size, "stream": 0})


def _snapshot():
    from torch import cuda

    cuda.refuse_if_async()
    segments = []
    for address, size in cuda.live.items():
        total = -(-size // cuda.SEGMENT_BYTES) * cuda.SEGMENT_BYTES
        blocks = [{"address": address, "size": size, "state": "active_allocated"}]
        if total > size:
            blocks.append({"address": address + size, "size": total - size, "state": "inactive"})
        segments.append(
            {"device": 0, "address": address, "total_size": total, "segment_type": "large", "blocks": blocks}
        )
    return {
        "segments": segments,
        "device_traces": [list(_entries)],
        "allocator_settings": {"expandable_segments": False},
    }


def _dump_snapshot(path):
    with open(path, "wb") as file:
        pickle.dump(_snapshot(), file)
