"""Stands in for torch: remembers the memory fraction that it is asked for."""

import os


class _Properties:
    total_memory = 80 * 2**30


class cuda:
    fraction = None
    conf_when_limited = None

    @staticmethod
    def get_device_properties(device):
        return _Properties()

    @staticmethod
    def set_per_process_memory_fraction(fraction, device=None):
        assert 0.0 <= fraction <= 1.0
        cuda.fraction = fraction
        cuda.conf_when_limited = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
