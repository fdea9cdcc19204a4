"""`long_run.py` on a device that is not there: the rehearsal of tests/long_run_commands.rs on a machine without a card.

The model is the real one and nothing of it is computed (fake tensors, which have a size and no memory). What it allocates
and frees goes to the made-up allocator of `fake_trainer.py`, which reports as a card's would. Not seen are the memory that
kernels take for themselves and cuBLAS's workspaces.
"""

import os
import sys
import weakref

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "..")]
report_path = os.environ.pop("TUNE_REPORT", None)  # so that the reporter for PyTorch stays out of it

import fake_trainer  # noqa: E402
import long_run  # noqa: E402
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402


class Memory(TorchDispatchMode):
    """Every storage that an operation makes is a block of the allocator, until nobody refers to it."""

    def __init__(self, allocator):
        super().__init__()
        self.allocator, self.known = allocator, weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
                self.take(tensor.untyped_storage())
        return made

    def take(self, storage):
        if storage not in self.known:
            address = self.known[storage] = self.allocator.malloc(storage.nbytes())
            weakref.finalize(storage, self.allocator.free, address).atexit = False


class Pretended(fake_trainer.Trainer):
    """The report of the fake trainer, on the real model's memory."""

    def run(self):
        self.report.write("hello", protocol=1, framework="fake tensors", pid=os.getpid(), device="cuda:0", name="None",
                          allocator="expandable" if self.allocator.is_expandable else "native",
                          total_bytes=self.allocator.device_bytes, limit_bytes=self.allocator.limit_bytes)
        self.done = 0
        with FakeTensorMode(allow_non_fake_inputs=True), Memory(self.allocator):
            long_run.train(self.args, torch.device("cpu"), self.on_step, self.on_begin)
        self.finish()

    def on_begin(self):
        self.mark("step", 0)

    def on_step(self, samples, loss):
        self.done += 1
        self.report.write("step", step=self.done, samples=samples, loss=1.0, total_ms=1.0)
        if self.done % self.sample_every == 0 or self.done == self.args.steps:
            self.report.write("sample", step=self.done, **self.allocator.sample())
            self.allocator.begin_window()
        self.mark("step", self.done)


def main():
    args = fake_trainer.arguments(["--device-bytes", str(128 << 30)])
    vars(args).update(vars(long_run.arguments()))
    if report_path is not None:
        os.environ["TUNE_REPORT"] = report_path
    trainer = Pretended(args)
    try:
        trainer.run()
    except fake_trainer.OutOfMemory as error:
        trainer.report.write("end", outcome="out_of_memory", message=str(error), requested_bytes=error.requested_bytes)
        sys.exit(1)


if __name__ == "__main__":
    main()
