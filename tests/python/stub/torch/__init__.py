"""As much of torch as tune_report asks for, over a device that is a few counters. For tests: no step trains anything.

`torch.cuda.allocate(bytes)` and `torch.cuda.free(block)` stand for what tensors do. `STUB_NO_CUDA` hides the device.
"""

__version__ = "0.0.stub"


class OutOfMemoryError(RuntimeError):
    """What the allocator raises."""


class AcceleratorError(RuntimeError):
    """What the driver's errors become."""

    def __init__(self, text, error_code):
        super().__init__(text)
        self.error_code = error_code


class Tensor:
    """A number on the device. Reading it without `detach` would warn in torch, so it fails here."""

    def __init__(self, value, shape=()):
        self.value, self.shape, self._detached = value, shape, False

    def detach(self):
        tensor = Tensor(self.value, self.shape)
        tensor._detached = True
        return tensor

    def __float__(self):
        assert self._detached
        return float(self.value)


class _C:
    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        cuda.refuse_if_async()
        cuda.observers.append(observer)


from torch import cuda, utils  # noqa: E402, F401
